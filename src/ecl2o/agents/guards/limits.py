"""What limits on actions leave of a promise: ramps and spacings (proofs: docs/guarantees.md).

*Ramps.* Contexts, x_0 and actions lie in a box whose side is D. Known a context y and the worst later ones, all in n, the best
action is an average of y, n and the action in force, with weights A, S and a: it moves by at most D (A + S)/(A + a + S). Where
the ramp allows (M + k_M)/(M + a + k_M) of D, it therefore takes nothing from the game. Where it allows less, the promise
counts movement at the price a' at which it would: a' = M (1 - rho)/rho^2, rho = R/D.

*Spacings.* The safest action x_m minimises cost plus reserve, whose curvature is at most H. So its nearest multiple of the
spacing s exceeds the level by at most H s^2/8, and what it exceeds it by is added to the allowance.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.problem import AbstractActionSet, Mahalanobis, Problem
from ecl2o.problem.actions import floor_multiple, with_tangent_of


def count_movement(
    problem: Problem, greatest: Float[Array, "d d"], low: Float[Array, "*d"], high: Float[Array, "*d"]
) -> tuple[Problem, Float[Array, ""]]:
    """Return the problem whose movement costs what the promise counts, and the least share of it that is real.

    With a spacing, moves and the range of actions are multiples of it.

    Args:
        problem: with diagonal matrices; without a ramp it is returned as it is.
        greatest: (d, d), the greatest curvature of a context.
        low: the least context, x_0 and action.
        high: the greatest context, x_0 and action.
    """
    ramp, G = problem.actions.ramp, 2 * problem.Q
    if ramp is None:
        return problem, jnp.ones((), G.dtype)
    spacing = problem.actions.spacing
    if spacing is not None:
        ramp, low = spacing * floor_multiple(ramp / spacing), spacing * floor_multiple(low / spacing)
        high = -spacing * floor_multiple(-high / spacing)
    length, price = (high - low).astype(G.dtype), jnp.diagonal(G)
    share = jnp.minimum(ramp.astype(G.dtype) / jnp.where(length > 0, length, 1.0), 1.0)
    share = jnp.where(length > 0, share, 1.0)
    counted = jnp.maximum(price, jnp.diagonal(greatest).astype(G.dtype) * (1 - share) / share**2)
    return dataclasses.replace(problem, switching=Mahalanobis(jnp.diag(counted) / 2)), jnp.min(price / counted)


def round_inside(
    actions: AbstractActionSet,
    previous: Float[Array, " d"],
    advice: Float[Array, " d"],
    moved: Float[Array, " d"],
    safest: Float[Array, " d"],
    kept: Bool[Array, "*n"],
    spare: Callable[[Float[Array, " d"]], Float[Array, "*n"]],
) -> tuple[Float[Array, " d"], Bool[Array, "*n"], Float[Array, "*n"]]:
    """Return a multiple of the spacing: near the advice if that is allowed, else near the moved advice, else near the safest.

    Near the moved advice means between it and the multiple that is nearest to the safest action. An action is allowed if it stays
    below every level.

    Args:
        actions: with a spacing.
        previous: (d,), the action in force.
        advice: (d,); where it is not finite, the safest action is played.
        moved: (d,), the advice moved to where it is allowed.
        safest: (d,), the action of least cost plus reserve, and where a ramp ends the nearest one to it.
        kept: whether the promises are; else the safest action is played.
        spare: returns by how much an action stays below the level, or each of several levels.

    Returns:
        The action, by level whether it rules out the multiple nearest to the advice, and by how much the action exceeds each
        level of a promise that is kept.
    """
    assert actions.spacing is not None
    unit, (low, high) = actions.spacing.astype(previous.dtype), actions.reachable(previous)
    usable, last = jnp.isfinite(advice).all() & kept.all(), actions.reach(previous, safest)
    nearest = actions.reach(previous, jnp.where(usable, advice, safest))
    inward = jnp.where(moved >= last, unit * floor_multiple(moved / unit), -unit * floor_multiple(-moved / unit))
    inward = with_tangent_of(moved, jnp.clip(jnp.where(inward == 0, 0.0, inward), low, high))
    fits = spare(nearest) >= 0
    action = jnp.where(fits.all(), nearest, jnp.where((spare(inward) >= 0).all() & usable, inward, last))
    return action, ~(fits & usable), jnp.where(kept, jnp.maximum(-spare(action), 0.0), 0.0)
