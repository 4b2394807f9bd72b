"""The work function in one dimension with `LinearSwitching`, which solves such problems exactly.

The work function W_t(x) is the least cost of x_1..x_t with x_t = x. On a line with c = a |x - z| its slope obeys
W_t' = clip(W_{t-1}', -a, a) + f_t', starting from the slope of a |x - x_0|: moving saves at most a per unit.
Everything else follows from minimisers of W_t + tilt x:

- x^L_t with tilt a and x^U_t with tilt -a are the last actions of the prefix optimum when only increases, or only decreases,
  are charged (at 2a, as a |u| = 2a u^+ - a u). No cost-to-go is steeper than a, so every optimal x*_t lies between them.
- x*_T has tilt 0, and x*_t is x*_{t+1} clipped to [x^L_t, x^U_t].
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.optimal_path import OptimalPath
from ecl2o.problem import Box, CurvedTracking, Problem
from ecl2o.solvers.bisection import bisect_root


def require_linear_rate(problem: Problem, dim: int) -> Float[Array, ""]:
    """Return the rate of a one-dimensional `LinearSwitching`; raise `NotApplicableError` for any other problem."""
    rate = problem.switching.linear_movement.rate
    if dim != 1:
        raise NotApplicableError(f"LinearSwitching is solved in one dimension only, got x0 of dimension {dim}.")
    return rate


def prefix_bounds(
    problem: Problem, x0: Float[Array, " 1"], contexts: Float[Array, "T q"], last: Int[Array, ""]
) -> tuple[Float[Array, " 1"], Float[Array, " 1"]]:
    """Return x^L and x^U after step `last`, counted from 0. Later contexts have no influence."""
    rate = require_linear_rate(problem, 1)
    lower, upper = tilted_minimizers(problem, x0, contexts, last, jnp.stack([rate, -rate]))
    return lower, upper


def tilted_minimizers(
    problem: Problem,
    x0: Float[Array, " 1"],
    contexts: Float[Array, "T q"],
    last: Int[Array, ""],
    tilts: Float[Array, " n"],
) -> Float[Array, "n 1"]:
    """Return argmin over X of W_last(x) + tilt x, for n tilts of at most the rate.

    The slope jumps at x_0, where a |x - x_0| has its kink. The branch that holds right of x_0 and the one that holds left
    of it are both increasing, and their roots r <= l give the minimiser as x_0 clipped to [r, l]; so its derivative with
    respect to x_0 is exact too.
    """
    rate = require_linear_rate(problem, x0.shape[0])
    seen = (jnp.arange(contexts.shape[0]) <= last).astype(x0.dtype)
    m, span = problem.m, 2 * rate / problem.m
    # f_last has its minimiser within |f'(x0)|/m of x0, and there the slope of W is within 2 rate of any tilt.
    reach = jnp.abs(problem.hitting.gradient(x0, contexts[last])[0]) / m + span

    def root(branch, tilt):
        return bisect_root(_negative_slope, x0[0] - reach, x0[0] + reach, (problem, contexts, seen, branch, tilt))

    right = jax.vmap(lambda tilt: root(rate, tilt))(tilts)
    left = jax.vmap(lambda tilt: root(-rate, tilt))(tilts)
    return jax.vmap(problem.actions.project)(jnp.clip(x0[0], right, left)[:, None])


def _negative_slope(x, parameters):
    """Return minus the slope of W + tilt x at x; decreasing in x."""
    problem, contexts, seen, branch, tilt = parameters
    rate = problem.switching.rate

    def add(slope, step):
        context, counts = step
        after = jnp.clip(slope, -rate, rate) + problem.hitting.gradient(x[None], context)[0]
        return jnp.where(counts > 0, after, slope), None

    slope, _ = jax.lax.scan(add, branch, (contexts, seen))
    return -(slope + tilt)


def find_optimal_linear_path(problem: Problem, x0: Float[Array, " d"], contexts: Float[Array, "T q"]) -> OptimalPath:
    """Return the optimal path under `LinearSwitching` in O(T^2): any hitting cost if d = 1, else quadratic with a diagonal A."""
    if problem.actions.ramp is not None:
        raise NotApplicableError(
            "with LinearSwitching the oracle takes no ramp limit: use Mahalanobis, or leave the ramp out for a lower bound."
        )
    problem = problem.relaxed
    if x0.shape[0] == 1:
        return _find_path_on_line(problem, x0, contexts)
    if not problem.actions.is_box:
        raise NotApplicableError("LinearSwitching is not solved for actions that share a total; use Mahalanobis.")
    weights, targets, separable = _separate_coordinates(problem, contexts, x0.shape[0])
    lower, upper = problem.actions.bounds(x0.shape[0], x0.dtype)

    def one(x0, lower, upper, weight, target):
        line = Problem(CurvedTracking(weight.min()), problem.switching, Box(lower, upper))
        return _find_path_on_line(line, x0[None], jnp.stack([target, weight], axis=1))

    found = jax.vmap(one)(x0, lower, upper, weights.T, targets.T)
    return OptimalPath(found.actions[..., 0].T, found.converged.all() & separable)


def _separate_coordinates(problem: Problem, contexts: Float[Array, "T q"], dim: int):
    """Return weights and targets (T, d) of hitting costs sum_i weight_i/2 (x_i - target_i)^2, and whether A is diagonal."""
    hitting = problem.hitting
    if not hitting.is_quadratic:
        raise NotApplicableError(
            f"LinearSwitching in {dim} dimensions needs a quadratic hitting cost with a diagonal A, "
            f"got {type(hitting).__name__}."
        )
    curvatures = jax.vmap(lambda y: hitting.curvature(y, dim))(contexts)
    separable = (curvatures * (1 - jnp.eye(dim, dtype=curvatures.dtype)) == 0).all()
    return jnp.diagonal(curvatures, axis1=1, axis2=2), jax.vmap(lambda y: hitting.centre(y, dim))(contexts), separable


def _find_path_on_line(problem: Problem, x0: Float[Array, " 1"], contexts: Float[Array, "T q"]) -> OptimalPath:
    """Minimise the work function for x*_T; going back, x*_t is x*_{t+1} clipped to the prefix bounds of step t."""
    steps = jnp.arange(contexts.shape[0])
    lower, upper = jax.vmap(lambda t: prefix_bounds(problem, x0, contexts, t))(steps)
    last = tilted_minimizers(problem, x0, contexts, steps[-1], jnp.zeros((1,), x0.dtype))[0]

    def back(later, bounds):
        now = jnp.clip(later, *bounds)
        return now, now

    _, earlier = jax.lax.scan(back, last, (lower[:-1], upper[:-1]), reverse=True)
    actions = jnp.concatenate([earlier, last[None]])
    return OptimalPath(actions, jnp.isfinite(actions).all())
