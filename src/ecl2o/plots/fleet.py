"""The report of a fleet: how costs and ratios are distributed over its sites, the worst of them first, and what failed."""

import io
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ecl2o.evaluation.metrics import MARK
from ecl2o.plots import style

_MOST_ROWS = 200  # sites in the page's table; all are in the Parquet file
_COLUMNS = {
    "average_cost": "average cost",
    "competitive_ratio": "worst day",
    "p99": "99 % of days",
    "live_ratio": "live ratio",
    "r_obd_cost": "R-OBD's cost",
    "rhc_cost": "RHC's cost",
    "advisor": "advisor",
}


def summarize_fleet(table: pd.DataFrame) -> dict[str, Any]:
    """Return how many sites there are, how many failed, and the distribution of the two figures over the others."""
    done = _finished_rows(table)
    kept = [row.get("promise_kept") for row in done]
    found: dict[str, Any] = {
        "sites": len(table),
        "failed": len(table) - len(done),
        "promised": sum(value in (True, False) for value in kept),
        "kept": sum(value is True for value in kept),
        "unreliable": sum(map(is_unreliable, done)),
        "days_not_scored": int(sum(row.get("days_not_scored", 0) for row in done)),
    }
    for name in ("average_cost", "competitive_ratio"):
        quantiles = np.quantile(_column_values(done, name), [0, 0.5, 0.9, 1]).tolist()
        found[name] = dict(zip(("smallest", "median", "p90", "largest"), quantiles, strict=True))
    return found


def _finished_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows: list[Any] = table.to_dict("records")
    return [row for row in rows if row["status"] != "failed"]


def _column_values(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    """Return one figure of all rows in which it is finite; a single NaN where there are none."""
    values = np.array([row[name] for row in rows], float)
    return values[np.isfinite(values)] if np.isfinite(values).any() else np.array([np.nan])


def is_unreliable(row: Mapping[str, Any]) -> bool:
    """Return whether a step behind this site's figures did not converge, or its promise was lost."""
    return row.get("promise_kept") is False or row.get("unconverged", 0) > 0


def mark_name(row: Mapping[str, Any]) -> str:
    """Return the name of a site, with a mark if its figures are unreliable."""
    return row["name"] + MARK if is_unreliable(row) else row["name"]


def describe_marks(found: Mapping[str, Any]) -> str:
    """Return what the mark means, for how many sites; nothing where there are none."""
    count = found["unreliable"]
    if not count:
        return ""
    sites = "1 site" if count == 1 else f"{count} sites"
    return f"{MARK.strip()} {sites}: a solve did not converge or a promise was broken. Do not rely on these figures."


def sort_worst_first(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the finished sites: broken promises, then other unreliable figures, then what costs most beside R-OBD."""

    def badness(row: dict[str, Any]) -> tuple[bool, bool, float]:
        beside = row["average_cost"] / row["r_obd_cost"]
        return row.get("promise_kept") is False, is_unreliable(row), beside if np.isfinite(beside) else 0.0

    return sorted(_finished_rows(table), key=badness, reverse=True)


_PANELS = (("average_cost", "r_obd_cost", "average cost"), ("competitive_ratio", "r_obd_ratio", "worst day's ratio"))


@style.apply_style()
def draw_distributions(table: pd.DataFrame) -> Figure:
    """Draw average cost and worst day over the sites, R-OBD's beside them."""
    done = _finished_rows(table)
    own, expert = style.row_looks(["ec-l2o", "r-obd"]).values()
    figure = style.new_figure(height=3.2)
    for axes, (name, beside, label) in zip(figure.subplots(1, 2), _PANELS, strict=True):
        values, experts = _column_values(done, name), _column_values(done, beside)
        both = np.concatenate([values, experts])
        finite = both[np.isfinite(both)]
        bins = np.linspace(finite.min(), finite.max() + 1e-9, 31).tolist() if finite.size else 30
        axes.hist(experts, bins, color=expert.color, alpha=0.5, label="R-OBD")
        axes.hist(values, bins, color=own.color, alpha=0.8, label="policies")
        axes.axvline(float(np.median(values)), color=style.GREY, linestyle="--")
        axes.set_xlabel(f"{label} (dashed: the policies' median)")
        axes.set_ylabel("sites")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def fleet_page(table: pd.DataFrame, about: Mapping[str, str], seconds: float) -> str:
    """Return the report of a fleet as one page that needs nothing but itself."""
    found = summarize_fleet(table)
    done = found["sites"] - found["failed"]
    facts = [f"{found['sites']} sites", f"{found['failed']} failed", *about.values(), f"{seconds:.0f} s"]
    parts = [
        f'<header>\n<p class="kind">ecl2o, fleet</p>\n<h1>{done} sites</h1>\n<p class="facts">{escape(" · ".join(facts))}</p>'
        "\n</header>"
    ]
    if found["failed"]:
        parts.append(style.html_section("What failed", _failures(table)))
    if done:
        parts += [
            style.html_section("Distribution over sites", _distribution(table, found)),
            style.html_section("Sites, the worst first", _sites(table, describe_marks(found))),
        ]
    return style.html_page("fleet: ecl2o", [*parts, style.html_date()])


def _failures(table: pd.DataFrame) -> str:
    failed = table[table["status"] == "failed"]
    pairs = zip(failed["name"], failed["reason"], strict=True)
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(reason)}</dd>" for name, reason in pairs)
    return f'<dl class="rows">{lines}</dl>'


def _distribution(table: pd.DataFrame, found: Mapping[str, Any]) -> str:
    file = io.BytesIO()
    with style.apply_style():
        draw_distributions(table).savefig(file, format="svg", metadata={"Date": None})
    quantile_items = "".join(
        f"<dt>{label}</dt><dd>" + ", ".join(f"{name} {value:.3f}" for name, value in found[key].items()) + "</dd>"
        for key, label in (("average_cost", "average cost"), ("competitive_ratio", "worst day"))
    )
    promises = f"<p>{found['promised']} promises made, {found['kept']} kept.</p>" if found["promised"] else ""
    caption = "Average cost in units of the oracle's; the worst day's cost over its optimum."
    figure = style.html_figure(file.getvalue(), "Distribution of costs and ratios over sites", caption)
    return f'{figure}<dl class="terms">{quantile_items}</dl>{promises}'


def _sites(table: pd.DataFrame, about_marks: str) -> str:
    rows = sort_worst_first(table)
    columns = {name: label for name, label in _COLUMNS.items() if any(_cell(row.get(name)) for row in rows)}
    lines = [[mark_name(row), *(_cell(row[name]) for name in columns)] for row in rows[:_MOST_ROWS]]
    marks = f"<p>{escape(about_marks)}</p>" if about_marks else ""
    more = "" if len(rows) <= _MOST_ROWS else f"<p>{len(rows) - _MOST_ROWS} more are in the Parquet file.</p>"
    return f"{style.html_table(['', *columns.values()], lines)}{marks}{more}"


def _cell(value: Any) -> str:
    if value == np.inf:
        return "optimum is 0"
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.3f}"
    return "" if value is None else escape(str(value))
