"""Are the values possible?"""

import numpy as np

from ecl2o.data.tables import Fault, numbers
from ecl2o.data.weather.columns import UNIT_WORDS
from ecl2o.data.weather.file import WeatherFile

SENSOR_OFFSET = 20.0  # W/m2: how far below 0 a pyranometer may read at night
_RANGES = {"ghi": (0.0, 2500.0), "temperature": (-90.0, 70.0), "wind_speed": (0.0, 120.0)}


def checked_values(file: WeatherFile, fill: str | None) -> tuple[dict[str, np.ndarray], list[Fault], int]:
    """The three columns with NaN at every fault, the faults, and how many small negatives were set to 0."""
    checked, faults, negatives = {}, [], 0
    for own, name in file.columns.items():
        values, found = numbers(file.table, name)
        faults += found
        if own == "ghi" and fill is not None:
            offset = (values < 0) & (values >= -SENSOR_OFFSET)
            values[offset] = 0.0
            negatives = int(offset.sum())
        low, high = _RANGES[own]
        outside = (values < low) | (values > high)
        for i in np.flatnonzero(outside):
            faults.append(Fault(int(file.table.rows[i]), name, _impossible(own, values[i])))
        values[outside] = np.nan
        checked[own] = values
    return checked, faults, negatives


def _impossible(own: str, value: float) -> str:
    if own == "ghi" and -SENSOR_OFFSET <= value < 0:
        return (
            f"irradiance is negative, {value:g} W/m2 (sensors read a little below 0 at night; a repair sets that to 0)"
        )
    low, high = _RANGES[own]
    what = "irradiance is negative" if own == "ghi" and value < 0 else f"not between {low:g} and {high:g}"
    return f"{value:g} {UNIT_WORDS[own]}: {what} (a code for a missing value, or another unit?)"


def time_faults(file: WeatherFile) -> list[Fault]:
    """Rows whose time cannot be read."""
    return [
        Fault(int(file.table.rows[i]), file.time_column, "the date or time cannot be read")
        for i in np.flatnonzero(file.times.isna())
    ]
