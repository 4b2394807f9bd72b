"""RHC on Riverside 2015: the reference's figures, an independent NumPy RHC, and what a practitioner's forecast reaches."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.data import weather_contexts
from ecl2o.evaluation import metrics
from ecl2o.forecasters import Persistence, RollingProfile
from ecl2o.offline import oracle_days

REFERENCE = Path(__file__).parents[1] / "reference" / "riverside_2015.json"

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


@pytest.fixture(scope="module")
def riverside(shared):
    contexts = weather_contexts(shared / "data" / "nsrdb_riverside_2015.csv", preset="authors-code")
    x0, days, _ = contexts.test_days()
    history = contexts.values[90 * 24 - 7 * 24 : 90 * 24]
    return jnp.asarray(x0), jnp.asarray(days), jnp.asarray(history)


def measured(riverside, agent, forecaster=None):
    x0, days, history = riverside
    runs, starts = ec.rollout_days(agent, PROBLEM, x0, days, history, forecaster)
    best, _ = oracle_days(PROBLEM, x0, days)
    same_start = jax.vmap(lambda start, day: ec.oracle(PROBLEM, ec.Instance(start, day)).cost)(starts, days)
    figures = {
        "normalized_average_cost": metrics.average_cost(runs.cost, best.cost),
        "competitive_ratio": metrics.competitive_ratio(runs.cost, same_start),
        "ratio_p99": metrics.tail_ratios(runs.cost, same_start, (99.0,))[0],
        "ratio_mean": metrics.cost_ratio(runs.cost, same_start).mean(),
    }
    return runs, {name: float(value) for name, value in figures.items()}


def test_one_future_context_gives_the_figures_of_the_reference(riverside):
    reference = json.loads(REFERENCE.read_text())
    row = reference["rhc, 1 future context, exact, planning window cut at the end of the day"]
    assert measured(riverside, ec.RHC(1))[1] == pytest.approx(row, abs=1e-6)


def _rhc_in_numpy(x, days, window):
    """Each plan's first action from the dense normal equations of that plan."""
    first_rows = {}
    for length in range(1, window + 2):
        difference = np.eye(length) - np.eye(length, k=-1)
        first_rows[length] = np.linalg.inv(np.eye(length) + 10 * difference.T @ difference)[0]
    actions = np.zeros(days.shape[:2])
    for n, day in enumerate(days[:, :, 0]):
        for t in range(len(day)):
            seen = day[t : t + window + 1].copy()
            seen[0] += 10 * x
            x = actions[n, t] = first_rows[len(seen)] @ seen
    return actions


@pytest.mark.parametrize("window", [2, 3, 5])
def test_more_future_contexts_equal_an_independent_rhc(riverside, window):
    runs, figures = measured(riverside, ec.RHC(window))
    expected = _rhc_in_numpy(float(riverside[0][0]), np.asarray(riverside[1]), window)
    np.testing.assert_allclose(runs.actions[:, :, 0], expected, rtol=0, atol=1e-10)
    recorded = {2: 1.3318317, 3: 1.1748517, 5: 1.0469612}
    assert figures["normalized_average_cost"] == pytest.approx(recorded[window], abs=1e-6)


def test_the_forecast_of_a_practitioner(riverside):
    """A rolling 7-day profile with a fading correction."""
    profile = RollingProfile(days=7, decay=0.9)
    _, on = measured(riverside, ec.RHC(23, truncate=False), profile)
    assert on["normalized_average_cost"] == pytest.approx(1.0975, abs=5e-5)
    assert on["competitive_ratio"] == pytest.approx(7.47, abs=5e-3)
    _, cut = measured(riverside, ec.RHC(23), profile)
    assert cut["normalized_average_cost"] == pytest.approx(1.1109, abs=5e-5)


def test_persistence_makes_it_r_obd(riverside):
    row = json.loads(REFERENCE.read_text())["r-obd"]
    assert measured(riverside, ec.RHC(47, truncate=False), Persistence())[1] == pytest.approx(row, abs=1e-6)
