"""The exact offline optimum where movement is billed by distance: on a line, and where costs fall apart into lines.

The offline optimum: what an agent that knew every context would have paid.
"""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.linear_switching import prefix_bounds, require_linear_rate, tilted_minimizers
from ecl2o.planning.optimal_path import OptimalPath, find_optimal_path
from ecl2o.problem import AbstractQuadraticCost, Box, CurvedTracking, Instance, LinearSwitching, Problem, Trajectory
from ecl2o.problem.arrays import AnyArray, cast_floats, concrete_value, to_device, to_host


def find_optimal_linear_path(problem: Problem, x0: Float[Array, " d"], contexts: Float[Array, "T q"]) -> OptimalPath:
    """The cheapest path under `LinearSwitching`, O(T^2): any hitting cost where d = 1, else quadratic ones with a diagonal A."""
    if x0.shape[0] == 1:
        return _on_a_line(problem, x0, contexts)
    weights, targets, separable = _coordinates(problem, contexts, x0.shape[0])
    lower, upper = problem.actions.bounds(x0.shape[0], x0.dtype)

    def one(x0, lower, upper, weight, target):
        line = Problem(CurvedTracking(weight.min()), problem.switching, Box(lower, upper))
        return _on_a_line(line, x0[None], jnp.stack([target, weight], axis=1))

    found = jax.vmap(one)(x0, lower, upper, weights.T, targets.T)
    return OptimalPath(found.actions[..., 0].T, found.converged.all() & separable)


def _coordinates(problem: Problem, contexts: Float[Array, "T q"], dim: int):
    """(weights, targets), each (T, d): the hitting costs as sums over coordinates of weight/2 (x - target)^2; and if they are."""
    hitting = problem.hitting
    if not isinstance(hitting, AbstractQuadraticCost):
        raise NotApplicableError(
            f"movement billed by distance is solved in {dim} dimensions for quadratic hitting costs with a diagonal A, "
            f"got {type(hitting).__name__}."
        )
    curvatures = jax.vmap(lambda y: hitting.curvature(y, dim))(contexts)
    separable = (curvatures * (1 - jnp.eye(dim, dtype=curvatures.dtype)) == 0).all()
    return jnp.diagonal(curvatures, axis1=1, axis2=2), jax.vmap(lambda y: hitting.centre(y, dim))(contexts), separable


def _on_a_line(problem: Problem, x0: Float[Array, " 1"], contexts: Float[Array, "T q"]) -> OptimalPath:
    """x*_T minimises the work function, and going back, x*_t is x*_{t+1} clipped to the prefix bounds of step t."""
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


def oracle(problem: Problem, instance: Instance) -> Trajectory:
    """pi*: the cheapest actions in hindsight (Eqn. obj of the paper), in O(T d^3).

    Quadratic costs without bounds are one block-tridiagonal solve, everything else Newton's method on that structure.
    `converged` is false where that failed, and a warning says so outside jit and vmap: the cost is then not the optimum.
    Movement billed by distance (`LinearSwitching`) is solved exactly on a line, and in more dimensions for quadratic hitting
    costs with a diagonal A, in O(T^2). Takes one instance; use `jax.vmap` for a set.

    Args:
        problem: what is decided.
        instance: one instance.

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


def warn_unless_converged(problem: Problem, run: Trajectory) -> None:
    """Say that an optimum is none, where that can be known: not while JAX is tracing. Closed forms do not fail."""
    converged = None if problem.is_unbounded_quadratic else concrete_value(run.converged)
    if converged is not None and not converged.all():
        warnings.warn(
            f"the oracle did not converge on {(~converged).sum()} of {converged.size} steps: its cost is not the optimum, and "
            "ratios to it mean nothing. The hitting cost must be finite, convex and twice differentiable; a kink is not.",
            RuntimeWarning,
            stacklevel=3,
        )


@eqx.filter_jit
def _oracle(problem: Problem, instance: Instance) -> Trajectory:
    dtype = instance.x0.dtype
    problem = cast_floats(problem, dtype)
    solve = find_optimal_linear_path if isinstance(problem.switching, LinearSwitching) else find_optimal_path
    return make_trajectory(problem, instance, solve(problem, instance.x0, instance.contexts))


@eqx.filter_jit
def oracle_batch(problem: Problem, instances: Instance) -> Trajectory:
    """The oracle of every instance of a set; says nothing where one did not converge.

    Args:
        problem: what is decided.
        instances: with a leading axis: x0 (n, d), contexts (n, T, q).
    """
    return jax.vmap(lambda instance: oracle(problem, instance))(instances)


def make_trajectory(problem: Problem, instance: Instance, path: OptimalPath) -> Trajectory:
    """A planned path as the record of a run."""
    hitting, switching = problem.costs(instance.x0, path.actions, instance.contexts)
    converged = jnp.broadcast_to(path.converged, hitting.shape)
    return Trajectory(path.actions, hitting, switching, advice=None, converged=converged)


def oracle_days(
    problem: Problem, x0: Float[AnyArray, " d"], days: Float[AnyArray, "n T q"]
) -> tuple[Trajectory, Float[Array, "n d"]]:
    """The daily oracle of continuous testing: each day is optimal in itself, and starts where the day before ended.

    Returns the runs with a leading day axis, and the x0 of each day.

    Args:
        problem: what is decided.
        x0: (d,), the action in force before the first day.
        days: (n, T, q), consecutive days.
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
        return run.actions[-1], (run, start)

    _, (runs, starts) = jax.lax.scan(one_day, x0, days)
    return runs, starts
