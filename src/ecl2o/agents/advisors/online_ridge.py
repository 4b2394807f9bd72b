"""Advice as regression: an advisor that predicts the discounted mean of the coming contexts, and learns while it runs.

In coordinates where A = I and 2Q = diag(a), and with rho the decay root of a, the action x_t = rho x_{t-1} + (1 - rho) zhat_t
costs the optimum of the whole horizon plus 1/2 sum |zhat_t - z_t|^2, up to end effects, where

    z_t = (1 - rho) sum_{j >= 0} rho^j y_{t+j}

is the discounted mean of the present and the coming contexts. So the advisor has to predict z, and nothing else. It regresses z
on some forty differences of recent contexts and periodic profiles, whatever the length of the period. Features, profiles and
regression are about one coordinate; grids are fine near the present and coarse far from it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ecl2o.agents.advisors.covariate_features import CovariateFeatures, CovariateMemory
from ecl2o.agents.advisors.periodic_profile import PeriodicProfile, ProfileState
from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.planning.decoupling import Modes
from ecl2o.problem import AbstractQuadraticCost, Problem
from ecl2o.problem.arrays import as_float, check_count, check_finite, check_positive
from ecl2o.solvers.recursive_least_squares import RecursiveLeastSquares
from ecl2o.theory import decay_root

_NODES = 48  # of the profile of a period
_WEEK_NODES = 24  # of that of a week, for each period in it
_WEEKS = 2.0  # its half-life
_MOST = 4096  # features, about: the regression holds their square
_LONGEST_TABLE = 10_000_000  # of sines
_SHORTEST = 24  # steps at least, by default, until a row is learned from
_OUTLYING = 5.0  # root mean squares of the residuals so far, beyond which a row counts less
_RESIDUALS = 20  # periods that the mean square of the residuals remembers, about
_LARGEST = 1e6  # P, in units of its first value
_HOURS = (1, 2, 3, 6, 12, 24)  # of 24 in a period, over which rich features take changes of the anomaly


class DiscountedForecast(eqx.Module):
    """zhat, the predicted discounted mean of the contexts from now on, and signals for `GuardAwareCorrection`.

    The signals are the last change, and the profile an eighth and a quarter of a period ahead, less the present context.
    """

    mean: Float[Array, "*n d"]
    signals: Float[Array, "*n s d"]

    def advice(self, modes: Modes, previous: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return rho x_{t-1} + (1 - rho) zhat in every mode: the whole-horizon optimum where zhat is exact."""
        rho = decay_root(1.0, modes.a)
        return previous + modes.from_modes @ ((1 - rho) * (modes.to_modes @ (self.mean - previous)))


class ReplayedState(eqx.Module):
    """The modes, and how many steps have been played back."""

    modes: Modes
    played: Int[Array, ""]


class Replayed(AbstractAgent):
    """An advisor that replays recorded forecasts, one per step: `OnlineRidge` without the cost of its regression."""

    forecast: DiscountedForecast

    def init(self, problem: Problem, start: Start) -> ReplayedState:
        return ReplayedState(Modes.from_problem(problem, start.dim), jnp.zeros((), int))

    def step(self, problem: Problem, state: ReplayedState, observation: Observation):
        forecast = DiscountedForecast(self.forecast.mean[state.played], self.forecast.signals[state.played])
        advice = forecast.advice(state.modes, observation.previous_action)
        info = Info(jnp.ones((), bool), details={"discounted_forecast": forecast})
        return ReplayedState(state.modes, state.played + 1), advice, info


class Profiles(eqx.Module):
    """The profile of a period, and that of a week if there is one."""

    period: ProfileState
    week: ProfileState | None


