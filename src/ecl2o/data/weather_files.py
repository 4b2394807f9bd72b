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
from typing import Any

import numpy as np
import pandas as pd

from ecl2o.data.tables import (
    Fault,
    SourceFile,
    Table,
    check_fill,
    decode_text,
    join_names,
    parse_numbers,
    quote,
    read_source,
    read_table,
)
from ecl2o.data.timeline import Repairs, regularize
from ecl2o.data.timestamps import find_time_column, parse_times
from ecl2o.exceptions import DataError

CLOCK = ("Year", "Month", "Day", "Hour", "Minute")
_FARTHEST_ZONE = 15  # hours from UTC; those in use go from -12 to 14


@dataclass(frozen=True)
class Station:
    """Where the weather was; zones in hours from UTC, None if the file does not say."""

    name: str
    latitude: float | None
    longitude: float | None
    zone: float | None  # of the stamps
    local_zone: float | None


@dataclass(frozen=True)
class WeatherFile:
    """A recognised file before its values are checked: the table, when each row was, and which column is which."""

    kind: str
    site: Station
    table: Table
    time_column: str
    times: pd.DatetimeIndex  # naive, start of each interval, NaT where unreadable
    columns: dict[str, str]  # our name -> the file's


def read_clock_times(table: Table) -> pd.DatetimeIndex:
    """Times from the columns Year, Month, Day, Hour and, where there is one, Minute."""
    lacking = [name for name in CLOCK[:4] if name not in table.columns]
    if lacking:
        raise DataError(
            f"{table.path}: the column '{lacking[0]}' is missing; the file has {join_names(table.columns)}. "
            "The time of a row is read from Year, Month, Day, Hour and Minute."
        )
    present = [name for name in CLOCK if name in table.columns]
    parts = pd.DataFrame({name.lower(): parse_numbers(table, name)[0] for name in present})
    parts[(parts != parts.round()).any(axis=1)] = np.nan
    return pd.DatetimeIndex(pd.to_datetime(parts, errors="coerce"))


def split_cells(line: str) -> list[str]:
    """The cells of a line of CSV."""
    return next(csv.reader([line]), [])


def read_header_number(source: SourceFile, header: dict[str, str], name: str) -> float | None:
    """A number of the header; None where there is none."""
    cell = header.get(name, "").strip()
    if cell in ("", "-"):
        return None
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{source.path}, header, '{name}': {quote(cell)} is not a number. Correct the header.")
    return value


def read_header_zone(source: SourceFile, header: dict[str, str], name: str) -> float | None:
    """Hours from UTC."""
    zone = read_header_number(source, header, name)
    if zone is not None and abs(zone) > _FARTHEST_ZONE:
        raise DataError(
            f"{source.path}, header, '{name}': {zone:g} hours from UTC are more than {_FARTHEST_ZONE}. Correct the header."
        )
    return zone


COLUMNS = ("ghi", "temperature", "wind_speed")

_SPELLINGS = {
    "ghi": re.compile(r"ghi|global horizontal( solar)? (irradiance|radiation)"),
    "temperature": re.compile(r"temperature|temp|temp air|air temp(erature)?|dry bulb( temperature)?|tdry"),
    "wind_speed": re.compile(r"wind ?speed|wspd|wind ?speed( at)? \d+ ?m"),
}
_UNITS = {
    "ghi": {"w/m2", "w/m^2", "w/m²", "w/m**2", "w m-2", "wh/m2", "wh/m^2"},
    "temperature": {"c", "°c", "degc", "deg c", "celsius", "degrees c"},
    "wind_speed": {"m/s", "m s-1", "mps", "m/sec"},
}
UNIT_WORDS = {"ghi": "W/m2", "temperature": "C", "wind_speed": "m/s"}


def parse_column_name(name: str) -> tuple[str | None, str]:
    """(our name or None, unit or "") of a column as files spell it: 'Wind Speed (m/s)' -> ('wind_speed', 'm/s')."""
    match = re.fullmatch(r"([^(\[]*)(?:[(\[]([^)\]]*)[)\]])?\s*", name.strip())
    if match is None:
        return None, ""
    words = re.sub(r"[\s_-]+", " ", match.group(1)).strip().lower()
    own = next((own for own, spelling in _SPELLINGS.items() if spelling.fullmatch(words)), None)
    return own, (match.group(2) or "").strip()


