"""What the commands that read a series share: their options, and the table of entries."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from ecl2o.data import Split
    from ecl2o.evaluation.comparison import ScoredEntry
    from ecl2o.recipes.reading import Reading


def positive(value: float | None) -> float | None:
    """Refuse what is no positive number."""
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"must be positive and finite, got {value:g}.")
    return value


def _minutes(text: str | None) -> str | None:
    """Refuse what is no time of the day; it is read again when it is needed, because reading it needs the library."""
    if text is not None:
        from ecl2o.data import DataError, minutes_of

        try:
            minutes_of(text)
        except DataError as error:
            raise typer.BadParameter(str(error)) from None
    return text


PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="A policy file, written by fit or reproduce.")]
Series = Annotated[
    Path,
    typer.Argument(metavar="DATA", help="A CSV or Parquet file: a time column and one or more columns of numbers."),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column", metavar="NAME", help="A column to use; may be given several times. (default: all numbers)"
    ),
]
TimeColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="The column with the time. (default: found by its name or cells)")
]
Fill = Annotated[
    Literal["interpolate", "previous"] | None,
    typer.Option(metavar="HOW", help="Repair gaps, repeated rows and bad cells: 'interpolate' or 'previous'."),
]
DayStart = Annotated[
    str | None,
    typer.Option(
        metavar="HH:MM",
        callback=_minutes,
        help="When a day begins, on the file's clock. (default: midnight, or when the policy's days do)",
    ),
]
Alpha = Annotated[
    float,
    typer.Option(
        callback=positive,
        help="What moving costs: alpha/2 times the squared change, beside 1/2 the squared miss. See: ecl2o alpha",
    ),
]
UnitCost = Annotated[
    float | None,
    typer.Option(
        metavar="MONEY",
        callback=positive,
        help="What a miss of one unit for one step costs you; bills are then in money. (A miss of two costs four times that.)",
    ),
]
Period = Annotated[
    int | None,
    typer.Option(
        min=2, help="Steps in a 'day', needed where rows are a day or more apart (7: weeks). (default: a day's)"
    ),
]
Limits = Annotated[
    str | None,
    typer.Option(
        "--bounds",
        metavar="LOW:HIGH",
        help="Keep actions there, and a promise counts on contexts there. (default: the policy's)",
    ),
]
TrainingDays = Annotated[
    int | None, typer.Option(min=2, help="Days to train on, the first ones. (default: two thirds)")
]
ValidationDays = Annotated[
    int | None, typer.Option(min=1, help="Days to choose settings on, the next ones. (default: a sixth)")
]

ALPHA = "NUMBER|NAME=NUMBER,..."

_LARGE = 1e6  # figures from here on are written with an exponent


def split_of(training_days: int | None, validation_days: int | None) -> "Split | None":
    """The split that was asked for, None where none was."""
    if training_days is None and validation_days is None:
        return None
    if training_days is None or validation_days is None:
        raise typer.BadParameter("--training-days and --validation-days go together: give both or neither.")
    from ecl2o.data import Split

    return Split(training_days, validation_days)


def alpha_of(text: str) -> float | dict[str, float]:
    """One number for all columns, or NAME=NUMBER for each, with commas."""
    parts = [part.rpartition("=") for part in text.split(",")]
    names = [name.strip() for name, _, _ in parts]
    try:
        numbers = [float(number) for _, _, number in parts]
    except ValueError:
        numbers = []
    named = all(equals and name for name, (_, equals, _) in zip(names, parts, strict=True))
    if not numbers or not (named or text.strip() == parts[0][2].strip()):
        raise typer.BadParameter(
            f"a number, or one for each column as in demand=10,price=3, is expected, got {text!r}.",
            param_hint="--alpha",
        )
    for number in numbers:
        if not 0 < number < float("inf"):
            raise typer.BadParameter(f"must be positive and finite, got {number:g}.", param_hint="--alpha")
    if len(set(names)) < len(names):
        raise typer.BadParameter(f"a column is named twice in {text!r}.", param_hint="--alpha")
    return dict(zip(names, numbers, strict=True)) if named else numbers[0]


def reading(
    path: Path,
    columns: list[str] | None = None,
    time_column: str | None = None,
    fill: str | None = None,
    period: int | None = None,
    day_start: str | None = None,
) -> "Reading":
    """How the options above say that a series is read; what was repaired is told on standard error."""
    from ecl2o.cli import output
    from ecl2o.data import minutes_of
    from ecl2o.recipes.reading import Reading

    def tell(words: str) -> None:
        output.messages().print(words, soft_wrap=True)

    minutes = None if day_start is None else minutes_of(day_start)
    return Reading(path, columns, time_column, fill, period, tell=tell, day_start_minutes=minutes)


def print_rows(rows: "list[ScoredEntry]", title: str, labels: dict[str, str], unit_cost: float | None = None) -> None:
    """The comparison as a table, and what its columns are."""
    from rich.table import Table

    from ecl2o.cli import output

    table = Table(title=title, title_justify="left")
    table.add_column("")
    live = any(row.live_ratio is not None for row in rows)
    for name in (*FIGURES, *(("live ratio",) if live else ()), "µs per step"):
        table.add_column(name, justify="right")
    left_out = [row for row in rows if row.not_applicable is not None]
    for row in rows:
        label = labels.get(row.name, row.name)
        if row.not_applicable is not None:
            table.add_row(label, f"n/a ({left_out.index(row) + 1})")
            continue
        own = ([f"{row.live_ratio:.4g}" if row.live_ratio is not None else ""]) if live else []
        speed = f"{row.microseconds_per_step:.1f}"
        table.add_row(row.unconverged.marked(label), *figures_of(row, unit_cost), *own, speed)
    output.results().print(table)
    print_notes(rows, labels, unit_cost)


FIGURES = ("average cost", "worst day", "99 % of days", "mean bill", "dearest bill")


def figures_of(row: "ScoredEntry", unit_cost: float | None = None) -> list[str]:
    """The cells under `FIGURES`."""
    from ecl2o.recipes.bills import Bills

    bills = Bills.of(row, unit_cost)
    ratios = [row.average_cost, row.competitive_ratio, row.tail_ratio["p99"]]
    return [*map(_figure, ratios), f"{bills.mean_day:.4g}", f"{bills.dearest_day:.4g}"]


def print_notes(rows: "list[ScoredEntry]", labels: dict[str, str], unit_cost: float | None = None) -> None:
    """What a table of entries needs to be understood."""
    from ecl2o.cli import output

    console = output.results()
    left_out = [row for row in rows if row.not_applicable is not None]
    for number, row in enumerate(left_out, start=1):
        console.print(f"({number}) {row.name} does not apply: {row.not_applicable}", soft_wrap=True, markup=False)
    for row in rows:
        if row.unconverged:
            console.print(row.unconverged.note(labels.get(row.name, row.name)), soft_wrap=True)
    if any(row.name == "daily-oracle" for row in rows):
        unit = "the optimum of all these days together, below which nobody can come; the daily oracle knows each day, but not "
        unit += "tomorrow, and is the paper's unit"
    else:
        unit = "the daily oracle's, which knows each day in advance, but not tomorrow (so that below 1 is possible)"
    money = "in your money" if unit_cost is not None else "1/2 miss² + alpha/2 change² in the file's units"
    live = any(row.live_ratio is not None for row in rows)
    console.print(
        f"average cost: in units of {unit}. worst day, 99 % of days: cost over the least possible cost of that day, from the "
        f"same start. bills: of a day, {money}."
        + (" live ratio: the largest that the policy itself saw at any step." if live else "")
    )


def _figure(value: float) -> str:
    return f"{value:.3f}" if abs(value) < _LARGE else f"{value:.3g}"


def promise_line(row: "ScoredEntry") -> str | None:
    """Whether the promise was kept, in words."""
    promise = row.promise
    if promise is None or row.left is None:
        return None
    period = f"each {promise.period} steps" if promise.period else "the whole run"
    extra = f" plus {float(promise.allowance):g}" if float(promise.allowance) else ""
    told = f"promise: at most {float(promise.ratio):g} times {promise.reference}{extra}, over {period}, at every step of it; "
    if row.lost_at is not None:
        return told + f"LOST from step {row.lost_at + 1} on, where a context was not such as it counts on."
    live = "" if row.live_ratio is None else f" (largest at any step: {row.live_ratio:.4f}"
    live += "" if row.live_ratio is None else f"; at least {row.left:.1%} of it was left at every step)"
    return told + ("kept" if row.promise_kept else "BROKEN") + live + "."


def as_json(rows: "list[ScoredEntry]") -> dict[str, Any]:
    """Rows by name."""
    return {row.name: row.as_json() for row in rows}


def interval_of(text: str, option: str = "--contexts") -> tuple[float, float]:
    """LOW:HIGH as two numbers."""
    low, _, high = text.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        raise typer.BadParameter(f"LOW:HIGH is expected, for example 0:1.5, got {text!r}.", param_hint=option) from None
    if not ends[0] < ends[1]:
        raise typer.BadParameter(f"LOW must be less than HIGH, got {text!r}.", param_hint=option)
    return ends
