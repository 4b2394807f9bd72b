"""The one place where an agent is asked to act: everything that runs agents runs a `Stepper`."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecl2o.agents import AbstractAgent, Info, Observation, Start
from ecl2o.agents.timed import follow_timing
from ecl2o.exceptions import NotApplicableError
from ecl2o.forecasters import AbstractCausalForecaster, AbstractForecaster, AbstractPreparedForecast
from ecl2o.problem import AbstractProblem
from ecl2o.running.screening import Screen, ScreenState


class Step(eqx.Module):
    """One decision, its costs f(x_t, y_t) and c(x_t, x_{t-1}), and the agent's report.

    Args:
        action: (d,), x_t.
        hitting: f(x_t, y_t).
        switching: c(x_t, x_{t-1}).
        info: The agent's report.
        screened: (q,), which numbers of the context were replaced. Default: None, contexts are not screened.
        stuck: (q,), which numbers of the context have not changed for longer than is plausible. Default: None, as above.
    """

    action: Float[Array, " d"]
    hitting: Float[Array, ""]
    switching: Float[Array, ""]
    info: Info
    screened: Bool[Array, " q"] | None = None
    stuck: Bool[Array, " q"] | None = None


class StepperState(NamedTuple):
    """What carries over: the action in force (the state of a `ControlProblem`), the step, the horizon, and the parts' memory."""

    action: Float[Array, " d"]
    step: Int[Array, ""]
    horizon: Int[Array, ""] | None  # None where it is not known
    agent: Any
    forecaster: Any
    screen: ScreenState | None = None


class Stepper(eqx.Module):
    """An agent on a problem, one context at a time.

    `init` and `step` are pure functions: `rollout` scans them, batches map them, and the streaming runner compiles them once.

    Args:
        agent: The agent to run; it is made to follow the problem's timing.
        problem: Its costs and action set.
        forecaster: For agents with a lookahead: a causal one, or a clairvoyant one after `prepare`. Default: None.
        screen: Replaces implausible contexts before agent, forecaster and costs see them. Default: None.

    Raises:
        NotApplicableError: The agent has a lookahead, and the forecaster is missing or not prepared.

    >>> import jax.numpy as jnp
    >>> from ecl2o.agents import Greedy
    >>> from ecl2o.problem import Mahalanobis, Problem, SquaredTracking
    >>> stepper = Stepper(Greedy(), Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=2.0, dim=1)))
    >>> state = stepper.init(Start(jnp.zeros(1), jnp.zeros((0, 1))))
    >>> state, step = stepper.step(state, jnp.array([3.0]))
    >>> float(step.action[0]), float(step.hitting), float(step.switching)
    (1.0, 2.0, 1.0)
    """

    agent: AbstractAgent
    problem: AbstractProblem
    forecaster: AbstractForecaster | AbstractPreparedForecast | None = None
    screen: Screen | None = None

    def __post_init__(self):
        self.agent = follow_timing(self.agent, self.problem)

    def __check_init__(self):
        usable = isinstance(self.forecaster, AbstractCausalForecaster | AbstractPreparedForecast)
        if self.agent.lookahead > 0 and not usable:
            given = "none" if self.forecaster is None else type(self.forecaster).__name__
            raise NotApplicableError(
                f"{type(self.agent).__name__} looks {self.agent.lookahead} contexts ahead and needs a forecaster that knows "
                f"only the past, got {given}; use a causal one, for example forecasters.Persistence()."
            )

    def init(self, start: Start) -> StepperState:
        """Return the state before the first step.

        Raises:
            ValueError: A concrete number of the agent is out of its range (`AbstractAgent.check`).
            NotApplicableError: Agent, problem and start do not fit each other.
        """
        self.agent.check(self.problem, start)
        screened, memory = None, None
        if self.screen is not None:
            screened, past, _ = self.screen.scan(start.history)
            start = dataclasses.replace(start, history=past)
        if self.agent.lookahead > 0 and isinstance(self.forecaster, AbstractCausalForecaster):
            memory = self.forecaster.init(start.history, self.agent.lookahead)
        state = self.agent.init(self.problem, start)
        horizon = None if start.horizon is None else jnp.asarray(start.horizon, int)
        return StepperState(start.x0, jnp.zeros((), int), horizon, state, memory, screened)

    def step(self, state: StepperState, context: Float[Array, " q"]) -> tuple[StepperState, Step]:
        """Act on a context; return the new state, and the step with its costs."""
        screen, replaced, stuck = None, None, None
        if self.screen is not None:
            assert state.screen is not None
            screen, context, replaced, stuck = self.screen.step(state.screen, context)
        memory, forecast = self._forecast(state, context)
        remaining = None if state.horizon is None else state.horizon - 1 - state.step
        observation = Observation(context, state.action, state.step, remaining, forecast)
        inner, action, info = self.agent.step(self.problem.at_context(context), state.agent, observation)
        action = self.problem.limit(state.action, action)
        costs = self.problem.step_costs(state.action, action, context, state.step)
        position = self.problem.next_state(state.action, action, context, state.step)
        after = StepperState(position, state.step + 1, state.horizon, inner, memory, screen)
        return after, Step(action, *costs, info, replaced, stuck)

    def _forecast(self, state: StepperState, context: Float[Array, " q"]) -> tuple[Any, Float[Array, "w q"] | None]:
        """Return the forecaster's memory after this context, and its forecast if the agent has a lookahead."""
        if self.agent.lookahead == 0:
            return state.forecaster, None
        if isinstance(self.forecaster, AbstractPreparedForecast):
            return state.forecaster, self.forecaster.at(state.step)
        assert isinstance(self.forecaster, AbstractCausalForecaster)
        return self.forecaster.step(state.forecaster, context, self.agent.lookahead)
