"""Figure: a week of contexts and what the oracle, the cheapest row and the expert did.

Figure: a week of what a fitted policy does on days that it has not seen.
"""

import numpy as np
import pandas as pd
from matplotlib import dates
from matplotlib.figure import Figure

from ecl2o.agents import ROBD
from ecl2o.data import Contexts
from ecl2o.fitting.pipeline import FittedSeries
from ecl2o.plots.style import BLACK, BLUE, LIGHT, ORANGE, apply_style, new_figure
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
    bed, policy = fitted.bed, fitted.policy
    assert bed.whole_span_optimum is not None
    first, days = find_median_week(np.asarray(bed.whole_span_optimum.cost))
    shown = slice(first, first + days)
    runs = {
        "optimum": (bed.whole_span_optimum.actions, {"color": BLACK, "linestyle": (0, (2, 1)), "linewidth": 1.2}),
        "R-OBD": (_play(fitted, ROBD(), None), {"color": BLUE, "linestyle": (0, (5, 2))}),
        f"your policy ({fitted.chosen.name})": (
            _play(fitted, policy.agent, policy.forecaster),
            {"color": ORANGE, "linewidth": 2},
        ),
    }
    steps = contexts.steps_per_day
    time = to_wall_clock(contexts.test_time())[first * steps : (first + days) * steps]
    followed = sum_coordinates(np.asarray(bed.days[shown])[..., : contexts.action_dim]).reshape(-1)
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
    bed = fitted.bed if own is None else fitted.bed.with_history(len(own))
    return stream_days(agent, bed.problem, bed.x0, bed.days, bed.history, forecaster)[0].actions


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
