"""Screen a stream of readings: replace implausible ones, and notice a meter that is stuck.

One value in the wrong unit moves every agent too far. A guard does not help, since the optimum of that day is enormous too.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ecl2o.json_text import MISSING_CODES
from ecl2o.problem.arrays import AnyArray, as_float, concrete_value, pad_rows, to_device

_TAIL = 0.005  # share of the readings at each end that may be outliers
# Measured on loads, net loads, weather and requests, trained on 61 days to two years (docs/decisions.md).
_FAR_FROM_ZERO = 0.2  # from this share of its high end on, the low end of a series is far above zero
_LEAST_SHARE = 0.25  # of the lowest reading of a series far above zero is plausible
_GENUINE_ZEROS = 0.02  # share of zeros from which on zero is the lowest value of a series that is never negative
_LONGEST_RUN = 2  # times the longest run of equal readings in training is plausible
# Of a covariate's profile: hours, half-life in days, what is left of a deviation after an hour.
_HOURS, _HALF_LIFE, _DECAY = 24, 7, 0.9


class HourlyProfile(NamedTuple):
    """Decaying means of k covariates in each hour of the day, their numbers of readings, and the number of steps so far."""

    means: Float[Array, "hours k"]
    counts: Int[Array, "hours k"]
    step: Int[Array, ""]


class ScreenState(NamedTuple):
    """For each of the q numbers: the value in use, the runs of implausible and of equal readings, and the accepted new level."""

    used: Float[Array, " q"]
    run: Int[Array, " q"]  # how many implausible readings in a row
    run_low: Float[Array, " q"]
    run_high: Float[Array, " q"]
    level_low: Float[Array, " q"]
    level_high: Float[Array, " q"]
    reading: Float[Array, " q"]  # the last one that was not missing
    repeats: Int[Array, " q"]  # how many readings in a row were equal to it, itself included
    profile: HourlyProfile | None = None  # of the covariates, if there are any


class Screen(eqx.Module):
    """A rule that replaces implausible readings.

    Each of the q numbers is screened by itself: one that is missing (NaN or infinite) or out of range is replaced by the last
    plausible one. A *lasting* change is accepted: the `patience`-th implausible reading in a row is used as it is. From then
    on the interval of that run, widened on both sides by its width or the range's, whichever is larger, is plausible too.
    Missing readings neither count nor interrupt a run; so do usual codes for them, such as -9999, that are out of range.

    The last `covariates` numbers are replaced by the mean of their hour of the day in the last weeks, plus the last deviation
    from it, which decays; by the last plausible one until the hour has been seen. They never lack a value.

    More than `stuck_after` equal readings in a row are *stuck*. They are reported, and used if they are plausible; implausible
    ones never become a new level.

    Args:
        low: (q,), smallest plausible reading; minus infinity for no bound.
        high: (q,), largest plausible reading, not below `low`; infinity for no bound.
        patience: Implausible readings in a row that make a new level; at least 1.
        stuck_after: (q,), equal readings in a row that are not stuck yet. Default: infinity, none is ever stuck.
        covariates: How many numbers at the end of a context are not followed. Default: 0.
        period: Steps in a day, for their profiles. Default: 24.
        unscreened: How many numbers at the end of a context are used as they are, also if missing. Default: 0.

    Raises:
        ValueError: `low` is above `high`, or `patience` or `stuck_after` is below 1.

    >>> screen = Screen(low=[0.0], high=[10.0], patience=3)
    >>> used, replaced = screen.apply(jnp.array([[4.0], [4000.0], [5.0], [50.0], [51.0], [52.0], [53.0]]))
    >>> used.ravel().tolist(), replaced.ravel().tolist()
    ([4.0, 4.0, 5.0, 5.0, 5.0, 52.0, 53.0], [False, True, False, True, True, False, False])
    """

    low: Float[Array, " q"] = eqx.field(converter=as_float)
    high: Float[Array, " q"] = eqx.field(converter=as_float)
    patience: Float[Array, ""] = eqx.field(converter=as_float)  # an array: policies of many sites can be stacked
    stuck_after: Float[Array, "*q"] = eqx.field(converter=as_float, default=np.inf)
    covariates: int = eqx.field(static=True, default=0)
    period: int = eqx.field(static=True, default=24)
    unscreened: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        numbers = [concrete_value(leaf) for leaf in (self.low, self.high, self.patience, self.stuck_after)]
        if any(leaf is None for leaf in numbers):
            return
        low, high, patience, stuck_after = map(np.asarray, numbers)
        if low.shape != high.shape or not (low <= high).all():
            raise ValueError(f"low must not be above high, got {low} and {high}.")
        for name, count in (("patience", patience), ("stuck_after", stuck_after)):
            if not (count >= 1).all():
                raise ValueError(f"{name} must be at least 1, got {count}.")

    @classmethod
    def of(
        cls,
        ranges: Sequence[tuple[float, float]],
        patience: int,
        stuck_after: Sequence[float] | None = None,
        covariates: int = 0,
        period: int = 24,
        unscreened: int = 0,
    ) -> "Screen":
        """Return a screen from (low, high), and `stuck_after`, of each number."""
        low, high = zip(*ranges, strict=True)
        limits = np.full(len(low), np.inf) if stuck_after is None else np.array(stuck_after, float)
        known = covariates, period, unscreened
        return cls(np.array(low, float), np.array(high, float), np.array(patience, float), limits, *known)

    def init(self, dtype: Any) -> ScreenState:
        """Return the state before the first reading; the value in use is NaN until there is a plausible one."""
        nothing = jnp.full(self.low.shape, jnp.nan, dtype)
        above, below = jnp.full_like(nothing, jnp.inf), jnp.full_like(nothing, -jnp.inf)
        none = jnp.zeros(self.low.shape, int)
        profile = None
        if self.covariates:
            hours = min(self.period, _HOURS), self.covariates
            profile = HourlyProfile(jnp.zeros(hours, dtype), jnp.zeros(hours, int), jnp.zeros((), int))
        return ScreenState(nothing, none, above, below, above, below, nothing, none, profile)

    def step(
        self, state: ScreenState, reading: Float[Array, " q"]
    ) -> tuple[ScreenState, Float[Array, " q"], Bool[Array, " q"], Bool[Array, " q"]]:
        """Return the state after a reading, the context to use, and which of its numbers were replaced and are stuck."""
        in_range = (reading >= self.low) & (reading <= self.high)
        at_level = (reading >= state.level_low) & (reading <= state.level_high)
        is_code = (reading[:, None] == jnp.array(MISSING_CODES, reading.dtype)).any(axis=1)
        missing = ~jnp.isfinite(reading) | (is_code & ~in_range & ~at_level)
        implausible = ~(missing | in_range | at_level)
        repeats = jnp.where(missing, state.repeats, jnp.where(reading == state.reading, state.repeats + 1, 1))
        stuck = ~missing & (repeats > self.stuck_after)
        run = jnp.where(missing | (implausible & stuck), state.run, jnp.where(implausible, state.run + 1, 0))
        before_low = jnp.where(state.run > 0, state.run_low, jnp.inf)
        before_high = jnp.where(state.run > 0, state.run_high, -jnp.inf)
        run_low = jnp.where(implausible, jnp.minimum(reading, before_low), state.run_low)
        run_high = jnp.where(implausible, jnp.maximum(reading, before_high), state.run_high)
        lasting = implausible & ~stuck & (run >= self.patience)
        margin = jnp.maximum(run_high - run_low, self.high - self.low)
        replaced = missing | (implausible & ~lasting)
        instead, profile = state.used, None
        if state.profile is not None:
            instead = jnp.concatenate([instead[: -self.covariates], self._impute(state, state.profile)])
            profile = self._update_profile(state.profile, reading[-self.covariates :], ~replaced[-self.covariates :])
        used = jnp.where(replaced, instead, reading)
        if self.unscreened:
            screened = np.arange(len(self.low)) < len(self.low) - self.unscreened
            used, replaced, stuck = jnp.where(screened, used, reading), replaced & screened, stuck & screened
        level_low = jnp.where(lasting, _widen_below(run_low, margin, self.low > 0), state.level_low)
        level_high = jnp.where(lasting, -_widen_below(-run_high, margin, self.high < 0), state.level_high)
        run, reading = jnp.where(lasting, 0, run), jnp.where(missing, state.reading, reading)
        state = ScreenState(used, run, run_low, run_high, level_low, level_high, reading, repeats, profile)
        return state, used, replaced, stuck

    def _impute(self, state: ScreenState, profile: HourlyProfile) -> Float[Array, " k"]:
        """Return covariates for a step without readings."""
        last, low, high, level_low, level_high = (
            each[-self.covariates :] for each in (state.used, self.low, self.high, state.level_low, state.level_high)
        )
        hours = profile.means.shape[0]
        now, before = ((profile.step - back) * hours // self.period % hours for back in (0, 1))
        usual, usual_before = (jnp.where(profile.counts[hour] > 0, profile.means[hour], last) for hour in (now, before))
        decayed = usual + _DECAY ** (_HOURS / self.period) * jnp.where(jnp.isfinite(last), last - usual_before, 0.0)
        return jnp.clip(jnp.nan_to_num(decayed), jnp.minimum(low, level_low), jnp.maximum(high, level_high))

    def _update_profile(
        self, profile: HourlyProfile, reading: Float[Array, " k"], is_real: Bool[Array, " k"]
    ) -> HourlyProfile:
        hours = profile.means.shape[0]
        hour = profile.step * hours // self.period % hours
        mean, count = profile.means[hour], profile.counts[hour]
        gain = jnp.maximum(1 / (count + 1), 1 - 0.5 ** (hours / (_HALF_LIFE * self.period))).astype(mean.dtype)
        means = profile.means.at[hour].set(jnp.where(is_real, mean + gain * (reading - mean), mean))
        return HourlyProfile(means, profile.counts.at[hour].set(count + is_real), profile.step + 1)

    def scan(self, history: Float[Array, "H q"]) -> tuple[ScreenState, Float[Array, "H q"], Bool[Array, "H q"]]:
        """Return the state after a series, the contexts to use, and which of their numbers were replaced.

        An implausible first reading is clipped to the range.
        """
        state = self.init(history.dtype)
        if history.shape[0] == 0:
            return state, history, jnp.zeros(history.shape, bool)
        first = history[0]
        if self.covariates:
            known = jnp.argmax(jnp.isfinite(history[:, -self.covariates :]), axis=0)
            first = first.at[-self.covariates :].set(history[known, -self.covariates + np.arange(self.covariates)])
        state = state._replace(used=jnp.clip(jnp.nan_to_num(first), self.low, self.high))

        def see(state, reading):
            state, used, replaced, _ = self.step(state, reading)
            return state, (used, replaced)

        state, (used, replaced) = jax.lax.scan(see, state, history)
        return state, used, replaced

    def apply(self, readings: Float[AnyArray, "T q"]) -> tuple[Float[np.ndarray, "T q"], Bool[np.ndarray, "T q"]]:
        """Screen a whole series as a stream; return the contexts to use, and which of their numbers were replaced."""
        values = np.asarray(to_device(readings))
        screened = values[:, : values.shape[1] - self.unscreened]
        low, high = (np.asarray(end)[: screened.shape[1]] for end in (self.low, self.high))
        if ((screened >= low) & (screened <= high) & np.isfinite(screened)).all():  # nothing to replace, or to compile
            return values, np.zeros(values.shape, bool)
        used, replaced = _scan(self, to_device(pad_rows(readings)))
        return np.asarray(used)[: len(readings)], np.asarray(replaced)[: len(readings)]


@eqx.filter_jit
def _scan(screen: Screen, readings: Float[Array, "T q"]) -> tuple[Float[Array, "T q"], Bool[Array, "T q"]]:
    return screen.scan(readings)[1:]


def _widen_below(low: Any, margin: Any, is_far_above_zero: Any, xp: Any = jnp) -> Any:
    """Return the lowest plausible reading of a series that reaches down to `low`: `margin` less, or a quarter of `low`."""
    return xp.where(is_far_above_zero & (low > 0), xp.maximum(low - margin, _LEAST_SHARE * low), low - margin)


def plausible_range(values: np.ndarray) -> list[tuple[float, float]]:
    """Return the range of past contexts without outliers, widened by its width on both sides, with regard to zero.

    Zero is what many meters send when they fail. The low end of a series far above zero (at least a fifth of its high end) is
    not below a quarter of it. The low end of a series that is never negative, but often zero, is zero. The same holds for the
    high end of a series below zero.

    Args:
        values: (n, q), past contexts, NaN where one is missing; half a percent at each end counts as outliers.

    Returns:
        (low, high) of each of the q numbers; infinite ends for one that hardly ever changes.

    >>> plausible_range(np.array([[-5.0], [10.0]] * 500 + [[9e9]])), plausible_range(np.array([[20.0], [30.0]] * 500))
    ([(-20.0, 25.0)], [(10.0, 40.0)])
    >>> plausible_range(np.array([[0.0], [10.0]] * 500)), plausible_range(np.array([[20.0], [50.0]] * 500))
    ([(0.0, 20.0)], [(5.0, 80.0)])
    """
    values = np.asarray(values, float)
    return list(zip(_low_ends(values).tolist(), (-_low_ends(-values)).tolist(), strict=True))


def _low_ends(values: Float[np.ndarray, "n q"]) -> Float[np.ndarray, " q"]:
    low, high = np.nanquantile(values, [_TAIL, 1 - _TAIL], axis=0)
    is_floor = ~(values < 0).any(axis=0) & ((values == 0).mean(axis=0) >= _GENUINE_ZEROS)
    widened = np.where(is_floor, 0.0, _widen_below(low, high - low, low >= _FAR_FROM_ZERO * high, np))
    return np.where(high > low, widened, -np.inf)


def stuck_limits(values: np.ndarray) -> list[float]:
    """Return how many equal readings in a row are plausible: twice as many as the longest run of past contexts has.

    Args:
        values: (n, q), past contexts.

    Returns:
        The limit of each of the q numbers; infinity for one that never changes.

    >>> stuck_limits(np.array([[1.0, 7.0], [0.0, 7.0], [0.0, 7.0], [2.0, 7.0]]))
    [4.0, inf]
    """
    limits = []
    for column in np.asarray(values, float).T:
        changes = np.flatnonzero(np.diff(column)) + 1
        longest = np.diff(np.concatenate([[0], changes, [len(column)]])).max()
        limits.append(_LONGEST_RUN * float(longest) if len(changes) else np.inf)
    return limits
