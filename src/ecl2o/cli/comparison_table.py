"""The comparison table that `fit`, `evaluate` and `compare` print, with the notes below it."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from ecl2o.cli import output, tables

if TYPE_CHECKING:
    from ecl2o.evaluation import TestDays
    from ecl2o.evaluation.comparison import ComparisonRow
    from ecl2o.policy import Contract
    from ecl2o.problem import Problem

Columns = dict[str, list[str]]  # by heading, one cell per row
_ROUNDED_AWAY = 5e-4  # a share of less is 0.0 %
_LARGE = 1e6  # larger ratios are written with an exponent


@dataclasses.dataclass(frozen=True)
class CostSummary:
    """Costs of a day: the mean, the highest, and what the promise allows in its most expensive period.

    In units of 1/2 miss^2 + alpha/2 change^2; with `unit_cost`, the price of a miss of one unit for one step, in money: a miss of
    two units then costs four times as much, and a change alpha times as much as a miss of the same size.
    """

    mean_day: float
    highest_day: float
    allowed: float | None
    unit_cost: float | None = None

    @classmethod
    def of(cls, row: "ComparisonRow", unit_cost: float | None = None) -> "CostSummary":
        """Return the costs of a row.

        >>> from ecl2o.evaluation.comparison import ComparisonRow
        >>> row = ComparisonRow("it", 1.2, 1.5, {}, 0, mean_cost=50.0, highest_cost=80.0, allowed_cost=120.0)
        >>> CostSummary.of(row, unit_cost=3.0)
        CostSummary(mean_day=300.0, highest_day=480.0, allowed=720.0, unit_cost=3.0)
        """
        factor = 1.0 if unit_cost is None else 2 * unit_cost  # a miss of 1 costs 1/2
        allowed = None if row.allowed_cost is None else factor * row.allowed_cost
        return cls(factor * row.mean_cost, factor * row.highest_cost, allowed, unit_cost)

    def describe(self, period: str, problem: "Problem") -> str:
        """Return a sentence; `period` is that of the promise.

        >>> from ecl2o.problem import Mahalanobis, Problem, SquaredTracking
        >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(10.0, dim=1))
        >>> CostSummary(mean_day=1.5e8, highest_day=3.444e8, allowed=1.45379e10).describe("run", problem)[56:]
        ' units, in millions): 150.0 on average, at most 344.4; the promise allowed 14,537.9 for the whole run.'
        """
        numbers = tables.NumberFormat.of((self.mean_day, self.highest_day))
        unit = "in your money" if self.unit_cost is not None else describe_cost(problem)
        unit += f", in {numbers.unit}" if numbers.unit else ""
        text = f"cost of a day ({unit}): {numbers.text(self.mean_day)} on average, at most {numbers.text(self.highest_day)}"
        if self.allowed is not None:
            when = "whole run" if period == "run" else f"most expensive {period}"
            text += f"; the promise allowed {numbers.text(self.allowed)} for the {when}"
        return text + "."


def describe_cost(problem: "Problem") -> str:
    """Return the formula of the cost.

    >>> from ecl2o.problem import CurvedTracking, Mahalanobis, Problem
    >>> describe_cost(Problem(CurvedTracking(0.5, 2.0), Mahalanobis.isotropic(10.0, dim=1)))
    "weight/2 miss² + alpha/2 change² in the file's units"
    """
    from ecl2o.problem import CurvedTracking, SquaredTracking

    hitting: Any = problem.hitting
    misses = {SquaredTracking: "1/2 miss²", CurvedTracking: "weight/2 miss²"}.get(type(hitting))
    if hitting.is_two_sided:
        misses = f"{float(hitting.short):g}/2 shortage² + {float(hitting.long):g}/2 excess²"
    if misses is None or not problem.switching.is_quadratic:
        return "hitting and switching cost in the problem's units"
    return f"{misses} + alpha/2 change² in the file's units"


def print_comparison(
    rows: "list[ComparisonRow]",
    title: str,
    problem: "Problem",
    unit_cost: float | None = None,
    before: Columns | None = None,
    after: Columns | None = None,
) -> None:
    """Print the rows as a table, with further columns before and after, and the meaning of its columns."""
    headings, table = make_table(rows, unit_cost, before, after)
    tables.print_rows(title, headings, table, ("", "training"), list_exceptions(rows))
    output.results().print(describe_columns(rows, problem, unit_cost, live="live ratio" in headings))


def make_table(
    rows: "list[ComparisonRow]", unit_cost: float | None, before: Columns | None = None, after: Columns | None = None
) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of cells of a comparison."""
    columns = (before or {}) | _figures(rows, unit_cost) | (after or {})
    left_out = [row.name for row in rows if row.not_applicable is not None]
    table = []
    for place, row in enumerate(rows):
        cells = [column[place] for column in columns.values()]
        if row.name in left_out:
            cells = [*cells[: len(before or {})], f"n/a ({left_out.index(row.name) + 1})"]
        table.append([row.unconverged.mark(row.name), *cells])
    return ["", *columns], table


