"""Hindsight: the cheapest actions of an agent that knows every context, also with a limit on its movement."""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.control_path import find_optimal_controls
from ecl2o.planning.linear_switching import prefix_bounds, require_linear_rate, tilted_minimizers
from ecl2o.planning.optimal_path import OptimalPath, find_optimal_path
from ecl2o.problem import (
    AbstractProblem,
    AbstractQuadraticCost,
    Box,
    ControlProblem,
    CurvedTracking,
    Instance,
    Limited,
    LinearSwitching,
    Problem,
    Total,
    Trajectory,
)
from ecl2o.problem.actions import minimize_over
from ecl2o.problem.arrays import (
    AnyArray,
    as_float,
    cast_floats,
    check_nonnegative,
    check_scalar,
    concrete_value,
    to_device,
    to_host,
)
from ecl2o.solvers.bisection import bisect_root

# The range of log mu: movement that costs e^34 times more stops, e^-34 times more changes nothing in double precision.
_LOG_RANGE = 34.0


def oracle(problem: AbstractProblem, instance: Instance) -> Trajectory:
    """Return the cheapest actions in hindsight, pi* (Eqn. obj of the paper), in O(T d^3).

    Quadratic costs without bounds take one block-tridiagonal solve, all others Newton's method on the same structure.
    `LinearSwitching` is solved exactly in O(T^2): in one dimension, and in more for quadratic costs with a diagonal A. A
    `ControlProblem` takes one Riccati sweep. Ramp limits, totals, and bounds of a `ControlProblem`, take an interior-point
    method. Actions with a spacing are not rounded: the cost is a lower bound on that of the best rounded ones, which is at most
    tr(A + G) spacing^2 / 8 a step more, G = 2 Q, if the curvature of f is at most A and bounds, ramp and x0 are multiples.

    Args:
        problem: Costs and action set.
        instance: One instance; use `jax.vmap` or `oracle_batch` for a set.

    Returns:
        The optimal run. If the solve failed, `converged` is False, the cost is not the optimum, and outside of jit and vmap a
        `RuntimeWarning` is issued.

    Raises:
        ValueError: The instance does not fit the problem, or is a set.
        NotApplicableError: `LinearSwitching` with a ramp limit, or in more than one dimension with a cost that is not quadratic.

    >>> from ecl2o.problem import Mahalanobis, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> best = oracle(problem, Instance(x0=[0.0], contexts=[[3.0]]))
    >>> float(best.actions[0, 0]), float(best.cost)
    (1.0, 3.0)
    """
    problem.check(instance)
    run = _oracle(problem, instance)
    warn_unless_converged(problem, run)
    return run


def warn_unless_converged(problem: AbstractProblem, run: Trajectory) -> None:
    """Warn if an oracle did not converge, except while JAX is tracing. Closed forms always do."""
    converged = None if problem.is_unbounded_quadratic else concrete_value(run.converged)
    if converged is not None and not converged.all():
        warnings.warn(
            f"the oracle did not converge on {(~converged).sum()} of {converged.size} steps: its cost is not the optimum, and "
            "ratios to it are meaningless. The hitting cost must be finite, convex and twice differentiable.",
            RuntimeWarning,
            stacklevel=3,
        )


def oracle_of_first(problem: Problem, instance: Instance, steps: Int[Array, ""]) -> Trajectory:
    """Return the oracle of the first steps only, under `Mahalanobis`; it leaves the others uncoupled, to be dropped."""
    problem = cast_floats(problem, instance.x0.dtype)

    def solve(problem, x0, contexts, steps):
        coupled = (jnp.arange(contexts.shape[0]) < steps).astype(x0.dtype)
        return find_optimal_path(problem, x0, contexts, coupled)

    return _trace_optimal(problem, instance, steps, solve)


def _trace_optimal(problem: Problem, instance: Instance, steps: Any, solve: Callable[..., OptimalPath]) -> Trajectory:
    """Return the optimal run of the first steps, by `solve(problem, x0, contexts, steps)` for immediate problems."""

    def find(*known):
        path = solve(problem.immediate, *known)
        return path.actions, path.converged

    known = instance.x0, problem.action_size(instance.dim), instance.contexts, steps
    return make_trajectory(problem, instance, OptimalPath(*problem.timing.find_path(find, *known)))


