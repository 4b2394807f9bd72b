"""Figures of a series of one's own: what alpha does to it, and a week of a fitted policy."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ecl2o.agents import ROBD
from ecl2o.data import Contexts
from ecl2o.fitting.alpha_study import AlphaStudy
from ecl2o.fitting.pipeline import FittedSeries
from ecl2o.plots import style
from ecl2o.running import stream_days

_DAYS = 7


def find_median_week(oracle_cost: np.ndarray) -> slice:
    """Return the days of the week of median cost; all days if there are fewer than seven."""
    n = len(oracle_cost)
    if n < _DAYS:
        return slice(0, n)
    weekly = oracle_cost[: n // _DAYS * _DAYS].reshape(-1, _DAYS).sum(axis=1)
    first = _DAYS * int(np.argsort(weekly)[len(weekly) // 2])
    return slice(first, first + _DAYS)


@style.apply_style()
def draw_policy_week(fitted: FittedSeries, contexts: Contexts) -> Figure:
    """Draw contexts, the policy, R-OBD and the optimum, in the week of the test days whose optimum costs the median."""
    test_days, policy = fitted.test_days, fitted.policy
    assert test_days.whole_span_optimum is not None
    week = find_median_week(np.asarray(test_days.whole_span_optimum.cost))
    optimum = test_days.whole_span_optimum.actions
    runs = (
        ("optimum", optimum, {"color": style.BLACK, "linestyle": (0, (2, 1)), "linewidth": 1.2}),
        ("R-OBD", _play(fitted, ROBD(), None), {"color": style.BLUE, "linestyle": (0, (5, 2))}),
        (fitted.own.name, _play(fitted, policy.agent, policy.forecaster), {"color": style.ORANGE, "linewidth": 2}),
    )
    steps = contexts.steps_per_day
    time = to_wall_clock(contexts.test_time())[week.start * steps : week.stop * steps]
    followed = sum_coordinates(np.asarray(test_days.days[week])[..., : contexts.action_dim]).reshape(-1)
    columns = (policy.contract.columns or ["context"])[: contexts.action_dim]
    figure = style.new_figure(height=3.2)
    axes = figure.subplots()
    axes.fill_between(time, followed, color=style.LIGHT, label="context")
    for label, actions, look in runs:
        axes.plot(time, sum_coordinates(actions)[week].reshape(-1), label=label, **look)
    low, high = float(followed.min()), float(followed.max())
    axes.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
    axes.margins(x=0)
    axes.set_ylabel(columns[0] if len(columns) == 1 else "sum of the columns")
    style.label_days(axes, max(1, count_days(time) // 7))
    axes.set_xlabel(f"time, from {time[0]:%d %B %Y} (alpha = {float(policy.problem.alpha):g})")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def fit_page(
    name: str, about: str, title: str, table: tuple[list[str], list[list[str]]], notes: Sequence[str], folder: Path
) -> str:
    """Return the report of a fit as one page that needs nothing but itself.

    Args:
        name: of the file.
        about: what of it is followed.
        title: of the table.
        table: its headings and its cells.
        notes: what it means.
        folder: with the figure of a week.
    """
    cells = [[first, *map(escape, rest)] for first, *rest in table[1]]
    caption = "The week of the test days whose optimum has the median cost."
    svg = (folder / "figures" / "week.svg").read_bytes()
    parts = [
        f'<header>\n<p class="kind">ecl2o, fit</p>\n<h1>{escape(name)}</h1>\n<p class="facts">{escape(about)}</p>\n</header>',
        style.html_section(title, style.html_table(table[0], cells)),
        style.html_section("What it means", "\n".join(f"<p>{escape(note)}</p>" for note in notes)),
        style.html_section("A week", style.html_figure(svg, "Contexts and actions over a week", caption, "week")),
    ]
    return style.html_page(f"{name}: ecl2o", [*parts, style.html_date()])


def _play(fitted: FittedSeries, agent, forecaster):
    own = fitted.policy.history
    test_days = fitted.test_days if own is None else fitted.test_days.with_history(len(own))
    return stream_days(agent, test_days.problem, test_days.x0, test_days.days, test_days.history, forecaster)[0].actions


def to_wall_clock(time: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """Return times as the clock on the wall showed them; matplotlib would move times with a zone to UTC.

    >>> to_wall_clock(pd.DatetimeIndex(["2015-01-01 00:00-05:00"]))[0]
    Timestamp('2015-01-01 00:00:00')
    """
    return time.tz_localize(None)


def count_days(time: pd.DatetimeIndex) -> int:
    """Return how many whole days lie between the first and the last of these times.

    >>> count_days(pd.date_range("2015-01-01", periods=49, freq="h"))
    2
    """
    return int((time.to_numpy()[-1] - time.to_numpy()[0]) // np.timedelta64(1, "D"))


def sum_coordinates(values) -> np.ndarray:
    """Return the sum over coordinates, (..., T, d) -> (..., T); the value itself where there is one."""
    return np.asarray(values).sum(axis=-1)


_SHOWN_DAYS = 3
_LINES = ((style.BLUE, "-"), (style.ORANGE, (0, (5, 2))), (style.VERMILLION, (0, (1, 1))))


@style.apply_style()
def draw_alphas(
    study: AlphaStudy, time: pd.DatetimeIndex, steps_per_day: int, unit: str = "units of the file"
) -> Figure:
    """Draw the choice on the left, and what it looks like on the right; `time` is that of the study's contexts."""
    figure = style.new_figure(height=4.0)
    choice, days = figure.subplots(1, 2, width_ratios=(1, 1.25))
    _draw_choice(choice, study, unit)
    _draw_days(days, study, to_wall_clock(time), steps_per_day, unit)
    figure.legend(*days.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_choice(axes, study: AlphaStudy, unit: str) -> None:
    looks = style.row_looks(["oracle", "r-obd"])
    for name, label in (("oracle", "in hindsight"), ("r-obd", "R-OBD")):
        found = [row.hindsight if name == "oracle" else row.expert for row in study.rows]
        moves, misses = [one.move for one in found], [one.miss for one in found]
        axes.plot(moves, misses, marker=looks[name].marker, label=label, **style.line_style(looks[name]))
    for row in study.rows:
        where = row.expert.move, row.expert.miss
        axes.annotate(f"{row.alpha:g}", where, (5, 2), textcoords="offset points", fontsize=7)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"mean change in a step ({unit})")
    axes.set_ylabel(f"mean miss in a step ({unit})")
    axes.set_title("the choice, by alpha")
    axes.legend(loc="upper right")


