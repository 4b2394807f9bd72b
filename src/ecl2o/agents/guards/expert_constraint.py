"""The actions that a promise relative to an expert allows at a step, and how advice outside is moved inside.

Allowed are {x in X: f(x, y) + w1 c(x, x_prev) + w2 c(x, fallback) <= budget}. Other advice is moved to the nearest point where
the set is an ellipsoid (quadratic costs without bounds; with bounds if d = 1), else along the segment to the fallback. Both
are differentiated by the implicit function theorem, not through an iteration.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.agents.calibrator import has_closed_form
from ecl2o.problem import AbstractQuadraticCost, Problem
from ecl2o.solvers.bisection import bisect_root
from ecl2o.solvers.ellipsoid import project_on_ellipsoid


class Allowance(eqx.Module):
    """The set of allowed actions; `fallback` is one of them, up to rounding."""

    context: Float[Array, " q"]
    previous: Float[Array, " d"]
    fallback: Float[Array, " d"]
    previous_weight: Float[Array, ""]
    fallback_weight: Float[Array, ""]
    budget: Float[Array, ""]

    def weighted_cost(self, problem: Problem, action: Float[Array, " d"]) -> Float[Array, ""]:
        """Return f(x, y) + w1 c(x, x_prev) + w2 c(x, fallback)."""
        return (
            problem.hitting(action, self.context)
            + self.previous_weight * problem.switching(action, self.previous)
            + self.fallback_weight * problem.switching(action, self.fallback)
        )


def move_inside(
    problem: Problem, allowance: Allowance, advice: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
    """Return the advice, projected on X, or an allowed action instead, and whether it was changed.

    Advice that is not a number, infinite, or so far away that its distance is, gives the fallback.
    """
    usable = jnp.isfinite(jnp.sum((advice - allowance.fallback) ** 2))
    advice = problem.actions.project(jnp.where(usable, advice, allowance.fallback))
    allowed = allowance.weighted_cost(problem, advice) <= allowance.budget
    move = _nearest if has_closed_form(problem, advice.shape[0]) else _along_segment
    moved = jnp.where(
        usable, _remove_rounding(problem, allowance, move(problem, allowance, advice)), allowance.fallback
    )
    return jnp.where(allowed & usable, advice, moved), ~(allowed & usable)


def _nearest(problem: Problem, allowance: Allowance, advice: Float[Array, " d"]) -> Float[Array, " d"]:
    """Return the nearest point of the ellipsoid; with d = 1, clipping it to the bounds is exact.

    Expanded around the fallback z, where the weighted cost has the gradient p = A (z - v) + 2 w1 Q (z - x_prev) and the Hessian
    H = A + 2 (w1 + w2) Q: the centre is z - H^{-1} p, and the level above it budget - cost(z) + 1/2 p' H^{-1} p.
    No large numbers cancel, however large the weights are.
    """
    hitting, z, dim = problem.hitting, allowance.fallback, advice.shape[0]
    assert isinstance(hitting, AbstractQuadraticCost)
    shape = hitting.curvature(allowance.context, dim)
    shape = shape + 2 * (allowance.previous_weight + allowance.fallback_weight) * problem.Q
    slope = hitting.gradient(z, allowance.context)
    slope = slope + 2 * allowance.previous_weight * problem.Q @ (z - allowance.previous)
    step = slope / shape[0] if dim == 1 else jnp.linalg.solve(shape, slope)
    level = allowance.budget - allowance.weighted_cost(problem, z) + 0.5 * slope @ step
    return problem.actions.project(project_on_ellipsoid(advice, z - step, shape, level))


def _along_segment(problem: Problem, allowance: Allowance, advice: Float[Array, " d"]) -> Float[Array, " d"]:
    """Return the last allowed point on the segment from the fallback to the advice.

    The weighted cost is m-strongly convex and not negative, so an allowed share s of the way d obeys m s^2 |d|^2 <= 8 budget
    (compare the two ends with the middle), which brackets the root however far the advice is.
    """
    way = advice - allowance.fallback
    distance = jnp.sum(way**2)
    reach = 8 * jnp.maximum(allowance.budget, 0.0) / (problem.m * jnp.where(distance > 0, distance, 1.0))
    longest = jax.lax.stop_gradient(jnp.minimum(jnp.sqrt(jnp.where(distance > 0, reach, 1.0)), 1.0))
    share = bisect_root(_spare, jnp.zeros_like(longest), longest, (problem, allowance, way))
    return problem.actions.project(allowance.fallback + share * way)


def _spare(share, parameters):
    """Return what is left of the budget at this share of the way from the fallback."""
    problem, allowance, way = parameters
    return allowance.budget - allowance.weighted_cost(problem, allowance.fallback + share * way)


def _remove_rounding(problem: Problem, allowance: Allowance, action: Float[Array, " d"]) -> Float[Array, " d"]:
    """Pull an action that rounding left just outside toward the fallback, by as little as convexity shows to suffice.

    What is left may exceed the budget by 4e-11 of it in double precision. Where the set is so small that rounding the
    action itself leads further out, a point well inside is played, or else the fallback.
    """
    fallback, budget = allowance.fallback, allowance.budget
    at_fallback = allowance.weighted_cost(problem, fallback)
    reached = allowance.weighted_cost(problem, action)
    rise = reached - at_fallback
    share = jnp.where(rise > 0, (budget - at_fallback) / jnp.where(rise > 0, rise, 1.0), 0.0)
    share = jax.lax.stop_gradient(jnp.clip(share, 0.0, 1.0))
    pulled = jnp.where(~(reached <= budget), fallback + share * (action - fallback), action)
    eps = jnp.finfo(action.dtype).eps
    shorter = fallback + (1 - eps ** (1 / 3)) * (pulled - fallback)

    def fits(x):
        return allowance.weighted_cost(problem, x) <= budget + eps ** (2 / 3) * jnp.abs(budget)

    return jnp.where(fits(pulled), pulled, jnp.where(fits(shorter), shorter, fallback))
