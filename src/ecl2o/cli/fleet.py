"""`ecl2o fleet`: fit or evaluate many sites at once, here or on a Dask cluster."""

import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from ecl2o.cli import options, output, tables

if TYPE_CHECKING:
    from ecl2o.fitting.settings import FitSettings, Progress

Site = TypeVar("Site")
Sites = Annotated[
    str,
    typer.Argument(
        metavar="SITES",
        help="Folder of series, glob in quotes, or manifest: a CSV file with the columns name and file.",
    ),
]
Memory = Annotated[float, typer.Option(min=1.0, max=1e6, metavar="GB", help="Memory that one process may use.")]
_WORST = 10  # sites in the printed table

app = typer.Typer(help="Fit or evaluate many sites at once, here or on a Dask cluster.", no_args_is_help=True)


def fit(
    sites: Sites,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for policies, table and report.")] = Path("fleet"),
    alpha: Annotated[
        float, typer.Option(callback=options.check_positive, help="Cost of moving, unless the manifest states it.")
    ] = 10.0,
    promise: Annotated[
        float | None,
        typer.Option(
            callback=options.check_promise,
            help="Guarantee a cost of at most this many times the optimum, unless stated.",
        ),
    ] = None,
    per: Annotated[
        Literal["day", "week", "month", "run"], typer.Option(help="Period of the promise, unless stated.")
    ] = "run",
    advisor: Annotated[
        Literal["auto", "ridge", "seasonal", "mlp", "lstm"],
        typer.Option(help="Advisor; all but the regression are trained one site after the other."),
    ] = "ridge",
    column: options.Columns = None,
    time_column: options.TimeColumn = None,
    fill: options.Fill = None,
    period: options.Period = None,
    training_days: options.TrainingDays = None,
    validation_days: options.ValidationDays = None,
    memory: Memory = 4.0,
    scheduler: options.Scheduler = None,
    workers: options.Workers = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps.", hidden=True)] = None,
    json: output.Json = False,
    seed: output.Seed = 0,
) -> None:
    """Fit a policy for every site. A failed site gets a row with the reason. Run again, it resumes what is missing.

    DIR receives policies/NAME.ecl2o; sites.parquet, a row per site; report.html, the worst sites first; errors.log, if any
    failed.
    """
    if promise is None and per != "run":
        raise typer.BadParameter("needs --promise.", param_hint="--per")
    split = options.make_split(training_days, validation_days)
    options.require_parquet()
    options.set_up_jax(workers)
    from ecl2o.fitting.settings import FitSettings, PromiseSpec
    from ecl2o.fleet.folder import FITTED, check_output_folder, fit_into
    from ecl2o.fleet.sites import find_sites, read_sites
    from ecl2o.plots.folder import name_path_in_errors

    check_output_folder(out, FITTED)
    specs = find_sites(sites)
    settings = FitSettings(alpha, advisor, None if promise is None else PromiseSpec(promise, per), steps, seed)
    started = time.perf_counter()
    with (
        name_path_in_errors(out),
        options.client(scheduler, workers) as client,
        output.progress_bars(not json) as progress,
    ):
        read = read_sites(specs, settings, options.make_reader(Path(), column, time_column, fill, period), split)
        read = _with_progress(read, "reading sites", len(specs), progress)
        rows = fit_into(out, read, client, int(memory * 2**30), progress, len(specs))
    _finish(rows, out, {"sites": sites, "settings": _describe(settings)}, time.perf_counter() - started, json)


def evaluate(
    sites: Sites,
    policies: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of policies NAME.ecl2o, or the folder of a fleet.")
    ] = Path("fleet"),
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for table and report.")] = Path("fleet-tested"),
    days: Annotated[
        int | None, typer.Option(min=1, help="Number of days to test on, the last ones. (default: all)")
    ] = None,
    column: options.Columns = None,
    time_column: options.TimeColumn = None,
    fill: options.Fill = None,
    period: options.Period = None,
    memory: Memory = 4.0,
    scheduler: options.Scheduler = None,
    workers: options.Workers = None,
    json: output.Json = False,
    seed: output.UnusedSeed = 0,
) -> None:
    """Test every site's policy on its series, as one stream, next to R-OBD. Exit code 1 if a promise was broken."""
    options.require_parquet()
    options.set_up_jax(workers)
    from ecl2o.fleet.fit_and_evaluate import read_to_test
    from ecl2o.fleet.folder import POLICIES, TESTED, check_output_folder, evaluate_into
    from ecl2o.fleet.sites import find_sites
    from ecl2o.plots.folder import name_path_in_errors

    check_output_folder(out, TESTED)
    specs = find_sites(sites)
    kept = policies / POLICIES if (policies / POLICIES).is_dir() else policies
    if not kept.is_dir():
        raise typer.BadParameter(f"{policies} is not a folder.", param_hint="--policies")
    started = time.perf_counter()
    with (
        name_path_in_errors(out),
        options.client(scheduler, workers) as client,
        output.progress_bars(not json) as progress,
    ):
        reading = options.make_reader(Path(), column, time_column, fill, period)
        read = _with_progress(read_to_test(specs, kept, reading, days), "reading sites", len(specs), progress)
        rows = evaluate_into(out, read, client, int(memory * 2**30), progress)
    _finish(rows, out, {"sites": sites, "policies": str(policies)}, time.perf_counter() - started, json)
    if any(row.get("promise_kept") is False for row in rows):
        raise typer.Exit(1)


