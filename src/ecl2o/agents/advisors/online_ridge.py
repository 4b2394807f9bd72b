"""A regression that learns while it runs: it predicts the discounted mean of the coming contexts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ecl2o.agents.advisors.discounted_forecast import (
    AbstractRegression,
    DiscountedForecast,
    RegressionState,
    check_maturity,
    default_maturity,
    discounted_mean,
)
from ecl2o.agents.advisors.features import RidgeFeatures, RidgeMemory, check_covariates
from ecl2o.agents.base import Start
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_float, as_optional_float, check_finite, check_positive
from ecl2o.solvers.recursive_least_squares import RecursiveLeastSquares
from ecl2o.theory import decay_root

_OUTLYING = 5.0  # root mean squares of the residuals so far, beyond which a row counts less
_RESIDUALS = 20  # periods that the mean square of the residuals remembers, about
_LARGEST = 1e6  # P, in units of its first value


class LineState(eqx.Module):
    """The memory of one coordinate, and its last prediction and signals.

    `power` are mean squares of the features by kind, fixed when the first row matures.
    """

    features: RidgeMemory
    power: Float[Array, " kinds"]
    regression: RecursiveLeastSquares
    residual_power: Float[Array, ""]
    predicted: Float[Array, ""]
    signals: Float[Array, " 3"]


class OnlineRidge(AbstractRegression):
    """Advice x = rho x_{t-1} + (1 - rho) zhat_t, with zhat from a ridge regression that learns while it runs.

    z is regressed on what is known at t (`RidgeFeatures`): some forty features whatever the length of the period, with a weekly
    profile among them where `week` says how many periods a week has. All are differences, so that units and origin do not matter.
    Half-life, lags, harmonics and ridge are what validation days chose (docs/choices.md).

    A row enters the regression `maturity` steps later (a period, at least 24), when all of its z but rho^maturity is known; the
    present zhat replaces the rest. It enters by a rank-one update, so that every step takes the same time, and steps and history
    teach the same. zhat is the Vovk-Azoury-Warmuth forecast: the weights' prediction of z less the present context, divided by
    1 + f'Pf. So with new kinds of features zhat is close to the present context, and the advice to R-OBD's, as in the first two
    periods and until rows have matured.

    One bad context has a bounded effect: it counts as at most the width of the range so far outside of that range (which grows
    within a few steps, so that a new level is followed), and a residual of more than five root mean squares counts as five.

    For f = 1/2 (x - y)' A (x - y) with a constant A, any d: one regression in each mode of (A, Q). It has nothing to train by
    gradients. `Info.details["discounted_forecast"]` depends on contexts only, not on what is played.

    Args:
        period: steps in a period, usually a day. Default: 24.
        half_life: of the profile of a period, in periods; the regression itself forgets nothing. Default: 7.
        lags: how many stretches of the last period the features compare. Default: 24, or 8 if they are rich.
        harmonics: sines and cosines of the time of day, how many of each. Default: 3, or 2 if features are rich.
        ridge: the penalty on squared weights. Default: 0.01.
        week: periods in a week, for a weekly profile. Default: none.
        maturity: steps after which a row is learned from. Default: a period, at least 24.
        rich: whether `RidgeFeatures` has changes of the anomaly and more harmonics. Default: False.
        memory: half-life of the rows of the regression, in periods. Default: it forgets nothing.
        covariates: the last numbers of a context, which it sees and does not follow: None, or the steps ahead of a forecast.
            Default: none.
        ahead: how many steps after its context the action is in force: z is that of the later step. Default: 0.

    >>> OnlineRidge().features.count, OnlineRidge(period=288).features.count
    (36, 49)
    >>> OnlineRidge(week=7, rich=True).features.count
    50
    """

    features: RidgeFeatures
    ridge: Float[Array, ""]
    memory: Float[Array, ""] | None
    ahead: int = eqx.field(static=True, default=0)

    def __init__(
        self,
        period: int = 24,
        half_life: float = 7.0,
        lags: int | None = None,
        harmonics: int | None = None,
        ridge: float = 0.01,
        week: int | None = None,
        maturity: int | None = None,
        rich: bool = False,
        memory: float | None = None,
        covariates: tuple[int | None, ...] = (),
        ahead: int = 0,
    ):
        lags = (8 if rich else 24) if lags is None else lags
        harmonics = (2 if rich else 3) if harmonics is None else harmonics
        maturity = default_maturity(period, ahead) if maturity is None else maturity
        self.features = RidgeFeatures(period, half_life, lags, harmonics, maturity, week, rich, covariates)
        self.ridge, self.memory, self.ahead = as_float(ridge), as_optional_float(memory), ahead

    def __check_init__(self):
        check_finite("ridge", self.ridge)
        check_positive("ridge", self.ridge)
        if self.memory is not None:
            check_positive("memory", self.memory)
        check_maturity(self.features.maturity, self.ahead)

    def empty(self, problem: Problem, start: Start) -> LineState:
        features, dtype = self.features, start.x0.dtype
        if features.leads:  # forecasts are of the only column
            check_covariates(problem, start.dim, features.leads, 1 if any(features.leads) else start.dim)
        line = LineState(
            features=features.empty(dtype),
            power=jnp.zeros((len(features.sizes),), dtype),
            regression=RecursiveLeastSquares.empty(features.count, self.ridge, dtype),
            residual_power=jnp.zeros((), dtype),
            predicted=jnp.zeros((), dtype),
            signals=jnp.zeros((3,), dtype),
        )
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (start.dim, *leaf.shape)), line)

    def advance(self, state: RegressionState, now: Float[Array, " d"], given: Float[Array, " c"]) -> LineState:
        modes, given = state.modes, jnp.append(given, now[0])
        advance = jax.vmap(self._advance, in_axes=(0, None, 0, None, 0))
        return advance(state.memory, state.seen, modes.to_modes @ now, given, decay_root(1.0, modes.a))

    def predict(self, state: RegressionState) -> DiscountedForecast:
        lines, from_modes = state.memory, state.modes.from_modes
        return DiscountedForecast(from_modes @ lines.predicted, (from_modes @ lines.signals).T)

    def _advance(self, line: LineState, step: Int[Array, ""], now: Float[Array, ""], given: Float[Array, " c"], rho):
        """Advance one coordinate by a context: the features of this step, a prediction, and the row that matures."""
        features, sizes = self.features, self.features.sizes
        memory = features.advance(line.features, step, now, given, rho)
        rows, signals = features.at(memory, step, rho)
        now, row_context = features.contexts(memory)
        steps = features.steps(step)
        power = self._power(line.power, rows[0], step)
        usual = jnp.where(power[1] > 0, power[1], 1.0)  # for kinds that are still zero, such as a weekly profile's
        size = jnp.sqrt(jnp.where(power > 0, power, usual))[np.repeat(np.arange(len(sizes)), sizes)]
        present, row = jnp.where((steps >= features.needed)[:, None], rows / size, 0.0)

        image = line.regression.image(present)
        forecast = jnp.sum(line.regression.weights * present) / (1 + jnp.sum(image * image))
        predicted = memory.range.clip(now + forecast)
        target = discounted_mean(memory.sums[: features.maturity - self.ahead], rho, predicted) - row_context
        regression, residual_power = self._update_regression(line, row, target, steps[1])
        return LineState(memory, power, regression, residual_power, predicted, signals)

    def _power(self, power: Float[Array, " kinds"], present: Float[Array, " k"], step: Int[Array, ""]):
        """Update the mean squares by kind of the features, from the first real ones on, until the first row has matured.

        So the penalty depends neither on units nor on the phase at which the clock was started.
        """
        parts = jnp.split(present, np.cumsum(self.features.sizes)[:-1])
        since = step - self.features.needed  # the first real row matures when this is maturity - 1
        mean = power + (jnp.stack([jnp.mean(part * part) for part in parts]) - power) / jnp.maximum(since + 1, 1)
        return jnp.where((since >= 0) & (since < self.features.maturity - 1), mean, power)

    def _update_regression(
        self, line: LineState, row: Float[Array, " k"], target: Float[Array, ""], row_step: Int[Array, ""]
    ):
        """Add the row that has matured, if there is one; outlying rows count less (Huber's weights)."""
        regression, period = line.regression, self.features.period
        before = row_step - self.features.needed  # rows until now
        residual = target - jnp.sum(regression.weights * row)
        square, limit = residual * residual, _OUTLYING**2 * line.residual_power
        outlying = (before >= period) & (limit > 0) & (square > limit)
        share = jnp.where(outlying, limit / jnp.where(outlying, square, 1.0), 1.0)
        counted = jnp.sqrt(share) * (before >= 0)
        remembered = jnp.clip(before + 1, 1, _RESIDUALS * period)
        mean = line.residual_power + (jnp.where(outlying, limit, square) - line.residual_power) / remembered
        residual_power = jnp.where(before >= 0, mean, line.residual_power)
        return regression.with_row(row, residual, counted, self._keep(regression, before)), residual_power

    def _keep(self, regression: RecursiveLeastSquares, before: Int[Array, ""]) -> Float[Array, ""] | float:
        """Return how much earlier rows count from now on; as before while features that never vary would overflow P."""
        if self.memory is None:
            return 1.0
        keep = jnp.asarray(0.5, regression.root.dtype) ** (1 / (self.memory * self.features.period))
        variance = jnp.sum(regression.root * regression.root)
        return jnp.where((before >= 0) & (variance * self.ridge < _LARGEST * self.features.count), keep, 1.0)
