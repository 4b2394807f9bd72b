"""Options that several commands share, and how they are parsed."""

import contextlib
import dataclasses
import importlib.util
import math
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ecl2o.cli import output, tables
from ecl2o.cli.jax_setup import use_cached_programs
from ecl2o.json_text import parse_interval as parse_low_high

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from distributed import Client

    from ecl2o.data import Contexts, Split
    from ecl2o.fitting.read import SeriesReader
    from ecl2o.fitting.settings import Interval

DEFAULT_PRESET = "authors-code"


def option(text: str, *names: str, default: Any = None, **settings: Any) -> Any:
    """Return an option, as the default of a command's argument; `text` is its help."""
    return typer.Option(default, *names, help=text, **settings)


def usage_error(name: str, message: str) -> typer.BadParameter:
    """Return the error of a wrong option, which ends the command with exit code 2."""
    return typer.BadParameter(message, param_hint=name)


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


def check_promises(ratios: list[float] | None) -> list[float] | None:
    """Raise unless every ratio exceeds 1 and is finite."""
    for ratio in ratios or ():
        check_promise(ratio)
    return ratios


def parse_promises(
    ratios: list[float] | None, per: list[str] | None, never_worse: str | None, baseline: str | None
) -> list[tuple[float, str, bool]]:
    """Return (ratio, period, whether it is relative to the baseline) of each promise; the baseline's is the last.

    >>> parse_promises([1.75, 2.5], ["run", "day"], "5%/week", "today")
    [(1.75, 'run', False), (2.5, 'day', False), (1.05, 'week', True)]
    """
    ratios, per = ratios or [], per or ["run"] * len(ratios or ())
    if len(per) != len(ratios):
        raise usage_error("--per", f"give one for each --promise: got {len(per)} for {len(ratios)}.")
    if (never_worse is None) != (baseline is None):
        raise usage_error("--never-worse", "it needs --baseline, and --baseline needs it.")
    found = [(ratio, each, False) for ratio, each in zip(ratios, per, strict=True)]
    if never_worse is None:
        return found
    share, _, period = never_worse.partition("/")
    try:
        percent = float(share.removesuffix("%"))
    except ValueError:
        percent = math.nan
    if not 0 < percent < math.inf:
        raise usage_error("--never-worse", f"must be a positive percentage such as 5% or 5%/week, got {never_worse!r}.")
    return [*found, (1 + percent / 100, period or "run", True)]


# A policy, and a series and its columns.
PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="Policy file, written by fit or reproduce.")]
Series = Annotated[
    Path, typer.Argument(metavar="DATA", help="CSV or Parquet file: a time column and one or more columns of numbers.")
]
Fill = Literal["interpolate", "previous"] | None
COLUMN = option("Column to follow; repeat for several. (default: the only one with numbers)", metavar="NAME")
COVARIATE = option(
    "Column that is seen and not followed, such as wind or a price; repeat for several. Missing values are imputed.",
    metavar="NAME",
)
FORECAST = option(
    "Column that forecasts the followed one so many hours ahead, in each row; f1..f48 for the columns f1 to f48, named for "
    "their hours. Repeat for several, quantiles too.",
    metavar="NAME@HOURS|FAMILY",
)
TIME_COLUMN = option(
    "Column of the time, or two joined by +, such as DATE+CLOCK. (default: found by its name or cells)", metavar="NAME"
)
FILL = option("Repair gaps, repeated rows and bad cells: 'interpolate' or 'previous'. (default: fail)", metavar="HOW")
FILL_LIMIT = option("Longest gap to fill. (default: 6 hours, or one row)", metavar="HOURS", callback=check_positive)
TIME_ZONE = option("Read times on the local clock of a zone, such as America/New_York.", metavar="ZONE")
PERIOD = option("Steps in a 'day', needed if rows are a day or more apart (7: weeks). (default: by the clock)", min=2)
DAY_START = option("Start of a day, on the file's clock. (default: midnight, or the policy's)", metavar="HH:MM")
_READING = ("time_column", "fill", "fill_limit", "time_zone", "period", "weight_column")
DAYS = option("Number of days to test on, the last ones. (default: all)", min=1)
TRAINING_DAYS = option("Number of training days, the first ones. (default: two thirds)", min=2)
VALIDATION_DAYS = option("Number of validation days, the next ones. (default: a sixth)", min=1)

