"""The days of the studies that need no file, for comparisons of agents.

Besides the two case studies: *varying curvature*, random days on which the curvature of the hitting cost changes from step to
step, and *demand response under prices*, where a miss costs more when energy does: f(x, (y, w)) = w/2 (x - y)^2, with the
shortage y of the demand-response study on the built-in weather and the price w in units of its usual level. Two markets:

- a *tariff*: low at night, high in the evening, the same every day and known in advance;
- a *spot price*, which is not: it rises with the shortage itself, as it does where the most expensive plant sets it, and wanders
  from hour to hour (an autoregression with coefficient 0.9). It is capped between the same ends, as markets do.

A promise for the tariff uses it as it is; one for the spot price must reckon with the highest price at any hour to come.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from ecl2o.data import weather_contexts
from ecl2o.evaluation import TestDays
from ecl2o.exceptions import NotApplicableError
from ecl2o.fitting.named_agents import HIGHEST, LOWEST, time_of_use
from ecl2o.fitting.settings import check_alpha
from ecl2o.fitting.tasks import tracking_problem
from ecl2o.paper.right_sizing import RightSizing, RightSizingSettings, autoregress
from ecl2o.problem import CurvedTracking, Instance, Mahalanobis, Problem

HOURS = 24
_HISTORY = 14 * HOURS
_INSTANCES = 200
_ALPHA = 10.0  # the paper's
# Beyond this, a hitting cost is as good as a constraint (to 0.1 %), and solves are still accurate.
LARGEST_CURVATURE = 1e4


def varying_curvature_problem(m: float = 1.0, beta: float = 10.0, dim: int = 1) -> Problem:
    """Return costs k_t/2 |x - v_t|^2 with contexts (v_t, k_t), k_t >= m, and c = beta/2 |x - z|^2.

    >>> problem = varying_curvature_problem()
    >>> float(problem.m), float(problem.beta)
    (1.0, 10.0)
    """
    return Problem(CurvedTracking(minimum=m), Mahalanobis.isotropic(alpha=beta, dim=dim))


def draw_instances(key: PRNGKeyArray, count: int, horizon: int, problem: Problem) -> Instance:
    """Draw instances whose centres rest and jump; curvatures are mostly m, else log-uniform above it.

    Each instance has its own probability of a jump and of a severe step, so that calm and hectic ones are among them.
    """
    dim = problem.Q.shape[0]
    jumping, severe, jumps, sizes, rates = jax.random.split(key, 5)
    shape = (count, horizon, 1)
    chance = jax.random.uniform(rates, (2, count, 1, 1))
    moves = jnp.where(jax.random.uniform(jumping, shape) < chance[0], jax.random.normal(jumps, (*shape[:2], dim)), 0.0)
    logs = jax.random.uniform(sizes, shape) * jnp.log(LARGEST_CURVATURE / problem.m)
    curvatures = problem.m * jnp.where(jax.random.uniform(severe, shape) < chance[1], jnp.exp(logs), 1.0)
    contexts = jnp.concatenate([jnp.cumsum(moves, axis=1), curvatures], axis=2)
    return Instance(jnp.zeros((count, dim), contexts.dtype), contexts)


def draw_spot_prices(shortage: Float[np.ndarray, " n"], seed: int) -> Float[np.ndarray, " n"]:
    """Draw a price that rises with the shortage, relative to its mean, and wanders; between the lowest and the highest."""
    noise = np.random.default_rng(seed).normal(0, 0.12, len(shortage))
    noise[0] = 0.0
    return np.clip(shortage / shortage.mean() * np.exp(autoregress(noise, 0.9)), LOWEST, HIGHEST)


def make_prices_problem(alpha: float) -> Problem:
    """Return the problem of following the shortage, each miss weighed by the price of its hour."""
    return Problem(CurvedTracking(LOWEST, HIGHEST), Mahalanobis.isotropic(alpha=alpha, dim=1))


def make_price_days(alpha: float | None, seed: int | None) -> TestDays:
    """Return the demand-response days with the spot prices of a seed, or under the tariff (None)."""
    contexts = weather_contexts()
    used = contexts.n_days * HOURS
    shortage = contexts.values[:used]
    first = used - contexts.test_days().days.shape[0] * HOURS
    tariff = np.tile(time_of_use(HOURS), contexts.n_days)
    prices = tariff if seed is None else draw_spot_prices(contexts.values[:, 0], seed)[:used]
    priced = np.concatenate([shortage, prices[:, None]], axis=1)
    past, days = priced[first - _HISTORY : first], priced[first:].reshape(-1, HOURS, 2)
    return TestDays.of(make_prices_problem(_resolve_alpha(alpha)), past[-1, :1], days, past)


def _resolve_alpha(alpha: float | None) -> float:
    if alpha is None:
        return _ALPHA
    check_alpha(alpha)
    return alpha


def _demand_response_days(alpha: float | None, seed: int) -> TestDays:
    return TestDays.of(tracking_problem(1, _resolve_alpha(alpha)), *weather_contexts().test_days(_HISTORY))


def _right_sizing_days(alpha: float | None, seed: int) -> TestDays:
    if alpha is not None:
        raise NotApplicableError("right-sizing takes the cost of moving from start-up prices; leave out alpha.")
    return RightSizing(RightSizingSettings(seed=seed)).test


def _varying_curvature_days(alpha: float | None, seed: int) -> TestDays:
    problem = varying_curvature_problem(beta=_resolve_alpha(alpha))
    instances = draw_instances(jax.random.key(seed), _INSTANCES, HOURS, problem)
    return TestDays.of(problem, np.zeros(1), instances.contexts)


# By name: from alpha (None: the study's own) and seed to test days.
STUDY_TEST_DAYS: dict[str, Callable[[float | None, int], TestDays]] = {
    "demand-response": _demand_response_days,
    "right-sizing": _right_sizing_days,
    "varying-curvature": _varying_curvature_days,
    "prices": make_price_days,
    "prices-tariff": lambda alpha, seed: make_price_days(alpha, None),
}
