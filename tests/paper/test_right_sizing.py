"""The right-sizing study on a real web server's requests: every promise on every instance, and results that a report can use."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.data import Split
from ecl2o.exceptions import DataError
from ecl2o.paper import right_sizing
from ecl2o.paper.right_sizing import RightSizing, RightSizingSettings, make_synthetic_workload, scale_workload

ROWS = (
    "oracle",
    "greedy",
    "r-obd",
    "obd",
    "ogd",
    "rhc",
    "pure-ml",
    "switch",
    "mla-robd",
    "ec-l2o",
    "ec-l2o-tuned",
    "guarded",
)


class _BarelyTrained(RightSizingSettings):
    """No claim below asks how good a network is: promises and bounds hold for any that meets the bounds on actions."""

    @property
    def training_steps(self) -> int:
        return 150


@pytest.fixture(scope="module")
def settings(shared) -> RightSizingSettings:
    """58 days: 28 for training, 14 for validation, 16 for testing."""
    workload = str(shared / "data" / "web_requests_nasa_1995_hourly.csv")
    return _BarelyTrained(workload=workload, training_days=28, validation_days=14, seeds=1, quick=True)


@pytest.fixture(scope="module")
def study(settings):
    """The whole study with little training."""
    return right_sizing.run(settings)


@pytest.fixture(scope="module")
def day_oracles(study):
    """The oracle of each test day from where a score's day began."""
    problem = study.policies["r-obd"].problem
    days = jnp.asarray(study.contexts.test_days().days)
    solve = jax.jit(jax.vmap(lambda x0, y: ec.oracle(problem, ec.Instance(x0, y))))
    return lambda score: solve(jnp.asarray(score.x0), days)


def test_every_agent_has_a_row_and_results_are_json(study):
    assert tuple(study.rows) == ROWS
    results = json.loads(json.dumps(study.as_json(), allow_nan=False))
    assert results["study"] == "right-sizing"
    assert set(results["algorithms"]) == set(results["solves"]) == set(ROWS)


def test_an_agent_that_does_not_apply_has_a_reason_and_no_policy(study):
    assert list(study.skipped) == ["competitive"]
    assert "ConvexCost" in study.skipped["competitive"].reason
    assert study.as_json()["not_applicable"] == {"competitive": study.skipped["competitive"].reason}
    assert set(study.policies) == set(ROWS) - {"oracle"}


def test_results_say_how_they_were_made(study):
    results = study.as_json()
    assert results["cluster"]["kinds"][2]["name"] == "fast"
    for name in ROWS:
        assert results["solves"][name]["unconverged"] == 0
        assert 0 < results["solves"][name]["bound_active"] < 1
    assert results["algorithms"]["oracle"]["average_cost"]["mean"] == pytest.approx(1, abs=1e-9)


def test_no_day_is_cheaper_than_its_oracle_and_r_obd_stays_below_its_bound(study):
    for row in study.rows.values():
        assert min(score.ratio.min() for score in row.scores) >= 1 - 1e-9, row.name
    promises = study.extra["promises"]["r-obd"]
    assert promises["largest"] == study.rows["r-obd"].scores[0].ratio.max() <= promises["bound"]
    m, alpha, beta = (study.constants[name] for name in ("m", "alpha", "beta"))
    assert promises["bound"] == pytest.approx((1 + np.sqrt(1 + 4 * beta / m)) / 2)
    assert alpha < beta


