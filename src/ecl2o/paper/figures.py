"""All figures of a case study, with a caption for each.

Bars, trade-off, percentiles, worst day, a week, the map of days (t-SNE, the paper's Figure 4), moved days, and the theorems'
bounds against the error of the advice.
"""

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib import dates
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from ecl2o import theory
from ecl2o.paper.generalization import split_quarters
from ecl2o.paper.pareto import pareto_front
from ecl2o.paper.results import StudyResults, StudyRow, find_best_row, is_unfinished, reported_rows
from ecl2o.plots import style
from ecl2o.plots.series import find_median_week, sum_coordinates, to_wall_clock
from ecl2o.theory.forms import Form

TRUSTS = [0.1, 0.3, 0.5, 1.0]
_POINTS = 241
_TRUST_LINES = (
    (style.ORANGE, "-", "o"),
    (style.SKY, (0, (3, 1)), "^"),
    (style.GREEN, (0, (6, 2, 1, 2)), "D"),
    (style.PURPLE, (0, (1, 1)), "P"),
)
_FORMS: tuple[tuple[Form, str], ...] = (("tight", "tight form"), ("paper", "as the paper prints it"))


@style.apply_style()
def draw_bounds(m: float, alpha: float, beta: float, trusts: list[float]) -> Figure:
    """Draw the bounds on the ratio against rho: pure ML (a lower bound), MLA-ROBD by trust, and R-OBD; both forms."""
    largest = 1.5 * max(float(theory.useful_prediction_error(m, alpha, beta, form)) for form, _ in _FORMS)
    rho = np.linspace(0.0, largest, _POINTS)
    figure = style.new_figure(height=3.4)
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
    axes.plot(rho, pure, color=style.VERMILLION, linestyle=(0, (1, 2)), label="pure ML (at least)")
    robd = np.full_like(rho, float(theory.robd_ratio(m, alpha, beta, form)))
    axes.plot(rho, robd, color=style.BLUE, linestyle=(0, (5, 2)), label="R-OBD (at most)")
    for place, trust in enumerate(trusts):
        color, dash, marker = _TRUST_LINES[place % len(_TRUST_LINES)]
        label = f"MLA-ROBD, trust {trust:g} (at most)"
        bound = theory.mla_robd_bound(m, alpha, beta, trust, errors, form)
        axes.plot(rho, bound, color=color, linestyle=dash, marker=marker, markevery=_POINTS // 6, label=label)
    useful = float(theory.useful_prediction_error(m, alpha, beta, form))
    axes.axvline(useful, color=style.GREY, linewidth=0.8, linestyle=(0, (2, 2)), label="advice helps to the left")


_MARGIN = 1.22  # of the axis for the numbers at the ends of bars


@style.apply_style()
def draw_bars(study: StudyResults) -> Figure:
    """Draw average costs and worst days as bars; error bars are one standard deviation over seeds."""
    rows = reported_rows(study)
    figure = style.new_figure(height=0.9 + 0.29 * len(rows))
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
    values = [row.over_seeds(figure) for row in rows]
    means = np.array([value.mean() for value in values])
    spreads = np.array([value.std() if np.isfinite(value).all() else 0.0 for value in values])
    reach = float(np.max((means + spreads)[np.isfinite(means)], initial=1.1))
    end = reach ** (_MARGIN + 0.1) if log else reach * _MARGIN
    if log:
        axes.set_xscale("log")
        style.label_log_axis(axes.xaxis)
        ticks = [tick for tick in (1, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000) if tick <= end]
        axes.set_xticks(ticks[:: 1 if len(ticks) <= 7 else 2])
    start = 1.0 if log else 0.0
    looks = style.row_looks([row.name for row in rows])
    for place, (row, mean, spread) in enumerate(zip(rows, means, spreads, strict=True)):
        shown, hatch = (mean, None) if np.isfinite(mean) else (reach, "///")
        look = {"color": looks[row.name].color, "alpha": 0.75, "hatch": hatch, "linewidth": 0}
        axes.barh(place, shown - start, left=start, height=0.68, **look)
        if spread > 0:
            axes.errorbar(shown, place, xerr=spread, color="black", capsize=2.5, linewidth=1)
        text = f"{mean:.2f}" if log else f"{mean:.3f}"
        axes.annotate(text, (shown + spread, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_xlim(start, end)


_MOVED_DAYS_PANELS = (("offset", "a number added to every context"), ("factor", "every context times a number"))


@style.apply_style()
def draw_moved_days(study: StudyResults) -> Figure:
    """Draw costs on moved training days, mean and standard deviation over seeds; the amounts are on the axis below."""
    cases = study.extra["shift"]["moved"]
    looks = style.row_looks(list(cases[0]["cost"]))
    figure = style.new_figure(height=3.4)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (what, title) in zip(panels, _MOVED_DAYS_PANELS, strict=True):
        still = {**cases[0], "amount": 0.0 if what == "offset" else 1.0}
        shown = [still, *(case for case in cases[1:] if case["what"] == what)]
        shown.sort(key=lambda case: case["amount"])
        amounts = [case["amount"] for case in shown]
        for name, look in looks.items():
            means, spreads = (np.array([case["cost"][name][part] for case in shown]) for part in ("mean", "std"))
            axes.plot(amounts, means, marker=look.marker, label=study.rows[name].label, **style.line_style(look))
            axes.fill_between(amounts, means - spreads, means + spreads, color=look.color, alpha=0.15, linewidth=0)
        axes.set_title(title)
        distances = [f"{case['amount']:g}\n{case['distance']:.2f}" for case in shown]
        axes.set_xticks(amounts, distances, fontsize=7)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0)))
        style.label_log_axis(axes.yaxis)
        axes.set_xlabel("amount; below it, the distance W1")
    panels[0].set_ylabel("average cost / oracle's (log scale)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


@style.apply_style()
def draw_shift(study: StudyResults, seed: int = 0) -> Figure:
    """Draw a t-SNE map of all days: a panel per quarter of the test days, beside the training and validation days."""
    contexts = study.contexts
    per_day = contexts.steps_per_day
    before = len(contexts.training) // per_day + contexts.split.validation_days
    days = contexts.values[: contexts.n_days * per_day].reshape(contexts.n_days, per_day * contexts.dim)
    placed = _embed_days(days, seed)
    mornings = contexts.time[: contexts.n_days * per_day : per_day]
    parts = split_quarters(contexts.test_time()[::per_day])
    figure = style.new_figure(height=3.2)
    panels = figure.subplots(1, len(parts), sharex=True, sharey=True, squeeze=False).flat
    label = f"{mornings[0]:%d %b} to {mornings[before - 1]:%d %b}: training and validation"
    for axes, quarter in zip(panels, parts, strict=True):
        axes.scatter(*placed[:before].T, s=14, marker="o", facecolor="none", edgecolor=style.BLUE, label=label)
        later = placed[before + quarter.days]
        axes.scatter(*later.T, s=16, marker="^", color=style.VERMILLION, linewidth=0, label="test day")
        axes.set(title=quarter.label, xticks=[], yticks=[])
    figure.supxlabel("first t-SNE coordinate (no unit)", fontsize=9)
    figure.supylabel("second t-SNE coordinate (no unit)", fontsize=9)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def _embed_days(days: np.ndarray, seed: int) -> np.ndarray:
    """Embed days in the plane, on one thread: the same map every time, and no waiting on a busy machine."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(30.0, (len(days) - 1) / 3)
    with threadpool_limits(limits=1):
        return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(days)


_TICKS = (1, 1.2, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500)
# The rows of the paper's Figure 6, which has two panels that its text does not name: beside pure ML, and beside the others.
_TAIL_PANELS = (
    ("beside the expert and pure ML", ("r-obd", "pure-ml", "ec-l2o", "ec-l2o-tuned")),
    ("beside the two-stage algorithms", ("switch", "mla-robd", "ec-l2o", "ec-l2o-tuned")),
)


@style.apply_style()
def draw_tails(study: StudyResults) -> Figure:
    """Draw the ratio against the percentile, 90 to 100 (the competitive ratio), means over seeds."""
    rows = [row for row in reported_rows(study) if row.name != "oracle"]
    figure = style.new_figure(height=3.8)
    axes = figure.subplots()
    _draw_tail(axes, rows, study, np.linspace(90.0, 100.0, 101))
    axes.set_xlim(90.0, 100.2)
    axes.set_ylabel("cost / optimum of the day (log scale)")
    # The legend in the order of the lines at the right edge, the highest first.
    lines = sorted(axes.get_lines(), key=lambda line: -np.nan_to_num(np.asarray(line.get_ydata())[-1], nan=np.inf))
    figure.legend(handles=lines, loc="outside right upper")
    return figure


@style.apply_style()
def draw_highest_tails(study: StudyResults) -> Figure:
    """Draw the same beyond the 99th percentile, in two panels, with the spread over seeds: the paper's Figure 6."""
    figure = style.new_figure(height=3.2)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (title, names) in zip(panels, _TAIL_PANELS, strict=True):
        rows = [study.rows[name] for name in names if name in study.rows]
        _draw_tail(axes, rows, study, np.linspace(99.0, 100.0, 101), spread=True)
        axes.set_xlim(99.0, 100.02)
        axes.set_title(title)
        axes.legend(loc="upper left")
    panels[0].set_ylabel("cost / optimum of the day (log scale)")
    return figure


def _draw_tail(axes, rows: list[StudyRow], study: StudyResults, levels: np.ndarray, spread: bool = False) -> None:
    looks = style.row_looks(list(study.rows))
    axes.set_yscale("log")
    for place, row in enumerate(rows):
        curves, look = tail_curves(row, levels), looks[row.name]
        spots = {"marker": look.marker, "markevery": (2 * place % 20, 20), "markersize": 5}
        axes.plot(levels, curves.mean(axis=1), label=row.label, **style.line_style(look) | spots)
        if spread:
            ends = curves.min(axis=1), curves.max(axis=1)
            axes.fill_between(levels, *ends, color=look.color, alpha=0.15, linewidth=0)
    axes.set_xlabel("percentile of the test days")
    style.label_log_axis(axes.yaxis, _TICKS)


def tail_curves(row: StudyRow, levels: np.ndarray) -> np.ndarray:
    """Return the percentiles of the ratio, (levels, seeds); NaN, which is not drawn, where they are infinite."""
    ratios = np.stack([np.asarray(score.ratio, float) for score in row.scores])
    with np.errstate(invalid="ignore"):
        curves = np.percentile(ratios, levels, axis=1)
    return np.where(np.isfinite(curves), curves, np.nan)


@style.apply_style()
def draw_trade_off(study: StudyResults) -> Figure:
    """Draw every setting as a point; a line joins those of a family that are not dominated. Down and left is better."""
    hidden = set(study.rows) - {row.name for row in reported_rows(study)}
    families: dict[str, list[tuple[float, float]]] = {}
    for point in study.trade_off:
        place = point.average_cost, point.competitive_ratio
        if point.family not in hidden and np.isfinite(place).all():
            families.setdefault(point.family, []).append(place)
    looks = style.row_looks(list(families))
    figure = style.new_figure(height=3.8)
    axes = figure.subplots()
    axes.set_yscale("log")
    for family, places in families.items():
        label = study.rows[family].label if family in study.rows else family
        spots: dict[str, Any] = {"marker": looks[family].marker, "color": looks[family].color}
        axes.scatter(*zip(*places, strict=True), s=22, alpha=0.35, linewidth=0, **spots)
        front = zip(*pareto_front(places, lambda place: place), strict=True)
        axes.plot(*front, markersize=6, label=label, **style.line_style(looks[family]) | spots)
    axes.set_xlabel("average cost / oracle's average cost")
    axes.set_ylabel("competitive ratio (log scale)")
    style.label_log_axis(axes.yaxis, _TICKS)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    return figure


_COLUMNS = 4


@style.apply_style()
def draw_worst_day(study: StudyResults) -> Figure:
    """Draw one small panel per row, all on the same axes, with the context and the oracle in each."""
    day, units = study.worst_day, find_units(study)
    time = to_wall_clock(day.time)
    names = [name for name in day.actions if name != "oracle"]
    looks = style.row_looks(list(day.actions))
    actions = {name: sum_coordinates(each) * units.action_factor for name, each in day.actions.items()}
    lines = -(-len(names) // _COLUMNS)
    figure = style.new_figure(height=0.9 + 1.35 * lines)
    panels = list(figure.subplots(lines, _COLUMNS, sharex=True, sharey=True, squeeze=False).flat)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    for place, (axes, name) in enumerate(zip(panels, names, strict=False)):
        if units.common:
            axes.fill_between(time, sum_coordinates(day.contexts) * units.factor, color=style.LIGHT, label="context")
        if "oracle" in actions:
            look = {"color": style.BLACK, "linewidth": 1, "linestyle": (0, (2, 1))}
            axes.plot(time, actions["oracle"], label="oracle, from its own start", **look)
        axes.plot(time, actions[name], color=looks[name].color, linewidth=2, label="this row")
        axes.set_title(f"{study.rows[name].label}\nratio {day.ratios[name]:.3g}", fontsize=8)
        axes.xaxis.set_major_locator(dates.HourLocator(byhour=(0, 12)))
        axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
        axes.margins(x=0)
        axes.tick_params(labelbottom=place + _COLUMNS >= len(names))
    figure.supxlabel(f"hour of {time[0]:%d %B}", fontsize=9)
    figure.supylabel(units.action, fontsize=9)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


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

    @property
    def action_factor(self) -> float:
        """The factor of actions."""
        return self.factor if self.common else 1.0


def find_units(study: StudyResults) -> Units:
    """Return power for demand response, requests and racks for right-sizing, plain numbers for anything else."""
    if study.contexts.base_shortage is not None:
        in_watts = 1 / study.contexts.scale
        largest = float(np.max(study.contexts.values)) * in_watts
        unit, watts = ("MW", 1e6) if largest >= 1e6 else ("kW", 1e3)
        return Units(f"power ({unit})", f"power ({unit})", in_watts / watts)
    if study.study == "right-sizing":
        return Units("requests (thousands/s)", "racks on, all kinds")
    return Units("value", "value") if study.contexts.dim == 1 else Units("contexts", "actions, total")


@style.apply_style()
def draw_week(study: StudyResults) -> Figure:
    """Draw the week whose optimum costs the median of all test weeks (first seed)."""
    units, rows, per_day = find_units(study), study.rows, study.contexts.steps_per_day
    names = dict.fromkeys(("oracle", find_best_row(study, "average_cost").name, "r-obd"))
    week = find_median_week(rows["oracle"].scores[0].cost)
    time = to_wall_clock(study.contexts.test_time())[week.start * per_day : week.stop * per_day]
    contexts = sum_coordinates(study.contexts.test_days().days[week]).reshape(-1) * units.factor
    figure = style.new_figure(height=2.8 if units.common else 3.8)
    panels = figure.subplots(1 if units.common else 2, 1, sharex=True, squeeze=False)[:, 0]
    panels[0].fill_between(time, contexts, color=style.LIGHT, step=None, label="context")
    panels[0].set_ylabel(units.context)
    for name in names:
        if name in rows:
            actions = sum_coordinates(rows[name].scores[0].runs.actions)[week].reshape(-1) * units.action_factor
            look = style.line_style(style.row_looks(list(rows))[name])
            look |= {"color": style.BLACK, "linewidth": 1.2} if name == "oracle" else {}
            panels[-1].plot(time, actions, label=f"{rows[name].label}'s action", **look)
    panels[-1].set_ylabel(units.action)
    for axes in panels:
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
    style.label_days(panels[-1])
    panels[-1].set_xlabel("time (ticks at midnight)")
    handles = [entry for axes in panels for entry in zip(*axes.get_legend_handles_labels(), strict=True)]
    figure.legend(*zip(*handles, strict=True), loc="outside lower center", ncols=4)
    return figure


_OF_NETWORKS = ("highest-tails", "worst-day")  # which a quick run does not have
_LITTLE = 0.1  # of the range of contexts: a day that moves through less has little in it


def describe_missing_figures() -> str | None:
    """Return how to get the t-SNE figure, which needs the extra `paper`, or None if its libraries are installed."""
    if all(importlib.util.find_spec(name) for name in ("sklearn", "threadpoolctl")):
        return None
    return "The t-SNE figure of the days needs scikit-learn: pip install 'ecl2o[paper]'."


@dataclasses.dataclass(frozen=True)
class ReportFigure:
    """A figure to be drawn: the name of its files, its title, what to see in it."""

    stem: str
    title: str
    caption: str
    draw: Callable[[StudyResults], Figure]


def report_figures(study: StudyResults) -> list[ReportFigure]:
    """Return the figures in the order of the report."""
    worst = study.worst_day
    label = study.rows[worst.row].label
    seeds = f"{len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}"
    every = [
        ReportFigure(
            "bars",
            "Average cost and worst day",
            "Left: the average cost of each row, as a multiple of the daily oracle's. Right: its worst test day, as a multiple "
            "of that day's optimum from the same start. Shorter bars are better. Whiskers: one standard deviation over "
            f"{seeds}; rows without whiskers are deterministic.",
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
            f"largest of {seeds}. One percent of the test days is {study.test_days / 100:.1f} days.",
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
        ReportFigure(
            "moved-days",
            "Training days moved by known amounts",
            "The training days with a number added to every context, or with every context multiplied by a number. Average cost "
            "is relative to the oracle of the same days, with mean and standard deviation over seeds. Below each amount is the "
            "Wasserstein distance between the moved and the original days. Where a calibrated line rises less than PureML's, "
            "calibration helps.",
            draw_moved_days,
        ),
        ReportFigure(
            "bounds",
            "What the theorems promise",
            "Competitive ratio against the error of the advice, for this problem's constants. The dotted line is a lower bound "
            "for pure ML, the others are upper bounds. More trust helps when advice is good and hurts when it is bad; "
            "right of the thin line any trust hurts. Left: the corrected and sharper forms (docs/errata.md); right: as "
            "printed. Where alpha = beta only pure ML's line differs." + _describe_constant_curvature(study),
            lambda study: draw_bounds(**study.constants, trusts=TRUSTS),
        ),
    ]
    missing = [
        *(_OF_NETWORKS if is_unfinished(study, study.rows[worst.row]) else ()),
        *(() if describe_missing_figures() is None else ("shift",)),
        *(() if "shift" in study.extra else ("moved-days",)),
    ]
    return [figure for figure in every if figure.stem not in missing]


def save_report_figure(report_figure: ReportFigure, study: StudyResults, folder: Path) -> None:
    """Draw a figure into a folder, once per format."""
    figure = report_figure.draw(study)
    for kind in style.REPORT_FORMATS:
        style.save_figure(figure, folder / f"{report_figure.stem}.{kind}")


def _describe_worst_day(study: StudyResults) -> str:
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