class RidgeFeatures(eqx.Module):
    """Features of degree one: they scale with the contexts, and do not change when all contexts are shifted.

    Changes between the means of `lags` stretches of the last period, whose ends are spaced evenly and then geometrically, and are
    close again around the same phase a period ago; the profile now and 1, 2, 4, 8, ... steps ahead, less the present context; the
    same of the weekly profile, less the other one; and `harmonics` of the phase times the present context less the profile.

    With `rich`, let the anomaly be the context less the weekly profile (the other one if there is none), as known at its step:
    its changes over 1, 2, 3, 6, 12 and 24 hours (24 are a period), and `harmonics` of the phase times the anomaly, its changes
    over 1 and 24 hours, and the discounted means of the profiles from now on, less the present context and less each other.
    """

    season: PeriodicProfile
    weekly: PeriodicProfile | None
    lags: int = eqx.field(static=True)
    harmonics: int = eqx.field(static=True)
    rich: bool = eqx.field(static=True)

    def __init__(self, period: int, half_life: float, lags: int, harmonics: int, week: int | None, rich: bool = False):
        check_count("period", period)
        self.season = PeriodicProfile(as_float(half_life), period, min(period, _NODES))
        self.weekly = None
        if week is not None:
            check_count("week", week)
            self.weekly = PeriodicProfile(as_float(_WEEKS), period * week, min(period, _WEEK_NODES) * week)
        self.lags, self.harmonics, self.rich = lags, harmonics, rich

    def __check_init__(self):
        check_count("lags", self.lags)
        check_count("harmonics", self.harmonics)
        if self.lags + 2 * self.harmonics > _MOST:
            found = f"{self.lags} lags and {self.harmonics} harmonics"
            raise ValueError(f"lags + 2 harmonics must be at most {_MOST}, got {found}.")
        if self.period * self.harmonics > _LONGEST_TABLE:
            found = f"{self.period} and {self.harmonics}"
            raise ValueError(f"period times harmonics must be at most {_LONGEST_TABLE}, got {found}.")

    @property
    def period(self) -> int:
        """How many steps a period has."""
        return self.season.period

    @property
    def leads(self) -> list[int]:
        """How far ahead profiles are looked at: 0, 1, 2, 4, 8, ..., less than a period."""
        return [0, *(2**i for i in range((self.period - 1).bit_length()))]

    @property
    def ends(self) -> list[int]:
        """Where the stretches of recent contexts end, in steps before now."""
        ends = {max(i, round(self.period ** (i / self.lags))) for i in range(1, min(self.lags, self.period) + 1)}
        return sorted({0} | ends | {self.period - lead for lead in self.leads})

    @property
    def spans(self) -> list[int]:
        """Over how many steps rich features take changes of the anomaly."""
        return sorted({max(1, round(hours * self.period / 24)) for hours in _HOURS})

    @property
    def sizes(self) -> list[int]:
        """How many features there are of each kind."""
        kinds = 1 if self.weekly is None else 2
        more = [len(self.spans), *[2 * self.harmonics] * (2 + kinds)] if self.rich else []
        return [len(self.ends) - 1, *[len(self.leads)] * kinds, 2 * self.harmonics, *more]

    @property
    def count(self) -> int:
        """k, how many there are."""
        return sum(self.sizes)

    @property
    def needed(self) -> int:
        """How many contexts must have been seen before: two periods."""
        return 2 * self.period

    def empty(self, dtype) -> Profiles:
        """Return the profiles before the first context."""
        return Profiles(self.season.empty(dtype), None if self.weekly is None else self.weekly.empty(dtype))

    def update_profiles(self, profiles: Profiles, step: Int[Array, ""], now: Float[Array, ""]) -> Profiles:
        """Return the profiles after the context of one more step."""
        week = profiles.week
        if self.weekly is not None and week is not None:
            week = self.weekly.update(week, step % self.weekly.period, now)
        return Profiles(self.season.update(profiles.period, step % self.period, now), week)

    def anomaly(self, profiles: Profiles, step: Int[Array, ""], now: Float[Array, ""]) -> Float[Array, ""]:
        """Return the context less the weekly profile, or the profile of a period if there is none."""
        usual = self.season.at(profiles.period, step[None] % self.period, now)
        if self.weekly is not None and profiles.week is not None:
            usual = self.weekly.at(profiles.week, step[None] % self.weekly.period, usual)
        return now - usual[0]

    def discounts(self, rho: Float[Array, ""]) -> Float[Array, " l"]:
        """Return the weight of the profile at each lead in its discounted mean, if it is linear between leads."""
        leads, powers = [*self.leads, self.period], jnp.exp(jnp.log(rho) * np.arange(self.period))
        hats = np.stack([np.interp(np.arange(self.period), leads, row) for row in np.eye(len(leads))])
        shares = jnp.sum(jnp.asarray(hats, rho.dtype) * powers, axis=1) / jnp.sum(powers)
        return jnp.concatenate([shares[:1] + shares[-1:], shares[1:-1]])  # not `at`, which no single kernel has

    def at(
        self,
        sums: Float[Array, " n"],
        anomalies: Float[Array, " m"],
        profiles: Profiles,
        step: Int[Array, ""],
        now: Float[Array, ""],
        discounts: Float[Array, " l"],
    ) -> tuple[Float[Array, " k"], Float[Array, " 3"]]:
        """Return the features of a step and the signals of its forecast.

        Args:
            sums: sums[i] is the sum of the contexts of this step and the i before it, up to a constant.
            anomalies: anomalies[i] is the anomaly i steps before this one; unused unless the features are rich.
            profiles: of the contexts before this step.
            step: 0 at the first context.
            now: the context.
            discounts: by lead.
        """
        ends, leads = np.array(self.ends), self.leads
        means = jnp.diff(sums[ends]) / np.diff(ends)
        changes = -jnp.diff(jnp.concatenate([now[None], means]))
        ahead = step + np.array([*leads, max(self.period // 8, 1), self.period // 4])
        usual, soon = jnp.split(self.season.at(profiles.period, ahead % self.period, now), [len(leads)])
        profile_parts = [usual - now]
        if self.weekly is not None and profiles.week is not None:
            ahead = ahead[: len(leads)] % self.weekly.period
            profile_parts.append(self.weekly.at(profiles.week, ahead, usual) - usual)
        waves = self._waves(now.dtype)[step % self.period]
        parts = [changes, *profile_parts, waves * (anomalies[0] if self.rich else now - usual[0])]
        if self.rich:
            spans = anomalies[0] - anomalies[np.array(self.spans)]
            means = [jnp.sum(discounts * part) for part in profile_parts]
            parts += [spans, *(waves * each for each in [spans[0], spans[-1], *means])]
        return jnp.concatenate(parts), jnp.concatenate([(now - (sums[1] - sums[0]))[None], soon - now])

    def _waves(self, dtype) -> Float[Array, "p h"]:
        """Return cosines and sines of every phase."""
        angle = (2 * np.pi / self.period) * np.arange(self.period)[:, None] * np.arange(1, self.harmonics + 1)
        return jnp.asarray(np.concatenate([np.cos(angle), np.sin(angle)], axis=1), dtype)


class ContextRange(eqx.Module):
    """The range of contexts: it grows with each context outside, and loses half its width in two half-lives."""

    low: Float[Array, ""]
    high: Float[Array, ""]

    @classmethod
    def empty(cls, dtype) -> "ContextRange":
        """Return the range before the first context."""
        return cls(jnp.asarray(jnp.inf, dtype), jnp.asarray(-jnp.inf, dtype))

    def plausible(self, now: Float[Array, ""]) -> Float[Array, ""]:
        """Return the context, or the nearest one that is at most the interval's width outside of it."""
        width = self.high - self.low
        return jnp.where(width > 0, jnp.clip(now, self.low - width, self.high + width), now)

    def update(self, now: Float[Array, ""], shrinking: Float[Array, ""]) -> "ContextRange":
        """Return the state after one more context."""
        width = self.high - self.low
        inward = jnp.where(width > 0, 0.5 * shrinking * width, 0.0)
        return ContextRange(jnp.minimum(self.low + inward, now), jnp.maximum(self.high - inward, now))


class LineState(eqx.Module):
    """The memory of one coordinate.

    `sums[i]` is the sum of the last i + 1 contexts, `anomalies[i]` the anomaly i steps ago. `profiles` are of all contexts,
    `late_profiles` of those before the row that matures next. `power` are mean squares of the features by kind, fixed when the
    first row matures.
    """

    sums: Float[Array, " n"]
    anomalies: Float[Array, " m"]
    profiles: Profiles
    late_profiles: Profiles
    range: ContextRange
    power: Float[Array, " kinds"]
    regression: RecursiveLeastSquares
    residual_power: Float[Array, ""]


class OnlineRidgeState(eqx.Module):
    """The modes, how many contexts have been seen, and the memory of each mode and of the covariates."""

    modes: Modes
    seen: Int[Array, ""]
    lines: LineState
    covariates: CovariateMemory | None


class OnlineRidge(AbstractAgent):
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
        covariates: the last numbers of a context, of which `CovariateFeatures` are made: None, or the steps ahead of a forecast.
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
    maturity: int = eqx.field(static=True)
    covariates: CovariateFeatures | None
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
        self.features = RidgeFeatures(period, half_life, lags, harmonics, week, rich)
        self.ridge = as_float(ridge)
        self.memory = None if memory is None else as_float(memory)
        self.maturity = max(period, _SHORTEST) + ahead if maturity is None else maturity
        self.ahead = ahead
        self.covariates = CovariateFeatures(self.features.season, covariates, harmonics) if covariates else None

    def __check_init__(self):
        check_finite("ridge", self.ridge)
        check_positive("ridge", self.ridge)
        if self.memory is not None:
            check_positive("memory", self.memory)
        check_count("maturity", self.maturity)
        if type(self.ahead) is not int or self.ahead < 0:
            raise ValueError(f"ahead must be a whole number of steps, 0 or more, got {self.ahead!r}.")
        if self.maturity < 2 + self.ahead:
            raise ValueError(f"maturity must be at least {2 + self.ahead}, got {self.maturity}.")

    @property
    def _sizes(self) -> list[int]:
        """How many features there are of each kind."""
        return self.features.sizes + ([] if self.covariates is None else self.covariates.sizes)

    def init(self, problem: Problem, start: Start) -> OnlineRidgeState:
        dtype, memory = start.x0.dtype, None
        if self.covariates is not None:
            self.covariates.check(problem, start.dim)
            memory = self.covariates.empty(self.maturity, dtype)
        profiles = self.features.empty(dtype)
        empty = LineState(
            sums=jnp.zeros((self.maturity + self.features.period,), dtype),
            anomalies=jnp.zeros((self.maturity + self.features.period if self.features.rich else 0,), dtype),
            profiles=profiles,
            late_profiles=profiles,
            range=ContextRange.empty(dtype),
            power=jnp.zeros((len(self._sizes),), dtype),
            regression=RecursiveLeastSquares.empty(sum(self._sizes), self.ridge, dtype),
            residual_power=jnp.zeros((), dtype),
        )
        lines = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (start.dim, *leaf.shape)), empty)
        state = OnlineRidgeState(Modes.from_problem(problem, start.dim), jnp.zeros((), int), lines, memory)
        return start.fold_history(lambda s, context: self._observe(problem, s, context)[0], state)

    def step(self, problem: Problem, state: OnlineRidgeState, observation: Observation):
        state, (predicted, signals) = self._observe(problem, state, observation.context)
        from_modes = state.modes.from_modes
        forecast = DiscountedForecast(from_modes @ predicted, (from_modes @ signals).T)
        advice = forecast.advice(state.modes, observation.previous_action)
        return state, advice, Info(jnp.ones((), bool), details={"discounted_forecast": forecast})

    @eqx.filter_jit  # so that JAX traces it once, for pasts and runs of any length
    def _observe(self, problem: Problem, state: OnlineRidgeState, context: Float[Array, " q"]):
        """Return the state after one more context, and zhat (d,) and signals (d, 3) in modes."""
        assert isinstance(problem.hitting, AbstractQuadraticCost)
        modes = state.modes
        centre = problem.hitting.centre(context, modes.a.shape[0])
        now, rho = modes.to_modes @ centre, decay_root(1.0, modes.a)
        memory, given = None, None
        if self.covariates is not None and state.covariates is not None:
            memory, given = self.covariates.advance(state.covariates, state.seen, context, centre[0], rho[0])
        lines, forecast = jax.vmap(self._advance, in_axes=(0, None, 0, 0, None))(
            state.lines, state.seen, now, rho, given
        )
        return OnlineRidgeState(modes, state.seen + 1, lines, memory), forecast

    def _advance(
        self,
        line: LineState,
        step: Int[Array, ""],
        now: Float[Array, ""],
        rho: Float[Array, ""],
        given: Float[Array, "2 c"] | None,
    ):
        """Advance one coordinate by a context: the features of this step, a prediction, and the row that matures.

        `given` are the features of covariates of both.
        """
        features, late = self.features, self.maturity - 1
        row_step = step - late
        is_real = step >= features.needed
        now = jnp.where(is_real, line.range.plausible(now), now)
        half_life = 2 * features.season.half_life * features.season.period  # of the range's width, in steps
        seen_range = line.range.update(now, 1 - jnp.asarray(0.5, now.dtype) ** (1 / half_life))
        sums = jnp.concatenate([now[None], line.sums[:-1] + now])
        row_now = sums[late] - sums[late - 1]
        anomalies = line.anomalies
        if features.rich:
            anomalies = jnp.concatenate([features.anomaly(line.profiles, step, now)[None], anomalies[:-1]])

        # Features of this step and of the one whose row matures, at once.
        steps, nows = jnp.stack([step, row_step]), jnp.stack([now, row_now])
        before = jax.tree.map(lambda *both: jnp.stack(both), line.profiles, line.late_profiles)
        recent, lately = (jnp.stack([each[: features.period + 1], each[late:]]) for each in (sums, anomalies))
        rows, signals = jax.vmap(features.at, in_axes=(0, 0, 0, 0, 0, None))(
            recent, lately, before, steps, nows, features.discounts(rho)
        )
        rows = rows if given is None else jnp.concatenate([rows, given], axis=1)
        power = self._power(line.power, rows[0], step)
        usual = jnp.where(power[1] > 0, power[1], 1.0)  # for kinds that are still zero, such as a weekly profile's
        size = jnp.sqrt(jnp.where(power > 0, power, usual))[np.repeat(np.arange(len(self._sizes)), self._sizes)]
        present, row = jnp.where((steps >= features.needed)[:, None], rows / size, 0.0)

        image = line.regression.image(present)
        forecast = jnp.sum(line.regression.weights * present) / (1 + jnp.sum(image * image))
        predicted = jnp.clip(now + forecast, seen_range.low, seen_range.high)
        target = discounted_mean(sums[: self.maturity - self.ahead], rho, predicted) - row_now
        regression, residual_power = self._update_regression(line, row, target, row_step)

        profiles = jax.vmap(features.update_profiles)(before, steps, nows)
        profiles = jax.tree.map(lambda new, old: jnp.where((steps >= 0)[:, None], new, old), profiles, before)
        newest = jax.tree.map(lambda both: both[0], profiles)
        late_profiles = jax.tree.map(lambda both: both[1], profiles)
        after = LineState(sums, anomalies, newest, late_profiles, seen_range, power, regression, residual_power)
        return after, (predicted, signals[0])

    def _power(self, power: Float[Array, " kinds"], present: Float[Array, " k"], step: Int[Array, ""]):
        """Update the mean squares by kind of the features, from the first real ones on, until the first row has matured.

        So the penalty depends neither on units nor on the phase at which the clock was started.
        """
        parts = jnp.split(present, np.cumsum(self._sizes)[:-1])
        since = step - self.features.needed  # the first real row matures when this is maturity - 1
        mean = power + (jnp.stack([jnp.mean(part * part) for part in parts]) - power) / jnp.maximum(since + 1, 1)
        return jnp.where((since >= 0) & (since < self.maturity - 1), mean, power)

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


def discounted_mean(sums: Float[Array, " m"], rho: Float[Array, ""], rest: Float[Array, ""]) -> Float[Array, ""]:
    """Return z of the oldest of m contexts, from the sums of the last 1, 2, ..., m of them and a value for all later ones."""
    later = jnp.exp(jnp.log(rho) * np.arange(sums.shape[0]))[::-1]  # rho^(m-1), ..., rho, 1: newest context first
    changes = later - jnp.concatenate([later[1:], jnp.zeros((1,), later.dtype)])
    return (1 - rho) * jnp.sum(changes * sums) + rho * later[0] * rest
