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

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ecl2o.agents.advisors.online_ridge import ContextRange, OnlineRidge, OnlineRidgeState
from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, check_fields
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import AsymmetricTracking, Problem, SquaredTracking
from ecl2o.problem.arrays import as_float, check_finite, check_positive
from ecl2o.solvers.recursive_least_squares import RecursiveLeastSquares
from ecl2o.theory import decay_root

_HARMONICS = 3  # of the hour, fewer if a period has fewer than 7 steps
_OUTLYING = 5.0  # root mean squares of the misses so far, at which a miss is cut off in the regression


class ShiftState(eqx.Module):
    """The memory of one coordinate.

    `base` + `slopes`'theta is the action of the rule's own path. `power` is the mean square of changes of the
    first periods: features are in units of its root. `miss_power` is the mean square of misses on that path. `late` are base
    and slopes of the actions that are not yet in force, the latest first.
    """

    context: Float[Array, ""]
    range: ContextRange
    base: Float[Array, ""]
    slopes: Float[Array, " k"]
    power: Float[Array, ""]
    miss_power: Float[Array, ""]
    regression: RecursiveLeastSquares
    late: Float[Array, "q l"]


class AsymmetricRidgeState(eqx.Module):
    """The regression's state, how many contexts have been seen, and the shift of each coordinate."""

    inner: OnlineRidgeState
    seen: Int[Array, ""]
    shifts: ShiftState


