"""All figures of a case study, with a caption for each.

Bars, trade-off, percentiles, worst day, a week, the map of days (t-SNE, the paper's Figure 4), moved days, and the theorems'
bounds against the error of the advice.
"""

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib import dates
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ecl2o import theory
from ecl2o.paper.generalization import split_quarters
from ecl2o.paper.pareto import pareto_front
from ecl2o.paper.results import StudyResults, StudyRow, TradeOffPoint, find_best_row, is_unfinished, reported_rows
from ecl2o.plots.series import find_median_week, slice_days, sum_coordinates, to_wall_clock
from ecl2o.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PURPLE,
    REPORT_FORMATS,
    SKY,
    VERMILLION,
    apply_style,
    line_style,
    new_figure,
    row_looks,
    save_figure,
)
from ecl2o.theory.forms import Form

_POINTS = 241
_TRUST_LINES = (
    (ORANGE, "-", "o"),
    (SKY, (0, (3, 1)), "^"),
    (GREEN, (0, (6, 2, 1, 2)), "D"),
    (PURPLE, (0, (1, 1)), "P"),
)
_FORMS: tuple[tuple[Form, str], ...] = (("tight", "tight form"), ("paper", "as the paper prints it"))


def draw_bounds(m: float, alpha: float, beta: float, trusts: list[float]) -> Figure:
    """Competitive-ratio bounds against rho: pure ML (a lower bound), MLA-ROBD by trust, and R-OBD; both forms."""
    largest = 1.5 * max(float(theory.useful_prediction_error(m, alpha, beta, form)) for form, _ in _FORMS)
    rho = np.linspace(0.0, largest, _POINTS)
    with apply_style():
        figure = new_figure(height=3.4)
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (form, title) in zip(panels, _FORMS, strict=True):
            _draw_form(axes, rho, m, alpha, beta, trusts, form)
            axes.set_title(title)
            axes.set_xlabel(r"$\rho$: error of the advice / cost of the optimum")
            axes.set_xlim(0, largest)
        top = max(float(theory.robd_ratio(m, alpha, beta, form)) for form, _ in _FORMS)
        panels[0].set_ylim(1, 1.0 + 1.6 * (top - 1))
        panels[0].set_ylabel("competitive ratio")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return figure


def _draw_form(axes, rho, m, alpha, beta, trusts, form: Form) -> None:
    errors = jnp.asarray(rho)
    pure = theory.pure_ml_lower_bound(m, alpha, errors, form=form, beta=beta)
    axes.plot(rho, pure, color=VERMILLION, linestyle=(0, (1, 2)), label="pure ML (at least)")
    robd = np.full_like(rho, float(theory.robd_ratio(m, alpha, beta, form)))
    axes.plot(rho, robd, color=BLUE, linestyle=(0, (5, 2)), label="R-OBD (at most)")
    every = _POINTS // 6
    for place, trust in enumerate(trusts):
        color, dash, marker = _TRUST_LINES[place % len(_TRUST_LINES)]
        label = f"MLA-ROBD, trust {trust:g} (at most)"
        bound = theory.mla_robd_bound(m, alpha, beta, trust, errors, form)
        axes.plot(rho, bound, color=color, linestyle=dash, marker=marker, markevery=every, label=label)
    useful = float(theory.useful_prediction_error(m, alpha, beta, form))
    axes.axvline(useful, color=GREY, linewidth=0.8, linestyle=(0, (2, 2)), label="advice helps to the left")


def _label_log_axis(axis, ticks: Sequence[float | int] | None = None) -> None:
    """Write plain numbers on a logarithmic axis, at those of the given ticks that are in view."""
    if ticks is not None:
        low, high = axis.get_view_interval()
        axis.set_ticks([tick for tick in ticks if low <= tick <= high])
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


_MARGIN = 1.22  # of the axis for the numbers at the ends of bars


