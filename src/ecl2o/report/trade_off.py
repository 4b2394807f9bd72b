"""Figure: average cost against competitive ratio, and the settings that nothing else of their family beats."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from ecl2o.report.style import house_style, line_style, looks, new_figure
from ecl2o.report.table import shown
from ecl2o.studies.results import Study, TradeOffPoint


def draw_trade_off(study: Study) -> Figure:
    """Every setting as a point; a line joins those of a family that are not dominated. Down and left is better."""
    hidden = set(study.entries) - {row.name for row in shown(study)}
    points = [
        point
        for point in study.trade_off
        if point.family not in hidden and np.isfinite([point.average_cost, point.competitive_ratio]).all()
    ]
    families = list(dict.fromkeys(point.family for point in points))
    look = looks(families)
    with house_style():
        figure = new_figure(height=3.8)
        axes = figure.subplots()
        axes.set_yscale("log")
        for family in families:
            members = [point for point in points if point.family == family]
            boundary = pareto(members)
            label = study.entries[family].label if family in study.entries else family
            spots: dict[str, Any] = {"marker": look[family].marker, "color": look[family].color}
            axes.scatter(*_coordinates(members), s=22, alpha=0.35, linewidth=0, **spots)
            axes.plot(*_coordinates(boundary), markersize=6, label=label, **line_style(look[family]) | spots)
        axes.set_xlabel("average cost / oracle's average cost")
        axes.set_ylabel("competitive ratio (log scale)")
        low, high = axes.get_ylim()
        axes.set_yticks(
            [tick for tick in (1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500) if low <= tick <= high]
        )
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
        return figure


def pareto(points: Sequence[TradeOffPoint]) -> list[TradeOffPoint]:
    """The points that no other beats in both figures, by average cost.

    >>> a, b, c = (TradeOffPoint("f", s, x, y) for s, x, y in (("a", 1.0, 3.0), ("b", 2.0, 1.5), ("c", 2.5, 1.5)))
    >>> [point.setting for point in pareto([c, b, a])]
    ['a', 'b']
    """
    kept: list[TradeOffPoint] = []
    for point in sorted(points, key=lambda point: (point.average_cost, point.competitive_ratio)):
        if not kept or point.competitive_ratio < kept[-1].competitive_ratio:
            kept.append(point)
    return kept


def _coordinates(points: Sequence[TradeOffPoint]) -> tuple[list[float], list[float]]:
    return [point.average_cost for point in points], [point.competitive_ratio for point in points]
