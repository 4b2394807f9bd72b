"""Guards relative to an expert: any agent, any costs, and a bill that stays within a factor of the expert's.

The construction is that of RCL (Li, Yang, Wierman and Ren 2023), specialised to contexts that arrive on time; proofs in
docs/guarantees.md.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.agents.calibrated import ROBD
from ecl2o.agents.combined import Independent, OwnTrajectory, PureML
from ecl2o.agents.guards.allowance import Allowance, move_inside, ratio_of_bills
from ecl2o.problem import Problem
from ecl2o.problem.arrays import (
    as_float,
    as_optional_float,
    known,
    refuse_if_negative,
    refuse_unless_finite,
    refuse_unless_positive,
)


def _seen_by(agent: AbstractAgent, observation: Observation) -> Observation:
    """The observation with the forecasts that this agent asked for; a wrapper may have asked for more."""
    window = agent.lookahead
    forecast = None if observation.forecast is None or window == 0 else observation.forecast[:window]
    return Observation(
        observation.context, observation.previous_action, observation.step, observation.remaining, forecast
    )


def _on_its_own(expert: AbstractAgent) -> Independent:
    """The expert on its own trajectory and bill, its actions projected on X, which some agents leave."""
    return Independent(PureML(expert))


class GuardedState(eqx.Module):
    """The wrapped agent's state, the expert's trajectory, and what was paid so far."""

    inner: State
    expert: OwnTrajectory
    cost: Float[Array, ""]


class Guarded(AbstractAgent):
    """Play an agent's actions as far as this promise allows: cost <= (1 + slack) * cost of the expert, at every step.

    It holds for any agent (NaN and infinite actions included), any hitting costs f >= 0, any contexts and any box. The expert
    runs on its own trajectory, its actions projected on X. A step may use what the expert's bill leaves, except a reservation
    for the way back to the expert: with kappa = 1 + 1/reservation,

        C_{t-1} + f(x, y_t) + c(x, x_{t-1}) + kappa c(x, x^expert_t) <= (1 + slack) C^expert_t.

    The expert's own action always fits. `reservation` = slack, the default, is the least conservative valid choice; for training
    `theory.training_reservation(slack)` keeps the set from collapsing. At the last step of a known horizon nothing is reserved.
    An action that does not fit is replaced by the nearest one that does where costs are quadratic (without bounds, or d = 1),
    else by the last one that does on the way from the expert's action.

    `Info.details`: `cost` and `expert_cost` so far, their quotient `expert_ratio`, and whether the guard was `active`.

    >>> import jax.numpy as jnp
    >>> from ecl2o.agents.advisors import Fixed
    >>> float(Guarded(Fixed([[1e6]]), slack=0.25).slack)
    0.25
    """

    agent: AbstractAgent
    expert: AbstractAgent = eqx.field(default_factory=ROBD)
    slack: Float[Array, ""] = eqx.field(converter=as_float, default=0.5)
    reservation: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)

    def __check_init__(self):
        refuse_unless_finite("slack", self.slack)
        refuse_unless_positive("slack", self.slack)
        if self.reservation is None:
            return
        refuse_unless_positive("reservation", self.reservation)
        reserved, slack = known(self.reservation), known(self.slack)
        if reserved is not None and slack is not None and (reserved > slack).any():
            raise ValueError(
                f"reservation must not exceed slack, or the promise breaks; got reservation {reserved} and slack {slack}."
            )

    @property
    def lookahead(self) -> int:
        return max(self.agent.lookahead, self.expert.lookahead)

    def init(self, problem: Problem, start: Start) -> GuardedState:
        _ = problem.quadratic_movement  # the reservation is the triangle inequality of squared distances
        expert = _on_its_own(self.expert).init(problem, start)
        return GuardedState(self.agent.init(problem, start), expert, jnp.zeros((), start.x0.dtype))

    def step(self, problem: Problem, state: GuardedState, observation: Observation):
        previous, context = observation.previous_action, observation.context
        expert = _on_its_own(self.expert)
        expert_state, fallback, expert_info = expert.step(problem, state.expert, _seen_by(expert, observation))
        inner_state, advice, inner = self.agent.step(problem, state.inner, _seen_by(self.agent, observation))

        one = jnp.ones((), previous.dtype)
        kappa = 1 + 1 / (self.slack if self.reservation is None else self.reservation)
        if observation.remaining is not None:
            kappa = jnp.where(observation.remaining == 0, 0.0, kappa)
        budget = (1 + self.slack) * expert_state.cost - state.cost
        allowance = Allowance(context, previous, fallback, one, kappa * one, budget)
        action, active = move_inside(problem, allowance, advice)

        cost = state.cost + problem.hitting(action, context) + problem.switching(action, previous)
        details = {
            "cost": cost,
            "expert_cost": expert_state.cost,
            "expert_ratio": ratio_of_bills(cost, expert_state.cost),
            "active": active,
        }
        info = Info(inner.converged & expert_info.converged, advice, details, inner)
        return GuardedState(inner_state, expert_state, cost), action, info


class ClippedState(eqx.Module):
    """The advisor's state and the expert's trajectory; no budget is carried."""

    inner: State
    expert: OwnTrajectory


class ClippedAdvice(AbstractAgent):
    """Advice made harmless for MLA-ROBD, step by step: moved into {x: f(x, y_t) <= (1 + delta) * what the expert pays at t}.

    `MLAROBD(ClippedAdvice(advisor))` has a finite ratio whatever the advisor: the prediction error of the clipped advice is at
    most `theory.clipped_prediction_error`, to which Theorem 4.1 applies. An answer to the paper's open question that carries no
    budget; `Guarded` promises more. Advice that is NaN or infinite becomes the expert's action.
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
        return ClippedState(self.advisor.init(problem, start), _on_its_own(self.expert).init(problem, start))

    def step(self, problem: Problem, state: ClippedState, observation: Observation):
        expert = _on_its_own(self.expert)
        expert_state, fallback, expert_info = expert.step(problem, state.expert, _seen_by(expert, observation))
        inner_state, proposed, inner = self.advisor.step(problem, state.inner, _seen_by(self.advisor, observation))
        budget = (1 + self.delta) * expert_info.details["step_cost"]
        nothing = jnp.zeros_like(budget)
        allowance = Allowance(observation.context, observation.previous_action, fallback, nothing, nothing, budget)
        advice, active = move_inside(problem, allowance, proposed)
        info = Info(inner.converged & expert_info.converged, proposed, {"active": active}, inner)
        return ClippedState(inner_state, expert_state), advice, info