# Costs, actions and training.
NUMBERS_BY_COLUMN = "NUMBER|NAME=NUMBER,..."
ALPHA = option(
    "Cost of moving: alpha/2 times the squared change, next to 1/2 the squared miss. See: ecl2o alpha",
    default=10.0,
    callback=check_positive,
)
UNIT_COST = option(
    "Price of a miss of one unit for one step; costs are then in money. (A miss of two units costs four times that.)",
    metavar="MONEY",
    callback=check_positive,
)
WEIGHT_COLUMN = option("Column of prices of a miss: weight/2 times the squared miss; not followed.", metavar="NAME")
WEIGHTS = option(
    "Range of weights, which a promise assumes. (default: that of the data, a quarter wider)", metavar="LOW:HIGH"
)
SHORT = option("Weight of being short: short/2 times the squared miss below y.", default=1.0, callback=check_positive)
LONG = option("Weight of being long: the same for actions above y.", default=1.0, callback=check_positive)
DELAY = option("Steps from a context to the step in which its action is in force.", default=0, min=0, metavar="STEPS")
KNOWN_AHEAD = option(
    "Contexts are known for certain so many steps ahead, such as a schedule: each row is sent so many steps early.",
    default=0,
    min=0,
    metavar="STEPS",
)
PLAUSIBLE = option(
    "Range of readings; others are replaced by the last plausible one. One for all followed columns, or demand=0:60,price=1:9. "
    "(default: that of the training days, widened)",
    metavar="LOW:HIGH|NAME=LOW:HIGH,...",
)
BOUNDS = option("Range of actions; a promise then assumes contexts in it. (default: the policy's)", metavar="LOW:HIGH")
RAMP = option(
    "Greatest change of an action from one step to the next; with --promise give --contexts or --bounds too.",
    callback=check_positive,
)
STEP = option("Actions are multiples of this, such as 0.5.", metavar="SPACING", callback=check_positive)
WHOLE = option("Actions are whole numbers: --step 1.", "--whole", default=False)
Per = Literal["day", "week", "month", "run"]
TRAINING_STEPS = option("Training steps.", min=1, hidden=True)

# Weather of the paper's demand-response study.
Preset = Literal["authors-code", "paper"] | None
WEATHER = option("NSRDB, TMY3, EPW or CSV weather file. (default: a built-in typical year)", metavar="FILE")
PRESET = option(
    f"How weather becomes a shortage of power: {DEFAULT_PRESET}, as in the published code, or paper, as in the text. "
    f"(default: {DEFAULT_PRESET})",
    metavar="PRESET",
)
BASE_SHORTAGE = option(
    "Shortage of power before renewables, in watts, or a percentile of the training days' renewable power, as in p99; auto is "
    "p76.5. (default: the preset's)",
    metavar="WATTS|pN|auto",
)
BASE_SHORTAGES = option(
    "As in reproduce; repeat for several. (default: the preset's)", "--base-shortage", metavar="WATTS|pN|auto"
)
QUICK = option("Train briefly, as a trial: the networks' figures mean nothing.", "--quick", default=False)

# Where many jobs run.
SCHEDULER = option("Address of a Dask scheduler to run on, such as tcp://10.0.0.5:8786.", metavar="ADDRESS")
WORKERS = option("Number of processes on this machine. (default: this one)", min=1, metavar="N")


def require_extra(extra: str, what: str, *packages: str) -> None:
    """Raise with the install command, before the work, if a package of an extra is missing."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise ValueError(f"{what} needs {missing[0]}; install it with: pip install 'ecl2o[{extra}]'.")


def set_up_jobs(workers: int | None, extra: str = "parquet") -> None:
    """Require pyarrow of an extra, set up 64 bits and the cache of programs, and start importing what local workers need."""
    require_extra(extra, "the table", "pyarrow")
    if workers is not None and "forkserver" in multiprocessing.get_all_start_methods():
        from multiprocessing import forkserver

        forkserver.set_forkserver_preload(["distributed", "ecl2o.fleet"])
        forkserver.ensure_running()
    use_cached_programs()


@contextlib.contextmanager
def client(scheduler: str | None, workers: int | None) -> "Iterator[Client | None]":
    """Yield a client of the cluster, None for this process; print the address of Dask's dashboard."""
    if scheduler is not None and workers is not None:
        raise usage_error("--workers", "give --scheduler or --workers, not both.")
    from ecl2o.fleet.cluster import cluster, dashboard

    with cluster(scheduler, workers) as found:
        page = dashboard(found)
        if page is not None:
            tables.print_message(f"Dask dashboard: {page}")
        yield found


def make_split(training_days: int | None, validation_days: int | None) -> "Split | None":
    """Return the split of the options, None if none was given."""
    if training_days is None and validation_days is None:
        return None
    if training_days is None or validation_days is None:
        raise typer.BadParameter("give both --training-days and --validation-days, or neither.")
    from ecl2o.data import Split

    return Split(training_days, validation_days)


def make_reader(path: Path, given: Mapping[str, Any]) -> "SeriesReader":
    """Return the reader that the options describe; it reports repairs on standard error.

    Args:
        path: the file.
        given: the arguments of the command by name (`locals()`), of which those on reading a file are used.
    """
    from ecl2o.data import parse_covariates, parse_day_start
    from ecl2o.fitting.read import SeriesReader

    told = {name: given[name] for name in _READING if name in given}
    try:
        start = None if given.get("day_start") is None else parse_day_start(given["day_start"])
    except ValueError as error:
        raise usage_error("--day-start", str(error)) from None
    covariate, forecast, baseline = given.get("covariate") or [], given.get("forecast"), given.get("baseline")
    try:
        covariates = parse_covariates(covariate if baseline is None else [*covariate, baseline], forecast)
        last = {} if baseline is None else {baseline: covariates.pop(baseline)}  # where steps add its action
        told["covariates"] = covariates | last
    except ValueError as error:
        raise usage_error("--forecast" if forecast else "--covariate", str(error)) from None
    return SeriesReader(path, given["column"], notify=tables.print_message, day_start_minutes=start, **told)


