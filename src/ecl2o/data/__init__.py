"""From files to contexts: weather files, power models, series.

Imports `problem` only; imported from `recipes` on.
"""

from ecl2o.data.contexts import Contexts, Days, Split, series_contexts
from ecl2o.data.errors import DataError
from ecl2o.data.frames import frame_series
from ecl2o.data.power import (
    AUTHORS_SOLAR,
    AUTHORS_WIND,
    PAPER_SOLAR,
    PAPER_WIND,
    SolarArray,
    WindTurbines,
    solar_power,
    wind_power,
)
from ecl2o.data.series import SeriesMetadata, read_series
from ecl2o.data.shortage import PRESETS, authors_contexts, paper_contexts, weather_contexts
from ecl2o.data.smoothing import hann_smoothed
from ecl2o.data.timeline import Repairs
from ecl2o.data.weather import WeatherMetadata, built_in_weather, read_weather
from ecl2o.data.whole_days import PartDays, minutes_of, whole_days

__all__ = [
    "AUTHORS_SOLAR",
    "AUTHORS_WIND",
    "Contexts",
    "DataError",
    "Days",
    "PAPER_SOLAR",
    "PAPER_WIND",
    "PRESETS",
    "PartDays",
    "Repairs",
    "SeriesMetadata",
    "SolarArray",
    "Split",
    "WeatherMetadata",
    "WindTurbines",
    "authors_contexts",
    "built_in_weather",
    "frame_series",
    "hann_smoothed",
    "minutes_of",
    "paper_contexts",
    "read_series",
    "read_weather",
    "series_contexts",
    "solar_power",
    "weather_contexts",
    "whole_days",
    "wind_power",
]
