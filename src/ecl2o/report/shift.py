"""Figure: how the test days differ from the training days (t-SNE)."""

import numpy as np
from matplotlib.figure import Figure
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from ecl2o.report.style import BLUE, VERMILLION, house_style, new_figure
from ecl2o.studies.results import Study

_QUARTERS = 4
_PERPLEXITY = 30.0


def draw_shift(study: Study, seed: int = 0) -> Figure:
    """One map of all training and test days, each day a point; a panel per quarter of the test days."""
    contexts = study.contexts
    per_day = contexts.steps_per_day
    training = contexts.training.reshape(-1, per_day * contexts.dim)
    test = contexts.test_days().days.reshape(-1, per_day * contexts.dim)
    time = contexts.test_time()[::per_day]
    placed = _map(np.concatenate([training, test]), seed)
    quarters = [part for part in np.array_split(np.arange(len(test)), _QUARTERS) if len(part)]
    with house_style():
        figure = new_figure(height=5.2)
        columns = min(2, len(quarters))
        lines = -(-len(quarters) // columns)
        panels = list(figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat)
        for axes in panels[len(quarters) :]:
            axes.set_visible(False)
        for axes, quarter in zip(panels, quarters, strict=False):
            axes.scatter(
                *placed[: len(training)].T, s=16, marker="o", facecolor="none", edgecolor=BLUE, label="training day"
            )
            later = placed[len(training) + quarter]
            axes.scatter(*later.T, s=18, marker="^", color=VERMILLION, linewidth=0, label="test day")
            axes.set_title(f"{time[quarter[0]]:%d %b} to {time[quarter[-1]]:%d %b}")
            axes.set_xticks([])
            axes.set_yticks([])
        figure.supxlabel("first t-SNE coordinate (no unit)", fontsize=9)
        figure.supylabel("second t-SNE coordinate (no unit)", fontsize=9)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
        return figure


def _map(days: np.ndarray, seed: int) -> np.ndarray:
    """One thread: the same map every time, and no waiting for threads on a busy machine."""
    perplexity = min(_PERPLEXITY, (len(days) - 1) / 3)
    with threadpool_limits(limits=1):
        return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(days)
