"""The online problem as an environment: one instance is one episode."""

from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from ecl2o.problem import AbstractProblem, Instance
from ecl2o.problem.arrays import cast_floats, to_device

Instances = Callable[[np.random.Generator], Instance]  # all instances have the same shapes


class DecisionEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """An online problem as an environment: the reward of a step is minus its cost, f(x_t, y_t) + c(x_t, x_{t-1}).

    `reset` draws an instance and shows y_1; `step(x_t)` pays for x_t and shows y_{t+1}. An episode has the T steps of an
    instance and ends by termination. The observation is (y_t, x_{t-1}, the remaining share of the steps), with the state of a
    `ControlProblem` instead of x_{t-1}; after the last step it repeats the last context. `info` of a step has its costs
    `hitting` and `switching`, and the `cost` of the episode so far.

    The precision is that of JAX, 64 or 32 bits. Actions outside the problem's set are projected on it; `step` raises
    ValueError for actions that are not finite.

    Args:
        problem: Costs and action set, and dynamics if it is a `ControlProblem`.
        instances: Draws an instance from a NumPy generator; or a set of instances, (n, T, q), to draw from.
        actions: (low, high) of the action space; agents that explore need one. It does not change the cost of actions
            outside. Default: None, the problem's own bounds.

    >>> from ecl2o.problem import Box, Mahalanobis, Problem, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1), Box(0.0, 1.0))
    >>> env = DecisionEnv(problem, Instance([[0.5]], [[[0.2], [0.9]]]))
    >>> observation, _ = env.reset(seed=0)
    >>> [round(float(x), 3) for x in observation]
    [0.2, 0.5, 1.0]
    >>> observation, reward, terminated, _, info = env.step(np.array([0.4]))
    >>> round(reward, 3), terminated
    (-0.07, False)
    """

    metadata = {"render_modes": []}

    def __init__(
        self, problem: AbstractProblem, instances: Instances | Instance, actions: tuple[float, float] | None = None
    ):
        self.render_mode = None
        self.dtype = np.dtype(jnp.result_type(float))
        self._draw = _from_set(instances) if isinstance(instances, Instance) else instances
        example = self._draw(np.random.default_rng(0))
        problem.check(example)
        self.problem: Any = cast_floats(problem, self.dtype)
        self._shapes = _shapes_of(example)
        (self.state_dim,), (self.horizon, self.context_dim), self.past_shape = self._shapes
        self.dim = problem.action_size(self.state_dim)
        self.action_space = _action_space(self.problem, self.dim, actions, self.dtype)
        free = np.full(self.context_dim + self.state_dim, np.inf)
        low, high = (np.append(*ends).astype(self.dtype) for ends in ((-free, 0.0), (free, 1.0)))
        self.observation_space = spaces.Box(low, high, dtype=self.dtype.type)
        self._instance: Instance | None = None

    @property
    def instance(self) -> Instance:
        """The episode's instance with its future contexts: for scoring and for guards, never for agents."""
        if self._instance is None:
            raise gymnasium.error.ResetNeeded("call reset first: there is no episode.")
        return self._instance

    @property
    def context(self) -> np.ndarray:
        """y_t, for which an action is due."""
        return self._contexts[min(self._steps, self.horizon - 1)]

    @property
    def action(self) -> np.ndarray:
        """The last action that was played, projected; zero before the first step."""
        return self._played

    @property
    def state(self) -> np.ndarray:
        """x_{t-1}, the action in force, x_0 before the first step; the state of a `ControlProblem`."""
        return self._state

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Draw an instance, or take `options["instance"]`, and show its first context."""
        super().reset(seed=seed)
        instance = (options or {}).get("instance")
        instance = self._draw(self.np_random) if instance is None else instance
        if (shapes := _shapes_of(instance)) != self._shapes:
            first, other = ("x0 {}, contexts {} and history {}".format(*each) for each in (self._shapes, shapes))
            raise ValueError(f"every instance must have the shapes of the first, {first}, got {other}.")
        self._instance = instance
        self._contexts = np.asarray(instance.contexts, self.dtype)
        self._state = np.asarray(instance.x0, self.dtype)
        self._played = np.zeros(self.dim, self.dtype)
        self._steps, self._cost = 0, 0.0
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Pay for an action; show the next context."""
        if self._instance is None or self._steps >= self.horizon:
            raise gymnasium.error.ResetNeeded("the episode is over: reset the environment.")
        given = np.asarray(action, self.dtype)
        if given.shape != (self.dim,) or not np.isfinite(given).all():
            raise ValueError(f"an action is {self.dim} finite number(s), got {action!r}.")
        made = _play(self.problem, given, self.context, self._state, self._steps)
        self._played, self._state, hitting, switching = map(np.asarray, made)
        self._steps += 1
        cost = float(hitting) + float(switching)
        self._cost += cost
        info = {"hitting": float(hitting), "switching": float(switching), "cost": self._cost}
        return self._observation(), -cost, self._steps == self.horizon, False, info

    def _observation(self) -> np.ndarray:
        left = 1 - self._steps / self.horizon
        return np.concatenate([self.context, self._state, [left]]).astype(self.dtype)


@jax.jit
def _play(problem: Any, action, context, state, step):
    """Return the projected action, the state after it, and its two costs."""
    action = problem.limit(state, problem.actions.project(action))
    return action, problem.next_state(state, action, context, step), *problem.step_costs(state, action, context, step)


def _shapes_of(instance: Instance) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return instance.x0.shape, instance.contexts.shape, instance.past.shape


def _from_set(instances: Instance) -> Instances:
    if instances.x0.ndim != 2:
        raise ValueError(f"a set of instances has a leading axis, x0 (n, d); got x0 of shape {instances.x0.shape}.")
    whole = jax.tree.map(np.asarray, instances)

    def draw(random: np.random.Generator) -> Instance:
        place = int(random.integers(whole.x0.shape[0]))
        return jax.tree.map(lambda leaf: to_device(leaf[place]), whole)

    return draw


def _action_space(problem: Any, dim: int, given: tuple[float, float] | None, dtype: np.dtype) -> spaces.Box:
    low, high = (np.asarray(bound) for bound in problem.actions.bounds(dim, dtype))
    if given is not None:
        low, high = (np.full(dim, bound, dtype) for bound in given)
    return spaces.Box(low, high, dtype=dtype.type)
