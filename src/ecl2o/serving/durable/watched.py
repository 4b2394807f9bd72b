"""An agent with the references that a bill is read against, worked out beside it, step by step."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents import ROBD, AbstractAgent, Independent, Info, Observation, Start
from ecl2o.agents.base import State
from ecl2o.agents.combined import OwnTrajectory
from ecl2o.planning.work_function import WorkFunction, hitting_form
from ecl2o.problem import AbstractQuadraticCost, Mahalanobis, Problem


class Report(NamedTuple):
    """The figures of a step, in this order in the vector that a program gives back; NaN where nobody knows them.

    cost, optimum and expert are bills of the whole run so far: what was paid, the least in hindsight, R-OBD's. The rest is the
    guard's account of the promise's current period.
    """

    cost: float
    optimum: float
    expert: float
    account_cost: float
    account_reference: float
    left: float
    active: float
    kept: float


class WatchedState(eqx.Module):
    """The agent's own state, the bill so far, the work function with its optimum, and where R-OBD would be."""

    inner: State
    cost: Float[Array, ""]
    optimum: Float[Array, ""]
    work: WorkFunction | None
    expert: OwnTrajectory | None


class Watched(AbstractAgent):
    """Plays what its agent plays, to the last bit, and reports a `Report` in `Info.details["report"]`.

    The optimum is known for quadratic costs without bounds, R-OBD's bill wherever R-OBD can act.
    """

    agent: AbstractAgent
    with_expert: bool = eqx.field(static=True, default=True)

    @property
    def lookahead(self) -> int:
        return self.agent.lookahead

    def init(self, problem: Problem, start: Start) -> WatchedState:
        zero = jnp.zeros((), start.x0.dtype)
        work = WorkFunction.at(start.x0, 2 * problem.Q) if _has_work_function(problem) else None
        expert = Independent(ROBD()).init(problem, start) if self.with_expert else None
        return WatchedState(self.agent.init(problem, start), zero, zero, work, expert)

    def step(self, problem: Problem, state: WatchedState, observation: Observation):
        inner, action, info = self.agent.step(problem, state.inner, observation)
        previous, context = observation.previous_action, observation.context
        cost = state.cost + problem.hitting(action, context) + problem.switching(action, previous)
        unknown = jnp.full((), jnp.nan, cost.dtype)
        work, optimum, expert_cost, expert = None, state.optimum, unknown, None
        if state.work is not None:
            prefix = state.work.with_context(*hitting_form(problem, context, previous.shape[0]))
            work, optimum = prefix.moved(2 * problem.Q), state.optimum + prefix.growth
        if state.expert is not None:
            expert, _, its = Independent(ROBD()).step(problem, state.expert, observation)
            expert_cost = its.details["cost"]
        said = info.details if "left" in info.details else {}
        known = {
            "cost": cost,
            "optimum": unknown if work is None else optimum,
            "expert": expert_cost,
            "account_cost": said.get("cost", unknown),
            "account_reference": said.get("optimum", said.get("expert_cost", unknown)),
            **{name: said.get(name, unknown) for name in ("left", "active", "kept")},
        }
        figures = jnp.stack([jnp.asarray(known[name], cost.dtype) for name in Report._fields])
        details = {**info.details, "report": figures}
        return (
            WatchedState(inner, cost, optimum, work, expert),
            action,
            Info(info.converged, info.advice, details, info.inner),
        )


def _has_work_function(problem: Problem) -> bool:
    quadratic = isinstance(problem.hitting, AbstractQuadraticCost) and isinstance(problem.switching, Mahalanobis)
    return quadratic and not problem.is_bounded
