"""Fit policies to pandas objects, with scikit-learn's conventions: fit a frame, then step or predict."""

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd

from ecl2o.data import Contexts, SeriesMetadata, Split, frame_series, parse_covariates
from ecl2o.fitting.pipeline import FittedSeries, fit_contexts
from ecl2o.fitting.read import cut_whole_days, split_days
from ecl2o.fitting.settings import AdvisorName, Alpha, FitSettings, Interval, Per, PromiseSpec
from ecl2o.policy import Policy, Runner


@dataclasses.dataclass(eq=False)
class SeriesPolicy:
    """A policy for a series in pandas, as a scikit-learn estimator.

    `fit` does what `ecl2o fit` does with a file: it trains on the first two thirds of the days, selects on the next sixth, and
    compares on the rest. It computes in 64 bits whatever JAX's setting is. `print` shows the comparison, `plot` draws it.

    Args:
        alpha: cost of moving: alpha/2 times the squared change, next to 1/2 the squared miss. One number for all columns, or a
            mapping from column names. Default: 10.
        promise: bound on the cost, in units of the optimum. Default: None, no promise.
        per: period of the promise: "day", "week", "month" of 30 days, or the whole "run". Default: "run".
        allowance: cost allowed on top of the promise in each period. Default: 0.
        contexts: (low, high) if all contexts are known to lie there; the promise then allows more. Default: unknown.
        bounds: (low, high) of actions. Default: none.
        plausible: (low, high) of readings, or a mapping from column names; others are replaced by the last plausible one.
            Default: the range of the training days, widened.
        advisor: "auto", "ridge", "fourier", "rhc", "r-obd", "mlp" or "lstm".
            Default: "auto", the best of "ridge", "fourier", "rhc" and "r-obd" on the validation days.
        columns: columns to follow. Default: the only one that holds numbers.
        weight_column: column of the cost of a miss, such as a price; it is not followed. Default: none.
        covariates: columns that are seen and not followed, such as wind. Default: none.
        forecasts: columns that forecast what is followed, as NAME@HOURS or f1..f48 (`data.parse_covariates`). Default: none.
        weights: (low, high) of the weights. Default: the range of the training days, a quarter wider.
        misses: (short, long), the weights of misses: short/2 times the squared miss below the context. Default: (1, 1).
        fill: "interpolate" or "previous" repairs gaps. Default: None, gaps are errors.
        fill_limit: hours of the longest gap that is filled. Default: 6, or a single row if they are farther apart.
        time_zone: name of a zone whose local time the series follows (`data.read_series`). Default: times are as in the index.
        period: steps in a day, needed if rows are a day or more apart. Default: from the index.
        training_days: number of training days; give `validation_days` too. Default: two thirds.
        validation_days: number of days that candidates are selected on. Default: a sixth.
        seed: seed of the random numbers. Default: 0.
        steps: training steps. Default: the advisor's own number.
        delay: steps from a context to the step in which its action is in force. Default: 0.
        known_ahead: contexts are known so many steps ahead; `step` and `predict` answer each with the action for so many steps
            before it. Default: 0.

    Attributes:
        policy_: the fitted policy, for `ecl2o.save`, a `Runner` or the service.
        table_: the comparison on the test days, as a frame.
        fitted_: everything that the fit found (`FittedSeries`).

    Example:
        >>> import numpy as np, pandas as pd
        >>> hours = np.arange(20 * 4)
        >>> index = pd.date_range("2024-01-01", periods=len(hours), freq="6h")
        >>> frame = pd.DataFrame({"demand": 10 + np.sin(hours * np.pi / 2)}, index)
        >>> estimator = SeriesPolicy(alpha=5.0, advisor="r-obd", training_days=12, validation_days=4)
        >>> fitted = estimator.fit(frame)
        >>> fitted.predict(frame.iloc[-4:]).shape
        (4, 1)
    """

    alpha: Alpha = 10.0
    promise: float | None = None
    per: Per = "run"
    allowance: float = 0.0
    contexts: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None
    plausible: Interval | Mapping[str, Interval] | None = None
    advisor: AdvisorName | str = "auto"
    columns: Sequence[str] | None = None
    weight_column: str | None = None
    covariates: Sequence[str] | None = None
    forecasts: Sequence[str] | None = None
    weights: tuple[float, float] | None = None
    misses: tuple[float, float] = (1.0, 1.0)
    fill: str | None = None
    fill_limit: float | int | None = None
    time_zone: str | None = None
    period: int | None = None
    training_days: int | None = None
    validation_days: int | None = None
    seed: int = 0
    steps: int | None = None
    delay: int = 0
    known_ahead: int = 0

    def fit(self, X: pd.DataFrame | pd.Series, y: None = None) -> "SeriesPolicy":
        """Train, select and test a policy.

        Args:
            X: the series, one row per step, with a `DatetimeIndex`.
            y: ignored; scikit-learn passes it.

        Returns:
            This estimator.

        Raises:
            DataError: If the frame cannot be used; the message names row and column.
            ValueError: If settings contradict each other, or no algorithm can keep the promise.
        """
        settings, contexts = self._settings(), self._contexts(X)
        with jax.enable_x64(True):
            self.fitted_ = fit_contexts(contexts, settings)
        self.contexts_ = contexts
        self.table_ = _make_table(self.fitted_)
        self.reset()
        return self

    @property
    def policy_(self) -> Policy:
        """The fitted policy, for `ecl2o.save`, a `Runner` or the service."""
        if not hasattr(self, "fitted_"):
            raise ValueError("this policy is not fitted yet: call fit with a frame first.")
        return self.fitted_.policy

    def reset(self) -> None:
        """Let the next `step` start again after the end of the fitted series."""
        self._runner: Runner | None = None

    def step(self, context: Any) -> np.ndarray:
        """Return the action (d,) for one context; the first call continues where the fitted series ended.

        Args:
            context: a number, a vector or a row of a frame; a weight and covariates come last, NaN if missing.
        """
        policy = self.policy_
        given = np.atleast_1d(np.asarray(context, float))
        with jax.enable_x64(True):
            if self._runner is None:
                self._runner = Runner(policy)
            return self._runner.step(given)

    @property
    def live_ratio(self) -> float | None:
        """Cost of the steps so far over their optimum; None without a promise or before the first `step`."""
        if self._runner is None:
            return None
        with jax.enable_x64(True):
            ratio = self._runner.live_ratio
        return None if ratio is None else float(ratio)

    def predict(self, X: pd.DataFrame | pd.Series) -> pd.DataFrame:
        """Run the policy through a frame as one stream, and return an action for each row.

        An action depends on its row and the rows before it. The run starts with the rows of the fitted series that precede the
        frame.
        """
        policy, fitted = self.policy_, self.contexts_
        frame, _ = self._read(X, policy.contract.columns)
        values = frame.to_numpy(float)
        past = fitted.values[: int(np.searchsorted(fitted.time, frame.index[0]))]
        followed = self._followed()
        with jax.enable_x64(True):
            runner = Runner(policy, None if len(past) else values[0, : len(followed)], past)
            actions = [runner.step(context) for context in values]
        return pd.DataFrame(np.array(actions), frame.index, followed)

    def plot(self) -> Any:
        """Draw the last test week and the comparison; return the two axes."""
        contexts = self.contexts_
        steps = min(7 * contexts.steps_per_day, len(contexts.test_time()))
        week = pd.DataFrame(contexts.values, contexts.time, list(self.policy_.contract.columns or ())).iloc[-steps:]
        return _draw(week[self._followed()], self.predict(week), self.table_)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name, as scikit-learn expects."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def set_params(self, **params: Any) -> "SeriesPolicy":
        """Change settings for the next `fit`."""
        unknown = set(params) - {field.name for field in dataclasses.fields(self)}
        if unknown:
            raise ValueError(f"unknown settings: {', '.join(sorted(unknown))}.")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __str__(self) -> str:
        if not hasattr(self, "fitted_"):
            return repr(self)
        title, *notes = self._describe()
        return "\n".join([title, "", self.table_.to_string(float_format=_format, na_rep=""), "", *notes])

    def _repr_html_(self) -> str:
        if not hasattr(self, "fitted_"):
            return f"<pre>{html.escape(repr(self))}</pre>"
        title, *notes = (f"<p>{html.escape(line)}</p>" for line in self._describe())
        return "".join([title, self.table_.to_html(float_format=_format, na_rep="", border=0), *notes])

    def _describe(self) -> list[str]:
        """Return the title of the table and the notes below it."""
        own, split = self.fitted_.own, self.contexts_.split
        imputed, promise = self.contexts_.describe_imputed(), "promise: none."
        if own.promise is not None:
            kept = "kept" if own.promise_kept else "BROKEN"
            promise = f"promise: {own.promise}{'' if own.promise.at_end else ', at every step'}; {kept}."
            if own.promise.period is not None:
                promise += f" It does not bound the run, which cost {own.average_cost:.3f} times its optimum."
        return [
            f"Comparison on the last {self.fitted_.n_test_days} days, after {split.training_days} days of training and "
            f"{split.validation_days} of validation",
            "validation, average cost: in units of the optimum of all these days together; worst day, 99 % of days: in units of "
            "that day's own optimum; mean and highest cost: of a day, 1/2 miss² + alpha/2 change² in the units of the series.",
            f"selected on validation: {self.fitted_.chosen.name}.",
            promise,
            *([] if imputed is None else [imputed]),
        ]

    def _followed(self) -> list[str]:
        """Return the columns of actions: all but weights and covariates."""
        contract = self.policy_.contract
        unfollowed = {contract.weight_column, *contract.covariates}
        return [name for name in contract.columns or () if name not in unfollowed]

    def _read(self, X: pd.DataFrame | pd.Series, columns: Sequence[str] | None) -> tuple[pd.DataFrame, SeriesMetadata]:
        told = {"fill_limit": self.fill_limit, "time_zone": self.time_zone, "weight_column": self.weight_column}
        return frame_series(X, columns, self.fill, covariates=parse_covariates(self.covariates, self.forecasts), **told)

    def _settings(self) -> FitSettings:
        if self.promise is None and (self.allowance or self.contexts is not None or self.per != "run"):
            raise ValueError("per, allowance and contexts need a promise.")
        promise = None if self.promise is None else PromiseSpec(self.promise, self.per, self.allowance, self.contexts)
        if self.delay and self.known_ahead:
            raise ValueError("give delay or known_ahead, not both.")
        shift = self.delay - self.known_ahead
        rest = self.steps, self.seed, self.bounds, self.weights, self.plausible, self.misses, shift
        return FitSettings(self.alpha, self.advisor, promise, *rest)  # pyright: ignore[reportArgumentType]

    def _contexts(self, X: pd.DataFrame | pd.Series) -> Contexts:
        days = self.training_days, self.validation_days
        if (days[0] is None) != (days[1] is None):
            raise ValueError("give both training_days and validation_days, or neither.")
        frame, metadata = self._read(X, self.columns)
        frame, metadata, _ = cut_whole_days(frame, metadata, self.period)
        return split_days(frame, metadata, None if None in days else Split(*days))  # pyright: ignore[reportArgumentType]


