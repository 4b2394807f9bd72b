"""Wrappers that make any agent obey a ramp limit, or play multiples of a spacing."""

import abc
import dataclasses

import equinox as eqx
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State, check_fields, pass_inside
from ecl2o.agents.promise import Promise
from ecl2o.problem import Limited, Problem
from ecl2o.problem.arrays import as_float, check_finite, check_positive


class AbstractLimiter(AbstractAgent):
    """An agent on a problem with limits on its actions, which are obeyed whatever it proposes.

    The agent inside sees the limits: planners plan with them, and a guard promises for what is played.
    """

    agent: eqx.AbstractVar[AbstractAgent]

    around_proposals = pass_inside

    @abc.abstractmethod
    def limit_actions(self, problem: Problem) -> Limited:
        """Return the action set of the problem with the limits."""

    def _limited(self, problem: Problem) -> Problem:
        return dataclasses.replace(problem, actions=self.limit_actions(problem))

    def promise(self, problem: Problem) -> Promise | None:
        return self.agent.promise(self._limited(problem))

    def check(self, problem: Problem, start: Start) -> None:
        check_fields(self)
        self.agent.check(self._limited(problem), start)

    def init(self, problem: Problem, start: Start) -> State:
        return self.agent.init(self._limited(problem), start)

    def step(self, problem: Problem, state: State, observation: Observation):
        problem = self._limited(problem)
        state, proposed, inner = self.agent.step(problem, state, observation)
        action = problem.limit(observation.previous_action, proposed)
        return state, action, Info(inner.converged, proposed, inner.details, inner)


class RampLimited(AbstractLimiter):
    """An agent whose actions change by at most `limit` in a step, in each coordinate.

    Another action is replaced by the nearest one that can be reached; NaN by the previous action. The promise of a guard
    inside holds for the actions that are played: see `Competitive` for what a ramp leaves of it.

    Args:
        agent: the agent whose actions are limited.
        limit: the greatest change, positive, in units of actions: one number, or (d,).

    Raises:
        ValueError: if the limit is not positive and finite.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=1))
    >>> day = ec.Instance([0.0], [[8.0], [8.0]])
    >>> ec.rollout(RampLimited(ec.Greedy(), 3.0), problem, day).actions.ravel().tolist()
    [3.0, 5.5]
    """

    agent: AbstractAgent
    limit: Float[Array, "*d"] = eqx.field(converter=as_float)

    def __check_init__(self):
        check_finite("limit", self.limit)
        check_positive("limit", self.limit)

    def limit_actions(self, problem: Problem) -> Limited:
        return Limited.of(problem.actions, ramp=self.limit)


class Rounded(AbstractLimiter):
    """An agent whose actions are multiples of `spacing`: whole numbers, by default.

    Another action is replaced by the nearest multiple within the bounds of actions. A guard inside rounds by itself, so that
    its promise holds for the rounded actions (`Competitive`).

    Args:
        agent: the agent whose actions are rounded.
        spacing: the distance between neighbouring actions, positive: one number, or (d,). Default: 1.

    Raises:
        ValueError: if the spacing is not positive and finite.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=1))
    >>> day = ec.Instance([0.0], [[5.2], [5.2]])
    >>> ec.rollout(Rounded(ec.Greedy()), problem, day).actions.ravel().tolist()
    [3.0, 4.0]
    """

    agent: AbstractAgent
    spacing: Float[Array, "*d"] = eqx.field(converter=as_float, default=1.0)

    def __check_init__(self):
        check_finite("spacing", self.spacing)
        check_positive("spacing", self.spacing)

    def limit_actions(self, problem: Problem) -> Limited:
        return Limited.of(problem.actions, spacing=self.spacing)
