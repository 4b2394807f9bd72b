"""What every guard is: a wrapper with a promise, an account of it, and a way to begin both anew."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecl2o.agents.base import AbstractAgent, Start, State
from ecl2o.agents.promise import Promise
from ecl2o.problem import Problem
from ecl2o.problem.arrays import cost_ratio


class AbstractGuard(AbstractAgent):
    """An agent that lets another one act as far as its promise allows.

    A guard keeps its wrapped agent's state in `state.inner` and its `Account` in `state.account`, and reports
    `Account.details()` in `Info.details`. Where it has lost its promise (`kept` is false) it plays its safest action, and its
    steps count as not converged.
    """

    agent: eqx.AbstractVar[AbstractAgent]

    @abc.abstractmethod
    def promise(self, problem: Problem) -> Promise:
        """What is promised of the bill from one `init` or renewal to the next."""

    @abc.abstractmethod
    def rescale(self, factor: float) -> "AbstractGuard":
        """The same guard for contexts `factor` times as large, the wrapped agent left as it is."""

    def with_terms(self, allowance: float, contexts: tuple[float, float] | None) -> "AbstractGuard":
        """The same guard with these numbers in its promise, where it has them; the wrapped agent left as it is."""
        return self

    def with_action_bounds(self, low: float, high: float) -> "AbstractGuard":
        """The same guard where actions are kept from `low` to `high`: a promise may have to count on contexts there."""
        return self

    @abc.abstractmethod
    def restart(self, problem: Problem, state: Any, start: Start) -> State:
        """The state with account and reference begun anew at `start.x0`; the wrapped agent's is left as it is."""


# By how much of the bill rounding may exceed a promise (docs/guarantees.md), as a power of a format's epsilon: 1e-9 in 64 bits,
# 1e-4 in 32.
_ROUNDING_POWER = 0.575


class Account(eqx.Module):
    """How a promise stands.

    Only `left` decides anything: what the promise leaves to be spent, ratio * reference + allowance - cost. It is carried by
    itself, because the difference of two growing totals loses its digits. Cost and reference are kept to be reported.

    Args:
        left: what the promise leaves to be spent.
        cost: what was paid.
        reference: what the promise is relative to, so far.
        kept: whether the promise has held at every step. A bill that exceeds it by more than rounding explains ends it, so that
            no account says of a broken promise that it was kept.
        steps: for how many steps it held.
    """

    left: Float[Array, ""]
    cost: Float[Array, ""]
    reference: Float[Array, ""]
    kept: Bool[Array, ""]
    steps: Int[Array, ""]

    @classmethod
    def open(cls, allowance: Float[Array, ""], kept: Bool[Array, ""], dtype: Any) -> "Account":
        """Before the first step."""
        zero = jnp.zeros((), dtype)
        return cls(jnp.asarray(allowance, dtype), zero, zero, kept, jnp.zeros((), int))

    def update(
        self,
        ratio: Float[Array, ""],
        growth: Float[Array, ""],
        cost: Float[Array, ""],
        kept: Bool[Array, ""],
    ) -> "Account":
        """A step later: the reference has grown by `growth`, the bill by `cost`."""
        left, paid, reference = self.left + ratio * growth - cost, self.cost + cost, self.reference + growth
        rounding = jnp.finfo(left.dtype).eps ** _ROUNDING_POWER
        kept &= left >= -rounding * (jnp.abs(paid) + jnp.abs(ratio * reference))  # false for NaN
        return Account(left, paid, reference, kept, self.steps + kept)

    def details(self, reference: str, ratio: str, active: Bool[Array, ""]) -> dict[str, Array]:
        """For `Info.details`: `cost`, reference and ratio by their names, `left`, `active`, `kept` and `kept_steps`."""
        return {
            "cost": self.cost,
            reference: self.reference,
            ratio: cost_ratio(self.cost, self.reference),
            "left": self.left,
            "active": active,
            "kept": self.kept,
            "kept_steps": self.steps,
        }
