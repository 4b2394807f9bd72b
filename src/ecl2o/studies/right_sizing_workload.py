"""Workloads for the right-sizing study: a built-in synthetic one, and anybody's own series."""

import numpy as np
import pandas as pd

from ecl2o.data import Contexts, DataError, Split

_HOURS = 24
_WEEKEND = 0.7
_FIRST_HOUR = pd.Timestamp("2025-01-06")  # a Monday
# What changes in the middle of the test days: more users, who are awake later, and more bursts.
_REGIME_LEVEL, _REGIME_SHIFT, _REGIME_BURSTS = 1.2, 4, 2.0


def synthetic_workload(
    seed: int = 0, days: int = 150, mean: float = 10.0, regime_day: int | None = 120, split: Split = Split()
) -> Contexts:
    """Hourly requests in krps with everything that makes right-sizing hard, the same for the same seed.

    A daily shape with a main and a second peak, quiet weekends, a level that drifts (autoregressive in the logarithm), and
    bursts: about one every two days, 30 to 120 % of the level, that fade within hours. From `regime_day` on, 30 days into
    the test part unless given otherwise, the level is higher, the day is shifted and bursts are more frequent, which no
    training day has shown; None: never.

    >>> synthetic_workload().values.shape
    (3600, 1)
    """
    if not mean > 0:
        raise ValueError(f"mean must be positive, got {mean}.")
    random = np.random.default_rng(seed)
    hour = np.arange(days * _HOURS)
    changed = np.zeros(hour.size, bool) if regime_day is None else hour >= regime_day * _HOURS
    shape = _daily_shape(hour - _REGIME_SHIFT * changed) * np.where((hour // _HOURS) % 7 >= 5, _WEEKEND, 1.0)
    level = np.exp(_autoregressive(random, hour.size, memory=0.98, deviation=0.12))
    noise = np.exp(_autoregressive(random, hour.size, memory=0.5, deviation=0.05))
    bursts = 1 + _bursts(random, changed)
    workload = mean * shape * level * noise * bursts * np.where(changed, _REGIME_LEVEL, 1.0)
    return Contexts(workload[:, None], pd.date_range(_FIRST_HOUR, periods=hour.size, freq="h"), split=split)


def _daily_shape(hour: np.ndarray) -> np.ndarray:
    """Low at night, a peak in the afternoon and a smaller one in the evening; mean 1."""
    angle = 2 * np.pi * hour / _HOURS
    return 1 - 0.55 * np.cos(angle - 0.6) - 0.2 * np.cos(2 * angle - 0.5)


def _autoregressive(random: np.random.Generator, size: int, memory: float, deviation: float) -> np.ndarray:
    """A stationary first-order process."""
    shocks = random.normal(0.0, deviation * np.sqrt(1 - memory**2), size)
    shocks[0] = random.normal(0.0, deviation)
    values = np.empty(size)
    last = 0.0
    for t, shock in enumerate(shocks):
        last = values[t] = memory * last + shock
    return values


def _bursts(random: np.random.Generator, changed: np.ndarray) -> np.ndarray:
    """Sudden rises, as shares of the level, each fading by a factor of 0.6 an hour."""
    starts = random.random(changed.size) < np.where(changed, _REGIME_BURSTS, 1.0) / (2 * _HOURS)
    heights = np.where(starts, random.uniform(0.3, 1.2, changed.size), 0.0)
    rise = np.empty(changed.size)
    last = 0.0
    for t, height in enumerate(heights):
        last = rise[t] = 0.6 * last + height
    return rise


def workload_contexts(contexts: Contexts, peak: float) -> Contexts:
    """A series of one non-negative number per step, in any unit, scaled so that the largest training value is `peak` krps."""
    if contexts.dim != 1:
        raise DataError(f"a workload is one number per step, but the series has {contexts.dim} columns; name one.")
    if (contexts.values < 0).any():
        where = int(np.argmax(contexts.values[:, 0] < 0))
        raise DataError(
            f"a workload must not be negative, but it is {contexts.values[where, 0]:g} at {contexts.time[where]}."
        )
    return contexts.scaled_to(peak)
