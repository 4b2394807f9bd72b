"""Advice from outside behind a guard, beside what the advice alone costs; and the guard beside the advice, in shadow mode."""

import dataclasses

import equinox as eqx

from ecl2o.agents.advisors.from_context import FromContext, HoldStill
from ecl2o.agents.base import AbstractAgent, AnyProblem, Info, Observation, Start, State, pass_inside
from ecl2o.agents.promise import Promise
from ecl2o.agents.timed import follow_timing
from ecl2o.agents.wrappers import Independent, OwnTrajectory
from ecl2o.problem import Limited, Problem


class AdvisedState(eqx.Module):
    """The state of the agent, in shadow mode on its own trajectory, and the trajectory of the advice."""

    inner: State
    advice: OwnTrajectory


class Advised(AbstractAgent):
    """An agent that acts on advice from outside, with the cost of playing the advice alone.

    The advice alone is played as it is given, without limits, and the action in force is kept where it is missing. In shadow mode
    the advice is what is really played, and the agent runs beside it, on the trajectory that its own actions would have made.
    Nothing is promised then.

    Args:
        agent: the agent that plays, usually a guard around `FromContext`.
        advice: where the advice stands in a context.
        shadow: whether the advice is played, and the agent only reports. Default: False.

    `Info.details`: those of the agent, and `advice_cost`, the cost so far of the advice alone. In shadow mode `advice_cost`, and
    of the agent `shadow_action`, `shadow_cost`, `shadow_left` and `shadow_active`: what it would have played, paid and had left
    of its promise, and whether it would have changed the advice.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(covariates=1), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> advice = ec.advisors.FromContext()
    >>> run = ec.rollout(
    ...     ec.Advised(ec.Competitive(advice, ratio=2.0), advice), problem, ec.Instance([0.0], [[1.0, 9.0]])
    ... )
    >>> bool(run.cost < 2), float(run.info.details["advice_cost"][-1])
    (True, 437.0)
    """

    agent: AbstractAgent
    advice: FromContext
    shadow: bool = eqx.field(static=True, default=False)

    around_proposals = pass_inside

    def _advice_alone(self, problem: AnyProblem) -> tuple[Independent, AnyProblem]:
        """Return the agent that plays the advice, and the problem without a ramp and a spacing of actions."""
        alone = dataclasses.replace(self.advice, otherwise=HoldStill())
        if not isinstance(problem, Problem):
            return Independent(alone), problem
        limits = problem.actions
        plain = dataclasses.replace(problem, actions=limits.actions) if isinstance(limits, Limited) else problem
        return Independent(follow_timing(alone, plain)), plain

    def promise(self, problem: AnyProblem) -> Promise | None:
        return None if self.shadow else self.agent.promise(problem)

    def check(self, problem: AnyProblem, start: Start) -> None:
        self.agent.check(problem, start)
        alone, plain = self._advice_alone(problem)
        alone.agent.check(plain, start)

    def init(self, problem: AnyProblem, start: Start) -> AdvisedState:
        inner = (Independent(self.agent) if self.shadow else self.agent).init(problem, start)
        alone, plain = self._advice_alone(problem)
        return AdvisedState(inner, alone.init(plain, start))

    def step(self, problem: AnyProblem, state: AdvisedState, observation: Observation):
        alone, plain = self._advice_alone(problem)
        advice, given, played = alone.step(plain, state.advice, observation)
        cost = {"advice_cost": played.details["cost"]}
        if not self.shadow:
            inner, action, info = self.agent.step(problem, state.inner, observation)
            return AdvisedState(inner, advice), action, dataclasses.replace(info, details={**info.details, **cost})
        inner, action, info = Independent(self.agent).step(problem, state.inner, observation)
        assert info.inner is not None
        found = {"action": action, "cost": info.details["cost"]}
        found |= {name: info.inner.details[name] for name in ("left", "active") if name in info.inner.details}
        details = cost | {f"shadow_{name}": figure for name, figure in found.items()}
        return AdvisedState(inner, advice), given, Info(info.converged, given, details, info.inner)
