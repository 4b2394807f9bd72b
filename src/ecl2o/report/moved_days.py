"""Figure: what rows cost on training days that were moved by known amounts, against how far."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ecl2o.report.style import house_style, line_style, looks, new_figure
from ecl2o.studies.results import Study

_PANELS = (("offset", "a number added to every context"), ("factor", "every context times a number"))


def draw_moved_days(study: Study) -> Figure:
    """Average cost over the oracle's, mean and standard deviation over seeds; the amounts are on the axis below."""
    cases = study.extra["shift"]["moved"]
    names = list(cases[0]["cost"])
    look = looks(names)
    with house_style():
        figure = new_figure(height=3.4)
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (what, title) in zip(panels, _PANELS, strict=True):
            still = {**cases[0], "amount": 0.0 if what == "offset" else 1.0}
            shown = sorted(
                [still, *(case for case in cases[1:] if case["what"] == what)], key=lambda case: case["amount"]
            )
            amounts = [case["amount"] for case in shown]
            for name in names:
                means, spreads = (np.array([case["cost"][name][part] for case in shown]) for part in ("mean", "std"))
                axes.plot(
                    amounts, means, marker=look[name].marker, label=study.entries[name].label, **line_style(look[name])
                )
                axes.fill_between(
                    amounts, means - spreads, means + spreads, color=look[name].color, alpha=0.15, linewidth=0
                )
            axes.set_title(title)
            distances = [f"{case['amount']:g}\n{case['distance']:.2f}" for case in shown]
            axes.set_xticks(amounts, distances, fontsize=7)
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_xlabel("amount; below it, the distance W1")
        panels[0].set_ylabel("average cost / oracle's (log scale)")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
        return figure
