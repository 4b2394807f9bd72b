"""Regular time: the step of a series, its gaps, repeated and unsorted rows, and their repair on request."""

import collections
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
import pandas as pd

from ecl2o.data.tables import Fault, Table
from ecl2o.exceptions import DataError
from ecl2o.json_text import shorten

DAY = pd.Timedelta(days=1)
FILLS = ("interpolate", "previous")
_FEW = 1000  # so many times may be missing even from a shorter series
_REPAIR = "Correct the file, or ask for a repair with fill='interpolate' or fill='previous'"


@dataclass(frozen=True)
class Repairs:
    """Repairs that `fill` made in a file; all zero if none was needed.

    Args:
        fill: "interpolate" or "previous". Default: it was not asked for.
        values: how many numbers were imputed. Default: 0.
        longest: the longest run of imputed steps in one column. Default: 0.
        rows_added: missing times. Default: 0.
        rows_dropped: repeated or untimed rows left out. Default: 0.
        rows_moved: rows found before an earlier one. Default: 0.
        negatives: small negative irradiances of a sensor at night that were set to 0. Default: 0.
        codes: which of the imputed numbers were codes for a missing value, such as -9999, in words. Default: none.
    """

    fill: str | None = None
    values: int = 0
    longest: int = 0
    rows_added: int = 0
    rows_dropped: int = 0
    rows_moved: int = 0
    negatives: int = 0
    codes: tuple[str, ...] = ()

    def describe(self) -> str | None:
        """Return the repairs in words, None if there are none.

        >>> Repairs("previous", values=3, longest=2, rows_added=1).describe()
        '3 numbers imputed (at most 2 in a row), 1 missing time added'
        """
        done = (
            (self.values, "number", f"imputed (at most {self.longest} in a row)"),
            (self.rows_added, "missing time", "added"),
            (self.rows_dropped, "repeated or untimed row", "left out"),
            (self.rows_moved, "row", "put in order"),
            (self.negatives, "small negative", "set to 0"),
        )
        parts = [f"{count} {what}{'s' * (count > 1)} {how}" for count, what, how in done if count]
        return ", ".join([*parts, *(f"read as missing: {code}" for code in self.codes)]) or None


class RegularSeries(NamedTuple):
    """A series on a regular clock: the frame, its step, whether 29 February was left out, and the repairs."""

    frame: pd.DataFrame
    step: pd.Timedelta
    leap_day_dropped: bool
    repairs: Repairs


def regularize(
    table: Table, time_column: str, frame: pd.DataFrame, faults: list[Fault], fill: str | None
) -> RegularSeries:
    """Check a frame whose rows are those of the table, or repair it if `fill` says how.

    The frame's index holds the times (NaT where unreadable) and its cells NaN where `faults` were found. Without `fill`
    the first problem is raised: a fault, a repeated time, a row out of order, a gap. A missing 29 February is no gap, since
    many yearly files leave it out.
    """
    if fill is not None and fill not in FILLS:
        raise DataError(f"fill must be one of {', '.join(map(repr, FILLS))} or None, got {fill!r}.")
    times = pd.DatetimeIndex(frame.index)
    if fill is None:
        table.check_faults(faults, _REPAIR + ".")
        _check_order(table, time_column, times)
    usable = np.flatnonzero(~times.isna() & ~times.duplicated())
    moved = int(np.sum(np.diff(times[usable].asi8) < 0))
    order = usable[np.argsort(times[usable].asi8, kind="stable")]
    kept, clock = frame.iloc[order], times[order]
    if len(kept) < 2:
        raise DataError(f"{table.path}: at least two rows with different times are needed to know the time step.")
    step = _check_step(table, time_column, clock, order)
    wanted, dropped_leap_day = _expected_times(clock, step)
    missing = wanted.difference(clock)
    if len(missing) and fill is None:
        _raise_gap(table, time_column, clock, order, step)
    codes = collections.Counter((fault.code, fault.column) for fault in faults if fault.code is not None)
    named = tuple(f"{code:.10g} in column {shorten(column)} ({count} times)" for (code, column), count in codes.items())
    dropped = len(frame) - len(kept)
    repairs = Repairs(fill, rows_added=len(missing), rows_dropped=dropped, rows_moved=moved, codes=named)
    whole, repairs = _fill_missing(table, pd.DataFrame(kept.reindex(wanted)), repairs)
    return RegularSeries(whole, step, dropped_leap_day, repairs)


