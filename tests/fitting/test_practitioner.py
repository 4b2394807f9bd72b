"""The benchmark of boosted trees: its rows know no future, and it scores as the library does."""

import sys
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import ecl2o as ec
from ecl2o.data import Split, frame_series, series_contexts
from ecl2o.evaluation import score_days
from ecl2o.fitting.pipeline import fit_contexts
from ecl2o.fitting.settings import FitSettings
from ecl2o.fitting.tasks import held_back_days, series_problem

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import practitioner
from practitioner import DAY, MATURE, WARM_UP, WEEK

RHO = float(ec.theory.decay_root(1.0, practitioner.ALPHA))
TRAINING, VALIDATION, TEST = 20, 6, 8  # days


def make_series(seed: int = 0, days: int = TRAINING + VALIDATION + TEST) -> practitioner.Series:
    rng, t = np.random.default_rng(seed), np.arange(days * DAY)
    wind = np.convolve(rng.normal(size=len(t) + 5), np.ones(6) / 6, "valid")
    values = 10 + 3 * np.sin(2 * np.pi * t / DAY) + np.sin(2 * np.pi * t / WEEK) - wind + 0.1 * rng.normal(size=len(t))
    clock = pd.date_range("2026-01-05", periods=len(t), freq="h")
    contexts = series_contexts(*frame_series(pd.Series(values, clock)), Split(TRAINING, VALIDATION))
    return practitioner.Series(contexts, {"wind": wind})


def change_after(series: practitioner.Series, step: int) -> practitioner.Series:
    """The same series up to `step`, and another one after it."""
    other = make_series(seed=1)
    values = np.concatenate([series.contexts.values[: step + 1], 5 + other.contexts.values[step + 1 :]])
    wind = np.concatenate([series.covariates["wind"][: step + 1], 5 + other.covariates["wind"][step + 1 :]])
    metadata, split = series.contexts.metadata, series.contexts.split
    contexts = ec.data.Contexts(values, series.contexts.time, metadata, DAY, split)
    return practitioner.Series(contexts, {"wind": wind})


def make_task(series: practitioner.Series) -> practitioner.Task:
    return practitioner.Task.of(series.contexts, series.covariates)


class LeastSquares:
    """A model in place of trees: a ridge on the features, missing ones as 0."""

    def __init__(self, rows, target):
        rows = np.nan_to_num(rows.astype(float))
        self.weights = np.linalg.solve(rows.T @ rows + np.eye(rows.shape[1]), rows.T @ target)

    def predict(self, rows):
        return np.nan_to_num(rows.astype(float)) @ self.weights


@pytest.fixture(params=["least squares", "lightgbm"])
def trained(request, monkeypatch):
    """The models are trees where LightGBM is installed, and a ridge everywhere."""
    if request.param == "least squares":
        monkeypatch.setattr(practitioner, "train", lambda rows, target, *rest: LeastSquares(rows, target))
        monkeypatch.setattr(practitioner, "count_trees", lambda *known: 3)
    else:
        pytest.importorskip("lightgbm", reason="LightGBM is not installed (extra bench)")
        monkeypatch.setattr(practitioner, "MOST_TREES", 20)
    return request.param


@pytest.mark.parametrize("step", [WARM_UP + 5, 20 * DAY + 11])
def test_features_know_the_present_and_no_later_step(step):
    series = make_series()
    known, other = make_task(series).known, make_task(change_after(series, step)).known
    forecasts = [[each.profile_forecast(lead) for lead in range(1, MATURE + 1)] for each in (known, other)]
    for rows, others in (
        (known.matrix(), other.matrix()),
        (np.column_stack(forecasts[0]), np.column_stack(forecasts[1])),
    ):
        np.testing.assert_array_equal(rows[: step + 1], others[: step + 1])
        assert (rows[step + 1] != others[step + 1]).any()
    just_before = make_task(change_after(series, step - 1)).known
    assert (known.matrix()[step] != just_before.matrix()[step]).mean() > 0.5


