"""Advice for misses that cost more on one side: the discounted forecast, shifted by a regression on the cost itself.

With one weight u, x = rho x_{t-1} + (1 - rho) zhat is optimal but for the error of zhat (`online_ridge`). With two weights three
things change, and each has its own part here:

- How fast to follow: u = sqrt(short long), the weight for which zhat and rho are made.
- The present miss counts with its own weight w. In the problem of one weight the cost of an action is quadratic around the advice
  xbar, with curvature K = 2Q + u + S. So x - y = (xbar - y) K/(K + w - u), which leaves x on the side of y on which xbar is.
- Errors of the forecast, and misses to come, cost more on one side. So zhat is shifted by theta'g, with g a few features. Once
  the sides are known, actions are affine in theta and the cost of each step is quadratic: theta is the least-squares solution of
  two rows a step, w (x_t - y_t)^2 and 2Q (x_t - x_{t-1})^2, along the path that this rule would have taken by itself.

If actions are in force some steps after their contexts (`OnlineRidge.ahead`), the present miss is decided already: the second
part falls away, and x_t in the rows is the action that the rule had decided so many steps before.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecl2o.agents.advisors.constant_weight import weigh_equally
from ecl2o.agents.advisors.discounted_forecast import DiscountedForecast, RegressionState
from ecl2o.agents.advisors.features import make_waves
from ecl2o.agents.advisors.online_ridge import OnlineRidge
from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, check_fields
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_float, check_finite, check_positive
from ecl2o.solvers.recursive_least_squares import RecursiveLeastSquares
from ecl2o.theory import decay_root

_HARMONICS = 3  # of the hour, fewer if a period has fewer than 7 steps
_OUTLYING = 5.0  # root mean squares of the misses so far, at which a miss is cut off in the regression


class PathAction(eqx.Module):
    """An action of the rule's own path: `base` + size `slopes`'theta, `size` being that of usual changes."""

    base: Float[Array, "*n"]
    slopes: Float[Array, "*n k"]

    def at(self, theta: Float[Array, " k"], size: Float[Array, ""]) -> Float[Array, ""]:
        """Return the action for some theta."""
        return self.base + size * jnp.sum(self.slopes * theta)


class ShiftState(eqx.Module):
    """The memory of one coordinate: the last context, and the last action of the rule's own path.

    `power` is the mean square of changes of the first periods: features are in units of its root. `miss_power` is the mean
    square of misses on the path. `waiting` are actions that are not yet in force, the latest first.
    """

    context: Float[Array, ""]
    decided: PathAction
    power: Float[Array, ""]
    miss_power: Float[Array, ""]
    regression: RecursiveLeastSquares
    waiting: PathAction


class AsymmetricRidgeState(eqx.Module):
    """The regression's state, and the shift of each coordinate."""

    inner: RegressionState
    shifts: ShiftState


