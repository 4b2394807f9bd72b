"""Typical meteorological years, TMY3."""

import numpy as np
import pandas as pd

from ecl2o.data.errors import DataError
from ecl2o.data.tables import Source, read_table
from ecl2o.data.weather.columns import find_columns
from ecl2o.data.weather.file import Site, WeatherFile, cells_of, header_number, header_zone


def read_tmy3(source: Source, text: str, first: str) -> WeatherFile:
    """Months of many years; hours are named by their end, 01:00 to 24:00, or by their start."""
    cells = cells_of(first)
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
    zone = header_zone(source, header, "TZ")
    site = Site(
        ", ".join(part for part in (header.get("Name", "").strip(), header.get("State", "").strip()) if part),
        header_number(source, header, "Latitude"),
        header_number(source, header, "Longitude"),
        zone,
        zone,
    )
    return WeatherFile("TMY3", site, table, f"{date} {time}", pd.DatetimeIndex(times), find_columns(table))
