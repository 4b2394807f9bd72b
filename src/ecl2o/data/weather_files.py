"""Read weather files (NSRDB PSM3 and PSM4, TMY3, EPW, plain CSV) into one frame in our own names, units and clock.

`parse_weather` finds the kind of a file, one reader per kind turns it into a `WeatherFile`, and `read_weather` checks values
and times.
"""

import csv
import datetime
import math
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ecl2o.data.tables import (
    Fault,
    SourceFile,
    Table,
    decode_text,
    join_names,
    parse_numbers,
    read_source,
    read_table,
)
from ecl2o.data.timeline import Repairs, regularize
from ecl2o.data.timestamps import find_time_column, normalize_name, parse_times
from ecl2o.exceptions import DataError
from ecl2o.json_text import shorten

CLOCK = ("Year", "Month", "Day", "Hour", "Minute")
_FARTHEST_ZONE = 15.0  # hours from UTC; those in use go from -12 to 14


@dataclass(frozen=True)
class Station:
    """A place of measurement; zones in hours from UTC, None if the file does not say."""

    name: str = "unknown"
    latitude: float | None = None
    longitude: float | None = None
    zone: float | None = None  # of the stamps
    local_zone: float | None = None


class WeatherFile(NamedTuple):
    """A recognised file before its values are checked: the table, the time of each row, and the names of the columns."""

    kind: str
    site: Station
    table: Table
    time_column: str
    times: pd.DatetimeIndex  # naive, start of each interval, NaT where unreadable
    columns: dict[str, str]  # our name -> the file's


def read_clock_times(table: Table, hours_end: bool = False) -> pd.DatetimeIndex:
    """Read times from the columns Year to Minute; `hours_end` says that hours, 1 to 24, are named by their end."""
    lacking = [name for name in CLOCK[:4] if name not in table.columns]
    if lacking:
        raise DataError(
            f"{table.path}: the column '{lacking[0]}' is missing; the file has {join_names(table.columns)}. "
            "The time of a row is read from Year, Month, Day, Hour and Minute."
        )
    present = [name for name in CLOCK[: 4 if hours_end else 5] if name in table.columns]
    parts = pd.DataFrame({name.lower(): parse_numbers(table, name)[0] for name in present})
    if hours_end:
        parts["hour"] = parts["hour"].where(parts["hour"].between(1, 24)) - 1
    parts[(parts != parts.round()).any(axis=1)] = np.nan
    return pd.DatetimeIndex(pd.to_datetime(parts, errors="coerce"))


def split_cells(line: str) -> list[str]:
    """Return the cells of a line of CSV, without blanks around them."""
    return [cell.strip() for cell in next(csv.reader([line]), [])]


def read_header_number(source: SourceFile, header: dict[str, str], name: str, most: float = math.inf) -> float | None:
    """Return a number of the header, at most `most` in size; None if there is none."""
    cell = header.get(name, "")
    if cell in ("", "-"):
        return None
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > most:
        wrong = f"is more than {most:g}" if abs(value) > most else "is not a number"
        raise DataError(f"{source.path}, header, '{name}': {shorten(cell)} {wrong}. Correct the header.")
    return value


def read_station(source: SourceFile, header: dict[str, str], zone: str, local_zone: str) -> Station:
    """Return the station that a header describes, with the names of its entries for the zones."""
    place = [header.get(key, "") for key in ("Name", "City", "State", "Country")]
    stamps, local = (read_header_number(source, header, name, _FARTHEST_ZONE) for name in (zone, local_zone))
    return Station(
        ", ".join(name for name in place if name not in ("-", "", "None", "b'None'"))
        or f"{header.get('Source', 'NSRDB')} location {header.get('Location ID', 'unknown')}",
        read_header_number(source, header, "Latitude"),
        read_header_number(source, header, "Longitude"),
        local if stamps is None else stamps,
        stamps if local is None else local,
    )


class Quantity(NamedTuple):
    """A column that is needed: how files spell it, its unit and the spellings of that, and the possible values."""

    spelling: str
    unit: str
    units: str
    low: float
    high: float


QUANTITIES = {
    "ghi": Quantity(
        r"ghi|global horizontal( solar)? (irradiance|radiation)",
        "W/m2",
        r"wh?/m(2|\^2)|w/m(²|\*\*2)|w m-2",
        low=0.0,
        high=2500.0,
    ),
    "temperature": Quantity(
        r"temperature|temp|temp air|air temp(erature)?|dry bulb( temperature)?|tdry",
        "C",
        r"(°|deg ?|degrees )?c|celsius",
        low=-90.0,
        high=70.0,
    ),
    "wind_speed": Quantity(
        r"wind ?speed|wspd|wind ?speed( at)? \d+ ?m", "m/s", r"m/s|m s-1|mps|m/sec", low=0.0, high=120.0
    ),
}
SENSOR_OFFSET = 20.0  # W/m2: how far below 0 a pyranometer may read at night


