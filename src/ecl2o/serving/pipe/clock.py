"""Which step a time belongs to, so that a missed tick does not shift the day."""

import datetime


def same_clock(time: datetime.datetime, other: datetime.datetime) -> datetime.datetime:
    """A time as `other`'s clock shows it: one that names no offset is taken to be of the other's, and the other way round.

    >>> str(same_clock(datetime.datetime(2024, 1, 1, 6), datetime.datetime.fromisoformat("2023-01-01T00+02:00")))
    '2024-01-01 06:00:00+02:00'
    """
    if (time.tzinfo is None) == (other.tzinfo is None):
        return time
    return time.replace(tzinfo=other.tzinfo)


def steps_between(first: datetime.datetime, last: datetime.datetime, step_minutes: float) -> int:
    """How many steps later the last one is; a few minutes early or late do not count.

    >>> steps_between(datetime.datetime(2024, 1, 1, 6), datetime.datetime(2024, 1, 1, 8, 7), 60.0)
    2
    """
    return round((same_clock(last, first) - first) / datetime.timedelta(minutes=step_minutes))
