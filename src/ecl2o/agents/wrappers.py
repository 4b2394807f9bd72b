"""Wrappers that play another agent's actions: as they are, or on a trajectory of its own."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.problem import Problem


class PureML(AbstractAgent):
    """Play the advisor's advice, projected on the action set: the paper's standalone ML optimizer (section 3).

    Args:
        advisor: whose advice is played.
    """

    advisor: AbstractAgent

    def is_linear(self, problem: Problem) -> bool:
        return not problem.is_bounded and self.advisor.is_linear(problem)

    def init(self, problem: Problem, start: Start) -> State:
        return self.advisor.init(problem, start)

    def step(self, problem: Problem, state: State, observation: Observation):
        state, proposed, inner = self.advisor.step(problem, state, observation)
        advice = problem.actions.project(proposed)
        return state, advice, Info(inner.converged, advice=advice, inner=inner)


class OwnTrajectory(eqx.Module):
    """Where an agent would be, and what it would have paid, had it been left alone."""

    inner: State
    action: Float[Array, " d"]
    cost: Float[Array, ""]


class Independent(AbstractAgent):
    """Run an agent on its own trajectory and its own bill, whatever is really played.

    The expert of a guard, the two legs of Switch, and the standalone roll-out of a loss (erratum E23). `Info.details` has
    `cost`, its bill so far including this step, and `step_cost`.

    Args:
        agent: who is left to itself.
    """

    agent: AbstractAgent

    def is_linear(self, problem: Problem) -> bool:
        return self.agent.is_linear(problem)

    def init(self, problem: Problem, start: Start) -> OwnTrajectory:
        return OwnTrajectory(self.agent.init(problem, start), start.x0, jnp.zeros((), start.x0.dtype))

    def step(self, problem: Problem, state: OwnTrajectory, observation: Observation):
        alone = eqx.tree_at(lambda o: o.previous_action, observation, state.action)
        inner_state, action, inner = self.agent.step(problem, state.inner, alone)
        step_cost = problem.hitting(action, observation.context) + problem.switching(action, state.action)
        cost = state.cost + step_cost
        info = Info(inner.converged, inner.advice, {"cost": cost, "step_cost": step_cost}, inner)
        return OwnTrajectory(inner_state, action, cost), action, info
