"""A fitted policy as a picture: a week of it, and how it compares.

The recipe of `ecl2o fit` for pandas objects, with the habits of scikit-learn: fit a frame, then step or predict.
"""

import dataclasses
import html
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd

from ecl2o.data import Contexts, Split, frame_series, series_contexts
from ecl2o.data.contexts import trim_to_whole_days
from ecl2o.data.series import add_weight_column, move_weight_last
from ecl2o.evaluation.comparison import ComparisonRow
from ecl2o.exceptions import DataError
from ecl2o.fitting import pipeline
from ecl2o.fitting.settings import AdvisorName, Alpha, FitSettings, Per, PromiseSpec
from ecl2o.policy import Policy, Runner

_CONTEXT, _ACTION, _AVERAGE, _WORST = "#767676", "#0072B2", "#0072B2", "#E69F00"


def draw_fitted(contexts: pd.DataFrame, actions: pd.DataFrame, table: pd.DataFrame) -> np.ndarray:
    """Two axes beside each other: contexts and actions over time, and average cost and worst day as bars."""
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", width_ratios=(3, 2))
    _draw_week(axes[0], contexts, actions)
    _draw_bars(axes[1], table)
    return axes


def _draw_week(axes: Any, contexts: pd.DataFrame, actions: pd.DataFrame) -> None:
    for name in contexts.columns:
        axes.plot(contexts.index, contexts[name], color=_CONTEXT, linewidth=1, label=f"{name}: asked")
        axes.plot(actions.index, actions[name], color=_ACTION, linewidth=1.5, label=f"{name}: done")
    axes.set_title("The last week")
    axes.tick_params(axis="x", rotation=30)
    if len(contexts.columns) == 1:
        axes.legend(frameon=False)


def _draw_bars(axes: Any, table: pd.DataFrame) -> None:
    places = np.arange(len(table))
    for offset, name, colour in ((0.2, "average cost", _AVERAGE), (-0.2, "worst day", _WORST)):
        bars = axes.barh(places + offset, table[name], 0.38, color=colour, label=name)
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
    axes.set_yticks(places, table.index)
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.margins(x=0.15)
    axes.set_title("Cost over the optimum's")
    axes.legend(frameon=False, loc="lower right")


_LABELS = {"daily-oracle": "daily oracle", "policy": "this policy", "r-obd": "R-OBD", "rhc": "RHC, rolling profile"}


