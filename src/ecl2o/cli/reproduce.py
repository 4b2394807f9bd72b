"""`ecl2o reproduce`: a whole case study by one command, ending in a table and a report."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ecl2o.cli import options, output, tables

if TYPE_CHECKING:
    from ecl2o.fitting.settings import Progress
    from ecl2o.paper.results import StudyResults

_STUDY_KEY = "study"
_FILE_KEYS = ("weather", "workload")
_DEFAULT_STUDY = "demand-response"


def reproduce(
    study: Annotated[
        Literal["demand-response", "right-sizing"] | None,
        typer.Option(metavar="STUDY", help="demand-response (unless given) or right-sizing."),
    ] = None,
    weather: options.Weather = None,
    workload: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Right-sizing: CSV or Parquet of requests; a built-in workload unless given."
        ),
    ] = None,
    preset: options.Preset = None,
    network: Annotated[
        Literal["lstm", "mlp"] | None,
        typer.Option(
            metavar="KIND", help="Demand response: lstm or mlp; the preset's (lstm, paper: mlp) unless given."
        ),
    ] = None,
    base_shortage: options.BaseShortage = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, max=output.MOST_SEEDS, metavar="N", help="How many seeds the learned rows are trained with."
        ),
    ] = None,
    quick: Annotated[
        bool | None, typer.Option("--quick/--full", help="Train little: figures of networks mean nothing.")
    ] = None,
    fill: Annotated[
        Literal["interpolate", "previous"] | None,
        typer.Option(
            metavar="HOW",
            help="Repair gaps and bad cells of the file: interpolate or previous. Without it they are errors.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings of an earlier run, its config.toml; other options override them."),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the report; an earlier report in it is replaced.")
    ] = Path("results"),
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=output.LARGEST_SEED,
            metavar="S",
            help="The first seed. The same one gives the same figures on the same machine.",
        ),
    ] = None,
    json: output.Json = False,
) -> None:
    """Run a case study of the paper: train, test, and write a report.

    In DIR: report.html, everything on one page; results.json; config.toml, enough to repeat the run; figures/; policies/.
    """
    given = {
        _STUDY_KEY: study,
        "weather": None if weather is None else str(weather),
        "workload": None if workload is None else str(workload),
        "preset": preset,
        "network": network,
        "base_shortage": None if base_shortage is None else options.watts(base_shortage),
        "seeds": seeds,
        "quick": quick,
        "fill": fill,
        "seed": seed,
    }
    values = (_read_config(config) if config else {}) | {
        key: value for key, value in given.items() if value is not None
    }
    name = values.pop(_STUDY_KEY, _DEFAULT_STUDY)
    from ecl2o.cli.jax_setup import use_double_precision

    use_double_precision()
    run = _prepared(name, values)
    from ecl2o.paper.figures import describe_missing_figures
    from ecl2o.paper.report import write_report
    from ecl2o.plots.folder import PAGE, atomic_folder

    with atomic_folder(out) as folder, output.progress_bars() as progress:
        found = run(progress)
        write_report(found, _repeatable(found), folder, progress)
    if json:
        output.print_json(found.as_json())
    else:
        _print_table(found)
    missing = describe_missing_figures()
    if missing is not None:
        output.messages().print(missing, soft_wrap=True)
    output.messages().print(f"report: {out / PAGE}", soft_wrap=True)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not UTF-8, or not TOML
        raise ValueError(f"{path}: {error}") from None


def _prepared(name: str, values: dict[str, Any]) -> "Callable[[Progress], StudyResults]":
    """The study with its settings checked, ready to run."""
    import pydantic

    kind, run = _settings_and_run(name)
    try:
        settings = kind(**values)
    except pydantic.ValidationError as error:
        problems = (f"{entry['loc'][0] if entry['loc'] else name}: {entry['msg']}" for entry in error.errors())
        raise ValueError(f"the settings do not fit the study {name}: {'; '.join(dict.fromkeys(problems))}") from None
    return lambda progress: run(settings, progress)


def _settings_and_run(name: str) -> tuple[Any, Any]:
    """A study's class of settings, and the function that runs it."""
    from ecl2o.paper.settings import DemandResponseSettings, RightSizingSettings

    if name == "demand-response":
        from ecl2o.paper import demand_response

        return DemandResponseSettings, demand_response.run
    if name == "right-sizing":
        from ecl2o.paper import right_sizing

        return RightSizingSettings, right_sizing.run
    raise ValueError(f"{_STUDY_KEY} must be demand-response or right-sizing, got {name!r}.")


def _repeatable(study: "StudyResults") -> dict[str, Any]:
    """What config.toml holds: all settings, with files by their full paths, so that it works from any folder."""
    settings = {_STUDY_KEY: study.study, **study.settings}
    files = {key: str(Path(settings[key]).resolve()) for key in _FILE_KEYS if settings.get(key) is not None}
    return settings | files


def _print_table(study: "StudyResults") -> None:
    from rich.table import Table

    from ecl2o.paper.results import HEADINGS, format_cells, reported_rows, table_notes

    table = Table(title=f"{study.title}: {study.test_days} test days, seeds {len(study.seeds)}", title_justify="left")
    for heading in HEADINGS[:-1]:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for row in reported_rows(study):
        table.add_row(*format_cells(row)[:-1])
    for place, entry in enumerate(study.skipped.values(), start=1):
        table.add_row(entry.label, f"n/a ({place})")
    tables.print_table(table)
    for place, entry in enumerate(study.skipped.values(), start=1):
        words = f"({place}) {entry.label} does not apply: {entry.reason}"
        output.results().print(words, soft_wrap=True)
    for note in table_notes(study):
        output.results().print(note)
