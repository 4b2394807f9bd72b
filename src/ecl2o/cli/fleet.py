"""`ecl2o fleet`: fit or evaluate many sites at once, here or on a Dask cluster."""

import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from ecl2o.cli import comparison_table, options, output, tables
from ecl2o.cli.options import check_positive, check_promise, option

if TYPE_CHECKING:
    from ecl2o.fitting.settings import Progress

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
_NOT_OF_SITES = ("weight_column", "day_start")

app = typer.Typer(
    help="Fit or evaluate many sites at once, here or on a Dask cluster. Needs an extra: pip install 'ecl2o\\[fleet]'.",
    no_args_is_help=True,
)


@app.command(epilog="Example: ecl2o fleet fit sites.csv --promise 2 --out fleet --workers 2")
@options.expand_options(*_NOT_OF_SITES)
def fit(
    sites: Sites,
    *,
    out: Path = option("Folder for policies, table and report.", default=Path("fleet"), metavar="DIR"),
    alpha: float = option("Cost of moving, unless the manifest states it.", default=10.0, callback=check_positive),
    promise: float | None = option(
        "Guarantee this many times the optimum at most, unless the manifest states it.", callback=check_promise
    ),
    per: options.Per = option("Period of the promise, unless the manifest states it.", default="run"),
    advisor: Literal["auto", "ridge", "fourier", "mlp", "lstm"] = option(
        "Advisor. ridge is trained for many sites at once, all others for one site after the other.", default="ridge"
    ),
    reading: options.ReadingOptions,
    training_days: int | None = options.TRAINING_DAYS,
    validation_days: int | None = options.VALIDATION_DAYS,
    memory: Memory = 4.0,
    scheduler: str | None = options.SCHEDULER,
    workers: int | None = options.WORKERS,
    steps: int | None = options.TRAINING_STEPS,
    json: output.Json = False,
    seed: output.Seed = 0,
) -> None:
    """Fit a policy for every site. A failed site gets a row with the reason. A second run fits only the missing sites.

    DIR receives policies/NAME.ecl2o; sites.parquet, a row per site; report.html, the worst sites first; errors.log, if any
    failed. Exit code 3 if some sites failed, 1 if all did.
    """
    if promise is None and per != "run":
        raise options.usage_error("--per", "needs --promise.")
    split = options.make_split(training_days, validation_days)
    options.set_up_jobs(workers, "fleet")
    from ecl2o.fitting.settings import FitSettings, PromiseSpec
    from ecl2o.fleet.folder import FITTED, check_output_folder, fit_into
    from ecl2o.fleet.sites import find_sites, read_sites
    from ecl2o.plots.folder import name_path_in_errors

    check_output_folder(out, FITTED)
    specs = find_sites(sites)
    settings = FitSettings(alpha, advisor, None if promise is None else PromiseSpec(promise, per), steps, seed)
    started = time.perf_counter()
    cluster, bars = options.client(scheduler, workers), output.progress_bars(not json)
    with name_path_in_errors(out), cluster as client, bars as progress:
        read = read_sites(specs, settings, reading.make_reader(Path()), split)
        read = _with_progress(read, len(specs), progress)
        rows = fit_into(out, read, client, int(memory * 2**30), progress, len(specs))
    promised = "no promise" if promise is None else f"promise {promise:g} per {per}"
    about = {"sites": sites, "settings": f"alpha {alpha:g}, {promised}, {advisor}"}
    if _finish(rows, out, about, time.perf_counter() - started, json):
        raise typer.Exit(output.SOME_FAILED)