def fit_series(
    frame: pd.DataFrame | pd.Series,
    alpha: Alpha = 10.0,
    promise: float | None = None,
    per: Per = "run",
    **settings: Any,
) -> SeriesPolicy:
    """Fit a policy to a series in pandas: `SeriesPolicy(alpha, promise, per, ...).fit(frame)`.

    Args:
        frame: the series, one row per step, with a `DatetimeIndex`.
        alpha: cost of moving: alpha/2 times the squared change, next to 1/2 the squared miss. Default: 10.
        promise: bound on the cost, in units of the optimum. Default: None, no promise.
        per: period of the promise: "day", "week", "month" or "run". Default: "run".
        settings: further arguments of `SeriesPolicy`.

    Returns:
        The fitted `SeriesPolicy`.

    Raises:
        DataError: If the frame cannot be used; the message names row and column.
        ValueError: If settings contradict each other, or no algorithm can keep the promise.

    Example:
        >>> import numpy as np, pandas as pd
        >>> hours = np.arange(20 * 4)
        >>> index = pd.date_range("2024-01-01", periods=len(hours), freq="6h")
        >>> demand = pd.Series(10 + np.sin(hours * np.pi / 2), index, name="demand")
        >>> fitted = fit_series(demand, alpha=5.0, advisor="r-obd", training_days=12, validation_days=4)
        >>> fitted.step(11.0).shape
        (1,)
    """
    return SeriesPolicy(alpha, promise, per, **settings).fit(frame)