class _Step(eqx.Module):
    """What one coordinate does at a step: xbar = rho x_{t-1} + (1 - rho) target; then the present miss counts as it is."""

    rho: Float[Array, ""]
    target: Float[Array, ""]
    context: Float[Array, ""]
    usual: Float[Array, ""]
    stiffness: Float[Array, ""]
    short: Float[Array, ""]
    long: Float[Array, ""]

    def pull(self, usual_action: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return the weight of the side of y on which xbar is, and (x - y)/(xbar - y)."""
        weight = jnp.where(usual_action < self.context, self.short, self.long)
        return weight, self.stiffness / (self.stiffness + weight - self.usual)

    def action(self, previous: Float[Array, ""]) -> Float[Array, ""]:
        """Return x from x_{t-1}."""
        usual_action = self.rho * previous + (1 - self.rho) * self.target
        return self.context + self.pull(usual_action)[1] * (usual_action - self.context)


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
        zero = jnp.zeros((), start.x0.dtype)
        count = 5 + 2 * self._harmonics
        regression = RecursiveLeastSquares.empty(count, self.ridge, zero.dtype)
        bounds, slopes = ContextRange.empty(zero.dtype), jnp.zeros((count,), zero.dtype)
        late = jnp.zeros((self.agent.ahead, 1 + count), zero.dtype)
        empty = ShiftState(zero, bounds, zero, slopes, zero, zero, regression, late)
        shifts = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (start.dim, *leaf.shape)), empty)
        inner = self.agent.init(
            _usual_problem(problem), dataclasses.replace(start, history=start.history[:0], unseen=None)
        )
        state = AsymmetricRidgeState(inner, jnp.zeros((), int), shifts)
        return start.fold_history(lambda s, context: self._observe(problem, s, context)[0], state)

    def step(self, problem: Problem, state: AsymmetricRidgeState, observation: Observation):
        state, (steps, inner) = self._observe(problem, state, observation.context)
        action = jax.vmap(_Step.action)(steps, observation.previous_action)
        return state, action, Info(inner.converged, None, {}, inner)

    @eqx.filter_jit  # so that JAX traces it once, for pasts and runs of any length
    def _observe(self, problem: Problem, state: AsymmetricRidgeState, context: Float[Array, " q"]):
        """Return the state after one more context, and how to act on it."""
        hitting = problem.hitting
        assert isinstance(hitting, AsymmetricTracking)
        usual, followed = _usual_problem(problem), hitting.centre(context, len(problem.Q))
        seen = Observation(context, followed, state.seen, None)
        inner, _, info = self.agent.step(usual, state.inner, seen)
        zhat = info.details["discounted_forecast"].mean
        advance = jax.vmap(self._advance, in_axes=(0, 0, 0, 0, None, None))
        shifts, steps = advance(state.shifts, followed, zhat, jnp.diagonal(2 * problem.Q), hitting, state.seen)
        return AsymmetricRidgeState(inner, state.seen + 1, shifts), (steps, info)

    def _advance(self, shift: ShiftState, y, zhat, q, hitting: AsymmetricTracking, seen):
        """Advance one coordinate: act on the forecast as shifted so far, then learn from what the step costs."""
        features, usual, present = self.agent.features, _usual_weight(hitting), y
        y = jnp.where(seen >= features.needed, shift.range.plausible(y), y)  # as the regression inside does
        half_life = 2 * features.season.half_life * features.season.period
        bounds = shift.range.update(y, 1 - jnp.asarray(0.5, y.dtype) ** (1 / half_life))
        since = seen - (features.needed + self.agent.maturity)  # when forecasts differ from contexts
        power = shift.power + ((y - shift.context) ** 2 - shift.power) / jnp.maximum(seen, 1)
        power = jnp.where((seen > 0) & (seen <= features.needed), power, shift.power)
        learns = (since >= features.period) & (power > 0)
        size = jnp.sqrt(jnp.where(power > 0, power, 1.0))
        away, change = (zhat - y) / size, (y - shift.context) / size
        angle = (2 * np.pi / features.period) * (seen % features.period) * np.arange(1, self._harmonics + 1)
        waves = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)]).astype(y.dtype)
        others = jnp.stack([jnp.ones_like(y), away, change, jnp.abs(away), jnp.abs(change)])
        row = jnp.where(learns, jnp.concatenate([others, waves]), 0.0)

        theta, rho = shift.regression.weights, decay_root(usual, q)
        stiffness = q / rho  # 2Q + u + S: with weight u now too, x = rho x_{t-1} + (1 - rho) zhat
        target = zhat + size * jnp.sum(row * theta)
        step = _Step(rho, target, present, usual, stiffness, hitting.short, hitting.long)
        base = rho * jnp.where(seen > 0, shift.base, y) + (1 - rho) * zhat
        slopes = rho * shift.slopes + (1 - rho) * row  # in units of `size`
        late = shift.late
        if self.agent.ahead:
            met, met_slopes = jnp.where(seen >= self.agent.ahead, late[-1, 0], y), late[-1, 1:]
            late = jnp.concatenate([jnp.append(base, slopes)[None], late[:-1]])
            weight = jnp.where(met + size * jnp.sum(met_slopes * theta) < y, hitting.short, hitting.long)
            step = dataclasses.replace(step, short=usual, long=usual)
        else:
            weight, gain = step.pull(base + size * jnp.sum(slopes * theta) + present - y)
            base, slopes = y + gain * (base - y), gain * slopes
            met, met_slopes = base, slopes

        miss = (y - met) / size - jnp.sum(met_slopes * theta)
        most = jnp.where(shift.miss_power > 0, _OUTLYING * jnp.sqrt(shift.miss_power), jnp.inf)
        miss_power = shift.miss_power + (jnp.clip(miss, -most, most) ** 2 - shift.miss_power) / jnp.clip(
            since - features.period + 1, 1, 20 * features.period
        )
        regression = shift.regression.with_row(met_slopes, jnp.clip(miss, -most, most), learns * weight / usual)
        further = slopes - shift.slopes
        still = (shift.base - base) / size - jnp.sum(further * regression.weights)
        regression = regression.with_row(further, jnp.clip(still, -most, most), learns * q / usual)
        after = ShiftState(y, bounds, base, slopes, power, jnp.where(learns, miss_power, 0.0), regression, late)
        return after, step


def _usual_weight(hitting: AsymmetricTracking) -> Float[Array, ""]:
    return jnp.sqrt(hitting.short * hitting.long)


def _usual_problem(problem: Problem) -> Problem:
    """The same with one weight for both sides."""
    if not isinstance(problem.hitting, AsymmetricTracking):
        raise NotApplicableError(f"AsymmetricRidge is for AsymmetricTracking, got {type(problem.hitting).__name__}.")
    tracking = SquaredTracking(_usual_weight(problem.hitting), problem.covariates)
    return Problem(tracking, problem.switching, problem.actions)
