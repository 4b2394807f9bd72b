"""Time columns as people write them: dates, dates with offsets, intervals, seconds since 1970, or a plain count of steps."""

import collections
import datetime
import itertools
import re
import zoneinfo
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ecl2o.data.tables import Table, join_names, to_floats
from ecl2o.exceptions import DataError
from ecl2o.json_text import shorten

COUNTER_START = pd.Timestamp("2000-01-01")  # the date given to step 0 of a plain count
_TIME_NAME = re.compile(r"time( ?stamp)?|date( ?time)?|local time|utc( time)?|ds|period")
_UNIT_NAMES = {"s": "second seconds", "min": "minute minutes", "h": "hour hours step steps t index", "D": "day days"}
_COUNTERS = {name: unit for unit, names in _UNIT_NAMES.items() for name in names.split()}
_OFFSET = re.compile(r":\d{2}(?:\.\d+)?\s*(?:Z|UTC|([+-])(\d{2}):?(\d{2}))$")
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2})?( ?[AaPp][Mm])?")
_UNTIL = " - "  # between the start and the end of an interval
_PARTS = ("year", "month", "day", "hour", "minute")  # columns that make a time together; the last may be absent
_ISO = re.compile(r"\d{4}-?\d{2}-?\d{2}")
_EPOCHS = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (1e8, "s"))


@dataclass(frozen=True)
class ParsedTimes:
    """Times, NaT where unreadable, with the offset that the file gives, if any; the format and the clock in words.

    `zoned` says whether most of them have an offset, if some have and some have not; None if they are alike. `day_first` says
    whether dates like 3/4/2015 were read so; None if there are none.
    """

    times: pd.DatetimeIndex
    how: str
    zoned: bool | None = None
    clock: str = "local time without an offset"
    day_first: bool | None = None

    def fault(self, cell: str) -> str:
        """Describe why a cell is not a time.

        >>> ParsedTimes(pd.DatetimeIndex([]), "dates", zoned=True).fault("2021-05-01 03:00")
        'has no offset from UTC, such as Z, while other times have one; write all in the same way'
        """
        looks_right = _ISO.match(cell) or ":" in cell
        if self.zoned is None or not looks_right or (_parse_offset(cell) is not None) == self.zoned:
            return "is not a date or time"
        found = "no offset from UTC, such as Z" if self.zoned else "an offset from UTC"
        return f"has {found}, while other times have {'one' if self.zoned else 'none'}; write all in the same way"


def normalize_name(name: str) -> str:
    """Return a column's name in lower case, with single blanks and without a unit in brackets."""
    return re.sub(r"[\s_-]+", " ", re.sub(r"[(\[].*", "", name)).strip().lower()


def join_time_columns(table: Table, given: str | None) -> tuple[Table, str]:
    """Return the table with its time in one column, and the name of that column.

    A time in several columns, such as a date and a clock, is joined: `given` may be DATE+CLOCK. Without it, a column of clock
    times is joined to one of repeated dates, and columns named year, month, day, hour (and minute) to each other.
    """
    if given is not None:
        parts = [given] if given in table.columns else [part.strip() for part in given.split("+")]
    else:
        named = {normalize_name(name): name for name in table.columns}
        parts = [named[part] for part in _PARTS if part in named]
        if not named.keys() >= set(_PARTS[:-1]):
            parts = [find_time_column(table)]
            dates = table.column(parts[0])
            if len(set(dates)) < len(dates) and not any(":" in cell for cell in dates):
                clocks = (name for name in table.columns if name and all(map(_CLOCK.fullmatch, table.column(name))))
                parts += [name for name in (next(clocks, None),) if name is not None]
    missing = [part for part in parts if part not in table.columns]
    if missing:
        raise DataError(
            f"{table.path}: the column {shorten(missing[0])} is missing; the file has {join_names(table.columns)}."
        )
    if len(parts) == 1:
        return table, parts[0]
    columns = [table.column(part) for part in parts]
    if normalize_name(parts[0]) == _PARTS[0]:
        padded = zip(*(column.str.zfill(2) for column in columns), strict=True)
        cells = [f"{'-'.join(row[:3])} {':'.join([*row[3:], '00'][:2])}" for row in padded]
    else:
        cells = [" ".join(row) for row in zip(*columns, strict=True)]
    name, kept = "+".join(parts), [place for place, name in enumerate(table.columns) if name not in parts]
    names = (name, *(table.columns[place] for place in kept))
    return replace(table, columns=names, cells=[cells, *(table.cells[place] for place in kept)]), name