@eqx.filter_jit
def _oracle(problem: AbstractProblem, instance: Instance) -> Trajectory:
    dtype = instance.x0.dtype
    problem = cast_floats(problem, dtype)
    if isinstance(problem, ControlProblem):
        return make_trajectory(problem, instance, find_optimal_controls(problem, instance.x0, instance.contexts))
    assert isinstance(problem, Problem)
    solve = find_optimal_linear_path if isinstance(problem.switching, LinearSwitching) else find_optimal_path
    return _trace_optimal(problem, instance, instance.horizon, lambda *known: solve(*known[:3]))


@eqx.filter_jit
def oracle_batch(problem: AbstractProblem, instances: Instance) -> Trajectory:
    """Return the oracle of every instance of a set, without a warning if one did not converge.

    Args:
        problem: Costs and action set.
        instances: x0 (n, d) and contexts (n, T, q).

    Returns:
        The optimal runs, with a leading axis n.

    >>> from ecl2o.problem import Mahalanobis, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> oracle_batch(problem, Instance(x0=[[0.0], [0.0]], contexts=[[[3.0]], [[6.0]]])).cost.tolist()
    [3.0, 12.0]
    """
    return jax.vmap(lambda instance: oracle(problem, instance))(instances)


def make_trajectory(problem: AbstractProblem, instance: Instance, path: OptimalPath) -> Trajectory:
    """Return a planned path as the record of a run."""
    hitting, switching = problem.costs(instance.x0, path.actions, instance.contexts)
    converged = jnp.broadcast_to(path.converged, hitting.shape)
    return Trajectory(path.actions, hitting, switching, advice=None, converged=converged)


def oracle_days(
    problem: Problem, x0: Float[AnyArray, " d"], days: Float[AnyArray, "n T q"]
) -> tuple[Trajectory, Float[Array, "n d"]]:
    """Return the daily oracle of continuous testing: each day optimal by itself, from where the day before ended.

    Args:
        problem: Costs and action set.
        x0: (d,), the action in force before the first day.
        days: (n, T, q), consecutive days.

    Returns:
        The runs with a leading day axis, and the x0 of each day (n, d).

    >>> from ecl2o.problem import Mahalanobis, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> runs, starts = oracle_days(problem, jnp.zeros(1), jnp.array([[[3.0]], [[7.0]]]))
    >>> starts.tolist(), runs.actions[:, -1].tolist()
    ([[0.0], [1.0]], [[1.0], [3.0]])
    """
    first = Instance(x0, to_host(days)[0])
    problem.check(first)
    runs, starts = _oracle_days(problem, first.x0, to_device(days).astype(first.x0.dtype))
    warn_unless_converged(problem, runs)
    return runs, starts


@eqx.filter_jit
def _oracle_days(problem, x0, days):
    def one_day(start, contexts):
        run = _oracle(problem, Instance(start, contexts))
        return problem.end_state(run.actions, contexts), (run, start)

    _, (runs, starts) = jax.lax.scan(one_day, x0, days)
    return runs, starts


def constrained_oracle(
    problem: Problem, instance: Instance, budget: Float[Array, ""] | float, free_start: bool = False
) -> Trajectory:
    """Return the cheapest actions whose total switching cost is at most `budget` (the paper's x^L).

    By the KKT conditions it is the oracle for c multiplied by 1 + mu; bisection finds mu. It is the comparator of L-constrained
    regret. With `free_start` and a budget of zero it is the best static action, the comparator of static regret (erratum E12).

    Args:
        problem: Costs and action set.
        instance: One instance.
        budget: L, the greatest total switching cost; not negative.
        free_start: Whether the first move is exempt from the budget; its cost still counts. Default: false.

    Returns:
        The optimal run within the budget; `converged` as in `oracle`.

    Raises:
        ValueError: The budget is negative or not one number, or the instance does not fit.

    >>> from ecl2o.problem import Mahalanobis, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> run = constrained_oracle(problem, Instance(x0=[0.0], contexts=[[3.0]]), budget=0.25)
    >>> round(float(run.actions[0, 0]), 6)
    0.5
    """
    problem.check(instance)
    if isinstance(problem.actions, Total) and problem.actions.column is not None:
        raise NotApplicableError("a budget of movement needs a total that does not change: its steps could not be met.")
    budget = as_float(budget)
    check_scalar("budget", budget)
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
    log_mu = bisect_root(_excess_movement, -end, end, (problem, instance, counted, budget))
    tight = make_trajectory(problem, instance, _penalized_path(log_mu, problem, instance, counted))
    still = make_trajectory(problem, instance, _still_path(problem, instance, free_start))
    unconstrained = jnp.sum(counted * free.switching) <= budget

    def choose(rich, constrained, poor):
        return jnp.where(unconstrained, rich, jnp.where(budget > 0, constrained, poor))

    return jax.tree.map(choose, free, tight, still)


