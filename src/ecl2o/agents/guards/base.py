"""The interface of guards: a wrapper with a promise, an account of it, and a way to restart both."""

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
    """The base class of guards: agents that let another agent act as far as a promise allows.

    A guard keeps its wrapped agent's state in `state.inner` and its `Account` in `state.account`, and reports
    `Account.details()` in `Info.details`. After it has lost its promise (`kept` is false) it plays its safest action, and
    its steps count as not converged.
    """

    agent: eqx.AbstractVar[AbstractAgent]

    @abc.abstractmethod
    def promise(self, problem: Problem) -> Promise:
        """Return what is promised about the cost from one `init` or `restart` to the next."""

    @abc.abstractmethod
    def rescale(self, factor: float) -> "AbstractGuard":
        """Return the guard for contexts `factor` times as large, with the same wrapped agent."""

    def with_terms(self, allowance: float, contexts: tuple[float, float] | None) -> "AbstractGuard":
        """Return the guard with these numbers in its promise, with the same wrapped agent. Default: the guard itself."""
        return self

    def with_action_bounds(self, low: float, high: float) -> "AbstractGuard":
        """Return the guard for actions between `low` and `high`. A promise may then require contexts there."""
        return self

    @abc.abstractmethod
    def restart(self, problem: Problem, state: Any, start: Start) -> State:
        """Return the state with account and reference restarted at `start.x0` and the wrapped agent's state unchanged."""


# The share of the cost by which rounding may exceed a promise (docs/guarantees.md) is eps ** this: 1e-9 in 64 bits, 1e-4 in 32.
_ROUNDING_POWER = 0.575


class Account(eqx.Module):
    """The running balance of a promise.

    Only `left` decides: ratio * reference + allowance - cost. It is carried by itself, because the difference of two growing
    totals loses digits. Cost and reference are kept for reports.

    Args:
        left: cost that the promise still allows.
        cost: cost so far.
        reference: cost of the reference so far.
        kept: whether the promise has held at every step, up to rounding.
        steps: for how many steps it held.
    """

    left: Float[Array, ""]
    cost: Float[Array, ""]
    reference: Float[Array, ""]
    kept: Bool[Array, ""]
    steps: Int[Array, ""]

    @classmethod
    def open(cls, allowance: Float[Array, ""], kept: Bool[Array, ""], dtype: Any) -> "Account":
        """Return the account before the first step."""
        zero = jnp.zeros((), dtype)
        return cls(jnp.asarray(allowance, dtype), zero, zero, kept, jnp.zeros((), int))

    def update(
        self, ratio: Float[Array, ""], growth: Float[Array, ""], cost: Float[Array, ""], kept: Bool[Array, ""]
    ) -> "Account":
        """Return the account after a step in which the reference grew by `growth` and the cost by `cost`."""
        left, paid, reference = self.left + ratio * growth - cost, self.cost + cost, self.reference + growth
        rounding = jnp.finfo(left.dtype).eps ** _ROUNDING_POWER
        kept &= left >= -rounding * (jnp.abs(paid) + jnp.abs(ratio * reference))  # false for NaN
        return Account(left, paid, reference, kept, self.steps + kept)

    def details(self, reference: str, ratio: str, active: Bool[Array, ""]) -> dict[str, Array]:
        """Return `cost`, reference and ratio by their names, `left`, `active`, `kept` and `kept_steps` for `Info.details`."""
        return {
            "cost": self.cost,
            reference: self.reference,
            ratio: cost_ratio(self.cost, self.reference),
            "left": self.left,
            "active": active,
            "kept": self.kept,
            "kept_steps": self.steps,
        }
