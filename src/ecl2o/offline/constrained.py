"""The optimum of those who may move only so much: the comparator of L-constrained regret."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.offline.oracle import _oracle, make_trajectory, warn_unless_converged
from ecl2o.planning.optimal_path import OptimalPath, find_optimal_path
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import as_float, cast_floats, check_nonnegative
from ecl2o.solvers.bisection import bisect_root
from ecl2o.solvers.bounded_newton import minimize

# log of the multiplier: movement that costs e^34 times more is none, e^-34 times more is free to double precision.
_LOG_RANGE = 34.0


def constrained_oracle(
    problem: Problem, instance: Instance, budget: Float[Array, ""] | float, free_start: bool = False
) -> Trajectory:
    """The cheapest actions whose total switching cost is at most `budget` (the paper's x^L).

    By the KKT conditions it is the oracle for c multiplied by 1 + mu, with mu found by bisection. A budget of zero is
    x_t = x_0 for all t; `free_start=True` does not count the first move against the budget (it is still billed), and a
    budget of zero is then the best static action, the comparator of classic static regret (erratum E12).

    Args:
        problem: what is decided.
        instance: one instance.
        budget: L, the most that switching may cost, in units of cost; not negative.
        free_start: whether the first move is not counted. Default: false.
    """
    problem.check(instance)
    budget = as_float(budget)
    if budget.shape != ():
        raise ValueError(f"budget must be one number, got shape {budget.shape}.")
    check_nonnegative("budget", budget)
    run = _constrained_oracle(problem, instance, budget, free_start)
    warn_unless_converged(problem, run)
    return run


@eqx.filter_jit
def _constrained_oracle(problem, instance, budget, free_start):
    dtype = instance.x0.dtype
    problem, budget = cast_floats(problem, dtype), budget.astype(dtype)
    free = _oracle(problem, instance)
    counted = jnp.ones((instance.horizon,), dtype).at[0].set(0.0 if free_start else 1.0)

    end = jnp.asarray(_LOG_RANGE, dtype)
    log_mu = bisect_root(_overspent, -end, end, (problem, instance, counted, budget))
    tight = make_trajectory(problem, instance, _slowed_path(log_mu, problem, instance, counted))
    still = make_trajectory(problem, instance, _still_path(problem, instance, free_start))
    unconstrained = jnp.sum(counted * free.switching) <= budget

    def choose(rich, constrained, poor):
        return jnp.where(unconstrained, rich, jnp.where(budget > 0, constrained, poor))

    return jax.tree.map(choose, free, tight, still)


def _slowed_path(log_mu, problem: Problem, instance: Instance, counted: Float[Array, " T"]) -> OptimalPath:
    """The cheapest path where the moves that count cost 1 + mu times more."""
    return find_optimal_path(problem, instance.x0, instance.contexts, 1 + jnp.exp(log_mu) * counted)


def _overspent(log_mu, parameters):
    """By how much that path's movement exceeds the budget; falls in mu."""
    problem, instance, counted, budget = parameters
    path = _slowed_path(log_mu, problem, instance, counted)
    _, switching = problem.costs(instance.x0, path.actions, instance.contexts)
    return jnp.sum(counted * switching) - budget


def _still_path(problem: Problem, instance: Instance, free_start: bool) -> OptimalPath:
    """The best path that does not move (after the first step, if that one is free)."""
    shape = (instance.horizon, instance.dim)
    if not free_start:
        return OptimalPath(jnp.broadcast_to(instance.x0, shape), jnp.ones((), bool))
    lower, upper = problem.actions.bounds(instance.dim, instance.x0.dtype)
    found = minimize(_static_cost, instance.x0, (problem, instance), lower, upper)
    return OptimalPath(jnp.broadcast_to(found.x, shape), found.converged)


def _static_cost(action, parameters):
    problem, instance = parameters
    hitting = jax.vmap(problem.hitting, in_axes=(None, 0))(action, instance.contexts)
    return jnp.sum(hitting) + problem.switching(action, instance.x0)
