"""Plain CSV: a table with the three columns and the time, and nothing about the site."""

import datetime
from dataclasses import replace

from ecl2o.data.tables import Source, read_table
from ecl2o.data.timestamps import find_time_column, parse_times
from ecl2o.data.weather.columns import find_columns
from ecl2o.data.weather.file import Site, WeatherFile, clock_times

_NOWHERE = Site("unknown", None, None, None, None)


def read_clock_columns(source: Source, text: str) -> WeatherFile:
    """An NSRDB table without the two lines about the site."""
    table = read_table(source, text)
    return WeatherFile("CSV", _NOWHERE, table, "Year to Minute", clock_times(table), find_columns(table))


def read_plain(source: Source, text: str) -> WeatherFile:
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
    return WeatherFile("CSV", replace(_NOWHERE, zone=zone, local_zone=zone), table, time_column, times, columns)
