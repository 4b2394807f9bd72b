"""When was it: typical years in one year, and local standard time."""

import datetime

import numpy as np
import pandas as pd

from ecl2o.data.weather.file import Site

TYPICAL_YEAR = 1990  # the year given to typical years, whose months come from many; it has no 29 February


def one_year(times: pd.DatetimeIndex) -> tuple[pd.DatetimeIndex, tuple[int, ...]]:
    """A typical year, whose months come from different years, in one year; any other times as they are. And the years."""
    known = times[~times.isna()]
    years = tuple(int(year) for year in np.unique(known.year))
    months_of_many_years = len({(month, year) for month, year in zip(known.month, known.year, strict=True)}) > len(
        set(known.month)
    )
    leap_day = bool(np.any((known.month == 2) & (known.day == 29)))
    if len(years) < 2 or leap_day or months_of_many_years or _consecutive(known):
        return times, years
    start = pd.Timestamp(TYPICAL_YEAR, 1, 1)
    days = times.dayofyear - 1 - (times.is_leap_year & (times.month > 2))  # as in a year without 29 February
    return pd.DatetimeIndex(start + pd.to_timedelta(days, unit="D") + (times - times.normalize())), years


def _consecutive(times: pd.DatetimeIndex) -> bool:
    """Whether no step is longer than a month, as between the real years of a series with gaps."""
    steps = np.diff(times.values)
    return bool(((steps > np.timedelta64(0)) & (steps < np.timedelta64(31, "D"))).all())


def local_time(frame: pd.DataFrame, site: Site) -> tuple[pd.DataFrame, str]:
    """The frame in local standard time, and what its clock was."""
    if site.zone is None or site.local_zone is None:
        return frame, "local"
    stamped = frame.tz_localize(datetime.timezone(datetime.timedelta(hours=site.zone)))
    if site.zone == site.local_zone:
        return stamped, "local"
    local = stamped.tz_convert(datetime.timezone(datetime.timedelta(hours=site.local_zone)))
    return local, "UTC" if site.zone == 0 else f"UTC{site.zone:+g}"