def _make_table(fitted: FittedSeries) -> pd.DataFrame:
    """Return one line per contender; the live ratio only if one has it."""
    rows = {}
    for row in fitted.comparison:
        training, validation, _ = fitted.describe_validation(row)
        rows[row.name] = {
            "training": training,
            "validation": validation,
            "average cost": row.average_cost,
            "worst day": row.competitive_ratio,
            "99 % of days": row.tail_ratio["p99"],
            "live ratio": np.nan if row.live_ratio is None else row.live_ratio,
            "mean cost": row.mean_cost,
            "highest cost": row.highest_cost,
        }
    return pd.DataFrame.from_dict(rows, orient="index").dropna(axis="columns", how="all")


def _format(figure: float) -> str:
    """Return a ratio or a cost in at most six digits or so.

    >>> _format(1.23456), _format(1234567.8)
    ('1.235', '1,234,568')
    """
    return f"{figure:.3f}" if abs(figure) < 1000 else f"{figure:,.0f}"


def _draw(contexts: pd.DataFrame, actions: pd.DataFrame, table: pd.DataFrame) -> np.ndarray:
    """Draw contexts and actions over time, and beside them average cost and worst day as bars."""
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", width_ratios=(3, 2))
    week, bars = axes
    for name in contexts.columns:
        week.plot(contexts.index, contexts[name], color="#767676", linewidth=1, label=f"{name}: context")
        week.plot(actions.index, actions[name], color="#0072B2", linewidth=1.5, label=f"{name}: action")
    week.set_title("The last week")
    week.tick_params(axis="x", rotation=30)
    if len(contexts.columns) == 1:
        week.legend(frameon=False)
    places = np.arange(len(table))
    for offset, name, colour in ((0.2, "average cost", "#0072B2"), (-0.2, "worst day", "#E69F00")):
        drawn = bars.barh(places + offset, table[name], 0.38, color=colour, label=name)
        bars.bar_label(drawn, fmt="%.2f", padding=2, fontsize=8)
    bars.set_yticks(places, table.index)
    bars.invert_yaxis()
    bars.axvline(1.0, color="black", linewidth=0.8)
    bars.margins(x=0.15)
    bars.set_title("Cost in units of the optimum")
    bars.legend(frameon=False, loc="lower right")
    return axes