@dataclasses.dataclass(eq=False)
class SeriesPolicy:
    """A policy for a series in pandas: `fit` it to a frame whose index is the time, then `step` or `predict`.

    What `ecl2o fit` does with a file: the first two thirds of the days are for training, the next sixth for choosing, the rest
    for the table. Works in 64 bits whatever JAX does, because promises are made there. `print` shows the table, `plot` draws it
    with the last week, and a notebook shows it by itself.

    Args:
        alpha: what moving costs: alpha/2 times the squared change, beside 1/2 the squared miss; one for all columns, or one
            for each by its name.
        promise: pay at most so many times the optimum, whatever happens; None promises nothing.
        per: what the promise is for: "run", or each "month" of 30 days, "week" or "day" by itself.
        allowance: what may be paid on top of the promise in each period, in units of cost.
        contexts: (low, high), where all contexts are known to lie there: a promise then allows more.
        bounds: (low, high) of actions.
        advisor: "auto", "ridge", "seasonal", "rhc", "r-obd", "mlp" or "lstm".
        columns: which columns to follow; all that hold numbers unless given.
        weight_column: a column that is not followed, but says what a miss costs, such as a price.
        weights: (low, high) that weights are billed between; None: what was seen, a quarter wider.
        fill: how to repair gaps: "interpolate" or "previous"; None refuses them.
        period: steps in a day, where rows are a day or more apart.
        training_days: another split, together with `validation_days`.
        validation_days: the days on which candidates are chosen.
        seed: of whatever is drawn.
        steps: training steps; None: enough.

    >>> SeriesPolicy(alpha=5.0, promise=2.0).get_params()["per"]
    'run'

    After `fit`: `policy_` is what `ecl2o.save` writes, `table_` the comparison as a frame, `fitted_` all that the recipe found.
    """

    alpha: Alpha = 10.0
    promise: float | None = None
    per: Per = "run"
    allowance: float = 0.0
    contexts: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None
    advisor: AdvisorName | str = "auto"
    columns: Sequence[str] | None = None
    weight_column: str | None = None
    weights: tuple[float, float] | None = None
    fill: str | None = None
    period: int | None = None
    training_days: int | None = None
    validation_days: int | None = None
    seed: int = 0
    steps: int | None = None

    def fit(self, X: pd.DataFrame | pd.Series, y: None = None) -> "SeriesPolicy":
        """Train, choose and test. `y` is not used; scikit-learn hands it over."""
        recipe = self._recipe()
        contexts = self._contexts(X)
        with jax.enable_x64(True):
            self.fitted_ = pipeline.fit_contexts(contexts, recipe)
        self.contexts_ = contexts
        self.table_ = _table(self.fitted_.entries)
        self.reset()
        return self

    @property
    def policy_(self) -> Policy:
        """The policy, for `ecl2o.save`, a `Runner` or the service."""
        return self._found().policy

    def reset(self) -> None:
        """Let `step` begin again after the end of the series that was fitted."""
        self._runner: Runner | None = None

    def step(self, context: Any) -> np.ndarray:
        """See one context (a number, a row of a frame, a vector; with weights, its weight last), choose an action (d,).

        The first call goes on where the fitted series ended.
        """
        policy = self.policy_
        given = np.atleast_1d(np.asarray(context, float))
        with jax.enable_x64(True):
            if self._runner is None:
                self._runner = Runner(policy)
            return self._runner.step(given)

    @property
    def live_ratio(self) -> float | None:
        """Cost over the optimum since the promise began, of what `step` did; None without a promise or before the first step."""
        if self._runner is None:
            return None
        with jax.enable_x64(True):
            ratio = self._runner.live_ratio
        return None if ratio is None else float(ratio)

    def predict(self, X: pd.DataFrame | pd.Series) -> pd.DataFrame:
        """What the policy does on a frame as one stream: an action for each row, made from that row and those before it.

        It begins on those rows of the fitted series that lie before the frame's first.
        """
        policy, fitted = self.policy_, self.contexts_
        frame, _ = frame_series(X, policy.contract.columns, self.fill)
        values = frame.to_numpy(float)
        past = fitted.values[: int(np.searchsorted(fitted.time, frame.index[0]))]
        followed = self._followed()
        with jax.enable_x64(True):
            runner = Runner(policy, None if len(past) else values[0, : len(followed)], past)
            actions = [runner.step(context) for context in values]
        return pd.DataFrame(np.array(actions), frame.index, followed)

    def plot(self) -> Any:
        """The last test week with what was done, and the comparison; gives the two axes."""
        contexts = self.contexts_
        steps = min(7 * contexts.steps_per_day, len(contexts.test_time()))
        week = pd.DataFrame(contexts.values, contexts.time, list(self.policy_.contract.columns or ())).iloc[-steps:]
        return draw_fitted(week[self._followed()], self.predict(week), self.table_)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings, as scikit-learn asks for them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def set_params(self, **params: Any) -> "SeriesPolicy":
        """Other settings, for the next `fit`."""
        unknown = set(params) - {field.name for field in dataclasses.fields(self)}
        if unknown:
            raise ValueError(f"unknown settings: {', '.join(sorted(unknown))}.")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __str__(self) -> str:
        if not hasattr(self, "fitted_"):
            return repr(self)
        table = self.table_.to_string(float_format="{:.3f}".format, na_rep="")
        return "\n".join([self._title(), "", table, "", *self._notes()])

    def _repr_html_(self) -> str:
        if not hasattr(self, "fitted_"):
            return f"<pre>{html.escape(repr(self))}</pre>"
        table = self.table_.to_html(float_format="{:.3f}".format, na_rep="", border=0)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes())
        return f"<p>{html.escape(self._title())}</p>{table}{notes}"

    def _title(self) -> str:
        split = self.contexts_.split
        return (
            f"The last {self._found().test_days} days, which neither training ({split.training_days} days) nor choice "
            f"({split.validation_days} days) has seen"
        )

    def _notes(self) -> list[str]:
        chosen = self._found().chosen
        trust = "its advice as it is" if chosen.trust is None else f"trust {chosen.trust:g}"
        promise = self.policy_.agent.promise(self.policy_.problem)
        return [
            "average cost: in units of the optimum of all these days together; worst day, 99 % of days: over the least possible "
            "cost of that day.",
            f"chosen on validation: {chosen.advisor}, {'behind its promise' if promise else trust}"
            f"{'' if chosen.trained else '; not trained'}.",
            "promised: nothing." if promise is None else f"promised: {promise}, at every step.",
        ]

    def _found(self) -> pipeline.FittedSeries:
        if not hasattr(self, "fitted_"):
            raise ValueError("this policy is not fitted yet: call fit with a frame first.")
        return self.fitted_

    def _followed(self) -> list[str]:
        """The columns without that of weights, one for each number of an action."""
        contract = self.policy_.contract
        return [name for name in contract.columns or () if name != contract.weight_column]

    def _recipe(self) -> FitSettings:
        if self.promise is None and (self.allowance or self.contexts is not None or self.per != "run"):
            raise ValueError("per, allowance and contexts go with a promise.")
        terms = None if self.promise is None else PromiseSpec(self.promise, self.per, self.allowance, self.contexts)
        settings = self.steps, self.seed, self.bounds, self.weights
        return FitSettings(self.alpha, self.advisor, terms, *settings)  # pyright: ignore[reportArgumentType]

    def _contexts(self, X: pd.DataFrame | pd.Series) -> Contexts:
        if (self.training_days is None) != (self.validation_days is None):
            raise ValueError("training_days and validation_days go together: give both or neither.")
        frame, metadata = frame_series(X, add_weight_column(self.columns, self.weight_column), self.fill)
        frame, metadata = move_weight_last(frame, metadata, self.weight_column)
        if self.period is not None:
            metadata = dataclasses.replace(metadata, steps_per_day=self.period)
        if metadata.steps_per_day < 2:
            raise DataError("the rows are a day or more apart: say how many make one round of decisions with period.")
        frame, metadata, _ = trim_to_whole_days(frame, metadata)
        days = len(frame) // metadata.steps_per_day
        if self.training_days is not None and self.validation_days is not None:
            return series_contexts(frame, metadata, Split(self.training_days, self.validation_days))
        if days < pipeline.FEWEST_DAYS:
            raise DataError(
                f"the frame has {days} whole days, but {pipeline.FEWEST_DAYS} are needed. With fewer, say how to divide them: "
                "training_days and validation_days; the rest is for testing."
            )
        return series_contexts(frame, metadata, pipeline.default_split(days))


def fit_series(
    frame: pd.DataFrame | pd.Series,
    alpha: Alpha = 10.0,
    promise: float | None = None,
    per: Per = "run",
    **settings: Any,
) -> SeriesPolicy:
    """A policy for a series in pandas: `SeriesPolicy(alpha, promise, per, ...).fit(frame)`.

    Args:
        frame: its index is the time, its columns are what is to be followed.
        alpha: what moving costs, beside a miss of the same size.
        promise: pay at most so many times the optimum; None promises nothing.
        per: what the promise is for: "run", "month", "week" or "day".
        settings: whatever else `SeriesPolicy` takes.
    """
    return SeriesPolicy(alpha, promise, per, **settings).fit(frame)


def _table(entries: list[ComparisonRow]) -> pd.DataFrame:
    """The comparison, one row for each entry; the live ratio only where somebody has one."""
    rows = {
        _LABELS.get(entry.name, entry.name): {
            "average cost": entry.average_cost,
            "worst day": entry.competitive_ratio,
            "99 % of days": entry.tail_ratio["p99"],
            "live ratio": np.nan if entry.live_ratio is None else entry.live_ratio,
        }
        for entry in entries
    }
    return pd.DataFrame.from_dict(rows, orient="index").dropna(axis="columns", how="all")