def _draw_days(axes, study: AlphaStudy, time: pd.DatetimeIndex, steps_per_day: int, unit: str) -> None:
    contexts, middle = sum_coordinates(study.contexts), len(study.rows) // 2
    steps = min(_SHOWN_DAYS * steps_per_day, len(time))
    first = _find_median_stretch(contexts, steps, steps_per_day)
    shown = slice(first, first + steps)
    time, contexts = time[shown], contexts[shown]
    axes.fill_between(time, contexts, color=style.LIGHT, label="context")
    for place, (color, dash) in zip(sorted({0, middle, len(study.rows) - 1}), _LINES, strict=False):
        label = f"hindsight, alpha {study.rows[place].alpha:g}"
        axes.plot(time, sum_coordinates(study.hindsight[place])[shown], color=color, linestyle=dash, label=label)
    look = {"color": style.BLACK, "linewidth": 1, "linestyle": (0, (3, 1, 1, 1))}
    expert = sum_coordinates(study.expert[middle])[shown]
    axes.plot(time, expert, label=f"R-OBD, alpha {study.rows[middle].alpha:g}", **look)
    low, high = contexts.min(), contexts.max()
    axes.set_ylim(low - 0.15 * (high - low), high + 0.1 * (high - low))
    axes.margins(x=0)
    style.label_days(axes, max(1, count_days(time) // 4))
    axes.set_ylabel(unit if study.contexts.shape[-1] == 1 else f"sum of the columns ({unit})")
    axes.set_title("days of median movement")


def _find_median_stretch(values: np.ndarray, steps: int, steps_per_day: int) -> int:
    """Return the start of the stretch of `steps` steps whose contexts move as much as the median stretch."""
    starts = np.arange(0, len(values) - steps + 1, steps_per_day)
    moved = [np.abs(np.diff(values[start : start + steps])).sum() for start in starts]
    return int(starts[np.argsort(moved)[len(moved) // 2]])
