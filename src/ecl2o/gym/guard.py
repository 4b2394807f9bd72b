"""A guard between a policy and its environment."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.agents import AbstractAgent, Competitive, Guard, Info, Observation, Promise, Start
from ecl2o.agents.base import AnyProblem
from ecl2o.gym.decisions import DecisionEnv
from ecl2o.problem.arrays import cast_floats
from ecl2o.running import Step, Stepper
from ecl2o.running.compiled_step import RunShape, Vectors, compile_stepper
from ecl2o.running.stepper import StepperState

MakeGuard = Callable[[AbstractAgent], Guard]


class ExternalAdvisor(AbstractAgent):
    """An advisor whose proposal is its state; `AdvisedStepper` puts it there."""

    def around_proposals(self, wrap: Callable[[AbstractAgent], AbstractAgent]) -> AbstractAgent:
        return self

    def init(self, problem: AnyProblem, start: Start) -> Float[Array, " d"]:
        return jnp.zeros(problem.action_size(start.dim), start.x0.dtype)

    def step(self, problem: AnyProblem, state: Float[Array, " d"], observation: Observation):
        return state, state, Info.plain()


class AdvisedStepper(eqx.Module):
    """A stepper of a guard around `ExternalAdvisor`; the last d numbers of each context are the advice."""

    stepper: Stepper
    context_dim: int = eqx.field(static=True)

    def init(self, start: Start) -> StepperState:
        """Return the state before the first step."""
        return self.stepper.init(Start(start.x0, start.history[:, : self.context_dim], start.horizon))

    def step(self, state: StepperState, context: Float[Array, " k"]) -> tuple[StepperState, Step]:
        """Put the advice where every guard keeps the state of the agent inside, step, and report the action."""
        context, advice = jnp.split(context, [self.context_dim])
        state, step = self.stepper.step(eqx.tree_at(lambda before: before.agent.inner, state, advice), context)
        info = dataclasses.replace(step.info, details={**step.info.details, "action": step.action})
        return state, dataclasses.replace(step, info=info)


class GuardWrapper(gymnasium.Wrapper[np.ndarray, np.ndarray, np.ndarray, np.ndarray]):
    """A wrapper that plays a policy's actions as far as a promise allows, in every episode.

    The action given to `step` is advice and may be anything, NaN included. `info["guard"]` holds the `action` played
    and the guard's `Info.details`.

    Args:
        env: A `DecisionEnv`; wrappers that change actions go around the guard, not inside.
        promise: The largest ratio of an episode's cost to the optimum: at every step (`Competitive`), or at its end for a
            `ControlProblem`; or a function that puts an agent behind another guard, for example
            `lambda agent: ec.Guarded(agent, slack=0.5)`.

    >>> from ecl2o.problem import Instance, Mahalanobis, Problem, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> env = GuardWrapper(DecisionEnv(problem, Instance([[0.5]], [[[0.2], [0.9]]])), promise=2.5)
    >>> print(env.promise)
    the cost is at most 2.5 times the optimum in every 2 steps
    >>> _ = env.reset(seed=0)
    >>> *_, info = env.step(np.array([1e6]))
    >>> info["guard"]["active"].tolist(), bool(info["guard"]["ratio"][0] <= 2.5 * (1 + 1e-4))
    ([True], True)
    """

    def __init__(self, env: gymnasium.Env, promise: float | MakeGuard):
        super().__init__(env)
        inside = env.unwrapped
        if not isinstance(inside, DecisionEnv):
            raise TypeError(f"GuardWrapper needs a DecisionEnv, whose costs are known, got {type(inside).__name__}.")
        self._inside = inside
        advisor = ExternalAdvisor()
        self._guard = (
            promise(advisor) if callable(promise) else Competitive(advisor, ratio=promise, horizon=inside.horizon)
        )
        stepper = AdvisedStepper(Stepper(self._guard, inside.problem), inside.context_dim)
        shape = RunShape(inside.state_dim, inside.context_dim + inside.dim, inside.past_shape[0], inside.horizon)
        program, self._arrays = compile_stepper(cast_floats(stepper, inside.dtype), shape, inside.dtype)
        self._functions = program.one
        self._state: tuple[Vectors, Vectors] | None = None

    @property
    def promise(self) -> Promise:
        """What is promised of every episode's cost."""
        return self._guard.promise(self._inside.problem)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode, and the promise with it."""
        observation, info = self.env.reset(seed=seed, options=options)
        instance, dtype = self._inside.instance, self._inside.dtype
        x0, past = np.asarray(instance.x0, dtype), np.asarray(instance.past, dtype)
        if self._state is None:  # no episode changes what it rejects
            self._guard.check(self._inside.problem, Start(jnp.asarray(x0), jnp.asarray(past), self._inside.horizon))
        history = np.pad(past, ((0, 0), (0, self._inside.dim)))  # with a column for the advice
        self._state = self._functions.begin(self._arrays, x0, history)
        return observation, info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take advice, and play what the promise allows."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset first: there is no episode.")
        inside = self._inside
        advice = np.asarray(action, inside.dtype)
        if advice.shape != (inside.dim,):
            raise ValueError(f"an action is {inside.dim} number(s), got {action!r}.")
        shared, carried = self._state
        carried, report = self._functions.play(shared, carried, np.concatenate([inside.context, advice]))
        details = {name: np.asarray(figure)[()] for name, figure in report.details.items()}
        played = details["action"]
        observation, reward, terminated, truncated, info = self.env.step(played)
        if not np.array_equal(inside.action, played):
            raise RuntimeError(
                "a wrapper between the guard and the DecisionEnv has changed the guard's action, so nothing is promised; put "
                "wrappers that change actions around GuardWrapper."
            )
        self._state = shared, carried
        return observation, float(reward), terminated, truncated, {**info, "guard": details}
