"""Advice that is bounded step by step, for MLA-ROBD."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.agents.calibrator import ROBD
from ecl2o.agents.guards.level_sets import AbstractLevelSet, ConvexSet, Form, Origin, QuadraticSet, pull_inside
from ecl2o.agents.wrappers import Independent, OwnTrajectory, PureML
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_float, check_finite, check_nonnegative


class ClippedState(eqx.Module):
    """The advisor's state and the expert's trajectory; no budget is carried."""

    inner: State
    expert: OwnTrajectory


class ClippedAdvice(AbstractAgent):
    """An advisor whose advice is moved into {x: f(x, y_t) <= (1 + delta) * the expert's cost of step t}, for MLA-ROBD.

    `MLAROBD(ClippedAdvice(advisor))` has a finite ratio whatever the advisor: the prediction error of the clipped advice is at
    most `theory.clipped_prediction_error`, to which Theorem 4.1 applies. It answers the paper's open question without carrying a
    budget; `Guarded` promises more. Advice that is NaN or infinite becomes the expert's action.

    Args:
        advisor: the agent whose actions are taken as advice.
        expert: the agent whose step costs are the measure, on its own trajectory. Default: `ROBD()`.
        delta: extra hitting cost of the advice, as a share of the expert's cost; 0 or more. Default: 0.5.

    Raises:
        ValueError: if delta is negative or not finite.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> agent = ec.MLAROBD(ClippedAdvice(ec.advisors.Fixed([[1e6]])))
    >>> bool(ec.rollout(agent, problem, ec.Instance([0.0], [[1.0]])).actions[0, 0] < 2)
    True
    """

    advisor: AbstractAgent
    expert: AbstractAgent = eqx.field(default_factory=ROBD)
    delta: Float[Array, ""] = eqx.field(converter=as_float, default=0.5)

    def __check_init__(self):
        check_finite("delta", self.delta)
        check_nonnegative("delta", self.delta)

    @property
    def _own(self) -> Independent:
        return Independent(PureML(self.expert))

    def init(self, problem: Problem, start: Start) -> ClippedState:
        return ClippedState(self.advisor.init(problem, start), self._own.init(problem, start))

    def step(self, problem: Problem, state: ClippedState, observation: Observation):
        expert, fallback, expert_info = self._own.step(problem, state.expert, observation)
        seen = observation.with_lookahead(self.advisor.lookahead)
        inner_state, proposed, inner = self.advisor.step(problem, state.inner, seen)
        allowed = _allowed(problem, observation, fallback, (1 + self.delta) * expert_info.details["step_cost"])
        target = problem.actions.project(proposed)
        origin = Origin.at(fallback)
        pulled = pull_inside(allowed, jnp.zeros_like(fallback), origin.away(target), origin.rounding)
        advice = jnp.where(pulled.active, problem.actions.project(origin.back(pulled.action)), target)
        info = Info(inner.converged & expert_info.converged, proposed, {"active": pulled.active}, inner)
        return ClippedState(inner_state, expert), advice, info


def _allowed(problem: Problem, observation: Observation, fallback, budget) -> AbstractLevelSet:
    """Return the actions, less the fallback, whose hitting cost is within the budget."""
    hitting, context, dim = problem.hitting, observation.context, len(fallback)
    if hitting.is_quadratic:
        form = Form(hitting.curvature(context, dim), hitting.centre(context, dim) - fallback)
        return QuadraticSet((form,), budget, jnp.ones((), bool))
    known = hitting, context, fallback
    return ConvexSet(_hitting_at, known, budget, jnp.zeros_like(fallback), hitting.strong_convexity)


def _hitting_at(known, away):
    hitting, context, fallback = known
    return hitting(fallback + away, context)
