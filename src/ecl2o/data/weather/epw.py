"""EnergyPlus weather files, EPW."""

import numpy as np
import pandas as pd

from ecl2o.data.errors import DataError
from ecl2o.data.tables import Source, numbers, read_table
from ecl2o.data.weather.file import CLOCK, Site, WeatherFile, cells_of, header_number, header_zone

_EPW_HEADER_LINES = 8
_EPW_COLUMNS = (
    *("Year", "Month", "Day", "Hour", "Minute", "Data Source and Uncertainty Flags", "Dry Bulb Temperature"),
    *("Dew Point Temperature", "Relative Humidity", "Atmospheric Pressure", "Extraterrestrial Horizontal Radiation"),
    *("Extraterrestrial Direct Normal Radiation", "Horizontal Infrared Radiation", "Global Horizontal Radiation"),
    *("Direct Normal Radiation", "Diffuse Horizontal Radiation", "Global Horizontal Illuminance"),
    *(
        "Direct Normal Illuminance",
        "Diffuse Horizontal Illuminance",
        "Zenith Luminance",
        "Wind Direction",
        "Wind Speed",
    ),
    *(f"Field {number}" for number in range(23, 36)),
)


def read_epw(source: Source, text: str, lines: list[str]) -> WeatherFile:
    """Hours are named by their end, 1 to 24."""
    if len(lines) <= _EPW_HEADER_LINES:
        raise DataError(f"{source.path} has no rows of data below the {_EPW_HEADER_LINES} header lines of an EPW file.")
    header: dict[str, str] = dict(
        zip(
            ("LOCATION", "City", "State", "Country", "Type", "WMO", "Latitude", "Longitude", "TZ"),
            cells_of(lines[0]),
            strict=False,
        )
    )
    named = [*lines[: _EPW_HEADER_LINES - 1], ",".join(_EPW_COLUMNS), *lines[_EPW_HEADER_LINES:]]
    table = read_table(source, "\n".join(named), skip=_EPW_HEADER_LINES - 1)
    clock = pd.DataFrame({name.lower(): numbers(table, name)[0] for name in CLOCK[:4]})
    hours = clock.pop("hour")
    hours[~hours.between(1, 24)] = np.nan
    times = pd.to_datetime(clock, errors="coerce") + pd.to_timedelta(hours - 1, unit="h")
    zone = header_zone(source, header, "TZ")
    site = Site(
        ", ".join(
            header[key].strip() for key in ("City", "State", "Country") if header.get(key, "-").strip() not in ("-", "")
        ),
        header_number(source, header, "Latitude"),
        header_number(source, header, "Longitude"),
        zone,
        zone,
    )
    columns = {"ghi": "Global Horizontal Radiation", "temperature": "Dry Bulb Temperature", "wind_speed": "Wind Speed"}
    return WeatherFile("EPW", site, table, "Year to Hour", pd.DatetimeIndex(times), columns)