def parse_column_name(name: str) -> tuple[str | None, str]:
    """Return (our name or None, unit or "") of a column as files spell it.

    >>> parse_column_name("Wind Speed (m/s)")
    ('wind_speed', 'm/s')
    """
    match = re.fullmatch(r"[^(\[]*(?:[(\[]([^)\]]*)[)\]])?\s*", name.strip())
    if match is None:
        return None, ""
    words = normalize_name(name)
    own = next((own for own, quantity in QUANTITIES.items() if re.fullmatch(quantity.spelling, words)), None)
    return own, (match.group(1) or "").strip()


def find_columns(table: Table, header: dict[str, str] | None = None) -> dict[str, str]:
    """Return the file's names of the columns that are needed, by our own; check units in their names and in the header."""
    found: dict[str, str] = {}
    for name in table.columns:
        own, unit = parse_column_name(name)
        if own is None:
            continue
        if own in found:
            raise DataError(f"{table.path}: both '{found[own]}' and '{name}' could be {own}. Rename or remove one.")
        found[own] = name
        entry = own.replace("_", " ").title() if own != "ghi" else "GHI"
        stated = (header or {}).get(f"{entry} Units", (header or {}).get(entry, ""))
        for each in (unit, stated):
            if each and not re.fullmatch(QUANTITIES[own].units, each.lower()):
                raise DataError(
                    f"{table.path}: the column '{name}' is in {each!r}, but {own} must be in {QUANTITIES[own].unit}. Convert it."
                )
    for own, quantity in QUANTITIES.items():
        if own not in found:
            raise DataError(
                f"{table.path}: the column {own} ({quantity.unit}) is missing; the file has {join_names(table.columns)}. "
                "Download the file again with GHI, temperature and wind speed selected, or rename the column."
            )
    return found