def _figures(rows: "list[ComparisonRow]", unit_cost: float | None) -> Columns:
    names = {"average cost": "average_cost", "worst day": "competitive_ratio", "99 % of days": "p99"}
    columns = {title: [format_ratio(row.ratios.get(name, math.nan)) for row in rows] for title, name in names.items()}
    costs = [CostSummary.of(row, unit_cost) for row in rows]
    numbers = tables.NumberFormat.of(cost.mean_day for cost in costs)  # one format for both, so that they compare
    columns[numbers.heading("mean cost")] = [numbers.text(cost.mean_day) for cost in costs]
    columns[numbers.heading("highest cost")] = [numbers.text(cost.highest_day) for cost in costs]
    return columns


def live_columns(rows: "list[ComparisonRow]") -> Columns:
    """Return the columns of what was measured during the runs: live ratios and times of a step, if any."""
    live = ["" if row.live_ratio is None else f"{row.live_ratio:.4g}" for row in rows]
    times = [row.microseconds_per_step for row in rows]
    speed = {"µs per step": ["" if time is None else f"{time:.1f}" for time in times]}
    return ({"live ratio": live} if any(live) else {}) | (speed if any(times) else {})


def list_exceptions(rows: "list[ComparisonRow]") -> list[str]:
    """Return why rows have no figures, or figures without a guarantee."""
    left_out = [row for row in rows if row.not_applicable is not None]
    notes = [f"({n}) {row.name} does not apply: {row.not_applicable}" for n, row in enumerate(left_out, start=1)]
    if any(None in row.ratios.values() for row in rows):
        notes.append("optimum is 0: the best possible cost is zero, so there is no ratio to it. Compare the costs.")
    return notes + [row.unconverged.note(row.name) for row in rows if row.unconverged]


def _is_relative_to_run(rows: "list[ComparisonRow]") -> bool:
    """Return whether average costs are relative to the optimum of all days together."""
    return any(row.name == "daily-oracle" for row in rows)


def describe_columns(
    rows: "list[ComparisonRow]", problem: "Problem", unit_cost: float | None = None, live: bool = False
) -> str:
    """Return what the columns of a comparison mean."""
    unit = "1 is the daily oracle, which knows each day in advance, but not the next day; less than 1 is possible"
    if _is_relative_to_run(rows):
        unit = "1 is the optimum of all these days together. The daily oracle knows each day in advance, but not the next day"
    money = "in your money" if unit_cost is not None else describe_cost(problem)
    return (
        f"average cost: {unit}. worst day, 99 % of days: cost of a day over that day's own optimum, from the same start. mean "
        f"and highest cost: of a day, {money}."
        + (" live ratio: the largest that the policy saw at any step." if live else "")
    )


def format_ratio(value: float | None) -> str:
    """Return a ratio to the optimum; None if the optimum is zero."""
    if value is None:
        return "optimum is 0"
    return f"{value:.3f}" if abs(value) < _LARGE else f"{value:.3g}"


def describe_not_scored(test_days: "TestDays") -> list[str]:
    """Return a line on the days that are not scored; none if all are."""
    if not test_days.not_scored:
        return []
    return [f"{test_days.not_scored} of these {len(test_days.scored)} days have an imputed row: not scored."]


def describe_worst_day(row: "ComparisonRow", starts: str) -> str:
    """Return a sentence on the worst day of a row, which starts at this time."""
    if row.days_are_free:
        return "worst day: none, the optimum of every day is zero."
    if row.ratios["competitive_ratio"] is None:
        return f"worst day: starts at {starts}, where the optimum is zero and the policy is not."
    return f"worst day: starts at {starts}, cost {row.competitive_ratio:.3f} times its optimum."


def describe_limits(contract: "Contract", where: str = "") -> str | None:
    """Say which ramp and spacing actions obey, in these rows; None if there is neither."""
    from ecl2o.policy.advice import describe_spacing

    found = []
    if contract.spacing is not None:
        found.append(f"are {describe_spacing(contract.spacing)}")
    if contract.ramp is not None:
        limits = ", ".join(f"{limit:g}" for limit in sorted(set(contract.ramp)))
        found.append(f"change by at most {limits} a step")
    return f"actions{where} {' and '.join(found)}." if found else None


def describe_promise(row: "ComparisonRow", rows: "list[ComparisonRow]") -> str | None:
    """Return whether a row's promise was kept, and what one for a period does not bound; None without a promise."""
    if row.promise is None or row.budget_left is None:
        return None
    text = f"promise: {row.promise}{'' if row.promise.at_end else ', at every step'}; "
    if row.promise_lost_at is not None:
        return text + f"LOST from step {row.promise_lost_at + 1} on: a context or its weight left the assumed range."
    text += "kept" if row.promise_kept else "BROKEN"
    if row.live_ratio is not None:
        spent = "at some step all" if row.budget_left < _ROUNDED_AWAY else f"at most {1 - row.budget_left:.1%}"
        text += f" (largest ratio at any step: {row.live_ratio:.4f}; {spent} of the allowed cost was spent)"
    if row.promise.period is None:
        return text + "."
    text += ". It bounds each period by itself, from where the period starts, and not the run"
    return text + (f", which cost {row.average_cost:.3f} times its optimum." if _is_relative_to_run(rows) else ".")
