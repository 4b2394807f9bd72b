"""Compare agents on the same days: one row each, with its costs, its worst days and its promise."""

import dataclasses
import timeit
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from ecl2o.agents import AbstractAgent, Promise, Reference
from ecl2o.evaluation import metrics
from ecl2o.evaluation.daily import DailyScore, TestDays, score_runs, solve_days
from ecl2o.evaluation.metrics import UnconvergedCounts
from ecl2o.exceptions import NotApplicableError
from ecl2o.forecasters import AbstractForecaster
from ecl2o.offline import oracle_batch, oracle_days
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import strip_weak_types
from ecl2o.running import rollout_days, stream_days

_LEVELS = tuple(f"p{level:g}" for level in metrics.TAIL_PERCENTILES)
_ROUNDING = 1e-9  # relative tolerance of a kept promise


class Contender(eqx.Module):
    """An agent in a comparison, with its forecaster and the way it goes through the days.

    Args:
        agent: The agent to score.
        forecaster: For agents with a lookahead. Default: `forecasters.Exact()`.
        run: `rollout_days` restarts the agent every day on the rolling history; `stream_days` lets it run on, as in
            production. Default: `rollout_days`.
        history_steps: Number of contexts before the days that the agent starts from. Default: all that are known.
    """

    agent: AbstractAgent = eqx.field(converter=strip_weak_types)
    forecaster: AbstractForecaster | None = eqx.field(converter=strip_weak_types, default=None)
    run: Callable = eqx.field(static=True, default=rollout_days)
    history_steps: int | None = eqx.field(static=True, default=None)


def make_contender(
    agent: AbstractAgent,
    problem: Problem,
    forecaster: AbstractForecaster | None = None,
    history_steps: int | None = None,
) -> Contender:
    """Return a contender that streams, or restarts every day if its promise covers a single period only."""
    promise = agent.promise(problem)
    for_one_day = promise is not None and promise.period is not None and not agent.renews_promise
    return Contender(agent, forecaster, rollout_days if for_one_day else stream_days, history_steps)


