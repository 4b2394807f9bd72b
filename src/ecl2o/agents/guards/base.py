"""The interface of guards: a wrapper with a promise, an account of it, and a way to restart both."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecl2o.agents.base import AbstractAgent, AnyProblem, Start, State
from ecl2o.agents.promise import Promise
from ecl2o.problem import AbstractQuadraticCost, Mahalanobis, Problem
from ecl2o.problem.arrays import AnyArray, add_exactly, cost_ratio
from ecl2o.solvers.small_dense import accurate_half_form


class AbstractGuard(AbstractAgent):
    """The base class of guards: agents that let another agent act as far as a promise allows.

    A guard keeps its wrapped agent's state in `state.inner` and its `Account` in `state.account`, and reports
    `Account.details()` in `Info.details`. After it has lost its promise (`kept` is false) it plays its safest action, and
    its steps count as not converged.
    """

    agent: eqx.AbstractVar[AbstractAgent]

    @abc.abstractmethod
    def promise(self, problem: AnyProblem) -> Promise:
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
    def restart(self, problem: AnyProblem, state: Any, start: Start) -> State:
        """Return the state with account and reference restarted at `start.x0` and the wrapped agent's state unchanged."""


def name_reference(expert: AbstractAgent | None) -> str:
    """Return how a promise relative to an expert calls it: its class, unless that has a `reference_name`."""
    return getattr(type(expert), "reference_name", type(expert).__name__)


# The share of the cost by which rounding may exceed a promise (docs/guarantees.md) is eps ** this: 1e-9 in 64 bits, 1e-4 in 32.
_TOLERANCE_POWER = 0.575


def accurate_cost(
    problem: Problem, action: Float[Array, " d"], context: Float[Array, " q"], previous: Float[Array, " d"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return f(x, y) + c(x, z) and a bound on its error. Costs that are not quadratic are taken to be accurate."""
    dim, hitting, switching = action.shape[0], problem.hitting, problem.switching
    quadratic = isinstance(hitting, AbstractQuadraticCost)
    if dim > 1 and quadratic and isinstance(switching, Mahalanobis):
        hit = accurate_half_form(hitting.curvature(context, dim), action - hitting.centre(context, dim))
        move = accurate_half_form(2 * switching.Q, action - previous)
        return hit[0] + move[0], hit[1] + move[1]
    cost, limits = hitting(action, context) + switching(action, previous), jnp.finfo(action.dtype)
    free = (action == previous).all()
    if quadratic:
        free &= (action == hitting.centre(context, dim)).all()
    rounding = (dim + 3) * limits.eps * jnp.abs(cost) + jnp.where(free, 0.0, 2 * limits.tiny)
    return cost, jax.lax.stop_gradient(rounding)


class Account(eqx.Module):
    """The running balance of a promise.

    Only `left` decides: ratio * reference + allowance - cost. It is carried by itself, because the difference of two growing
    totals loses digits. Cost and reference are kept for reports.

    Args:
        left: cost that the promise still allows.
        rest: what rounding removed from `left`.
        rounding: a bound on the error of `left`, from the rounding of each step's cost and reference.
        cost: cost so far.
        reference: cost of the reference so far.
        kept: whether the promise has held at every step, up to rounding.
        steps: for how many steps it held.
        booked: what rounding to a spacing added to the allowance; None without a spacing.
    """

    left: Float[Array, ""]
    rest: Float[Array, ""]
    rounding: Float[Array, ""]
    cost: Float[Array, ""]
    reference: Float[Array, ""]
    kept: Bool[Array, ""]
    steps: Int[Array, ""]
    booked: Float[Array, ""] | None = None

    @classmethod
    def open(cls, allowance: Float[Array, ""], kept: Bool[Array, ""], dtype: Any, books: bool = False) -> "Account":
        """Return the account before the first step; `books` is whether actions have a spacing."""
        zero = jnp.zeros((), dtype)
        booked = zero if books else None
        return cls(jnp.asarray(allowance, dtype), zero, zero, zero, zero, kept, jnp.zeros((), int), booked)

    def update(
        self,
        ratio: Float[Array, ""],
        growth: Float[Array, ""],
        cost: Float[Array, ""],
        rounding: Float[Array, ""],
        kept: Bool[Array, ""],
        reported: tuple[Float[Array, ""], Float[Array, ""]] | None = None,
        booked: Float[Array, ""] | float = 0.0,
    ) -> "Account":
        """Return the account after a step in which the reference grew by `growth` and the cost by `cost`.

        `rounding` bounds the error of ratio * growth - cost. The promise ends where the exact `left` may be negative by more than
        the tolerance. `reported` are cost and growth for reports, where the promise counts others; `booked` is added to the
        allowance.
        """
        left, rest = add_exactly(self.left, self.rest + (ratio * growth - cost) + booked)
        cost, growth = (cost, growth) if reported is None else reported
        rounding, paid, reference = self.rounding + rounding, self.cost + cost, self.reference + growth
        tolerance = jnp.finfo(left.dtype).eps ** _TOLERANCE_POWER
        kept &= left - rounding >= -tolerance * (jnp.abs(paid) + jnp.abs(ratio * reference))  # false for NaN
        total = None if self.booked is None else self.booked + booked
        return Account(left, rest, rounding, paid, reference, kept, self.steps + kept, total)

    def details(self, reference: str, ratio: str, active: Bool[Array, ""]) -> dict[str, AnyArray]:
        """Return `cost`, reference and ratio by their names, `left`, `active`, `kept` and `kept_steps` for `Info.details`."""
        return {
            "cost": self.cost,
            reference: self.reference,
            ratio: cost_ratio(self.cost, self.reference),
            "left": self.left,
            "active": active,
            "kept": self.kept,
            "kept_steps": self.steps,
            **({} if self.booked is None else {"booked": self.booked}),
        }
