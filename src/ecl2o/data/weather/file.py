"""A weather file that has been recognised, and what the readers of all formats share."""

import csv
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ecl2o.data.errors import DataError
from ecl2o.data.tables import Source, Table, listed, numbers, shown

CLOCK = ("Year", "Month", "Day", "Hour", "Minute")
_FARTHEST_ZONE = 15  # hours from UTC; those in use go from -12 to 14


@dataclass(frozen=True)
class Site:
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
    site: Site
    table: Table
    time_column: str
    times: pd.DatetimeIndex  # naive, start of each interval, NaT where unreadable
    columns: dict[str, str]  # our name -> the file's


def clock_times(table: Table) -> pd.DatetimeIndex:
    """Times from the columns Year, Month, Day, Hour and, where there is one, Minute."""
    lacking = [name for name in CLOCK[:4] if name not in table.columns]
    if lacking:
        raise DataError(
            f"{table.path}: the column '{lacking[0]}' is missing; the file has {listed(table.columns)}. "
            "The time of a row is read from Year, Month, Day, Hour and Minute."
        )
    present = [name for name in CLOCK if name in table.columns]
    parts = pd.DataFrame({name.lower(): numbers(table, name)[0] for name in present})
    parts[(parts != parts.round()).any(axis=1)] = np.nan
    return pd.DatetimeIndex(pd.to_datetime(parts, errors="coerce"))


def cells_of(line: str) -> list[str]:
    """The cells of a line of CSV."""
    return next(csv.reader([line]), [])


def header_number(source: Source, header: dict[str, str], name: str) -> float | None:
    """A number of the header; None where there is none."""
    cell = header.get(name, "").strip()
    if cell in ("", "-"):
        return None
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{source.path}, header, '{name}': {shown(cell)} is not a number. Correct the header.")
    return value


def header_zone(source: Source, header: dict[str, str], name: str) -> float | None:
    """Hours from UTC."""
    zone = header_number(source, header, name)
    if zone is not None and abs(zone) > _FARTHEST_ZONE:
        raise DataError(
            f"{source.path}, header, '{name}': {zone:g} hours from UTC are more than {_FARTHEST_ZONE}. Correct the header."
        )
    return zone
