"""`ecl2o reproduce`: a whole case study by one command, ending in a table and a report."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ecl2o.cli import options, output, tables
from ecl2o.cli.jax_setup import use_cached_programs
from ecl2o.cli.options import option

if TYPE_CHECKING:
    from ecl2o.fitting.settings import Progress
    from ecl2o.paper.results import StudyResults

_STUDY_KEY = "study"
_FILE_KEYS = ("weather", "workload")


def reproduce(
    study: Literal["demand-response", "right-sizing"] | None = option(
        "demand-response (default) or right-sizing.", metavar="STUDY"
    ),
    weather: Path | None = options.WEATHER,
    workload: Path | None = option(
        "Right-sizing: CSV or Parquet file of requests. (default: built-in)", metavar="FILE"
    ),
    preset: options.Preset = options.PRESET,
    network: Literal["lstm", "mlp"] | None = option(
        "Demand response: lstm or mlp. (default: lstm; mlp for --preset paper)", metavar="KIND"
    ),
    base_shortage: str | None = options.BASE_SHORTAGE,
    seeds: int | None = option("Number of seeds to train with.", min=1, max=output.MOST_SEEDS, metavar="N"),
    quick: bool | None = option("Train briefly, as a trial: the networks' figures mean nothing.", "--quick/--full"),
    fill: options.Fill = options.FILL,
    config: Path | None = option("config.toml of an earlier run; other options override its settings.", metavar="FILE"),
    out: Path = option("Folder for the report; replaces an earlier one.", default=Path("results"), metavar="DIR"),
    seed: int | None = option("First random seed; see --seeds.", min=0, max=output.LARGEST_SEED, metavar="S"),
    json: output.Json = False,
) -> None:
    """Run a case study of the paper: train, test, and write a report.

    DIR receives report.html, everything on one page; results.json; config.toml, to repeat the run; figures/; policies/.
    """
    given = {_STUDY_KEY: study, "preset": preset, "network": network, "seeds": seeds, "quick": quick, "fill": fill}
    given |= {key: None if file is None else str(file) for key, file in (("weather", weather), ("workload", workload))}
    given |= {"base_shortage": options.parse_watts(base_shortage), "seed": seed}
    values = _read_config(config) if config else {}
    values |= {key: value for key, value in given.items() if value is not None}
    use_cached_programs()
    run = _prepare(values.pop(_STUDY_KEY, "demand-response"), values)
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
        tables.print_message(missing)
    tables.print_message(f"report: {out / PAGE}")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not UTF-8, or not TOML
        raise ValueError(f"{path}: {error}") from None


def _prepare(name: str, values: dict[str, Any]) -> "Callable[[Progress], StudyResults]":
    """Check the settings of a study, and return the function that runs it."""
    import pydantic

    from ecl2o.paper import demand_response, right_sizing

    studies: dict[str, tuple[Any, Any]] = {
        "demand-response": (demand_response.DemandResponseSettings, demand_response),
        "right-sizing": (right_sizing.RightSizingSettings, right_sizing),
    }
    if name not in studies:
        raise ValueError(f"{_STUDY_KEY} must be {' or '.join(studies)}, got {name!r}.")
    kind, module = studies[name]
    try:
        settings = kind(**values)
    except pydantic.ValidationError as error:
        problems = (f"{entry['loc'][0] if entry['loc'] else name}: {entry['msg']}" for entry in error.errors())
        raise ValueError(f"the settings do not fit the study {name}: {'; '.join(dict.fromkeys(problems))}") from None
    return lambda progress: module.run(settings, progress)


def _repeatable(study: "StudyResults") -> dict[str, Any]:
    """Return the content of config.toml: all settings, with full paths of files."""
    settings = {_STUDY_KEY: study.study, **study.settings}
    files = {key: str(Path(settings[key]).resolve()) for key in _FILE_KEYS if settings.get(key) is not None}
    return settings | files


def _print_table(study: "StudyResults") -> None:
    from ecl2o.paper.results import HEADINGS, format_cells, reported_rows, table_notes

    title = f"{study.title}: {study.test_days} test days, seeds {len(study.seeds)}"
    rows = [format_cells(row)[:-1] for row in reported_rows(study)]
    skipped = list(enumerate(study.skipped.values(), start=1))
    rows += [(entry.label, f"n/a ({place})") for place, entry in skipped]
    notes = [f"({place}) {entry.label} does not apply: {entry.reason}" for place, entry in skipped]
    tables.print_rows(title, HEADINGS[:-1], rows, notes=notes)
    for note in table_notes(study):
        output.results().print(note)
