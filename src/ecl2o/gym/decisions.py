"""One instance is one episode: see a context, choose an action, pay for missing and for moving."""

from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from ecl2o.problem import Instance, Problem
from ecl2o.problem.arrays import cast_floats

# instances(random) -> one instance; every one has the same shapes.
Instances = Callable[[np.random.Generator], Instance]


class DecisionEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """An online problem as an environment: the reward of a step is -(f(x_t, y_t) + c(x_t, x_{t-1})).

    `reset` draws an instance and shows y_1, `step(x_t)` pays for x_t and shows y_{t+1}. An episode is the T steps of an instance
    and ends by termination: nothing comes after it that would have to be estimated. The observation is (y_t, x_{t-1}, the share
    of the steps that is left); what an agent wants to remember beyond that is its own to keep. After the last step, the last
    context is shown again.

    Works in 64 bits if JAX does, else in 32; spaces have that precision. An action outside the problem's set is projected on
    it, one that is not finite is refused.

    Args:
        problem: what is decided.
        instances: draws an instance from a NumPy generator, or a set of instances, (n, T, q), to draw from.
        actions: (low, high) of the action space where the problem has no bounds of its own. Agents that explore need some.
            They describe the space; the cost of an action outside is still the problem's.

    `info` of a step: `hitting` and `switching`, its two costs, and `cost`, that of the episode so far.

    >>> from ecl2o.problem import Box, Mahalanobis, SquaredTracking
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

    def __init__(self, problem: Problem, instances: Instances | Instance, actions: tuple[float, float] | None = None):
        self.render_mode = None
        self._dtype = np.dtype(jnp.result_type(float))
        self._draw = _from_set(instances) if isinstance(instances, Instance) else instances
        example = self._draw(np.random.default_rng(0))
        problem.check(example)
        self.problem: Problem = cast_floats(problem, self._dtype)
        self._shapes = example.x0.shape, example.contexts.shape, example.past.shape
        self.action_space = _action_space(self.problem, example.dim, actions, self._dtype)
        free = np.full(example.contexts.shape[-1] + example.dim, np.inf, self._dtype)
        low, high = np.append(-free, 0.0), np.append(free, 1.0)
        self.observation_space = spaces.Box(low.astype(self._dtype), high.astype(self._dtype), dtype=self._dtype.type)
        self._instance: Instance | None = None

    @property
    def instance(self) -> Instance:
        """The episode's instance, what comes included: for scoring and for guards, never for agents."""
        if self._instance is None:
            raise gymnasium.error.ResetNeeded("call reset first: there is no episode.")
        return self._instance

    @property
    def horizon(self) -> int:
        """T, the steps of an episode."""
        return self._shapes[1][0]

    @property
    def dim(self) -> int:
        """d, how many numbers an action has."""
        return self._shapes[0][0]

    @property
    def context_dim(self) -> int:
        """q, how many numbers a context has."""
        return self._shapes[1][1]

    @property
    def past_shape(self) -> tuple[int, ...]:
        """(H, q), of what was seen before the first step."""
        return self._shapes[2]

    @property
    def dtype(self) -> np.dtype:
        """The precision it works in, JAX's when it was made."""
        return self._dtype

    @property
    def context(self) -> np.ndarray:
        """y_t, for which an action is due."""
        return self._contexts[min(self._steps, self.horizon - 1)]

    @property
    def action(self) -> np.ndarray:
        """x_{t-1}, the action in force; x_0 before the first step."""
        return self._previous

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Draw an instance, or take `options["instance"]`, and show its first context."""
        super().reset(seed=seed)
        instance = (options or {}).get("instance")
        instance = self._draw(self.np_random) if instance is None else instance
        shapes = instance.x0.shape, instance.contexts.shape, instance.past.shape
        if shapes != self._shapes:
            raise ValueError(
                "every instance must have the shapes of the first, "
                f"x0 {self._shapes[0]}, contexts {self._shapes[1]} and history {self._shapes[2]}, got "
                f"{shapes[0]}, {shapes[1]} and {shapes[2]}."
            )
        self._instance = instance
        self._contexts = np.asarray(instance.contexts, self._dtype)
        self._previous = np.asarray(instance.x0, self._dtype)
        self._steps, self._cost = 0, 0.0
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Pay for an action; show the next context."""
        if self._instance is None or self._steps >= self.horizon:
            raise gymnasium.error.ResetNeeded("the episode is over: reset the environment.")
        given = np.asarray(action, self._dtype)
        if given.shape != self._previous.shape or not np.isfinite(given).all():
            raise ValueError(f"an action is {self._previous.shape[0]} finite number(s), got {action!r}.")
        played, hitting, switching = map(np.asarray, _bill(self.problem, given, self.context, self._previous))
        self._previous, self._steps = played, self._steps + 1
        cost = float(hitting) + float(switching)
        self._cost += cost
        info = {"hitting": float(hitting), "switching": float(switching), "cost": self._cost}
        return self._observation(), -cost, self._steps == self.horizon, False, info

    def _observation(self) -> np.ndarray:
        left = 1 - self._steps / self.horizon
        return np.concatenate([self.context, self._previous, [left]]).astype(self._dtype)


@jax.jit
def _bill(problem: Problem, action, context, previous):
    """The action inside the set, and its two costs."""
    action = problem.actions.project(action)
    return action, problem.hitting(action, context), problem.switching(action, previous)


def _from_set(instances: Instance) -> Instances:
    if instances.x0.ndim != 2:
        raise ValueError(f"a set of instances has a leading axis, x0 (n, d); got x0 of shape {instances.x0.shape}.")
    whole = jax.tree.map(np.asarray, instances)

    def draw(random: np.random.Generator) -> Instance:
        place = int(random.integers(whole.x0.shape[0]))
        past = None if whole.history is None else whole.history[place]
        return Instance(whole.x0[place], whole.contexts[place], past)

    return draw


def _action_space(problem: Problem, dim: int, given: tuple[float, float] | None, dtype: np.dtype) -> spaces.Box:
    low, high = (np.asarray(bound) for bound in problem.actions.bounds(dim, dtype))
    if given is not None:
        low, high = (np.full(dim, bound, dtype) for bound in given)
    return spaces.Box(low, high, dtype=dtype.type)
