"""From a weather file of any kind to one frame in our own names."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from ecl2o.data.errors import DataError
from ecl2o.data.tables import decoded, read_source, refuse_unknown_fill
from ecl2o.data.timeline import regular
from ecl2o.data.weather.clock import local_time, one_year
from ecl2o.data.weather.columns import COLUMNS
from ecl2o.data.weather.metadata import WeatherMetadata
from ecl2o.data.weather.recognise import recognise
from ecl2o.data.weather.values import checked_values, time_faults

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
        fill: "interpolate" or "previous". Default: what is wrong is refused.

    Returns:
        The frame, and where it comes from.
    """
    refuse_unknown_fill(fill)
    source = read_source(path)
    file = recognise(source, decoded(source))
    values, faults, negatives = checked_values(file, fill)
    if fill is None:
        file.table.refuse(time_faults(file) + faults, _ADVICE)
    times, years = one_year(file.times)
    frame = pd.DataFrame(values, index=times, columns=list(COLUMNS))
    whole = regular(file.table, file.time_column, frame, faults, fill)
    steps_per_hour = pd.Timedelta(hours=1) / whole.step
    if steps_per_hour != int(steps_per_hour):
        raise DataError(
            f"{source.path}: one row every {whole.step}. Weather is needed at least hourly, with whole rows per hour."
        )
    local, clock = local_time(whole.frame, file.site)
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
    """The typical year of Greensboro, North Carolina, that comes with pvlib: hourly, no network needed.

    >>> frame, metadata = built_in_weather()
    >>> len(frame), metadata.kind, metadata.steps_per_hour
    (8760, 'TMY3', 1)
    """
    found = find_spec("pvlib")  # not imported, which takes a second
    assert found is not None
    assert found.origin is not None
    frame, metadata = read_weather(Path(found.origin).parent / "data" / "723170TYA.CSV")
    return frame, replace(metadata, built_in=True)