def find_columns(table: Table) -> dict[str, str]:
    """The file's names of the columns that are needed, by our own."""
    found: dict[str, str] = {}
    for name in table.columns:
        own, unit = parse_column_name(name)
        if own is None:
            continue
        if own in found:
            raise DataError(
                f"{table.path}: both '{found[own]}' and '{name}' could be {own}. Rename or remove the one that is not meant."
            )
        check_unit(table, own, name, unit)
        found[own] = name
    for own in COLUMNS:
        if own not in found:
            raise DataError(
                f"{table.path}: the column {own} ({UNIT_WORDS[own]}) is missing; the file has {join_names(table.columns)}. "
                "Download the file again with GHI, temperature and wind speed selected, or rename the column."
            )
    return found


def check_unit(table: Table, own: str, name: str, unit: str) -> None:
    """Raise `DataError` if a column is in another unit than ours."""
    if unit and unit.lower() not in _UNITS[own]:
        raise DataError(
            f"{table.path}: the column '{name}' is in {unit!r}, but {own} must be in {UNIT_WORDS[own]}. Convert it."
        )


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
    """A typical year, whose months come from different years, in one year; any other times as they are. And the years."""
    known = times[~times.isna()]
    years = tuple(int(year) for year in np.unique(known.year))
    months_of_many_years = len({(month, year) for month, year in zip(known.month, known.year, strict=True)}) > len(
        set(known.month)
    )
    leap_day = bool(np.any((known.month == 2) & (known.day == 29)))
    if len(years) < 2 or leap_day or months_of_many_years or _is_consecutive(known):
        return times, years
    start = pd.Timestamp(TYPICAL_YEAR, 1, 1)
    days = times.dayofyear - 1 - (times.is_leap_year & (times.month > 2))  # as in a year without 29 February
    return pd.DatetimeIndex(start + pd.to_timedelta(days, unit="D") + (times - times.normalize())), years


def _is_consecutive(times: pd.DatetimeIndex) -> bool:
    """Whether no step is longer than a month, as between the real years of a series with gaps."""
    steps = np.diff(times.values)
    return bool(((steps > np.timedelta64(0)) & (steps < np.timedelta64(31, "D"))).all())


def to_local_time(frame: pd.DataFrame, site: Station) -> tuple[pd.DataFrame, str]:
    """The frame in local standard time, and what its clock was."""
    if site.zone is None or site.local_zone is None:
        return frame, "local"
    stamped = frame.tz_localize(datetime.timezone(datetime.timedelta(hours=site.zone)))
    if site.zone == site.local_zone:
        return stamped, "local"
    local = stamped.tz_convert(datetime.timezone(datetime.timedelta(hours=site.local_zone)))
    return local, "UTC" if site.zone == 0 else f"UTC{site.zone:+g}"


SENSOR_OFFSET = 20.0  # W/m2: how far below 0 a pyranometer may read at night
_RANGES = {"ghi": (0.0, 2500.0), "temperature": (-90.0, 70.0), "wind_speed": (0.0, 120.0)}


def check_values(file: WeatherFile, fill: str | None) -> tuple[dict[str, np.ndarray], list[Fault], int]:
    """The three columns with NaN at every fault, the faults, and how many small negatives were set to 0."""
    checked, faults, negatives = {}, [], 0
    for own, name in file.columns.items():
        values, found = parse_numbers(file.table, name)
        faults += found
        if own == "ghi" and fill is not None:
            offset = (values < 0) & (values >= -SENSOR_OFFSET)
            values[offset] = 0.0
            negatives = int(offset.sum())
        low, high = _RANGES[own]
        outside = (values < low) | (values > high)
        for i in np.flatnonzero(outside):
            faults.append(Fault(int(file.table.rows[i]), name, _describe_impossible(own, values[i])))
        values[outside] = np.nan
        checked[own] = values
    return checked, faults, negatives


def _describe_impossible(own: str, value: float) -> str:
    if own == "ghi" and -SENSOR_OFFSET <= value < 0:
        return (
            f"irradiance is negative, {value:g} W/m2 (sensors read a little below 0 at night; a repair sets that to 0)"
        )
    low, high = _RANGES[own]
    what = "irradiance is negative" if own == "ghi" and value < 0 else f"not between {low:g} and {high:g}"
    return f"{value:g} {UNIT_WORDS[own]}: {what} (a code for a missing value, or another unit?)"


def find_time_faults(file: WeatherFile) -> list[Fault]:
    """Rows whose time cannot be read."""
    return [
        Fault(int(file.table.rows[i]), file.time_column, "the date or time cannot be read")
        for i in np.flatnonzero(file.times.isna())
    ]


