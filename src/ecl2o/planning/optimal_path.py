"""The optimal path through known contexts, which the oracle and every planner solve for.

min over x_1..x_T in X of the sum of f(x_t, y_t) + w_t c(x_t, x_{t-1}), with movement weights w_t, 1 by default. Only neighbours
are coupled, so the Hessian is block tridiagonal: diagonal blocks A_t + 2 (w_t + w_{t+1}) Q (with w_{T+1} = 0), blocks
-2 w_{t+1} Q below. Quadratic costs without bounds take one factor and one solve, all others Newton's method.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.problem.problem import Problem
from ecl2o.solvers.block_tridiagonal import BlockTridiagonalFactor, DenseInverse, factor, invert, solve
from ecl2o.solvers.bounded_newton import BoundedMinimum, minimize_sequence
from ecl2o.solvers.ramped_path import RampedPath, minimize_ramped_path
from ecl2o.solvers.total_path import TotalPath, minimize_total_path

_SOLVERS: dict[type, Callable[..., BoundedMinimum]] = {RampedPath: minimize_ramped_path, TotalPath: minimize_total_path}
PathFactor = BlockTridiagonalFactor | DenseInverse

# Up to this many unknowns, inverting once and multiplying beats two sweeps (benchmarks/oracle.py).
_SHORT = 64


class OptimalPath(eqx.Module):
    """The actions of a path, and whether the solve converged."""

    actions: Float[Array, "T d"]
    converged: Bool[Array, ""]


def movement_hessian(
    Q: Float[Array, "d d"], weights: Float[Array, " T"]
) -> tuple[Float[Array, "T d d"], Float[Array, "T-1 d d"]]:
    """Return the switching costs' part of the Hessian: blocks on and below the diagonal."""
    after = jnp.append(weights[1:], jnp.zeros((), weights.dtype))
    return 2 * (weights + after)[:, None, None] * Q, -2 * weights[1:, None, None] * Q


def factor_path(problem: Problem, dim: int, weights: Float[Array, " T"]) -> PathFactor:
    """Factor the Hessian of a quadratic problem of constant curvature, for use with any contexts."""
    diagonal, below = movement_hessian(problem.Q, weights)
    diagonal = diagonal + problem.hitting.curvature(None, dim)
    return (invert if weights.shape[0] * dim <= _SHORT else factor)(diagonal, below)


def solve_factored_path(
    problem: Problem,
    factored: PathFactor,
    x0: Float[Array, " d"],
    contexts: Float[Array, "T q"],
    first_weight: Float[Array, ""] | float = 1.0,
) -> Float[Array, "T d"]:
    """Return the optimal path of a quadratic problem without bounds from its factor; `first_weight` is w_1."""
    hitting, dim = problem.hitting, x0.shape[0]
    pull = jax.vmap(lambda y: hitting.curvature(y, dim) @ hitting.centre(y, dim))(contexts)
    return solve(factored, pull.at[0].add(2 * first_weight * problem.Q @ x0))


def find_optimal_path(
    problem: Problem,
    x0: Float[Array, " d"],
    contexts: Float[Array, "T q"],
    weights: Float[Array, " T"] | None = None,
) -> OptimalPath:
    """Return the optimal path for any costs and action set, without its spacing; `weights` are w_t.

    A ramp binds where w_t is positive.
    """
    problem = problem.relaxed
    horizon, dim = contexts.shape[0], x0.shape[0]
    if weights is None:
        weights = jnp.ones((horizon,), x0.dtype)
    if problem.is_unbounded_quadratic:
        factored = _factor_any(problem, dim, contexts, weights)
        actions = solve_factored_path(problem, factored, x0, contexts, weights[0])
        return OptimalPath(actions, jnp.isfinite(actions).all())
    shape = (horizon, dim)
    start, parameters = jnp.broadcast_to(x0, shape), (problem, x0, contexts, weights)
    ends = [jnp.broadcast_to(end, shape) for end in problem.actions.bounds(dim, x0.dtype)]
    within = problem.actions.path_limits(x0, contexts, weights > 0, *ends)
    if within is None:
        found = minimize_sequence(_path_cost, _path_curvature, start, parameters, *ends)
    else:
        found = _SOLVERS[type(within)](_path_cost, _path_nodes, _path_edges, start, parameters, within)
    return OptimalPath(found.x, found.converged)


def _factor_any(problem, dim, contexts, weights):
    if problem.hitting.constant_curvature:
        return factor_path(problem, dim, weights)
    diagonal, below = movement_hessian(problem.Q, weights)
    return factor(diagonal + jax.vmap(lambda y: problem.hitting.curvature(y, dim))(contexts), below)


def _path_cost(actions, parameters):
    problem, x0, contexts, weights = parameters
    hitting, switching = problem.costs(x0, actions, contexts)
    return jnp.sum(hitting + weights * switching)


def _path_curvature(actions, parameters):
    problem, _, contexts, weights = parameters
    diagonal, below = movement_hessian(problem.Q, weights)
    return diagonal + jax.vmap(problem.hitting.hessian)(actions, contexts), below


def _path_nodes(actions, parameters):
    problem, _, contexts, _ = parameters
    return jax.vmap(problem.hitting.hessian)(actions, contexts)


def _path_edges(parameters):
    problem, _, _, weights = parameters
    return 2 * weights[:, None, None] * problem.Q
