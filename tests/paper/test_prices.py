"""Demand response under prices: promises for a tariff that is known, and for a price that is not."""

import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.evaluation import score_days
from ecl2o.evaluation.comparison import evaluate_contender
from ecl2o.fitting.named_agents import HIGHEST, LOWEST, PROMISE, named_contender, time_of_use
from ecl2o.paper.test_days import make_price_days, make_prices_problem
from ecl2o.theory import largest_share


@pytest.fixture(scope="module")
def days():
    return {"spot": make_price_days(10.0, seed=0), "tariff": make_price_days(10.0, seed=None)}


def test_the_smallest_promises():
    weights = jnp.asarray(time_of_use(24))[:, None, None]
    known = 1 + float(largest_share(weights, weights, 10.0 * jnp.eye(1), 24))
    unknown = float(ec.theory.smallest_feasible_ratio(10.0, weights=(LOWEST, HIGHEST)))
    assert known == pytest.approx(1.960208, abs=1e-6)
    assert unknown == pytest.approx(2.433030, abs=1e-6)
    assert known < PROMISE < unknown


def test_prices_are_as_described(days):
    spot, tariff = (np.asarray(days[name].days) for name in ("spot", "tariff"))
    np.testing.assert_array_equal(spot[..., 0], tariff[..., 0])
    np.testing.assert_array_equal(tariff[..., 1], np.tile(time_of_use(24), (len(tariff), 1)))
    assert spot[..., 1].min() >= LOWEST
    assert spot[..., 1].max() <= HIGHEST
    assert np.corrcoef(spot[..., 0].ravel(), spot[..., 1].ravel())[0, 1] > 0.7  # high when energy is short
    again = np.asarray(make_price_days(10.0, seed=1).days)
    assert not np.array_equal(again[..., 1], spot[..., 1])


def test_promises_are_kept_where_weights_vary(days):
    """A promise of 2.1 under the tariff; one of 2.5 for the price that is not known, on its days and on the tariff's."""
    row = evaluate_contender("it", named_contender("competitive-tariff", days["tariff"]), days["tariff"])
    assert row.promise_kept
    assert row.competitive_ratio <= PROMISE * (1 + 1e-9)
    rhc = score_days(
        named_contender("rhc", days["tariff"]).agent, days["tariff"], named_contender("rhc", days["tariff"]).forecaster
    )
    assert rhc.competitive_ratio > 5.0  # what it promises against
    unknown = evaluate_contender("it", named_contender("competitive-rhc", days["spot"]), days["spot"])
    assert unknown.promise_kept
    assert unknown.average_cost < score_days(ec.ROBD(), days["spot"]).average_cost


def test_a_tariff_that_is_not_kept_to_ends_the_promise(days):
    row = evaluate_contender("it", named_contender("competitive-tariff", days["spot"]), days["spot"])
    assert row.promise_kept is False
    assert row.promise_lost_at == 0
    with pytest.raises(ValueError, match=r"must exceed 2\.43303"):
        score_days(ec.Competitive(ec.ROBD(), 2.4), days["spot"])
    assert float(make_prices_problem(10.0).m) == LOWEST
