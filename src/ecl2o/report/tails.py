"""Figure: the high percentiles of the daily cost ratio."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ecl2o.report.style import house_style, line_style, looks, new_figure
from ecl2o.studies.results import Row, Study

LOWEST = 90.0
_LEVELS = np.linspace(LOWEST, 100.0, 101)


def draw_tails(study: Study) -> Figure:
    """Ratio against percentile, 90 to 100 (the competitive ratio), means over seeds."""
    rows = [row for row in study.rows.values() if row.name != "oracle"]
    look = looks(list(study.rows))
    with house_style():
        figure = new_figure(height=3.8)
        axes = figure.subplots()
        axes.set_yscale("log")
        for place, row in enumerate(rows):
            spots = {"marker": look[row.name].marker, "markevery": (2 * place % 20, 20), "markersize": 5}
            axes.plot(_LEVELS, tail_curve(row), label=row.label, **line_style(look[row.name]) | spots)
        axes.set_xlim(LOWEST, 100.2)
        axes.set_xlabel("percentile of the test days")
        axes.set_ylabel("cost / optimum of the day (log scale)")
        low, high = axes.get_ylim()
        axes.set_yticks(
            [tick for tick in (1, 1.2, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500) if low <= tick <= high]
        )
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        figure.legend(*_by_height(axes), loc="outside right upper")
        return figure


def tail_curve(row: Row, levels: np.ndarray = _LEVELS) -> np.ndarray:
    """The mean over seeds of the percentiles of the ratio; NaN, which is not drawn, where it is infinite."""
    ratios = np.stack([np.asarray(score.ratio, float) for score in row.scores])
    with np.errstate(invalid="ignore"):
        curves = np.percentile(ratios, levels, axis=1)
    return np.where(np.isfinite(curves), curves, np.nan).mean(axis=1)


def _by_height(axes):
    """Legend entries in the order of the lines at the right edge, the highest first."""
    lines = axes.get_lines()
    order = sorted(lines, key=lambda line: -np.nan_to_num(line.get_ydata()[-1], nan=np.inf))
    return order, [line.get_label() for line in order]
