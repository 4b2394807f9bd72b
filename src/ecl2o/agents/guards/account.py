"""The running balance of a promise, and costs with bounds on their rounding."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecl2o.problem import Problem
from ecl2o.problem.arrays import add_exactly, cost_ratio
from ecl2o.solvers.small_dense import accurate_half_form

# The share of the cost by which rounding may exceed a promise (docs/guarantees.md) is eps ** this: 1e-9 in 64 bits, 1e-4 in 32.
_TOLERANCE_POWER = 0.575


def accurate_cost(
    problem: Problem, action: Float[Array, " d"], context: Float[Array, " q"], previous: Float[Array, " d"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return f(x, y) + c(x, z) and a bound on its error. Costs that are not quadratic are taken to be accurate."""
    dim, hitting, switching = action.shape[0], problem.hitting, problem.switching
    if dim > 1 and hitting.is_quadratic and switching.is_quadratic:
        hit = accurate_half_form(hitting.curvature(context, dim), action - hitting.centre(context, dim))
        move = accurate_half_form(2 * problem.Q, action - previous)
        return hit[0] + move[0], hit[1] + move[1]
    cost, limits = hitting(action, context) + switching(action, previous), jnp.finfo(action.dtype)
    free = (action == previous).all()
    if hitting.is_quadratic:
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
        rounding_allowance: what rounding to a spacing added to the allowance; None without a spacing.
    """

    left: Float[Array, "*n"]
    rest: Float[Array, "*n"]
    rounding: Float[Array, "*n"]
    cost: Float[Array, "*n"]
    reference: Float[Array, "*n"]
    kept: Bool[Array, "*n"]
    steps: Int[Array, "*n"]
    rounding_allowance: Float[Array, "*n"] | None = None

    @classmethod
    def open(
        cls, allowance: Float[Array, "*n"], kept: Bool[Array, ""], dtype: Any, is_spaced: bool = False
    ) -> "Account":
        """Return the account before the first step; `is_spaced` is whether actions have a spacing."""
        left = jnp.asarray(allowance, dtype)
        zero, kept = jnp.zeros_like(left), jnp.broadcast_to(kept, left.shape)
        return cls(left, zero, zero, zero, zero, kept, jnp.zeros(left.shape, int), zero if is_spaced else None)

    def update(
        self,
        ratio: Float[Array, "*n"],
        growth: Float[Array, "*n"],
        cost: Float[Array, "*n"],
        rounding: Float[Array, "*n"],
        kept: Bool[Array, "*n"],
        reported: tuple[Float[Array, "*n"], Float[Array, "*n"]] | None = None,
        rounded: Float[Array, "*n"] | float = 0.0,
    ) -> "Account":
        """Return the account after a step in which the reference grew by `growth` and the cost by `cost`.

        `rounding` bounds the error of ratio * growth - cost. The promise ends where the exact `left` may be negative by more than
        the tolerance. `reported` are cost and growth for reports, where the promise counts others; `rounded` is added to the
        allowance.
        """
        left, rest = add_exactly(self.left, self.rest + (ratio * growth - cost) + rounded)
        cost, growth = (cost, growth) if reported is None else reported
        rounding, paid, reference = self.rounding + rounding, self.cost + cost, self.reference + growth
        tolerance = jnp.finfo(left.dtype).eps ** _TOLERANCE_POWER
        kept &= left - rounding >= -tolerance * (jnp.abs(paid) + jnp.abs(ratio * reference))  # false for NaN
        total = None if self.rounding_allowance is None else self.rounding_allowance + rounded
        return Account(left, rest, rounding, paid, reference, kept, self.steps + kept, total)

    def details(self) -> dict[str, Array]:
        """Return cost, reference, ratio and left for `Info.details`, one number for each account."""
        figures: dict[str, Any] = {"cost": self.cost, "reference": self.reference, "left": self.left}
        figures["ratio"] = cost_ratio(self.cost, self.reference)
        if self.rounding_allowance is not None:
            figures["rounding_allowance"] = self.rounding_allowance
        return figures
