"""From weather to the shortage that a datacenter is asked to shed: the two pipelines of the demand-response study.

Wind and solar power follow the models of the paper's section 6.1, in SI units. Preset `paper` follows the paper's text,
`authors-code` the program that made its figures: smaller turbines and panels, half-hourly data, smoothing, and a scale that
looks at the whole year. Both are described in docs/reproduction.md.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ecl2o.data.contexts import Contexts, Split
from ecl2o.data.weather_files import WeatherMetadata, built_in_weather, read_weather
from ecl2o.exceptions import DataError


@dataclass(frozen=True)
class WindTurbines:
    """Wind turbines of one site.

    Args:
        efficiency: a share of the wind's power.
        air_density: in kg/m3.
        swept_area: in m2.
    """

    efficiency: float
    air_density: float
    swept_area: float


@dataclass(frozen=True)
class SolarArray:
    """Solar panels with the power factor * efficiency * area * GHI * (1 - loss_per_degree (T - 25 C)).

    Args:
        efficiency: a share of the irradiance.
        area: in m2.
        factor: 1/2 in the paper, 1 in its authors' code.
        clipped: whether the bracket is at least 0, as physics demands above 45 C.
        loss_per_degree: a share, for each degree above 25 C. Default: 0.05.
    """

    efficiency: float
    area: float
    factor: float
    clipped: bool
    loss_per_degree: float = 0.05


PAPER_WIND = WindTurbines(efficiency=0.30, air_density=1.23, swept_area=500_000.0)
PAPER_SOLAR = SolarArray(efficiency=0.10, area=10_000.0, factor=0.5, clipped=True)
AUTHORS_WIND = WindTurbines(efficiency=0.30, air_density=1.23, swept_area=5_000.0)
AUTHORS_SOLAR = SolarArray(efficiency=0.10, area=100.0, factor=1.0, clipped=False)


def wind_power(turbines: WindTurbines, wind_speed: np.ndarray) -> np.ndarray:
    """Return the power 1/2 * efficiency * density * area * v^3.

    Args:
        turbines: efficiency, air density and swept area.
        wind_speed: (n,), in m/s.

    Returns:
        (n,), in W.

    >>> float(wind_power(AUTHORS_WIND, np.array([2.0]))[0])
    7380.0
    """
    return 0.5 * turbines.efficiency * turbines.air_density * turbines.swept_area * np.asarray(wind_speed) ** 3


def solar_power(array: SolarArray, ghi: np.ndarray, temperature: np.ndarray) -> np.ndarray:
    """Return the power of solar panels.

    Args:
        array: efficiency, area and the constants of the formula.
        ghi: (n,), global horizontal irradiance in W/m2.
        temperature: (n,), air temperature in C.

    Returns:
        (n,), in W.

    >>> hot, mild = solar_power(PAPER_SOLAR, np.array([800.0, 800.0]), np.array([50.0, 25.0]))
    >>> float(hot), float(mild)
    (0.0, 400000.0)
    """
    derating = 1.0 - array.loss_per_degree * (np.asarray(temperature) - 25.0)
    if array.clipped:
        derating = np.maximum(derating, 0.0)
    return array.factor * array.efficiency * array.area * np.asarray(ghi) * derating


def hann_smooth(values: np.ndarray, length: int) -> np.ndarray:
    """Return the moving average with a Hann window that sums to 1; the ends are mirrored without the end samples.

    Args:
        values: (n,).
        length: of the window, in samples; odd, at least 3.

    Returns:
        (n,).

    >>> [round(float(x), 3) for x in hann_smooth(np.array([0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0]), 5)]
    [0.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0]
    """
    if length < 3 or length % 2 == 0 or len(values) < length:
        raise ValueError(f"length must be odd, at least 3, and at most the {len(values)} values given, got {length}.")
    window = np.hanning(length)
    mirrored = np.concatenate([values[length - 1 : 0 : -1], values, values[-2 : -length - 1 : -1]])
    smooth = np.convolve(window / window.sum(), mirrored, mode="valid")
    return smooth[length // 2 : length // 2 + len(values)]


PRESETS = ("authors-code", "paper")
AUTO_PERCENTILE = 76.5  # Riverside's share of hours without a shortage at the authors' 20 kW
PAPER_BASE_SHORTAGE = 2e6  # W
AUTHORS_BASE_SHORTAGE = 2e4  # W
AUTHORS_LARGEST = 0.8  # what the largest context of the year is scaled to
HALF_HOURLY_WINDOW = 15
HOURLY_WINDOW = 7


def weather_contexts(
    weather: str | Path | None = None,
    preset: str = "authors-code",
    base_shortage: float | int | str | None = None,
    fill: str | None = None,
    split: Split = Split(),
) -> Contexts:
    """Return the contexts of the demand-response study from a weather file, or from the built-in year.

    Args:
        weather: a weather file. Default: the built-in typical year.
        preset: "authors-code" or "paper". Default: "authors-code".
        base_shortage: P_s in W, or a percentile of the renewable power of the training days, such as "p99"; "auto" is "p76.5".
            Default: the preset's own; "auto" for the built-in year.
        fill: "interpolate" or "previous", as in `read_weather`. Default: raise an error.
        split: which days are for what. Default: 60 for training, 30 for validation, the rest for testing.

    >>> contexts = weather_contexts()
    >>> contexts.values.shape, contexts.training_windows().contexts.shape
    ((8760, 1), (1416, 24, 1))
    """
    if preset not in PRESETS:
        raise DataError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}.")
    frame, metadata = built_in_weather() if weather is None else read_weather(weather, fill)
    if len(frame) < 24 * metadata.steps_per_hour:
        end = f"; its last row is of {frame.index[-1]}" if len(frame) else ""
        raise DataError(f"{metadata.file} has {len(frame)} rows, less than a day of weather{end}. Give the whole file.")
    if base_shortage is None and metadata.built_in:
        base_shortage = "auto"
    if preset == "paper":
        shortage = PAPER_BASE_SHORTAGE if base_shortage is None else base_shortage
        smoothing = HOURLY_WINDOW if metadata.built_in else None
        return paper_contexts(frame, metadata, shortage, split, smoothing)
    return authors_contexts(frame, metadata, AUTHORS_BASE_SHORTAGE if base_shortage is None else base_shortage, split)


def paper_contexts(
    frame: pd.DataFrame,
    metadata: WeatherMetadata,
    base_shortage: float | int | str = PAPER_BASE_SHORTAGE,
    split: Split = Split(),
    smoothing: int | None = None,
) -> Contexts:
    """Return the contexts of preset `paper`: max(P_s - wind - solar, 0) / P_s on hourly means.

    Args:
        frame: weather, as `read_weather` gives it.
        metadata: where it comes from.
        base_shortage: P_s in W, or a percentile: see `weather_contexts`. Default: 2,000,000.
        split: which days are for what. Default: 60 for training, 30 for validation, the rest for testing.
        smoothing: the length in hours of a Hann window, for station data with noisy wind. Default: none, as in the paper.
    """
    hourly = _average_rows(_trim_to_local_days(frame, metadata.steps_per_hour), metadata.steps_per_hour)
    renewables = _renewable_power(hourly, PAPER_WIND, PAPER_SOLAR)
    base = _resolve_base_shortage(base_shortage, renewables, 24, split)
    shortage = np.maximum(base - renewables, 0.0)
    if smoothing is not None:
        shortage = hann_smooth(shortage, smoothing)
    return _make_contexts(shortage, hourly, 1.0 / base, "paper", base, metadata, split)


def authors_contexts(
    frame: pd.DataFrame,
    metadata: WeatherMetadata,
    base_shortage: float | int | str = AUTHORS_BASE_SHORTAGE,
    split: Split = Split(),
) -> Contexts:
    """Return the contexts of preset `authors-code`: the half-hourly shortage, smoothed, at full hours.

    The Hann window has 15 samples (7 on hourly files). Files finer than half-hourly are averaged to half-hours. The largest
    value is scaled to 0.8. This scale looks at the test months too, as that of the published code does; it is one constant
    factor, and costs are reported relative to the oracle's.

    Args:
        frame: weather, as `read_weather` gives it.
        metadata: where it comes from.
        base_shortage: P_s in W, or a percentile: see `weather_contexts`. Default: 20,000.
        split: which days are for what. Default: 60 for training, 30 for validation, the rest for testing.
    """
    days = _trim_to_local_days(frame, metadata.steps_per_hour)
    if metadata.steps_per_hour == 1:
        every, window, native = 1, HOURLY_WINDOW, days
    elif metadata.steps_per_hour % 2 == 0:
        every, window, native = 2, HALF_HOURLY_WINDOW, _average_rows(days, metadata.steps_per_hour // 2)
    else:
        raise DataError(
            f"{metadata.file} has {metadata.steps_per_hour} rows an hour; preset 'authors-code' needs 1 or an even number. "
            "Resample it, or use preset 'paper'."
        )
    renewables = _renewable_power(native, AUTHORS_WIND, AUTHORS_SOLAR)
    base = _resolve_base_shortage(base_shortage, renewables, 24 * every, split)
    smooth = hann_smooth(np.maximum(base - renewables, 0.0), window)
    if smooth.max() <= 0:
        raise DataError(f"with base_shortage {base:g} W, {metadata.file} has no shortage at all. Give a larger one.")
    scale = AUTHORS_LARGEST / float(smooth.max())
    return _make_contexts(smooth[::every], native[::every], scale, "authors-code", base, metadata, split)


def _make_contexts(shortage, hourly, scale, preset, base, metadata, split) -> Contexts:
    return Contexts(
        values=np.ascontiguousarray(shortage[:, None], np.float64),
        time=pd.DatetimeIndex(hourly.index),
        metadata=metadata,
        split=split,
        preset=preset,
        base_shortage=base,
    ).scale_by(scale)


def _trim_to_local_days(frame: pd.DataFrame, steps_per_hour: int) -> pd.DataFrame:
    """Return the rows from the first local midnight to the last: files in UTC begin and end within a local day."""
    times = pd.DatetimeIndex(frame.index)
    begins = times.hour * 60 + times.minute < 60 // steps_per_hour
    if not begins.any():
        return frame.iloc[:0]
    start, per_day = int(np.argmax(begins)), 24 * steps_per_hour
    return frame.iloc[start : start + (len(frame) - start) // per_day * per_day]


def _average_rows(frame: pd.DataFrame, rows: int) -> pd.DataFrame:
    """Return the means of consecutive groups of `rows` rows, each at the time of its first row."""
    if rows == 1:
        return frame
    means = frame.to_numpy().reshape(-1, rows, frame.shape[1]).mean(axis=1)
    return pd.DataFrame(means, index=frame.index[::rows], columns=frame.columns)


def _renewable_power(frame: pd.DataFrame, turbines: WindTurbines, array: SolarArray) -> np.ndarray:
    wind = wind_power(turbines, frame["wind_speed"].to_numpy())
    return wind + solar_power(array, frame["ghi"].to_numpy(), frame["temperature"].to_numpy())


def parse_percentile(text: str) -> float | None:
    """Return the percentile of "p99", or of "auto"; None if the text is neither.

    >>> parse_percentile("p99"), parse_percentile("auto"), parse_percentile("p101")
    (99.0, 76.5, None)
    """
    if text == "auto":
        return AUTO_PERCENTILE
    found = re.fullmatch(r"p(\d{1,2}(?:\.\d+)?|100)", text)
    return None if found is None else float(found[1])


def _resolve_base_shortage(given: float | int | str, renewables: np.ndarray, steps_per_day: int, split: Split) -> float:
    """Return P_s in W, from a number or a percentile of the renewable power of the training days."""
    if isinstance(given, str):
        percentile = parse_percentile(given)
        if percentile is None:
            raise DataError(
                f"base_shortage must be a number of W, 'auto', or a percentile such as 'p99', got {given!r}."
            )
        training = renewables[: split.training_days * steps_per_day]
        resolved = float(np.percentile(training, percentile)) if len(training) else 0.0
        if resolved <= 0:
            raise DataError(f"base_shortage {given!r} needs wind or sun in the training days. Give a number of W.")
        return resolved
    if not (np.isfinite(given) and given > 0):
        raise DataError(f"base_shortage must be positive and finite, in W, got {given}.")
    return float(given)
