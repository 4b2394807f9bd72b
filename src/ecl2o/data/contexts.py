"""Contexts on a clock, split by days, and cut into the instances that agents learn from and are tested on."""

import re
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ecl2o.data.series import SeriesMetadata
from ecl2o.data.tables import LARGEST
from ecl2o.data.timestamps import COUNTER_START
from ecl2o.data.weather_files import WeatherMetadata
from ecl2o.exceptions import DataError
from ecl2o.problem import Instance


@dataclass(frozen=True)
class Split:
    """Days for training, then for validation; the rest is for testing.

    Args:
        training_days: the first days. Default: 60.
        validation_days: the days after them. Default: 30.
    """

    training_days: int = 60
    validation_days: int = 30

    def __post_init__(self):
        if self.training_days < 2 or self.validation_days < 0:
            given = f"{self.training_days} and {self.validation_days}"
            raise DataError(f"training_days must be at least 2 and validation_days not negative, got {given}.")


class Days(NamedTuple):
    """Consecutive days for continuous testing: `rollout_days(agent, problem, *days)`.

    Args:
        x0: (d,), what was followed last before them.
        days: (n, T, q).
        history: (H, q), the contexts before them; None if none were asked for.
    """

    x0: np.ndarray
    days: np.ndarray
    history: np.ndarray | None


