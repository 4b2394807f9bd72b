"""Read a series from a file, divide it into days, and screen its readings."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from ecl2o.data import Contexts, SeriesMetadata, Split, read_series, series_contexts, trim_to_whole_days
from ecl2o.data.contexts import PartDays
from ecl2o.exceptions import DataError
from ecl2o.fitting.settings import FitSettings, Interval
from ecl2o.policy import Policy
from ecl2o.running import Screen, plausible_range, stuck_limits

FEWEST_DAYS = 91  # for the default split
FEWEST_TEST_DAYS = 3
_FEW_DAYS = 12  # enough for a split by the same shares


def default_split(n_days: int) -> Split:
    """Return two thirds of the days for training, a sixth for validation, the rest for testing.

    Fewer than 91 days get the library's default split, which does not fit and raises an error that says what is missing.

    >>> default_split(365)
    Split(training_days=243, validation_days=60)
    """
    return Split() if n_days < FEWEST_DAYS else Split(2 * n_days // 3, n_days // 6)


def split_days(frame: pd.DataFrame, metadata: SeriesMetadata, split: Split | None) -> Contexts:
    """Return the rows of whole days as contexts, with `default_split` unless a split is given."""
    days = len(frame) // metadata.steps_per_day
    if split is None and days < FEWEST_DAYS:
        usual = (
            f", for example training_days {2 * days // 3} and validation_days {days // 6}" if days >= _FEW_DAYS else ""
        )
        raise DataError(
            f"{metadata.file} has {days} whole days ({len(frame)} rows, {metadata.steps_per_day} a day), but {FEWEST_DAYS} are "
            f"needed. To use fewer, give training_days and validation_days{usual}; the rest is for testing."
        )
    return series_contexts(frame, metadata, default_split(days) if split is None else split)


def cut_whole_days(
    frame: pd.DataFrame, metadata: SeriesMetadata, period: int | None, day_start_minutes: int = 0
) -> tuple[pd.DataFrame, SeriesMetadata, PartDays]:
    """Return `trim_to_whole_days` for days of `period` steps; None: those between two midnights.

    Raises:
        DataError: If rows are too far apart, or there is no whole day.
    """
    steps = metadata.steps_per_day if period is None else period
    if steps < 2:
        raise DataError(
            f"the rows of {metadata.file} are a day or more apart. Give the number of rows in a cycle with `period`, for "
            "example 7 for weeks of daily rows; every cycle then counts as a day."
        )
    whole = trim_to_whole_days(frame, dataclasses.replace(metadata, steps_per_day=steps), day_start_minutes)
    if whole[0].empty:
        begin = f"{day_start_minutes // 60:02}:{day_start_minutes % 60:02}"
        raise DataError(
            f"{metadata.file} has {len(frame)} rows, but no whole day, which is {steps} rows from {begin} on. Give a longer "
            f"file: {FEWEST_DAYS} days to fit (fewer with training_days and validation_days), {FEWEST_TEST_DAYS} to test."
        )
    return whole


@dataclasses.dataclass(frozen=True)
class SeriesReader:
    """How to read a series from a file.

    Args:
        path: CSV or Parquet file.
        columns: columns to follow. Default: the only one that holds numbers.
        time_column: column of the time. Default: found by its name or cells.
        fill: "interpolate" or "previous" repairs gaps, repeated rows and bad cells. Default: they are errors.
        fill_limit, time_zone, day_first, grouped: as in `read_series`.
        period: steps in a day. Default: those between two midnights.
        step_minutes: required distance of rows. Default: any.
        notify: called with a sentence about repairs and about part-days that are left out.
        day_start_minutes: start of days, in minutes after midnight of the file's clock. Default: midnight.
        weight_column: column of the weights of misses, which is not followed. Default: all misses cost the same.
        covariates: columns that are seen and not followed, as in `read_series`. Default: none.
        advice: those of them that are advice from outside, which `hold_advice` completes. Default: none.
    """

    path: Path
    columns: list[str] | None = None
    time_column: str | None = None
    fill: str | None = None
    fill_limit: float | int | None = None
    time_zone: str | None = None
    day_first: bool | None = None
    grouped: bool | None = None
    period: int | None = None
    step_minutes: float | None = None
    notify: Callable[[str], None] = lambda message: None
    day_start_minutes: int | None = None
    weight_column: str | None = None
    covariates: dict[str, float | None] = dataclasses.field(default_factory=dict)
    advice: Sequence[str] = ()

    def for_policy(self, policy: Policy) -> "SeriesReader":
        """Return a reader of the policy's columns, step, days and file format, except where this one states others.

        Raises:
            DataError: If `period` is not the policy's.
        """
        contract = policy.contract
        if None not in (self.period, contract.steps_per_day) and self.period != contract.steps_per_day:
            raise DataError(
                f"`period` is {self.period}, but the policy was fitted for days of {contract.steps_per_day} steps, to which its "
                "promise and its ratios refer. Leave `period` out."
            )
        format_ = {name: told for name, told in contract.file_format if getattr(self, name) is None}
        return dataclasses.replace(
            self,
            **format_,
            columns=self.columns or contract.columns,
            weight_column=self.weight_column or contract.weight_column,
            covariates=self.covariates or contract.covariates,
            advice=contract.advice,
            period=contract.steps_per_day if self.period is None else self.period,
            step_minutes=contract.step_minutes,
            day_start_minutes=contract.day_start_minutes if self.day_start_minutes is None else self.day_start_minutes,
        )

    def read_split(self, split: Split | None = None) -> Contexts:
        """Return the series divided into training, validation and test days; default: `default_split`."""
        return split_days(*self._read_whole_days(), split)

    def read_days(self) -> Contexts:
        """Return the series as days to test on."""
        frame, metadata = self._read_whole_days()
        days = len(frame) // metadata.steps_per_day
        if days < FEWEST_TEST_DAYS:
            raise DataError(
                f"{metadata.file} has {days} whole days ({len(frame)} rows, {metadata.steps_per_day} a day), but at least "
                f"{FEWEST_TEST_DAYS} are needed to test on."
            )
        return series_contexts(frame, metadata, Split(2, 0))

    def read_history(self) -> tuple[np.ndarray, str]:
        """Return all rows, (n, q), and the time of the last one."""
        frame = self.read_rows()[0]
        return frame.to_numpy(float), str(frame.index[-1])

    def read_rows(self) -> tuple[pd.DataFrame, SeriesMetadata]:
        """Return the repaired rows and where they come from.

        Raises:
            DataError: If the rows are not `step_minutes` apart, or the file cannot be read.
        """
        frame, metadata = read_series(
            self.path,
            self.time_column,
            self.columns,
            self.fill,
            fill_limit=self.fill_limit,
            time_zone=self.time_zone,
            weight_column=self.weight_column,
            covariates=self.covariates,
            day_first=self.day_first,
            grouped=self.grouped,
        )
        if self.step_minutes is not None and metadata.step_minutes != self.step_minutes:
            raise DataError(
                f"the rows of {metadata.file} are {metadata.step_minutes:g} minutes apart, but the policy was fitted for rows "
                f"{self.step_minutes:g} minutes apart."
            )
        repaired = metadata.repairs.describe()
        if repaired is not None:
            self.notify(f"{metadata.file}: {repaired}.")
        lacking = {name: int(np.isnan(frame[name].to_numpy(float)).sum()) for name in self.covariates}
        for is_advice, instead in ((False, "imputed by the profile of the day"), (True, "replaced by the last advice")):
            counts = [f"{n} of {name}" for name, n in lacking.items() if n and (name in self.advice) == is_advice]
            if counts:
                self.notify(f"{metadata.file}: missing values are {instead}: {', '.join(counts)}.")
        return frame, metadata

    def _read_whole_days(self) -> tuple[pd.DataFrame, SeriesMetadata]:
        frame, metadata, part_days = cut_whole_days(*self.read_rows(), self.period, self.day_start_minutes or 0)
        left_out = part_days.describe()
        if left_out is not None and len(frame):
            self.notify(f"{metadata.file}: days begin at {frame.index[0]:%H:%M}; {left_out}.")
        return frame, metadata


def screen_series(contexts: Contexts, screen: Screen | None) -> tuple[Contexts, np.ndarray]:
    """Replace implausible readings by the last plausible one; return also the replaced rows, (k,)."""
    if screen is None:
        return contexts, np.zeros(0, int)
    used, replaced = screen.apply(contexts.values)
    return dataclasses.replace(contexts, values=used), find_implausible(contexts.values, replaced)


def hold_advice(contexts: Contexts, count: int) -> Contexts:
    """Return the series with the last advice wherever it is missing; it is in the last `count` columns."""
    if not count:
        return contexts
    held = pd.DataFrame(contexts.values[:, -count:]).ffill().bfill().to_numpy()
    return dataclasses.replace(contexts, values=np.hstack([contexts.values[:, :-count], held]))


def find_implausible(values: Float[np.ndarray, "n q"], replaced: np.ndarray) -> np.ndarray:
    """Return the rows in which a reading, and not only a gap, was replaced, (k,)."""
    return np.flatnonzero((replaced & np.isfinite(values)).any(axis=1))


@dataclasses.dataclass(frozen=True)
class ScreenedSeries:
    """A series without implausible readings.

    Args:
        contexts: the screened series.
        plausible: (low, high) of each column.
        stuck_after: how many equal readings in a row are plausible, of each column.
        replaced: the replaced rows, (k,).
    """

    contexts: Contexts
    plausible: list[Interval]
    stuck_after: list[float]
    replaced: np.ndarray


def screen_for_fit(contexts: Contexts, settings: FitSettings) -> ScreenedSeries:
    """Replace implausible readings, as the fitted policy will."""
    plausible, stuck_after = find_plausible(contexts, settings), stuck_limits(_measured_rows(contexts))
    day = contexts.steps_per_day
    screened, replaced = screen_series(contexts, Screen.of(plausible, day, stuck_after, len(contexts.covariates), day))
    return ScreenedSeries(screened, plausible, stuck_after, replaced)


def _measured_rows(contexts: Contexts) -> Float[np.ndarray, "n q"]:
    """Return the training rows that were measured: a gap that was filled by the value before it is no stuck meter."""
    return contexts.training[contexts.measured[: len(contexts.training)]]


def find_plausible(contexts: Contexts, settings: FitSettings) -> list[Interval]:
    """Return the plausible range of each column: the one of the settings, else that of the training days.

    The range of contexts that a promise assumes, or the bounds of actions, narrow it for the columns that are followed. They do
    not cut off readings of the training days.

    Raises:
        DataError: If the settings name another column, or no reading is left.
    """
    assert isinstance(contexts.metadata, SeriesMetadata)
    columns, given, promise = contexts.metadata.columns, settings.plausible or {}, settings.promise_in_bounds
    declared = dict(given) if isinstance(given, Mapping) else dict.fromkeys(contexts.metadata.followed, given)
    if not declared.keys() <= set(columns):
        raise DataError(f"plausible is given for {', '.join(declared)}, but the columns are {', '.join(columns)}.")
    inner = (settings.bounds if promise is None else promise.contexts) or (-np.inf, np.inf)
    ranges = dict(zip(columns, plausible_range(contexts.training), strict=True)) | declared
    for name, values in zip(contexts.metadata.followed, contexts.training.T, strict=False):
        low, high = ranges[name]
        seen = values[(values >= low) & (values <= high)]
        ranges[name] = max(low, np.min(seen, initial=inner[0])), min(high, np.max(seen, initial=inner[1]))
        if not ranges[name][0] < ranges[name][1]:
            raise DataError(
                f"no reading of {name} is plausible: `plausible` {low:g}:{high:g} does not overlap {inner[0]:g}:{inner[1]:g}, "
                "the range of contexts or of actions."
            )
    return [(float(low), float(high)) for low, high in ranges.values()]


def screen_values(
    values: Float[np.ndarray, "n q"], patience: int, covariates: int = 0
) -> tuple[Float[np.ndarray, "n q"], np.ndarray]:
    """Replace readings far outside the bulk of the values; return also the replaced rows, (k,).

    The last `covariates` numbers are not followed, and `patience` is a day.

    >>> values, rows = screen_values(np.array([[0.0], [10.0]] * 500 + [[9e9], [3.0]]), patience=24)
    >>> values[-3:].ravel().tolist(), rows.tolist()
    ([10.0, 10.0, 3.0], [1000])
    """
    screen = Screen.of(plausible_range(values), patience, covariates=covariates, period=patience)
    used, replaced = screen.apply(values)
    return used, find_implausible(values, replaced)


def describe_replaced(time: pd.Index, rows: np.ndarray) -> str | None:
    """Return a sentence about the replaced rows, None if there are none."""
    if not len(rows):
        return None
    count = f"1 implausible reading, at {time[rows[0]]}, was"
    if len(rows) > 1:
        count = f"{len(rows)} implausible readings, the first at {time[rows[0]]}, were"
    return f"{count} replaced by the previous reading."
