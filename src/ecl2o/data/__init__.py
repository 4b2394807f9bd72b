"""From files to contexts: weather files, power models, series. Imports `problem` only."""

from ecl2o.data.augmentation import augment_windows
from ecl2o.data.contexts import Contexts, Days, PartDays, Split, parse_day_start, series_contexts, trim_to_whole_days
from ecl2o.data.series import SeriesMetadata, frame_series, parse_covariates, read_series
from ecl2o.data.shortage import (
    AUTHORS_SOLAR,
    AUTHORS_WIND,
    PAPER_SOLAR,
    PAPER_WIND,
    PRESETS,
    SolarArray,
    WindTurbines,
    authors_contexts,
    hann_smooth,
    paper_contexts,
    solar_power,
    weather_contexts,
    wind_power,
)
from ecl2o.data.timeline import Repairs
from ecl2o.data.weather_files import WeatherMetadata, built_in_weather, read_weather

__all__ = [
    "AUTHORS_SOLAR",
    "AUTHORS_WIND",
    "Contexts",
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
    "augment_windows",
    "authors_contexts",
    "built_in_weather",
    "frame_series",
    "hann_smooth",
    "parse_covariates",
    "parse_day_start",
    "paper_contexts",
    "read_series",
    "read_weather",
    "series_contexts",
    "solar_power",
    "weather_contexts",
    "trim_to_whole_days",
    "wind_power",
]
