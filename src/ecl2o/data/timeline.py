"""Regular time: the step of a series, its gaps, repeated and unsorted rows, and their repair on request."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np
import pandas as pd

from ecl2o.data.tables import Fault, Table, quote
from ecl2o.exceptions import DataError

DAY = pd.Timedelta(days=1)
_FEW = 1000  # missing times that are a small matter, however few there are
_REPAIR = "Correct the file, or ask for a repair with fill='interpolate' or fill='previous'"


@dataclass(frozen=True)
class Repairs:
    """What `fill` did to a file; all zero where nothing was wrong.

    Args:
        fill: "interpolate" or "previous". Default: it was not asked for.
        values: how many numbers were imputed. Default: 0.
        longest: the longest run of imputed steps in one column. Default: 0.
        rows_added: missing times. Default: 0.
        rows_dropped: repeated or untimed rows left out. Default: 0.
        rows_moved: rows found before an earlier one. Default: 0.
        negatives: small negative irradiances of a sensor at night that were set to 0. Default: 0.
    """

    fill: str | None = None
    values: int = 0
    longest: int = 0
    rows_added: int = 0
    rows_dropped: int = 0
    rows_moved: int = 0
    negatives: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        return asdict(self)

    def describe(self) -> str | None:
        """What was done, None where nothing was.

        >>> Repairs("previous", values=3, longest=2, rows_added=1).describe()
        '3 numbers imputed (at most 2 in a row), 1 missing time added'
        """
        done = {
            f"{_count(self.values, 'number')} imputed (at most {self.longest} in a row)": self.values,
            f"{_count(self.rows_added, 'missing time')} added": self.rows_added,
            f"{_count(self.rows_dropped, 'repeated or untimed row')} left out": self.rows_dropped,
            f"{_count(self.rows_moved, 'row')} put in order": self.rows_moved,
            f"{_count(self.negatives, 'small negative')} set to 0": self.negatives,
        }
        return ", ".join(text for text, count in done.items() if count) or None


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


@dataclass(frozen=True)
class RegularSeries:
    """A series on a regular clock: the frame, its step, whether 29 February was left out, and what was repaired."""

    frame: pd.DataFrame
    step: pd.Timedelta
    leap_day_dropped: bool
    repairs: Repairs = field(default_factory=Repairs)


def regularize(
    table: Table, time_column: str, frame: pd.DataFrame, faults: list[Fault], fill: str | None
) -> RegularSeries:
    """Check a frame whose rows are those of the table, or repair it if `fill` says how.

    The frame's index holds the times (NaT where unreadable) and its cells NaN where `faults` were found. Without `fill`
    the first problem is raised: a fault, a repeated time, a row out of order, a gap. A missing 29 February is no gap, since
    many yearly files leave it out.
    """
    times = pd.DatetimeIndex(frame.index)
    rows = table.rows
    if fill is None:
        table.check_faults(faults, _REPAIR + ".")
    _check_order(table, time_column, times, rows, fill)
    usable = np.flatnonzero(~times.isna() & ~times.duplicated())
    moved = int(np.sum(np.diff(times[usable].asi8) < 0))
    order = usable[np.argsort(times[usable].asi8, kind="stable")]
    kept, clock, places = frame.iloc[order], times[order], rows[order]
    if len(kept) < 2:
        raise DataError(f"{table.path}: at least two rows with different times are needed to know the time step.")
    step = _find_usual_step(clock)
    _check_step(table, time_column, clock, places, step)
    _check_mostly_present(table, time_column, clock, places, step, fill)
    wanted, dropped_leap_day = _expected_times(clock, step)
    missing = wanted.difference(clock)
    if len(missing) and fill is None:
        _raise_gap(table, time_column, clock, places, step)
    repairs = Repairs(fill, rows_added=len(missing), rows_dropped=len(frame) - len(kept), rows_moved=moved)
    whole, repairs = _fill_missing(table, pd.DataFrame(kept.reindex(wanted)), repairs)
    return RegularSeries(whole, step, dropped_leap_day, repairs)


def _check_order(table, time_column, times, rows, fill) -> None:
    if fill is not None:
        return
    repeated = times.duplicated() & ~times.isna()
    if repeated.any():
        i = int(np.argmax(repeated))
        first = int(rows[int(np.argmax(times == times[i]))])
        summer = (
            " This looks like the end of daylight saving time, when local clocks show an hour twice: export the data in UTC or"
            " in standard time."
            if _is_clock_change(times[i])
            else ""
        )
        table.check_faults(
            [Fault(int(rows[i]), time_column, f"the time {times[i]} was already on {table.unit} {first}")]
            + [Fault(int(rows[j]), time_column, "") for j in np.flatnonzero(repeated)[1:]],
            f"Every time must occur once.{summer} {_REPAIR} (the first row of each time is kept).",
        )
    backwards = np.flatnonzero(np.diff(times.asi8) < 0)
    if backwards.size:
        i = int(backwards[0]) + 1
        table.check_faults(
            [Fault(int(rows[i]), time_column, f"{times[i]} comes after {times[i - 1]} of the row above")]
            + [Fault(int(rows[j + 1]), time_column, "") for j in backwards[1:]],
            "Sort the rows by time, or ask for a repair with fill='interpolate' or fill='previous', which sorts them.",
        )


def _is_clock_change(time: pd.Timestamp) -> bool:
    """Whether clocks are changed around this time in places that have summer time: early on a Sunday in spring or autumn."""
    return time.tzinfo is None and time.dayofweek == 6 and time.hour <= 3 and time.month in (3, 4, 9, 10, 11)


def _find_usual_step(times: pd.DatetimeIndex) -> pd.Timedelta:
    steps, counts = np.unique(np.diff(times.asi8), return_counts=True)
    usual = np.timedelta64(int(steps[np.argmax(counts)]), times.unit)
    return cast(pd.Timedelta, pd.Timedelta(usual))  # pandas types it as "or NaT"


def _check_step(table, time_column, times, places, step) -> None:
    away = np.diff(times.values) % step.to_timedelta64() != np.timedelta64(0)
    if away.any():
        i = int(np.argmax(away)) + 1
        table.check_faults(
            [Fault(int(places[i]), time_column, f"{times[i]} is {times[i] - times[i - 1]} after the time before it")],
            f"The usual step is {step}, and every time must be a whole number of steps after the first: resample the series.",
        )


def _check_mostly_present(table, time_column, times, places, step, fill) -> None:
    """Raise `DataError` if more times are missing than present, as when one date is off by a century."""
    lacking = round((times[-1] - times[0]) / step) + 1 - len(times)
    if lacking <= max(len(times), _FEW):
        return
    if fill is None:
        _raise_gap(table, time_column, times, places, step)
    widest = int(np.argmax(np.diff(times.asi8))) + 1
    fault = (
        f"{times[widest - 1]} is followed by {times[widest]}; {lacking} times are missing and {len(times)} are there"
    )
    table.check_faults(
        [Fault(int(places[widest]), time_column, fault)],
        "That is too many to fill. Correct the date, or use another file.",
    )


def _expected_times(times: pd.DatetimeIndex, step: pd.Timedelta) -> tuple[pd.DatetimeIndex, bool]:
    """Every time from first to last; without 29 February where the series leaves exactly that day out."""
    wanted = pd.date_range(times[0], times[-1], freq=step).as_unit(times.unit)
    leap_day = (wanted.month == 2) & (wanted.day == 29)
    if leap_day.any() and step <= DAY and not ((times.month == 2) & (times.day == 29)).any():
        return wanted[~leap_day], True
    return wanted, False


def _raise_gap(table, time_column, times, places, step) -> None:
    expected = times[:-1] + step
    leap = (expected.month == 2) & (expected.day == 29)
    late = (times[1:] != expected) & ~(leap & (times[1:] == expected + DAY))
    faults = []
    for i in np.flatnonzero(late):
        lacking = int((times[i + 1] - times[i]) / step) - 1
        faults.append(
            Fault(
                int(places[i + 1]),
                time_column,
                f"{times[i]} is followed by {times[i + 1]}, so {lacking} time{'s are' if lacking > 1 else ' is'} missing",
            )
        )
    i = int(np.argmax(late))
    summer = (
        " This looks like the start of daylight saving time, when local clocks skip an hour: export the data in UTC or in"
        " standard time."
        if _is_clock_change(expected[i]) and times[i + 1] - expected[i] == pd.Timedelta(hours=1)
        else ""
    )
    table.check_faults(faults, f"The step is {step.total_seconds() / 60:g} minutes.{summer} {_REPAIR}.")


def _fill_missing(table: Table, frame: pd.DataFrame, repairs: Repairs) -> tuple[pd.DataFrame, Repairs]:
    """The frame with every NaN replaced as `repairs.fill` says; the ends take the nearest value."""
    missing = frame.isna().to_numpy()
    if not missing.any():
        return frame, repairs
    for name, holes in zip(frame.columns, missing.T, strict=True):
        if holes.mean() > 0.5:
            raise DataError(
                f"{table.path}, column {quote(str(name))}: {holes.sum()} of {holes.size} values are missing, too many to fill. "
                "Use another column or another file."
            )
    filled = frame.interpolate("linear") if repairs.fill == "interpolate" else frame.ffill()
    longest = max(_longest_run(holes) for holes in missing.T)
    return filled.ffill().bfill(), replace(repairs, values=int(missing.sum()), longest=longest)


def _longest_run(holes: np.ndarray) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], holes.astype(int), [0]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))