def draw_bars(study: StudyResults) -> Figure:
    """Two panels; error bars are one standard deviation over seeds."""
    rows = reported_rows(study)
    with apply_style():
        figure = new_figure(height=0.9 + 0.29 * len(rows))
        cost, ratio = figure.subplots(1, 2, sharey=True)
        _draw_bar_panel(cost, rows, "average_cost", log=False)
        cost.set_xlabel("average cost / oracle's average cost")
        _draw_bar_panel(ratio, rows, "competitive_ratio", log=True)
        ratio.set_xlabel("competitive ratio: the worst day's (log scale)")
        cost.set_yticks(range(len(rows)), [row.label for row in rows])
        cost.set_ylim(len(rows) - 0.5, -0.5)
        for axes in (cost, ratio):
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
        return figure


def _draw_bar_panel(axes, rows: list[StudyRow], figure: str, log: bool) -> None:
    means, spreads = _means(rows, figure)
    finite = np.isfinite(means)
    reach = float(np.max((means + spreads)[finite], initial=1.1))
    end = reach ** (_MARGIN + 0.1) if log else reach * _MARGIN
    if log:
        axes.set_xscale("log")
        _label_log_axis(axes.xaxis)
        ticks = [tick for tick in (1, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000) if tick <= end]
        axes.set_xticks(ticks[:: 1 if len(ticks) <= 7 else 2])
    start = 1.0 if log else 0.0
    look = row_looks([row.name for row in rows])
    for place, (row, mean, spread) in enumerate(zip(rows, means, spreads, strict=True)):
        shown = mean if np.isfinite(mean) else reach
        hatch = None if np.isfinite(mean) else "///"
        axes.barh(
            place,
            shown - start,
            left=start,
            height=0.68,
            color=look[row.name].color,
            alpha=0.75,
            hatch=hatch,
            linewidth=0,
        )
        if spread > 0:
            axes.errorbar(shown, place, xerr=spread, color="black", capsize=2.5, linewidth=1)
        text = f"{mean:.3f}" if not log else f"{mean:.2f}"
        axes.annotate(text, (shown + spread, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xlim(start, end)


def _means(rows: list[StudyRow], figure: str) -> tuple[np.ndarray, np.ndarray]:
    values = [row.over_seeds(figure) for row in rows]
    means = np.array([value.mean() for value in values])
    spreads = np.array([value.std() if np.isfinite(value).all() else 0.0 for value in values])
    return means, spreads


_MOVED_DAYS_PANELS = (("offset", "a number added to every context"), ("factor", "every context times a number"))


def draw_moved_days(study: StudyResults) -> Figure:
    """Average cost over the oracle's, mean and standard deviation over seeds; the amounts are on the axis below."""
    cases = study.extra["shift"]["moved"]
    names = list(cases[0]["cost"])
    look = row_looks(names)
    with apply_style():
        figure = new_figure(height=3.4)
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (what, title) in zip(panels, _MOVED_DAYS_PANELS, strict=True):
            still = {**cases[0], "amount": 0.0 if what == "offset" else 1.0}
            shown = sorted(
                [still, *(case for case in cases[1:] if case["what"] == what)], key=lambda case: case["amount"]
            )
            amounts = [case["amount"] for case in shown]
            for name in names:
                means, spreads = (np.array([case["cost"][name][part] for case in shown]) for part in ("mean", "std"))
                axes.plot(
                    amounts, means, marker=look[name].marker, label=study.rows[name].label, **line_style(look[name])
                )
                axes.fill_between(
                    amounts, means - spreads, means + spreads, color=look[name].color, alpha=0.15, linewidth=0
                )
            axes.set_title(title)
            distances = [f"{case['amount']:g}\n{case['distance']:.2f}" for case in shown]
            axes.set_xticks(amounts, distances, fontsize=7)
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0)))
            _label_log_axis(axes.yaxis)
            axes.set_xlabel("amount; below it, the distance W1")
        panels[0].set_ylabel("average cost / oracle's (log scale)")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
        return figure


_PERPLEXITY = 30.0


