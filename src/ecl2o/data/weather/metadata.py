"""Where a weather frame comes from."""

from dataclasses import asdict, dataclass
from typing import Any

from ecl2o.data.timeline import Repairs


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
        """Plain numbers and strings, for JSON."""
        return asdict(self) | {"years": list(self.years)}
