"""Figure: the worst day of a learned row, and what every row did on it."""

from matplotlib import dates
from matplotlib.figure import Figure

from ecl2o.report.style import BLACK, LIGHT, house_style, looks, new_figure
from ecl2o.report.units import clock, totals, units_of
from ecl2o.studies.results import Study

_COLUMNS = 4


def draw_worst_day(study: Study) -> Figure:
    """One small panel per row, all on the same axes, with the context and the oracle in each."""
    day, units = study.worst_day, units_of(study)
    time = clock(day.time)
    names = [name for name in day.actions if name != "oracle"]
    look = looks(list(day.actions))
    scale = units.factor if units.common else 1.0
    lines = -(-len(names) // _COLUMNS)
    with house_style():
        figure = new_figure(height=0.9 + 1.35 * lines)
        panels = list(figure.subplots(lines, _COLUMNS, sharex=True, sharey=True, squeeze=False).flat)
        for axes in panels[len(names) :]:
            axes.set_visible(False)
        for place, (axes, name) in enumerate(zip(panels, names, strict=False)):
            if units.common:
                axes.fill_between(time, totals(day.contexts) * scale, color=LIGHT, label="context")
            if "oracle" in day.actions:
                best = totals(day.actions["oracle"]) * scale
                axes.plot(
                    time, best, color=BLACK, linewidth=1, linestyle=(0, (2, 1)), label="oracle, from its own start"
                )
            axes.plot(time, totals(day.actions[name]) * scale, color=look[name].color, linewidth=2, label="this row")
            axes.set_title(f"{study.entries[name].label}\nratio {day.ratios[name]:.3g}", fontsize=8)
            axes.xaxis.set_major_locator(dates.HourLocator(byhour=(0, 12)))
            axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
            axes.margins(x=0)
            axes.tick_params(labelbottom=place + _COLUMNS >= len(names))
        figure.supxlabel(f"hour of {time[0]:%d %B}", fontsize=9)
        figure.supylabel(units.action, fontsize=9)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
        return figure