def read_nsrdb(source: SourceFile, text: str, lines: list[str]) -> WeatherFile:
    """Two lines about the site, then the table; the clock is UTC or local, as the header says."""
    if len(lines) < 3:
        raise DataError(
            f"{source.path}: an NSRDB file has two lines about the site, then the names of the columns, then data."
        )
    header = {
        name.strip(): cell.strip() for name, cell in zip(split_cells(lines[0]), split_cells(lines[1]), strict=False)
    }
    table = read_table(source, text, skip=2)
    columns = find_columns(table)
    for own, unit_cell in (
        ("ghi", "GHI Units"),
        ("temperature", "Temperature Units"),
        ("wind_speed", "Wind Speed Units"),
    ):
        check_unit(table, own, columns[own], header.get(unit_cell, header.get(unit_cell.removesuffix(" Units"), "")))
    version = re.search(r"\d", header.get("Version", ""))
    zone = read_header_zone(source, header, "Time Zone")
    local_zone = read_header_zone(source, header, "Local Time Zone")
    place = [
        header[key] for key in ("City", "State", "Country") if header.get(key, "-") not in ("-", "", "None", "b'None'")
    ]
    site = Station(
        ", ".join(place) or f"{header.get('SourceFile', 'NSRDB')} location {header.get('Location ID', 'unknown')}",
        read_header_number(source, header, "Latitude"),
        read_header_number(source, header, "Longitude"),
        local_zone if zone is None else zone,
        zone if local_zone is None else local_zone,
    )
    return WeatherFile(
        f"NSRDB PSM{version.group() if version else ''}",
        site,
        table,
        "Year to Minute",
        read_clock_times(table),
        columns,
    )


def read_tmy3(source: SourceFile, text: str, first: str) -> WeatherFile:
    """Months of many years; hours are named by their end, 01:00 to 24:00, or by their start."""
    cells = split_cells(first)
    header: dict[str, str] = dict(zip(("USAF", "Name", "State", "TZ", "Latitude", "Longitude"), cells, strict=False))
    table = read_table(source, text, skip=1)
    if len(table.columns) < 2:
        raise DataError(f"{source.path}, line 2: a TMY3 file has a date and a time, then the columns of data.")
    date, time = table.columns[:2]
    days = pd.to_datetime(table.column(date), format="%m/%d/%Y", errors="coerce")
    clock = table.column(time).str.extract(r"^(\d{1,2}):(\d{2})$").astype(float)
    clock[(clock[0] > 24) | (clock[1] > 59)] = np.nan
    ends = bool((clock[0] == 24).any())  # 01:00 to 24:00: each hour is named by its end
    times = days + pd.to_timedelta(clock[0] - ends, unit="h") + pd.to_timedelta(clock[1], unit="min")
    zone = read_header_zone(source, header, "TZ")
    site = Station(
        ", ".join(part for part in (header.get("Name", "").strip(), header.get("State", "").strip()) if part),
        read_header_number(source, header, "Latitude"),
        read_header_number(source, header, "Longitude"),
        zone,
        zone,
    )
    return WeatherFile("TMY3", site, table, f"{date} {time}", pd.DatetimeIndex(times), find_columns(table))


_EPW_HEADER_LINES = 8
_EPW_COLUMNS = (
    *("Year", "Month", "Day", "Hour", "Minute", "Data SourceFile and Uncertainty Flags", "Dry Bulb Temperature"),
    *("Dew Point Temperature", "Relative Humidity", "Atmospheric Pressure", "Extraterrestrial Horizontal Radiation"),
    *("Extraterrestrial Direct Normal Radiation", "Horizontal Infrared Radiation", "Global Horizontal Radiation"),
    *("Direct Normal Radiation", "Diffuse Horizontal Radiation", "Global Horizontal Illuminance"),
    *(
        "Direct Normal Illuminance",
        "Diffuse Horizontal Illuminance",
        "Zenith Luminance",
        "Wind Direction",
        "Wind Speed",
    ),
    *(f"Field {number}" for number in range(23, 36)),
)