@app.command(epilog="Example: ecl2o fleet evaluate sites.csv --policies fleet --days 30")
@options.expand_options(*_NOT_OF_SITES)
def evaluate(
    sites: Sites,
    *,
    policies: Path = option("Folder of policies, or of fleet fit.", default=Path("fleet"), metavar="DIR"),
    out: Path = option("Folder for table and report.", default=Path("fleet-tested"), metavar="DIR"),
    days: int | None = options.DAYS,
    reading: options.ReadingOptions,
    memory: Memory = 4.0,
    scheduler: str | None = options.SCHEDULER,
    workers: int | None = options.WORKERS,
    json: output.Json = False,
) -> None:
    """Test every site's policy on its series, as one stream, next to R-OBD.

    Exit code 1 if a promise was broken or all sites failed, 3 if some sites failed.
    """
    options.set_up_jobs(workers, "fleet")
    from ecl2o.fleet.fit_and_evaluate import read_to_test
    from ecl2o.fleet.folder import POLICIES, TESTED, check_output_folder, evaluate_into
    from ecl2o.fleet.sites import find_sites
    from ecl2o.plots.folder import name_path_in_errors

    check_output_folder(out, TESTED)
    specs = find_sites(sites)
    folder = policies / POLICIES if (policies / POLICIES).is_dir() else policies
    if not folder.is_dir():
        raise options.usage_error("--policies", f"{policies} is not a folder.")
    started = time.perf_counter()
    cluster, bars = options.client(scheduler, workers), output.progress_bars(not json)
    with name_path_in_errors(out), cluster as client, bars as progress:
        read = read_to_test(specs, folder, reading.make_reader(Path()), days)
        rows = evaluate_into(out, _with_progress(read, len(specs), progress), client, int(memory * 2**30), progress)
    failed = _finish(rows, out, {"sites": sites, "policies": str(policies)}, time.perf_counter() - started, json)
    if any(row.get("promise_kept") is False for row in rows):
        raise typer.Exit(1)
    if failed:
        raise typer.Exit(output.SOME_FAILED)


def _with_progress(sites: "Iterable[Site]", total: int, progress: "Progress") -> "Iterator[Site]":
    """Yield the sites and report how many were read."""
    for done, site in enumerate(sites, start=1):
        yield site
        progress("reading sites", done, total)


def _finish(rows: list[dict[str, Any]], out: Path, about: dict[str, str], seconds: float, json: bool) -> int:
    """Write table and report, print the summary, and return how many sites failed; raise if all did."""
    import pandas as pd

    from ecl2o.fleet.folder import ERRORS, PAGE, TABLE
    from ecl2o.plots.fleet import fleet_page, sort_worst_first, summarize_fleet
    from ecl2o.plots.folder import name_path_in_errors

    rows = [row | {"reason": row["reason"] and output.name_options(row["reason"])} for row in rows]
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
            tables.print_message(f"errors: {out / ERRORS}")
        tables.print_message(f"report: {out / PAGE}")
    if not found["sites"] - found["failed"]:
        raise ValueError(f"all {len(rows)} sites failed; the first: {rows[0]['reason']}")
    return found["failed"]


def _print(found: dict[str, Any], worst: list[dict[str, Any]], table: Any) -> None:
    from ecl2o.plots.fleet import describe_marks, mark_name

    if worst:
        names = ("average_cost", "competitive_ratio", "live_ratio", "r_obd_cost")
        cells = [(mark_name(row), *(_format(row.get(name)) for name in names)) for row in worst]
        notes = [_describe_spread("average cost", found["average_cost"])]
        notes.append(_describe_spread("worst day", found["competitive_ratio"]))
        if found["promised"]:
            notes.append(f"promises: {found['promised']} made, {found['kept']} kept.")
        if found["unreliable"]:
            notes.append(describe_marks(found))
        if found["days_not_scored"]:
            notes.append(f"{found['days_not_scored']} days have an imputed row: not scored.")
        title = f"The worst of {found['sites'] - found['failed']} sites"
        columns = ("", "average cost", "worst day", "live ratio", "R-OBD's cost")
        tables.print_rows(title, columns, cells, notes=notes)
    if found["failed"]:
        failed = table[table.status == "failed"].to_dict("records")
        lines = [f"  {row['name']}: {row['reason']}" for row in failed]
        tables.print_notes([f"{found['failed']} of {found['sites']} sites failed:", *lines])


def _format(cell: float | None) -> str:
    if cell is None or math.isnan(cell):
        return ""
    return comparison_table.format_ratio(None if cell == math.inf else cell)


def _describe_spread(name: str, spread: dict[str, float]) -> str:
    return f"{name}: median {spread['median']:.3f}, 90 % below {spread['p90']:.3f}, largest {spread['largest']:.3f}."
