"""Promises for each day in one long run: the guard's account begins anew, the memory of the agent inside stays."""

import equinox as eqx
import jax
import jax.numpy as jnp

from ecl2o.agents.base import AbstractAgent, Observation, Start, State
from ecl2o.agents.guards.competitive import Competitive
from ecl2o.agents.guards.guarded import Guarded
from ecl2o.problem import Problem
from ecl2o.problem.arrays import refuse_unless_count


class Renewed(AbstractAgent):
    """A guard whose promise begins anew every `period` steps, from the action last played.

    Each period is promised by itself: bill, optimum and the guard's expert start again where the run stands (re-anchored
    together, erratum E22), and the guard is told how much of the period is left. The agent inside is not restarted, so that one
    that learns while it runs goes on learning; `Restarting` restarts it too. What is inside sees the period's clock:
    `Observation.step` counts from 0 in every period. Step 0 of the run begins a period.
    """

    guard: Competitive | Guarded
    period: int = eqx.field(static=True, default=24)

    def __check_init__(self):
        if not isinstance(self.guard, Competitive | Guarded):
            raise TypeError(f"guard must be Competitive or Guarded, got {type(self.guard).__name__}.")
        refuse_unless_count("period", self.period)

    @property
    def lookahead(self) -> int:
        return self.guard.lookahead

    def init(self, problem: Problem, start: Start) -> State:
        return self.guard.init(problem, Start(start.x0, start.history, self.period))

    def step(self, problem: Problem, state: State, observation: Observation):
        phase, previous = observation.step % self.period, observation.previous_action
        nothing = jnp.zeros((0, observation.context.shape[0]), observation.context.dtype)

        def renewed():
            fresh = self.guard.init(problem, Start(previous, nothing, self.period))
            fresh = eqx.tree_at(lambda s: s.inner, fresh, state.inner, is_leaf=lambda node: node is None)
            return jax.tree.map(lambda old, new: jnp.asarray(new, old.dtype), state, fresh)

        state = jax.lax.cond((phase == 0) & (observation.step > 0), renewed, lambda: state)
        left = self.period - 1 - phase
        if observation.remaining is not None:
            left = jnp.minimum(left, observation.remaining)
        seen = Observation(observation.context, previous, phase, left, observation.forecast)
        return self.guard.step(problem, state, seen)
