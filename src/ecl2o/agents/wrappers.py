"""Wrappers that play another agent's actions: as they are, or on a trajectory of its own."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State, pass_inside
from ecl2o.problem import ControlProblem, Problem, Total


class PureML(AbstractAgent):
    """The agent that plays advice, projected on the action set: the paper's standalone ML optimizer (section 3).

    Where advice has no projection (NaN, or infinite without a bound in its way) the previous action is repeated, and the step
    counts as not converged. On a `ControlProblem` that is the action closest to 0.

    Args:
        advisor: the agent whose actions are taken as advice.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=1), ec.Box(0.0, 2.0))
    >>> ec.rollout(PureML(ec.advisors.Fixed([[3.0]])), problem, ec.Instance([0.0], [[1.0]])).actions.tolist()
    [[2.0]]
    """

    advisor: AbstractAgent

    def is_linear(self, problem: Problem | ControlProblem) -> bool:
        return not problem.is_bounded and self.advisor.is_linear(problem)

    def init(self, problem: Problem | ControlProblem, start: Start) -> State:
        return self.advisor.init(problem, start)

    def step(self, problem: Problem | ControlProblem, state: State, observation: Observation):
        state, proposed, inner = self.advisor.step(problem, state, observation)
        last = jnp.zeros_like(proposed) if isinstance(problem, ControlProblem) else observation.previous_action
        advice = problem.actions.project(proposed)
        usable = jnp.isfinite(advice).all()
        if isinstance(problem.actions, Total):  # of infinite numbers no sum is known
            usable &= jnp.isfinite(proposed).all()
        advice = jnp.where(usable, advice, problem.actions.project(last))
        return state, advice, Info(inner.converged & usable, advice=advice, inner=inner)


class OwnTrajectory(eqx.Module):
    """The state, last action (the state of a `ControlProblem`) and cost so far of an agent on its own trajectory."""

    inner: State
    action: Float[Array, " d"]
    cost: Float[Array, ""]


class Independent(AbstractAgent):
    """An agent on its own trajectory with its own cost, whatever is really played.

    The expert of a guard, the two legs of Switch, and the standalone roll-out of a loss (erratum E23). `Info.details` has
    `cost`, its cost so far including this step, and `step_cost`.

    Args:
        agent: the agent that sees its own previous action instead of the played one.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=1))
    >>> run = ec.rollout(Independent(ec.Greedy()), problem, ec.Instance([0.0], [[1.0], [1.0]]))
    >>> bool(run.info.details["cost"][-1] == run.cost)
    True
    """

    agent: AbstractAgent

    around_proposals = pass_inside

    def is_linear(self, problem: Problem | ControlProblem) -> bool:
        return self.agent.is_linear(problem)

    def init(self, problem: Problem | ControlProblem, start: Start) -> OwnTrajectory:
        return OwnTrajectory(self.agent.init(problem, start), start.x0, jnp.zeros((), start.x0.dtype))

    def step(self, problem: Problem | ControlProblem, state: OwnTrajectory, observation: Observation):
        alone = dataclasses.replace(observation.with_lookahead(self.lookahead), previous_action=state.action)
        inner_state, action, inner = self.agent.step(problem, state.inner, alone)
        action = problem.limit(state.action, action)
        step_cost = sum(problem.step_costs(state.action, action, observation.context, observation.step))
        cost = state.cost + step_cost
        info = Info(inner.converged, inner.advice, {"cost": cost, "step_cost": step_cost}, inner)
        position = problem.next_state(state.action, action, observation.context, observation.step)
        return OwnTrajectory(inner_state, position, cost), action, info
