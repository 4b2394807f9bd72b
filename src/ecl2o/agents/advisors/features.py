"""What regressions see of the contexts so far: lags, profiles and the range of what is followed, and covariates.

Each kind of features has a memory, which is `empty` before the first context; `advance` adds a context, and `at` returns the
features of the present step. A run, its history and `fit` advance the same memory.
"""

from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.given_leads import DECAY, group_leads, spread_errors
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_float, as_optional_float, check_count, check_positive, safe_sqrt

WEEK = 7  # periods
_SPANS = (1, 2, 3, 6, 12, 24)  # hours, of 24 in a period, over which changes are taken
# Of `RidgeFeatures`:
_NODES, _WEEK_NODES = 48, 24  # of the profile of a period, and of that of a week for each period in it
_WEEKS = 2.0  # half-life of the latter
_MOST, _LONGEST_TABLE = 4096, 10_000_000  # features, about: the regression holds their square; sines
_MOST_LEADS = 4  # of a group of forecasts whose own deviations are features
# Of `ContextFeatures`, in hours but for periods:
_LAGS = (*range(1, 11), 12, 14, 16, 18, *range(20, 25), 36, 48, 72, 96, 120, 144, 168)
_LEADS = (1, 2, 3, 4, 6, 8, 12)  # ahead, a period or a week ago
_PROFILE_LEADS = (*_LEADS, 16, 20)
_MEANS, _DEVIATIONS = (3, 6, 12, 24, 48, 72, 120, 168), (6, 24)
_DAMPING = 0.9  # of the present anomaly, per hour
_PEAKS = 4  # last periods whose highest contexts are features
_HALF_LIVES = (7.0, 21.0, 3.0)  # of two profiles of a period and one of a week, in their periods
_MOST_WEEKS = 52  # that the mean week remembers
_HARMONICS = 3  # of the hour, at most


def check_covariates(problem: Problem, dim: int, leads: tuple[int | None, ...], most_columns: int) -> None:
    """Raise unless contexts have as many covariates as a regression, which follows at most so many columns."""
    if problem.covariates != len(leads) or dim > most_columns:
        columns = "one column" if most_columns == 1 else f"{most_columns} columns"
        raise NotApplicableError(
            f"the regression was made for {columns} and {len(leads)} covariates; this problem follows {dim} and has "
            f"{problem.covariates} covariates."
        )


def count_steps(hours: tuple[int, ...], period: int) -> Int[np.ndarray, " n"]:
    """Return hours in steps, at least one and without repetitions, if 24 hours are a period."""
    return np.array(sorted({max(1, round(each * period / 24)) for each in hours}))


def make_waves(period: int, harmonics: int, dtype: Any) -> Float[Array, "p h"]:
    """Return cosines and sines of every phase of a period."""
    angle = (2 * np.pi / period) * np.arange(period)[:, None] * np.arange(1, harmonics + 1)
    return jnp.asarray(np.concatenate([np.cos(angle), np.sin(angle)], axis=1), dtype)


def push(memory: Float[Array, "*n m"], newest: Float[Array, "*n"]) -> Float[Array, "*n m"]:
    """Return a memory, newest first, with one more entry, and without the oldest."""
    return jnp.concatenate([newest[..., None], memory[..., :-1]], axis=-1)


