"""The frontier's figure shows every point where it belongs, at the edge if it belongs nowhere else."""

import dataclasses
import math

import numpy as np
import pytest

from ecl2o.paper.frontier_figures import draw_frontier
from ecl2o.plots.style import save_figure

from .fake_frontier import GUARDED, fake_frontier


def lines(axes):
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def test_promises_and_their_absence():
    frontier = fake_frontier()
    promised, _ = draw_frontier(frontier).axes
    drawn = lines(promised)
    np.testing.assert_array_equal(np.transpose(drawn["promised per day"].get_data()), GUARDED)
    np.testing.assert_array_equal(drawn["R-OBD"].get_xdata(), [1.729844])
    without = {point.label for point in frontier.points if point.promised_ratio is None}
    edge = {drawn[label].get_xdata()[0] for label in without}
    assert len(edge) == 1
    (place,) = edge
    assert max(ratio for ratio, _ in GUARDED) < place < promised.get_xlim()[1]
    ticks = dict(zip(promised.get_xticks(), [text.get_text() for text in promised.get_xticklabels()], strict=True))
    assert ticks[place] == "none"


@pytest.mark.parametrize("cheaper", [0.0, 0.15])  # who prepares for tomorrow pays less than the daily oracle
def test_the_worst_seen_is_on_a_log_axis_and_everything_is_inside(cheaper):
    frontier = fake_frontier()
    frontier.points[:] = [dataclasses.replace(p, average_cost=p.average_cost - cheaper) for p in frontier.points]
    figure = draw_frontier(frontier)
    _, seen = figure.axes
    assert seen.get_xscale() == "log"
    assert len(lines(seen)) == len({(point.family, point.per, point.bounded) for point in frontier.points})
    for axes in figure.axes:
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        for line in lines(axes).values():
            x, y = map(np.asarray, line.get_data())
            assert ((left <= x) & (x <= right) & (bottom <= y) & (y <= top)).all(), line.get_label()


def test_the_whole_legend_is_inside_the_figure():
    figure = draw_frontier(fake_frontier())
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 < box.x1 <= whole.x1
    assert whole.y0 <= box.y0 < box.y1 <= whole.y1


def test_an_infinite_ratio_stands_at_the_edge():
    _, seen = draw_frontier(fake_frontier(worst=math.inf)).axes
    (place,) = lines(seen)["PureML-0"].get_xdata()
    ticks = dict(zip(seen.get_xticks(), [text.get_text() for text in seen.get_xticklabels()], strict=True))
    assert np.isfinite(place)
    assert ticks[place] == "∞"


def test_no_two_families_look_alike():
    _, seen = draw_frontier(fake_frontier()).axes
    kinds = [(line.get_marker(), line.get_markerfacecolor()) for line in lines(seen).values()]
    assert len(set(kinds)) == len(kinds)
    colours = [line.get_color() for line in lines(seen).values() if line.get_markerfacecolor() != "white"]
    assert len(set(colours)) == len(colours)


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_it_is_written(tmp_path, kind):
    save_figure(draw_frontier(fake_frontier()), tmp_path / f"frontier.{kind}")
    assert (tmp_path / f"frontier.{kind}").stat().st_size > 5000