def _check_order(table: Table, time_column: str, times) -> None:
    """Raise `DataError` if a time is repeated, or earlier than the one before it."""
    repeated = np.flatnonzero(times.duplicated() & ~times.isna())
    if repeated.size:
        time = times[repeated[0]]
        first = table.rows[np.argmax(times == time)]
        table.check_faults(
            [table.fault(i, time_column, f"the time {time} was already on {table.unit} {first}") for i in repeated],
            f"Every time must occur once.{_explain_clock_change(time, 'end', 'show an hour twice')} {_REPAIR} (the first row of "
            "each time is kept).",
        )
    backwards = np.flatnonzero(np.diff(times.asi8) < 0) + 1
    table.check_faults(
        [table.fault(i, time_column, f"{times[i]} comes after {times[i - 1]} of the row above") for i in backwards],
        "Sort the rows by time, or ask for a repair with fill='interpolate' or fill='previous', which sorts them.",
    )


def _explain_clock_change(time: pd.Timestamp, which: str, effect: str) -> str:
    """Return an explanation of times early on a Sunday in spring or autumn, when clocks are changed; else nothing."""
    if time.tzinfo is not None or time.dayofweek != 6 or time.hour > 3 or time.month not in (3, 4, 9, 10, 11):
        return ""
    return (
        f" This looks like the {which} of daylight saving time, when local clocks {effect}: export the data in UTC or in "
        "standard time."
    )


def _check_step(table: Table, time_column: str, times, order) -> pd.Timedelta:
    """Return the usual step; raise `DataError` if another one is no multiple of it, or most times are missing."""
    steps, counts = np.unique(np.diff(times.asi8), return_counts=True)
    usual = np.timedelta64(int(steps[np.argmax(counts)]), times.unit)
    step = cast(pd.Timedelta, pd.Timedelta(usual))  # pandas types it as "or NaT"
    uneven = np.flatnonzero(np.diff(times.values) % step.to_timedelta64() != np.timedelta64(0)) + 1
    table.check_faults(
        [
            table.fault(order[i], time_column, f"{times[i]} is {times[i] - times[i - 1]} after the time before it")
            for i in uneven[:1]
        ],
        f"The usual step is {step}, and every time must be a whole number of steps after the first: resample the series.",
    )
    lacking = round((times[-1] - times[0]) / step) + 1 - len(times)
    if lacking > max(len(times), _FEW):  # as when one date is off by a century
        i = int(np.argmax(np.diff(times.asi8))) + 1
        problem = f"{times[i - 1]} is followed by {times[i]}; {lacking} times are missing and {len(times)} are there"
        table.check_faults(
            [table.fault(order[i], time_column, problem)],
            "That is too many to fill. Correct the date, or use another file.",
        )
    return step


def _expected_times(times: pd.DatetimeIndex, step: pd.Timedelta) -> tuple[pd.DatetimeIndex, bool]:
    """Return every time from first to last; without 29 February if the series leaves exactly that day out."""
    wanted = pd.date_range(times[0], times[-1], freq=step).as_unit(times.unit)
    leap_day = (wanted.month == 2) & (wanted.day == 29)
    if leap_day.any() and step <= DAY and not ((times.month == 2) & (times.day == 29)).any():
        return wanted[~leap_day], True
    return wanted, False


def _raise_gap(table: Table, time_column: str, times, order, step: pd.Timedelta) -> None:
    expected = times[:-1] + step
    leap = (expected.month == 2) & (expected.day == 29)
    late = np.flatnonzero((times[1:] != expected) & ~(leap & (times[1:] == expected + DAY)))
    faults = []
    for i in late:
        lacking = int((times[i + 1] - times[i]) / step) - 1
        missing = f"{lacking} time{'s are' if lacking > 1 else ' is'} missing"
        faults.append(table.fault(order[i + 1], time_column, f"{times[i]} is followed by {times[i + 1]}, so {missing}"))
    i = late[0]
    hour_late = times[i + 1] - expected[i] == pd.Timedelta(hours=1)
    summer = _explain_clock_change(expected[i], "start", "skip an hour") if hour_late else ""
    table.check_faults(faults, f"The step is {step.total_seconds() / 60:g} minutes.{summer} {_REPAIR}.")


def _fill_missing(table: Table, frame: pd.DataFrame, repairs: Repairs) -> tuple[pd.DataFrame, Repairs]:
    """Replace every NaN as `repairs.fill` says; the ends take the nearest value."""
    missing = frame.isna().to_numpy()
    if not missing.any():
        return frame, repairs
    longest = 0
    for name, holes in zip(frame.columns, missing.T, strict=True):
        if holes.mean() > 0.5:
            raise DataError(
                f"{table.path}, column {shorten(str(name))}: {holes.sum()} of {holes.size} values are missing, too many to fill. "
                "Use another column or another file."
            )
        edges = np.flatnonzero(np.diff(np.concatenate([[0], holes.astype(int), [0]])))
        longest = max(longest, int((edges[1::2] - edges[::2]).max(initial=0)))
    filled = frame.interpolate("linear") if repairs.fill == "interpolate" else frame.ffill()
    return filled.ffill().bfill(), replace(repairs, values=int(missing.sum()), longest=longest)