def read_epw(source: SourceFile, text: str, lines: list[str]) -> WeatherFile:
    """Hours are named by their end, 1 to 24."""
    if len(lines) <= _EPW_HEADER_LINES:
        raise DataError(f"{source.path} has no rows of data below the {_EPW_HEADER_LINES} header lines of an EPW file.")
    header: dict[str, str] = dict(
        zip(
            ("LOCATION", "City", "State", "Country", "Type", "WMO", "Latitude", "Longitude", "TZ"),
            split_cells(lines[0]),
            strict=False,
        )
    )
    named = [*lines[: _EPW_HEADER_LINES - 1], ",".join(_EPW_COLUMNS), *lines[_EPW_HEADER_LINES:]]
    table = read_table(source, "\n".join(named), skip=_EPW_HEADER_LINES - 1)
    clock = pd.DataFrame({name.lower(): parse_numbers(table, name)[0] for name in CLOCK[:4]})
    hours = clock.pop("hour")
    hours[~hours.between(1, 24)] = np.nan
    times = pd.to_datetime(clock, errors="coerce") + pd.to_timedelta(hours - 1, unit="h")
    zone = read_header_zone(source, header, "TZ")
    site = Station(
        ", ".join(
            header[key].strip() for key in ("City", "State", "Country") if header.get(key, "-").strip() not in ("-", "")
        ),
        read_header_number(source, header, "Latitude"),
        read_header_number(source, header, "Longitude"),
        zone,
        zone,
    )
    columns = {"ghi": "Global Horizontal Radiation", "temperature": "Dry Bulb Temperature", "wind_speed": "Wind Speed"}
    return WeatherFile("EPW", site, table, "Year to Hour", pd.DatetimeIndex(times), columns)


_UNKNOWN_STATION = Station("unknown", None, None, None, None)


def read_clock_columns(source: SourceFile, text: str) -> WeatherFile:
    """An NSRDB table without the two lines about the site."""
    table = read_table(source, text)
    return WeatherFile("CSV", _UNKNOWN_STATION, table, "Year to Minute", read_clock_times(table), find_columns(table))


def read_plain(source: SourceFile, text: str) -> WeatherFile:
    """A table with a time column."""
    table = read_table(source, text)
    columns = find_columns(table)
    time_column = find_time_column(table)
    times = parse_times(table, time_column).times
    zone = None
    if times.tz is not None:
        offset = times.tz.utcoffset(None)
        zone = None if offset is None else offset / datetime.timedelta(hours=1)
        times = times.tz_localize(None)
    return WeatherFile("CSV", replace(_UNKNOWN_STATION, zone=zone, local_zone=zone), table, time_column, times, columns)


def parse_weather(source: SourceFile, text: str) -> WeatherFile:
    """Read the file as the kind that its first lines show."""
    lines = text.splitlines()
    first = lines[0].strip()
    if first.upper().startswith("LOCATION,"):
        return read_epw(source, text, lines)
    if len(lines) > 1 and lines[1].replace('"', "").lower().startswith("date (mm/dd/yyyy)"):
        return read_tmy3(source, text, first)
    names = [name.strip() for name in split_cells(first)]
    if "Latitude" in names or "SourceFile" in names:
        return read_nsrdb(source, text, lines)
    if set(CLOCK[:4]) <= set(names):
        return read_clock_columns(source, text)
    if any(parse_column_name(name)[0] in COLUMNS for name in names):
        return read_plain(source, text)
    raise DataError(
        f"{source.path}, line 1: this is not a weather file of a known kind (NSRDB PSM3 or PSM4, TMY3, EPW, or CSV with the "
        f"columns {', '.join(COLUMNS)}); it begins with {first[:60]!r}. For other series use read_series."
    )


_ADVICE = "Correct the file, or ask for a repair with fill='interpolate' or fill='previous'."


def read_weather(path: str | Path, fill: str | None = None) -> tuple[pd.DataFrame, WeatherMetadata]:
    """Read a weather file into `ghi` (W/m2), `temperature` (C) and `wind_speed` (m/s) on a regular local clock.

    Recognises NSRDB PSM3 and PSM4 (with or without the two lines of site data), TMY3, EPW, and plain CSV with a time column.
    UTC stamps become local standard time. Typical years are dated 1990, hours marked by their end (TMY3) by their start.

    Anything wrong is a `DataError` that says where. `fill="interpolate"` (on a straight line) or `"previous"` (the value
    before) repairs cells that are missing, unreadable or impossible, gaps, repeated rows (the first is kept) and rows out
    of order, and counts all that in `metadata.repairs`. Irradiance a little below 0, as sensors show at night, becomes 0.

    Args:
        path: the file.
        fill: "interpolate" or "previous". Default: raise an error.

    Returns:
        The frame, and where it comes from.
    """
    check_fill(fill)
    source = read_source(path)
    file = parse_weather(source, decode_text(source))
    values, faults, negatives = check_values(file, fill)
    if fill is None:
        file.table.check_faults(find_time_faults(file) + faults, _ADVICE)
    times, years = merge_typical_year(file.times)
    frame = pd.DataFrame(values, index=times, columns=list(COLUMNS))
    whole = regularize(file.table, file.time_column, frame, faults, fill)
    steps_per_hour = pd.Timedelta(hours=1) / whole.step
    if steps_per_hour != int(steps_per_hour):
        raise DataError(
            f"{source.path}: one row every {whole.step}. Weather is needed at least hourly, with whole rows per hour."
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
