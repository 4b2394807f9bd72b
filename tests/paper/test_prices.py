"""Demand response under prices: promises for a tariff that is known, and for a price that is not."""

import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.evaluation import score_days
from ecl2o.evaluation.comparison import evaluate_contender
from ecl2o.fitting.named_agents import HIGHEST, LOWEST, PROMISE, named_contender, time_of_use
from ecl2o.paper.test_days import make_prices_problem, make_spot_days, make_tariff_days
from ecl2o.theory import largest_share


@pytest.fixture(scope="module")
def beds():
    return {"spot": make_spot_days(10.0, seed=0), "tariff": make_tariff_days(10.0)}


def test_the_smallest_promises():
    weights = jnp.asarray(time_of_use(24))[:, None, None]
    known = 1 + float(largest_share(weights, weights, 10.0 * jnp.eye(1), 24))
    unknown = float(ec.theory.smallest_feasible_ratio(10.0, weights=(LOWEST, HIGHEST)))
    assert known == pytest.approx(1.960208, abs=1e-6)
    assert unknown == pytest.approx(2.433030, abs=1e-6)
    assert known < PROMISE < unknown


def test_prices_are_as_described(beds):
    spot, tariff = (np.asarray(beds[name].days) for name in ("spot", "tariff"))
    np.testing.assert_array_equal(spot[..., 0], tariff[..., 0])
    np.testing.assert_array_equal(tariff[..., 1], np.tile(time_of_use(24), (len(tariff), 1)))
    assert spot[..., 1].min() >= LOWEST
    assert spot[..., 1].max() <= HIGHEST
    assert np.corrcoef(spot[..., 0].ravel(), spot[..., 1].ravel())[0, 1] > 0.7  # dear when energy is short
    again = np.asarray(make_spot_days(10.0, seed=1).days)
    assert not np.array_equal(again[..., 1], spot[..., 1])


def test_promises_are_kept_where_weights_vary(beds):
    """A promise of 2.1 under the tariff; one of 2.5 for the price that is not known, on its days and on the tariff's."""
    row = evaluate_contender("it", named_contender("competitive-tariff", beds["tariff"]), beds["tariff"])
    assert row.promise_kept
    assert row.competitive_ratio <= PROMISE * (1 + 1e-9)
    rhc = score_days(
        named_contender("rhc", beds["tariff"]).agent, beds["tariff"], named_contender("rhc", beds["tariff"]).forecaster
    )
    assert rhc.competitive_ratio > 5.0  # what it promises against
    unknown = evaluate_contender("it", named_contender("competitive-rhc", beds["spot"]), beds["spot"])
    assert unknown.promise_kept
    assert unknown.average_cost < score_days(ec.ROBD(), beds["spot"]).average_cost


def test_a_tariff_that_is_not_kept_to_ends_the_promise(beds):
    row = evaluate_contender("it", named_contender("competitive-tariff", beds["spot"]), beds["spot"])
    assert row.promise_kept is False
    assert row.promise_lost_at == 0
    with pytest.raises(ValueError, match=r"must exceed 2\.43303"):
        score_days(ec.Competitive(ec.ROBD(), 2.4), beds["spot"])
    assert float(make_prices_problem(10.0).m) == LOWEST
