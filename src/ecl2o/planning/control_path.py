"""Optimal controls of a `ControlProblem` through known contexts: a Riccati sweep, O(T (n + k)^3), or some tens of them.

Bounds of actions and of states are those of an interior-point method (Rao, Wright and Rawlings 1998): at each of its steps they
stiffen the costs of actions and states, and the dynamics are eliminated as without them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecl2o.planning.optimal_path import OptimalPath
from ecl2o.problem import ControlProblem
from ecl2o.solvers.interior_point import AbstractConstraints, minimize_within
from ecl2o.solvers.small_dense import solve
from ecl2o.theory.control import Stage

# What a unit of violation of a state's bounds costs, in units of the largest slope that the plan's own numbers can make. Below
# it bounds are kept wherever they can be.
_PRICE = 1e4


def find_optimal_controls(
    problem: ControlProblem,
    state: Float[Array, " n"],
    contexts: Float[Array, "T q"],
    step: int | Int[Array, ""] = 0,
    length: int | Int[Array, ""] | None = None,
) -> OptimalPath:
    """Return the cheapest actions from a state through the contexts, (T, k).

    Actions always obey their bounds. Where those of states cannot all be kept, the sum over steps and states of the violations is
    least, as their price is far above every other cost.

    Args:
        problem: dynamics, costs and bounds.
        state: (n,), the state before the first context.
        contexts: (T, q).
        step: the number of the first step, for matrices by step. Default: 0.
        length: how many contexts count; actions after them are meaningless. Default: all.
    """
    places = jnp.arange(contexts.shape[0])
    counted = places < (contexts.shape[0] if length is None else length)
    stages = jax.vmap(lambda at: Stage.of(problem.at(at)))(step + places)
    if not problem.is_bounded:
        actions = _sweep(stages, counted, state, contexts)
        return OptimalPath(actions, jnp.isfinite(actions).all())
    start = jnp.zeros((len(places), problem.action_dim), state.dtype)
    parameters = stages, counted, state, contexts
    within = BoundedPath.of(problem, parameters)
    found = minimize_within(_path_cost, _solve_stiffened, start, parameters, within, power=0.5)
    return OptimalPath(jax.vmap(problem.actions.project)(found.x), found.converged)


def find_nearest_control(
    problem: ControlProblem,
    state: Float[Array, " n"],
    context: Float[Array, " q"],
    target: Float[Array, " k"],
    step: int | Int[Array, ""] = 0,
) -> OptimalPath:
    """Return the action nearest to `target` with which action and next state are within their bounds, as a path of one step."""
    now, zero = problem.at(step), jnp.zeros_like(problem.at(step).E, shape=(len(state), len(target)))
    miss = jnp.concatenate(
        [zero.T, jnp.eye(len(target)), jnp.zeros((len(target), len(context))), -jnp.eye(len(target))], axis=1
    )
    E = jnp.concatenate([now.E, zero], axis=1)
    near = ControlProblem(now.F, now.B, E, miss.T @ miss, now.actions, now.states_within)
    return find_optimal_controls(near, state, jnp.concatenate([context, target])[None])


def _sweep(
    stages: Stage,
    counted: Bool[Array, " T"],
    state: Float[Array, " n"],
    contexts: Float[Array, "T q"],
    force: Float[Array, "T k"] | None = None,
) -> Float[Array, "T k"]:
    """Return the optimal controls without bounds, under a linear gain `force` on actions.

    The cost to go is 1/2 |xi|^2_S + s'xi up to a constant. Eliminating the action of each step, from the last one on, gives S, s
    and an affine law u = -gain xi - shift.
    """

    def eliminate(to_go, now):
        (S, s), (stage, context, counts, pull) = to_go, now
        x, u, d = stage.places
        N = stage.M + stage.joint.T @ S @ stage.joint
        linear = N[:, d] @ context + stage.joint.T @ s  # of (xi, u) at this context
        linear = linear if pull is None else linear.at[u].add(-pull)
        law = solve(N[u, u], jnp.concatenate([N[u, x], linear[u, None]], axis=1))
        gain, shift = law[:, x], law[:, -1]
        S = N[x, x] - N[x, u] @ gain
        before = 0.5 * (S + S.T), linear[x] - N[x, u] @ shift
        return jax.tree.map(lambda new: jnp.where(counts, new, 0.0), before), (gain, shift)

    end = jnp.zeros((len(state),) * 2, state.dtype), jnp.zeros_like(state)
    _, laws = jax.lax.scan(eliminate, end, (stages, contexts, counted, force), reverse=True)

    def follow(state, now):
        stage, (gain, shift), context = now
        action = -gain @ state - shift
        return stage.joint @ jnp.concatenate([state, action, context]), action

    return jax.lax.scan(follow, state, (stages, laws, contexts))[1]


def _follow(stages: Stage, state, actions, contexts) -> Float[Array, "T n"]:
    """Return the state after each step."""

    def advance(state, now):
        stage, action, context = now
        after = stage.joint @ jnp.concatenate([state, action, context])
        return after, after

    return jax.lax.scan(advance, state, (stages, actions, contexts))[1]


class BoundedPath(AbstractConstraints):
    """The bounds on (u_t, xi_{t+1}) at each step that counts; those of states have a price."""

    parameters: tuple[Stage, Bool[Array, " T"], Float[Array, " n"], Float[Array, "T q"]]
    lower: Float[Array, " c"]
    upper: Float[Array, " c"]

    @classmethod
    def of(cls, problem: ControlProblem, parameters) -> "BoundedPath":
        """Take the bounds of a problem."""
        dtype, k, n = parameters[2].dtype, problem.action_dim, problem.state_dim
        ends = zip(problem.actions.bounds(k, dtype), problem.states_within.bounds(n, dtype), strict=True)
        return cls(parameters, *(jnp.concatenate(pair) for pair in ends))

    def _points(self, actions, state, contexts):
        return jnp.concatenate([actions, _follow(self.parameters[0], state, actions, contexts)], axis=1)

    def slack(self, x: Float[Array, "T k"]) -> Float[Array, "2 T c"]:
        points = self._points(x, *self.parameters[2:])
        return jnp.stack([points - self.lower, self.upper - points])

    def along(self, direction: Float[Array, "T k"]) -> Float[Array, "2 T c"]:
        change = self._points(direction, *(jnp.zeros_like(given) for given in self.parameters[2:]))
        return jnp.stack([change, -change])

    def pull(self, dual: Float[Array, "2 T c"]) -> Float[Array, "T k"]:
        stages, _, state, _ = self.parameters
        k = dual.shape[-1] - len(state)
        own, on_states = jnp.split(dual[0] - dual[1], [k], axis=1)

        def back(s, now):
            stage, force = now
            s = s + force
            return stage.F.T @ s, stage.B.T @ s

        return own + jax.lax.scan(back, jnp.zeros_like(state), (stages, on_states), reverse=True)[1]

    @property
    def exists(self) -> Bool[Array, "2 T c"]:
        ends = jnp.isfinite(jnp.stack([self.lower, self.upper]))
        return ends[:, None] & self.parameters[1][:, None]

    @property
    def price(self) -> Float[Array, "2 T c"]:
        stages, _, state, contexts = self.parameters
        finite = jnp.where(jnp.isfinite(self.lower), jnp.abs(self.lower), 0.0) + self.room
        largest = jnp.max(jnp.abs(contexts), initial=0.0) + jnp.max(jnp.abs(state)) + jnp.max(finite)
        each = _PRICE * largest * jnp.max(jnp.abs(stages.M))
        of_action = jnp.arange(len(self.lower)) < len(self.lower) - len(state)
        return jnp.broadcast_to(jnp.where(of_action, jnp.inf, each), self.exists.shape)

    @property
    def room(self) -> Float[Array, ""]:
        span = self.upper - self.lower
        return jnp.max(jnp.where(jnp.isfinite(span), span, 0.0), initial=1e-3)


def _path_cost(actions, parameters):
    stages, counted, state, contexts = parameters
    states = jnp.concatenate([state[None], _follow(stages, state, actions, contexts)[:-1]])
    points = jnp.concatenate([states, actions, contexts], axis=1)
    return jnp.sum(jnp.where(counted, 0.5 * jnp.einsum("ti,tij,tj->t", points, stages.M, points), 0.0))


def _solve_stiffened(actions, parameters, within: BoundedPath, stiff: Float[Array, "2 T c"]) -> Callable[[Any], Any]:
    stages, counted, state, contexts = parameters
    own, on_states = jnp.split(stiff[0] + stiff[1], [actions.shape[1]], axis=1)

    @jax.vmap
    def stiffen(stage: Stage, of_action, of_state):
        _, u, _ = stage.places
        M = stage.M + stage.joint.T @ (of_state[:, None] * stage.joint)
        return Stage(stage.F, stage.B, stage.E, M.at[u, u].add(jnp.diag(of_action)))

    stiffened = stiffen(stages, own, on_states)
    nothing = jnp.zeros_like(state), jnp.zeros_like(contexts)

    def solve(force):
        step = _sweep(stiffened, counted, *nothing, force)
        curved = jax.jvp(lambda x: jax.grad(_path_cost)(x, parameters), (actions,), (step,))[1]
        # Stiff bounds of states cost digits: a second sweep returns them.
        left = force - curved - within.pull(stiff * within.along(step))
        return step + _sweep(stiffened, counted, *nothing, left)

    return solve
