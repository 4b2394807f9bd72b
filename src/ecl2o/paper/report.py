"""The folder of a study (report.html, one page that needs nothing but itself; results.json) and the folder of a sweep."""

import dataclasses
import importlib.metadata
import itertools
import platform
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w

from ecl2o.agents import citation
from ecl2o.agents.citations import named_citation
from ecl2o.fitting.settings import Progress
from ecl2o.json_text import as_json, json_text
from ecl2o.paper.figures import ReportFigure, describe_missing_figures, report_figures, save_report_figure
from ecl2o.paper.frontier_figures import draw_fronts
from ecl2o.paper.pareto import SweepRecord, average_over_seeds
from ecl2o.paper.results import (
    HEADINGS,
    StudyResults,
    find_best_row,
    format_cells,
    format_number,
    reported_rows,
    table_notes,
)
from ecl2o.plots.folder import CONFIG, FIGURES, PAGE, POLICIES, RESULTS, TABLE, write_results, write_text
from ecl2o.plots.style import html_date, html_figure, html_page, html_section, html_table
from ecl2o.policy import save

_PACKAGES = ("ecl2o", "jax", "equinox", "optax", "numpy", "scipy", "pandas", "scikit-learn", "matplotlib")

_MEANINGS = (
    (
        "average cost",
        "mean daily cost divided by that of the daily oracle: one common number for all rows, 1 is the optimum.",
    ),
    ("competitive ratio", "the worst test day: cost divided by the optimum of the same day from the same start."),
    ("third-worst day", "the same for the third-worst test day, which two odd days do not decide."),
    ("p95 to p99.5", "percentiles of that daily ratio over the test days, mean over seeds."),
    ("prediction error", "mean squared distance of the advice from the day's optimum, over the optimum's mean cost."),
)

_PROTOCOL = (
    "Testing is continuous: each test day starts from the row's own last action of the day before, the first one from the "
    "last context before it. What an agent remembers is rebuilt every day from the contexts before that day.",
    "A day whose optimum costs nothing counts as ratio 1 if the row paid nothing too, and as infinite otherwise.",
    "Learned rows are trained on the training days only; where a parameter was chosen, it was chosen on the validation days. "
    "The ± is the standard deviation over seeds.",
)
_FORECASTS = "The oracle knows each day up to midnight. {forecasters}Rows without a forecaster see no future contexts."
_AUTHORS = (
    "Preset authors-code: contexts are scaled by the largest value of the whole year, test months included, as in the published "
    "code. It is kept for fidelity."
)


def page(study: StudyResults, settings: str, figures: Mapping[ReportFigure, Path]) -> str:
    """Return the report of a study; `settings` is the text of config.toml, `figures` the SVG file of each figure."""
    sections = {
        "Results": results_table(study),
        "Figures": _figures(figures),
        "What each row is": _rows(study),
        "How it was measured": _protocol(study),
        "Settings": _settings(study, settings),
        "How to cite": _citations(study),
    }
    return html_page(f"{study.title}: ecl2o", [_head(study), *itertools.starmap(html_section, sections.items())])


def _head(study: StudyResults) -> str:
    cheapest, safest = find_best_row(study, "average_cost"), find_best_row(study, "competitive_ratio")
    facts = [
        f"{study.test_days} test days",
        f"{len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}",
        *([f"preset {study.preset}"] if study.preset else []),
        *([str(study.weather["site"])] if study.weather.get("site") else []),
        ", ".join(f"{name} = {value:g}" for name, value in study.constants.items()),
    ]
    cost = format_number(float(cheapest.over_seeds("average_cost").mean()), 3)
    ratio = format_number(float(safest.over_seeds("competitive_ratio").mean()), 2)
    return (
        f'<header>\n<p class="kind">ecl2o, {escape(study.study)}</p>\n<h1>{escape(study.title)}</h1>\n'
        f'<p class="facts">{escape(" · ".join(facts))}</p>\n<p class="problem">{escape(study.problem)}</p>\n'
        f"<p>The lowest average cost is that of <b>{escape(cheapest.label)}</b>, {cost} times the oracle's; the lowest "
        f"competitive ratio that of <b>{escape(safest.label)}</b>, {ratio}.</p>\n</header>"
    )


