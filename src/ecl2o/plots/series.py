"""Figures of a series of one's own: what alpha does to it, and a week of a fitted policy."""

import numpy as np
import pandas as pd
from matplotlib import dates
from matplotlib.figure import Figure

from ecl2o.agents import ROBD
from ecl2o.data import Contexts
from ecl2o.fitting.alpha_study import AlphaStudy
from ecl2o.fitting.pipeline import FittedSeries
from ecl2o.plots.style import BLACK, BLUE, LIGHT, ORANGE, VERMILLION, apply_style, line_style, new_figure, row_looks
from ecl2o.running import stream_days

_DAYS = 7


def find_median_week(oracle_cost: np.ndarray) -> tuple[int, int]:
    """The first day of the week and how many days there are."""
    n = len(oracle_cost)
    if n < _DAYS:
        return 0, n
    starts = np.arange(0, n - _DAYS + 1, _DAYS)
    costs = np.array([oracle_cost[start : start + _DAYS].sum() for start in starts])
    return int(starts[np.argsort(costs)[len(costs) // 2]]), _DAYS


def slice_days(time, first: int, days: int, per_day: int):
    """Return the times of some consecutive days."""
    return time[first * per_day : (first + days) * per_day]


def draw_policy_week(fitted: FittedSeries, contexts: Contexts) -> Figure:
    """Contexts, the policy, R-OBD and the optimum, in the week of the test days whose optimum costs the median."""
    test_days, policy = fitted.test_days, fitted.policy
    assert test_days.whole_span_optimum is not None
    first, days = find_median_week(np.asarray(test_days.whole_span_optimum.cost))
    shown = slice(first, first + days)
    runs = {
        "optimum": (test_days.whole_span_optimum.actions, {"color": BLACK, "linestyle": (0, (2, 1)), "linewidth": 1.2}),
        "R-OBD": (_play(fitted, ROBD(), None), {"color": BLUE, "linestyle": (0, (5, 2))}),
        f"your policy ({fitted.chosen.name})": (
            _play(fitted, policy.agent, policy.forecaster),
            {"color": ORANGE, "linewidth": 2},
        ),
    }
    steps = contexts.steps_per_day
    time = to_wall_clock(contexts.test_time())[first * steps : (first + days) * steps]
    followed = sum_coordinates(np.asarray(test_days.days[shown])[..., : contexts.action_dim]).reshape(-1)
    columns = (policy.contract.columns or ["context"])[: contexts.action_dim]
    with apply_style():
        figure = new_figure(height=3.2)
        axes = figure.subplots()
        axes.fill_between(time, followed, color=LIGHT, label="context")
        for label, (actions, style) in runs.items():
            axes.plot(time, sum_coordinates(np.asarray(actions)[shown]).reshape(-1), label=label, **style)
        low, high = float(followed.min()), float(followed.max())
        axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
        axes.margins(x=0)
        axes.set_ylabel(columns[0] if len(columns) == 1 else "sum of the columns")
        axes.xaxis.set_major_locator(dates.DayLocator(interval=max(1, count_days(time) // 7)))
        axes.xaxis.set_major_formatter(dates.DateFormatter("%d %b"))
        axes.set_xlabel(f"time, from {time[0]:%d %B %Y} (alpha = {float(policy.problem.alpha):g})")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
        return figure


def _play(fitted: FittedSeries, agent, forecaster):
    own = fitted.policy.history
    test_days = fitted.test_days if own is None else fitted.test_days.with_history(len(own))
    return stream_days(agent, test_days.problem, test_days.x0, test_days.days, test_days.history, forecaster)[0].actions


def to_wall_clock(time: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """What the clock on the wall showed; drawn otherwise, times with a zone would be moved to UTC.

    >>> to_wall_clock(pd.DatetimeIndex(["2015-01-01 00:00-05:00"]))[0]
    Timestamp('2015-01-01 00:00:00')
    """
    return time.tz_localize(None)


def count_days(time: pd.DatetimeIndex) -> int:
    """How many days lie between the first and the last of these times.

    >>> count_days(pd.date_range("2015-01-01", periods=49, freq="h"))
    2
    """
    return int((time.to_numpy()[-1] - time.to_numpy()[0]) // np.timedelta64(1, "D"))


def sum_coordinates(values: np.ndarray) -> np.ndarray:
    """(..., T, d) -> (..., T): the sum over coordinates, the value itself where there is one."""
    return np.asarray(values).sum(axis=-1)


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
