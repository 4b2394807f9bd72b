"""The exact offline optimum where movement is billed by distance: on a line, and where costs fall apart into lines."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.planning.line import linear_rate, prefix_bounds, tilted_minimizers
from ecl2o.planning.path import Path
from ecl2o.problem import AbstractQuadraticCost, Box, CurvedTracking, NotApplicable, Problem


def cheapest_linear_path(problem: Problem, x0: Float[Array, " d"], contexts: Float[Array, "T q"]) -> Path:
    """The cheapest path under `LinearSwitching`, O(T^2): any hitting cost where d = 1, else quadratic ones with a diagonal A."""
    if x0.shape[0] == 1:
        return _on_a_line(problem, x0, contexts)
    weights, targets, separable = _coordinates(problem, contexts, x0.shape[0])
    lower, upper = problem.actions.bounds(x0.shape[0], x0.dtype)

    def one(x0, lower, upper, weight, target):
        line = Problem(CurvedTracking(weight.min()), problem.switching, Box(lower, upper))
        return _on_a_line(line, x0[None], jnp.stack([target, weight], axis=1))

    found = jax.vmap(one)(x0, lower, upper, weights.T, targets.T)
    return Path(found.actions[..., 0].T, found.converged.all() & separable)


def _coordinates(problem: Problem, contexts: Float[Array, "T q"], dim: int):
    """(weights, targets), each (T, d): the hitting costs as sums over coordinates of weight/2 (x - target)^2; and if they are."""
    hitting = problem.hitting
    if not isinstance(hitting, AbstractQuadraticCost):
        raise NotApplicable(
            f"movement billed by distance is solved in {dim} dimensions for quadratic hitting costs with a diagonal A, "
            f"got {type(hitting).__name__}."
        )
    curvatures = jax.vmap(lambda y: hitting.curvature(y, dim))(contexts)
    separable = (curvatures * (1 - jnp.eye(dim, dtype=curvatures.dtype)) == 0).all()
    return jnp.diagonal(curvatures, axis1=1, axis2=2), jax.vmap(lambda y: hitting.centre(y, dim))(contexts), separable


def _on_a_line(problem: Problem, x0: Float[Array, " 1"], contexts: Float[Array, "T q"]) -> Path:
    """x*_T minimises the work function, and going back, x*_t is x*_{t+1} clipped to the prefix bounds of step t."""
    linear_rate(problem, x0.shape[0])
    steps = jnp.arange(contexts.shape[0])
    lower, upper = jax.vmap(lambda t: prefix_bounds(problem, x0, contexts, t))(steps)
    last = tilted_minimizers(problem, x0, contexts, steps[-1], jnp.zeros((1,), x0.dtype))[0]

    def back(later, bounds):
        now = jnp.clip(later, *bounds)
        return now, now

    _, earlier = jax.lax.scan(back, last, (lower[:-1], upper[:-1]), reverse=True)
    actions = jnp.concatenate([earlier, last[None]])
    return Path(actions, jnp.isfinite(actions).all())