def results_table(study: StudyResults) -> str:
    """Return the table of the page: a line for each entry, and for each that was left out, with the reason."""
    lowest = {1: find_best_row(study, "average_cost").name, 2: find_best_row(study, "competitive_ratio").name}
    lines = []
    for row in reported_rows(study):
        label, *figures = format_cells(row)
        entries = [
            f"<td{' class=best' if lowest.get(place) == row.name else ''}>{escape(text)}</td>"
            for place, text in enumerate(figures, start=1)
        ]
        lines.append([label, *entries])
    for entry in study.skipped.values():
        reason = f'<td class="reason" colspan="{len(HEADINGS) - 1}">does not apply: {escape(entry.reason)}</td>'
        lines.append([entry.label, reason])
    meanings = "".join(f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>" for term, meaning in _MEANINGS)
    marks = "".join(f'\n<p class="note">{escape(note)}</p>' for note in table_notes(study))
    return f'{html_table(HEADINGS, lines)}{marks}\n<dl class="terms">{meanings}</dl>'


def _figures(figures: Mapping[ReportFigure, Path]) -> str:
    missing = describe_missing_figures()
    parts = [] if missing is None else [f'<p class="note">{escape(missing)}</p>']
    for place, (figure, file) in enumerate(figures.items(), start=1):
        caption = f"<b>{place}. {escape(figure.title)}.</b> {escape(figure.caption)}"
        parts.append(html_figure(file.read_bytes(), figure.title, caption, figure.stem))
    return "\n".join(parts)


def _rows(study: StudyResults) -> str:
    lines = []
    for row in study.rows.values():
        parameters = ", ".join(f"{name} {_value(value)}" for name, value in row.parameters.items())
        note = f' <span class="parameters">{escape(parameters)}</span>' if parameters else ""
        lines.append(f"<dt>{escape(row.label)}</dt><dd>{escape(row.what)}{note}</dd>")
    for entry in study.skipped.values():
        lines.append(f"<dt>{escape(entry.label)}</dt><dd>{escape(entry.what)}</dd>")
    return "\n".join(['<dl class="rows">', *lines, "</dl>"])


def _protocol(study: StudyResults) -> str:
    asked = {row.label: row.parameters["forecaster"] for row in study.rows.values() if "forecaster" in row.parameters}
    forecasters = "".join(f"{label} asks {_value(forecaster)}. " for label, forecaster in asked.items())
    notes = [*_PROTOCOL, _FORECASTS.format(forecasters=forecasters)]
    notes += [_AUTHORS] if study.preset == "authors-code" else []
    split = study.contexts.split
    notes.append(
        f"{split.training_days} training days, then {split.validation_days} validation days, then {study.test_days} test days of "
        f"{study.contexts.steps_per_day} steps. The oracle's mean daily cost is {study.oracle_average_cost:.6g}."
    )
    items = "\n".join(f"<li>{escape(note)}</li>" for note in notes)
    extra = as_json(study.extra)
    tables = [_pairs(values, name.capitalize()) for name, values in extra.items() if isinstance(values, Mapping)]
    rest = {name: values for name, values in extra.items() if not isinstance(values, Mapping)}
    return f"<ul>\n{items}\n</ul>" + "".join(tables) + _pairs(rest, "Also measured")


def _settings(study: StudyResults, settings: str) -> str:
    versions = {name: _version(name) for name in _PACKAGES} | {"python": platform.python_version()}
    versions["machine"] = f"{platform.system()} {platform.machine()}"
    seconds = {name: f"{value:.1f} s" for name, value in study.seconds.items()}
    return (
        f"<p>config.toml, with which <code>ecl2o reproduce --config config.toml</code> repeats the run:</p>\n"
        f"<pre>{escape(settings.strip())}</pre>\n"
        f"{_pairs(study.weather, 'Where the contexts come from')}{_pairs(seconds, 'Time taken')}"
        f"{_pairs(versions, 'Versions')}{html_date()}"
    )


def _citations(study: StudyResults) -> str:
    entries = dict.fromkeys(
        entry
        for cited in [named_citation(), *(citation(policy.agent) for policy in study.policies.values())]
        for entry in cited.split("\n\n")
    )
    return (
        "<p>The paper that this study follows, then the work behind the other rows (<code>ecl2o cite</code> prints the same).</p>"
        "\n<pre>" + escape("\n\n".join(entries)) + "</pre>"
    )


def _pairs(values: Mapping[str, Any], title: str) -> str:
    """Return a small table of names and values; nothing where there are none."""
    if not values:
        return ""
    lines = "".join(
        f'<tr><th scope="row">{escape(name.replace("_", " "))}</th><td>{escape(_value(value))}</td></tr>'
        for name, value in values.items()
        if value is not None
    )
    return f"\n<h3>{escape(title)}</h3>\n<table class='pairs'><tbody>{lines}</tbody></table>\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_value(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    return str(value)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def write_sweep(records: Sequence[SweepRecord], results: dict[str, Any], networks: Sequence[str], folder: Path) -> None:
    """Write everything that a sweep leaves behind into an empty folder."""
    rows = [{**dataclasses.asdict(record.setting), "seed": record.seed, **record.figures} for record in records]
    pd.DataFrame.from_records(rows).to_parquet(folder / TABLE, index=False)
    points = average_over_seeds(records)
    write_results(folder, results, {f"fronts-{network}": draw_fronts(points, network) for network in networks})


_HEADER = f"# Settings of this run. To repeat it: ecl2o reproduce --config {CONFIG} --out ANOTHER_FOLDER\n"


def write_report(study: StudyResults, config: dict[str, Any], folder: Path, progress: Progress) -> None:
    """Write everything a run leaves behind into an empty folder; `config` is what config.toml holds."""
    drawn = report_figures(study)
    figures, policies = folder / FIGURES, folder / POLICIES
    figures.mkdir()
    policies.mkdir()
    for done, figure in enumerate(drawn, start=1):
        save_report_figure(figure, study, figures)
        progress("report", done, len(drawn) + 1)
    for name, policy in study.policies.items():
        save(policies / f"{name}.ecl2o", policy)
    settings = settings_text(config)
    write_text(folder / RESULTS, json_text(study.as_json()) + "\n")
    write_text(folder / CONFIG, _HEADER + settings)
    write_text(folder / PAGE, page(study, settings, {figure: figures / f"{figure.stem}.svg" for figure in drawn}))
    progress("report", len(drawn) + 1, len(drawn) + 1)


def settings_text(values: dict[str, Any]) -> str:
    """Return settings as TOML; what is None is left out, as TOML has no word for it.

    >>> print(settings_text({"seeds": 5, "weather": None, "more": {"quick": True}}))
    seeds = 5
    <BLANKLINE>
    [more]
    quick = true
    <BLANKLINE>
    """
    return tomli_w.dumps({key: value for key, value in values.items() if value is not None})