@dataclass(frozen=True)
class Contexts:
    """Contexts y_t over time, divided into whole days from the first entry on.

    Args:
        values: (n, q): what is followed, a weight, covariates; NaN where a covariate is missing and not yet imputed.
        time: n times, the beginning of each step.
        metadata: where they come from. Default: not known.
        steps_per_day: T. Default: 24.
        split: which days are for what. Default: 60 for training, 30 for validation, the rest for testing.
        scale: the factor by which the values in their own unit (watts for weather) were multiplied. Default: 1.
        preset: that of the demand-response study. Default: none, another series.
        base_shortage: that of the demand-response study, in W. Default: none, another series.
    """

    values: np.ndarray
    time: pd.DatetimeIndex
    metadata: WeatherMetadata | SeriesMetadata | None = None
    steps_per_day: int = 24
    split: Split = field(default_factory=Split)
    scale: float = 1.0
    preset: str | None = None
    base_shortage: float | None = None

    def __post_init__(self):
        if self.values.ndim != 2 or self.values.dtype != np.float64 or len(self.values) != len(self.time):
            raise DataError(
                f"values must be float64 of shape (n, q) with the n of time, {len(self.time)}; "
                f"got {self.values.dtype} of shape {self.values.shape}."
            )
        core = self.values[:, : self.dim - len(self.covariates)]
        if not np.isfinite(core).all():
            row = int(np.argmax(~np.isfinite(core).all(axis=1)))
            raise DataError(f"values must be finite, but the row of {self.time[row]} is {self.values[row]}.")
        greatest = np.abs(core).max(initial=0.0)
        if greatest > LARGEST or 0 < greatest < 1 / LARGEST:
            raise DataError(
                f"the largest value of {self.name} is {greatest:g}, and its square is lost in rounding; use another unit, so "
                f"that it lies between {1 / LARGEST:g} and {LARGEST:g}."
            )
        needed = self._first_test_day + 1
        if self.n_days < needed:
            shorter = "" if self.preset else ", or a shorter split (training_days, validation_days)"
            raise DataError(
                f"{self.name} has {self.n_days} whole days ({len(self.values)} steps, {self.steps_per_day} a day), but "
                f"{needed} are needed: {self.split.training_days} for training, {self.split.validation_days} for validation, "
                f"and at least 1 for testing. Use a longer series{shorter}."
            )

    @property
    def n_days(self) -> int:
        """The number of whole days; a part of a day at the end is not used."""
        return len(self.values) // self.steps_per_day

    @property
    def dim(self) -> int:
        """q, how many numbers a context has."""
        return self.values.shape[1]

    @property
    def weighted(self) -> bool:
        """Whether contexts have the weight of a miss, after what is followed."""
        return isinstance(self.metadata, SeriesMetadata) and self.metadata.weight_column is not None

    @property
    def covariates(self) -> dict[str, float | None]:
        """The last numbers of a context, which are not followed: None, or the hours ahead of a forecast, by name."""
        return self.metadata.covariates if isinstance(self.metadata, SeriesMetadata) else {}

    @property
    def leads(self) -> tuple[int | None, ...]:
        """How many steps ahead each covariate forecasts what is followed, None if it does not.

        With several followed columns a forecast counts as any covariate.
        """
        hours = [lead if self.action_dim == 1 else None for lead in self.covariates.values()]
        step = self.metadata.step_minutes if isinstance(self.metadata, SeriesMetadata) else 60.0
        return tuple(None if lead is None else round(lead * 60 / step) for lead in hours)

    @property
    def action_dim(self) -> int:
        """d, how many numbers of a context are followed: all but a weight and covariates."""
        return self.dim - self.weighted - len(self.covariates)

    @property
    def followed(self) -> np.ndarray:
        """The numbers of the contexts that actions follow, (n, d)."""
        return self.values[:, : self.action_dim]

    @property
    def weights(self) -> np.ndarray:
        """The weights of misses of a `weighted` series, (n,)."""
        return self.values[:, self.action_dim]

    @property
    def training(self) -> np.ndarray:
        """The contexts of the training days, (steps, q)."""
        return self.values[: self.split.training_days * self.steps_per_day]

    @property
    def measured(self) -> np.ndarray:
        """Whether each context was measured, (n,), rather than imputed by `fill`."""
        imputed = self.metadata.imputed if isinstance(self.metadata, SeriesMetadata) else None
        if imputed is None:
            return np.ones(len(self.time), bool)
        return ~self.time.isin(imputed.index[imputed.any(axis=1)])

    @property
    def measured_days(self) -> np.ndarray:
        """Whether all contexts of each day were measured, (n_days,); the other days are not scored."""
        return np.all(self.measured[: self.n_days * self.steps_per_day].reshape(self.n_days, -1), axis=1)

    def describe_imputed(self) -> str | None:
        """Return what imputed contexts are left out of, in words; None if there are none."""
        imputed, split = ~self.measured_days, self.split
        training, validation, test = np.split(imputed, np.cumsum([split.training_days, split.validation_days]))
        if not imputed.any():
            return None
        count = int((~self.measured).sum())
        return (
            f"{count} imputed row{'s' * (count > 1)}: {test.sum()} of {len(test)} test days and {validation.sum()} "
            f"of {len(validation)} validation days have one and are not scored; training leaves out what contains one, on "
            f"{training.sum()} of {len(training)} days."
        )

    def measured_starts(self, starts: np.ndarray, steps: int) -> np.ndarray:
        """Return those first steps whose windows have no imputed context; if there are none, those with the fewest."""
        imputed = np.concatenate([[0], np.cumsum(~self.measured)])
        counts = imputed[starts + steps] - imputed[starts]
        return starts[counts == counts.min()]

    def training_windows(
        self,
        steps: int | None = None,
        history_steps: int = 0,
        starts: np.ndarray | None = None,
        most: int | None = None,
    ) -> Instance:
        """Return all windows inside the training days as a set of instances, without those that have an imputed context.

        x_0 is the context before the window, so 60 days of 24 hours give 1,416 windows.

        Args:
            steps: length of a window. Default: a day.
            history_steps: contexts before the window, the last of which is x_0; windows that begin too early are left out.
            starts: first steps of the windows. Default: all.
            most: the greatest number of windows, taken at even distances. Default: all.
        """
        steps = self.steps_per_day if steps is None else steps
        training = self.training
        if starts is None:
            starts = np.arange(max(1, history_steps), len(training) - steps + 1)
        if steps < 1 or history_steps < 0 or not len(starts):
            raise DataError(
                f"no window of {steps} steps with {history_steps} before it fits in the {len(training)} training steps of "
                f"{self.name}. Ask for shorter windows or less history, or use more training days."
            )
        starts = self.measured_starts(starts, steps)
        if most is not None and len(starts) > most:
            starts = starts[np.linspace(0, len(starts) - 1, most).astype(int)]
        contexts = training[starts[:, None] + np.arange(steps)]
        history = training[starts[:, None] + np.arange(-history_steps, 0)] if history_steps else None
        return Instance(self.followed[starts - 1], contexts, history)

    def validation_days(self, history_steps: int = 0) -> Days:
        """Return the validation days, and `history_steps` contexts before them."""
        return self._days(self.split.training_days, self._first_test_day, history_steps)

    def test_days(self, history_steps: int = 0) -> Days:
        """Return the test days, and `history_steps` contexts before them."""
        return self._days(self._first_test_day, self.n_days, history_steps)

    def test_time(self) -> pd.DatetimeIndex:
        """Return the time of each step of the test days."""
        return self.time[self._first_test_day * self.steps_per_day : self.n_days * self.steps_per_day]

    def scale_by(self, factor: float | int) -> "Contexts":
        """Multiply what is followed, and its forecasts, by a factor, and note it in `scale`."""
        if not (np.isfinite(factor) and factor > 0):
            raise DataError(f"the factor must be positive and finite, got {factor}.")
        factors = np.where(np.arange(self.dim) < self.action_dim, factor, 1.0)
        factors[self.dim - len(self.covariates) :] = [
            1.0 if lead is None else factor for lead in self.covariates.values()
        ]
        return replace(self, values=self.values * factors, scale=self.scale * factor)

    def scale_to(self, largest: float | int = 1.0) -> "Contexts":
        """Scale all columns by one factor so that the largest absolute value of the *training* days is `largest`."""
        greatest = float(np.abs(self.followed[: len(self.training)]).max())
        if greatest == 0:
            raise DataError(f"the training contexts of {self.name} are all 0 and cannot be scaled.")
        return self.scale_by(largest / greatest)

    def _days(self, first: int, last: int, history_steps: int) -> Days:
        start = first * self.steps_per_day
        if not 0 <= history_steps <= start:
            raise DataError(f"history_steps must be from 0 to {start}, the steps before them, got {history_steps}.")
        if first == last:
            raise DataError(f"the split of {self.name} has no days here; see split.")
        days = self.values[start : last * self.steps_per_day].reshape(last - first, self.steps_per_day, self.dim)
        history = self.values[start - history_steps : start] if history_steps else None
        return Days(self.followed[start - 1], days, history)

    @property
    def _first_test_day(self) -> int:
        return self.split.training_days + self.split.validation_days

    @property
    def name(self) -> str:
        """The file that they come from, for messages."""
        return "the series" if self.metadata is None else self.metadata.file


