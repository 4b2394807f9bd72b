"""A guard between a policy and its environment."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.agents import AbstractAgent, Competitive, Info, Observation, Promise, Start
from ecl2o.agents.guards import AbstractGuard
from ecl2o.gym.decisions import DecisionEnv
from ecl2o.problem import Problem
from ecl2o.problem.arrays import cast_floats
from ecl2o.running import Stepper
from ecl2o.running.compiled_step import VectorLayout, Vectors

Guard = Callable[[AbstractAgent], AbstractGuard]


class ExternalAdvisor(AbstractAgent):
    """An advisor that proposes what it has been told; whoever steps it puts the proposal into its state."""

    @property
    def lookahead(self) -> int:
        return 0

    def init(self, problem: Problem, start: Start) -> Float[Array, " d"]:
        return start.x0

    def step(self, problem: Problem, state: Float[Array, " d"], observation: Observation):
        return state, state, Info.plain()


class GuardWrapper(gymnasium.Wrapper[np.ndarray, np.ndarray, np.ndarray, np.ndarray]):
    """Play a policy's actions as far as a promise allows, in every episode, whatever the policy does.

    The action that is given to `step` is advice: it may be anything, not a number included. What was played, and how the
    promise stands, is in `info["guard"]`: `action`, and the guard's `Info.details`.

    Args:
        env: a `DecisionEnv`; wrappers that change actions go around the guard, not inside.
        promise: the largest ratio of an episode's bill to the optimum, at every step of it (`Competitive`); or a function that
            puts an agent behind any other guard, for example `lambda agent: ec.Guarded(agent, slack=0.5)`.

    >>> from ecl2o.problem import Instance, Mahalanobis, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> env = GuardWrapper(DecisionEnv(problem, Instance([[0.5]], [[[0.2], [0.9]]])), promise=2.5)
    >>> print(env.promise)
    the cost is at most 2.5 times the optimum in every 2 steps
    >>> _ = env.reset(seed=0)
    >>> *_, info = env.step(np.array([1e6]))
    >>> bool(info["guard"]["active"]), bool(info["guard"]["live_ratio"] <= 2.5 * (1 + 1e-4))
    (True, True)
    """

    def __init__(self, env: gymnasium.Env, promise: float | Guard):
        super().__init__(env)
        inside = env.unwrapped
        if not isinstance(inside, DecisionEnv):
            raise TypeError(f"a promise is about a DecisionEnv, whose costs are known; got {type(inside).__name__}.")
        self._inside = inside
        self._guard = (
            promise(ExternalAdvisor()) if callable(promise) else Competitive(ExternalAdvisor(), promise, inside.horizon)
        )
        stepper = cast_floats(Stepper(self._guard, inside.problem), inside.dtype)
        leaves, structure = jax.tree.flatten(stepper)
        arrays = VectorLayout(tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves))
        self._arrays = arrays.pack(leaves)
        sizes = Sizes(inside.dim, inside.past_shape, inside.context_dim, inside.horizon)
        self._compiled = _compiled(structure, arrays, sizes, inside.dtype)
        self._state: Vectors | None = None

    @property
    def promise(self) -> Promise:
        """What is promised of every episode's bill."""
        return self._guard.promise(self._inside.problem)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begin an episode, and the promise with it."""
        observation, info = self.env.reset(seed=seed, options=options)
        begun, dtype = self._inside.instance, self._inside.dtype
        x0, past = jnp.asarray(begun.x0, dtype), jnp.asarray(begun.past, dtype)
        if self._state is None:  # what it refuses, no episode changes
            self._guard.check(self._inside.problem, Start(x0, past, self._inside.horizon))
        self._state = self._compiled.begin(self._arrays, x0, past)
        return observation, info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take advice, play what is allowed."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("reset the environment first: no episode has begun.")
        inside = self._inside
        advice = np.asarray(action, inside.dtype)
        if advice.shape != (inside.dim,):
            raise ValueError(f"an action is {inside.dim} number(s), got {action!r}.")
        state, answer = self._compiled.advance(self._arrays, self._state, advice, inside.context)
        numbers = np.asarray(answer)
        played = numbers[: inside.dim]
        observation, reward, terminated, truncated, info = self.env.step(played)
        if not np.array_equal(inside.action, played):
            raise RuntimeError(
                "a wrapper between the guard and the DecisionEnv has changed the guard's action, so nothing is promised; put "
                "wrappers that change actions around GuardWrapper."
            )
        self._state = state
        figures = zip(self._compiled.told.items(), numbers[inside.dim :], strict=True)
        told = {name: number.astype(spec.dtype) for (name, spec), number in figures}
        return observation, float(reward), terminated, truncated, {**info, "guard": {**told, "action": played}}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The shapes of an episode: x_0, past and a context, and its steps."""

    dim: int
    past: tuple[int, ...]
    context_dim: int
    horizon: int


@dataclasses.dataclass(frozen=True)
class Compiled:
    """`begin(arrays, x0, past) -> state` and `advance(arrays, state, advice, context) -> (state, answer)`.

    Arrays and state are a few flat vectors; `told` says what the answer holds after the action.
    """

    begin: Callable[..., Vectors]
    advance: Callable[..., tuple[Vectors, Array]]
    told: dict[str, jax.ShapeDtypeStruct]


@functools.lru_cache(maxsize=16)
def _compiled(structure: Any, arrays: VectorLayout, sizes: Sizes, dtype: np.dtype) -> Compiled:
    """One program for all environments of the same kind and shapes: their numbers are arguments."""

    def init(vectors, x0, past):
        stepper = jax.tree.unflatten(structure, arrays.unpack(vectors))
        return stepper.init(Start(x0, past, sizes.horizon))

    def step(vectors, state, advice, context):
        """The advice goes where every guard keeps the state of the agent inside."""
        stepper = jax.tree.unflatten(structure, arrays.unpack(vectors))
        return stepper.step(eqx.tree_at(lambda before: before.agent.inner, state, advice), context)

    x0, past = jax.ShapeDtypeStruct((sizes.dim,), dtype), jax.ShapeDtypeStruct(sizes.past, dtype)
    vectors = jax.eval_shape(arrays.pack, arrays.specs)
    begun = jax.eval_shape(init, vectors, x0, past)
    leaves, whole = jax.tree.flatten(begun)
    carried = VectorLayout(tuple(leaves))
    context = jax.ShapeDtypeStruct((sizes.context_dim,), dtype)
    told = jax.eval_shape(step, vectors, begun, x0, context)[1].info.details

    def begin(vectors, x0, past):
        return carried.pack(jax.tree.leaves(init(vectors, x0, past)))

    def advance(vectors, state, advice, context):
        after, made = step(vectors, jax.tree.unflatten(whole, carried.unpack(state)), advice, context)
        details = [jnp.asarray(made.info.details[name], dtype) for name in told]
        return carried.pack(jax.tree.leaves(after)), jnp.concatenate([made.action, jnp.stack(details)])

    return Compiled(jax.jit(begin), jax.jit(advance), told)