@pytest.mark.parametrize("trained", ["least squares"], indirect=True)  # whatever the model
@pytest.mark.parametrize("kind", [practitioner.BoostedFuture, practitioner.BoostedForecast])
def test_predictions_and_refits_know_no_later_step(kind, trained, monkeypatch):
    monkeypatch.setattr(practitioner, "REFIT", 3 * DAY)
    series, step = make_series(), (TRAINING + 4) * DAY + 7
    task, other = make_task(series), make_task(change_after(series, step))
    first, last = task.training_end, task.validation_end
    found, others = (kind(each, practitioner.TreeSettings()).predict(first, last) for each in (task, other))
    np.testing.assert_array_equal(found[: step - first + 1], others[: step - first + 1])
    assert (found[step - first + 1] != others[step - first + 1]).any()


@pytest.mark.parametrize("horizon", [1, MATURE])
def test_models_learn_from_targets_that_are_known(horizon):
    end = 15 * DAY
    assert practitioner.matured(end, horizon).max() + horizon == end - 1
    folds = practitioner.expanding_folds(600, horizon)
    assert [len(stop) for _, stop in folds] == [100, 100, 100]
    assert all(fit.max() + horizon < stop.min() for fit, stop in folds)
    assert folds[-1][1].max() == 599


def test_the_discounted_future_is_its_sum():
    values = np.random.default_rng(0).normal(size=100)
    z = practitioner.discounted_future(values, RHO)
    t = len(values) - MATURE - 1  # the last whose future is known
    direct = (1 - RHO) * sum(RHO**j * values[t + j] for j in range(MATURE + 1))
    np.testing.assert_allclose(z[t], direct, rtol=1e-6)
    assert np.isnan(z[t + 1 :]).all()
    assert np.isfinite(z[: t + 1]).all()


def test_a_profile_ahead_is_the_latest_of_its_slot():
    profile = practitioner.rolling_profile(np.arange(5.0 * DAY), DAY, 7.0)
    for lead in (1, DAY - 1, DAY, DAY + 1, MATURE):
        t = 4 * DAY
        latest = max(i for i in range(t + 1) if (i - t - lead) % DAY == 0)
        assert practitioner.profile_ahead(profile, DAY, lead)[t] == profile[latest]


def test_a_plan_is_the_optimum_of_its_window():
    rng = np.random.default_rng(0)
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(practitioner.ALPHA, dim=1))
    now, forecast = rng.normal(size=3), rng.normal(size=(3, 5))
    x = 0.7
    for t, action in enumerate(practitioner.plan(now, forecast, x)):
        window = ec.Instance([x], np.concatenate([now[t : t + 1], forecast[t]])[:, None])
        x = float(ec.oracle(problem, window).actions[0, 0])
        np.testing.assert_allclose(action, x, rtol=1e-5)


def test_following_the_true_future_is_nearly_optimal():
    values = np.random.default_rng(0).normal(size=60 * DAY).cumsum()
    z = practitioner.discounted_future(values, RHO)[: 50 * DAY]
    clock = pd.date_range("2026-01-05", periods=len(values), freq="h")
    contexts = series_contexts(*frame_series(pd.Series(values, clock)), Split(2, 0))
    with jax.enable_x64(True):
        days = contexts.values[: 50 * DAY].reshape(50, DAY, 1)
        test_days = ec.evaluation.TestDays.with_whole_span_optimum(series_problem(contexts), values[:1], days)
        score = practitioner.score_actions(practitioner.follow(z, values[0], RHO), test_days)
    assert 1 <= score.hindsight < 1.01


def test_actions_are_scored_as_the_library_scores_them():
    contexts = make_series().contexts
    with jax.enable_x64(True):
        test_days = held_back_days(series_problem(contexts, FitSettings(practitioner.ALPHA)), contexts, "test", 0)
        own = score_days(ec.ROBD(), test_days)
        score = practitioner.score_actions(np.asarray(own.runs.actions).ravel(), test_days)
    np.testing.assert_allclose(score.hindsight, own.average_cost)
    np.testing.assert_allclose(score.worst_day, own.competitive_ratio)
    np.testing.assert_allclose(score.daily_oracle, own.cost.mean() / np.mean(np.asarray(test_days.oracle_cost)))