def find_time_column(table: Table) -> str:
    """Return the name of the time column: found by its name, else the first whose cells read as dates."""
    named = [name for name in table.columns if _TIME_NAME.fullmatch(normalize_name(name))]
    if len(named) == 1:
        return named[0]
    dated = (name for name in (named or table.columns) if _reads_as_dates(table, name))
    counting = (name for name in table.columns if normalize_name(name) in _COUNTERS and _is_counter(table, name))
    for name in itertools.chain(dated, counting):
        return name
    raise DataError(
        f"{table.path}: no time column found among {join_names(table.columns)}. "
        "Name it 'time', or say which one it is with time_column."
    )


def parse_times(
    table: Table, name: str, zone: zoneinfo.ZoneInfo | None = None, day_first: bool | None = None
) -> ParsedTimes:
    """Return the times of one column on the clock of a zone, without an offset; without a zone, on that of the file.

    The file's clock is its offset from UTC; if that changes (summer time), the smallest. Large numbers are seconds (or milli-,
    micro-, nanoseconds) since 1970. Smaller ones count the unit in the column's name, or hours, from 1 January 2000. Dates like
    3/4/2015 are month first if both orders are possible, unless `day_first` is true or only day first gives a regular series.
    """
    found = _parse_times(table.column(name), name, day_first)
    if zone is None:
        return found
    if found.how.startswith("count"):
        raise DataError(f"{table.path}: time_zone does not apply to column {name!r}, which is a plain {found.how}.")
    times = found.times
    if times.tz is None and found.clock == "UTC":
        times = times.tz_localize("UTC")
    return replace(found, times=times if times.tz is None else times.tz_convert(zone).tz_localize(None), clock=zone.key)


def _take_starts(cells: pd.Series) -> pd.Series:
    """Return cells such as "1.3.2025 00:00 - 1.3.2025 00:15" without what follows the start."""
    return cells.map(lambda cell: cell.partition(_UNTIL)[0])


def _parse_times(cells: pd.Series, name: str, day_first: bool | None) -> ParsedTimes:
    cells = _take_starts(cells)
    if sum(":" in cell or "/" in cell for cell in cells) <= 0.5 * len(cells):  # otherwise they are no numbers
        counts = to_floats(cells)
        if np.isfinite(counts).mean() > 0.5 and not cells.str.fullmatch(r"\d{8}").mean() > 0.5:
            return _parse_counts(name, counts)
    ends = [cell.partition(":")[2] for cell in cells]  # few differ
    known = {end: _parse_offset(f":{end}") for end in set(ends)}
    offsets = [known[end] for end in ends]
    with_offset = sum(offset is not None for offset in offsets)
    mixed = 0 < with_offset < len(cells)
    if with_offset > 0.5 * len(offsets):
        smallest = min(offset for offset in offsets if offset is not None)
        zoned = pd.Series([cell if offset is not None else None for cell, offset in zip(cells, offsets, strict=True)])
        instants = pd.DatetimeIndex(pd.to_datetime(zoned, utc=True, errors="coerce", format="mixed"))
        zone = datetime.timezone(datetime.timedelta(hours=smallest))
        clock = str(zone)
        if any(offset not in (None, smallest) for offset in known.values()):
            clock += ", the smallest of the file's offsets (time_zone NAME gives the local clock)"
        return ParsedTimes(instants.tz_convert(zone), f"dates, UTC{smallest:+g}", True if mixed else None, clock)
    if mixed:
        cells = pd.Series(["" if offset is not None else cell for cell, offset in zip(cells, offsets, strict=True)])
    orders = _parse_dates(cells)

    def misfit(order: bool | None) -> tuple[int, ...]:
        unreadable, irregular = int(orders[order].isna().sum()), _count_irregular_steps(orders[order])
        return (unreadable, irregular) if day_first is None else (unreadable, order is not day_first, irregular)

    best = min(orders, key=misfit)  # month first on a tie
    return ParsedTimes(orders[best], "dates", False if mixed else None, day_first=best)


