"""Regular time: the step of a series, its gaps, repeated and unsorted rows, and their repair on request."""

import collections
import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
import pandas as pd

from ecl2o.data.tables import Fault, Table
from ecl2o.exceptions import DataError
from ecl2o.json_text import shorten
from ecl2o.local_time import clock_shift

DAY = pd.Timedelta(days=1)
FILLS = ("interpolate", "previous")
_FEW = 1000  # so many times may be missing even from a shorter series
_FILL_LIMIT = 6.0  # hours, or a single step if that is longer
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
        hours_skipped: rows that local clocks skip in spring, which were imputed. Default: 0.
        hours_repeated: rows that local clocks show again in autumn, which were left out. Default: 0.
    """

    fill: str | None = None
    values: int = 0
    longest: int = 0
    rows_added: int = 0
    rows_dropped: int = 0
    rows_moved: int = 0
    negatives: int = 0
    codes: tuple[str, ...] = ()
    hours_skipped: int = 0
    hours_repeated: int = 0

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
            (self.hours_skipped, "time", "that clocks skip in spring imputed"),
            (self.hours_repeated, "row", "of the hour that clocks repeat in autumn left out"),
        )
        parts = [f"{count} {what}{'s' * (count > 1)} {how}" for count, what, how in done if count]
        return ", ".join([*parts, *(f"read as missing: {code}" for code in self.codes)]) or None


class RegularSeries(NamedTuple):
    """A series on a regular clock: the frame, its imputed cells, its step, whether 29 February was left out, the repairs."""

    frame: pd.DataFrame
    imputed: pd.DataFrame
    step: pd.Timedelta
    leap_day_dropped: bool
    repairs: Repairs


def regularize(
    table: Table,
    time_column: str,
    frame: pd.DataFrame,
    faults: list[Fault],
    fill: str | None,
    fill_limit: float | int | None = math.inf,
    zone: datetime.tzinfo | None = None,
    optional: Sequence[str] = (),
) -> RegularSeries:
    """Check a frame whose rows are those of the table, or repair it if `fill` says how.

    The frame's index holds the times (NaT where unreadable) and its cells NaN where `faults` were found. Without `fill`
    the first problem is raised: a fault, a repeated time, a row out of order, a gap. A missing 29 February is no gap, since
    many yearly files leave it out. If times are those of local clocks in a zone, what the clocks skip is imputed, and what
    they repeat is left out, so that every day has as many rows. Missing cells of `optional` columns stay NaN.
    """
    if fill is not None and fill not in FILLS:
        raise DataError(f"fill must be one of {', '.join(map(repr, FILLS))} or None, got {fill!r}.")
    times = pd.DatetimeIndex(frame.index)
    repeated = np.zeros(len(times), bool)
    if zone is not None:
        again = np.flatnonzero(times.duplicated() & ~times.isna())
        repeated[again] = [clock_shift(time, zone) > 0 for time in times[again].to_pydatetime()]
        frame, times = frame.iloc[~repeated], times[~repeated]
        table = replace(table, rows=table.rows[~repeated])
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
    missing = wanted[~wanted.isin(clock)]
    skipped = np.array([zone is not None and clock_shift(time, zone) < 0 for time in missing.to_pydatetime()], bool)
    if not skipped.all() and fill is None:
        _raise_gap(table, time_column, clock, order, missing[~skipped], step)
    codes = collections.Counter((fault.code, fault.column) for fault in faults if fault.code is not None)
    named = tuple(f"{code:.10g} in column {shorten(column)} ({count} times)" for (code, column), count in codes.items())
    dropped = len(frame) - len(kept)
    changes = {"hours_skipped": int(skipped.sum()), "hours_repeated": int(repeated.sum())}
    added = len(missing) - changes["hours_skipped"]
    repairs = Repairs(fill, rows_added=added, rows_dropped=dropped, rows_moved=moved, codes=named, **changes)
    gapped = pd.DataFrame(kept.reindex(wanted))
    lost = gapped.isna()
    lost.loc[missing[skipped]] = False
    lost[list(optional)] = False
    hours = step.total_seconds() / 3600
    longest = _check_gaps(table, lost, hours, max(_FILL_LIMIT, hours) if fill_limit is None else fill_limit)
    filled = gapped.ffill() if fill == "previous" else gapped.interpolate("linear")
    repairs = replace(repairs, values=int(lost.to_numpy().sum()), longest=longest)
    filled, imputed = filled.ffill().bfill(), gapped.isna()
    filled[list(optional)], imputed[list(optional)] = gapped[list(optional)], False
    return RegularSeries(filled, imputed, step, dropped_leap_day, repairs)


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
        f" This looks like the {which} of daylight saving time, when local clocks {effect}: give the zone of the clock, such as "
        "time_zone='America/New_York', or export the data in UTC."
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


def _raise_gap(table: Table, time_column: str, times, order, gaps, step: pd.Timedelta) -> None:
    faults = []
    places, counts = np.unique(times.searchsorted(gaps), return_counts=True)
    for i, lacking in zip(places, counts, strict=True):
        missing = f"{lacking} time{'s are' if lacking > 1 else ' is'} missing"
        faults.append(table.fault(order[i], time_column, f"{times[i - 1]} is followed by {times[i]}, so {missing}"))
    summer = (
        _explain_clock_change(gaps[0], "start", "skip an hour") if counts[0] * step == pd.Timedelta(hours=1) else ""
    )
    table.check_faults(faults, f"The step is {step.total_seconds() / 60:g} minutes.{summer} {_REPAIR}.")


def _check_gaps(table: Table, lost: pd.DataFrame, hours: float, limit: float | int) -> int:
    """Return the longest run of missing rows, `hours` apart, in one column; raise if it takes more than `limit` hours."""
    runs = [(0, lost.index[0], "")]
    for name, holes in lost.items():
        if holes.mean() > 0.5:
            raise DataError(
                f"{table.path}, column {shorten(str(name))}: {holes.sum()} of {holes.size} values are missing, too many to fill. "
                "Use another column or another file."
            )
        starts, ends = np.flatnonzero(np.diff(holes.to_numpy(int), prepend=0, append=0)).reshape(-1, 2).T
        runs += zip((ends - starts).tolist(), lost.index[starts], [str(name)] * len(starts), strict=True)
    long = [run for run in runs if run[0] * hours > limit]
    longest, start, name = max(runs, key=lambda run: run[0])
    if long:
        others = f" ({len(long) - 1} more gaps are too long)" if len(long) > 1 else ""
        raise DataError(
            f"{table.path}, column {shorten(name)}: nothing is known for {longest * hours:g} hours, from {start} on{others}; "
            f"gaps of at most {limit:g} hours are filled. Use a file without the gap, or give fill_limit {longest * hours:g}: "
            "filled rows are left out of training and scores."
        )
    return longest
