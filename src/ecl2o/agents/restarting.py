"""Begin anew at regular times: what continuous testing does day by day, inside one run."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Observation, Start, State
from ecl2o.problem import Problem
from ecl2o.problem.arrays import refuse_unless_count


class RestartingState(eqx.Module):
    """The wrapped agent's state, and the contexts on which it will begin anew."""

    inner: State
    recent: Float[Array, "H q"]


class Restarting(AbstractAgent):
    """An agent that begins anew every `period` steps, from the action last played, on the rolling history.

    One long run is then what `rollout_days` plays with the same history: a guard that promises for a day promises for each
    day, and a network trained on days has each day's memory. The history has the length that the run's own has; an agent
    whose memory is made of contexts needs one, or it forgets everything every period.
    """

    agent: AbstractAgent
    period: int = eqx.field(static=True)

    def __check_init__(self):
        refuse_unless_count("period", self.period)

    @property
    def lookahead(self) -> int:
        return self.agent.lookahead

    def init(self, problem: Problem, start: Start) -> RestartingState:
        return RestartingState(self._begin(problem, start.x0, start.history), start.history)

    def step(self, problem: Problem, state: RestartingState, observation: Observation):
        phase, before = observation.step % self.period, observation.previous_action
        inner = jax.lax.cond(
            (phase == 0) & (observation.step > 0),
            lambda: _like(state.inner, self._begin(problem, before, state.recent)),
            lambda: state.inner,
        )
        left = self.period - 1 - phase
        if observation.remaining is not None:
            left = jnp.minimum(left, observation.remaining)
        seen = Observation(observation.context, before, phase, left, observation.forecast)
        inner, action, info = self.agent.step(problem, inner, seen)
        recent = state.recent
        if recent.shape[0]:
            recent = jnp.concatenate([recent[1:], observation.context[None]])
        return RestartingState(inner, recent), action, info

    def _begin(self, problem: Problem, x0: Float[Array, " d"], history: Float[Array, "H q"]) -> State:
        return self.agent.init(problem, Start(x0, history, self.period))


def _like(old: State, new: State) -> State:
    """The new state in the dtypes of the old one."""
    return jax.tree.map(lambda o, n: jnp.asarray(n, o.dtype), old, new)
