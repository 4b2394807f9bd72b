"""Demand response under prices: a miss costs more when energy does, so the weight of the hitting cost changes by the hour.

f(x, (y, w)) = w/2 (x - y)^2, with the shortage y of the demand-response study on the built-in weather, and the price w in
units of its usual level. Two markets:

- a *tariff*: low at night, high in the evening, the same every day and known in advance;
- a *spot price*, which is not: it rises with the shortage itself, as it does where the most expensive plant sets it, and wanders
  from hour to hour (an autoregression with coefficient 0.9). It is capped between the same ends, as markets do.

A promise for the tariff uses it as it is; one for the spot price must reckon with the highest price at any hour to come.

The days of the studies that need no file, for comparisons of agents.
"""

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Float

from ecl2o.data import Contexts, weather_contexts
from ecl2o.evaluation import TestDays
from ecl2o.exceptions import NotApplicableError
from ecl2o.fitting.named_agents import HIGHEST, LOWEST, time_of_use
from ecl2o.fitting.settings import check_alpha
from ecl2o.fitting.tasks import tracking_problem
from ecl2o.paper.right_sizing import RightSizing
from ecl2o.paper.settings import RightSizingSettings
from ecl2o.paper.varying_curvature import draw_instances, varying_curvature_problem
from ecl2o.problem import CurvedTracking, Mahalanobis, Problem

HOURS = 24
_HISTORY = 14 * HOURS


def draw_spot_prices(shortage: Float[np.ndarray, " n"], seed: int) -> Float[np.ndarray, " n"]:
    """A price that rises with the shortage, relative to its mean, and wanders; between the lowest and the highest."""
    noise, wander = np.random.default_rng(seed).normal(0, 0.12, len(shortage)), np.zeros(len(shortage))
    for t in range(1, len(shortage)):
        wander[t] = 0.9 * wander[t - 1] + noise[t]
    return np.clip(shortage / shortage.mean() * np.exp(wander), LOWEST, HIGHEST)


def make_prices_problem(alpha: float) -> Problem:
    """Follow the shortage, each miss weighed by the price of its hour."""
    return Problem(CurvedTracking(LOWEST, HIGHEST), Mahalanobis.isotropic(alpha=alpha, dim=1))


def make_spot_days(alpha: float, seed: int) -> TestDays:
    """Return the test days with spot prices, which are not known in advance."""
    contexts = weather_contexts()
    return _price_days(contexts, draw_spot_prices(contexts.values[:, 0], seed), alpha)


def make_tariff_days(alpha: float) -> TestDays:
    """Return the test days under the tariff, which is known in advance."""
    contexts = weather_contexts()
    return _price_days(contexts, np.tile(time_of_use(HOURS), contexts.n_days), alpha)


def _price_days(contexts: Contexts, prices: Float[np.ndarray, " n"], alpha: float) -> TestDays:
    _, days, history = contexts.test_days(_HISTORY)
    used = contexts.n_days * HOURS
    priced = np.concatenate([contexts.values[:used], prices[:used, None]], axis=1)
    first = used - days.shape[0] * HOURS
    past = priced[first - _HISTORY : first]
    assert history is not None
    assert np.array_equal(past[:, :1], history)
    return TestDays.of(make_prices_problem(alpha), past[-1, :1], priced[first:].reshape(-1, HOURS, 2), past)


_INSTANCES = 200
_ALPHA = 10.0


def _resolve_alpha(alpha: float | None) -> float:
    """What moving costs, unless said the paper's."""
    if alpha is None:
        return _ALPHA
    check_alpha(alpha)
    return alpha


def _demand_response_days(alpha: float | None, seed: int) -> TestDays:
    """The test days of the demand-response study on the built-in weather."""
    return TestDays.of(tracking_problem(1, _resolve_alpha(alpha)), *weather_contexts().test_days(_HISTORY))


def _right_sizing_days(alpha: float | None, seed: int) -> TestDays:
    """The test days of the right-sizing study on the built-in workload: three kinds of servers, a box, Newton's solves."""
    if alpha is not None:
        raise NotApplicableError(
            "what moving costs in right-sizing is given by the cluster's start-up prices; leave out alpha."
        )
    return RightSizing(RightSizingSettings(seed=seed)).test


def _varying_curvature_days(alpha: float | None, seed: int) -> TestDays:
    """Random days on which the curvature of the hitting cost changes from step to step."""
    problem = varying_curvature_problem(beta=_resolve_alpha(alpha))
    instances = draw_instances(jax.random.key(seed), _INSTANCES, 24, problem)
    return TestDays.of(problem, np.zeros(1), instances.contexts)


def _spot_price_days(alpha: float | None, seed: int) -> TestDays:
    """The demand-response days, each miss weighed by a price that is not known in advance."""
    return make_spot_days(_resolve_alpha(alpha), seed)


def _tariff_price_days(alpha: float | None, seed: int) -> TestDays:
    """The same under a tariff that is."""
    return make_tariff_days(_resolve_alpha(alpha))


# By name: from alpha (None: the study's own) and seed to test days.
STUDY_TEST_DAYS: dict[str, Callable[[float | None, int], TestDays]] = {
    "demand-response": _demand_response_days,
    "right-sizing": _right_sizing_days,
    "varying-curvature": _varying_curvature_days,
    "prices": _spot_price_days,
    "prices-tariff": _tariff_price_days,
}
