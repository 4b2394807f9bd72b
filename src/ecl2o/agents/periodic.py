"""Restarts at regular times, for an agent that was made for days."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ecl2o.agents.base import AbstractAgent, AnyProblem, Observation, Start, State, check_fields, pass_inside
from ecl2o.agents.promise import Promise
from ecl2o.problem.arrays import check_count


class PeriodicState(eqx.Module):
    """The wrapped agent's state, the contexts on which it will restart, and steps since then."""

    inner: State
    recent: Float[Array, "H q"]
    age: Int[Array, ""]


class Periodic(AbstractAgent):
    """An agent that restarts every `period` steps from the action last played. Step 0 starts a period.

    Everything restarts, on as many of the last contexts as the run's own history had, as in `rollout_days`. An agent whose memory
    is made of contexts needs a history, or it forgets everything every period. To restart a promise, but not what the agent
    inside has learned, give the promise a period: `Competitive(agent, period=24)`.

    A run may start within a period (`Runner(..., start_time=...)`): its first period is then shorter. The agent inside sees the
    period's clock: `Observation.step` counts from 0 after each restart, `place` from the start of the period, and `remaining` to
    its end.

    Args:
        agent: the agent that restarts.
        period: steps from restart to restart, at least 1.

    Raises:
        ValueError: if period is not such a number.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> day = ec.Instance([0.0], [[1.0], [1.0]])
    >>> run = ec.rollout(Periodic(ec.advisors.Fixed([[1.0]]), 1), problem, day)  # its first action every step
    >>> run.actions.ravel().tolist()
    [1.0, 1.0]
    """

    agent: AbstractAgent
    period: int = eqx.field(static=True)

    def __check_init__(self):
        check_count("period", self.period)

    around_proposals = pass_inside

    @property
    def periods(self) -> list[int]:
        return [self.period, *self.agent.periods]

    @property
    def renews_promise(self) -> bool:
        return True

    def is_linear(self, problem: AnyProblem) -> bool:
        return self.agent.is_linear(problem)

    def check(self, problem: AnyProblem, start: Start) -> None:
        check_fields(self)
        self.agent.check(problem, Start(start.x0, start.history, self.period))

    def promise(self, problem: AnyProblem) -> Promise | None:
        """Return the agent's promise for the shorter of the two periods, or None if they do not end together."""
        promise = self.agent.promise(problem)
        if promise is None:
            return None
        period = self.period if promise.period is None else min(promise.period, self.period)
        return dataclasses.replace(promise, period=period) if self.period % period == 0 else None

    def init(self, problem: AnyProblem, start: Start) -> PeriodicState:
        inner = self.agent.init(problem, dataclasses.replace(start, horizon=self.period))
        return PeriodicState(inner, start.history, jnp.zeros((), int))

    def step(self, problem: AnyProblem, state: PeriodicState, observation: Observation):
        phase = observation.place % self.period
        restarts = (phase == 0) & (state.age > 0)
        age = jnp.where(restarts, 0, state.age)
        inner = jax.lax.cond(
            restarts,
            lambda: self._restart_agent(problem, state, observation),
            lambda: state.inner,
        )
        by_period = observation.in_period(self.period, age)
        inner, action, info = self.agent.step(problem, inner, by_period)
        recent = state.recent
        if recent.shape[0]:
            recent = jnp.concatenate([recent[1:], observation.context[None]])
        return PeriodicState(inner, recent, age + 1), action, info

    def _restart_agent(self, problem: AnyProblem, state: PeriodicState, observation: Observation) -> State:
        """Return the state at the start of a period, in the dtypes of the old one."""
        start = Start(observation.previous_action, state.recent, self.period)
        restarted = self.agent.init(problem, start)
        return jax.tree.map(lambda old, new: jnp.asarray(new, old.dtype), state.inner, restarted)
