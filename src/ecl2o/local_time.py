"""Local clocks: time zones by name, and the hours that a change of clocks skips or shows twice."""

import datetime
import zoneinfo


def find_zone(name: str) -> zoneinfo.ZoneInfo:
    """Return a time zone of the IANA database.

    >>> find_zone("America/New_York").key
    'America/New_York'

    Raises:
        ValueError: There is none of this name.
    """
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        known = zoneinfo.available_timezones()
        advice = "" if known else " This machine has no time zones: pip install tzdata."
        raise ValueError(
            f"time_zone must be a name such as America/New_York or Europe/Berlin, got {name[:60]!r}.{advice}"
        ) from None


def to_local_time(time: datetime.datetime, zone: datetime.tzinfo) -> datetime.datetime:
    """Return the time that local clocks show, without an offset; a time without one is local already.

    >>> str(to_local_time(datetime.datetime.fromisoformat("2024-07-01T12:00Z"), find_zone("Europe/Berlin")))
    '2024-07-01 14:00:00'
    """
    return time if time.tzinfo is None else time.astimezone(zone).replace(tzinfo=None)


def clock_shift(time: datetime.datetime, zone: datetime.tzinfo) -> int:
    """Return 1 if local clocks show a time twice, -1 if they skip it, otherwise 0.

    >>> autumn, spring = datetime.datetime(2024, 11, 3, 1), datetime.datetime(2024, 3, 10, 2)
    >>> [clock_shift(time, find_zone("America/New_York")) for time in (autumn, spring)]
    [1, -1]
    """
    first, second = (time.replace(tzinfo=zone, fold=fold).utcoffset() or datetime.timedelta() for fold in (0, 1))
    return (first > second) - (first < second)
