"""Plans over a window: the optimal path through the known and forecast contexts, of which the first part is played.

A plan may end before its window does, at the horizon. Its shape stays the same: a movement weight of zero decouples the steps
beyond the end, and their contexts are not read. For quadratic costs of constant curvature without bounds, the first action of a
plan is one matrix times (previous action, centres); there is one matrix per length of a plan, made once per rollout. All other
problems call `find_optimal_path` on the window, O(window) by its block-tridiagonal structure.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ecl2o.planning.optimal_path import OptimalPath, find_optimal_path
from ecl2o.problem import Problem
from ecl2o.solvers.small_dense import spd_inverse

# Up to this many numbers, matrices are tabulated; longer windows are solved at every step.
_LARGEST_TABLE = 2**22


class Planner(eqx.Module):
    """Precomputed gains for plans of `shortest` to `steps` steps; None if plans are solved at every step."""

    gains: Float[Array, "lengths d columns"] | None
    steps: int = eqx.field(static=True)
    shortest: int = eqx.field(static=True)


def prepare_planner(problem: Problem, dim: int, steps: int, shortest: int) -> Planner:
    """Precompute the gains that the plans of a run share."""
    small = (steps - shortest + 1) * (steps + 1) * dim**2 <= _LARGEST_TABLE
    linear = problem.is_constant_quadratic and small
    return Planner(_first_action_gains(problem, dim, steps, shortest) if linear else None, steps, shortest)


def _first_action_gains(problem: Problem, dim: int, steps: int, shortest: int) -> Float[Array, "lengths d columns"]:
    """Return for each length n the matrix from (previous action, centres of n steps, zeros) to the first action.

    Eliminating a plan's steps from its end: with S_n = A + 4Q - 2Q S_{n-1}^{-1} 2Q (S_1 = A + 2Q), the first action is
    S_n^{-1} (2Q x_prev + A v_1 + 2Q u), u the first action of the plan one shorter through v_2..v_n, from 0.
    """
    A, Q2 = problem.hitting.curvature(None, dim), 2 * problem.Q

    def lengthen(shorter, _):
        coupling, on_centres = shorter  # 2Q S_{n-1}^{-1} 2Q, and the gains of length n - 1 on each centre
        inverse = spd_inverse(A + 2 * Q2 - coupling)
        on_previous = inverse @ Q2
        on_centres = jnp.concatenate([(inverse @ A)[None], on_previous @ on_centres[:-1]])
        return (Q2 @ on_previous, on_centres), jnp.concatenate([on_previous[None], on_centres])

    shorter = (Q2, jnp.zeros((steps, dim, dim), A.dtype))
    shorter, _ = jax.lax.scan(lambda plan, _: (lengthen(plan, None)[0], None), shorter, None, length=shortest - 1)
    _, gains = jax.lax.scan(lengthen, shorter, None, length=steps - shortest + 1)
    return jnp.swapaxes(gains, 1, 2).reshape(steps - shortest + 1, dim, (steps + 1) * dim)


def make_plan(
    problem: Problem,
    planner: Planner,
    previous: Float[Array, " d"],
    contexts: Float[Array, "steps q"],
    length: Int[Array, ""] | int,
    first: int = 1,
) -> OptimalPath:
    """Return the `first` actions of the optimal path from `previous` through `length` contexts.

    Actions beyond the end of the plan are meaningless. With gains, each action is the first one of the remaining plan.
    """
    dim, coupled = previous.shape[0], jnp.arange(planner.steps) < length
    contexts = jnp.where(coupled[:, None], contexts, contexts[0])  # drop forecasts beyond the end
    gains, hitting = planner.gains, problem.hitting
    if gains is None:
        path = find_optimal_path(problem, previous, contexts, coupled.astype(previous.dtype))
        return OptimalPath(path.actions[:first], path.converged)
    centres = jax.vmap(lambda y: hitting.centre(y, dim))(contexts)

    def follow(action, done):
        gain = gains[jnp.maximum(length - done - planner.shortest, 0)]
        seen = jnp.concatenate([action, jnp.roll(centres, -done, axis=0).reshape(-1)])
        action = jnp.sum(gain * seen, axis=1)  # a batched matrix product would round differently by place in a batch
        return action, action

    _, actions = jax.lax.scan(follow, previous, jnp.arange(first))
    return OptimalPath(actions, jnp.ones((), bool))
