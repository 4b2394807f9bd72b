"""Where days begin: at midnight of the file's clock, or when the user says, whatever row the file starts at."""

import re
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ecl2o.data.errors import DataError
from ecl2o.data.series import SeriesMetadata
from ecl2o.data.timestamps import COUNTER_START

_MONDAY = pd.Timestamp("2001-01-01")  # rounds of several days are counted from a Monday
_MINUTES = 24 * 60


@dataclass(frozen=True)
class PartDays:
    """Rows that belong to no whole day: before the first one begins, and after the last one ends.

    Args:
        before: rows before the first whole day. Default: 0.
        after: rows after the last one. Default: 0.

    >>> PartDays(before=17).in_words()
    '17 rows before the first whole day are left out'
    >>> PartDays(before=17, after=1).in_words()
    '17 rows before the first whole day and 1 row after the last are left out'
    """

    before: int = 0
    after: int = 0

    def in_words(self) -> str | None:
        """What is left out, None where nothing is."""
        said = [
            f"{count} row{'s' if count > 1 else ''} {where}"
            for count, where in ((self.before, "before the first whole day"), (self.after, "after the last"))
            if count
        ]
        return f"{' and '.join(said)} {'is' if self.before + self.after == 1 else 'are'} left out" if said else None


def minutes_of(day_start: str) -> int:
    """A time of the day as minutes after midnight.

    Args:
        day_start: hours, or hours and minutes with a colon.

    >>> minutes_of("6"), minutes_of("05:30")
    (360, 330)
    """
    found = re.fullmatch(r"(\d{1,2})(?::(\d{2}))?", day_start.strip())
    minutes = -1 if found is None else 60 * int(found[1]) + int(found[2] or 0)
    if found is None or int(found[2] or 0) > 59 or not 0 <= minutes < _MINUTES:
        raise DataError(f"a day must start at an hour from 0 to 23 or a time such as 05:30, got {day_start!r}.")
    return minutes


def whole_days(
    frame: pd.DataFrame, metadata: SeriesMetadata, day_start_minutes: int = 0
) -> tuple[pd.DataFrame, SeriesMetadata, PartDays]:
    """The rows of whole days, of `metadata.steps_per_day` rows each, and how many rows belong to none.

    Days begin with the first row at or after `day_start_minutes` past midnight of the file's own clock (the smallest of its
    offsets from UTC, where these change); rounds of several days are counted from a Monday, those of a plain count of steps
    from its 0.

    Args:
        frame: a series on a regular clock, as `read_series` gives it.
        metadata: where it comes from.
        day_start_minutes: when days begin, in minutes past midnight. Default: 0.

    Returns:
        The rows that belong to whole days, the metadata that says so, and what was left out.
    """
    clock = pd.DatetimeIndex(frame.index).tz_localize(None)
    step = pd.Timedelta(minutes=metadata.step_minutes)
    origin = COUNTER_START if metadata.time_format.startswith("count") else _MONDAY
    since: Any = clock[0] - origin - pd.Timedelta(minutes=day_start_minutes)
    before = min(-(since // step) % metadata.steps_per_day, len(frame))  # rounded down
    days = (len(frame) - before) // metadata.steps_per_day
    end = before + days * metadata.steps_per_day
    cut = replace(metadata, day_start_minutes=day_start_minutes)
    return frame.iloc[before:end], cut, PartDays(before, len(frame) - end)
