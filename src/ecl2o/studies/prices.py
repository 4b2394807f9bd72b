"""Demand response under prices: a miss costs more when energy does, so the weight of the hitting cost changes by the hour.

f(x, (y, w)) = w/2 (x - y)^2, with the shortage y of the demand-response study on the built-in weather, and the price w in
units of its usual level. Two markets:

- a *tariff*: low at night, high in the evening, the same every day and known in advance;
- a *spot price*, which is not: it rises with the shortage itself, as it does where the dearest plant sets it, and wanders from
  hour to hour (an autoregression with coefficient 0.9). It is capped between the same ends, as markets do.

A promise for the tariff uses it as it is; one for the spot price must reckon with the highest price at any hour to come.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from ecl2o.agents import RHC, AbstractAgent, Competitive
from ecl2o.data import Contexts, weather_contexts
from ecl2o.evaluation import TestBed
from ecl2o.problem import CurvedTracking, Mahalanobis, Problem

LOWEST, HIGHEST = 0.5, 2.0  # prices, in units of the usual one
HOURS = 24
TARIFF_PROMISE = 2.1  # for a day; the least is 1.96, and 2.43 for prices that may be anything between their ends
_HISTORY = 14 * HOURS


def tariff() -> Float[np.ndarray, " 24"]:
    """The price of each hour of the day: 0.5 from 22 to 6, 2 from 16 to 21, 1 otherwise."""
    hour = np.arange(HOURS)
    return np.where((hour >= 22) | (hour < 6), LOWEST, np.where((hour >= 16) & (hour < 21), HIGHEST, 1.0))


def spot_prices(shortage: Float[np.ndarray, " n"], seed: int) -> Float[np.ndarray, " n"]:
    """A price that rises with the shortage, relative to its mean, and wanders; between the lowest and the highest."""
    noise, wander = np.random.default_rng(seed).normal(0, 0.12, len(shortage)), np.zeros(len(shortage))
    for t in range(1, len(shortage)):
        wander[t] = 0.9 * wander[t - 1] + noise[t]
    return np.clip(shortage / shortage.mean() * np.exp(wander), LOWEST, HIGHEST)


def prices_problem(alpha: float) -> Problem:
    """Follow the shortage, each miss weighed by the price of its hour."""
    return Problem(CurvedTracking(LOWEST, HIGHEST), Mahalanobis.isotropic(alpha=alpha, dim=1))


def spot_bed(alpha: float, seed: int) -> TestBed:
    """The test days with prices that nobody knows in advance."""
    contexts = weather_contexts()
    return _bed(contexts, spot_prices(contexts.values[:, 0], seed), alpha)


def tariff_bed(alpha: float) -> TestBed:
    """The test days under the tariff."""
    contexts = weather_contexts()
    return _bed(contexts, np.tile(tariff(), contexts.n_days), alpha)


def _bed(contexts: Contexts, prices: Float[np.ndarray, " n"], alpha: float) -> TestBed:
    _, days, history = contexts.test_days(_HISTORY)
    used = contexts.n_days * HOURS
    priced = np.concatenate([contexts.values[:used], prices[:used, None]], axis=1)
    first = used - days.shape[0] * HOURS
    past = priced[first - _HISTORY : first]
    assert history is not None
    assert np.array_equal(past[:, :1], history)
    return TestBed.of(prices_problem(alpha), past[-1, :1], priced[first:].reshape(-1, HOURS, 2), past)


# Agents of this study alone, by name: made for days of so many steps. Less can be promised for a tariff that is known.
PRICED: dict[str, Callable[[int], AbstractAgent]] = {
    "competitive-tariff": lambda steps: Competitive(
        RHC(steps - 1, truncate=False), TARIFF_PROMISE, horizon=steps, weights=tariff()
    ),
}