class ComparisonRow(eqx.Module):
    """The score of a contender: one row of a table.

    Args:
        name: Key in tables and JSON.
        average_cost: Mean daily cost over that of the unit, the optimum of all days or the daily oracle.
        competitive_ratio: Ratio of the worst day to its optimum from the same x_0.
        tail_ratio: Percentiles of the daily ratio by name ("p99").
        worst_day: Its number, from 0.
        microseconds_per_step: Of a second run. Default: None, not measured.
        forecaster: Class of the forecaster in use. Default: None.
        promise: Default: None, the agent promises nothing.
        live_ratio: Largest ratio that the agent reported of itself at any step. Default: None, it reports none.
        budget_left: Smallest remaining budget of the promise, as a share of what may be spent. Default: None.
        promise_lost_at: First step, from 0, at which the promise no longer held because a context left the range that
            it assumes. Default: None, it held throughout.
        mean_cost: Mean cost of a day, in units of cost.
        highest_cost: Cost of the most expensive day, in units of cost.
        allowed_cost: What the promise allows in the most expensive of its periods, in units of cost. Default: unknown.
        unconverged: Steps of the agent or its oracle that did not converge; the figures are invalid if there are any.
        unit_is_zero: Whether the unit of the average cost is zero, so that there is no ratio. Default: False.
        days_are_free: Whether the optimum of every day is zero. Default: False.
        not_applicable: Why the agent does not apply to the problem; its figures are NaN then. Default: it applies.
    """

    name: str
    average_cost: float
    competitive_ratio: float
    tail_ratio: dict[str, float]
    worst_day: int
    microseconds_per_step: float | None = None
    forecaster: str | None = None
    promise: Promise | None = None
    live_ratio: float | None = None
    budget_left: float | None = None
    promise_lost_at: int | None = None
    mean_cost: float = float("nan")
    highest_cost: float = float("nan")
    allowed_cost: float | None = None
    unconverged: UnconvergedCounts = UnconvergedCounts()
    unit_is_zero: bool = False
    days_are_free: bool = False
    not_applicable: str | None = None

    @property
    def promise_kept(self) -> bool | None:
        """Whether the promise held at every step; None without a promise."""
        if self.promise is None or self.budget_left is None:
            return None
        return self.promise_lost_at is None and self.budget_left >= -_ROUNDING

    @property
    def ratios(self) -> dict[str, float | None]:
        """Average cost, worst day and percentiles by name; None where the optimum is zero."""
        daily = {"competitive_ratio": self.competitive_ratio, **self.tail_ratio}
        found = {name: None if self.days_are_free or ratio == np.inf else ratio for name, ratio in daily.items()}
        return {"average_cost": None if self.unit_is_zero else self.average_cost, **found}

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers and strings; None for every figure of an agent that does not apply."""
        ratios = self.ratios
        figures = {
            "average_cost": ratios["average_cost"],
            "competitive_ratio": ratios["competitive_ratio"],
            "tail_ratio": {level: ratios[level] for level in self.tail_ratio},
            "no_ratio": metrics.NO_RATIO if None in ratios.values() else None,
            "worst_day": self.worst_day,
            "microseconds_per_step": self.microseconds_per_step,
            "forecaster": self.forecaster,
            "promise": None if self.promise is None else self.promise.to_json(),
            "live_ratio": self.live_ratio,
            "promise_kept": self.promise_kept,
            "promise_left": self.budget_left,
            "mean_cost": self.mean_cost,
            "highest_cost": self.highest_cost,
            "promise_allowed_cost": self.allowed_cost,
            "promise_lost_at_step": None if self.promise_lost_at is None else self.promise_lost_at + 1,
            "unconverged": self.unconverged.as_json(),
        }
        header = {"name": self.name, "not_applicable": self.not_applicable}
        return header | (figures if self.not_applicable is None else dict.fromkeys(figures))


def compare(
    contenders: Mapping[str, Contender | NotApplicableError],
    test_days: TestDays,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    timed: bool = False,
) -> list[ComparisonRow]:
    """Score contenders on the same days, each run once.

    Args:
        contenders: By name. One that does not apply to the problem, or an error given instead of one, becomes a row
            with the reason.
        test_days: The days, with the unit of cost.
        progress: Called with (contenders done, contenders in all).
        timed: Also measure the time per step, in one more run of each contender. Default: False.

    Returns:
        The oracle's rows, then one row per contender in their order. The unit is "oracle": the optimum of the whole
        span, followed by "daily-oracle", or the daily oracle alone.

    >>> import jax.numpy as jnp
    >>> from ecl2o.agents import ROBD
    >>> from ecl2o.problem import Mahalanobis, Problem, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> test_days = TestDays.of(problem, jnp.zeros(1), jnp.sin(jnp.arange(12.0)).reshape(3, 4, 1))
    >>> [row.name for row in compare({"r-obd": Contender(ROBD())}, test_days)]
    ['oracle', 'r-obd']
    """
    progress(0, len(contenders))
    rows = make_oracle_rows(test_days, timed=timed)
    for done, (name, contender) in enumerate(contenders.items(), start=1):
        try:
            if isinstance(contender, NotApplicableError):
                raise contender
            rows.append(evaluate_contender(name, contender, test_days, timed=timed))
        except NotApplicableError as reason:
            nan = float("nan")
            rows.append(ComparisonRow(name, nan, nan, dict.fromkeys(_LEVELS, nan), 0, not_applicable=str(reason)))
        progress(done, len(contenders))
    return rows


def evaluate_contender(name: str, contender: Contender, test_days: TestDays, *, timed: bool = False) -> ComparisonRow:
    """Run a contender through the days and return its row."""
    row = make_row(name, contender, test_days, score_contender(contender, test_days))
    return _with_time(row, lambda: _run(contender, test_days), test_days) if timed else row


def score_contender(contender: Contender, test_days: TestDays) -> DailyScore:
    """Run a contender through the days and score each of them."""
    return score_runs(*_run(contender, test_days), test_days)


def _run(contender: Contender, test_days: TestDays) -> tuple[Trajectory, Float[Array, "n d"]]:
    forecaster = contender.forecaster if contender.agent.lookahead else None
    if contender.history_steps is not None:
        test_days = test_days.with_history(contender.history_steps)
    known = test_days.problem, test_days.x0, test_days.days, test_days.history
    return contender.run(contender.agent, *known, forecaster)


def make_row(name: str, contender: Contender, test_days: TestDays, score: DailyScore) -> ComparisonRow:
    """Return the row of a contender whose score is known."""
    agent, forecaster = contender.agent, None
    if agent.lookahead:
        forecaster = "Exact" if contender.forecaster is None else type(contender.forecaster).__name__
    promise = agent.promise(test_days.problem)
    to_optimum = promise is not None and promise.reference is Reference.OPTIMUM
    return ComparisonRow(
        **_figures(name, score),
        forecaster=forecaster,
        promise=promise,
        live_ratio=worst_live_ratio(score) if to_optimum else None,
        budget_left=_least_budget_left(score),
        promise_lost_at=_promise_lost_at(score),
        allowed_cost=None if promise is None else _allowed_cost(promise, score, test_days),
    )


def make_oracle_rows(test_days: TestDays, *, timed: bool = False) -> list[ComparisonRow]:
    """Return the row of the unit of cost, and that of the daily oracle if the unit is the optimum of the whole span."""
    problem, x0, days = test_days.problem, test_days.x0, test_days.days
    best = test_days.whole_span_optimum
    exact = {"competitive_ratio": 1.0, "tail_ratio": dict.fromkeys(_LEVELS, 1.0), "worst_day": 0}  # without rounding
    solve = oracle_days if best is None else solve_days  # the latter solves for both optima, and is timed for both
    runs = solve(problem, x0, days)[0]
    score = score_runs(runs, test_days.starts_of(runs), test_days)
    daily = ComparisonRow(**_figures("oracle" if best is None else "daily-oracle", score) | exact)
    if timed:
        daily = _with_time(daily, lambda: solve(problem, x0, days), test_days)
    if best is None:
        return [daily]
    row = ComparisonRow(**_figures("oracle", score_runs(best, test_days.starts_of(best), test_days)))
    return [dataclasses.replace(row, microseconds_per_step=daily.microseconds_per_step), daily]


def _figures(name: str, score: DailyScore) -> dict[str, Any]:
    """Return the figures that every row has."""
    return {
        "name": name,
        "average_cost": score.average_cost,
        "competitive_ratio": score.competitive_ratio,
        "tail_ratio": score.tail_ratio,
        "worst_day": score.worst_day,
        "unit_is_zero": score.unit_is_zero,
        "days_are_free": score.optimum is not None and bool(np.all(score.optimum <= 0)),
        "mean_cost": float(np.mean(score.cost)),
        "highest_cost": float(np.max(score.cost)),
        "unconverged": score.unconverged,
    }


def _allowed_cost(promise: Promise, score: DailyScore, test_days: TestDays) -> float | None:
    """Return ratio times the optimum of the most expensive period, from the run's own x_0; None for other references.

    All days are one period if the promise covers the run, or if they are fewer than its period.
    """
    if promise.reference is not Reference.OPTIMUM:
        return None
    n, T, q = test_days.days.shape
    days = n if promise.period is None else min(max(promise.period // T, 1), n)
    if days == n and test_days.whole_span_optimum is not None:
        whole = 0.0 if score.unit_is_zero else float(np.sum(np.asarray(test_days.whole_span_optimum.cost)))
        return promise.bound(whole, n * T)
    if days == 1 and score.optimum is not None:
        best = score.optimum
    else:
        periods = n // days
        contexts = np.asarray(test_days.days)[: periods * days].reshape(periods, days * T, q)
        best = oracle_batch(test_days.problem, Instance(score.x0[: periods * days : days], contexts)).cost
    return promise.bound(float(np.max(best)), days * T)


def worst_live_ratio(score: DailyScore) -> float:
    """Return the largest ratio to its reference so far that the guard reported of its first promise."""
    return float(np.max(np.asarray(score.runs.details["ratio"])[..., 0]))


def _least_budget_left(score: DailyScore) -> float | None:
    """Return the least budget that a promise left at any step, as a share of the whole; None without a promise."""
    details = score.runs.details
    if "left" not in details:
        return None
    left, cost = (np.asarray(details[name])[..., 0] for name in ("left", "cost"))
    allowed = left + cost
    return float(np.min(np.divide(left, allowed, out=np.where(left < 0, -np.inf, 0.0), where=allowed > 0)))


def _promise_lost_at(score: DailyScore) -> int | None:
    details = score.runs.details
    lost = ~np.ravel(np.all(details["kept"], axis=-1)) if "kept" in details else np.zeros(1, bool)
    return int(np.argmax(lost)) if lost.any() else None


def _with_time(row: ComparisonRow, run: Callable[[], Any], test_days: TestDays) -> ComparisonRow:
    """Add the time per step of one more run: the run that was scored may have compiled."""
    seconds = timeit.timeit(lambda: jax.block_until_ready(run()), number=1)
    n, T, _ = test_days.days.shape
    return dataclasses.replace(row, microseconds_per_step=1e6 * seconds / (n * T))
