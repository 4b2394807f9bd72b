"""Renewed: promises day by day, memory for good."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents.advisors import OnlineRidge

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
PERIOD, DAYS = 5, 6
CONTEXTS = jnp.asarray(np.random.default_rng(0).normal(size=(PERIOD * DAYS, 1)))


@pytest.mark.parametrize(
    "guard",
    [ec.Competitive(ec.HittingMinimizer(), 1.9, horizon=PERIOD), ec.Guarded(ec.HittingMinimizer(), slack=0.3)],
    ids=["competitive", "guarded"],
)
def test_is_day_by_day_testing_where_there_is_no_memory(guard):
    run = ec.rollout(ec.Periodic(guard, PERIOD), PROBLEM, ec.Instance([0.5], CONTEXTS))
    days, _ = ec.rollout_days(guard, PROBLEM, jnp.array([0.5]), CONTEXTS.reshape(DAYS, PERIOD, 1))
    np.testing.assert_allclose(run.actions, days.actions.reshape(-1, 1), rtol=0, atol=1e-12)
    assert bool(run.info.details["active"].any())


def test_keeps_its_promise_each_day_and_reaches_it():
    guard = ec.Competitive(ec.HittingMinimizer(), 1.9, horizon=PERIOD)

    def ratios(contexts):
        run = ec.rollout(ec.Periodic(guard, PERIOD), PROBLEM, ec.Instance([0.5], contexts))
        starts = jnp.concatenate([jnp.array([[0.5]]), run.actions[PERIOD - 1 : -1 : PERIOD]])
        days = contexts.reshape(DAYS, PERIOD, 1)
        best = jax.vmap(lambda x0, day: ec.oracle(PROBLEM, ec.Instance(x0, day)).cost)(starts, days)
        return (run.hitting + run.switching).reshape(DAYS, PERIOD).sum(1) / best

    found = jax.jit(jax.vmap(ratios))(jax.random.normal(jax.random.key(1), (200, PERIOD * DAYS, 1)))
    assert float(found.max()) <= 1.9 * (1 + 1e-9)
    assert float(jnp.median(found)) > 1.9 * (1 - 1e-9)


def test_what_is_inside_keeps_its_memory():
    """With a promise too weak to matter, it is the agent inside, which goes on learning over the ends of days."""
    ridge = OnlineRidge(period=PERIOD, lags=2, ahead=2, harmonics=1, maturity=8, refit_every=PERIOD)
    contexts = np.tile([0.1, 0.5, 0.9, 0.4, 0.2], 12)[:, None] + 0.05 * np.random.default_rng(2).normal(size=(60, 1))
    instance = ec.Instance([0.5], contexts)
    alone = ec.rollout(ridge, PROBLEM, instance)
    renewed = ec.rollout(ec.Periodic(ec.Competitive(ridge, 1e6, horizon=PERIOD), PERIOD), PROBLEM, instance)
    np.testing.assert_allclose(renewed.actions, alone.actions, rtol=0, atol=1e-12)
    restarted = ec.rollout(ec.Periodic(ridge, PERIOD, "history"), PROBLEM, instance)
    assert float(jnp.abs(restarted.actions - alone.actions).max()) > 0.02


def test_refusals():
    with pytest.raises(ValueError, match="period must be"):
        ec.Periodic(ec.Guarded(ec.Greedy()), 0)
    with pytest.raises(ValueError, match="at most horizon = 4 steps"):
        ec.rollout(ec.Periodic(ec.Competitive(ec.Greedy(), horizon=4), 5), PROBLEM, ec.Instance([0.5], CONTEXTS))
