"""Runs of any length by one program: `stream_days` against `rollout`, which has a program for each length."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import AbstractAgent, Info
from ecl2o.agents.advisors import OnlineRidge
from ecl2o.agents.advisors.constant_weight import ConstantWeight
from ecl2o.evaluation import TestDays
from ecl2o.evaluation.daily import score_runs
from ecl2o.fitting.guarded_training import competitive_ridge
from ecl2o.fitting.settings import PromiseSpec
from ecl2o.forecasters import RollingProfile
from ecl2o.offline import oracle, oracle_days
from ecl2o.running import stream_days

STEPS = 4
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=4.0, dim=1))
BOUNDED = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=4.0, dim=1), ec.Box(-0.5, 0.5))
WEIGHTED = ec.Problem(ec.CurvedTracking(0.5, 2.0), ec.Mahalanobis.isotropic(alpha=4.0, dim=1))
X0 = np.array([0.3])


def make_rows(days: int, seed: int, columns: int = 1) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(days * STEPS, columns))
    return np.sin(np.arange(days * STEPS) * 2 * np.pi / STEPS)[:, None] + 0.3 * noise


class MeanOfHistory(AbstractAgent):
    """An agent of a user around the regression, which reads the history itself."""

    inner: OnlineRidge

    def init(self, problem, start):
        return self.inner.init(problem, start), jnp.mean(start.history, axis=0)

    def step(self, problem, state, observation):
        inner, action, _ = self.inner.step(problem, state[0], observation)
        return (inner, state[1]), 0.5 * (action + state[1]), Info.plain()


AGENTS = {
    "regression": OnlineRidge(STEPS),
    "weekly": OnlineRidge(STEPS, week=7),
    "calibrated": ec.MLAROBD(OnlineRidge(STEPS), 1.0),
    "promised": competitive_ridge(PromiseSpec(2.5, "day"), STEPS).every(STEPS),
    "restarted": ec.Periodic(OnlineRidge(STEPS), 6 * STEPS),
    "user's": MeanOfHistory(OnlineRidge(STEPS)),
    "expert": ec.ROBD(),
    "planner": ec.RHC(3, truncate=False),
    "guarded planner": ec.Guarded(ec.RHC(3, truncate=False), slack=0.5),  # uses how many steps remain
    "truncated": ec.RHC(3, truncate=True),  # needs to know the horizon
    "interpolation": ec.LAI(),  # has a matrix for each step until the horizon
}


@pytest.mark.parametrize("name", AGENTS)
def test_padded_runs_are_those_of_the_exact_length(name):
    agent, history, days = AGENTS[name], make_rows(9, 0), make_rows(8, 1).reshape(8, STEPS, 1)
    forecaster = RollingProfile(3, period=STEPS) if agent.lookahead else None
    exact = ec.rollout(agent, PROBLEM, ec.Instance(X0, days.reshape(-1, 1), history), forecaster)
    runs, starts = stream_days(agent, PROBLEM, X0, days, history, forecaster)
    flat = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), runs)
    for found, expected in zip(jax.tree.leaves(flat), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(starts[1:], runs.actions[:-1, -1])


def test_weights_beside_the_regression():
    agent = ConstantWeight(OnlineRidge(STEPS))
    rows = np.concatenate([make_rows(17, 0), np.random.default_rng(2).uniform(0.5, 2.0, (17 * STEPS, 1))], axis=1)
    history, days = rows[: 9 * STEPS], rows[9 * STEPS :].reshape(8, STEPS, 2)
    exact = ec.rollout(agent, WEIGHTED, ec.Instance(X0, days.reshape(-1, 2), history))
    runs, _ = stream_days(agent, WEIGHTED, X0, days, history)
    np.testing.assert_allclose(np.ravel(runs.actions), np.ravel(exact.actions), rtol=1e-9)


def test_other_lengths_of_days_and_history_compile_nothing():
    agent, compiled = ec.MLAROBD(OnlineRidge(STEPS), 2.0), []
    stream_days(agent, PROBLEM, X0, make_rows(8, 1).reshape(8, STEPS, 1), make_rows(9, 0))
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **about: compiled.append(about) if event.endswith("backend_compile_duration") else None
    )
    try:
        stream_days(agent, PROBLEM, X0, make_rows(11, 2).reshape(11, STEPS, 1), make_rows(5, 3))
    finally:
        jax.monitoring.clear_event_listeners()
    assert compiled == []


@pytest.mark.parametrize("problem", [PROBLEM, BOUNDED], ids=["unbounded", "bounded"])
def test_padded_optima_and_scores_are_those_of_the_exact_length(problem):
    days = make_rows(6, 4).reshape(6, STEPS, 1)
    test_days = TestDays.with_whole_span_optimum(problem, X0, days)
    whole = oracle(problem, ec.Instance(X0, days.reshape(-1, 1)))
    np.testing.assert_allclose(np.ravel(test_days.whole_span_optimum.actions), np.ravel(whole.actions), atol=1e-9)
    runs, starts = oracle_days(problem, X0, days)
    np.testing.assert_allclose(test_days.oracle_cost, runs.cost, rtol=1e-9)
    score = score_runs(runs, starts, test_days)
    np.testing.assert_allclose(score.ratio, 1.0, rtol=1e-9)
    assert score.average_cost == pytest.approx(float(runs.cost.sum() / whole.cost), rel=1e-9)


def test_a_run_inside_a_transformation_is_not_padded():
    days, history = make_rows(3, 5).reshape(3, STEPS, 1), make_rows(4, 6)
    slope = jax.grad(lambda x0: eqx.filter_jit(stream_days)(ec.ROBD(), PROBLEM, x0, jnp.asarray(days))[0].cost.sum())
    assert np.isfinite(slope(jnp.asarray(X0))).all()
    both = jax.vmap(lambda x0: stream_days(OnlineRidge(STEPS), PROBLEM, x0, days, history)[0].actions)(
        np.stack([X0, -X0])
    )
    np.testing.assert_allclose(
        both[0], stream_days(OnlineRidge(STEPS), PROBLEM, X0, days, history)[0].actions, rtol=1e-9
    )
