"""Restarting inside one long run is continuous testing day by day."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec

PERIOD, DAYS, HISTORY = 4, 5, 8


def _days(dim):
    contexts = jnp.asarray(np.random.default_rng(3).normal(size=(HISTORY + DAYS * PERIOD, dim)))
    return contexts[HISTORY - 1], contexts[HISTORY:].reshape(DAYS, PERIOD, dim), contexts[:HISTORY]


def _agents(dim):
    return [
        ec.Competitive(ec.HittingMinimizer(), ratio=1.9, horizon=PERIOD),
        ec.MLAROBD(ec.advisors.LSTM(dim, dim, key=jax.random.key(0)), trust=2.0),
        ec.MLAROBD(ec.advisors.SeasonalLinear(dim, dim, period=PERIOD, days=2), trust=2.0),
        ec.LAI(),
        ec.RHC(2, truncate=False),
    ]


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("which", range(5))
def test_one_long_run_is_rollout_days(which, dim):
    agent = _agents(dim)[which]
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=dim))
    x0, days, history = _days(dim)
    forecaster = ec.forecasters.SeasonalNaive(period=PERIOD)
    by_day, starts = ec.rollout_days(agent, problem, x0, days, history, forecaster)
    whole = ec.Instance(x0, days.reshape(-1, dim), history)
    run = ec.rollout(ec.Periodic(agent, PERIOD, "history"), problem, whole, forecaster)
    np.testing.assert_allclose(run.actions, by_day.actions.reshape(-1, dim), atol=1e-12)
    np.testing.assert_allclose(run.actions[PERIOD - 1 :: PERIOD][:-1], starts[1:], atol=1e-12)
    without = ec.rollout(agent, problem, ec.Instance(x0, days[0], history), forecaster)
    np.testing.assert_allclose(run.actions[:PERIOD], without.actions, atol=1e-12)


def test_it_keeps_the_promise_of_each_day_and_not_of_the_run():
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    x0, days, _ = _days(1)
    wild = ec.advisors.Fixed(1e3 * (-1.0) ** np.arange(PERIOD)[:, None])
    agent = ec.Periodic(ec.Competitive(wild, ratio=1.9, horizon=PERIOD), PERIOD, "history")
    run = ec.rollout(agent, problem, ec.Instance(x0, days.reshape(-1, 1)))
    start = jnp.asarray(x0)
    for day in range(DAYS):
        best = ec.oracle(problem, ec.Instance(start, days[day])).cost
        part = slice(day * PERIOD, (day + 1) * PERIOD)
        cost = run.hitting[part].sum() + run.switching[part].sum()
        assert cost <= 1.9 * best * (1 + 1e-9)
        np.testing.assert_allclose(run.info.details["live_ratio"][part][-1], cost / best, rtol=1e-9)
        start = run.actions[part][-1]


def test_the_last_part_of_a_period_knows_that_it_is_the_last():
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    x0, days, _ = _days(1)
    contexts = days.reshape(-1, 1)[: PERIOD + 2]
    run = ec.rollout(ec.Periodic(ec.RHC(PERIOD - 1), PERIOD, "history"), problem, ec.Instance(x0, contexts))
    tail = ec.oracle(problem, ec.Instance(run.actions[PERIOD - 1], contexts[PERIOD:]))
    np.testing.assert_allclose(run.actions[PERIOD:], tail.actions, atol=1e-10)


def test_a_period_is_a_number_of_steps():
    with pytest.raises(ValueError, match="period must be a positive whole number"):
        ec.Periodic(ec.Greedy(), 0, "history")