def _penalized_path(log_mu, problem: Problem, instance: Instance, counted: Float[Array, " T"]) -> OptimalPath:
    """Return the optimal path if counted moves cost 1 + mu times as much."""
    return find_optimal_path(problem, instance.x0, instance.contexts, 1 + jnp.exp(log_mu) * counted)


def _excess_movement(log_mu, parameters):
    """Return by how much that path's movement exceeds the budget; decreasing in mu."""
    problem, instance, counted, budget = parameters
    path = _penalized_path(log_mu, problem, instance, counted)
    _, switching = problem.costs(instance.x0, path.actions, instance.contexts)
    return jnp.sum(counted * switching) - budget


def _still_path(problem: Problem, instance: Instance, free_start: bool) -> OptimalPath:
    """Return the best path that does not move, or not after the first step if that one is free."""
    shape = (instance.horizon, instance.dim)
    if not free_start:
        return OptimalPath(jnp.broadcast_to(instance.x0, shape), jnp.ones((), bool))
    found = minimize_over(problem.actions, _static_cost, instance.x0, (problem, instance))
    return OptimalPath(jnp.broadcast_to(found.x, shape), found.converged)


def _static_cost(action, parameters):
    problem, instance = parameters
    hitting = jax.vmap(problem.hitting, in_axes=(None, 0))(action, instance.contexts)
    return jnp.sum(hitting) + problem.switching(action, instance.x0)


def find_optimal_linear_path(problem: Problem, x0: Float[Array, " d"], contexts: Float[Array, "T q"]) -> OptimalPath:
    """Return the optimal path under `LinearSwitching` in O(T^2): any hitting cost if d = 1, else quadratic with a diagonal A."""
    if isinstance(problem.actions, Limited) and problem.actions.ramp is not None:
        raise NotApplicableError(
            "with LinearSwitching the oracle takes no ramp limit: use Mahalanobis, or leave the ramp out for a lower bound."
        )
    problem = problem.relaxed
    if x0.shape[0] == 1:
        return _find_path_on_line(problem, x0, contexts)
    if isinstance(problem.actions, Total):
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
    if not isinstance(hitting, AbstractQuadraticCost):
        raise NotApplicableError(
            f"LinearSwitching in {dim} dimensions needs a quadratic hitting cost with a diagonal A, "
            f"got {type(hitting).__name__}."
        )
    curvatures = jax.vmap(lambda y: hitting.curvature(y, dim))(contexts)
    separable = (curvatures * (1 - jnp.eye(dim, dtype=curvatures.dtype)) == 0).all()
    return jnp.diagonal(curvatures, axis1=1, axis2=2), jax.vmap(lambda y: hitting.centre(y, dim))(contexts), separable


def _find_path_on_line(problem: Problem, x0: Float[Array, " 1"], contexts: Float[Array, "T q"]) -> OptimalPath:
    """Minimise the work function for x*_T; going back, x*_t is x*_{t+1} clipped to the prefix bounds of step t."""
    require_linear_rate(problem, x0.shape[0])
    steps = jnp.arange(contexts.shape[0])
    lower, upper = jax.vmap(lambda t: prefix_bounds(problem, x0, contexts, t))(steps)
    last = tilted_minimizers(problem, x0, contexts, steps[-1], jnp.zeros((1,), x0.dtype))[0]

    def back(later, bounds):
        now = jnp.clip(later, *bounds)
        return now, now

    _, earlier = jax.lax.scan(back, last, (lower[:-1], upper[:-1]), reverse=True)
    actions = jnp.concatenate([earlier, last[None]])
    return OptimalPath(actions, jnp.isfinite(actions).all())
