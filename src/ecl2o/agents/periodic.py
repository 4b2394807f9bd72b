"""Restarts at regular times: a promise for each day or week, or an agent for each of its days."""

import dataclasses
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ecl2o.agents.base import AbstractAgent, AnyProblem, Observation, Start, State, check_fields, pass_inside
from ecl2o.agents.guards.base import AbstractGuard
from ecl2o.agents.promise import Promise
from ecl2o.problem.arrays import check_count


class PeriodicState(eqx.Module):
    """The wrapped agent's state, the contexts on which it will restart (none where its memory is kept), and steps since then."""

    inner: State
    recent: Float[Array, "H q"]
    age: Int[Array, ""]


class Periodic(AbstractAgent):
    """An agent that restarts every `period` steps from the action last played. Step 0 starts a period.

    A run may start within a period (`Runner(..., start_time=...)`): its first period is then shorter, and so is what it promises.
    The agent inside sees the period's clock: `Observation.step` counts from 0 after each restart, `place` from the start of the
    period, and `remaining` to its end.

    Args:
        agent: the agent that restarts.
        period: steps from restart to restart, at least 1.
        keeps: what survives a restart. Default: "memory".
            "memory", for guards: cost, reference and the guard's expert restart together from the action last played (erratum
            E22), while the agent inside keeps its memory and what it has learned.
            "history": everything restarts, on as many of the last contexts as the run's own history had, as in `rollout_days`.
            An agent whose memory is made of contexts needs a history, or it forgets everything every period.

    Raises:
        ValueError: if period or keeps is none of these.
        TypeError: if keeps is "memory" and the agent is not a guard.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> print(Periodic(ec.Competitive(ec.ROBD(), ratio=2.0), 24).promise(problem))
    the cost is at most 2 times the optimum in every 24 steps
    """

    agent: AbstractAgent
    period: int = eqx.field(static=True)
    keeps: Literal["memory", "history"] = eqx.field(static=True, default="memory")

    def __check_init__(self):
        check_count("period", self.period)
        if self.keeps not in ("memory", "history"):
            raise ValueError(f"keeps must be 'memory' or 'history', got {self.keeps!r}.")
        if self.keeps == "memory" and not isinstance(self.agent, AbstractGuard):
            raise TypeError(f"keeps='memory' needs a guard, got {type(self.agent).__name__}; use keeps='history'.")

    around_proposals = pass_inside

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
        kept = start.history[:0] if self.keeps == "memory" else start.history
        inner = self.agent.init(problem, dataclasses.replace(start, horizon=self.period))
        return PeriodicState(inner, kept, jnp.zeros((), int))

    def step(self, problem: AnyProblem, state: PeriodicState, observation: Observation):
        phase = observation.place % self.period
        restarts = (phase == 0) & (state.age > 0)
        age = jnp.where(restarts, 0, state.age)
        inner = jax.lax.cond(
            restarts,
            lambda: self._restart_agent(problem, state, observation),
            lambda: state.inner,
        )
        left = self.period - 1 - phase
        if observation.remaining is not None:
            left = jnp.minimum(left, observation.remaining)
        by_period = dataclasses.replace(observation, step=age, remaining=left, skipped=phase - age)
        inner, action, info = self.agent.step(problem, inner, by_period)
        recent = state.recent
        if recent.shape[0]:
            recent = jnp.concatenate([recent[1:], observation.context[None]])
        return PeriodicState(inner, recent, age + 1), action, info

    def _restart_agent(self, problem: AnyProblem, state: PeriodicState, observation: Observation) -> State:
        """Return the state at the start of a period, in the dtypes of the old one."""
        start = Start(observation.previous_action, state.recent, self.period)
        if self.keeps == "memory":
            assert isinstance(self.agent, AbstractGuard)
            restarted = self.agent.restart(problem, state.inner, start)
        else:
            restarted = self.agent.init(problem, start)
        return jax.tree.map(lambda old, new: jnp.asarray(new, old.dtype), state.inner, restarted)
