"""What a practitioner would build instead: LightGBM beside `ecl2o fit`, on the same days, in one run.

The stacks are trained as gradient boosting is in practice: lags, rolling profiles (hour of the day, hour of the week) and the
calendar as features, settings selected on the validation days, the number of trees by early stopping inside the training days,
a refit on all past rows every 30 days.

- LightGBM-z regresses the discounted future z_t = (1 - rho) sum of rho^j y_{t+j} and plays x_t = rho x_{t-1} + (1 - rho) zhat_t.
- LightGBM-plan forecasts the next 48 steps and plays the first action of the optimal plan of that window.
- The blend weighs the two by exponential weights on the squared error of zhat, once the target is known.
- LightGBM-z on a ridge fits its trees to what a ridge regression on the same features leaves.

Rows marked "with covariates" also see the present and past of the columns that are not followed (wind and sun). A decision at
step t uses rows up to t. A model that is fitted before step s has only seen targets whose last reading lies before s.

Run: PYTHONPATH=src python benchmarks/practitioner.py ../shared/data [series ...]
With --margins: what `fit` chooses beside the best row of its own table, without and with promises.
With --worth: what columns that are not followed are worth to `fit`: wind and sun, noise by seed, and bad forecasts.
"""

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.linalg import solveh_banded
from scipy.signal import lfilter

from ecl2o.cli.jax_setup import use_cached_programs
from ecl2o.data import Contexts, Split, frame_series, series_contexts, weather_contexts
from ecl2o.evaluation import TestDays, score_runs
from ecl2o.fitting.pipeline import FittedSeries, fit_contexts
from ecl2o.fitting.read import SeriesReader, default_split, screen_for_fit
from ecl2o.fitting.settings import FitSettings, PromiseSpec
from ecl2o.fitting.tasks import held_back_days, series_problem
from ecl2o.problem import Trajectory
from ecl2o.theory import decay_root

DAY, WEEK = 24, 168
ALPHA = 10.0
MATURE = 48  # steps until z is known: rho^48 is 3e-7
REFIT = 30 * DAY
WARM_UP = WEEK  # first rows, whose lags are missing
LEADS = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 24), (25, 48))  # one model for each group, the lead is a feature
FULL_LEADS = 8  # up to here two leads of a group are drawn for each training row, one further on
MOST_TREES, FEWEST_TREES, PATIENCE = 1500, 10, 50
MORE_TREES = 1.5  # than early stopping finds: its folds train on two thirds of the rows on average
GROWTH = 1.5  # of the past, after which the number of trees is found anew
DAMPING = 0.9  # of the present anomaly, per step, as in the rolling-profile forecast

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class TreeSettings:
    """Settings of a boosted model that validation selects from.

    Args:
        leaves: leaves of a tree.
        least_rows: rows in a leaf.
        rate: learning rate.
        linear: whether leaves hold linear models (`linear_tree`).
        offset: what the target is relative to: "now", the present context, or "profile", the damped rolling-profile forecast.
        ridge: whether trees are fitted to what a ridge regression on the same features leaves.
    """

    leaves: int = 15
    least_rows: int = 40
    rate: float = 0.05
    linear: bool = False
    offset: str = "profile"
    ridge: bool = False

    def params(self, seed: int = 0) -> dict[str, Any]:
        """Return LightGBM's parameters."""
        return {
            "objective": "l2",
            "num_leaves": self.leaves,
            "min_data_in_leaf": self.least_rows,
            "learning_rate": self.rate,
            "feature_fraction": 0.6,
            "bagging_fraction": 0.8,
            "bagging_freq": 1,
            "lambda_l2": 1.0,
            "linear_tree": self.linear,
            "linear_lambda": 1.0,
            "num_threads": 1,
            "deterministic": True,
            "force_row_wise": True,
            "seed": seed,
            "verbosity": -1,
        }


_SIZES = (
    (7, 40, False),
    (15, 40, False),
    (31, 80, False),
    (4, 100, True),
    (8, 400, True),
)  # leaves, rows in each, linear
Z_SETTINGS = tuple(
    TreeSettings(leaves, least, linear=linear, offset=offset)
    for (leaves, least, linear), offset in itertools.product(_SIZES, ("now", "profile"))
)
HYBRID_SETTINGS = (TreeSettings(7, 40, ridge=True), TreeSettings(15, 40, ridge=True))
PLAN_SETTINGS = (TreeSettings(15, 80, 0.1), TreeSettings(8, 400, 0.1, linear=True))


def discounted_future(values: Array, rho: float) -> Array:
    """Return z_t of each step from its next `MATURE` readings; NaN where these are missing.

    >>> float(discounted_future(np.full(100, 3.0), 0.7)[0]), int(np.isnan(discounted_future(np.zeros(100), 0.7)).sum())
    (3.0, 48)
    """
    weights = rho ** np.arange(MATURE + 1)
    found = np.full(len(values), np.nan)
    if len(values) > MATURE:
        found[: len(values) - MATURE] = np.correlate(values, weights / weights.sum(), "valid")
    return found


