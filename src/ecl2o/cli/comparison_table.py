"""The table of entries that `fit`, `evaluate` and `compare` print, and what stands below it."""

import math
from typing import TYPE_CHECKING, Any

from ecl2o.cli import output, tables

if TYPE_CHECKING:
    from ecl2o.evaluation.comparison import ComparisonRow
    from ecl2o.problem import Problem

Columns = dict[str, list[str]]  # by heading, a cell for each entry
_LARGE = 1e6  # ratios from here on are written with an exponent


def print_entries(
    rows: "list[ComparisonRow]",
    title: str,
    labels: dict[str, str],
    problem: "Problem",
    unit_cost: float | None = None,
    before: Columns | None = None,
    after: Columns | None = None,
) -> None:
    """Entries as a table, and what its columns are. There may be more of them before and after; with no heading, of words."""
    from rich.table import Table

    columns = (before or {}) | _figures(rows, unit_cost) | (after or {})
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for heading in columns:
        table.add_column(heading, justify="right" if heading else "left")
    left_out = [row.name for row in rows if row.not_applicable is not None]
    for place, row in enumerate(rows):
        label = row.unconverged.marked(labels.get(row.name, row.name))
        if row.name in left_out:
            own = [cells[place] for cells in (before or {}).values()]
            table.add_row(label, *own, f"n/a ({left_out.index(row.name) + 1})")
        else:
            table.add_row(label, *(cells[place] for cells in columns.values()))
    tables.print_table(table)
    _print_notes(rows, labels, problem, unit_cost, live="live ratio" in columns)


def _figures(rows: "list[ComparisonRow]", unit_cost: float | None) -> Columns:
    """What every entry is scored by; bills in one magnitude for all."""
    from ecl2o.fitting.cost_summary import CostSummary, NumberFormat

    ratios = {
        "average cost": [row.average_cost for row in rows],
        "worst day": [row.competitive_ratio for row in rows],
        "99 % of days": [row.tail_ratio.get("p99", math.nan) for row in rows],
    }
    bills = [CostSummary.of(row, unit_cost) for row in rows]
    paid = {"mean bill": [bill.mean_day for bill in bills], "dearest bill": [bill.dearest_day for bill in bills]}
    columns = {heading: [_ratio(value) for value in values] for heading, values in ratios.items()}
    magnitude = NumberFormat.of(paid["mean bill"])  # one for both, so that they can be compared
    for heading, values in paid.items():
        columns[magnitude.heading(heading)] = [magnitude.text(value) for value in values]
    return columns


def live_columns(rows: "list[ComparisonRow]") -> Columns:
    """What the policies said of themselves while they ran, where any did, and how long a step took."""
    live = ["" if row.live_ratio is None else f"{row.live_ratio:.4g}" for row in rows]
    speed = {
        "µs per step": [
            f"{row.microseconds_per_step:.1f}" if row.microseconds_per_step is not None else "" for row in rows
        ]
    }
    return ({"live ratio": live} if any(live) else {}) | speed


def _print_notes(
    rows: "list[ComparisonRow]", labels: dict[str, str], problem: "Problem", unit_cost: float | None, live: bool
) -> None:
    """What a table of entries needs to be understood."""
    from ecl2o.fitting.cost_summary import describe_cost

    console = output.results()
    left_out = [row for row in rows if row.not_applicable is not None]
    for number, row in enumerate(left_out, start=1):
        console.print(f"({number}) {row.name} does not apply: {row.not_applicable}", soft_wrap=True)
    for row in rows:
        if row.unconverged:
            console.print(row.unconverged.note(labels.get(row.name, row.name)), soft_wrap=True)
    if any(row.name == "daily-oracle" for row in rows):
        unit = "the optimum of all these days together, below which nobody can come; the daily oracle knows each day, but not "
        unit += "tomorrow, and is the paper's unit"
    else:
        unit = "the daily oracle's, which knows each day in advance, but not tomorrow (so that below 1 is possible)"
    money = "in your money" if unit_cost is not None else describe_cost(problem)
    console.print(
        f"average cost: in units of {unit}. worst day, 99 % of days: cost over the least possible cost of that day, from the "
        f"same start. bills: of a day, {money}."
        + (" live ratio: the largest that the policy itself saw at any step." if live else "")
    )


def _ratio(value: float) -> str:
    return f"{value:.3f}" if abs(value) < _LARGE else f"{value:.3g}"


def promise_line(row: "ComparisonRow") -> str | None:
    """Whether the promise was kept, in words."""
    promise = row.promise
    if promise is None or row.budget_left is None:
        return None
    told = f"promise: {promise}, at every step; "
    if row.promise_lost_at is not None:
        return (
            told
            + f"LOST from step {row.promise_lost_at + 1} on, where a context, or its weight, was not such as it counts on."
        )
    live = "" if row.live_ratio is None else f" (largest at any step: {row.live_ratio:.4f}"
    live += "" if row.live_ratio is None else f"; at least {row.budget_left:.1%} of it was left at every step)"
    return told + ("kept" if row.promise_kept else "BROKEN") + live + "."


def as_json(rows: "list[ComparisonRow]") -> dict[str, Any]:
    """Rows by name."""
    return {row.name: row.as_json() for row in rows}
