"""A small trained correction of advice for a guard, by the hour and the account of the period."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.agents.advisors.discounted_forecast import DiscountedForecast
from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State, Trainable
from ecl2o.planning.work_function import WorkFunction, quadratic_terms
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_float, check_count, check_finite, safe_sqrt

HARMONICS = 7  # 1, and cosine and sine of the first three
FEATURES = 10


class CorrectionWeights(Trainable):
    """One weight for each hour harmonic and feature."""

    weight: Float[Array, "h f"]


class PeriodSoFar(eqx.Module):
    """The account of a period: its first action, the optimum of its contexts so far and where that is, and the cost.

    Work function and optimum are those that `Competitive` keeps; the cost covers the steps before this one.
    """

    anchor: Float[Array, " d"]
    work: WorkFunction
    optimum: Float[Array, ""]
    cost: Float[Array, ""]

    @classmethod
    def open(cls, G: Float[Array, "d d"], x0: Float[Array, " d"]) -> "PeriodSoFar":
        """Return the account of a period that starts at x0."""
        zero = jnp.zeros((), x0.dtype)
        return cls(x0, WorkFunction.from_start(x0, G), zero, zero)

    def with_context(self, problem: Problem, context: Float[Array, " q"]) -> "PeriodSoFar":
        """Return the account with one more context."""
        prefix = self.work.with_context(*quadratic_terms(problem, context, self.anchor.shape[0]))
        return PeriodSoFar(self.anchor, prefix.after_move(2 * problem.Q), self.optimum + prefix.growth, self.cost)


class GuardAwareCorrectionState(eqx.Module):
    """The advisor's state, the account of the period, and the last step, whose cost is known once its action was played."""

    inner: State
    so_far: PeriodSoFar
    last_context: Float[Array, " q"]
    last_previous: Float[Array, " d"]


class GuardAwareCorrection(AbstractAgent):
    """An advisor's advice plus 0.1 * (7 harmonics of the hour x 10 features of degree one) with 70 weights.

    Advice that is best alone is not best behind a guard: what the guard cuts off costs later, and a promise may have slack left.

    The features are differences and square roots of costs, so that units and origin do not matter: the previous action, the
    period's first one, the context and the centre of the work function, all less the advice; the roots of cost and optimum
    since the period began; the centre once more, times the share of the cost in both; and the advisor's three signals. The same
    weights serve every coordinate. All start at zero, where the advice is the advisor's.

    Step 0 of `Observation.step` starts the account of a promise, as it does inside `Periodic`; hours are `Observation.place`
    modulo `period`, the length of a day.

    Args:
        advisor: whose `Info.details` has a `DiscountedForecast`, such as `OnlineRidge` or a `Mixture` of some.
        period: steps in a day. Default: 24.
        scale: factor of the correction. Default: 0.1.

    >>> from ecl2o.agents.advisors import OnlineRidge
    >>> GuardAwareCorrection(OnlineRidge()).weights.weight.shape
    (7, 10)
    """

    advisor: AbstractAgent
    weights: CorrectionWeights
    scale: Float[Array, ""]
    period: int = eqx.field(static=True)

    def __init__(self, advisor: AbstractAgent, period: int = 24, scale: float = 0.1):
        self.advisor = advisor
        self.weights = CorrectionWeights(as_float(np.zeros((HARMONICS, FEATURES))))
        self.scale = as_float(scale)
        self.period = period

    def __check_init__(self):
        check_finite("scale", self.scale)
        check_count("period", self.period)

    def init(self, problem: Problem, start: Start) -> GuardAwareCorrectionState:
        inner = self.advisor.init(problem, start)  # rejects costs other than constant quadratics
        context = jnp.zeros((start.history.shape[1],), start.x0.dtype)
        return GuardAwareCorrectionState(inner, PeriodSoFar.open(2 * problem.Q, start.x0), context, start.x0)

    def step(self, problem: Problem, state: GuardAwareCorrectionState, observation: Observation):
        inner_state, advice, inner = self.advisor.step(problem, state.inner, observation)
        previous, context = observation.previous_action, observation.context
        phase = observation.place % self.period

        paid = problem.hitting(previous, state.last_context) + problem.switching(previous, state.last_previous)
        going_on = dataclasses.replace(state.so_far, cost=state.so_far.cost + paid)
        restarted = PeriodSoFar.open(2 * problem.Q, previous)
        so_far = jax.tree.map(lambda new, old: jnp.where(observation.step == 0, new, old), restarted, going_on)
        target = problem.hitting.centre(context, previous.shape[0])
        so_far = so_far.with_context(problem, context)

        features = _features(problem, so_far, previous, target, advice, inner.details["discounted_forecast"])
        hourly = _harmonics(phase, self.period, previous.dtype) @ self.weights.weight
        # A matrix product would round differently by place in a batch.
        correction = self.scale * jnp.sum(hourly[:, None] * features, axis=0)
        after = GuardAwareCorrectionState(inner_state, so_far, context, previous)
        return after, advice + correction, Info(inner.converged, advice, {"correction": correction}, inner)


def _features(
    problem: Problem, so_far: PeriodSoFar, previous, target, advice: Float[Array, " d"], forecast: DiscountedForecast
) -> Float[Array, "f d"]:
    cost, optimum = so_far.cost / problem.m, so_far.optimum / problem.m
    total = cost + optimum
    share = jnp.where(total > 0, cost / jnp.where(total > 0, total, 1.0), 0.0)
    from_advice = jnp.stack([previous, so_far.work.centre, target, so_far.anchor]) - advice
    roots = jnp.stack([safe_sqrt(cost), safe_sqrt(optimum)])[:, None] * jnp.ones_like(advice)
    return jnp.concatenate([from_advice, roots, share * from_advice[1:2], forecast.signals])


def _harmonics(phase: Array, period: int, dtype) -> Float[Array, " h"]:
    angle = (2 * jnp.pi / period) * phase.astype(dtype) * jnp.arange(1, HARMONICS // 2 + 1, dtype=dtype)
    return jnp.concatenate([jnp.ones((1,), dtype), jnp.cos(angle), jnp.sin(angle)])