def lag(values: Array, steps: int) -> Array:
    """Return the values of `steps` earlier; NaN before the first."""
    return np.concatenate([np.full(min(steps, len(values)), np.nan), values[: max(len(values) - steps, 0)]])


def rolling_profile(values: Array, period: int, half_life: float) -> Array:
    """Return at each step the exponentially weighted mean of its slot of the period, the present included."""
    found, gain = values.astype(float), 1 - 0.5 ** (1 / half_life)
    for t in range(period, len(found)):
        found[t] = found[t - period] + gain * (values[t] - found[t - period])
    return found


def profile_ahead(profile: Array, period: int, lead: int) -> Array:
    """Return at each step t what the profile, as known at t, says of step t + lead."""
    return lag(profile, -lead % period)


@dataclasses.dataclass(frozen=True)
class Known:
    """What is known at each step: features by name, and the rolling-profile forecast.

    Args:
        values: (n,), the contexts.
        features: (n,) each, from rows up to its own.
        daily, weekly: rolling profiles.
        hour, weekday: of each step and `MATURE` further ones.
    """

    values: Array
    features: dict[str, Array]
    daily: Array
    weekly: Array
    hour: Array
    weekday: Array

    def profile_forecast(self, lead: int) -> Array:
        """Return the daily profile of step t + lead plus the damped present anomaly."""
        anomaly = self.values - lag(self.daily, DAY)
        return profile_ahead(self.daily, DAY, lead) + DAMPING**lead * np.nan_to_num(anomaly)

    def matrix(self, columns: dict[str, Array] | None = None) -> Array:
        """Return the features, and further columns, as a matrix."""
        return np.column_stack([*self.features.values(), *(columns or {}).values()]).astype(np.float32)


LAGS = (1, 2, 3, 4, 5, 6, 8, 12, 18, 24, 36, 48, 72, 168)
AHEAD = (1, 2, 3, 4, 6, 8, 12)


def know(values: Array, clock: pd.DatetimeIndex, rho: float, covariates: dict[str, Array]) -> Known:
    """Return the features of all steps, each from rows up to its own."""
    weights = (1 - rho) * rho ** np.arange(1, MATURE + 1)
    daily, weekly = rolling_profile(values, DAY, 7.0), rolling_profile(values, WEEK, 3.0)
    slow = rolling_profile(values, DAY, 21.0)
    columns: dict[str, Array] = {"now": values}
    columns |= {f"change {k}": values - lag(values, k) for k in LAGS}
    for name, profile, period in (("day", daily, DAY), ("slow", slow, DAY), ("week", weekly, WEEK)):
        anomaly = values - lag(profile, period)
        columns[f"{name} anomaly"] = anomaly
        columns |= {f"{name} anomaly change {k}": anomaly - lag(anomaly, k) for k in (1, 2, 3, 6, 12, 24)}
        ahead = sum(w * profile_ahead(profile, period, j) for j, w in enumerate(weights, 1))
        columns[f"{name} ahead"] = (1 - rho) * values + ahead - values
        columns[f"{name} trend"] = ahead - rho * lag(profile, period)
    for period in (DAY, WEEK):
        columns |= {f"{period} before, {j} on": lag(values, period - j) - lag(values, period) for j in AHEAD}
    series = pd.Series(values)
    columns |= {f"mean {k}": series.rolling(k).mean().to_numpy() - values for k in (6, 24, 168)}
    columns |= {f"deviation {k}": series.rolling(k).std().to_numpy() for k in (6, 24)}
    columns["highest 24"] = series.rolling(24).max().to_numpy() - values
    columns["lowest 24"] = series.rolling(24).min().to_numpy() - values
    columns["hour"], columns["weekday"] = clock.hour.to_numpy(), clock.day_of_week.to_numpy()
    for name, series_ in covariates.items():
        profile = rolling_profile(series_, DAY, 7.0)
        columns[name] = series_
        columns |= {f"{name} change {k}": series_ - lag(series_, k) for k in (1, 2, 3, 6, 12, 24)}
        columns[f"{name} anomaly"] = series_ - lag(profile, DAY)
        ahead = sum(w * profile_ahead(profile, DAY, j) for j, w in enumerate(weights, 1))
        columns[f"{name} trend"] = ahead - rho * lag(profile, DAY)
        columns |= {f"{name} profile {j}": profile_ahead(profile, DAY, j) - lag(profile, DAY) for j in (1, 3, 6)}
    later = clock.append(pd.date_range(clock[-1], periods=MATURE + 1, freq=clock[1] - clock[0])[1:])
    return Known(values, columns, daily, weekly, later.hour.to_numpy(), later.day_of_week.to_numpy())


