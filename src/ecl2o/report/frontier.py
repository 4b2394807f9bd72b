"""Figure: what a promise costs. Average cost against the ratio that is promised, and against the worst that was seen."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from ecl2o.report.style import GREY, LIGHT, Look, house_style, line_style, looks, new_figure
from ecl2o.studies.frontier import Frontier, FrontierPoint

_ROOM = 0.12  # of an axis, on either side of what is drawn
_EDGE = 0.2  # of the axis for those at its edge: no promise, or an infinite ratio
_TICKS = (1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500, 1000)


def draw_frontier(frontier: Frontier) -> Figure:
    """Two panels with one cost axis; down and left is better. What promises nothing stands at the right edge of the first."""
    families = list(dict.fromkeys(point.family for point in frontier.points))
    look = looks(families)
    with house_style():
        figure = new_figure(height=4.0)
        promised, seen = figure.subplots(1, 2, sharey=True, width_ratios=(1.15, 1))
        _draw_promises(promised, frontier, look)
        _draw_worst(seen, frontier, look)
        promised.set_ylabel("average cost / oracle's average cost")
        costs = [point.average_cost for point in frontier.points]
        top = 1 + (max(costs) - 1) * (1 + _ROOM)
        promised.set_ylim(1 - 0.04 * (top - 1), top)
        handles, labels = seen.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        return figure


def _draw_promises(axes, frontier: Frontier, look: dict[str, Look]) -> None:
    kept = [point.promise for point in frontier.points if point.promise is not None]
    low, high = min(kept), max(kept)
    width = max(high - low, 0.1)
    start, end = low - _ROOM * width, high + 1.6 * _ROOM * width
    edge = end + _EDGE * width / 2
    axes.axvspan(start, frontier.smallest_ratio, color=LIGHT, alpha=0.6, linewidth=0)
    axes.axvspan(end, edge + (edge - end), color="#f4f4f4", linewidth=0)
    axes.axvline(end, color=GREY, linewidth=0.8, linestyle=(0, (2, 2)))
    for family, members in _by_family(frontier.points):
        shown = [edge if point.promise is None else point.promise for point in members]
        _plot(axes, look[family], shown, [point.average_cost for point in members], _family_label(members))
    axes.set_xlim(start, edge + (edge - end))
    ticks = [tick for tick in (1.5, 2, 2.5, 3, 4, 5, 7, 10) if start <= tick <= end]
    axes.set_xticks([*ticks, edge], [*(f"{tick:g}" for tick in ticks), "none"])
    axes.set_xlabel("promised ratio: cost ≤ ratio times optimum, every day")
    above = {"xycoords": axes.get_xaxis_transform(), "fontsize": 7, "color": GREY, "va": "bottom"}
    axes.annotate(f"nobody can promise less than {frontier.smallest_ratio:.3f}", (start, 1.01), **above)
    axes.annotate("no promise", (edge, 1.01), ha="center", **above)
    for point in frontier.points:
        if point.family == "guarded" and point.promise is not None:
            where = point.promise, point.average_cost
            axes.annotate(f"{point.average_cost:.3f}", where, (4, 4), textcoords="offset points", fontsize=7)


def _draw_worst(axes, frontier: Frontier, look: dict[str, Look]) -> None:
    finite = [point.competitive_ratio for point in frontier.points if np.isfinite(point.competitive_ratio)]
    largest = max(finite, default=2.0)
    unbounded = len(finite) < len(frontier.points)
    edge = largest**1.15
    axes.set_xscale("log")
    for family, members in _by_family(frontier.points):
        shown = [point.competitive_ratio if np.isfinite(point.competitive_ratio) else edge for point in members]
        _plot(axes, look[family], shown, [point.average_cost for point in members], _family_label(members))
    low, high = 1.0, (edge if unbounded else largest) ** 1.08
    axes.set_xlim(low, high)
    ticks = [tick for tick in _TICKS if tick <= (largest if unbounded else high)]
    ticks = ticks[:: 1 if len(ticks) <= 8 else 2]
    names = [f"{tick:g}" for tick in ticks]
    axes.set_xticks([*ticks, edge] if unbounded else ticks, [*names, "∞"] if unbounded else names)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("worst ratio on the test days (log scale)")


def _plot(axes, look: Look, ratios: list[float], costs: list[float], label: str) -> None:
    style = line_style(look) | {"marker": look.marker, "markersize": 6.5, "linewidth": 1.2}
    if len(costs) == 1:
        style["linestyle"] = "none"
    axes.plot(ratios, costs, label=label, **style)


def _by_family(points: Sequence[FrontierPoint]) -> list[tuple[str, list[FrontierPoint]]]:
    """Points by family, in the order of the table."""
    families = dict.fromkeys(point.family for point in points)
    return [(family, [point for point in points if point.family == family]) for family in families]


def _family_label(members: Sequence[FrontierPoint]) -> str:
    """What the legend calls them.

    >>> point = FrontierPoint("guarded", "Guarded, 2", 2.0, 1.2, 2.0, 1.9, {})
    >>> _family_label([point, point])
    'Guarded, by ratio'
    """
    return "Guarded, by ratio" if members[0].family == "guarded" else members[0].label
