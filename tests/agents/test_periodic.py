"""Promises day by day with memory for good, or everything anew every day."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents.advisors import OnlineRidge
from ecl2o.problem.arrays import to_device

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
PERIOD, DAYS, HISTORY = 5, 6, 10
CONTEXTS = np.random.default_rng(0).normal(size=(PERIOD * DAYS, 1))


@pytest.mark.parametrize(
    "guard",
    [ec.Competitive(ec.HittingMinimizer(), 1.9, horizon=PERIOD), ec.Guarded(ec.HittingMinimizer(), slack=0.3)],
    ids=["competitive", "guarded"],
)
def test_is_day_by_day_testing_where_there_is_no_memory(guard):
    run = ec.rollout(guard.every(PERIOD), PROBLEM, ec.Instance([0.5], CONTEXTS))
    days, _ = ec.rollout_days(guard, PROBLEM, jnp.array([0.5]), to_device(CONTEXTS.reshape(DAYS, PERIOD, 1)))
    np.testing.assert_allclose(run.actions, np.reshape(days.actions, (-1, 1)), rtol=0, atol=1e-12)
    assert np.any(run.info.details["active"])


def test_keeps_its_promise_each_day_and_reaches_it():
    guard = ec.Competitive(ec.HittingMinimizer(), 1.9, period=PERIOD)

    def ratios(contexts):
        run = ec.rollout(guard, PROBLEM, ec.Instance([0.5], contexts))
        starts = jnp.concatenate([jnp.array([[0.5]]), run.actions[PERIOD - 1 : -1 : PERIOD]])
        days = contexts.reshape(DAYS, PERIOD, 1)
        best = jax.vmap(lambda x0, day: ec.oracle(PROBLEM, ec.Instance(x0, day)).cost)(starts, days)
        return (run.hitting + run.switching).reshape(DAYS, PERIOD).sum(1) / best

    found = np.asarray(jax.jit(jax.vmap(ratios))(np.random.default_rng(1).normal(size=(200, PERIOD * DAYS, 1))))
    assert found.max() <= 1.9 * (1 + 1e-9)
    assert np.median(found) > 1.9 * (1 - 1e-9)


def test_what_is_inside_keeps_its_memory():
    """With a promise too weak to matter, it is the agent inside, which goes on learning over the ends of days."""
    ridge = OnlineRidge(period=PERIOD, lags=2, harmonics=1, maturity=8)
    contexts = np.tile([0.1, 0.5, 0.9, 0.4, 0.2], 12)[:, None] + 0.05 * np.random.default_rng(2).normal(size=(60, 1))
    instance = ec.Instance([0.5], contexts)
    alone = ec.rollout(ridge, PROBLEM, instance)
    renewed = ec.rollout(ec.Competitive(ridge, 1e6, period=PERIOD), PROBLEM, instance)
    np.testing.assert_allclose(renewed.actions, alone.actions, rtol=0, atol=1e-12)
    restarted = ec.rollout(ec.Periodic(ridge, PERIOD), PROBLEM, instance)
    assert np.abs(np.asarray(restarted.actions) - np.asarray(alone.actions)).max() > 0.02


def _days(dim):
    contexts = np.random.default_rng(3).normal(size=(HISTORY + DAYS * PERIOD, dim))
    return contexts[HISTORY - 1], contexts[HISTORY:].reshape(DAYS, PERIOD, dim), contexts[:HISTORY]


def _weighing_each_context_differently(advisor):
    def changed(leaf):
        return to_device(np.asarray(leaf) + 0.1 * np.cos(np.arange(leaf.size)).reshape(leaf.shape))

    return jax.tree.map(changed, advisor)


def _agents(dim):
    return [
        ec.Competitive(ec.HittingMinimizer(), ratio=1.9, horizon=PERIOD),
        ec.MLAROBD(ec.advisors.LSTM(dim, dim, width=3, depth=1, key=jax.random.key(0)), trust=2.0),
        ec.MLAROBD(_weighing_each_context_differently(ec.advisors.SeasonalLinear(dim, dim, PERIOD, days=2)), trust=2.0),
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
    by_day, starts = jax.device_get(ec.rollout_days(agent, problem, *map(to_device, (x0, days, history)), forecaster))
    whole = ec.Instance(x0, days.reshape(-1, dim), history)
    run = jax.device_get(ec.rollout(ec.Periodic(agent, PERIOD), problem, whole, forecaster))
    np.testing.assert_allclose(run.actions, by_day.actions.reshape(-1, dim), atol=1e-12)
    np.testing.assert_allclose(run.actions[PERIOD - 1 :: PERIOD][:-1], starts[1:], atol=1e-12)
    without = ec.rollout(agent, problem, ec.Instance(x0, days[0], history), forecaster)
    np.testing.assert_allclose(run.actions[:PERIOD], without.actions, atol=1e-12)


def test_it_keeps_the_promise_of_each_day_and_not_of_the_run():
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    x0, days, _ = _days(1)
    wild = ec.advisors.Fixed(1e3 * (-1.0) ** np.arange(PERIOD)[:, None])
    agent = ec.Periodic(ec.Competitive(wild, ratio=1.9, horizon=PERIOD), PERIOD)
    run = jax.device_get(ec.rollout(agent, problem, ec.Instance(x0, days.reshape(-1, 1))))
    start = x0
    for day in range(DAYS):
        best = np.asarray(ec.oracle(problem, ec.Instance(start, days[day])).cost)
        part = slice(day * PERIOD, (day + 1) * PERIOD)
        cost = run.hitting[part].sum() + run.switching[part].sum()
        assert cost <= 1.9 * best * (1 + 1e-9)
        np.testing.assert_allclose(run.info.details["ratio"][part][-1, 0], cost / best, rtol=1e-9)
        start = run.actions[part][-1]


def test_the_last_part_of_a_period_knows_that_it_is_the_last():
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    x0, days, _ = _days(1)
    contexts = days.reshape(-1, 1)[: PERIOD + 2]
    agent = ec.Periodic(ec.RHC(PERIOD - 1), PERIOD)
    run = jax.device_get(ec.rollout(agent, problem, ec.Instance(x0, contexts)))
    tail = ec.oracle(problem, ec.Instance(run.actions[PERIOD - 1], contexts[PERIOD:]))
    np.testing.assert_allclose(run.actions[PERIOD:], tail.actions, atol=1e-10)


def test_refusals():
    with pytest.raises(ValueError, match="period must be"):
        ec.Periodic(ec.Greedy(), 0)
    with pytest.raises(ValueError, match="period must be"):
        ec.Guarded(ec.Greedy()).every(0)
    with pytest.raises(ValueError, match="at most horizon = 4 steps"):
        ec.rollout(ec.Competitive(ec.Greedy(), horizon=4, period=5), PROBLEM, ec.Instance([0.5], CONTEXTS))


def test_promises_are_found_behind_what_renews_them():
    guard = ec.Competitive(ec.Greedy(), ratio=2.0, horizon=6, allowance=0.5)

    def stated(agent):
        promise = agent.promise(PROBLEM)
        return None if promise is None else (promise.ratio, promise.reference_name, promise.period)

    assert stated(guard) == (2.0, None, 6)
    assert stated(ec.Competitive(ec.Greedy(), ratio=2.0)) == (2.0, None, None)
    assert stated(guard.every(6)) == (2.0, None, 6)
    assert stated(ec.Periodic(guard, 5)) == (2.0, None, 5)
    assert stated(ec.Guarded(ec.Greedy(), slack=0.5)) == (1.5, "ROBD", None)
    assert stated(ec.Periodic(ec.Greedy(), 5)) is None
    # One inside the other: what begins anew more often is what is promised, where the ends fall together.
    daily = ec.Competitive(ec.Greedy(), ratio=2.0, period=6)
    assert stated(ec.Periodic(daily, 24)) == (2.0, None, 6)
    assert stated(ec.Periodic(daily, 4)) == (2.0, None, 4)
    assert stated(ec.Periodic(daily, 15)) is None
    assert stated(ec.MLAROBD(guard)) is None  # what the calibrator plays is not what was promised
    assert guard.every(6).promise(PROBLEM) == ec.Promise(2.0, allowance=0.5, period=6)
    bounded = ec.Competitive(ec.Greedy(), contexts=(-1.0, 2.0), period=6)
    assert bounded.promise(PROBLEM).contexts == ((-1.0, 2.0),)
