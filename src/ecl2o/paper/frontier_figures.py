"""Figures of a sweep (the Pareto fronts of the paper's Figure 5c) and of the frontier (what a promise costs)."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from ecl2o.paper.frontier import Frontier, FrontierPoint
from ecl2o.paper.pareto import COST, RATIO, SweepPoint, family_of, pareto_fronts
from ecl2o.plots import style
from ecl2o.plots.style import Look

LABELS = {
    "pure-ml": "PureML, by kappa",
    "mla-robd": "MLA-ROBD, two stages, by trust",
    "switch": "Switch, by gamma",
    "guarded": "guarded regression, by promise and period",
    "r-obd": "R-OBD",
}
_MARKERS = "o^DvPX<>"
_TICKS = (1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500, 1000)


@style.apply_style()
def draw_fronts(points: Sequence[SweepPoint], network: str) -> Figure:
    """Draw every setting as a faint point, the front of each family as a line; whiskers are one deviation over seeds.

    Down and to the left is better. Settings whose mean ratio is infinite are left out.
    """
    shown = [point for point in points if point.setting.network in (None, network) and np.isfinite(point.mean[RATIO])]
    fronts = pareto_fronts(shown)
    trusts = sorted(trust for family, _, trust in fronts if family == "ec-l2o" and trust is not None)
    figure = style.new_figure(height=4.6)
    axes = figure.subplots()
    axes.set_yscale("log")
    for name, front in fronts.items():
        family, _, trust = name
        look = _front_look(family, trust, trusts)
        label = f"EC-L2O, trust {trust:g}" if trust is not None else LABELS.get(family, family)
        members = _coordinates([point for point in shown if family_of(point) == name])
        axes.scatter(*members, s=10, color=look.color, alpha=0.22, linewidth=0)
        across, up = ([point.spread[part] for point in front] for part in (COST, RATIO))
        whiskers = {"fmt": "none", "ecolor": look.color, "elinewidth": 0.7, "alpha": 0.6}
        axes.errorbar(*_coordinates(front), xerr=across, yerr=up, **whiskers)
        axes.plot(*_coordinates(front), marker=look.marker, markersize=4.5, label=label, **style.line_style(look))
    axes.set_xlabel("average cost / oracle's average cost, mean over seeds")
    axes.set_ylabel("competitive ratio, mean over seeds (log scale)")
    style.label_log_axis(axes.yaxis, _TICKS)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _coordinates(points: Sequence[SweepPoint]) -> tuple[list[float], list[float]]:
    return [point.mean[COST] for point in points], [point.mean[RATIO] for point in points]


def _front_look(family: str, trust: float | None, trusts: list[float]) -> Look:
    """Return a family's look; EC-L2O's go from light to dark with trust."""
    if family != "ec-l2o" or trust is None:
        return style.row_looks([family])[family] if family in LABELS else Look(style.GREY, "d", "-")
    place = trusts.index(trust)
    shade = 0.35 + 0.6 * place / max(len(trusts) - 1, 1)
    return Look(to_hex(colormaps["Oranges"](shade)), _MARKERS[place % len(_MARKERS)], "-")


_SPACE = 0.12  # of an axis, on either side of what is drawn
_EDGE = 0.2  # of the axis for those at its edge: no promise, or an infinite ratio
# A promise by its period; where contexts are known to lie in an interval the line is dashed and the marker hollow.
_PERIODS = {
    "day": Look(style.OLIVE, ">", "-"),
    "week": Look(style.PURPLE, "P", "-"),
    "month": Look(style.INDIGO, "<", "-"),
    "run": Look(style.BLACK, "*", "-"),
}
_DASHED = (0, (4, 2))


@style.apply_style()
def draw_frontier(frontier: Frontier) -> Figure:
    """Draw cost against promise and against the worst day; down and left is better, no promise is at the right edge."""
    figure = style.new_figure(height=4.4)
    promised, seen = figure.subplots(1, 2, sharey=True, width_ratios=(1.25, 1))
    _draw_promises(promised, frontier)
    _draw_worst(seen, frontier)
    promised.set_ylabel(f"average cost / that of the {frontier.unit}")
    costs = [point.average_cost for point in frontier.points]
    low, high = min(*costs, 1.0), max(costs)
    promised.set_ylim(low - 0.04 * (high - low), high + _SPACE * (high - low))
    figure.legend(handles=_legend(frontier, seen), loc="outside lower center", ncols=4)
    return figure


def _legend(frontier: Frontier, axes) -> list[Line2D]:
    """Return a line for each curve, and one for all that are drawn again for bounded contexts."""
    twins = {_label(point) for point in frontier.points if point.bounded}
    handles = [line for line in axes.get_lines() if line.get_label() not in twins]
    if twins:
        look = {"color": style.GREY, "marker": "o", "markerfacecolor": "white", "linestyle": _DASHED, "linewidth": 1.2}
        handles.append(Line2D([], [], label="dashed: bounded contexts", **look))
    return handles


def _draw_promises(axes, frontier: Frontier) -> None:
    promises = [point.promised_ratio for point in frontier.points if point.promised_ratio is not None]
    low, high = min(promises), max(promises)
    width = max(high - low, 0.1)
    start, end = low - _SPACE * width, high + 1.6 * _SPACE * width
    edge = end + _EDGE * width / 2
    axes.axvspan(start, frontier.smallest_ratio, color=style.LIGHT, alpha=0.6, linewidth=0)
    axes.axvspan(end, edge + (edge - end), color="#f4f4f4", linewidth=0)
    axes.axvline(end, color=style.GREY, linewidth=0.8, linestyle=(0, (2, 2)))
    _draw_curves(axes, frontier, [point.promised_ratio or edge for point in frontier.points])
    axes.set_xlim(start, edge + (edge - end))
    ticks = [tick for tick in (1.5, 2, 2.5, 3, 4, 5, 7, 10) if start <= tick <= end]
    axes.set_xticks([*ticks, edge], [*(f"{tick:g}" for tick in ticks), "none"])
    axes.set_xlabel("promised ratio: cost ≤ ratio times optimum of the period")
    above = {"xycoords": axes.get_xaxis_transform(), "fontsize": 7, "color": style.GREY, "va": "bottom"}
    axes.annotate(f"not achievable: below {frontier.smallest_ratio:.3f}", (start, 1.01), **above)
    axes.annotate("no promise", (edge, 1.01), ha="center", **above)
    for point in frontier.points:
        if point.per == "day" and not point.bounded and point.promised_ratio is not None:
            where = point.promised_ratio, point.average_cost
            axes.annotate(f"{point.average_cost:.3f}", where, (4, 4), textcoords="offset points", fontsize=7)


def _draw_worst(axes, frontier: Frontier) -> None:
    ratios = np.array([point.competitive_ratio for point in frontier.points])
    finite = np.isfinite(ratios)
    largest = float(np.max(ratios[finite])) if finite.any() else 2.0
    unbounded, edge = not finite.all(), largest**1.15
    axes.set_xscale("log")
    _draw_curves(axes, frontier, np.where(finite, ratios, edge).tolist())
    high = (edge if unbounded else largest) ** 1.08
    axes.set_xlim(1.0, high)
    ticks = [tick for tick in _TICKS if tick <= (largest if unbounded else high)]
    ticks = ticks[:: 1 if len(ticks) <= 8 else 2]
    names = [f"{tick:g}" for tick in ticks]
    axes.set_xticks([*ticks, edge] if unbounded else ticks, [*names, "∞"] if unbounded else names)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("worst single day on the test days (log scale)")


def _draw_curves(axes, frontier: Frontier, ratios: Sequence[float]) -> None:
    """Draw costs against ratios, a curve per family; of guarded rows a curve per period, with and without bounds."""
    curves: dict[tuple, list[tuple[float, FrontierPoint]]] = {}
    for ratio, point in zip(ratios, frontier.points, strict=True):
        curves.setdefault((point.family, point.per, point.bounded), []).append((ratio, point))
    for (family, per, bounded), members in curves.items():
        look = style.row_looks([family])[family] if per is None else _PERIODS[per]
        line = style.line_style(look) | {"marker": look.marker, "markersize": 6, "linewidth": 1.2}
        if bounded:
            line |= {"linestyle": _DASHED, "markerfacecolor": "white"}
        if len(members) == 1:
            line["linestyle"] = "none"
        places = [(ratio, point.average_cost) for ratio, point in members]
        axes.plot(*zip(*places, strict=True), label=_label(members[0][1]), **line)


def _label(point: FrontierPoint) -> str:
    if point.per is None:
        return point.label
    return f"promised per {point.per}" + (", bounded contexts" if point.bounded else "")
