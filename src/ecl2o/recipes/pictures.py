"""A fitted policy as a picture: a week of it, and how it compares."""

from typing import Any

import numpy as np
import pandas as pd

_CONTEXT, _ACTION, _AVERAGE, _WORST = "#767676", "#0072B2", "#0072B2", "#E69F00"


def draw_fitted(contexts: pd.DataFrame, actions: pd.DataFrame, table: pd.DataFrame) -> np.ndarray:
    """Two axes beside each other: contexts and actions over time, and average cost and worst day as bars."""
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", width_ratios=(3, 2))
    _draw_week(axes[0], contexts, actions)
    _draw_bars(axes[1], table)
    return axes


def _draw_week(axes: Any, contexts: pd.DataFrame, actions: pd.DataFrame) -> None:
    for name in contexts.columns:
        axes.plot(contexts.index, contexts[name], color=_CONTEXT, linewidth=1, label=f"{name}: asked")
        axes.plot(actions.index, actions[name], color=_ACTION, linewidth=1.5, label=f"{name}: done")
    axes.set_title("The last week")
    axes.tick_params(axis="x", rotation=30)
    if len(contexts.columns) == 1:
        axes.legend(frameon=False)


def _draw_bars(axes: Any, table: pd.DataFrame) -> None:
    places = np.arange(len(table))
    for offset, name, colour in ((0.2, "average cost", _AVERAGE), (-0.2, "worst day", _WORST)):
        bars = axes.barh(places + offset, table[name], 0.38, color=colour, label=name)
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
    axes.set_yticks(places, table.index)
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.margins(x=0.15)
    axes.set_title("Cost over the optimum's")
    axes.legend(frameon=False, loc="lower right")