@dataclass(frozen=True)
class WeatherMetadata:
    """Where a weather frame comes from.

    Args:
        file: its name.
        sha256: of its bytes.
        kind: "NSRDB PSM3", "NSRDB PSM4", "TMY3", "EPW" or "CSV".
        site: its name.
        latitude: in degrees; None if the file does not say.
        longitude: in degrees; None if the file does not say.
        timezone: of the frame, local standard time, in hours from UTC; None if the file does not say.
        clock: what the file's own stamps were in, "local" or "UTC".
        steps_per_hour: rows in an hour.
        years: those in the file; a typical year has several, and its frame is dated 1990.
        leap_day_dropped: whether a leap year lacks 29 February.
        repairs: what `fill` did.
        built_in: whether it is the year that comes with the library. Default: false.
    """

    file: str
    sha256: str
    kind: str
    site: str
    latitude: float | None
    longitude: float | None
    timezone: float | None
    clock: str
    steps_per_hour: int
    years: tuple[int, ...]
    leap_day_dropped: bool
    repairs: Repairs
    built_in: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings, for JSON."""
        return asdict(self) | {"years": list(self.years)}


TYPICAL_YEAR = 1990  # the year given to typical years, whose months come from many; it has no 29 February


def merge_typical_year(times: pd.DatetimeIndex) -> tuple[pd.DatetimeIndex, tuple[int, ...]]:
    """Put a typical year, whose months come from different years, in one year; return the times and the years.

    Times of any other file stay as they are.
    """
    known = times[~times.isna()]
    years = tuple(int(year) for year in np.unique(known.year))
    months_of_many_years = len(set(zip(known.month, known.year, strict=True))) > len(set(known.month))
    leap_day = bool(np.any((known.month == 2) & (known.day == 29)))
    steps = np.diff(known.values)
    # The real years of a series with gaps have no step of a month or more, and none backwards.
    consecutive = ((steps > np.timedelta64(0)) & (steps < np.timedelta64(31, "D"))).all()
    if len(years) < 2 or leap_day or months_of_many_years or consecutive:
        return times, years
    start = pd.Timestamp(TYPICAL_YEAR, 1, 1)
    days = times.dayofyear - 1 - (times.is_leap_year & (times.month > 2))  # as in a year without 29 February
    return pd.DatetimeIndex(start + pd.to_timedelta(days, unit="D") + (times - times.normalize())), years


def to_local_time(frame: pd.DataFrame, site: Station) -> tuple[pd.DataFrame, str]:
    """Return the frame in local standard time, and the clock of its file."""
    if site.zone is None or site.local_zone is None:
        return frame, "local"
    stamped = frame.tz_localize(datetime.timezone(datetime.timedelta(hours=site.zone)))
    if site.zone == site.local_zone:
        return stamped, "local"
    local = stamped.tz_convert(datetime.timezone(datetime.timedelta(hours=site.local_zone)))
    return local, "UTC" if site.zone == 0 else f"UTC{site.zone:+g}"


def check_values(file: WeatherFile, fill: str | None) -> tuple[dict[str, np.ndarray], list[Fault], int]:
    """Return the three columns with NaN at every fault, the faults, and how many small negatives were set to 0."""
    checked, faults, negatives = {}, [], 0
    for own, name in file.columns.items():
        values, found = parse_numbers(file.table, name)
        faults += found
        offset = (own == "ghi") & (values < 0) & (values >= -SENSOR_OFFSET)
        if fill is not None:
            values[offset] = 0.0
            negatives += int(offset.sum())
        _, unit, _, low, high = QUANTITIES[own]
        outside = (values < low) | (values > high)
        for i in np.flatnonzero(outside):
            hint = "a code for a missing value, or another unit?"
            if offset[i]:
                hint = "sensors read a little below 0 at night; a repair sets that to 0"
            faults.append(
                file.table.fault(i, name, f"{values[i]:g} {unit} is not between {low:g} and {high:g} ({hint})")
            )
        values[outside] = np.nan
        checked[own] = values
    return checked, faults, negatives


def read_nsrdb(source: SourceFile, text: str, lines: list[str]) -> WeatherFile:
    """Read two lines about the site, then the table; the clock is UTC or local, as the header says."""
    if len(lines) < 3:
        raise DataError(f"{source.path}: an NSRDB file has two lines about the site, then names of columns, then data.")
    header = dict(zip(split_cells(lines[0]), split_cells(lines[1]), strict=False))
    table = read_table(source, text, skip=2)
    columns = find_columns(table, header)
    version = re.search(r"\d", header.get("Version", ""))
    kind = f"NSRDB PSM{version.group() if version else ''}"
    site = read_station(source, header, "Time Zone", "Local Time Zone")
    return WeatherFile(kind, site, table, "Year to Minute", read_clock_times(table), columns)


def read_tmy3(source: SourceFile, text: str, first: str) -> WeatherFile:
    """Read months of many years; hours are named by their end, 01:00 to 24:00, or by their start."""
    names = ("USAF", "Name", "State", "TZ", "Latitude", "Longitude")
    header: dict[str, str] = dict(zip(names, split_cells(first), strict=False))
    table = read_table(source, text, skip=1)
    if len(table.columns) < 2:
        raise DataError(f"{source.path}, line 2: a TMY3 file has a date and a time, then the columns of data.")
    date, time = table.columns[:2]
    days = pd.to_datetime(table.column(date), format="%m/%d/%Y", errors="coerce")
    clock = table.column(time).str.extract(r"^(\d{1,2}):(\d{2})$").astype(float)
    clock[(clock[0] > 24) | (clock[1] > 59)] = np.nan
    ends = bool((clock[0] == 24).any())  # 01:00 to 24:00: each hour is named by its end
    times = days + pd.to_timedelta(clock[0] - ends, unit="h") + pd.to_timedelta(clock[1], unit="min")
    site = read_station(source, header, "TZ", "TZ")
    return WeatherFile("TMY3", site, table, f"{date} {time}", pd.DatetimeIndex(times), find_columns(table))


_EPW_HEADER_LINES = 8
_EPW_SITE = ("LOCATION", "City", "State", "Country", "Type", "WMO", "Latitude", "Longitude", "TZ")
_EPW_VALUES = {7: "Dry Bulb Temperature", 14: "Global Horizontal Radiation", 22: "Wind Speed"}
_EPW_COLUMNS = [*CLOCK, *(_EPW_VALUES.get(field, f"Field {field}") for field in range(6, 36))]


def read_epw(source: SourceFile, text: str, lines: list[str]) -> WeatherFile:
    """Read the hours of an EPW file, which are named by their end, 1 to 24."""
    if len(lines) <= _EPW_HEADER_LINES:
        raise DataError(f"{source.path} has no rows of data below the {_EPW_HEADER_LINES} header lines of an EPW file.")
    header: dict[str, str] = dict(zip(_EPW_SITE, split_cells(lines[0]), strict=False))
    named = [*lines[: _EPW_HEADER_LINES - 1], ",".join(_EPW_COLUMNS), *lines[_EPW_HEADER_LINES:]]
    table = read_table(source, "\n".join(named), skip=_EPW_HEADER_LINES - 1)
    times = read_clock_times(table, hours_end=True)
    return WeatherFile(
        "EPW", read_station(source, header, "TZ", "TZ"), table, "Year to Hour", times, find_columns(table)
    )


def read_plain(source: SourceFile, text: str) -> WeatherFile:
    """Read a table with a time column, or with the columns Year to Minute."""
    table = read_table(source, text)
    columns = find_columns(table)
    if set(CLOCK[:4]) <= set(table.columns):
        return WeatherFile("CSV", Station(), table, "Year to Minute", read_clock_times(table), columns)
    time_column = find_time_column(table)
    times = parse_times(table, time_column).times
    offset = None if times.tz is None else times.tz.utcoffset(None)
    zone = None if offset is None else offset / datetime.timedelta(hours=1)
    return WeatherFile("CSV", Station(zone=zone, local_zone=zone), table, time_column, times.tz_localize(None), columns)


def parse_weather(source: SourceFile, text: str) -> WeatherFile:
    """Read a file as the kind that its first lines show."""
    lines = text.splitlines()
    first = lines[0].strip()
    if first.upper().startswith("LOCATION,"):
        return read_epw(source, text, lines)
    if len(lines) > 1 and lines[1].replace('"', "").lower().startswith("date (mm/dd/yyyy)"):
        return read_tmy3(source, text, first)
    names = split_cells(first)
    if "Latitude" in names or "Source" in names:
        return read_nsrdb(source, text, lines)
    if set(CLOCK[:4]) <= set(names) or any(parse_column_name(name)[0] for name in names):
        return read_plain(source, text)
    raise DataError(
        f"{source.path}, line 1: this is not a weather file of a known kind (NSRDB PSM3 or PSM4, TMY3, EPW, or CSV with the "
        f"columns {', '.join(QUANTITIES)}); it begins with {first[:60]!r}. For other series use read_series."
    )


def read_weather(path: str | Path, fill: str | None = None) -> tuple[pd.DataFrame, WeatherMetadata]:
    """Read a weather file into `ghi` (W/m2), `temperature` (C) and `wind_speed` (m/s) on a regular local clock.

    Recognises NSRDB PSM3 and PSM4 (with or without the two lines of site data), TMY3, EPW, and plain CSV with a time column.
    UTC stamps become local standard time. Typical years are dated 1990, hours marked by their end (TMY3) by their start.

    `fill` works as in `read_series`. It also replaces impossible values, and sets irradiance a little below 0, as sensors read
    at night, to 0.

    Args:
        path: the file.
        fill: "interpolate" or "previous". Default: raise an error.

    Returns:
        The frame, and where it comes from.

    Raises:
        DataError: The file cannot be used; the message names the row and the column.
    """
    source = read_source(path)
    file = parse_weather(source, decode_text(source))
    values, faults, negatives = check_values(file, fill)
    if fill is None:
        unreadable = np.flatnonzero(file.times.isna())
        faults = [file.table.fault(i, file.time_column, "the time cannot be read") for i in unreadable] + faults
    times, years = merge_typical_year(file.times)
    frame = pd.DataFrame(values, index=times, columns=list(QUANTITIES))
    whole = regularize(file.table, file.time_column, frame, faults, fill)
    steps_per_hour = pd.Timedelta(hours=1) / whole.step
    if steps_per_hour != int(steps_per_hour):
        raise DataError(
            f"{source.path}: one row every {whole.step} does not divide an hour. It must be at least hourly."
        )
    local, clock = to_local_time(whole.frame, file.site)
    return local, WeatherMetadata(
        file=source.path.name,
        sha256=source.sha256,
        kind=file.kind,
        site=file.site.name,
        latitude=file.site.latitude,
        longitude=file.site.longitude,
        timezone=file.site.local_zone,
        clock=clock,
        steps_per_hour=int(steps_per_hour),
        years=years,
        leap_day_dropped=whole.leap_day_dropped,
        repairs=replace(whole.repairs, negatives=negatives),
    )


def built_in_weather() -> tuple[pd.DataFrame, WeatherMetadata]:
    """Return the typical year of Greensboro, North Carolina, that ships with the package: hourly, no network needed.

    Source: NSRDB TMY3, station 723170, published by NREL. A work of the US government, in the public domain. The shipped
    file `greensboro_tmy3.csv.gz` holds the source's date, time, GHI, dry-bulb and wind-speed columns, unchanged.

    >>> frame, metadata = built_in_weather()
    >>> len(frame), metadata.kind, metadata.steps_per_hour
    (8760, 'TMY3', 1)
    """
    frame, metadata = read_weather(Path(__file__).with_name("greensboro_tmy3.csv.gz"))
    return frame, replace(metadata, built_in=True)
