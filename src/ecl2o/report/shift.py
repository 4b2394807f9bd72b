"""Figure: how the test days differ from the days before them (t-SNE), the paper's Figure 4."""

import numpy as np
from matplotlib.figure import Figure
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from ecl2o.report.style import BLUE, VERMILLION, house_style, new_figure
from ecl2o.studies.results import Study
from ecl2o.studies.shift import quarters

_PERPLEXITY = 30.0


def draw_shift(study: Study, seed: int = 0) -> Figure:
    """One map of all days, each day a point; a panel per quarter of the test days, beside the training and validation days."""
    contexts = study.contexts
    per_day = contexts.steps_per_day
    before = len(contexts.training) // per_day + contexts.split.validation_days
    days = contexts.values[: contexts.n_days * per_day].reshape(contexts.n_days, per_day * contexts.dim)
    placed = _map(days, seed)
    mornings = contexts.time[: contexts.n_days * per_day : per_day]
    parts = quarters(contexts.test_time()[::per_day])
    with house_style():
        figure = new_figure(height=3.2)
        panels = list(figure.subplots(1, len(parts), sharex=True, sharey=True, squeeze=False).flat)
        label = f"{mornings[0]:%d %b} to {mornings[before - 1]:%d %b}: training and validation"
        for axes, quarter in zip(panels, parts, strict=True):
            axes.scatter(*placed[:before].T, s=14, marker="o", facecolor="none", edgecolor=BLUE, label=label)
            later = placed[before + quarter.days]
            axes.scatter(*later.T, s=16, marker="^", color=VERMILLION, linewidth=0, label="test day")
            axes.set_title(quarter.label)
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
