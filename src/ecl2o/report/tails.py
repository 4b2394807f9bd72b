"""Figures: the high percentiles of the daily cost ratio."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ecl2o.report.style import house_style, line_style, looks, new_figure
from ecl2o.report.table import shown
from ecl2o.studies.results import Study, TestedEntry

LOWEST = 90.0
_LEVELS = np.linspace(LOWEST, 100.0, 101)
_HIGHEST = np.linspace(99.0, 100.0, 101)
_TICKS = (1, 1.2, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500)
# The rows of the paper's Figure 6, which has two panels that its text does not name: beside pure ML, and beside the others.
_PANELS = (
    ("beside the expert and pure ML", ("r-obd", "pure-ml", "ec-l2o", "ec-l2o-tuned")),
    ("beside the two-stage algorithms", ("switch", "mla-robd", "ec-l2o", "ec-l2o-tuned")),
)


def draw_tails(study: Study) -> Figure:
    """Ratio against percentile, 90 to 100 (the competitive ratio), means over seeds."""
    rows = [row for row in shown(study) if row.name != "oracle"]
    with house_style():
        figure = new_figure(height=3.8)
        axes = figure.subplots()
        _draw(axes, rows, study, _LEVELS)
        axes.set_xlim(LOWEST, 100.2)
        axes.set_ylabel("cost / optimum of the day (log scale)")
        figure.legend(*_by_height(axes), loc="outside right upper")
        return figure


def draw_highest_tails(study: Study) -> Figure:
    """The same beyond the 99th percentile, in two panels, with the spread over seeds: the paper's Figure 6."""
    with house_style():
        figure = new_figure(height=3.2)
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (title, names) in zip(panels, _PANELS, strict=True):
            _draw(axes, [study.entries[name] for name in names if name in study.entries], study, _HIGHEST, spread=True)
            axes.set_xlim(99.0, 100.02)
            axes.set_title(title)
            axes.legend(loc="upper left")
        panels[0].set_ylabel("cost / optimum of the day (log scale)")
        return figure


def _draw(axes, rows: list[TestedEntry], study: Study, levels: np.ndarray, spread: bool = False) -> None:
    look = looks(list(study.entries))
    axes.set_yscale("log")
    for place, row in enumerate(rows):
        curves = tail_curves(row, levels)
        spots = {"marker": look[row.name].marker, "markevery": (2 * place % 20, 20), "markersize": 5}
        axes.plot(levels, curves.mean(axis=1), label=row.label, **line_style(look[row.name]) | spots)
        if spread:
            ends = curves.min(axis=1), curves.max(axis=1)
            axes.fill_between(levels, *ends, color=look[row.name].color, alpha=0.15, linewidth=0)
    axes.set_xlabel("percentile of the test days")
    low, high = axes.get_ylim()
    axes.set_yticks([tick for tick in _TICKS if low <= tick <= high])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def tail_curve(row: TestedEntry, levels: np.ndarray = _LEVELS) -> np.ndarray:
    """The mean over seeds of the percentiles of the ratio; NaN, which is not drawn, where it is infinite."""
    return tail_curves(row, levels).mean(axis=1)


def tail_curves(row: TestedEntry, levels: np.ndarray) -> np.ndarray:
    """The percentiles of the ratio, (levels, seeds)."""
    ratios = np.stack([np.asarray(score.ratio, float) for score in row.scores])
    with np.errstate(invalid="ignore"):
        curves = np.percentile(ratios, levels, axis=1)
    return np.where(np.isfinite(curves), curves, np.nan)


def _by_height(axes):
    """Legend entries in the order of the lines at the right edge, the highest first."""
    lines = axes.get_lines()
    order = sorted(lines, key=lambda line: -np.nan_to_num(line.get_ydata()[-1], nan=np.inf))
    return order, [line.get_label() for line in order]