def describe_series(metadata: Any) -> str:
    """Return what of a file is followed, its clock and its step."""
    return output.name_options(metadata.describe())


def print_series(metadata: Any) -> None:
    """Print the line of `describe_series`."""
    tables.print_notes([describe_series(metadata)])


def screen_contexts(path: Path, contexts: "Contexts") -> tuple["Contexts", "np.ndarray"]:
    """Replace implausible readings of a file, report them, and return also the replaced rows."""
    from ecl2o.fitting.read import screen_values

    values, rows = screen_values(contexts.values, contexts.steps_per_day, len(contexts.covariates))
    report_replaced(path, contexts.time, rows)
    return dataclasses.replace(contexts, values=values), rows


def report_replaced(path: Path, time: "pd.Index", rows: "np.ndarray") -> None:
    """Print on standard error which readings of a file were replaced, if any."""
    from ecl2o.fitting.read import describe_replaced

    text = describe_replaced(time, rows)
    if text is not None:
        tables.print_message(f"{path.name}: {text}")


def parse_watts(text: str | None) -> float | str | None:
    """Parse --base-shortage; None if it was not given."""
    from ecl2o.data.shortage import parse_percentile

    if text is None or parse_percentile(text) is not None:
        return text
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise usage_error(
        "--base-shortage", f"must be a positive number of watts, a percentile such as p99, or auto, got {text!r}."
    )


def parse_numbers(text: str, name: str, kind: Callable[[str], Any] = float) -> list[Any]:
    """Parse numbers separated by commas, of an option."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise usage_error(name, f"must be numbers separated by commas, got {text!r}.") from None


def parse_alpha(text: str) -> float | dict[str, float]:
    """Parse one number for all columns, or NAME=NUMBER for each, separated by commas."""
    found = parse_by_column(text, "--alpha", float, "a number, or one per column as in demand=10,price=3")
    for number in found.values() if isinstance(found, dict) else [found]:
        if not 0 < number < math.inf:
            raise usage_error("--alpha", f"must be positive and finite, got {number:g}.")
    return found


def parse_plausible(text: str | None) -> "Interval | dict[str, Interval] | None":
    """Parse LOW:HIGH for all columns, or NAME=LOW:HIGH for each, separated by commas; None if it was not given."""
    expected = "LOW:HIGH with LOW less than HIGH, or one per column as in demand=0:60,price=1:9"
    return None if text is None else parse_by_column(text, "--plausible", parse_low_high, expected)


def parse_by_column(text: str, name: str, kind: Callable[[str], Any], expected: str) -> Any:
    """Parse one value for all columns, or NAME=VALUE for each, separated by commas, of an option."""
    parts = [part.rpartition("=") for part in text.split(",")]
    names = [column.strip() for column, _, _ in parts]
    try:
        values = [kind(value) for _, _, value in parts]
    except ValueError:
        values = []
    named = all(equals and column for column, (_, equals, _) in zip(names, parts, strict=True))
    if not values or not (named or text.strip() == parts[0][2].strip()):
        raise usage_error(name, f"must be {expected}, got {text!r}.")
    if len(set(names)) < len(names):
        raise usage_error(name, f"names a column twice: {text!r}.")
    return dict(zip(names, values, strict=True)) if named else values[0]


def parse_spacing(whole: bool, step: float | None) -> float | None:
    """Return the spacing of --whole or --step, None if neither was given."""
    if whole and step not in (None, 1.0):
        raise usage_error("--step", f"--whole is --step 1, got {step:g} too.")
    return 1.0 if whole else step


def parse_weights(text: str | None, weight_column: str | None) -> tuple[float, float] | None:
    """Parse --weights, LOW:HIGH with positive ends."""
    if text is not None and weight_column is None:
        raise usage_error("--weights", "needs --weight-column.")
    ends = parse_interval(text, "--weights")
    if ends is not None and not 0 < ends[0] < ends[1] < math.inf:
        raise usage_error("--weights", f"must be positive and finite, got {text!r}.")
    return ends


def parse_shift(delay: int, known_ahead: int) -> int:
    """Return the steps from a context to its action, of --delay and --known-ahead."""
    if delay and known_ahead:
        raise usage_error("--known-ahead", "give --delay or --known-ahead; together, their difference is what counts.")
    return delay - known_ahead


def parse_interval(text: str | None, name: str) -> tuple[float, float] | None:
    """Parse LOW:HIGH of an option; None if it was not given."""
    try:
        return None if text is None else parse_low_high(text)
    except ValueError as error:
        raise usage_error(name, str(error)) from None