class ContextRange(eqx.Module):
    """The range of contexts."""

    low: Float[Array, ""]
    high: Float[Array, ""]

    @classmethod
    def empty(cls, dtype: Any) -> "ContextRange":
        """Return the range before the first context."""
        return cls(jnp.asarray(jnp.inf, dtype), jnp.asarray(-jnp.inf, dtype))

    def include(self, now: Float[Array, ""], shrinking: Float[Array, ""] | None = None) -> "ContextRange":
        """Return the range with one more context, before which it lost a share of its width, if one is given."""
        low, high = self.low, self.high
        if shrinking is not None:
            inward = jnp.where(high > low, 0.5 * shrinking * (high - low), 0.0)
            low, high = low + inward, high - inward
        return ContextRange(jnp.minimum(low, now), jnp.maximum(high, now))

    def clip(self, value: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Return the nearest value in the range."""
        return jnp.clip(value, self.low, self.high)

    def plausible(self, now: Float[Array, ""]) -> Float[Array, ""]:
        """Return the context, or the nearest one that is at most the range's width outside of it."""
        width = self.high - self.low
        return jnp.where(width > 0, jnp.clip(now, self.low - width, self.high + width), now)


class ProfileState(eqx.Module):
    """The decaying mean at each node, and the weight of the contexts in it."""

    means: Float[Array, "*n b"]
    weights: Float[Array, "*n b"]


class PeriodicProfile(eqx.Module):
    """A periodic profile: linear between `nodes` nodes, each the mean of the contexts near it, with a half-life in periods.

    With as many nodes as steps it is the decaying mean by phase.
    """

    half_life: Float[Array, ""] = eqx.field(converter=as_float)
    period: int = eqx.field(static=True)
    nodes: int = eqx.field(static=True)

    def __check_init__(self):
        check_positive("half_life", self.half_life)
        check_count("period", self.period)
        check_count("nodes", self.nodes)

    def empty(self, dtype: Any, *shape: int) -> ProfileState:
        """Return the state before the first context, of as many profiles as an array of the shape has entries."""
        return ProfileState(jnp.zeros((*shape, self.nodes), dtype), jnp.zeros((*shape, self.nodes), dtype))

    def at(self, profile: ProfileState, phases: Int[Array, " n"], otherwise: Float[Array, "*n"]) -> Float[Array, " n"]:
        """Return the profile at these phases; `otherwise` where neither node beside a phase has seen anything."""
        left, rest = np.divmod(np.arange(self.period) * self.nodes, self.period)
        sides, shares = np.stack([left, (left + 1) % self.nodes]), np.stack([self.period - rest, rest]) / self.period
        sides, shares = jnp.asarray(sides)[:, phases], jnp.asarray(shares, profile.means.dtype)[:, phases]
        weight = shares * (profile.weights[sides] > 0)
        total = jnp.sum(weight, axis=0)
        mean = jnp.sum(weight * profile.means[sides], axis=0)
        return jnp.where(total > 0, mean / jnp.where(total > 0, total, 1.0), otherwise)

    def update(self, profile: ProfileState, phase: Int[Array, ""], now: Float[Array, ""]) -> ProfileState:
        """Return the state after one more context."""
        decay = jnp.asarray(0.5, now.dtype) ** (1 / (self.half_life * self.period))
        position = phase * (self.nodes / self.period)
        distance = jnp.abs(jnp.arange(self.nodes) - position)
        near = jnp.maximum(1 - jnp.minimum(distance, self.nodes - distance), 0.0).astype(now.dtype)
        weights = decay * profile.weights + near
        gain = near / jnp.where(weights > 0, weights, 1.0)
        return ProfileState(profile.means + gain * (now - profile.means), weights)


class RidgeMemory(eqx.Module):
    """The memory of `RidgeFeatures`.

    `sums[i]` is the sum of the last i + 1 contexts; `signals[:, i]` are the anomaly, if features are rich, and what covariates
    say, i steps ago. `profiles` are of the contexts before the present one, and of those before the one whose row matures;
    `given_profiles` of covariates and all contexts.
    """

    range: ContextRange
    sums: Float[Array, " n"]
    signals: Float[Array, "s n"]
    profiles: tuple[ProfileState, ...]
    given_profiles: ProfileState


class RidgeFeatures(eqx.Module):
    """Features of degree one: they scale with the contexts, and do not change when all contexts are shifted.

    Changes between the means of `lags` stretches of the last period, whose ends are spaced evenly and then geometrically, and are
    close again around the same phase a period ago; the profile now and 1, 2, 4, 8, ... steps ahead, less the present context; the
    same of the weekly profile, less the other one; and `harmonics` of the phase times the present context less the profile.

    With `rich`, let the anomaly be the context less the weekly profile (the other one if there is none), as known at its step:
    its changes over 1, 2, 3, 6, 12 and 24 hours (24 are a period), and `harmonics` of the phase times the anomaly, its changes
    over 1 and 24 hours, and the discounted means of the profiles from now on, less the present context and less each other.

    Of each covariate, in any unit, with its deviation from its own profile: the deviation, its changes as above, and harmonics of
    the phase times its change over an hour. Of each group of forecasts with different leads: the discounted mean of the coming
    contexts that they predict, completed by the profile (`spread_errors`), less the present context; and the deviations of up to
    four of them from their own profiles, which no bias disturbs.

    The range, outside of which a context counts as at most its width (see `OnlineRidge`), loses half of that in two half-lives.
    """

    seasons: tuple[PeriodicProfile, ...]  # of a period, and of a week if there is one
    lags: int = eqx.field(static=True)
    harmonics: int = eqx.field(static=True)
    maturity: int = eqx.field(static=True)  # steps until a row is learned from, its own included
    rich: bool = eqx.field(static=True)
    leads: tuple[int | None, ...] = eqx.field(static=True)

    def __init__(self, period, half_life, lags, harmonics, maturity, week=None, rich=False, leads=()):
        check_count("period", period)
        self.seasons = (PeriodicProfile(as_float(half_life), period, min(period, _NODES)),)
        if week is not None:
            check_count("week", week)
            self.seasons += (PeriodicProfile(as_float(_WEEKS), period * week, min(period, _WEEK_NODES) * week),)
        self.lags, self.harmonics, self.maturity, self.rich, self.leads = lags, harmonics, maturity, rich, leads

    def __check_init__(self):
        check_count("maturity", self.maturity)
        check_count("lags", self.lags)
        check_count("harmonics", self.harmonics)
        if self.lags + 2 * self.harmonics > _MOST or self.period * self.harmonics > _LONGEST_TABLE:
            raise ValueError(
                f"lags + 2 harmonics must be at most {_MOST}, and period times harmonics at most {_LONGEST_TABLE}, got "
                f"{self.lags} lags, {self.harmonics} harmonics and a period of {self.period}."
            )

    @property
    def period(self) -> int:
        """How many steps a period has."""
        return self.seasons[0].period

    @property
    def ahead(self) -> list[int]:
        """How far ahead profiles are looked at: 0, 1, 2, 4, 8, ..., less than a period."""
        return [0, *(2**i for i in range((self.period - 1).bit_length()))]

    @property
    def ends(self) -> list[int]:
        """Where the stretches of recent contexts end, in steps before now."""
        ends = {max(i, round(self.period ** (i / self.lags))) for i in range(1, min(self.lags, self.period) + 1)}
        return sorted({0} | ends | {self.period - lead for lead in self.ahead})

    @property
    def spans(self) -> Int[np.ndarray, " n"]:
        """Over how many steps changes of signals are taken."""
        return count_steps(_SPANS, self.period)

    @property
    def sizes(self) -> list[int]:
        """How many features there are of each kind."""
        kinds, waves, spans = len(self.seasons), 2 * self.harmonics, len(self.spans)
        sizes = [len(self.ends) - 1, *[len(self.ahead)] * kinds, waves]
        sizes += [spans, *[waves] * (2 + kinds)] if self.rich else []
        forecasts = [len(self._columns) - len(self._plain), len(self._groups)]
        return sizes + [1 + spans, waves] * len(self._plain) + [count for count in forecasts if count]

    @property
    def count(self) -> int:
        """k, how many there are."""
        return sum(self.sizes)

    @property
    def needed(self) -> int:
        """How many contexts must have been seen before: two periods."""
        return 2 * self.period

    @property
    def _groups(self) -> list[list[tuple[int, int]]]:
        return group_leads(self.leads)

    @property
    def _plain(self) -> list[int]:
        return [place for place, lead in enumerate(self.leads) if lead is None]

    @property
    def _columns(self) -> list[int]:
        """The places of the covariates with a profile: the plain ones, then some forecasts of each group."""
        spread = [np.unique(np.linspace(0, len(group) - 1, _MOST_LEADS).round().astype(int)) for group in self._groups]
        return self._plain + [group[i][0] for group, some in zip(self._groups, spread, strict=True) for i in some]

    def empty(self, dtype: Any) -> RidgeMemory:
        """Return the memory before the first context."""
        steps, columns = self.maturity + self.period, len(self._columns)
        return RidgeMemory(
            range=ContextRange.empty(dtype),
            sums=jnp.zeros((steps,), dtype),
            signals=jnp.zeros((self.rich + columns + len(self._groups), steps), dtype),
            profiles=tuple(season.empty(dtype, 2) for season in self.seasons),
            given_profiles=self.seasons[0].empty(dtype, columns + 1 if columns else 0),
        )

    def steps(self, step: Int[Array, ""]) -> Int[Array, "2"]:
        """Return this step, and that whose row matures."""
        return jnp.stack([step, step - self.maturity + 1])

    def contexts(self, memory: RidgeMemory) -> Float[Array, "2"]:
        """Return the present context as it counts, and that of the row that matures."""
        return jnp.stack([memory.sums[0], memory.sums[self.maturity - 1] - memory.sums[self.maturity - 2]])

    def advance(
        self, memory: RidgeMemory, step: Int[Array, ""], now: Float[Array, ""], given: Float[Array, " c"], rho
    ) -> RidgeMemory:
        """Return the memory after the context of this step; `given` are its covariates, and what is followed in their unit."""
        now = jnp.where(step >= self.needed, memory.range.plausible(now), now)
        half_life = 2 * self.seasons[0].half_life * self.period  # of the range's width, in steps
        seen_range = memory.range.include(now, 1 - jnp.asarray(0.5, now.dtype) ** (1 / half_life))
        steps, last, signals, given_profiles = self.steps(step - 1), self.contexts(memory), [], memory.given_profiles
        seasons = zip(self.seasons, memory.profiles, strict=True)
        profiles = tuple(jax.vmap(season.update)(each, steps % season.period, last) for season, each in seasons)
        profiles = jax.tree.map(lambda new, old: jnp.where((steps >= 0)[:, None], new, old), profiles, memory.profiles)
        if self.rich:
            of_now = jax.tree.map(lambda both: both[0], profiles)
            signals.append(now - self._usual(of_now, step[None], now)[-1])
        if self.leads:
            season, known = self.seasons[0], given[np.array([*self._columns, len(self.leads)])]
            usual = jax.vmap(season.at, in_axes=(0, None, 0))(given_profiles, step[None] % self.period, known)[:, 0]
            signals += [(known - usual)[:-1], *self._predict_means(given_profiles, step, given, rho)]
            given_profiles = jax.vmap(season.update, in_axes=(0, None, 0))(given_profiles, step % self.period, known)
        signals = push(memory.signals, jnp.concatenate(signals)) if signals else memory.signals
        sums = jnp.concatenate([now[None], memory.sums[:-1] + now])
        return RidgeMemory(seen_range, sums, signals, profiles, given_profiles)

    def at(
        self, memory: RidgeMemory, step: Int[Array, ""], rho: Float[Array, ""]
    ) -> tuple[Float[Array, "2 k"], Float[Array, " 3"]]:
        """Return the features of this step, those of the row that matures, and the signals of this step's forecast."""
        memories = memory.sums, memory.signals
        sums, signals = (jnp.stack([each[..., : self.period + 1], each[..., -self.period - 1 :]]) for each in memories)
        row, discounts = jax.vmap(self._row, in_axes=(0, 0, 0, 0, 0, None)), self._discounts(rho)
        rows, found = row(sums, signals, memory.profiles, self.steps(step), self.contexts(memory), discounts)
        return rows, found[0]

    def _usual(self, profiles, steps: Int[Array, " n"], now: Float[Array, ""]) -> list[Float[Array, "*n"]]:
        """Return the context, and what each profile says of these steps: of what it has not seen, what the one before says."""
        found = [now]
        for season, profile in zip(self.seasons, profiles, strict=True):
            found.append(season.at(profile, steps % season.period, found[-1]))
        return found

    def _predict_means(self, given_profiles, step, given, rho) -> list[Float[Array, "1"]]:
        """Return the discounted mean of the coming contexts by each group of forecasts, less the present context."""
        period, followed, found = self.period, given[-1], []
        for group in self._groups:
            of_followed = jax.tree.map(lambda leaf: leaf[-1], given_profiles)
            path = self.seasons[0].at(of_followed, (step + np.arange(period)) % period, followed)
            usual = jnp.exp(jnp.log(rho) * np.arange(period))
            usual = jnp.sum(usual * path) / jnp.sum(usual)
            places, leads = map(list, zip(*group, strict=True))
            powers = jnp.exp(jnp.log(rho) * np.arange(leads[-1] + 1))
            later = rho * DECAY ** (24 / period)  # the last error decays for ever
            powers = (1 - rho) * jnp.concatenate([powers[:-1], powers[-1:] / (1 - later)])
            shares = powers @ spread_errors(leads, leads[-1] + 1, period)
            errors = given[np.array([len(self.leads), *places])] - path[np.array([0, *leads]) % period]
            found.append((usual + jnp.sum(shares * errors) - followed)[None])
        return found

    def _discounts(self, rho: Float[Array, ""]) -> Float[Array, " l"]:
        """Return the weight of the profile at each lead in its discounted mean, if it is linear between leads."""
        leads, powers = [*self.ahead, self.period], jnp.exp(jnp.log(rho) * np.arange(self.period))
        hats = np.stack([np.interp(np.arange(self.period), leads, row) for row in np.eye(len(leads))])
        shares = jnp.sum(jnp.asarray(hats, rho.dtype) * powers, axis=1) / jnp.sum(powers)
        return jnp.concatenate([shares[:1] + shares[-1:], shares[1:-1]])  # not `at`, which no single kernel has

    def _row(self, sums, signals, profiles, step: Int[Array, ""], now: Float[Array, ""], discounts: Float[Array, " l"]):
        """Return the features of a step from the memory up to it, and the signals of its forecast."""
        ends, ahead = np.array(self.ends), [*self.ahead, max(self.period // 8, 1), self.period // 4]
        means = jnp.diff(sums[ends]) / np.diff(ends)
        usual = self._usual(profiles, step + np.array(ahead), now)
        over_last = [later - before for before, later in pairwise(usual)]
        profile_parts = [part[: len(self.ahead)] for part in over_last]
        waves = make_waves(self.period, self.harmonics, now.dtype)[step % self.period]
        changes = signals[:, :1] - signals[:, self.spans]
        parts = [-jnp.diff(jnp.concatenate([now[None], means])), *profile_parts]
        parts.append(waves * (signals[0, 0] if self.rich else now - usual[1][0]))
        if self.rich:
            discounted = [jnp.sum(discounts * part) for part in profile_parts]
            parts += [changes[0], *(waves * each for each in [changes[0, 0], changes[0, -1], *discounted])]
        forecasts = self.rich + len(self._plain)
        for place in range(int(self.rich), forecasts):
            parts += [signals[place, :1], changes[place], waves * changes[place, 0]]
        signal = jnp.concatenate([(now - (sums[1] - sums[0]))[None], over_last[0][len(self.ahead) :]])
        return jnp.concatenate([*parts, signals[forecasts:, 0]]), signal


def _with_changes(values: Float[Array, " n"], spans: Int[np.ndarray, " m"]) -> Float[Array, " k"]:
    """Return the newest of some values, and its changes."""
    return jnp.concatenate([values[:1], values[:1] - values[spans]])


class PhaseProfile(eqx.Module):
    """The exponentially weighted mean at the phase of each of the last p steps, newest first; it needs no clock.

    `usual` is what it said of the present step before it.
    """

    means: Float[Array, "*n p"]
    usual: Float[Array, "*n"]

    @classmethod
    def empty(cls, period: int, dtype: Any, *shape: int) -> "PhaseProfile":
        """Return the state before the first context, of as many profiles as an array of the shape has entries."""
        return cls(jnp.zeros((*shape, period), dtype), jnp.zeros(shape, dtype))

    @property
    def period(self) -> int:
        """p, how many steps a period has."""
        return self.means.shape[-1]

    def update(self, seen: Int[Array, ""], now: Float[Array, "*n"], gain: Any) -> "PhaseProfile":
        """Return the state after one more context, `gain` being its weight; the first period is taken as it is."""
        usual = jnp.where(seen < self.period, now, self.means[..., -1])
        return PhaseProfile(push(self.means, usual + jnp.asarray(gain, now.dtype) * (now - usual)), usual)

    def ahead(self, leads: Int[np.ndarray, " m"]) -> Float[Array, "*n m"]:
        """Return what it says of steps ahead."""
        return self.means[..., -leads % self.period]

    def discounted(self, rho: Any) -> Float[Array, "*n"]:
        """Return (1 - rho) sum_{j >= 1} rho^j times what it says of j steps ahead."""
        powers = jnp.exp(jnp.log(rho) * jnp.arange(self.period, 0, -1))  # a long constant ends XLA's single kernels
        return jnp.sum(self.means * powers, axis=-1) * (1 - rho) / (1 - rho**self.period)


class ContextMemory(eqx.Module):
    """The memory of `ContextFeatures`, newest first.

    `recent` are the contexts of a week, `anomalies` those of a period less what each profile had said; `profiles` are of a
    period, slowly of a period, and of a week; `weeks` is the mean week. `given` are covariates of a period.
    """

    range: ContextRange
    recent: Float[Array, " w"]
    profiles: tuple[PhaseProfile, ...]
    anomalies: Float[Array, "3 q"]
    weeks: PhaseProfile
    given: Float[Array, "c q"]
    given_profiles: PhaseProfile


class ContextFeatures(eqx.Module):
    """Features of one column and of covariates. No clock is needed: a run may start at any time.

    Of the column: the present context; its changes over 1 to 168 hours; for the profiles of a day (half-lives of 7 and 21 days)
    and of a week (3 weeks) the anomaly, its changes, and the discounted mean of the profile; what followed the same hour
    yesterday and a week ago; profiles ahead; means, deviations and extremes of the last hours. Of a covariate: itself, its
    changes and anomaly, the discounted mean of its profile, and its profile ahead. Of a forecast: its difference to the present
    context. With a typical week also harmonics of the hour, and which weekday it is: those at which that week correlates best
    with the mean week so far.

    Args:
        period: steps in a day.
        leads: of each covariate: None, or the steps ahead of a forecast.
        typical: the mean of each hour of a week (`hours_per_day` of each day), less their mean. Default: none.
    """

    period: int = eqx.field(static=True)
    leads: tuple[int | None, ...] = eqx.field(static=True, default=())
    typical: Float[Array, " h"] | None = eqx.field(default=None, converter=as_optional_float)

    def __check_init__(self):
        check_count("period", self.period)
        hours = WEEK * self.hours_per_day
        if self.typical is not None and self.typical.shape != (hours,):
            raise ValueError(f"typical must have shape ({hours},), got {self.typical.shape}.")

    def with_typical_week(self, contexts: Float[np.ndarray, "n q"]) -> "ContextFeatures":
        """Return the features with the typical week of contexts that start at the start of a day, one week of them at least."""
        hours = self.hours_per_day
        whole = contexts[: len(contexts) // (WEEK * self.period) * WEEK * self.period, 0]
        typical = whole.reshape(-1, WEEK * hours, self.period // hours).mean(axis=(0, 2))
        return ContextFeatures(self.period, self.leads, typical - typical.mean())

    @property
    def hours_per_day(self) -> int:
        """Parts of a day that the typical week tells apart, of equally many steps: 24, or the next number that divides a day."""
        return next(each for each in range(min(self.period, 24), self.period + 1) if self.period % each == 0)

    @property
    def count(self) -> int:
        """How many features there are."""
        return jax.eval_shape(lambda: self.at(self.empty(float), 0.5)).shape[0]

    @property
    def harmonics(self) -> int:
        """How many of the first features are harmonics of the hour: sines and cosines, of more than two hours a turn."""
        return 0 if self.typical is None else 2 * min(_HARMONICS, (self.hours_per_day - 1) // 2)

    @property
    def given_count(self) -> int:
        """How many features, the last ones, are made of covariates."""
        of_covariate = 3 + len(count_steps(_SPANS, self.period)) + len(count_steps(_PROFILE_LEADS, self.period))
        return sum(of_covariate if lead is None else 1 for lead in self.leads)

    @property
    def needed(self) -> int:
        """How many contexts must have been seen before features are complete: eight days."""
        return (WEEK + 1) * self.period

    def empty(self, dtype: Any) -> ContextMemory:
        """Return the memory before the first context."""
        columns, day, week = len(self.leads), self.period, WEEK * self.period
        return ContextMemory(
            range=ContextRange.empty(dtype),
            recent=jnp.zeros((week + 1,), dtype),
            profiles=tuple(PhaseProfile.empty(period, dtype) for period in (day, day, week)),
            anomalies=jnp.zeros((3, day + 1), dtype),
            weeks=PhaseProfile.empty(week, dtype),
            given=jnp.zeros((columns, day + 1), dtype),
            given_profiles=PhaseProfile.empty(day, dtype, columns),
        )

    def advance(
        self, memory: ContextMemory, seen: Int[Array, ""], now: Float[Array, ""], given: Float[Array, " c"]
    ) -> ContextMemory:
        """Return the memory after one more context and its covariates; `seen` contexts came before."""
        gains = [1 - 0.5 ** (1 / half_life) for half_life in _HALF_LIVES]
        profiles = tuple(each.update(seen, now, gain) for each, gain in zip(memory.profiles, gains, strict=True))
        weeks = jnp.minimum(seen // (WEEK * self.period) + 1, _MOST_WEEKS)
        return ContextMemory(
            range=memory.range.include(now),
            recent=push(memory.recent, now),
            profiles=profiles,
            anomalies=push(memory.anomalies, now - jnp.stack([each.usual for each in profiles])),
            weeks=memory.weeks.update(seen, now, 1 / weeks),
            given=push(memory.given, given),
            given_profiles=memory.given_profiles.update(seen, given, gains[0]),
        )

    def usual_mean(self, memory: ContextMemory, rho: Any) -> Float[Array, ""]:
        """Return z as the profile of a day and a decaying anomaly predict it."""
        decay = rho * _DAMPING ** (24 / self.period)
        anomaly = decay / (1 - decay) * memory.anomalies[0, 0]
        return (1 - rho) * (memory.recent[0] + anomaly) + memory.profiles[0].discounted(rho)

    def at(self, memory: ContextMemory, rho: Any) -> Float[Array, " k"]:
        """Return the features of the present step."""
        recent, now = memory.recent, memory.recent[:1]
        hours = _SPANS, _LEADS, _PROFILE_LEADS, _LAGS, _MEANS, _DEVIATIONS
        spans, leads, ahead, lags, means, deviations = (count_steps(each, self.period) for each in hours)
        parts = [now, now - recent[lags]]
        if self.typical is not None:
            hour, weekday = self.find_time(memory.weeks.means, self.typical)
            angle = 2 * np.pi / self.hours_per_day * np.arange(1, self.harmonics // 2 + 1) * hour
            angle = angle.astype(now.dtype)
            parts = [jnp.sin(angle), jnp.cos(angle), (weekday == np.arange(WEEK)).astype(now.dtype), *parts]
        for profile, anomalies in zip(memory.profiles, memory.anomalies, strict=True):
            before, coming = profile.usual[None], profile.discounted(rho)[None]
            parts += [_with_changes(anomalies, spans), coming - rho * now, coming - rho * before]
            if profile is not memory.profiles[1]:
                parts.append(profile.ahead(ahead) - before)
        for period in (self.period, WEEK * self.period):
            parts.append(recent[period - leads] - recent[period])
        parts += [jnp.mean(recent[:length], keepdims=True) - now for length in means]
        parts += [safe_sqrt(jnp.var(recent[: length + 1], keepdims=True)) for length in deviations]
        days = jnp.reshape(recent[: _PEAKS * self.period], (_PEAKS, self.period))
        parts += [jnp.max(days, axis=-1) - now, jnp.min(days[0], keepdims=True) - now]
        profiles = memory.given_profiles
        before, coming, later = profiles.usual[:, None], profiles.discounted(rho)[:, None], profiles.ahead(ahead)
        for place, lead in enumerate(self.leads):
            given, usual = memory.given[place], before[place]
            if lead is None:
                parts += [_with_changes(given, spans), given[:1] - usual]
                parts += [coming[place] - rho * usual, later[place] - usual]
            else:
                parts.append(given[:1] - now)
        return jnp.concatenate(parts)

    def find_time(
        self, weeks: Float[Array, " w"], typical: Float[Array, " h"]
    ) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Return the hour of a day, then the weekday, at which the typical week correlates best with the mean week."""
        hours = self.hours_per_day
        week = jnp.mean(jnp.reshape(weeks, (WEEK, hours, -1)), axis=-1)  # newest first
        usual_day, back = jnp.mean(jnp.reshape(typical, (WEEK, hours)), axis=0), np.arange(hours)
        hour = jnp.argmax(jnp.mean(week, axis=0) @ usual_day[(back - back[:, None]) % hours])
        # The fit of each day back to each day of the typical week that ends at this hour; a weekday's is the sum of seven.
        days = (hours * np.arange(WEEK)[:, None] - back).ravel()
        usual_days = jnp.reshape(typical[(hour + days) % len(days)], (WEEK, hours))
        fits = jnp.sum(week[:, None] * usual_days, axis=-1)
        weekday = np.add.outer(np.arange(WEEK), np.arange(WEEK))[..., None] % WEEK == np.arange(WEEK)
        return hour, jnp.argmax(jnp.sum(fits[..., None] * weekday.astype(weeks.dtype), axis=(0, 1)))