def test_the_guard_keeps_its_promise_at_every_hour(study):
    for score in study.rows["guarded"].scores:
        details = score.runs.info.details
        bills = np.cumsum(np.asarray(score.runs.hitting + score.runs.switching), axis=1)
        np.testing.assert_allclose(bills, np.asarray(details["cost"])[..., 0], rtol=1e-9)
        assert (bills <= (1 + right_sizing.SLACK) * np.asarray(details["reference"])[..., 0] * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", ["mla-robd", "ec-l2o", "ec-l2o-tuned"])
def test_calibrated_rows_stay_below_theorem_4_1_with_the_measured_error(study, day_oracles, name):
    row = study.rows[name]
    constants = [study.constants[key] for key in ("m", "alpha", "beta")]
    for score in row.scores:
        best = day_oracles(score)
        rho = ec.metrics.prediction_error(score.runs.advice, best)
        bound = ec.theory.mla_robd_bound(*constants, row.parameters["trust"], rho)
        assert (score.ratio <= np.asarray(bound)).all()


def test_expert_and_theorem_hold_on_the_training_windows_too(settings):
    """Advice from perfect to absurd: the oracle's actions plus noise of growing size."""
    data = RightSizing(settings)
    windows, count = data.windows, data.windows.x0.shape[0]
    problem, trust = data.problem, 0.5
    sizes = jnp.logspace(-3, 1, count)

    def one(window, size, key):
        best = ec.oracle(problem, window)
        advice = best.actions + size * jax.random.normal(key, best.actions.shape)
        run = ec.rollout(ec.MLAROBD(ec.advisors.Fixed(advice), trust), problem, window)
        rho = ec.metrics.prediction_error(run.advice, best)
        expert = ec.rollout(ec.ROBD(), problem, window)
        return expert.cost / best.cost, run.cost / best.cost, rho, expert.converged.all() & run.converged.all()

    keys = jax.random.split(jax.random.key(0), count)
    expert, calibrated, rho, converged = jax.jit(jax.vmap(one))(windows, sizes, keys)
    assert bool(converged.all())
    assert float(expert.max()) <= float(ec.theory.robd_ratio(problem.m, problem.alpha, problem.beta))
    bound = ec.theory.mla_robd_bound(problem.m, problem.alpha, problem.beta, trust, rho)
    assert bool((calibrated <= bound).all())
    assert bool((expert >= 1 - 1e-9).all())


def test_a_saved_policy_runs_again_with_the_problem_given(study, tmp_path):
    policy = study.policies["ec-l2o"]
    ec.save(tmp_path / "cluster.ecl2o", policy)
    loaded = ec.load(tmp_path / "cluster.ecl2o", problem=policy.problem)
    day = ec.Instance(study.rows["ec-l2o"].scores[0].x0[0], study.contexts.test_days().days[0])
    again = ec.rollout(loaded.agent, loaded.problem, day)
    np.testing.assert_allclose(again.actions, study.rows["ec-l2o"].scores[0].runs.actions[0], atol=1e-9)
    assert loaded.metadata["cluster"]["energy_price"] == 0.12


def test_the_synthetic_workload_has_days_weeks_bursts_and_a_change_of_regime():
    contexts = make_synthetic_workload(seed=3)
    again, other = make_synthetic_workload(seed=3), make_synthetic_workload(seed=4)
    np.testing.assert_array_equal(contexts.values, again.values)
    assert not np.array_equal(contexts.values, other.values)
    by_day = contexts.values.reshape(-1, 24)
    before, after = by_day[:120], by_day[120:]
    assert before[:, 14:18].mean() > 1.8 * before[:, 2:6].mean()  # day and night
    weekday = contexts.time[::24].dayofweek[:120]
    assert before[weekday < 5].mean() > 1.2 * before[weekday >= 5].mean()
    steps = np.diff(np.log(before.ravel()))
    assert np.sum(steps > 0.35) > 20  # bursts come suddenly
    assert np.argmax(after.mean(0)) > np.argmax(before.mean(0))  # people who are awake later
    calm = make_synthetic_workload(seed=3, regime_day=None).values.reshape(-1, 24)
    np.testing.assert_array_equal(calm[:120], before)
    assert after.mean() > 1.1 * calm[120:].mean()


def test_workloads_that_make_no_sense_are_refused():
    contexts = make_synthetic_workload(split=Split(2, 1), days=4, regime_day=None)
    assert scale_workload(contexts, 25.0).training.max() == pytest.approx(25.0)
    contexts.values[7, 0] = -1.0
    with pytest.raises(DataError, match="must not be negative"):
        scale_workload(contexts, 25.0)
