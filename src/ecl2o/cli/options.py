"""Commands that need more than the library is installed with.

The options of the commands that read weather.

What the commands that can run on a cluster share: their options, and who does the work.

What the commands that read a series share: their options.
"""

import contextlib
import importlib.util
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ecl2o.cli import output

if TYPE_CHECKING:
    from distributed import Client
import dataclasses
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from ecl2o.data import Contexts, Split
    from ecl2o.fitting.read import SeriesReader


def need_serve() -> None:
    """Say how to install what the service needs, if it is not there."""
    try:
        import fastapi  # noqa: F401
        import jinja2  # noqa: F401
        import prometheus_client  # noqa: F401
        import sqlalchemy  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError(f"the service needs {error.name}; install it with: pip install 'ecl2o[serve]'") from None


PRESET = "authors-code"  # unless given

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
    """The value of --base-shortage."""
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
    typer.Option(metavar="ADDRESS", help="Run on the Dask cluster of this scheduler, as in tcp://10.0.0.5:8786."),
]
Workers = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Run in so many processes of this machine. (default: this one)")
]


def require_parquet() -> None:
    """Before the work, not after it."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ValueError("the table is a Parquet file, which needs pyarrow: pip install 'ecl2o[parquet]'.")


def set_up_jax(workers: int | None = None) -> None:
    """64 bits, and compiled programs that are kept from run to run.

    Workers of this machine are forked from a process that imports what they need while this one does.
    """
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
    """Who does the work, None for this process; Dask's page is told on standard error."""
    if scheduler is not None and workers is not None:
        raise typer.BadParameter("--scheduler and --workers do not go together.", param_hint="--workers")
    from ecl2o.fleet.cluster import cluster, dashboard

    with cluster(scheduler, workers) as found:
        page = dashboard(found)
        if page is not None:
            output.messages().print(f"Dask's page: {page}", soft_wrap=True)
        yield found


def positive(value: float | None) -> float | None:
    """Refuse what is no positive number."""
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"must be positive and finite, got {value:g}.")
    return value


def promised(ratio: float | None) -> float | None:
    """Refuse what nobody could promise, whatever the costs are."""
    if ratio is not None and not 1 < ratio < math.inf:
        raise typer.BadParameter(f"must be finite and exceed 1, got {ratio:g}.")
    return ratio


def _minutes(text: str | None) -> str | None:
    """Refuse what is no time of the day; it is read again when it is needed, because reading it needs the library."""
    if text is not None:
        from ecl2o.data import parse_day_start
        from ecl2o.exceptions import DataError

        try:
            parse_day_start(text)
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
WeightColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="A column that is not followed, but says what a miss costs, such as a price: weight/2 times the squared miss.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="LOW:HIGH",
        help="Weights are billed between these ends, and a promise counts on it. (default: what was seen, a quarter wider)",
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


def make_split(training_days: int | None, validation_days: int | None) -> "Split | None":
    """The split that was asked for, None where none was."""
    if training_days is None and validation_days is None:
        return None
    if training_days is None or validation_days is None:
        raise typer.BadParameter("--training-days and --validation-days go together: give both or neither.")
    from ecl2o.data import Split

    return Split(training_days, validation_days)


def parse_alpha(text: str) -> float | dict[str, float]:
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


def make_reader(
    path: Path,
    columns: list[str] | None = None,
    time_column: str | None = None,
    fill: str | None = None,
    period: int | None = None,
    day_start: str | None = None,
    weight_column: str | None = None,
) -> "SeriesReader":
    """How the options above say that a series is read; what was repaired is told on standard error."""
    from ecl2o.cli import output
    from ecl2o.data import parse_day_start
    from ecl2o.fitting.read import SeriesReader

    def tell(words: str) -> None:
        output.messages().print(words, soft_wrap=True)

    minutes = None if day_start is None else parse_day_start(day_start)
    return SeriesReader(
        path, columns, time_column, fill, period, tell=tell, day_start_minutes=minutes, weight_column=weight_column
    )


def screen_contexts(path: Path, contexts: "Contexts") -> tuple["Contexts", "np.ndarray"]:
    """The contexts that the bulk of the file makes plausible, and the rows that were replaced, of which people are told."""
    from ecl2o.fitting.screen import screen_values

    values, rows = screen_values(contexts.values, contexts.steps_per_day)
    report_replaced(path, contexts.time, rows)
    return dataclasses.replace(contexts, values=values), rows


def report_replaced(path: Path, time: "pd.Index", rows: "np.ndarray") -> None:
    """Say on standard error which readings of a file were not believed, where there are any."""
    from ecl2o.cli import output
    from ecl2o.fitting.screen import in_words

    said = in_words(time, rows)
    if said is not None:
        output.messages().print(f"{path.name}: {said} All figures are of the contexts that were used.", soft_wrap=True)


def parse_weights(text: str | None, weight_column: str | None) -> tuple[float, float] | None:
    """LOW:HIGH of weights, which must be positive."""
    if text is None:
        return None
    if weight_column is None:
        raise typer.BadParameter("goes with --weight-column.", param_hint="--weights")
    low, high = parse_interval(text, "--weights")
    if not 0 < low < high < math.inf:
        raise typer.BadParameter(f"must be positive and finite, got {text!r}.", param_hint="--weights")
    return low, high


def parse_interval(text: str, option: str = "--contexts") -> tuple[float, float]:
    """LOW:HIGH as two numbers."""
    low, _, high = text.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        raise typer.BadParameter(f"LOW:HIGH is expected, for example 0:1.5, got {text!r}.", param_hint=option) from None
    if not ends[0] < ends[1]:
        raise typer.BadParameter(f"LOW must be less than HIGH, got {text!r}.", param_hint=option)
    return ends
