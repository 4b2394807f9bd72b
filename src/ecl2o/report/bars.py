"""Figure: average cost and competitive ratio of every row, with their spread over seeds."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ecl2o.report.style import house_style, looks, new_figure
from ecl2o.report.table import shown
from ecl2o.studies.results import Study, TestedEntry

_ROOM = 1.22  # of the axis for the numbers at the ends of bars


def draw_bars(study: Study) -> Figure:
    """Two panels; error bars are one standard deviation over seeds."""
    rows = shown(study)
    with house_style():
        figure = new_figure(height=0.9 + 0.29 * len(rows))
        cost, ratio = figure.subplots(1, 2, sharey=True)
        _draw(cost, rows, "average_cost", log=False)
        cost.set_xlabel("average cost / oracle's average cost")
        _draw(ratio, rows, "competitive_ratio", log=True)
        ratio.set_xlabel("competitive ratio: the worst day's (log scale)")
        cost.set_yticks(range(len(rows)), [row.label for row in rows])
        cost.set_ylim(len(rows) - 0.5, -0.5)
        for axes in (cost, ratio):
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
        return figure


def _draw(axes, rows: list[TestedEntry], figure: str, log: bool) -> None:
    means, spreads = _means(rows, figure)
    finite = np.isfinite(means)
    reach = float(np.max((means + spreads)[finite], initial=1.1))
    end = reach ** (_ROOM + 0.1) if log else reach * _ROOM
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        ticks = [tick for tick in (1, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000) if tick <= end]
        axes.set_xticks(ticks[:: 1 if len(ticks) <= 7 else 2])
    start = 1.0 if log else 0.0
    look = looks([row.name for row in rows])
    for place, (row, mean, spread) in enumerate(zip(rows, means, spreads, strict=True)):
        shown = mean if np.isfinite(mean) else reach
        hatch = None if np.isfinite(mean) else "///"
        axes.barh(
            place,
            shown - start,
            left=start,
            height=0.68,
            color=look[row.name].color,
            alpha=0.75,
            hatch=hatch,
            linewidth=0,
        )
        if spread > 0:
            axes.errorbar(shown, place, xerr=spread, color="black", capsize=2.5, linewidth=1)
        text = f"{mean:.3f}" if not log else f"{mean:.2f}"
        axes.annotate(text, (shown + spread, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xlim(start, end)


def _means(rows: list[TestedEntry], figure: str) -> tuple[np.ndarray, np.ndarray]:
    values = [row.over_seeds(figure) for row in rows]
    means = np.array([value.mean() for value in values])
    spreads = np.array([value.std() if np.isfinite(value).all() else 0.0 for value in values])
    return means, spreads