def draw_shift(study: StudyResults, seed: int = 0) -> Figure:
    """One map of all days, each day a point; a panel per quarter of the test days, beside the training and validation days."""
    contexts = study.contexts
    per_day = contexts.steps_per_day
    before = len(contexts.training) // per_day + contexts.split.validation_days
    days = contexts.values[: contexts.n_days * per_day].reshape(contexts.n_days, per_day * contexts.dim)
    placed = _embed_days(days, seed)
    mornings = contexts.time[: contexts.n_days * per_day : per_day]
    parts = split_quarters(contexts.test_time()[::per_day])
    with apply_style():
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


def has_tsne() -> bool:
    """Return whether the libraries of the t-SNE figure, the extra `paper`, are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("sklearn", "threadpoolctl"))


def _embed_days(days: np.ndarray, seed: int) -> np.ndarray:
    """Embed days in the plane, on one thread: the same map every time, and no waiting on a busy machine."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(_PERPLEXITY, (len(days) - 1) / 3)
    with threadpool_limits(limits=1):
        return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(days)


LOWEST = 90.0
_LEVELS = np.linspace(LOWEST, 100.0, 101)
_HIGHEST = np.linspace(99.0, 100.0, 101)
_TICKS = (1, 1.2, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500)
# The rows of the paper's Figure 6, which has two panels that its text does not name: beside pure ML, and beside the others.
_TAIL_PANELS = (
    ("beside the expert and pure ML", ("r-obd", "pure-ml", "ec-l2o", "ec-l2o-tuned")),
    ("beside the two-stage algorithms", ("switch", "mla-robd", "ec-l2o", "ec-l2o-tuned")),
)


def draw_tails(study: StudyResults) -> Figure:
    """Ratio against percentile, 90 to 100 (the competitive ratio), means over seeds."""
    rows = [row for row in reported_rows(study) if row.name != "oracle"]
    with apply_style():
        figure = new_figure(height=3.8)
        axes = figure.subplots()
        _draw_tail(axes, rows, study, _LEVELS)
        axes.set_xlim(LOWEST, 100.2)
        axes.set_ylabel("cost / optimum of the day (log scale)")
        figure.legend(*_by_height(axes), loc="outside right upper")
        return figure


def draw_highest_tails(study: StudyResults) -> Figure:
    """The same beyond the 99th percentile, in two panels, with the spread over seeds: the paper's Figure 6."""
    with apply_style():
        figure = new_figure(height=3.2)
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (title, names) in zip(panels, _TAIL_PANELS, strict=True):
            _draw_tail(axes, [study.rows[name] for name in names if name in study.rows], study, _HIGHEST, spread=True)
            axes.set_xlim(99.0, 100.02)
            axes.set_title(title)
            axes.legend(loc="upper left")
        panels[0].set_ylabel("cost / optimum of the day (log scale)")
        return figure


def _draw_tail(axes, rows: list[StudyRow], study: StudyResults, levels: np.ndarray, spread: bool = False) -> None:
    look = row_looks(list(study.rows))
    axes.set_yscale("log")
    for place, row in enumerate(rows):
        curves = tail_curves(row, levels)
        spots = {"marker": look[row.name].marker, "markevery": (2 * place % 20, 20), "markersize": 5}
        axes.plot(levels, curves.mean(axis=1), label=row.label, **line_style(look[row.name]) | spots)
        if spread:
            ends = curves.min(axis=1), curves.max(axis=1)
            axes.fill_between(levels, *ends, color=look[row.name].color, alpha=0.15, linewidth=0)
    axes.set_xlabel("percentile of the test days")
    _label_log_axis(axes.yaxis, _TICKS)


def tail_curve(row: StudyRow, levels: np.ndarray = _LEVELS) -> np.ndarray:
    """The mean over seeds of the percentiles of the ratio; NaN, which is not drawn, where it is infinite."""
    return tail_curves(row, levels).mean(axis=1)


def tail_curves(row: StudyRow, levels: np.ndarray) -> np.ndarray:
    """The percentiles of the ratio, (levels, seeds)."""
    ratios = np.stack([np.asarray(score.ratio, float) for score in row.scores])
    with np.errstate(invalid="ignore"):
        curves = np.percentile(ratios, levels, axis=1)
    return np.where(np.isfinite(curves), curves, np.nan)


