"""The recipe for training through a guard: its parts, and the figures it reaches on real weather."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import ecl2o as ec
from ecl2o.agents import trainable_mask
from ecl2o.agents.advisors.discounted_forecast import DiscountedForecast
from ecl2o.data import Contexts, Split, weather_contexts
from ecl2o.evaluation import metrics
from ecl2o.fitting.guarded_training import (
    _training_windows,
    _validation_days,
    _window_days,
    competitive_ridge,
    corrected_guard,
    train_guards,
)
from ecl2o.fitting.settings import PromiseSpec
from ecl2o.learning.guarded_loss import choose_check, daily_costs, record_forecasts
from ecl2o.running import stream_days

PROBLEM = ec.Problem(ec.SquaredTracking(1.0), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
DAILY = PromiseSpec(1.9, "day")
OPTIONS = {"period": 24, "window_days": 2, "skipped_days": 5}
CHUNK = 12  # steps in a row, which are one program


@pytest.fixture(scope="module")
def made_up() -> Contexts:
    """Two weeks with a daily shape and noise."""
    rng, steps = np.random.default_rng(0), 24 * 15
    y = 0.4 + 0.3 * np.sin(2 * np.pi * np.arange(steps) / 24) + 0.1 * rng.normal(size=steps)
    time = pd.date_range("2015-01-01", periods=steps, freq="h")
    return Contexts(np.maximum(y, 0.0)[:, None], time, split=Split(10, 4))


def test_training_lowers_the_loss_and_what_is_not_kept_changes_nothing(made_up):
    """Four days of validation are not clear about a correction learned in five."""
    ((guard, log),) = train_guards([competitive_ridge(DAILY)], PROBLEM, made_up, steps=5 * CHUNK, checks=5, **OPTIONS)
    assert log.loss[-1] < log.loss[0] - 0.005
    assert log.loss.shape == (5 * CHUNK,)
    np.testing.assert_array_equal(log.validation_steps, CHUNK * np.arange(6))
    assert log.best_step == 0
    assert eqx.tree_equal(guard, competitive_ridge(DAILY))


def test_without_checks_the_last_weights_are_kept_also_around_a_mixture(made_up):
    """Trained on the mixture's forecasts, which are those that it makes alone."""
    mixture = ec.advisors.Mixture([ec.advisors.OnlineRidge()])
    options = OPTIONS | {"steps": CHUNK, "checks": 0}
    ((of_mixture, log),) = train_guards([corrected_guard(DAILY, mixture)], PROBLEM, made_up, **options)
    ((of_member, _),) = train_guards([competitive_ridge(DAILY)], PROBLEM, made_up, **options)
    assert (log.best_step, log.validation_cost.shape) == (CHUNK, (0,))
    weights = of_mixture.agent.weights.weight
    assert np.abs(weights).max() > 0.1
    np.testing.assert_allclose(weights, of_member.agent.weights.weight, rtol=1e-6, atol=1e-9)


def test_a_promise_without_an_end_is_not_trained(made_up):
    """What a long run leaves of its promise is in no window of the training days."""
    whole = competitive_ridge(PromiseSpec(1.9, "run"))
    ((guard, log),) = train_guards([whole], PROBLEM, made_up, period=None, window_days=2, skipped_days=5)
    assert eqx.tree_equal(guard, whole)
    assert (log.loss.shape, log.validation_cost.shape, log.best_step) == ((0,), (1,), 0)


def test_guards_trained_together_are_trained_each_by_itself(made_up):
    terms = [PromiseSpec(ratio, "day") for ratio in (1.9, 2.6)]
    options = OPTIONS | {"steps": CHUNK, "checks": 1}
    together = train_guards([competitive_ridge(each) for each in terms], PROBLEM, made_up, **options)
    for each, (_, log) in zip(terms, together, strict=True):
        ((_, alone),) = train_guards([competitive_ridge(each)], PROBLEM, made_up, **options)
        np.testing.assert_allclose(log.loss, alone.loss, rtol=1e-9)
        np.testing.assert_allclose(log.validation_cost, alone.validation_cost, rtol=1e-8)