def test_the_rows_of_fit_are_in_the_same_units():
    with jax.enable_x64(True):
        fitted = fit_contexts(make_series().contexts, FitSettings(practitioner.ALPHA, "r-obd"))
        rows = practitioner.fitted_rows(fitted)
        actions = np.asarray(score_days(ec.ROBD(), fitted.test_days).runs.actions).ravel()
        score = practitioner.score_actions(actions, fitted.test_days)
    np.testing.assert_allclose([rows["oracle"].hindsight, rows["daily-oracle"].daily_oracle], 1.0)
    for name in ("hindsight", "daily_oracle", "worst_day"):
        np.testing.assert_allclose(getattr(rows["policy"], name), getattr(score, name))
    assert rows["policy"].validation == fitted.chosen.average_cost


def test_the_ridge_is_least_squares_with_a_penalty():
    rng = np.random.default_rng(0)
    features = rng.normal(2.0, 3.0, size=(50, 3))
    target = features @ [1.0, -2.0, 0.5] + 4 + 0.1 * rng.normal(size=50)
    found = practitioner.Ridge.fit(features, target, penalty=1e-9).predict(features)
    columns = np.column_stack([np.ones(50), features])
    np.testing.assert_allclose(found, columns @ np.linalg.lstsq(columns, target)[0])
    strong = practitioner.Ridge.fit(features, target, penalty=1e9).predict(features)
    np.testing.assert_allclose(strong, target.mean(), atol=1e-4)


def test_a_blend_uses_errors_once_they_are_known():
    rng = np.random.default_rng(0)
    z = rng.normal(size=400)
    members = z[:, None] + rng.normal(size=(400, 2)) * [0.1, 1.0]
    found = practitioner.blend(members, z, 0.1)
    np.testing.assert_allclose(found[:MATURE], members[:MATURE].mean(axis=1))
    np.testing.assert_allclose(found[-100:], members[-100:, 0], atol=1e-3)
    later = np.where(np.arange(400) > 200, z + 5, z)
    np.testing.assert_array_equal(
        found[: 200 + MATURE + 1], practitioner.blend(members, later, 0.1)[: 200 + MATURE + 1]
    )
    assert (found != practitioner.blend(members, later, 0.1)).any()


def test_all_rows_of_a_series_are_scored(trained, monkeypatch):
    for name in ("Z_SETTINGS", "PLAN_SETTINGS"):
        monkeypatch.setattr(practitioner, name, (practitioner.TreeSettings(4, 10),))
    monkeypatch.setattr(practitioner, "HYBRID_SETTINGS", (practitioner.TreeSettings(4, 10, ridge=True),))
    with jax.enable_x64(True):
        rows = practitioner.measure(make_series(), ("trees", "covariates", "hybrid"), lambda line: None)
    names = [f"LightGBM-{kind}" for kind in ("z", "plan", "blend", "z on a ridge")]
    assert list(rows) == [*names, *(name + practitioner.WITH_COVARIATES for name in names)]
    assert all(score.hindsight >= 1 and score.validation >= 1 for score in rows.values())


def test_the_table_has_every_row_of_every_series():
    def figures(cost, settings=""):
        return {"hindsight": cost, "daily_oracle": 1.0, "worst_day": 2.0, "validation": None, "settings": settings}

    first = {"oracle": figures(1.0), "policy": figures(1.2, "ridge"), "rhc": figures(1.5), "LightGBM-z": figures(1.1)}
    second = {"oracle": figures(1.0), "policy": figures(1.3, "rhc"), "ridge": figures(1.4)}
    text = practitioner.format_table({"one": first, "two": second}, "hindsight")
    assert text.splitlines()[2:] == [
        "| hindsight of all days | 1.0000 | 1.0000 |",
        "| what `fit` chooses | 1.2000 | **1.3000** |",
        "| LightGBM-z | **1.1000** |  |",
        "| RHC, rolling profile | 1.5000 | **1.3000** |",
        "| ridge | 1.2000 | 1.4000 |",
    ]
