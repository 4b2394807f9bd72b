"""How unlike training the test days are: quarters, distances, days moved on purpose, and the theorems with real numbers."""

import json

import jax
import numpy as np
import pandas as pd
import pytest

import ecl2o as ec
from ecl2o.data import Contexts, Split
from ecl2o.evaluation import TestDays, score_agents, score_days
from ecl2o.paper import generalization

HOURS, DAYS = 6, 60
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


@pytest.fixture(scope="module")
def contexts() -> Contexts:
    rng, steps = np.random.default_rng(0), HOURS * DAYS
    level = np.where(np.arange(steps) < 30 * HOURS, 0.4, 0.7)
    values = (level + 0.2 * np.sin(2 * np.pi * np.arange(steps) / HOURS) + 0.05 * rng.normal(size=steps))[:, None]
    return Contexts(values, pd.date_range("2015-03-03", periods=steps, freq="4h"), None, HOURS, Split(20, 8))


@pytest.fixture(scope="module")
def networks():
    return [ec.MLAROBD(ec.advisors.MLP(1, 1, width=4, depth=1, key=jax.random.key(k)), trust=0.5) for k in (0, 1)]


@pytest.mark.parametrize(
    ("first", "last", "lengths"),
    [
        ("2015-04-01", "2015-12-31", [91, 92, 92]),
        ("2012-03-31", "2012-12-30", [92, 92, 91]),
        ("2015-04-05", "2015-05-03", [10, 10, 9]),
    ],
    ids=["the paper's", "a leap year's", "one quarter"],
)
def test_quarters_are_the_calendars_and_hold_every_day_once(first, last, lengths):
    parts = generalization.split_quarters(pd.date_range(first, last))
    assert [len(part.days) for part in parts] == lengths
    np.testing.assert_array_equal(np.concatenate([part.days for part in parts]), np.arange(sum(lengths)))


def test_the_distance_sees_the_change_of_level(contexts):
    """The level rises by .3 after day 30: test days are about .3 sqrt(6) away, validation days are not."""
    found = generalization.measure_distances(contexts)
    assert found["test"] > 0.25 * np.sqrt(HOURS)
    assert found["validation"] < 0.5 * found["test"]
    assert found["within"] < 0.5 * found["test"]
    assert all(distance > 0.25 * np.sqrt(HOURS) for distance in list(found["quarters"].values())[1:])


def test_an_offset_moves_days_by_what_it_says_and_r_obd_does_not_notice(contexts, networks):
    found = generalization.score_shifted_days(PROBLEM, contexts, {"r-obd": [ec.ROBD()], "ec-l2o": networks})
    assert [(case.what, case.amount) for case in found[1:]] == [
        *(("offset", amount) for amount in generalization.OFFSETS),
        *(("factor", amount) for amount in generalization.FACTORS),
    ]
    offsets = [case for case in found if case.what == "offset"]
    np.testing.assert_allclose(
        [c.distance for c in offsets], [abs(c.amount) * np.sqrt(HOURS) for c in offsets], atol=1e-12
    )
    np.testing.assert_allclose([c.costs["r-obd"][0] for c in found], found[0].costs["r-obd"][0], rtol=1e-9)
    assert np.ptp([c.costs["ec-l2o"][0] for c in found]) > 0.1
    home = generalization.make_training_test_days(PROBLEM, contexts)
    expected = [score_days(agent, home).average_cost for agent in networks]
    np.testing.assert_allclose(found[0].costs["ec-l2o"], expected, rtol=1e-12)


def test_what_is_saved_grows_with_distance_where_it_does():
    cases = [
        generalization.ShiftedDays("offset", d, d, {"a": np.array([1.0 + 3 * d, 1.0]), "b": np.array([1.0 + d, 1.0])})
        for d in (0.0, 1.0, 2.0)
    ]
    found = generalization.measure_savings(cases, "a", "b")
    np.testing.assert_allclose(found["slope"]["per_seed"], [2.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(found["furthest"]["per_seed"], [4.0, 0.0], atol=1e-12)


def test_many_agents_are_scored_as_one_by_one(contexts, networks):
    x0, days, history = contexts.test_days()
    test_days = TestDays.of(PROBLEM, x0, days, history)
    for agent, score in zip(networks, score_agents(networks, test_days), strict=True):
        alone = score_days(agent, test_days)
        np.testing.assert_allclose(score.ratio, alone.ratio, rtol=1e-10)
        assert score.average_cost == pytest.approx(alone.average_cost, rel=1e-12)


@pytest.mark.parametrize("mu", [0.6, 0.0])
def test_the_theorems_hold_for_any_weights_and_any_reference(contexts, networks, mu):
    """Untrained networks: Theorem 5.1 needs none of them to be good, and its terms are what they are called."""
    training, use = (
        of(PROBLEM, contexts) for of in (generalization.solve_training_days, generalization.solve_test_days)
    )
    found = generalization.evaluate_theorems(*networks, PROBLEM, training, use, mu=mu, rho_bar=0.1, diameter=1.0)
    assert found["average_cost"] <= found["average_cost_bound"]
    unit = float(np.mean(training.best.cost))
    runs = jax.vmap(lambda day: ec.rollout(networks[0], PROBLEM, day))(use.instances)
    assert found["average_cost"] == pytest.approx(float(runs.cost.mean()) / unit, rel=1e-9)
    if mu == 0:
        assert "tail" not in found
    else:
        assert found["tail_measured"]["ratio"] <= found["tail"]["tight"]["ratio"] <= found["tail"]["paper"]["ratio"]
        assert found["smallest_oracle_cost"] == pytest.approx(float(np.min(use.best.cost)))


def test_a_day_that_costs_nothing_leaves_the_tail_without_a_bound(contexts, networks):
    training = generalization.solve_training_days(PROBLEM, contexts)
    x0, days, _ = contexts.test_days()
    quiet = generalization.solve_days(PROBLEM, np.zeros_like(x0), np.concatenate([np.zeros_like(days[:1]), days]))
    found = generalization.evaluate_theorems(*networks, PROBLEM, training, quiet, mu=0.6, rho_bar=0.1, diameter=1.0)
    assert found["smallest_oracle_cost"] == 0
    assert found["tail"]["tight"] == found["tail"]["paper"] == {"rho_tail": None, "ratio": None}
    json.dumps(found, allow_nan=False)
