"""Options that several commands share, and how they are parsed."""

import contextlib
import copy
import dataclasses
import functools
import importlib.util
import inspect
import math
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

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
    from ecl2o.fitting.settings import Alpha, FitSettings, Interval

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


def parse_band(text: str | None, promises: list[tuple[float, str, bool]]) -> tuple[list[str], list[list[str]], float]:
    """Return the forecasts that --band names, the columns of the low and of the high ends, and the half-width.

    >>> parse_band("low1..low2,high1..high2", [(2.0, "day", False)])
    (['low1..low2', 'high1..high2'], [['low1', 'low2'], ['high1', 'high2']], 0.0)
    >>> parse_band("six@6+noon@12,0.5", [(2.0, "day", False)])
    (['six@6', 'noon@12'], [['six', 'noon'], ['six', 'noon']], 0.5)
    """
    from ecl2o.data import parse_covariates

    if text is None:
        return [], [], 0.0
    if len(promises) != 1 or promises[0][1] not in ("day", "week", "month") or promises[0][2]:
        raise usage_error("--band", "it needs one --promise, with --per day, week or month.")
    first, _, second = text.partition(",")
    try:
        half_width = float(second)
    except ValueError:
        half_width = None
    families = [end.split("+") for end in ([first] if half_width is not None else [first, second])]
    try:
        ends = [list(parse_covariates(None, family)) for family in families]
    except ValueError:
        ends = []
    if not ends or not 0 <= (half_width or 0.0) < math.inf:
        expected = "low1..low23,high1..high23, or f1..f23,HALF-WIDTH; a6@6+a12@12 joins columns"
        raise usage_error("--band", f"must be the columns of its ends, {expected}, got {text!r}.")
    return [name for family in families for name in family], ends * (2 // len(ends)), half_width or 0.0


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
PolicyFile = Annotated[Path, typer.Argument(metavar="POLICY", help="Policy file, written by fit, guard or reproduce.")]
Series = Annotated[
    Path, typer.Argument(metavar="DATA", help="CSV or Parquet file: a time column and one or more columns of numbers.")
]
Fill = Literal["interpolate", "previous"] | None
FILL = option("Repair gaps, repeated rows and bad cells: 'interpolate' or 'previous'. (default: fail)", metavar="HOW")
DAYS = option("Number of days to test on, the last ones. (default: all)", min=1)
TRAINING_DAYS = option("Number of training days, the first ones. (default: two thirds)", min=2)
VALIDATION_DAYS = option("Number of validation days, the next ones. (default: a sixth)", min=1)

# Costs, actions and training.
NUMBERS_BY_COLUMN = "NUMBER|NAME=NUMBER,..."
ALPHAS = option(
    "Cost of moving: alpha/2 times the squared change, next to 1/2 the squared miss. One number for all columns, or one per "
    "column: demand=10,price=3. See: ecl2o alpha",
    default="10",
    metavar=NUMBERS_BY_COLUMN,
    rich_help_panel="Costs and limits",
)
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
PLAUSIBLE = option(
    "Range of readings; others are replaced by the last plausible one. One for all followed columns, or demand=0:60,price=1:9. "
    "(default: that of the training days, widened)",
    metavar="LOW:HIGH|NAME=LOW:HIGH,...",
)
BOUNDS = option("Range of actions; a promise then assumes contexts in it. (default: the policy's)", metavar="LOW:HIGH")
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


@dataclasses.dataclass
class ReadingOptions:
    """How to read a series from a file."""

    TITLE: ClassVar = "Series"
    column: list[str] | None = option(
        "Column to follow; repeat for several. (default: the only one with numbers)", metavar="NAME"
    )
    weight_column: str | None = option(
        "Column of prices of a miss: weight/2 times the squared miss; not followed.", metavar="NAME"
    )
    covariate: list[str] | None = option(
        "Column that is seen and not followed, such as wind or a price; repeat for several. Missing values are imputed.",
        metavar="NAME",
    )
    forecast: list[str] | None = option(
        "Column that forecasts the followed one so many hours ahead, in each row; f1..f48 for the columns f1 to f48, named for "
        "their hours. Repeat for several, quantiles too.",
        metavar="NAME@HOURS|FAMILY",
    )
    time_column: str | None = option(
        "Column of the time, or two joined by +, such as DATE+CLOCK. (default: found by its name or cells)",
        metavar="NAME",
    )
    fill: Fill = FILL
    fill_limit: float | None = option(
        "Longest gap to fill. (default: 6 hours, or one row)", metavar="HOURS", callback=check_positive
    )
    time_zone: str | None = option("Read times on the local clock of a zone, such as America/New_York.", metavar="ZONE")
    period: int | None = option(
        "Steps in a 'day', needed if rows are a day or more apart (7: weeks). (default: by the clock)", min=2
    )
    day_start: str | None = option(
        "Start of a day, on the file's clock. (default: midnight, or the policy's)", metavar="HH:MM"
    )

    def make_reader(self, path: Path, baseline: str | None = None) -> "SeriesReader":
        """Return the reader of a file, with the column of a baseline's actions; it reports repairs on standard error."""
        from ecl2o.data import parse_covariates, parse_day_start
        from ecl2o.fitting.read import SeriesReader

        told = dict(vars(self))
        columns, covariate, forecast, day_start = map(told.pop, ("column", "covariate", "forecast", "day_start"))
        try:
            start = None if day_start is None else parse_day_start(day_start)
        except ValueError as error:
            raise usage_error("--day-start", str(error)) from None
        try:
            covariates = parse_covariates([*(covariate or ()), *([] if baseline is None else [baseline])], forecast)
        except ValueError as error:
            raise usage_error("--forecast" if forecast else "--covariate", str(error)) from None
        if baseline is not None:  # last, where steps add its action
            covariates[baseline] = covariates.pop(baseline)
        told |= {"covariates": covariates, "day_start_minutes": start}
        return SeriesReader(path, columns, notify=tables.print_message, **told)


@dataclasses.dataclass
class CostOptions:
    """What a miss costs, which actions are allowed, and when they are in force."""

    TITLE: ClassVar = "Costs and limits"
    weights: str | None = option(
        "Range of weights, which a promise assumes. (default, with data: their range, a quarter wider)",
        metavar="LOW:HIGH",
    )
    short: float = option(
        "Weight of being short: short/2 times the squared miss below y.", default=1.0, callback=check_positive
    )
    long: float = option("Weight of being long: the same for actions above y.", default=1.0, callback=check_positive)
    delay: int = option(
        "Steps from a context to the step in which its action is in force.", default=0, min=0, metavar="STEPS"
    )
    known_ahead: int = option(
        "Contexts are known for certain so many steps ahead, such as a schedule: each row is sent so many steps early.",
        default=0,
        min=0,
        metavar="STEPS",
    )
    bounds: str | None = option("Range of actions; a promise then assumes contexts in it.", metavar="LOW:HIGH")
    ramp: float | None = option(
        "Greatest change of an action from one step to the next; with --promise give --contexts or --bounds too.",
        callback=check_positive,
    )
    whole: bool = option("Actions are whole numbers: --step 1.", "--whole", default=False)
    step: float | None = option(
        "Actions are multiples of this, such as 0.5.", metavar="SPACING", callback=check_positive
    )

    def __post_init__(self):
        if self.delay and self.known_ahead:
            raise usage_error(
                "--known-ahead", "give --delay or --known-ahead; together, their difference is what counts."
            )
        if self.whole and self.step not in (None, 1.0):
            raise usage_error("--step", f"--whole is --step 1, got {self.step:g} too.")
        self.shift = self.delay - self.known_ahead  # steps from a context to its action
        self.spacing = 1.0 if self.whole else self.step
        self.misses = self.short, self.long
        self.limits = parse_interval(self.bounds, "--bounds")
        self.weight_range = parse_interval(self.weights, "--weights")
        if self.weight_range is not None and not 0 < self.weight_range[0] < self.weight_range[1] < math.inf:
            raise usage_error("--weights", f"must be positive and finite, got {self.weights!r}.")

    def make_settings(self, alpha: "Alpha", **settings: Any) -> "FitSettings":
        """Return the settings of a fit with these costs and limits."""
        from ecl2o.fitting.settings import FitSettings

        costs = {"bounds": self.limits, "weights": self.weight_range, "misses": self.misses, "shift": self.shift}
        return FitSettings(alpha, **costs, ramp=self.ramp, spacing=self.spacing, **settings)

    def check_weights(self, reading: ReadingOptions) -> None:
        """Raise if --weights is given and a series has none."""
        if self.weights is not None and reading.weight_column is None:
            raise usage_error("--weights", "needs --weight-column.")


@dataclasses.dataclass
class PromiseOptions:
    """What is guaranteed, besides what --baseline names."""

    TITLE: ClassVar = "Promises"
    promise: list[float] | None = option(
        "Guarantee a cost of at most this many times the optimum, whatever the data (for example 2). Repeat it for several "
        "promises at once, each with its --per.",
        callback=check_promises,
    )
    per: list[str] | None = option(
        "Period of the promise: the whole run, or each month of 30 days, week or day; 48h: every window of up to 48 hours. "
        "Shorter periods cost more on average and do not bound the run; longer ones do not bound single days. "
        "(default: run)",
        metavar="[day|week|month|run|HOURSh]",
    )
    never_worse: str | None = option(
        "Guarantee a cost of at most so much more than that of the --baseline: 5%, or for each week: 5%/week.",
        metavar="PERCENT[/PER]",
    )
    allowance: float = option("Cost allowed on top of --promise in each period.", default=0.0, min=0.0)
    contexts_in: str | None = option(
        "Range of all contexts, if known; a promise then costs less on average.", "--contexts", metavar="LOW:HIGH"
    )

    def __post_init__(self):
        self.contexts = parse_interval(self.contexts_in, "--contexts")
        if not self.promise and (self.allowance or self.contexts or self.per):
            raise usage_error("--promise", "--per, --allowance and --contexts need --promise.")

    def parse(self, baseline: str | None, costs: CostOptions) -> list[tuple[float, str, bool]]:
        """Return (ratio, period, whether it is relative to the baseline) of each promise; the baseline's is the last."""
        found = parse_promises(self.promise, self.per, self.never_worse, baseline)
        if found and costs.ramp is not None and all(of_baseline for _, _, of_baseline in found):
            raise usage_error("--ramp", "--never-worse does not support it alone; add --promise.")
        if found and costs.ramp is not None and costs.limits is None and self.contexts is None:
            raise usage_error(
                "--ramp", "with a promise it needs --contexts LOW:HIGH or --bounds LOW:HIGH, where contexts stay."
            )
        return found


def expand_options(*without: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a command take the fields of its dataclass arguments as options of their own, except those named here.

    The help shows the fields of each dataclass in a panel with its title.

    >>> @expand_options("known_ahead")
    ... def command(costs: CostOptions): ...
    >>> "delay" in inspect.signature(command).parameters, "known_ahead" in inspect.signature(command).parameters
    (True, False)
    """

    def expand(command: Callable[..., Any]) -> Callable[..., Any]:
        parameters: list[inspect.Parameter] = []
        kinds: dict[str, tuple[Any, dict[str, Any]]] = {}  # by argument, and the default of each field
        for parameter in inspect.signature(command).parameters.values():
            if not dataclasses.is_dataclass(parameter.annotation):
                parameters.append(parameter)
                continue
            fields: list[Any] = [*dataclasses.fields(parameter.annotation)]
            kinds[parameter.name] = parameter.annotation, {field.name: field.default.default for field in fields}
            for field in fields:
                if field.name not in without:
                    shown = copy.copy(field.default)
                    shown.rich_help_panel = vars(parameter.annotation)["TITLE"]
                    parameters.append(parameter.replace(name=field.name, annotation=field.type, default=shown))

        @functools.wraps(command)
        def run(**given: Any) -> Any:
            for name, (kind, defaults) in kinds.items():
                given[name] = kind(**{field: given.pop(field, default) for field, default in defaults.items()})
            return command(**given)

        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        vars(run)["__signature__"] = inspect.Signature(parameters)
        return run

    return expand


def check_policy_output(out: Path) -> None:
    """Raise before the work starts if --out cannot be written, or is another kind of file."""
    from ecl2o.policy.policy_file import is_ours

    output.check_writable(out, "--out")
    if out.exists() and not is_ours(out):
        raise usage_error("--out", f"{out} exists and is not a policy. Choose another name, or move it.")


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


def parse_interval(text: str | None, name: str) -> tuple[float, float] | None:
    """Parse LOW:HIGH of an option; None if it was not given."""
    try:
        return None if text is None else parse_low_high(text)
    except ValueError as error:
        raise usage_error(name, str(error)) from None