@pytest.mark.parametrize("size", [0.0, 0.3])
def test_what_is_validated_on_a_recording_is_what_is_played(made_up, size):
    """The guard on the recorded outlook, and the same guard streamed, its regression learning as it goes: day by day."""
    guard = competitive_ridge(DAILY)
    weight = jnp.asarray(size * np.random.default_rng(1).normal(size=(7, 10)))
    guard = eqx.tree_at(lambda g: g.agent.weights.weight, guard, weight)
    outlook = record_forecasts(guard.agent.advisor, PROBLEM, made_up.values[: 14 * 24])
    recording = _validation_days(PROBLEM, made_up, outlook, period=24)
    stacked = jax.tree.map(lambda leaf: leaf[None, None], guard)
    site = jax.tree.map(lambda leaf: leaf[None], (PROBLEM, recording))
    found = daily_costs(*eqx.partition(stacked, trainable_mask(stacked)), *site, 24)[0, 0]
    days = made_up.validation_days(history_steps=10 * 24)
    runs, _ = stream_days(guard.every(24), PROBLEM, *days)
    best, _ = ec.oracle_days(PROBLEM, jnp.asarray(days.x0), jnp.asarray(days.days))
    np.testing.assert_allclose(found, runs.cost / best.cost.sum(), rtol=1e-9)
    assert found.shape == (4,)


def test_a_correction_is_kept_only_if_the_validation_days_are_clear_about_it():
    """Costs of weights (rows) by day: the first row is the untrained advice."""
    none = np.array([1.0, 2.0, 1.5, 1.2])
    better, hardly = none - [0.3, 0.2, 0.25, 0.3], none - [0.9, -0.1, -0.2, -0.1]
    worse = none + 0.1
    assert choose_check(np.stack([none, worse])) == 0
    assert choose_check(np.stack([none, worse, better])) == 2
    assert choose_check(np.stack([none, hardly])) == 0  # cheaper on average, but by one day alone
    assert choose_check(np.stack([none, none])) == 0
    assert choose_check(np.stack([none, better])[:, :1]) == 0  # one day tells nothing


def test_windows_begin_on_each_day_that_leaves_room_for_one(made_up):
    """From the context before, and with the outlook of their own steps, which here is the number of the step."""
    numbered = DiscountedForecast(jnp.arange(14.0 * 24)[:, None], jnp.zeros((14 * 24, 3, 1)))
    found = jax.device_get(_training_windows(PROBLEM, made_up, numbered, period=24, days=2, skipped=5))
    starts = 24 * np.arange(5, 9)  # of ten training days
    steps = starts[:, None] + np.arange(48)
    np.testing.assert_array_equal(found.data.instances.x0, made_up.values[starts - 1])
    np.testing.assert_array_equal(found.data.instances.contexts, made_up.values[steps])
    np.testing.assert_array_equal(found.loss.forecasts.mean[..., 0], steps)


def test_windows_hold_two_short_periods_or_a_long_one():
    assert [_window_days(24 * days, 24, 60) for days in (1, 3, 7, 14, 90)] == [5, 6, 14, 14, 30]
    assert _window_days(None, 24, 60) == 30
    assert _window_days(24, 24, 3) == 3  # there are no more


def test_refusals(made_up):
    with pytest.raises(TypeError, match="GuardAwareCorrection"):
        train_guards([ec.Competitive(ec.Greedy())], PROBLEM, made_up, period=24)
    with pytest.raises(ValueError, match="skipped_days must be from 1 to 8"):
        train_guards([competitive_ridge(DAILY)], PROBLEM, made_up, period=24, window_days=2, skipped_days=9)


def test_riverside(shared):
    """OnlineRidge alone <= 1.035; in Competitive at 2.5, trained through it, <= 1.115 and never above 2.5."""
    contexts = weather_contexts(shared / "data" / "nsrdb_riverside_2015.csv", preset="authors-code")
    days = contexts.test_days(history_steps=90 * 24)
    best, _ = ec.oracle_days(PROBLEM, jnp.asarray(days.x0), jnp.asarray(days.days))
    runs, _ = stream_days(ec.advisors.OnlineRidge(), PROBLEM, *days)
    assert float(metrics.average_cost(runs.cost, best.cost)) <= 1.035

    guard = competitive_ridge(PromiseSpec(2.5, "day"))
    outlook = record_forecasts(guard.agent.advisor, PROBLEM, contexts.values[: 90 * 24])
    ((guard, log),) = train_guards([guard], PROBLEM, contexts, period=24, steps=60, checks=1, forecasts=outlook)
    assert log.validation_cost[1] < log.validation_cost[0] - 0.03
    assert log.best_step == 60
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), competitive_ridge(PromiseSpec(2.5, "day")), guard)
    assert [changed.agent.weights.weight, sum(jax.tree.leaves(changed))] == [True, 1]
    runs, starts = stream_days(guard.every(24), PROBLEM, *days)
    assert float(metrics.average_cost(runs.cost, best.cost)) <= 1.115
    from_same = jax.vmap(lambda x0, day: ec.oracle(PROBLEM, ec.Instance(x0, day)).cost)(starts, jnp.asarray(days.days))
    assert float(metrics.competitive_ratio(runs.cost, from_same)) == pytest.approx(2.5, abs=1e-9)