def _by_height(axes):
    """Legend entries in the order of the lines at the right edge, the highest first."""
    lines = axes.get_lines()
    order = sorted(lines, key=lambda line: -np.nan_to_num(line.get_ydata()[-1], nan=np.inf))
    return order, [line.get_label() for line in order]


def draw_trade_off(study: StudyResults) -> Figure:
    """Every setting as a point; a line joins those of a family that are not dominated. Down and left is better."""
    hidden = set(study.rows) - {row.name for row in reported_rows(study)}
    points = [
        point
        for point in study.trade_off
        if point.family not in hidden and np.isfinite([point.average_cost, point.competitive_ratio]).all()
    ]
    families = list(dict.fromkeys(point.family for point in points))
    look = row_looks(families)
    with apply_style():
        figure = new_figure(height=3.8)
        axes = figure.subplots()
        axes.set_yscale("log")
        for family in families:
            members = [point for point in points if point.family == family]
            boundary = pareto_front(members, lambda point: (point.average_cost, point.competitive_ratio))
            label = study.rows[family].label if family in study.rows else family
            spots: dict[str, Any] = {"marker": look[family].marker, "color": look[family].color}
            axes.scatter(*_coordinates(members), s=22, alpha=0.35, linewidth=0, **spots)
            axes.plot(*_coordinates(boundary), markersize=6, label=label, **line_style(look[family]) | spots)
        axes.set_xlabel("average cost / oracle's average cost")
        axes.set_ylabel("competitive ratio (log scale)")
        _label_log_axis(axes.yaxis, _TICKS)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
        return figure


def _coordinates(points: Sequence[TradeOffPoint]) -> tuple[list[float], list[float]]:
    return [point.average_cost for point in points], [point.competitive_ratio for point in points]


_COLUMNS = 4


