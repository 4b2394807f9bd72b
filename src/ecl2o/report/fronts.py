"""Figure: the fronts of a sweep, the paper's Figure 5c. EC-L2O has one front for each trust."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ecl2o.report.style import GREY, Look, house_style, line_style, looks, new_figure
from ecl2o.studies.fronts import COST, RATIO, Point, family_of, fronts

LABELS = {
    "pure-ml": "PureML, by kappa",
    "mla-robd": "MLA-ROBD, two stages, by trust",
    "switch": "Switch, by gamma",
    "guarded": "guarded regression, by promise and period",
    "r-obd": "R-OBD",
}
_MARKERS = "o^DvPX<>"
_TICKS = (1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500)


def draw_fronts(points: Sequence[Point], network: str) -> Figure:
    """Every setting as a faint point, the front of each family as a line; whiskers are one standard deviation over seeds.

    Down and to the left is better. Settings whose mean ratio is infinite are left out.
    """
    shown = [point for point in points if point.setting.network in (None, network) and np.isfinite(point.mean[RATIO])]
    found = fronts(shown)
    trusts = sorted(trust for family, _, trust in found if family == "ec-l2o" and trust is not None)
    with house_style():
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
        axes.set_yticks([tick for tick in _TICKS if low <= tick <= high])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return figure


def _draw_front(axes, edge: Sequence[Point], look: Look, label: str) -> None:
    across, up = ([point.spread[name] for point in edge] for name in (COST, RATIO))
    whiskers = {"fmt": "none", "ecolor": look.color, "elinewidth": 0.7, "alpha": 0.6}
    axes.errorbar(*_coordinates(edge), xerr=across, yerr=up, **whiskers)
    axes.plot(*_coordinates(edge), marker=look.marker, markersize=4.5, label=label, **line_style(look))


def _coordinates(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point.mean[COST] for point in points], [point.mean[RATIO] for point in points]


def _look(family: str, trust: float | None, trusts: list[float]) -> Look:
    """A family's look; EC-L2O's go from light to dark with trust."""
    if family != "ec-l2o" or trust is None:
        return looks([family])[family] if family in LABELS else Look(GREY, "d", "-")
    place = trusts.index(trust)
    shade = 0.35 + 0.6 * place / max(len(trusts) - 1, 1)
    red, green, blue, _ = colormaps["Oranges"](shade)
    color = "#" + "".join(f"{round(255 * part):02x}" for part in (red, green, blue))
    return Look(color, _MARKERS[place % len(_MARKERS)], "-")
