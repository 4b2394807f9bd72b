"""Features of the contexts so far, without a clock."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.lib.stride_tricks import sliding_window_view

from ecl2o.problem.arrays import AnyArray, check_count, safe_sqrt, to_device

WEEK = 7  # periods
_LAGS = (*range(1, 11), 12, 14, 16, 18, *range(20, 25), 36, 48, 72, 96, 120, 144, 168)  # hours, of 24 in a period
_PEAKS = 4  # last periods whose highest contexts are features
_SPANS = (1, 2, 3, 6, 12, 24)  # hours over which anomalies change
_LEADS = (1, 2, 3, 4, 6, 8, 12)  # hours ahead, a period or a week ago
_PROFILE_LEADS = (*_LEADS, 16, 20)
_MEANS, _DEVIATIONS = (3, 6, 12, 24, 48, 72, 120, 168), (6, 24)  # hours
_HALF_LIVES = (7.0, 21.0, 3.0)  # of two profiles of a period and one of a week, in their periods
_DAMPING = 0.9  # of the present anomaly, per hour
_MOST_WEEKS = 52  # that the mean week remembers
_HARMONICS = 3  # of the hour, at most


def _to_device_or_none(values: Any) -> Any:
    return None if values is None else to_device(values)


class ContextMemory(eqx.Module):
    """What features are made of; the last axis of every array counts steps back, 0 being the present one.

    Args:
        recent: the contexts of a week.
        profiles: of a period, slowly of a period, of a week: the exponentially weighted mean at the phase of each step.
        usual: what each profile said of the present step before it.
        anomalies: the contexts less what each profile had said, of a period.
        weeks: the mean of all weeks so far (at most `_MOST_WEEKS`, about).
        given: covariates of a period.
        given_profiles: their profiles.
        given_usual: what these said of the present step before it.
    """

    recent: Float[AnyArray, "*n w"]
    profiles: tuple[Float[AnyArray, "*n _"], ...]
    usual: Float[AnyArray, "*n 3"]
    anomalies: Float[AnyArray, "*n 3 q"]
    weeks: Float[AnyArray, "*n v"]
    given: Float[AnyArray, "*n c q"]
    given_profiles: Float[AnyArray, "*n c p"]
    given_usual: Float[AnyArray, "*n c"]


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
    typical: Float[Array, " h"] | None = eqx.field(default=None, converter=_to_device_or_none)

    def __check_init__(self):
        check_count("period", self.period)
        hours = WEEK * self.hours_per_day
        if self.typical is not None and self.typical.shape != (hours,):
            raise ValueError(f"typical must have shape ({hours},), got {self.typical.shape}.")

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
    def needed(self) -> int:
        """How many contexts must have been seen before features are complete: eight days."""
        return (WEEK + 1) * self.period

    @property
    def periods(self) -> tuple[int, int, int]:
        """How many steps the three profiles have."""
        return self.period, self.period, WEEK * self.period

    @property
    def _damping(self) -> float:
        return _DAMPING ** (24 / self.period)

    @property
    def given_count(self) -> int:
        """How many features, the last ones, are made of covariates."""
        of_covariate = 3 + len(self._steps(_SPANS)) + len(self._steps(_PROFILE_LEADS))
        return sum(of_covariate if lead is None else 1 for lead in self.leads)

    def _steps(self, hours: tuple[int, ...]) -> Int[np.ndarray, " n"]:
        return np.array(sorted({max(1, round(each * self.period / 24)) for each in hours}))

    def empty(self, dtype) -> ContextMemory:
        """Return the memory before the first context."""
        count, P = len(self.leads), self.period
        return ContextMemory(
            recent=jnp.zeros((WEEK * P + 1,), dtype),
            profiles=tuple(jnp.zeros((each,), dtype) for each in self.periods),
            usual=jnp.zeros((3,), dtype),
            anomalies=jnp.zeros((3, P + 1), dtype),
            weeks=jnp.zeros((WEEK * P,), dtype),
            given=jnp.zeros((count, P + 1), dtype),
            given_profiles=jnp.zeros((count, P), dtype),
            given_usual=jnp.zeros((count,), dtype),
        )

    def advance(self, memory: ContextMemory, seen: Int[Array, ""], now: Float[Array, ""], given: Float[Array, " c"]):
        """Return the memory after one more context."""
        dtype = now.dtype
        gains = [1 - 0.5 ** (1 / each) for each in (*_HALF_LIVES, _HALF_LIVES[0])]
        usual = jnp.stack(
            [
                jnp.where(seen < period, now, profile[-1])
                for profile, period in zip(memory.profiles, self.periods, strict=True)
            ]
        )
        profiles = tuple(
            _push(profile, before + jnp.asarray(gain, dtype) * (now - before))
            for profile, before, gain in zip(memory.profiles, usual, gains, strict=False)
        )
        weeks = seen // (WEEK * self.period)
        mean = jnp.where(weeks == 0, now, memory.weeks[-1])
        given_usual = jnp.where(seen < self.period, given, memory.given_profiles[:, -1])
        return ContextMemory(
            recent=_push(memory.recent, now),
            profiles=profiles,
            usual=usual,
            anomalies=_push(memory.anomalies, now - usual),
            weeks=_push(memory.weeks, mean + (now - mean) / jnp.minimum(weeks + 1, _MOST_WEEKS).astype(dtype)),
            given=_push(memory.given, given),
            given_profiles=_push(
                memory.given_profiles, given_usual + jnp.asarray(gains[-1], dtype) * (given - given_usual)
            ),
            given_usual=given_usual,
        )

    def remember(self, contexts: Float[np.ndarray, "n q"], rows: Int[np.ndarray, " r"]) -> ContextMemory:
        """Return the memory at some rows of a series, each at least `needed`, as `advance` makes it, in NumPy."""

        def back(values, length):
            """The last `length` values up to each row, newest first."""
            return sliding_window_view(values, length, axis=0)[rows - length + 1][..., ::-1]

        now, given = contexts[:, 0], contexts[:, contexts.shape[1] - len(self.leads) :]
        profiles = [_profile(now, *each) for each in zip(self.periods, _HALF_LIVES, strict=True)]
        usual = np.stack(
            [_before(now, each, period) for each, period in zip(profiles, self.periods, strict=True)], axis=-1
        )
        given_profiles = _profile(given, self.period, _HALF_LIVES[0])
        return ContextMemory(
            recent=back(now, WEEK * self.period + 1),
            profiles=tuple(back(each, period) for each, period in zip(profiles, self.periods, strict=True)),
            usual=usual[rows],
            anomalies=back(now[:, None] - usual, self.period + 1),
            weeks=back(_mean_period(now, WEEK * self.period), WEEK * self.period),
            given=back(given, self.period + 1),
            given_profiles=back(given_profiles, self.period),
            given_usual=_before(given, given_profiles, self.period)[rows],
        )

    def usual_mean(self, memory: ContextMemory, rho: Any) -> Float[AnyArray, "*n"]:
        """Return z as the profile of a day and a decaying anomaly predict it."""
        xp: Any = np if isinstance(memory.recent, np.ndarray) else jnp
        decay = rho * self._damping
        coming = _discounted_profile(xp, memory.profiles[0], rho)[..., 0]
        return (1 - rho) * (memory.recent[..., 0] + decay / (1 - decay) * memory.anomalies[..., 0, 0]) + coming

    def at(self, memory: ContextMemory, rho: Any) -> Float[AnyArray, "*n k"]:
        """Return the features of a memory, or of many."""
        xp: Any = np if isinstance(memory.recent, np.ndarray) else jnp
        recent, now = memory.recent, memory.recent[..., :1]
        spans, leads, ahead = self._steps(_SPANS), self._steps(_LEADS), self._steps(_PROFILE_LEADS)
        parts = []
        if self.typical is not None:
            hour, weekday = self._calendar(xp, memory)
            angle = (2 * np.pi / self.hours_per_day * np.arange(1, self.harmonics // 2 + 1) * hour).astype(now.dtype)
            parts = [xp.sin(angle), xp.cos(angle), (weekday == np.arange(WEEK)).astype(now.dtype)]
        parts += [now, now - recent[..., self._steps(_LAGS)]]
        for kind, (profile, period) in enumerate(zip(memory.profiles, self.periods, strict=True)):
            anomaly, before = memory.anomalies[..., kind, :], memory.usual[..., kind, None]
            coming = _discounted_profile(xp, profile, rho)
            parts += [
                anomaly[..., :1],
                anomaly[..., :1] - anomaly[..., spans],
                coming - rho * now,
                coming - rho * before,
            ]
            if kind != 1:
                parts += [profile[..., -ahead % period] - before]
        for period in (self.period, WEEK * self.period):
            parts.append(recent[..., period - leads] - recent[..., period, None])
        for length in self._steps(_MEANS):
            parts.append(xp.mean(recent[..., :length], axis=-1, keepdims=True) - now)
        for length in self._steps(_DEVIATIONS):
            variance = xp.var(recent[..., : length + 1], axis=-1, keepdims=True)
            parts.append(np.sqrt(variance) if xp is np else safe_sqrt(variance))
        days = xp.reshape(recent[..., : _PEAKS * self.period], (*recent.shape[:-1], _PEAKS, self.period))
        parts += [xp.max(days, axis=-1) - now, xp.min(days[..., 0, :], axis=-1, keepdims=True) - now]
        for place, lead in enumerate(self.leads):
            if lead is not None:
                parts.append(memory.given[..., place, :1] - now)
                continue
            given, before = memory.given[..., place, :], memory.given_usual[..., place, None]
            profile = memory.given_profiles[..., place, :]
            parts += [given[..., :1], given[..., :1] - given[..., spans], given[..., :1] - before]
            parts += [_discounted_profile(xp, profile, rho) - rho * before, profile[..., -ahead % self.period] - before]
        return xp.concatenate(parts, axis=-1)

    def _calendar(self, xp: Any, memory: ContextMemory) -> list[Int[AnyArray, "*n 1"]]:
        """Return the hour of a day, then the weekday, at which the typical week correlates best with the mean week."""
        hours, typical = self.hours_per_day, xp.asarray(self.typical)
        steps = self.period // hours
        week = xp.mean(xp.reshape(memory.weeks, (*memory.weeks.shape[:-1], -1, steps)), axis=-1)  # newest first
        day = xp.mean(xp.reshape(week, (*week.shape[:-1], WEEK, hours)), axis=-2)
        usual_day, back = xp.mean(xp.reshape(typical, (WEEK, hours)), axis=0), np.arange(hours)
        hour = xp.argmax(day @ usual_day[(back - back[:, None]) % hours], axis=-1)
        # The fit of each day back to each day of the typical week that ends at this hour; a weekday's is the sum of seven.
        days = (hours * np.arange(WEEK)[:, None] - back).ravel()
        shape = (*hour.shape, WEEK, hours)
        usual_days = xp.reshape(typical[(hour[..., None] + days) % len(days)], shape)
        fits = xp.sum(xp.reshape(week, shape)[..., None, :] * usual_days[..., None, :, :], axis=-1)
        weekday = np.add.outer(np.arange(WEEK), np.arange(WEEK))[..., None] % WEEK == np.arange(WEEK)
        fits = xp.sum(fits[..., None] * weekday.astype(week.dtype), axis=(-3, -2))
        return [hour[..., None], xp.argmax(fits, axis=-1)[..., None]]

    def with_typical_week(self, contexts: Float[np.ndarray, "n q"]) -> "ContextFeatures":
        """Return the features with the typical week of contexts that start at the start of a day, one week of them at least."""
        hours = self.hours_per_day
        whole = contexts[: len(contexts) // (WEEK * self.period) * WEEK * self.period, 0]
        typical = whole.reshape(-1, WEEK * hours, self.period // hours).mean(axis=(0, 2))
        return ContextFeatures(self.period, self.leads, typical - typical.mean())


def _push(memory: Any, newest: Any) -> Any:
    return jnp.concatenate([newest[..., None], memory[..., :-1]], axis=-1)


def _profile(values: Float[np.ndarray, "n ..."], period: int, half_life: float) -> Float[np.ndarray, "n ..."]:
    """Return at each step the exponentially weighted mean of its phase, the present included."""
    found, gain = values.astype(float), 1 - 0.5 ** (1 / half_life)
    for start in range(period, len(found), period):
        before = found[start - period : start][: len(found) - start]
        found[start : start + period] = before + gain * (values[start : start + period] - before)
    return found


def _mean_period(values: Float[np.ndarray, " n"], period: int) -> Float[np.ndarray, " n"]:
    """Return at each step the mean of its phase so far, the present included."""
    found = values.astype(float)
    for number, start in enumerate(range(period, len(found), period), 2):
        before = found[start - period : start][: len(found) - start]
        found[start : start + period] = before + (values[start : start + period] - before) / min(number, _MOST_WEEKS)
    return found


def _before(values: Float[np.ndarray, "n ..."], profile: Float[np.ndarray, "n ..."], period: int):
    """Return what the profile said of each step before it; the value itself in the first period."""
    return np.concatenate([values[:period], profile[:-period]])


def _discounted_profile(xp: Any, profile: Float[AnyArray, "*n p"], rho: Any) -> Float[AnyArray, "*n 1"]:
    """Return (1 - rho) sum_{j >= 1} rho^j times the profile j steps ahead."""
    period = profile.shape[-1]
    powers = xp.exp(xp.log(rho) * xp.arange(period, 0, -1))  # as a constant, a long one ends XLA's single kernels
    return xp.sum(profile * powers, axis=-1, keepdims=True) * (1 - rho) / (1 - rho**period)
