"""A baseline as a reference: any agent on its own trajectory, and any costs.

The construction is that of RCL (Li, Yang, Wierman and Ren 2023), specialised to contexts that arrive on time. Where the curvature
of the hitting cost is bounded, it reserves less: what the future can still cost (proofs: docs/guarantees.md).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.agents.base import AbstractAgent, AnyProblem, Observation, Start
from ecl2o.agents.guards.account import accurate_cost
from ecl2o.agents.guards.level_sets import AbstractLevelSet, Action, ConvexSet, Form, Number, Origin, QuadraticSet
from ecl2o.agents.guards.references.base import (
    AbstractReference,
    AbstractReferenceStep,
    PromiseTerms,
    Settlement,
    name_reference,
)
from ecl2o.agents.guards.references.optimum import AbstractTrackingReference, Tracking
from ecl2o.agents.promise import Promise, Reference
from ecl2o.agents.wrappers import Independent, OwnTrajectory, PureML
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_optional_float, check_positive, concrete_value
from ecl2o.solvers.bounded_newton import minimize
from ecl2o.theory import future_stiffness, limit_stiffness


class BaselineStep(AbstractReferenceStep):
    """A step relative to a baseline: its action, its cost, and the reserve kappa/2 |x - b|^2_S, or kappa c(x, b) without an S."""

    problem: Problem
    context: Float[Array, " q"]
    previous: Action
    before: Action  # of the baseline
    action: Action
    kappa: Number
    S: Float[Array, "d d"] | None
    ratio: Number
    announced: Bool[Array, ""]
    found: Any
    rounding: Number
    trajectory: OwnTrajectory
    usable: Bool[Array, ""]
    growth: Number
    inside: Action  # of costs that are not quadratic, the action of least cost and reserve, or the baseline's

    @property
    def converged(self) -> Bool[Array, "*n"]:
        return self.found

    @property
    def origin(self) -> Origin:
        return Origin.at(self.action if self.problem.is_quadratic else jnp.zeros_like(self.action))

    @property
    def safest(self) -> Action | None:
        return self.when_lost if self.S is None else None

    @property
    def hold(self) -> Action:
        return self.before

    @property
    def when_lost(self) -> Action:
        return self.origin.away(self.action)

    def level_set(self, left: Number, origin: Origin | None = None) -> AbstractLevelSet:
        seen, dim = self.origin if origin is None else origin, len(self.action)
        hitting, level = self.problem.hitting, left + self.ratio * self.growth
        if self.problem.is_quadratic:
            G = 2 * self.problem.Q
            target, previous = seen.away(hitting.centre(self.context, dim)), seen.away(self.previous)
            reserve = Form(
                self.kappa * (G if self.S is None else self.S), None if origin is None else seen.away(self.action)
            )
            forms = (Form(hitting.curvature(self.context, dim), target), Form(G, previous), reserve)
            return QuadraticSet(forms, level, jnp.ones((), bool))
        return ConvexSet(_cost_and_reserve, self.known, level, self.inside, self.problem.m)

    @property
    def known(self) -> tuple:
        """What cost and reserve of an action depend on."""
        return self.problem, self.context, self.previous, self.action, self.kappa, self.S


def _cost_and_reserve(known, x: Action) -> Number:
    problem, context, previous, action, kappa, S = known
    cost = problem.hitting(x, context) + problem.switching(x, previous)
    return cost + (kappa * problem.switching(x, action) if S is None else Form(kappa * S, action)(x))


def _cost_and_reserve_at(x: Action, known) -> Number:
    return _cost_and_reserve(known, x)


class Baseline(AbstractTrackingReference):
    """An agent on its own trajectory, its actions projected on X.

    Args:
        agent: the agent; one whose action is not a number repeats its last, and the step counts as not converged.
        reservation: for quadratic movement, in (0, ratio - 1]. Default: ratio - 1, the largest that is valid for every f.
        tracking: the conditions of promises beside it.
        every_prefix: as in `Optimum`.
    """

    kind: ClassVar[str] = "baseline"

    agent: AbstractAgent
    reservation: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)
    tracking: Tracking = Tracking()
    every_prefix: bool | None = eqx.field(static=True, default=None)

    @property
    def known_as(self) -> str:
        return "Guarded" if self.every_prefix is None else "GuardedControl"

    @property
    def _own(self) -> Independent:
        return Independent(PureML(self.agent))

    @property
    def lookahead(self) -> int:
        return self.agent.lookahead

    def map_agent(self, function: Callable[[AbstractAgent], AbstractAgent]) -> "Baseline":
        return dataclasses.replace(self, agent=function(self.agent))

    def on(self, problem: AnyProblem) -> AbstractReference:
        from ecl2o.agents.guards.references.dynamics import DynamicBaseline

        if problem.game is None:
            return self
        every_prefix = problem.timing.shift > 0 if self.every_prefix is None else self.every_prefix
        return DynamicBaseline(self.agent, self.tracking, every_prefix)

    def describe(self, problem: Problem, terms: PromiseTerms, least: float | None) -> Promise:
        named = Reference.EXPERT, name_reference(self.agent)
        contexts = None if least is None else self.tracking.describe_contexts()
        numbers = float(terms.ratio), *named, float(terms.allowance), terms.period, contexts
        promise = Promise(*numbers, rolling=terms.rolling)
        return promise if least is None else self.tracking.within_limits(problem, promise, least)

    def check(self, problem: Problem, start: Start, ratios: list[Float[Array, ""]], several: bool) -> None:
        if several:
            self.tracking.check(problem, start, ratios, several, alone=False)
            return
        if problem.switching.is_distance:
            if self.reservation is not None:
                raise NotApplicableError("reservation is for quadratic movement; a distance needs none.")
            return
        for ratio in ratios:
            if (value := concrete_value(ratio)) is not None:
                check_positive("slack", value - 1)

    def prepare(self, problem: Problem, start: Start, several: bool) -> Float[Array, "n d d"] | None:
        if several:
            return self.tracking.stiffness(problem, start, several)
        greatest = problem.hitting.curvature_bounds(start.dim)[1]
        if greatest is None or not problem.switching.is_quadratic or problem.is_bounded:
            return None
        greatest, G = greatest.astype(start.x0.dtype), 2 * problem.Q
        ahead = future_stiffness(greatest, G, start.horizon or 1)[::-1]
        return jnp.concatenate([ahead, limit_stiffness(greatest, G)[None]])

    def feasible(self, problem: Problem, prepared, start: Start, ratios: Float[Array, " promises"], several: bool):
        if several:
            return self.tracking.feasible(problem, prepared, start, ratios, several)
        slack, instead = ratios - 1, jnp.full((), 2.0, start.x0.dtype)
        if problem.switching.is_distance:
            return (slack >= 0).all(), instead
        reserved = slack if self.reservation is None else self.reservation
        return ((reserved > 0) & (reserved <= slack)).all(), instead

    def init(self, problem: Problem, prepared, start: Start) -> OwnTrajectory:
        return self._own.init(problem, start)

    def restart(self, problem: Problem, prepared, state: OwnTrajectory, position: Action) -> OwnTrajectory:
        return dataclasses.replace(state, action=position, cost=jnp.zeros_like(state.cost))

    def observe(
        self, problem: Problem, prepared, state: OwnTrajectory, ratio, observation: Observation
    ) -> BaselineStep:
        previous, context, remaining = observation.previous_action, observation.context, observation.remaining
        trajectory, action, info = self._own.step(problem, state, observation)
        growth, rounding = accurate_cost(self.tracking.count(problem, len(action))[0], action, context, state.action)
        S, kappa = None, jnp.ones((), previous.dtype)
        if not problem.switching.is_distance:
            kappa = kappa + 1 / (ratio - 1 if self.reservation is None else self.reservation)
        if prepared is not None:
            last = len(prepared) - 1
            S = prepared[last if remaining is None or last == 0 else jnp.clip(remaining, 0, last)]
        elif remaining is not None:
            kappa = jnp.where(remaining == 0, 0.0, kappa)
        usable = jnp.isfinite(growth)
        announced = problem.actions.has_actions(len(previous))
        step = BaselineStep(
            problem,
            context,
            previous,
            state.action,
            action,
            kappa,
            S,
            ratio,
            announced,
            info.converged,
            rounding,
            trajectory,
            usable,
            growth,
            action,
        )
        if problem.is_quadratic or S is None:
            return step
        everywhere = problem.actions.bounds(len(action), action.dtype)
        lowest = minimize(_cost_and_reserve_at, action, step.known, *everywhere)
        return dataclasses.replace(step, inside=lowest.x, found=step.found & lowest.converged)

    def settle(
        self, problem: AnyProblem, term: Any, state, ratio, observation: Observation, action: Action
    ) -> Settlement:
        rounding = jnp.where(term.usable, term.rounding, 0.0)
        own = jax.tree.map(lambda new, old: jnp.where(term.usable, new, old), term.trajectory, state)
        return Settlement(own, term.growth, rounding, term.growth, *self.costs(problem, observation, action))