@dataclasses.dataclass(frozen=True)
class Task:
    """A series with the span of its validation and test days, and all that its models learn from.

    Args:
        known: what is known at each step.
        z: (n,), the discounted future; NaN where it is not known.
        rho: its discount.
        training_end, validation_end, end: first step after the training, validation and test days.
    """

    known: Known
    z: Array
    rho: float
    training_end: int
    validation_end: int
    end: int

    @classmethod
    def of(cls, contexts: Contexts, covariates: dict[str, Array] | None = None) -> "Task":
        """Return the task of a series, in its own units."""
        rho, split = float(decay_root(1.0, ALPHA)), contexts.split
        end, first_test = contexts.n_days * DAY, (split.training_days + split.validation_days) * DAY
        values = contexts.values[:end, 0]
        seen = {name: np.asarray(column, float)[:end] for name, column in (covariates or {}).items()}
        known = know(values, contexts.time[:end], rho, seen)
        return cls(known, discounted_future(values, rho), rho, split.training_days * DAY, first_test, end)

    def blocks(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Return (start, end) of the spans between refits."""
        for start in range(first, last, REFIT):
            yield start, min(start + REFIT, last)

    def clip(self, forecast: Array, first: int) -> Array:
        """Clip forecasts (n, ...) of steps from `first` on to the range of all contexts so far."""
        values, own = self.known.values, slice(first, first + len(forecast))
        low, high = np.minimum.accumulate(values)[own], np.maximum.accumulate(values)[own]
        shape = (-1,) + (1,) * (forecast.ndim - 1)
        return np.clip(forecast, low.reshape(shape), high.reshape(shape))


def train(rows: Array, target: Array, settings: TreeSettings, trees: int):
    """Return a model of `trees` trees."""
    import lightgbm

    params = settings.params()
    return lightgbm.train(params, lightgbm.Dataset(rows, target, params=params, free_raw_data=False), trees)


def count_trees(rows: Array, target: Array, settings: TreeSettings, folds: Sequence[tuple[Array, Array]]) -> int:
    """Return the number of trees that serves the later rows of all folds best, by early stopping."""
    import lightgbm

    params = settings.params()
    data = lightgbm.Dataset(rows, target, params=params, free_raw_data=False)
    calls = [lightgbm.early_stopping(PATIENCE, verbose=False)]
    found = lightgbm.cv(params, data, MOST_TREES, folds=folds, callbacks=calls)
    return max(int(MORE_TREES * len(found["valid l2-mean"])), FEWEST_TREES)


def matured(end: int, horizon: int = MATURE) -> Array:
    """Return the training rows of a model that is fitted before step `end`: the last reading of their target is known."""
    return np.arange(WARM_UP, max(end - horizon, WARM_UP))


def expanding_folds(count: int, horizon: int = MATURE) -> list[tuple[Array, Array]]:
    """Return three folds of consecutive rows: the first ones to train on, and the next sixth of all to stop by.

    The last target of the training rows is known before the first row to stop by.
    """
    cuts = [count * sixth // 6 for sixth in (3, 4, 5, 6)]
    return [(np.arange(start - horizon), np.arange(start, end)) for start, end in itertools.pairwise(cuts)]


@dataclasses.dataclass(frozen=True)
class Ridge:
    """A ridge regression on standardised features; missing ones count as their mean."""

    mean: Array
    scale: Array
    weights: Array
    level: float

    @classmethod
    def fit(cls, features: Array, target: Array, penalty: float = 1.0) -> "Ridge":
        """Return the regression; the penalty is in rows."""
        mean, scale = np.nanmean(features, axis=0), np.maximum(np.nanstd(features, axis=0), 1e-9)
        columns = np.nan_to_num((features - mean) / scale).astype(float)
        gram = columns.T @ columns + penalty * np.eye(columns.shape[1])
        return cls(mean, scale, np.linalg.solve(gram, columns.T @ (target - target.mean())), float(target.mean()))

    def predict(self, features: Array) -> Array:
        """Return the regression's value for each row."""
        return self.level + np.nan_to_num((features - self.mean) / self.scale).astype(float) @ self.weights


@dataclasses.dataclass
class Refitted:
    """A boosted model that is fitted again and again, each time to all rows whose target is known.

    The number of trees is found by early stopping in the training days, and again when the past has grown by half.

    Args:
        settings: of the trees.
        make: returns features and targets of rows.
        horizon: steps until a target is known.
    """

    settings: TreeSettings
    make: Callable[[Array], tuple[Array, Array]]
    horizon: int
    trees: int = 0
    stopped_at: int = 0

    def fit(self, end: int) -> Callable[[Array], Array]:
        """Return the predictor that learned from the rows that are known before step `end`."""
        rows = matured(end, self.horizon)
        features, target = self.make(rows)
        linear = Ridge.fit(features, target if self.settings.ridge else np.zeros_like(target))
        target = target - linear.predict(features)
        if end >= GROWTH * self.stopped_at:
            copies = np.arange(len(target)).reshape(len(rows), -1)  # a row may occur with several leads
            folds = [tuple(copies[part].ravel() for part in fold) for fold in expanding_folds(len(rows), self.horizon)]
            self.trees, self.stopped_at = count_trees(features, target, self.settings, folds), end
        trees = train(features, target, self.settings, self.trees)
        return lambda rows: linear.predict(rows) + trees.predict(rows)


class BoostedFuture:
    """LightGBM on the discounted future."""

    def __init__(self, task: Task, settings: TreeSettings):
        self.task, known, now = task, task.known, task.known.values
        ahead = [known.profile_forecast(lead) for lead in range(1, MATURE + 1)]
        self.offset = now if settings.offset == "now" else implied_future(now, np.column_stack(ahead), task.rho)
        self.rows, target = known.matrix(), task.z - self.offset
        self.model = Refitted(settings, lambda rows: (self.rows[rows], target[rows]), MATURE)

    def predict(self, first: int, last: int) -> Array:
        """Return zhat of each step."""
        found = np.empty(last - first)
        for start, end in self.task.blocks(first, last):
            change = self.model.fit(start)(self.rows[start:end])
            found[start - first : end - first] = self.offset[start:end] + change
        return self.task.clip(found, first)


class BoostedForecast:
    """LightGBM forecasts of each of the next steps: one model for each group of leads."""

    def __init__(self, task: Task, settings: TreeSettings):
        self.task, known, every = task, task.known, range(1, MATURE + 1)
        self.base, self.offset = known.matrix(), np.column_stack([known.profile_forecast(lead) for lead in every])
        periodic = ((known.daily, DAY), (known.weekly, WEEK), (known.values, DAY), (known.values, WEEK))
        shapes = [np.column_stack([profile_ahead(each, period, lead) for lead in every]) for each, period in periodic]
        self.ahead = (np.stack([self.offset, *shapes], axis=-1) - known.values[:, None, None]).astype(np.float32)
        self.models = {
            (low, high): Refitted(settings, lambda rows, low=low, high=high: self._make(rows, low, high), high)
            for low, high in LEADS
        }

    def _make(self, rows: Array, low: int, high: int) -> tuple[Array, Array]:
        """Return features and targets of a few leads of each row."""
        count = 1 if high == low or high > FULL_LEADS else 2
        drawn = np.random.default_rng(high).random((len(rows), high - low + 1)).argsort(axis=1)[:, :count]
        rows, leads = np.repeat(rows, count), low + drawn.ravel()
        return self._matrix(rows, leads), self.task.known.values[rows + leads] - self.offset[rows, leads - 1]

    def _matrix(self, rows: Array, leads: Array) -> Array:
        known = self.task.known
        calendar = np.column_stack([leads, known.hour[rows + leads], known.weekday[rows + leads]])
        return np.hstack([self.base[rows], self.ahead[rows, leads - 1], calendar.astype(np.float32)])

    def predict(self, first: int, last: int) -> Array:
        """Return the forecasts (steps, 48)."""
        found = np.empty((last - first, MATURE))
        for start, end in self.task.blocks(first, last):
            for (low, high), model in self.models.items():
                rows = np.repeat(np.arange(start, end), high - low + 1)
                leads = np.tile(np.arange(low, high + 1), end - start)
                change = model.fit(start)(self._matrix(rows, leads))
                found[rows - first, leads - 1] = self.offset[rows, leads - 1] + change
        return self.task.clip(found, first)


def follow(zhat: Array, x0: float, rho: float) -> Array:
    """Return the actions x_t = rho x_{t-1} + (1 - rho) zhat_t."""
    actions, x = np.empty(len(zhat)), x0
    for t, target in enumerate(zhat):
        actions[t] = x = rho * x + (1 - rho) * target
    return actions


def plan_weights(steps: int) -> tuple[float, Array]:
    """Return what the first action of the optimal plan of a window gives to x_{t-1}, and to each of its contexts.

    >>> before, contexts = plan_weights(49)
    >>> round(before, 6), round(before + contexts.sum(), 12)
    (0.729844, 1.0)
    """
    banded = np.full((2, steps), -ALPHA)
    banded[1] = 1 + 2 * ALPHA
    banded[1, -1] = 1 + ALPHA
    first = solveh_banded(banded, np.eye(steps)[0])
    return float(ALPHA * first[0]), first


def plan(now: Array, forecast: Array, x0: float) -> Array:
    """Return the first action of the optimal plan of each window, (n,), from contexts (n,) and forecasts (n, leads)."""
    before, weights = plan_weights(1 + forecast.shape[1])
    wanted = np.column_stack([now, forecast]) @ weights
    return follow(wanted / (1 - before), x0, before)


def implied_future(now: Array, forecast: Array, rho: float) -> Array:
    """Return the zhat that forecasts imply."""
    weights = rho ** np.arange(1 + forecast.shape[1])
    return np.column_stack([now, forecast]) @ (weights / weights.sum())


def blend(members: Array, z: Array, rate: float, memory_days: float | None = None) -> Array:
    """Return the mean of the members (n, k) by exponential weights on their squared errors, each used once it is known.

    Args:
        members: zhat of each member.
        z: (n,), the discounted future; z_t is used from step t + `MATURE` on.
        rate: of learning, per squared error of the best member so far.
        memory_days: half-life of the errors. Default: they are not forgotten.
    """
    keep = 1.0 if memory_days is None else 0.5 ** (1 / (DAY * memory_days))
    total, count, found = np.zeros(members.shape[1]), 0.0, np.empty(len(members))
    for t, each in enumerate(members):
        weights = np.full(len(each), 1 / len(each))
        if t >= MATURE:
            total = keep * total + (members[t - MATURE] - z[t - MATURE]) ** 2
            count = keep * count + 1
            best = total.min()
            weights = np.exp(-rate * (total - best) / max(best / count, np.finfo(float).tiny))
            weights /= weights.sum()
        found[t] = weights @ each
    return found


BLENDS = tuple(
    itertools.product((0.0, 0.01, 0.03, 0.1, 0.3), (None, 14.0))
)  # (rate, memory) that validation selects from


@dataclasses.dataclass(frozen=True)
class Score:
    """Mean daily cost over that of the optimum of the whole span, and over the daily oracle's; the worst day's ratio.

    Args:
        hindsight: average cost over hindsight of all test days.
        daily_oracle: the same over the daily oracle.
        worst_day: cost of the worst day over its optimum.
        validation: average cost over hindsight of all validation days; None if it was not measured.
        settings: what validation selected.
    """

    hindsight: float
    daily_oracle: float
    worst_day: float
    validation: float | None = None
    settings: str = ""


def score_actions(actions: Array, test_days: TestDays) -> Score:
    """Score a run of actions (steps,) through the days, as the rows of `fit` are scored."""
    n, steps, _ = test_days.days.shape
    contexts, x0 = np.asarray(test_days.days).ravel(), float(test_days.x0[0])
    hitting = 0.5 * (actions - contexts) ** 2
    switching = 0.5 * ALPHA * np.diff(actions, prepend=x0) ** 2
    runs = Trajectory(
        actions.reshape(n, steps, 1),
        hitting.reshape(n, steps),
        switching.reshape(n, steps),
        None,
        np.ones((n, steps), bool),
    )
    score = score_runs(runs, test_days.starts_of(runs), test_days)
    return Score(score.average_cost, float(score.cost.mean()) / daily_unit(test_days), score.competitive_ratio)


def daily_unit(test_days: TestDays) -> float:
    """Return the mean cost of the daily oracle over the days that count."""
    return float(np.mean(np.asarray(test_days.oracle_cost)[test_days.scored]))


@dataclasses.dataclass(frozen=True)
class Scored:
    """A series with its validation and test days, to score forecasts of z and plans."""

    task: Task
    validation: TestDays
    test: TestDays

    def span(self, part: str) -> tuple[int, int, TestDays]:
        """Return first and last step of "validation" or "test", and its days."""
        task = self.task
        if part == "validation":
            return task.training_end, task.validation_end, self.validation
        return task.validation_end, task.end, self.test

    def score_future(self, zhat: Array, part: str) -> Score:
        """Score the actions that follow zhat."""
        days = self.span(part)[2]
        return score_actions(follow(zhat, float(days.x0[0]), self.task.rho), days)

    def score_plan(self, forecast: Array, part: str) -> Score:
        """Score the first actions of the plans."""
        first, last, days = self.span(part)
        return score_actions(plan(self.task.known.values[first:last], forecast, float(days.x0[0])), days)


def select(candidates: Sequence[Any], validate: Callable[[Any], tuple[float, Any]], log: Callable[[str], None]):
    """Return (cost, settings, what `validate` returned) of the cheapest candidate on the validation days."""
    found = []
    for settings in candidates:
        began = time.process_time()
        cost, made = validate(settings)
        log(f"    {cost:.5f}  {settings}  {time.process_time() - began:.0f} s")
        found.append((cost, settings, made))
    return min(found, key=lambda each: each[0])


def hybrid_row(scored: Scored, log: Callable[[str], None]) -> dict[str, Score]:
    """Return the row of LightGBM-z on the residuals of a ridge regression."""
    (first, middle, _), (_, last, _) = scored.span("validation"), scored.span("test")

    def validate(settings: TreeSettings):
        model = BoostedFuture(scored.task, settings)
        return scored.score_future(model.predict(first, middle), "validation").hindsight, model

    cost, settings, model = select(HYBRID_SETTINGS, validate, log)
    score = scored.score_future(model.predict(middle, last), "test")
    return {"LightGBM-z on a ridge": dataclasses.replace(score, validation=cost, settings=str(settings))}


def boosted_rows(scored: Scored, log: Callable[[str], None]) -> dict[str, Score]:
    """Return the rows of LightGBM-z, LightGBM-plan and their blend."""
    task = scored.task
    (first, middle, _), (_, last, _) = scored.span("validation"), scored.span("test")

    def validate_future(settings: TreeSettings):
        model = BoostedFuture(task, settings)
        zhat = model.predict(first, middle)
        return scored.score_future(zhat, "validation").hindsight, (model, zhat)

    def validate_plan(settings: TreeSettings):
        model = BoostedForecast(task, settings)
        forecast = model.predict(first, middle)
        return scored.score_plan(forecast, "validation").hindsight, (model, forecast)

    z_cost, z_settings, (z_model, z_early) = select(Z_SETTINGS, validate_future, log)
    plan_cost, plan_settings, (plan_model, plan_early) = select(PLAN_SETTINGS, validate_plan, log)
    zhat, forecast = z_model.predict(middle, last), plan_model.predict(middle, last)
    now = task.known.values
    implied = np.concatenate(
        [implied_future(now[first:middle], plan_early, task.rho), implied_future(now[middle:last], forecast, task.rho)]
    )
    members = np.column_stack([np.concatenate([z_early, zhat]), implied])

    def validate_blend(settings: tuple[float, float | None]):
        mixed = blend(members, task.z[first:last], *settings)
        return scored.score_future(mixed[: middle - first], "validation").hindsight, mixed[middle - first :]

    blend_cost, blend_settings, mixed = select(BLENDS, validate_blend, log)
    rows = {
        "LightGBM-z": (scored.score_future(zhat, "test"), z_cost, str(z_settings)),
        "LightGBM-plan": (scored.score_plan(forecast, "test"), plan_cost, str(plan_settings)),
        "LightGBM-blend": (scored.score_future(mixed, "test"), blend_cost, f"rate, memory {blend_settings}"),
    }
    found = {
        name: dataclasses.replace(score, validation=cost, settings=text) for name, (score, cost, text) in rows.items()
    }
    for name, score in found.items():
        log(f"  {name}: {score}")
    return found


def fitted_rows(fitted: FittedSeries) -> dict[str, Score]:
    """Return the rows of `fit`'s own table: the policy, its members, the references and hindsight."""
    validated = {each.name: each.average_cost for each in fitted.candidates} | {
        fitted.own.name: fitted.chosen.average_cost
    }
    unit = daily_unit(fitted.test_days)
    return {
        "policy" if row is fitted.own else row.name: Score(
            row.average_cost,
            row.mean_cost / unit,
            row.competitive_ratio,
            validated.get(row.name),
            fitted.chosen.name if row is fitted.own else "",
        )
        for row in fitted.comparison
    }


PROMISES = {"no promise": None, "2 a day": PromiseSpec(2.0, "day"), "2 for the run": PromiseSpec(2.0, "run")}


def measure_margins(contexts: Contexts) -> dict[str, dict[str, Any]]:
    """Return, for each of `PROMISES`, what `fit` chooses and the best row of its own table: their test costs.

    With a promise only rows behind the same promise are rivals: others are not allowed to be chosen.
    """
    found = {}
    for name, promise in PROMISES.items():
        fitted = fit_contexts(contexts, FitSettings(ALPHA, promise=promise))
        own, ours = fitted.own, {each.name for each in fitted.candidates}
        rivals = [
            row
            for row in fitted.comparison
            if row is own or row.name in ours or (promise is None and row.name not in ("oracle", "daily-oracle"))
        ]
        best = min(rivals, key=lambda row: row.average_cost)
        found[name] = {
            "chosen": own.name,
            "cost": own.average_cost,
            "best": best.name,
            "best_cost": best.average_cost,
            "excess": own.average_cost / best.average_cost - 1,
        }
    return found


def useless_columns(values: Array, seeds: int) -> Iterator[tuple[str, Array, float | None]]:
    """Return (name, column, hours ahead if it is a forecast) of columns that say nothing new about a series, or mislead.

    Noise has the standard deviation of the series: white, and autoregressive with .98 an hour.
    """
    scale, day_ahead = values.std(), np.append(values[DAY:], values[-DAY:])
    for seed in range(seeds):
        shocks = np.random.default_rng(seed).normal(size=len(values))
        slow = lfilter([1.0], [1.0, -0.98], shocks)
        yield f"white noise, seed {seed}", scale * shocks, None
        yield f"slow noise, seed {seed}", scale * slow / slow.std(), None
        yield f"forecast: persistence and noise, seed {seed}", values + 2 * scale * shocks, float(DAY)
    yield "forecast: a constant and one reading", np.where(np.arange(len(values)) == 0, 0.0, values.mean()), float(DAY)
    yield "forecast: with the wrong sign", 2 * values.mean() - day_ahead, float(DAY)


def with_columns(contexts: Contexts, columns: dict[str, Array], leads: dict[str, float | None]) -> Contexts:
    """Return the series with columns that are not followed."""
    frame = pd.DataFrame({"followed": contexts.values[:, 0], **columns}, contexts.time)
    return series_contexts(*frame_series(frame, ["followed"], covariates=leads), contexts.split)


def measure_worth(series: "Series", seeds: int) -> Iterator[tuple[str, str, float, float, float]]:
    """Return what `fit` chooses with columns, its test cost, what it costs more than without, and its share of that gap."""
    values, plain = series.contexts.values[:, 0], fit_contexts(series.contexts, FitSettings(ALPHA))
    base, best = plain.own.average_cost, plain.rows["oracle"].average_cost
    cases = [("wind and sun", series.covariates, dict.fromkeys(series.covariates))] if series.covariates else []
    cases += [(name, {name: column}, {name: lead}) for name, column, lead in useless_columns(values, seeds)]
    yield "none", plain.own.name, base, 0.0, 0.0
    for name, columns, leads in cases:
        own = fit_contexts(with_columns(series.contexts, columns, leads), FitSettings(ALPHA)).own
        cost = own.average_cost
        yield name, own.name, cost, cost / base - 1, (base - cost) / (base - best)


@dataclasses.dataclass(frozen=True)
class Series:
    """A series of the benchmark.

    Args:
        contexts: what is followed, with its split.
        covariates: columns that are seen and not followed, by name.
    """

    contexts: Contexts
    covariates: dict[str, Array] = dataclasses.field(default_factory=dict)


def read_table(path: Path, column: str, covariates: Sequence[str] = ()) -> Series:
    """Return a column of a file with the split of `ecl2o fit`, or its proportions if it is too short for that."""
    reader = SeriesReader(path, [column, *covariates])
    days = len(reader.read_rows()[0]) // DAY
    split = default_split(days) if days > 90 else Split(2 * days // 3, days // 6)
    contexts = dataclasses.replace(reader, columns=[column]).read_split(split)
    frame = reader.read_rows()[0].loc[contexts.time]
    return Series(contexts, {name: frame[name].to_numpy(float) for name in covariates})


def read_weather_year(path: Path, base_shortage: str | None) -> Series:
    """Return the contexts of the case study as a series, with the case study's split."""
    made = weather_contexts(path, base_shortage=base_shortage)
    series = pd.Series(made.values[:, 0], made.time.tz_localize(None), name="shortage")
    return Series(series_contexts(*frame_series(series), made.split))


SERIES: dict[str, Callable[[Path], Series]] = {
    **{
        name: lambda folder, name=name: read_table(
            folder / f"net_load_{name}_2022_hourly.csv", "net_load_mw", ("wind_mw", "solar_mw")
        )
        for name in ("ercot", "nyiso", "miso")
    },
    **{
        name: lambda folder, name=name: read_table(folder / f"load_{name}_2016_2018_hourly.csv", "load_mw")
        for name in ("dayton", "ekpc")
    },
    "nasa": lambda folder: read_table(folder / "web_requests_nasa_1995_hourly.csv", "requests"),
    "riverside": lambda folder: read_weather_year(folder / "nsrdb_riverside_2015.csv", None),
    "bakersfield": lambda folder: read_weather_year(folder / "nsrdb_bakersfield_2012.csv", "auto"),
    "golden": lambda folder: read_weather_year(folder / "nsrdb_golden_2012.csv", "auto"),
}


def measure(series: Series, parts: Sequence[str], log: Callable[[str], None]) -> dict[str, Score]:
    """Return all rows of a series.

    Args:
        series: the series.
        parts: some of "fit", "trees", "covariates" (trees that see them) and "hybrid" (trees on a ridge, both ways).
        log: called with each figure on the way.
    """
    settings, rows = FitSettings(ALPHA), {}
    contexts = screen_for_fit(series.contexts, settings).contexts
    problem = series_problem(contexts, settings)
    days = [held_back_days(problem, contexts, part, 0) for part in ("validation", "test")]
    if "fit" in parts:
        rows |= fitted_rows(fit_contexts(series.contexts, settings))
        if series.covariates:
            informed = with_columns(series.contexts, series.covariates, dict.fromkeys(series.covariates))
            rows[f"policy{WITH_COVARIATES}"] = fitted_rows(fit_contexts(informed, settings))["policy"]
    plain = Scored(Task.of(contexts), *days)
    if "trees" in parts:
        rows |= boosted_rows(plain, log)
    if "hybrid" in parts:
        rows |= hybrid_row(plain, log)
    if series.covariates:
        informed, found = Scored(Task.of(contexts, series.covariates), *days), {}
        if "covariates" in parts:
            found |= boosted_rows(informed, log)
        if "hybrid" in parts:
            found |= hybrid_row(informed, log)
        rows |= {f"{name}{WITH_COVARIATES}": score for name, score in found.items()}
    return rows


WITH_COVARIATES = ", with covariates"


def format_table(results: dict[str, dict[str, dict[str, Any]]], unit: str) -> str:
    """Return a Markdown table of a unit of `Score`: a line for each contender, a column for each series.

    The member that became the policy is filled in with the policy's figure. The best figure of a column is bold, hindsight
    and the daily oracle apart.
    """
    columns = {}
    for series, rows in results.items():
        column = {name: row[unit] for name, row in rows.items() if row[unit] is not None}
        if "policy" in rows:
            column.setdefault(rows["policy"]["settings"], column["policy"])
        columns[series] = column
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    leading = [name for name in ("oracle", "daily-oracle", "policy", f"policy{WITH_COVARIATES}") if name in names]
    boosted = [name for name in names if name.startswith("LightGBM")]
    names = [*leading, *boosted, *(name for name in names if name not in (*leading, *boosted))]
    best = {
        series: min(cost for name, cost in column.items() if name not in ("oracle", "daily-oracle"))
        for series, column in columns.items()
    }
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for name in names:
        cells = []
        for series, column in columns.items():
            cell = "" if name not in column else f"{column[name]:.4f}"
            cells.append(f"**{cell}**" if name in column and column[name] == best[series] else cell)
        lines.append(f"| {LABELS.get(name, name)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


LABELS = {
    "oracle": "hindsight of all days",
    "daily-oracle": "daily oracle",
    "policy": "what `fit` chooses",
    f"policy{WITH_COVARIATES}": f"what `fit` chooses{WITH_COVARIATES}",
    "rhc": "RHC, rolling profile",
    "guarded-rhc": "RHC, rolling profile, guarded",
    "r-obd": "R-OBD",
    "greedy": "greedy",
}


def main() -> None:
    """Measure the series, and print and keep the rows of each."""
    use_cached_programs()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the data")
    parser.add_argument("series", nargs="*", help=f"some of {', '.join(SERIES)}; all of them unless given")
    parser.add_argument(
        "--parts", default="fit,trees,covariates,hybrid", help="what to measure; the rest is read from --results"
    )
    parser.add_argument("--results", type=Path, default=Path(), help="folder of the figures, practitioner-SERIES.json")
    parser.add_argument("--table", action="store_true", help="measure nothing, print the tables of --results")
    parser.add_argument(
        "--margins",
        action="store_true",
        help="only compare what fit chooses with the best row of its table, by promise",
    )
    parser.add_argument(
        "--worth",
        type=int,
        metavar="SEEDS",
        help="only measure what wind, sun, noise and bad forecasts are worth to fit",
    )
    asked = parser.parse_intermixed_args()
    names = asked.series or list(SERIES)
    if asked.table:
        files = {name: asked.results / f"practitioner-{name}.json" for name in names}
        results = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
        for unit in ("hindsight", "daily_oracle", "validation"):
            print(f"\n{unit}\n\n{format_table(results, unit)}")
        return
    if asked.margins:
        print("| series | promise | chosen | cost | best row | its cost | excess, % |\n|---" + "|---" * 6 + "|")
        for name in names:
            for promise, row in measure_margins(SERIES[name](asked.folder).contexts).items():
                costs = f"{row['chosen']} | {row['cost']:.4f} | {row['best']} | {row['best_cost']:.4f}"
                print(f"| {name} | {promise} | {costs} | {100 * row['excess']:.2f} |", flush=True)
        return
    if asked.worth is not None:
        print("| series | columns | chosen | cost | change, % | of the gap, % |\n|---" + "|---" * 5 + "|")
        for name in names:
            for columns, chosen, cost, change, share in measure_worth(SERIES[name](asked.folder), asked.worth):
                figures = f"{cost:.4f} | {100 * change:+.2f} | {100 * share:.1f}"
                print(f"| {name} | {columns} | {chosen} | {figures} |", flush=True)
        return
    for name in names:
        began, kept = time.process_time(), asked.results / f"practitioner-{name}.json"
        print(name, flush=True)
        found = measure(SERIES[name](asked.folder), asked.parts.split(","), lambda line: print(line, flush=True))
        rows = json.loads(kept.read_text()) if kept.exists() else {}
        if "policy" in found:
            rows = {row: figures for row, figures in rows.items() if row.startswith("LightGBM")}
        rows |= {row: dataclasses.asdict(score) for row, score in found.items()}
        kept.write_text(json.dumps(rows, indent=1))
        print(f"  {time.process_time() - began:.0f} s of CPU time", flush=True)


if __name__ == "__main__":
    main()