app.command(epilog="Example: ecl2o fleet fit sites.csv --promise 2 --out fleet --workers 2")(fit)
app.command(epilog="Example: ecl2o fleet evaluate sites.csv --policies fleet --days 30")(evaluate)


def _with_progress(sites: "Iterable[Site]", what: str, total: int, progress: "Progress") -> "Iterator[Site]":
    """Yield the sites and report how many there were."""
    for done, site in enumerate(sites, start=1):
        yield site
        progress(what, done, total)


def _describe(settings: "FitSettings") -> str:
    promise = settings.promise
    promised = "no promise" if promise is None else f"promise {promise.ratio:g} per {promise.per}"
    return f"alpha {settings.alpha:g}, {promised}, {settings.advisor}"


def _finish(rows: list[dict[str, Any]], out: Path, about: dict[str, str], seconds: float, json: bool) -> None:
    """Write table and report, and print the summary."""
    import pandas as pd

    from ecl2o.fleet.folder import ERRORS, PAGE, TABLE
    from ecl2o.plots.fleet import fleet_page, sort_worst_first, summarize_fleet
    from ecl2o.plots.folder import name_path_in_errors

    table = pd.DataFrame.from_records(rows)
    with name_path_in_errors(out):
        table.drop(columns="digest", errors="ignore").to_parquet(out / TABLE, index=False)
        (out / PAGE).write_text(fleet_page(table, about, seconds), encoding="utf-8")
    found = summarize_fleet(table)
    if json:
        output.print_json({"out": str(out), "seconds": seconds, **found})
    else:
        _print(found, sort_worst_first(table)[:_WORST], table)
        if found["failed"]:
            output.messages().print(f"errors: {out / ERRORS}", soft_wrap=True)
        output.messages().print(f"report: {out / PAGE}", soft_wrap=True)
    if not found["sites"] - found["failed"]:
        raise ValueError(f"all {len(rows)} sites failed; the first: {rows[0]['reason']}")


def _print(found: dict[str, Any], worst: list[dict[str, Any]], table: Any) -> None:
    from rich.table import Table

    from ecl2o.plots.fleet import describe_marks, mark_name

    shown = Table(title=f"The worst of {found['sites'] - found['failed']} sites", title_justify="left")
    shown.add_column("")
    for heading in ("average cost", "worst day", "live ratio", "R-OBD's cost"):
        shown.add_column(heading, justify="right")
    for row in worst:
        cells = (row.get(name) for name in ("average_cost", "competitive_ratio", "live_ratio", "r_obd_cost"))
        shown.add_row(mark_name(row), *("" if cell is None or math.isnan(cell) else f"{cell:.3f}" for cell in cells))
    say = output.results().print
    if worst:
        tables.print_table(shown)
        cost, ratio = found["average_cost"], found["competitive_ratio"]
        say(f"average cost: median {cost['median']:.3f}, 90 % below {cost['p90']:.3f}, largest {cost['largest']:.3f}.")
        say(f"worst day: median {ratio['median']:.3f}, 90 % below {ratio['p90']:.3f}, largest {ratio['largest']:.3f}.")
        if found["promised"]:
            say(f"promises: {found['promised']} made, {found['kept']} kept.")
        if found["unreliable"]:
            say(describe_marks(found), soft_wrap=True)
    if found["failed"]:
        say(f"{found['failed']} of {found['sites']} sites failed:")
        for row in table[table.status == "failed"].to_dict("records"):
            say(f"  {row['name']}: {output.name_options(row['reason'])}", soft_wrap=True)
