"""Advice made harmless for MLA-ROBD, step by step, without an account."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.agents.calibrated import ROBD
from ecl2o.agents.combined import OwnTrajectory
from ecl2o.agents.guards.allowance import Allowance, move_inside
from ecl2o.agents.guards.experts import on_its_own, seen_by
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_float, refuse_if_negative, refuse_unless_finite


class ClippedState(eqx.Module):
    """The advisor's state and the expert's trajectory; no budget is carried."""

    inner: State
    expert: OwnTrajectory


class ClippedAdvice(AbstractAgent):
    """Advice made harmless for MLA-ROBD, step by step: moved into {x: f(x, y_t) <= (1 + delta) * what the expert pays at t}.

    `MLAROBD(ClippedAdvice(advisor))` has a finite ratio whatever the advisor: the prediction error of the clipped advice is at
    most `theory.clipped_prediction_error`, to which Theorem 4.1 applies. An answer to the paper's open question that carries no
    budget; `Guarded` promises more. Advice that is NaN or infinite becomes the expert's action.

    Args:
        advisor: whose advice is clipped.
        expert: what a step may cost is measured by. Default: `ROBD()`, on its own trajectory.
        delta: what the advice may cost more than the expert, as a share; not negative. Default: 0.5.
    """

    advisor: AbstractAgent
    expert: AbstractAgent = eqx.field(default_factory=ROBD)
    delta: Float[Array, ""] = eqx.field(converter=as_float, default=0.5)

    def __check_init__(self):
        refuse_unless_finite("delta", self.delta)
        refuse_if_negative("delta", self.delta)

    @property
    def lookahead(self) -> int:
        return max(self.advisor.lookahead, self.expert.lookahead)

    def init(self, problem: Problem, start: Start) -> ClippedState:
        return ClippedState(self.advisor.init(problem, start), on_its_own(self.expert).init(problem, start))

    def step(self, problem: Problem, state: ClippedState, observation: Observation):
        expert = on_its_own(self.expert)
        expert_state, fallback, expert_info = expert.step(problem, state.expert, seen_by(expert, observation))
        inner_state, proposed, inner = self.advisor.step(problem, state.inner, seen_by(self.advisor, observation))
        budget = (1 + self.delta) * expert_info.details["step_cost"]
        nothing = jnp.zeros_like(budget)
        allowance = Allowance(observation.context, observation.previous_action, fallback, nothing, nothing, budget)
        advice, active = move_inside(problem, allowance, proposed)
        info = Info(inner.converged & expert_info.converged, proposed, {"active": active}, inner)
        return ClippedState(inner_state, expert_state), advice, info