def draw_worst_day(study: StudyResults) -> Figure:
    """One small panel per row, all on the same axes, with the context and the oracle in each."""
    day, units = study.worst_day, find_units(study)
    time = to_wall_clock(day.time)
    names = [name for name in day.actions if name != "oracle"]
    look = row_looks(list(day.actions))
    scale = units.factor if units.common else 1.0
    lines = -(-len(names) // _COLUMNS)
    with apply_style():
        figure = new_figure(height=0.9 + 1.35 * lines)
        panels = list(figure.subplots(lines, _COLUMNS, sharex=True, sharey=True, squeeze=False).flat)
        for axes in panels[len(names) :]:
            axes.set_visible(False)
        for place, (axes, name) in enumerate(zip(panels, names, strict=False)):
            if units.common:
                axes.fill_between(time, sum_coordinates(day.contexts) * scale, color=LIGHT, label="context")
            if "oracle" in day.actions:
                best = sum_coordinates(day.actions["oracle"]) * scale
                axes.plot(
                    time, best, color=BLACK, linewidth=1, linestyle=(0, (2, 1)), label="oracle, from its own start"
                )
            axes.plot(
                time, sum_coordinates(day.actions[name]) * scale, color=look[name].color, linewidth=2, label="this row"
            )
            axes.set_title(f"{study.rows[name].label}\nratio {day.ratios[name]:.3g}", fontsize=8)
            axes.xaxis.set_major_locator(dates.HourLocator(byhour=(0, 12)))
            axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
            axes.margins(x=0)
            axes.tick_params(labelbottom=place + _COLUMNS >= len(names))
        figure.supxlabel(f"hour of {time[0]:%d %B}", fontsize=9)
        figure.supylabel(units.action, fontsize=9)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
        return figure


TRUSTS = [0.1, 0.3, 0.5, 1.0]
_OF_NETWORKS = ("highest-tails", "worst-day")  # which a quick run does not have
_LITTLE = 0.1  # of the range of contexts: a day that moves through less has little in it


@dataclasses.dataclass(frozen=True)
class ReportFigure:
    """A figure to be drawn: the name of its files, its title, what to see in it."""

    stem: str
    title: str
    caption: str
    draw: Callable[[StudyResults], Figure]


def report_figures(study: StudyResults) -> list[ReportFigure]:
    """The figures in the order of the report."""
    worst, rows = study.worst_day, study.rows
    label = rows[worst.row].label
    moved = [_MOVED_DAYS] if "shift" in study.extra else []
    unfinished = is_unfinished(study, rows[worst.row])
    every = [
        ReportFigure(
            "bars",
            "Average cost and worst day",
            "Left: the average cost of each row, as a multiple of the daily oracle's. Right: its worst test day, as a multiple "
            "of that day's optimum from the same start. Shorter bars are better. Whiskers: one "
            f"standard deviation over {len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}; rows without "
            "whiskers are deterministic.",
            draw_bars,
        ),
        ReportFigure(
            "trade-off",
            "Average cost against competitive ratio",
            "Each point is one setting of a family (its trust, mu, kappa or gamma; first seed). Lines join the settings that no "
            "other of the family beats in both figures; beaten settings are faint. Down and left is better: a family whose "
            "line lies below another's is safer at the same cost.",
            draw_trade_off,
        ),
        ReportFigure(
            "tails",
            "The bad days",
            "The ratio of cost to the day's optimum at high percentiles of the test days, mean over seeds; at 100 it is the "
            "competitive ratio. A line that rises only at the very end has few bad days.",
            draw_tails,
        ),
        ReportFigure(
            "highest-tails",
            "The very worst days",
            "The same beyond the 99th percentile, for the rows that the paper compares there. Shaded: from the smallest to the "
            f"largest of {len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}. One percent of the test days is "
            f"{study.test_days / 100:.1f} days.",
            draw_highest_tails,
        ),
        ReportFigure(
            "worst-day",
            f"The worst day of {label}",
            f"{worst.time[0]:%d %B}, the test day on which {label} had its largest ratio, {worst.ratios[worst.row]:.3g} (first "
            "seed), and what every row did on it. Each row starts from its own last action and is compared with "
            "the optimum from there. The dashed line is the oracle that ran through all test days. "
            + _describe_worst_day(study),
            draw_worst_day,
        ),
        ReportFigure(
            "week",
            "A week of contexts and actions",
            f"The test week of median cost, with {find_best_row(study, 'average_cost').label}, the cheapest row on average, "
            "and R-OBD. Moving is expensive, so good actions follow the context late and smoothly; the oracle moves "
            "before the context does, because it knows the future.",
            draw_week,
        ),
        ReportFigure(
            "shift",
            "Training days and test days",
            "t-SNE of whole days: days with similar contexts lie near each other; axes have no meaning. Test days (triangles) "
            "far from all earlier days (circles) are unlike the days that the networks were trained on.",
            draw_shift,
        ),
        *moved,
        ReportFigure(
            "bounds",
            "What the theorems promise",
            "Competitive ratio against the error of the advice, for this problem's constants. The dotted line is a lower bound "
            "for pure ML, the others are upper bounds. More trust helps when advice is good and hurts when it is bad; "
            "right of the thin line any trust hurts. Left: the corrected and sharper forms (docs/errata.md); right: as "
            "printed. Where alpha = beta only pure ML's line differs." + _describe_constant_curvature(study),
            _draw_study_bounds,
        ),
    ]
    left_out = (*(_OF_NETWORKS if unfinished else ()), *(() if has_tsne() else ("shift",)))
    return [figure for figure in every if figure.stem not in left_out]


def describe_missing_figures() -> str | None:
    """Return how to get the figures that need an extra, or None if they are there."""
    return None if has_tsne() else "The t-SNE figure of the days needs scikit-learn: pip install 'ecl2o[paper]'."


_MOVED_DAYS = ReportFigure(
    "moved-days",
    "Training days moved by known amounts",
    "The training days with a number added to every context, or with every context multiplied by a number. Average cost is "
    "relative to the oracle of the same days, with mean and standard deviation over seeds. Below each amount is the Wasserstein "
    "distance between the moved and the original days. Where a calibrated line rises less than PureML's, calibration helps.",
    draw_moved_days,
)


def save_report_figure(report_figure: ReportFigure, study: StudyResults, folder: Path) -> None:
    """Draw a figure into a folder, once per format."""
    figure = report_figure.draw(study)
    for kind in REPORT_FORMATS:
        save_figure(figure, folder / f"{report_figure.stem}.{kind}")


def _describe_worst_day(study: StudyResults) -> str:
    """Return what there is to see on the worst day."""
    day, test = study.worst_day.contexts, study.contexts.test_days().days
    moved = float(np.ptp(day, axis=0).max() / max(float(np.ptp(test)), 1e-300))
    if moved < _LITTLE:
        return (
            f"The context stays within {moved:.1%} of its range on this day: "
            "the optimum costs next to nothing, and any move costs many times that. In absolute cost this day is small."
        )
    return (
        f"The context moves through {moved:.0%} of its range on this day. Ratios are large where the optimum costs little: look "
        "at how far each line is from the context before judging."
    )


def _describe_constant_curvature(study: StudyResults) -> str:
    """Return why R-OBD's line is above its worst day in the table."""
    if study.study != "demand-response":
        return ""
    m, beta = study.constants["m"], study.constants["beta"]
    printed = float(theory.robd_ratio(m, study.constants["alpha"], beta))
    return (
        f" R-OBD's line, at {printed:.2f}, is for costs whose curvature may change from hour to hour. Here it is constant, and "
        f"R-OBD's worst case exactly {float(theory.exact_robd_ratio(m, beta)):.2f}, which no day of the table exceeds (erratum "
        "E21)."
    )


def _draw_study_bounds(study: StudyResults) -> Figure:
    constants = study.constants
    return draw_bounds(constants["m"], constants["alpha"], constants["beta"], TRUSTS)


@dataclasses.dataclass(frozen=True)
class Units:
    """Labels of contexts and actions, and the factor from the study's own numbers to the labels' unit."""

    context: str
    action: str
    factor: float = 1.0

    @property
    def common(self) -> bool:
        """Whether contexts and actions are the same quantity and share an axis."""
        return self.action == self.context


def find_units(study: StudyResults) -> Units:
    """Power for demand response, requests and racks for right-sizing, plain numbers for anything else."""
    if study.contexts.base_shortage is not None:
        in_watts = 1 / study.contexts.scale
        largest = float(np.max(study.contexts.values)) * in_watts
        unit, watts = ("MW", 1e6) if largest >= 1e6 else ("kW", 1e3)
        label = f"power ({unit})"
        return Units(label, label, in_watts / watts)
    if study.study == "right-sizing":
        return Units("requests (thousands/s)", "racks on, all kinds")
    return Units("value", "value") if study.contexts.dim == 1 else Units("contexts", "actions, total")


def draw_week(study: StudyResults) -> Figure:
    """The week whose optimum costs the median of all test weeks (first seed)."""
    units, rows = find_units(study), study.rows
    shown = dict.fromkeys(("oracle", find_best_row(study, "average_cost").name, "r-obd"))
    shown = [name for name in shown if name in rows]
    first, days = find_median_week(rows["oracle"].scores[0].cost)
    time = slice_days(to_wall_clock(study.contexts.test_time()), first, days, study.contexts.steps_per_day)
    contexts = study.contexts.test_days().days[first : first + days].reshape(-1, study.contexts.dim)
    with apply_style():
        figure = new_figure(height=2.8 if units.common else 3.8)
        panels = figure.subplots(1 if units.common else 2, 1, sharex=True, squeeze=False)[:, 0]
        panels[0].fill_between(time, sum_coordinates(contexts) * units.factor, color=LIGHT, step=None, label="context")
        panels[0].set_ylabel(units.context)
        for name in shown:
            actions = np.asarray(rows[name].scores[0].runs.actions)[first : first + days]
            values = sum_coordinates(actions).reshape(-1) * (units.factor if units.common else 1.0)
            style = line_style(row_looks(list(rows))[name]) | (
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