class AsymmetricRidge(AbstractAgent):
    """`OnlineRidge` for `AsymmetricTracking`: it also learns online, from the cost itself, how far to keep off the costly side.

    For a diagonal Q: coordinates are treated one by one. Units and origin do not matter. It learns from contexts only, so that
    history and steps teach the same, and begins when the regression inside has; until then it plays like R-OBD.

    Args:
        agent: the regression whose discounted forecast is shifted.
        ridge: the penalty on squared weights of the shift. Default: 1.

    Raises:
        ValueError: if the penalty is not positive.
        NotApplicableError: at the start of a run, if the hitting cost is another one.
    """

    agent: OnlineRidge
    ridge: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)

    def __check_init__(self):
        check_finite("ridge", self.ridge)
        check_positive("ridge", self.ridge)

    @property
    def _harmonics(self) -> int:
        return min(_HARMONICS, (self.agent.features.period - 1) // 2)

    def check(self, problem: Problem, start: Start) -> None:
        check_fields(self)
        self.agent.check(_usual_problem(problem), start)

    def init(self, problem: Problem, start: Start) -> AsymmetricRidgeState:
        count, zeros = 5 + 2 * self._harmonics, lambda *shape: jnp.zeros(shape, start.x0.dtype)
        empty = ShiftState(
            context=zeros(),
            decided=PathAction(zeros(), zeros(count)),
            power=zeros(),
            miss_power=zeros(),
            regression=RecursiveLeastSquares.empty(count, self.ridge, start.x0.dtype),
            waiting=PathAction(zeros(self.agent.ahead), zeros(self.agent.ahead, count)),
        )
        shifts = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (start.dim, *leaf.shape)), empty)
        unlearned = dataclasses.replace(start, history=start.history[:0], unseen=None)
        state = AsymmetricRidgeState(self.agent.init(_usual_problem(problem), unlearned), shifts)
        return start.fold_history(lambda s, context: self._observe(problem, s, context)[0], state)

    def step(self, problem: Problem, state: AsymmetricRidgeState, observation: Observation):
        state, target, forecast = self._observe(problem, state, observation.context)
        hitting, q = problem.hitting, jnp.diagonal(2 * problem.Q)
        rho, followed = decay_root(_usual_weight(hitting), q), hitting.centre(observation.context, len(q))
        action = rho * observation.previous_action + (1 - rho) * target
        if not self.agent.ahead:
            action = followed + _pull(hitting, q, action < followed)[1] * (action - followed)
        return state, action, Info(forecast.info.converged, None, {}, forecast.info)

    @eqx.filter_jit  # so that JAX traces it once, for pasts and runs of any length
    def _observe(
        self, problem: Problem, state: AsymmetricRidgeState, context: Float[Array, " q"]
    ) -> tuple[AsymmetricRidgeState, Float[Array, " d"], DiscountedForecast]:
        """Return the state after one more context, the shifted forecast, and the forecast."""
        hitting, seen = problem.hitting, state.inner.seen
        inner = self.agent.observe(_usual_problem(problem), state.inner, context)
        forecast = self.agent.predict(inner)
        counted = inner.modes.from_modes @ jax.vmap(self.agent.features.contexts)(inner.memory.features)[:, 0]
        advance = jax.vmap(self._advance, in_axes=(0, 0, 0, 0, 0, None, None))
        followed, q = hitting.centre(context, len(problem.Q)), jnp.diagonal(2 * problem.Q)
        shifts, target = advance(state.shifts, followed, counted, forecast.mean, q, hitting, seen)
        return AsymmetricRidgeState(inner, shifts), target, forecast

    def _advance(self, shift: ShiftState, present, y, zhat, q, hitting: Any, seen: Int[Array, ""]):
        """Advance one coordinate: shift the forecast as learned so far, then learn from what the step costs.

        `y` is the `present` context as the regression counts it.
        """
        features, ahead, usual = self.agent.features, self.agent.ahead, _usual_weight(hitting)
        since = seen - (features.needed + features.maturity)  # when forecasts differ from contexts
        power = shift.power + ((y - shift.context) ** 2 - shift.power) / jnp.maximum(seen, 1)
        power = jnp.where((seen > 0) & (seen <= features.needed), power, shift.power)
        learns = (since >= features.period) & (power > 0)
        size = jnp.sqrt(jnp.where(power > 0, power, 1.0))
        away, change = (zhat - y) / size, (y - shift.context) / size
        waves = make_waves(features.period, self._harmonics, y.dtype)[seen % features.period]
        others = jnp.stack([jnp.ones_like(y), away, change, jnp.abs(away), jnp.abs(change)])
        row = jnp.where(learns, jnp.concatenate([others, waves]), 0.0)

        theta, rho, last = shift.regression.weights, decay_root(usual, q), shift.decided
        before = PathAction(jnp.where(seen > 0, last.base, y), last.slopes)
        decided = jax.tree.map(lambda old, new: rho * old + (1 - rho) * new, before, PathAction(zhat, row))
        waiting = shift.waiting
        if ahead:
            in_force = PathAction(jnp.where(seen >= ahead, waiting.base[-1], y), waiting.slopes[-1])
            waiting = jax.tree.map(lambda new, old: jnp.concatenate([new[None], old[:-1]]), decided, waiting)
            weight = jnp.where(in_force.at(theta, size) < y, hitting.short, hitting.long)
        else:
            weight, gain = _pull(hitting, q, decided.at(theta, size) + present - y < present)
            decided = in_force = PathAction(y + gain * (decided.base - y), gain * decided.slopes)

        most = jnp.where(shift.miss_power > 0, _OUTLYING * jnp.sqrt(shift.miss_power), jnp.inf)

        def learn(regression, slopes, target, counted):
            residual = jnp.clip(target / size - jnp.sum(slopes * regression.weights), -most, most)
            return regression.with_row(slopes, residual, learns * counted / usual), residual

        regression, miss = learn(shift.regression, in_force.slopes, y - in_force.base, weight)
        remembered = jnp.clip(since - features.period + 1, 1, 20 * features.period)
        miss_power = jnp.where(learns, shift.miss_power + (miss**2 - shift.miss_power) / remembered, 0.0)
        regression, _ = learn(regression, decided.slopes - last.slopes, last.base - decided.base, q)
        return ShiftState(y, decided, power, miss_power, regression, waiting), zhat + size * jnp.sum(row * theta)


def _pull(hitting: Any, q: Float[Array, "*d"], is_short: Bool[Array, "*d"]):
    """Return the weight of the side of y on which xbar is, and (x - y)/(xbar - y)."""
    usual, weight = _usual_weight(hitting), jnp.where(is_short, hitting.short, hitting.long)
    stiffness = q / decay_root(usual, q)  # 2Q + u + S: with weight u now too, x = rho x_{t-1} + (1 - rho) zhat
    return weight, stiffness / (stiffness + weight - usual)


def _usual_weight(hitting: Any) -> Float[Array, ""]:
    return jnp.sqrt(hitting.short * hitting.long)


def _usual_problem(problem: Problem) -> Problem:
    """The same with one weight for both sides."""
    if not problem.hitting.is_two_sided:
        raise NotApplicableError(f"AsymmetricRidge is for AsymmetricTracking, got {type(problem.hitting).__name__}.")
    return weigh_equally(problem, _usual_weight(problem.hitting))
