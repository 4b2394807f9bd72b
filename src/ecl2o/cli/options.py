"""Options that several commands share, and how they are parsed."""

import contextlib
import dataclasses
import importlib.util
import math
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ecl2o.cli import output
from ecl2o.json_text import parse_interval as parse_low_high

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from distributed import Client

    from ecl2o.data import Contexts, Split
    from ecl2o.fitting.read import SeriesReader


def need_serve() -> None:
    """Raise with the install command if a package of the service is missing."""
    try:
        import fastapi  # noqa: F401
        import jinja2  # noqa: F401
        import prometheus_client  # noqa: F401
        import sqlalchemy  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError(f"the service needs {error.name}; install it with: pip install 'ecl2o[serve]'") from None


PRESET = "authors-code"  # the default

Weather = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Demand response: NSRDB, TMY3, EPW or CSV weather; a built-in typical year unless given."
    ),
]
Preset = Annotated[
    Literal["authors-code", "paper"] | None,
    typer.Option(
        metavar="PRESET",
        help=f"Demand response: {PRESET} (unless given), as in the published figures, or paper, as in the text.",
    ),
]
BaseShortage = Annotated[
    str | None,
    typer.Option(metavar="WATTS|auto", help="Demand response: shortage before renewables; the preset's unless given."),
]


def watts(text: str) -> float | Literal["auto"]:
    """Parse --base-shortage."""
    if text == "auto":
        return "auto"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise typer.BadParameter(
            f"must be a positive number of watts or auto, got {text!r}.", param_hint="--base-shortage"
        )
    return value


Scheduler = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Address of a Dask scheduler to run on, such as tcp://10.0.0.5:8786."),
]
Workers = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Number of processes on this machine. (default: this one)")
]


def require_parquet() -> None:
    """Raise before the work if the table cannot be written."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ValueError("the table is a Parquet file, which needs pyarrow: pip install 'ecl2o[parquet]'.")


def set_up_jax(workers: int | None = None) -> None:
    """Set up 64 bits and the cache of compiled programs; start importing what local workers need."""
    if workers is not None and "forkserver" in multiprocessing.get_all_start_methods():
        from multiprocessing import forkserver

        forkserver.set_forkserver_preload(["distributed", "ecl2o.fleet"])
        forkserver.ensure_running()
    from ecl2o.cli.jax_setup import use_double_precision

    use_double_precision()
    from ecl2o.policy.executable_cache import use_cache_folder

    use_cache_folder()


@contextlib.contextmanager
def client(scheduler: str | None, workers: int | None) -> "Iterator[Client | None]":
    """Yield a client of the cluster, None for this process; print the address of Dask's dashboard."""
    if scheduler is not None and workers is not None:
        raise typer.BadParameter("give --scheduler or --workers, not both.", param_hint="--workers")
    from ecl2o.fleet.cluster import cluster, dashboard

    with cluster(scheduler, workers) as found:
        page = dashboard(found)
        if page is not None:
            output.messages().print(f"Dask dashboard: {page}", soft_wrap=True)
        yield found


def check_positive(value: float | None) -> float | None:
    """Raise unless the number is positive and finite."""
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"must be positive and finite, got {value:g}.")
    return value


def check_promise(ratio: float | None) -> float | None:
    """Raise unless the ratio exceeds 1 and is finite."""
    if ratio is not None and not 1 < ratio < math.inf:
        raise typer.BadParameter(f"must be greater than 1 and finite, got {ratio:g}.")
    return ratio


def _check_day_start(text: str | None) -> str | None:
    """Raise unless the text is a time of the day."""
    if text is not None:
        from ecl2o.data import parse_day_start
        from ecl2o.exceptions import DataError

        try:
            parse_day_start(text)
        except DataError as error:
            raise typer.BadParameter(str(error)) from None
    return text


PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="Policy file, written by fit or reproduce.")]
Series = Annotated[
    Path,
    typer.Argument(metavar="DATA", help="CSV or Parquet file: a time column and one or more columns of numbers."),
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="NAME", help="Column to follow; repeat for several. (default: all with numbers)"),
]
TimeColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column of the time. (default: found by its name or cells)")
]
Fill = Annotated[
    Literal["interpolate", "previous"] | None,
    typer.Option(metavar="HOW", help="Repair gaps, repeated rows and bad cells: 'interpolate' or 'previous'."),
]
DayStart = Annotated[
    str | None,
    typer.Option(
        metavar="HH:MM",
        callback=_check_day_start,
        help="Start of a day, on the file's clock. (default: midnight, or the policy's)",
    ),
]
Alpha = Annotated[
    float,
    typer.Option(
        callback=check_positive,
        help="Cost of moving: alpha/2 times the squared change, next to 1/2 the squared miss. See: ecl2o alpha",
    ),
]
UnitCost = Annotated[
    float | None,
    typer.Option(
        metavar="MONEY",
        callback=check_positive,
        help="Price of a miss of one unit for one step; costs are then in money. (A miss of two units costs four times that.)",
    ),
]
WeightColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column of the cost of a miss, such as a price: weight/2 times the squared miss. It is not followed.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="LOW:HIGH",
        help="Range that weights are limited to, and that a promise assumes. (default: that of the data, a quarter wider)",
    ),
]
Period = Annotated[
    int | None,
    typer.Option(
        min=2, help="Steps in a 'day', needed if rows are a day or more apart (7: weeks). (default: by the clock)"
    ),
]
Limits = Annotated[
    str | None,
    typer.Option(
        "--bounds",
        metavar="LOW:HIGH",
        help="Range of actions; a promise then assumes contexts in it. (default: the policy's)",
    ),
]
TrainingDays = Annotated[
    int | None, typer.Option(min=2, help="Number of training days, the first ones. (default: two thirds)")
]
ValidationDays = Annotated[
    int | None, typer.Option(min=1, help="Number of validation days, the next ones. (default: a sixth)")
]

ALPHA = "NUMBER|NAME=NUMBER,..."


def make_split(training_days: int | None, validation_days: int | None) -> "Split | None":
    """Return the split of the options, None if none was given."""
    if training_days is None and validation_days is None:
        return None
    if training_days is None or validation_days is None:
        raise typer.BadParameter("give both --training-days and --validation-days, or neither.")
    from ecl2o.data import Split

    return Split(training_days, validation_days)


def parse_alpha(text: str) -> float | dict[str, float]:
    """Parse one number for all columns, or NAME=NUMBER for each, separated by commas."""
    parts = [part.rpartition("=") for part in text.split(",")]
    names = [name.strip() for name, _, _ in parts]
    try:
        numbers = [float(number) for _, _, number in parts]
    except ValueError:
        numbers = []
    named = all(equals and name for name, (_, equals, _) in zip(names, parts, strict=True))
    if not numbers or not (named or text.strip() == parts[0][2].strip()):
        raise typer.BadParameter(
            f"must be a number, or one per column as in demand=10,price=3, got {text!r}.",
            param_hint="--alpha",
        )
    for number in numbers:
        if not 0 < number < float("inf"):
            raise typer.BadParameter(f"must be positive and finite, got {number:g}.", param_hint="--alpha")
    if len(set(names)) < len(names):
        raise typer.BadParameter(f"names a column twice: {text!r}.", param_hint="--alpha")
    return dict(zip(names, numbers, strict=True)) if named else numbers[0]


def make_reader(
    path: Path,
    columns: list[str] | None = None,
    time_column: str | None = None,
    fill: str | None = None,
    period: int | None = None,
    day_start: str | None = None,
    weight_column: str | None = None,
) -> "SeriesReader":
    """Return the reader that the options describe; it reports repairs on standard error."""
    from ecl2o.data import parse_day_start
    from ecl2o.fitting.read import SeriesReader

    def notify(message: str) -> None:
        output.messages().print(message, soft_wrap=True)

    start = None if day_start is None else parse_day_start(day_start)
    options = {"notify": notify, "day_start_minutes": start, "weight_column": weight_column}
    return SeriesReader(path, columns, time_column, fill, period, **options)


def screen_contexts(path: Path, contexts: "Contexts") -> tuple["Contexts", "np.ndarray"]:
    """Replace implausible readings of a file, report them, and return also the replaced rows."""
    from ecl2o.fitting.read import screen_values

    values, rows = screen_values(contexts.values, contexts.steps_per_day)
    report_replaced(path, contexts.time, rows)
    return dataclasses.replace(contexts, values=values), rows


def report_replaced(path: Path, time: "pd.Index", rows: "np.ndarray") -> None:
    """Print on standard error which readings of a file were replaced, if any."""
    from ecl2o.fitting.read import describe_replaced

    text = describe_replaced(time, rows)
    if text is not None:
        output.messages().print(f"{path.name}: {text}", soft_wrap=True)


def parse_weights(text: str | None, weight_column: str | None) -> tuple[float, float] | None:
    """Parse --weights, LOW:HIGH with positive ends."""
    if text is not None and weight_column is None:
        raise typer.BadParameter("needs --weight-column.", param_hint="--weights")
    ends = parse_interval(text, "--weights")
    if ends is not None and not 0 < ends[0] < ends[1] < math.inf:
        raise typer.BadParameter(f"must be positive and finite, got {text!r}.", param_hint="--weights")
    return ends


def parse_interval(text: str | None, option: str) -> tuple[float, float] | None:
    """Parse LOW:HIGH of an option; None if it was not given."""
    try:
        return None if text is None else parse_low_high(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
