"""Figure: a week of contexts and what the oracle, the cheapest row and the expert did."""

import numpy as np
from matplotlib import dates
from matplotlib.figure import Figure

from ecl2o.report.style import BLACK, LIGHT, house_style, line_style, looks, new_figure
from ecl2o.report.table import best
from ecl2o.report.units import clock, totals, units_of
from ecl2o.studies.results import Study

_DAYS = 7


def draw_week(study: Study) -> Figure:
    """The week whose optimum costs the median of all test weeks (first seed)."""
    units, rows = units_of(study), study.entries
    shown = dict.fromkeys(("oracle", best(study, "average_cost").name, "r-obd"))
    shown = [name for name in shown if name in rows]
    first, days = median_week(rows["oracle"].scores[0].cost)
    time = _days_of(clock(study.contexts.test_time()), first, days, study.contexts.steps_per_day)
    contexts = study.contexts.test_days().days[first : first + days].reshape(-1, study.contexts.dim)
    with house_style():
        figure = new_figure(height=2.8 if units.common else 3.8)
        panels = figure.subplots(1 if units.common else 2, 1, sharex=True, squeeze=False)[:, 0]
        panels[0].fill_between(time, totals(contexts) * units.factor, color=LIGHT, step=None, label="context")
        panels[0].set_ylabel(units.context)
        for name in shown:
            actions = np.asarray(rows[name].scores[0].runs.actions)[first : first + days]
            values = totals(actions).reshape(-1) * (units.factor if units.common else 1.0)
            style = line_style(looks(list(rows))[name]) | (
                {"color": BLACK, "linewidth": 1.2} if name == "oracle" else {}
            )
            panels[-1].plot(time, values, label=f"{rows[name].label}'s action", **style)
        panels[-1].set_ylabel(units.action)
        for axes in panels:
            axes.set_ylim(bottom=0)
            axes.margins(x=0)
        panels[-1].xaxis.set_major_locator(dates.DayLocator())
        panels[-1].xaxis.set_major_formatter(dates.DateFormatter("%d %b"))
        panels[-1].set_xlabel("time (ticks at midnight)")
        handles = [entry for axes in panels for entry in zip(*axes.get_legend_handles_labels(), strict=True)]
        figure.legend(*zip(*handles, strict=True), loc="outside lower center", ncols=4)
        return figure


def median_week(oracle_cost: np.ndarray) -> tuple[int, int]:
    """The first day of the week and how many days there are."""
    n = len(oracle_cost)
    if n < _DAYS:
        return 0, n
    starts = np.arange(0, n - _DAYS + 1, _DAYS)
    costs = np.array([oracle_cost[start : start + _DAYS].sum() for start in starts])
    return int(starts[np.argsort(costs)[len(costs) // 2]]), _DAYS


def _days_of(time, first: int, days: int, per_day: int):
    return time[first * per_day : (first + days) * per_day]
