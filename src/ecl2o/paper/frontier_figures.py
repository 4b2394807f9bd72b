"""Figures of a sweep (the Pareto fronts of the paper's Figure 5c) and of the frontier (what a promise costs)."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from ecl2o.paper.frontier import Frontier, FrontierPoint
from ecl2o.paper.pareto import COST, RATIO, SweepPoint, family_of, pareto_fronts
from ecl2o.plots.style import (
    BLACK,
    GREY,
    INDIGO,
    LIGHT,
    OLIVE,
    PURPLE,
    Look,
    apply_style,
    line_style,
    new_figure,
    row_looks,
)

LABELS = {
    "pure-ml": "PureML, by kappa",
    "mla-robd": "MLA-ROBD, two stages, by trust",
    "switch": "Switch, by gamma",
    "guarded": "guarded regression, by promise and period",
    "r-obd": "R-OBD",
}
_MARKERS = "o^DvPX<>"
_FRONT_TICKS = (1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500)


def draw_fronts(points: Sequence[SweepPoint], network: str) -> Figure:
    """Every setting as a faint point, the front of each family as a line; whiskers are one standard deviation over seeds.

    Down and to the left is better. Settings whose mean ratio is infinite are left out.
    """
    shown = [point for point in points if point.setting.network in (None, network) and np.isfinite(point.mean[RATIO])]
    found = pareto_fronts(shown)
    trusts = sorted(trust for family, _, trust in found if family == "ec-l2o" and trust is not None)
    with apply_style():
        figure = new_figure(height=4.6)
        axes = figure.subplots()
        axes.set_yscale("log")
        for name, edge in found.items():
            family, _, trust = name
            look = _look(family, trust, trusts)
            label = f"EC-L2O, trust {trust:g}" if trust is not None else LABELS.get(family, family)
            members = [point for point in shown if family_of(point) == name]
            axes.scatter(*_coordinates(members), s=10, color=look.color, alpha=0.22, linewidth=0)
            _draw_front(axes, edge, look, label)
        axes.set_xlabel("average cost / oracle's average cost, mean over seeds")
        axes.set_ylabel("competitive ratio, mean over seeds (log scale)")
        low, high = axes.get_ylim()
        axes.set_yticks([tick for tick in _FRONT_TICKS if low <= tick <= high])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return figure


def _draw_front(axes, edge: Sequence[SweepPoint], look: Look, label: str) -> None:
    across, up = ([point.spread[name] for point in edge] for name in (COST, RATIO))
    whiskers = {"fmt": "none", "ecolor": look.color, "elinewidth": 0.7, "alpha": 0.6}
    axes.errorbar(*_coordinates(edge), xerr=across, yerr=up, **whiskers)
    axes.plot(*_coordinates(edge), marker=look.marker, markersize=4.5, label=label, **line_style(look))


def _coordinates(points: Sequence[SweepPoint]) -> tuple[list[float], list[float]]:
    return [point.mean[COST] for point in points], [point.mean[RATIO] for point in points]


def _look(family: str, trust: float | None, trusts: list[float]) -> Look:
    """A family's look; EC-L2O's go from light to dark with trust."""
    if family != "ec-l2o" or trust is None:
        return row_looks([family])[family] if family in LABELS else Look(GREY, "d", "-")
    place = trusts.index(trust)
    shade = 0.35 + 0.6 * place / max(len(trusts) - 1, 1)
    red, green, blue, _ = colormaps["Oranges"](shade)
    color = "#" + "".join(f"{round(255 * part):02x}" for part in (red, green, blue))
    return Look(color, _MARKERS[place % len(_MARKERS)], "-")


_ROOM = 0.12  # of an axis, on either side of what is drawn
_EDGE = 0.2  # of the axis for those at its edge: no promise, or an infinite ratio
_FRONTIER_TICKS = (1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500, 1000)


# A promise by its period; where contexts are known to lie in an interval the line is dashed and the marker hollow.
_PERIODS = {
    "day": Look(OLIVE, ">", "-"),
    "week": Look(PURPLE, "P", "-"),
    "month": Look(INDIGO, "<", "-"),
    "run": Look(BLACK, "*", "-"),
}
_DASHED = (0, (4, 2))


def draw_frontier(frontier: Frontier) -> Figure:
    """Two panels with one cost axis; down and left is better. What promises nothing stands at the right edge of the first."""
    with apply_style():
        figure = new_figure(height=4.4)
        promised, seen = figure.subplots(1, 2, sharey=True, width_ratios=(1.25, 1))
        _draw_promises(promised, frontier)
        _draw_worst(seen, frontier)
        promised.set_ylabel(f"average cost / that of the {frontier.unit}")
        costs = [point.average_cost for point in frontier.points]
        low, high = min(*costs, 1.0), max(costs)
        promised.set_ylim(low - 0.04 * (high - low), high + _ROOM * (high - low))
        figure.legend(handles=_legend(frontier, seen), loc="outside lower center", ncols=4)
        return figure


def _legend(frontier: Frontier, axes) -> list[Line2D]:
    """A line for each curve, and one for all that are drawn again for bounded contexts."""
    twins = {_label(point) for point in frontier.points if point.bounded}
    handles = [line for line in axes.get_lines() if line.get_label() not in twins]
    if twins:
        style = {"color": GREY, "marker": "o", "markerfacecolor": "white", "linestyle": _DASHED, "linewidth": 1.2}
        handles.append(Line2D([], [], label="dashed: bounded contexts", **style))
    return handles


def _draw_promises(axes, frontier: Frontier) -> None:
    kept = [point.promise for point in frontier.points if point.promise is not None]
    low, high = min(kept), max(kept)
    width = max(high - low, 0.1)
    start, end = low - _ROOM * width, high + 1.6 * _ROOM * width
    edge = end + _EDGE * width / 2
    axes.axvspan(start, frontier.smallest_ratio, color=LIGHT, alpha=0.6, linewidth=0)
    axes.axvspan(end, edge + (edge - end), color="#f4f4f4", linewidth=0)
    axes.axvline(end, color=GREY, linewidth=0.8, linestyle=(0, (2, 2)))
    for members in _curves(frontier.points):
        _plot(axes, members, [edge if point.promise is None else point.promise for point in members])
    axes.set_xlim(start, edge + (edge - end))
    ticks = [tick for tick in (1.5, 2, 2.5, 3, 4, 5, 7, 10) if start <= tick <= end]
    axes.set_xticks([*ticks, edge], [*(f"{tick:g}" for tick in ticks), "none"])
    axes.set_xlabel("promised ratio: cost ≤ ratio times optimum of the period")
    above = {"xycoords": axes.get_xaxis_transform(), "fontsize": 7, "color": GREY, "va": "bottom"}
    axes.annotate(f"not achievable: below {frontier.smallest_ratio:.3f}", (start, 1.01), **above)
    axes.annotate("no promise", (edge, 1.01), ha="center", **above)
    for point in frontier.points:
        if point.per == "day" and not point.bounded and point.promise is not None:
            where = point.promise, point.average_cost
            axes.annotate(f"{point.average_cost:.3f}", where, (4, 4), textcoords="offset points", fontsize=7)


def _draw_worst(axes, frontier: Frontier) -> None:
    finite = [point.competitive_ratio for point in frontier.points if np.isfinite(point.competitive_ratio)]
    largest = max(finite, default=2.0)
    unbounded = len(finite) < len(frontier.points)
    edge = largest**1.15
    axes.set_xscale("log")
    for members in _curves(frontier.points):
        shown = [point.competitive_ratio if np.isfinite(point.competitive_ratio) else edge for point in members]
        _plot(axes, members, shown)
    low, high = 1.0, (edge if unbounded else largest) ** 1.08
    axes.set_xlim(low, high)
    ticks = [tick for tick in _FRONTIER_TICKS if tick <= (largest if unbounded else high)]
    ticks = ticks[:: 1 if len(ticks) <= 8 else 2]
    names = [f"{tick:g}" for tick in ticks]
    axes.set_xticks([*ticks, edge] if unbounded else ticks, [*names, "∞"] if unbounded else names)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("worst single day on the test days (log scale)")


def _plot(axes, members: Sequence[FrontierPoint], ratios: list[float]) -> None:
    first = members[0]
    look = row_looks([first.family])[first.family] if first.per is None else _PERIODS[first.per]
    style = line_style(look) | {"marker": look.marker, "markersize": 6, "linewidth": 1.2}
    if first.bounded:
        style |= {"linestyle": _DASHED, "markerfacecolor": "white"}
    if len(members) == 1:
        style["linestyle"] = "none"
    axes.plot(ratios, [point.average_cost for point in members], label=_label(first), **style)


def _curves(points: Sequence[FrontierPoint]) -> list[list[FrontierPoint]]:
    """Points that belong together: a family, and of the guarded ones a period, with or without bounds; in the table's order."""
    curves: dict[tuple, list[FrontierPoint]] = {}
    for point in points:
        curves.setdefault((point.family, point.per, point.bounded), []).append(point)
    return list(curves.values())


def _label(point: FrontierPoint) -> str:
    """What the legend calls its curve.

    >>> _label(FrontierPoint("guarded", "2 per week", 2.0, 1.2, 2.0, 1.9, {}, "week", True))
    'promised per week, bounded contexts'
    """
    if point.per is None:
        return point.label
    return f"promised per {point.per}" + (", bounded contexts" if point.bounded else "")
