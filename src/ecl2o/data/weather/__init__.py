"""Weather files: NSRDB PSM3 and PSM4, TMY3, EPW and plain CSV, all to one frame in our own names.

| column | unit | meaning |
|---|---|---|
| `ghi` | W/m2 | global horizontal irradiance |
| `temperature` | C | air temperature |
| `wind_speed` | m/s | wind speed |

The frames hold what pvlib's readers give for the same files, and tests keep them to that. The cells are read here because
pvlib names neither row nor column when something is wrong, cannot leave a bad cell to be filled, knows one spelling of each
column and whole-hour time zones only.
"""

from ecl2o.data.weather.columns import COLUMNS
from ecl2o.data.weather.metadata import WeatherMetadata
from ecl2o.data.weather.read import built_in_weather, read_weather

__all__ = ["COLUMNS", "WeatherMetadata", "built_in_weather", "read_weather"]
