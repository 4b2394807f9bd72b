"""Optimal controls of a `ControlProblem` through known contexts, by one Riccati sweep, O(T (n + k)^3)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.optimal_path import OptimalPath
from ecl2o.problem import ControlProblem
from ecl2o.theory.control import Stage


def find_optimal_controls(
    problem: ControlProblem,
    state: Float[Array, " n"],
    contexts: Float[Array, "T q"],
    step: int | Int[Array, ""] = 0,
    length: int | Int[Array, ""] | None = None,
) -> OptimalPath:
    """Return the cheapest actions from a state through the contexts, (T, k).

    The cost to go is 1/2 |xi|^2_S + s'xi up to a constant. Eliminating the action of each step, from the last one on, gives S, s
    and an affine law u = -gain xi - shift.

    Args:
        problem: dynamics and costs, without bounds.
        state: (n,), the state before the first context.
        contexts: (T, q).
        step: the number of the first step, for matrices by step. Default: 0.
        length: how many contexts count; actions after them are meaningless. Default: all.

    Raises:
        NotApplicableError: actions have bounds.
    """
    if problem.is_bounded:
        raise NotApplicableError(
            "plans through dynamics need actions without bounds; drop them, and clip what is played."
        )
    places = jnp.arange(contexts.shape[0])
    steps, counted = step + places, places < (contexts.shape[0] if length is None else length)

    def eliminate(to_go, now):
        (S, s), (context, at, counts) = to_go, now
        stage = Stage.of(problem.at(at))
        x, u, d = stage.places
        N = stage.M + stage.joint.T @ S @ stage.joint
        linear = N[:, d] @ context + stage.joint.T @ s  # of (xi, u) at this context
        gain, shift = jnp.linalg.solve(N[u, u], N[u, x]), jnp.linalg.solve(N[u, u], linear[u])
        S = N[x, x] - N[x, u] @ gain
        before = 0.5 * (S + S.T), linear[x] - N[x, u] @ shift
        return jax.tree.map(lambda new: jnp.where(counts, new, 0.0), before), (gain, shift)

    end = jnp.zeros((problem.state_dim,) * 2, state.dtype), jnp.zeros_like(state)
    _, laws = jax.lax.scan(eliminate, end, (contexts, steps, counted), reverse=True)

    def follow(state, now):
        (gain, shift), context, at = now
        action = -gain @ state - shift
        return problem.next_state(state, action, context, at), action

    actions = jax.lax.scan(follow, state, (laws, contexts, steps))[1]
    return OptimalPath(actions, jnp.ones((), bool))
