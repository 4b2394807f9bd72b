"""Figure: what alpha does to a series: misses against moves, and the same days followed with little, some and much of it."""

import numpy as np
import pandas as pd
from matplotlib import dates
from matplotlib.figure import Figure

from ecl2o.fitting.alpha_study import AlphaStudy
from ecl2o.plots.policy_week import count_days, sum_coordinates, to_wall_clock
from ecl2o.plots.style import BLACK, BLUE, LIGHT, ORANGE, VERMILLION, apply_style, line_style, new_figure, row_looks

_SHOWN_DAYS = 3
_COLORS = (BLUE, ORANGE, VERMILLION)
_DASHES = ("-", (0, (5, 2)), (0, (1, 1)))


def draw_alphas(
    study: AlphaStudy, time: pd.DatetimeIndex, steps_per_day: int, unit: str = "units of the file"
) -> Figure:
    """Left the choice, right what it looks like; `time` is that of the study's contexts."""
    with apply_style():
        figure = new_figure(height=4.0)
        choice, days = figure.subplots(1, 2, width_ratios=(1, 1.25))
        _draw_choice(choice, study, unit)
        _draw_days(days, study, to_wall_clock(time), steps_per_day, unit)
        figure.legend(*days.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return figure


def _draw_choice(axes, study: AlphaStudy, unit: str) -> None:
    look = row_looks(["oracle", "r-obd"])
    for name, label in (("oracle", "in hindsight"), ("r-obd", "R-OBD")):
        found = [row.hindsight if name == "oracle" else row.expert for row in study.rows]
        moves, misses = [one.move for one in found], [one.miss for one in found]
        axes.plot(moves, misses, marker=look[name].marker, label=label, **line_style(look[name]))
        if name == "r-obd":
            for row, where in zip(study.rows, zip(moves, misses, strict=True), strict=True):
                axes.annotate(f"{row.alpha:g}", where, (5, 2), textcoords="offset points", fontsize=7)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"mean change in a step ({unit})")
    axes.set_ylabel(f"mean miss in a step ({unit})")
    axes.set_title("the choice, by alpha")
    axes.legend(loc="upper right")


def _draw_days(axes, study: AlphaStudy, time: pd.DatetimeIndex, steps_per_day: int, unit: str) -> None:
    steps = min(_SHOWN_DAYS * steps_per_day, len(time))
    first = _find_median_stretch(sum_coordinates(study.contexts), steps, steps_per_day)
    shown = slice(first, first + steps)
    axes.fill_between(time[shown], sum_coordinates(study.contexts)[shown], color=LIGHT, label="context")
    places = sorted({0, len(study.rows) // 2, len(study.rows) - 1})
    for place, color, dash in zip(places, _COLORS, _DASHES, strict=False):
        label = f"hindsight, alpha {study.rows[place].alpha:g}"
        axes.plot(time[shown], sum_coordinates(study.hindsight[place])[shown], color=color, linestyle=dash, label=label)
    middle = len(study.rows) // 2
    label = f"R-OBD, alpha {study.rows[middle].alpha:g}"
    axes.plot(
        time[shown],
        sum_coordinates(study.expert[middle])[shown],
        color=BLACK,
        linewidth=1,
        linestyle=(0, (3, 1, 1, 1)),
        label=label,
    )
    low, high = sum_coordinates(study.contexts)[shown].min(), sum_coordinates(study.contexts)[shown].max()
    axes.set_ylim(low - 0.15 * (high - low), high + 0.1 * (high - low))
    axes.margins(x=0)
    axes.xaxis.set_major_locator(dates.DayLocator(interval=max(1, count_days(time[shown]) // 4)))
    axes.xaxis.set_major_formatter(dates.DateFormatter("%d %b"))
    axes.set_ylabel(unit if study.contexts.shape[-1] == 1 else f"sum of the columns ({unit})")
    axes.set_title("days of median movement")


def _find_median_stretch(values: np.ndarray, steps: int, steps_per_day: int) -> int:
    """The start of the stretch of `steps` steps whose contexts move as much as the median stretch."""
    starts = np.arange(0, len(values) - steps + 1, steps_per_day)
    moved = [np.abs(np.diff(values[start : start + steps])).sum() for start in starts]
    return int(starts[np.argsort(moved)[len(moved) // 2]])