def _parse_offset(cell: str) -> float | None:
    """Return the hours from UTC that a time ends with, or None."""
    match = _OFFSET.search(cell)
    if match is None:
        return None
    sign, hours, minutes = match.groups("0")
    return (-1.0 if sign == "-" else 1.0) * (int(hours) + int(minutes) / 60)


def has_date_as_name(table: Table) -> bool:
    """Return whether the name of a column of dates is a date, as in a file without a line of names."""
    dates = [name for name in table.columns if _DATE.match(name) and table.columns.count(name) == 1]
    return any(_reads_as_dates(table, name) for name in dates)


def _is_counter(table: Table, name: str) -> bool:
    values = to_floats(table.column(name))
    values = values[np.isfinite(values)]
    return len(values) > 1 and float(np.mean(np.diff(values) > 0)) > 0.9


def _reads_as_dates(table: Table, name: str) -> bool:
    cells = table.column(name)
    sample = _take_starts(pd.Series([cell for cell in cells if cell][:50], dtype=object))
    if sample.empty or np.isfinite(to_floats(sample)).any():
        return False
    return any(times.notna().mean() > 0.5 for times in _parse_dates(sample).values())


def _parse_dates(cells: pd.Series) -> dict[bool | None, pd.DatetimeIndex]:
    """Read cells as ISO dates (None), or else month first (False) and day first (True)."""
    days = collections.Counter(cell[:10] for cell in cells)  # few, if a day has many rows
    if sum(count for day, count in days.items() if _ISO.match(day)) > 0.5 * len(cells):
        return {None: _parse_format(cells, "ISO8601")}
    return {False: _parse_any_format(cells, "%m", "%d"), True: _parse_any_format(cells, "%d", "%m")}


def _parse_format(cells: pd.Series, form: str) -> pd.DatetimeIndex:
    try:
        return pd.DatetimeIndex(pd.to_datetime(cells, errors="coerce", format=form))
    except (ValueError, OverflowError):  # such as mixed offsets
        return pd.DatetimeIndex([pd.NaT] * len(cells))


def _parse_any_format(cells: pd.Series, first: str, second: str) -> pd.DatetimeIndex:
    """Read cells in the format that fits most of them."""
    best = pd.DatetimeIndex([pd.NaT] * len(cells))
    for separator in "/.-":
        for order in (f"{first}{separator}{second}{separator}%Y", f"%Y{separator}%m{separator}%d"):
            for clock in ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p"):
                times = _parse_format(cells, order + clock)
                if times.notna().sum() > best.notna().sum():
                    best = times
                if best.notna().all():
                    return best
    return best


def _count_irregular_steps(times: pd.DatetimeIndex) -> int:
    """Count the steps that differ from the most common one."""
    steps = np.diff(times[~times.isna()].asi8)
    return int(len(steps) - np.unique(steps, return_counts=True)[1].max(initial=0))


def _parse_counts(name: str, counts: np.ndarray) -> ParsedTimes:
    typical = float(np.nanmedian(counts))
    for least, unit in _EPOCHS:
        if typical >= least:
            known = pd.to_datetime(pd.Series(counts), unit=unit, errors="coerce")  # pyright: ignore[reportArgumentType]
            return ParsedTimes(pd.DatetimeIndex(known).round("1s"), f"{unit} since 1970", clock="UTC")
    unit = _COUNTERS.get(normalize_name(name), "h")
    known = COUNTER_START + pd.to_timedelta(pd.Series(counts), unit=unit, errors="coerce")  # pyright: ignore[reportCallIssue, reportArgumentType]
    counted = _UNIT_NAMES[unit].split()[1]
    clock = f"none, a count of {counted} from {COUNTER_START:%Y-%m-%d}"
    return ParsedTimes(pd.DatetimeIndex(known), f"count of {counted}", clock=clock)