def series_contexts(frame: pd.DataFrame, metadata: SeriesMetadata, split: Split = Split()) -> Contexts:
    """Return the contexts of a series, unscaled.

    Args:
        frame: one column for each number of a context, on a regular clock, as `read_series` gives it.
        metadata: where it comes from.
        split: which days are for what. Default: 60 for training, 30 for validation, the rest for testing.
    """
    values = np.ascontiguousarray(frame.to_numpy(np.float64))
    return Contexts(values, pd.DatetimeIndex(frame.index), metadata, metadata.steps_per_day, split)


_MONDAY = pd.Timestamp("2001-01-01")  # rounds of several days are counted from a Monday


@dataclass(frozen=True)
class PartDays:
    """Numbers of rows that belong to no whole day: before the first one begins, and after the last one ends.

    Args:
        before: the first rows. Default: 0.
        after: the last rows. Default: 0.

    >>> PartDays(before=17, after=1).describe()
    '17 rows before the first whole day and 1 row after the last are left out'
    """

    before: int = 0
    after: int = 0

    def describe(self) -> str | None:
        """Say what is left out; None if nothing is."""
        places = ((self.before, "before the first whole day"), (self.after, "after the last"))
        rows = " and ".join(f"{count} row{'s' * (count > 1)} {where}" for count, where in places if count)
        return f"{rows} {'is' if self.before + self.after == 1 else 'are'} left out" if rows else None


def parse_day_start(day_start: str) -> int:
    """Return a time of the day as minutes after midnight.

    Args:
        day_start: hours, or hours and minutes with a colon.

    >>> parse_day_start("6"), parse_day_start("05:30")
    (360, 330)
    """
    found = re.fullmatch(r"(\d{1,2})(?::(\d{2}))?", day_start.strip())
    hours, minutes = (24, 0) if found is None else (int(found[1]), int(found[2] or 0))
    if hours > 23 or minutes > 59:
        raise DataError(f"a day must start at an hour from 0 to 23 or a time such as 05:30, got {day_start!r}.")
    return 60 * hours + minutes


def trim_to_whole_days(
    frame: pd.DataFrame, metadata: SeriesMetadata, day_start_minutes: int = 0
) -> tuple[pd.DataFrame, SeriesMetadata, PartDays]:
    """Return the rows of whole days, of `metadata.steps_per_day` rows each, and count those that belong to none.

    Days begin with the first row at or after `day_start_minutes` past midnight of the file's own clock (the smallest of its
    offsets from UTC, if these change). Rounds of several days are counted from a Monday, plain counts of steps from 0.

    Args:
        frame: a series on a regular clock, as `read_series` gives it.
        metadata: where it comes from.
        day_start_minutes: when days begin, in minutes past midnight. Default: 0.

    Returns:
        The rows of whole days, the metadata with `day_start_minutes`, and the rows left out.
    """
    clock = pd.DatetimeIndex(frame.index).tz_localize(None)
    step = pd.Timedelta(minutes=metadata.step_minutes)
    origin = COUNTER_START if metadata.time_format.startswith("count") else _MONDAY
    since: Any = clock[0] - origin - pd.Timedelta(minutes=day_start_minutes)
    before = min(-(since // step) % metadata.steps_per_day, len(frame))  # rounded down
    days = (len(frame) - before) // metadata.steps_per_day
    end = before + days * metadata.steps_per_day
    cut = replace(metadata, day_start_minutes=day_start_minutes)
    return frame.iloc[before:end], cut, PartDays(before, len(frame) - end)
