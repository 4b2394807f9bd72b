"""All figures of a study, with what to see in each."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ecl2o import theory
from ecl2o.report.bars import draw_bars
from ecl2o.report.bounds import draw_bounds
from ecl2o.report.moved_days import draw_moved_days
from ecl2o.report.shift import draw_shift
from ecl2o.report.style import save_as
from ecl2o.report.table import best, is_unfinished
from ecl2o.report.tails import draw_highest_tails, draw_tails
from ecl2o.report.trade_off import draw_trade_off
from ecl2o.report.week import draw_week
from ecl2o.report.worst_day import draw_worst_day
from ecl2o.studies.results import Study

TRUSTS = [0.1, 0.3, 0.5, 1.0]
FORMATS = ("png", "svg")
_OF_NETWORKS = ("highest-tails", "worst-day")  # which a quick run does not have
_LITTLE = 0.1  # of the range of contexts: a day that moves through less has little in it


@dataclasses.dataclass(frozen=True)
class Plate:
    """A figure to be drawn: the name of its files, its title, what to see in it."""

    stem: str
    title: str
    caption: str
    draw: Callable[[Study], Figure]


def plates(study: Study) -> list[Plate]:
    """The figures in the order of the report."""
    worst, rows = study.worst_day, study.entries
    label = rows[worst.row].label
    moved = [_MOVED_DAYS] if "shift" in study.extra else []
    unfinished = is_unfinished(study, rows[worst.row])
    every = [
        Plate(
            "bars",
            "Average cost and worst day",
            "Left: what each row pays on average, as a multiple of the daily oracle. Right: its worst test day, as a multiple "
            "of that day's optimum from the same start. Short on both sides is what one wants. Whiskers: one "
            f"standard deviation over {len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}; rows without "
            "whiskers have nothing random in them.",
            draw_bars,
        ),
        Plate(
            "trade-off",
            "Average cost against competitive ratio",
            "Every point is one setting of a family (its trust, mu, kappa or gamma; first seed), every line joins those settings "
            "that no other of the family beats in both figures; the beaten ones are faint. Further down and to the left is "
            "better; a family whose line lies below another's offers more safety for the same cost.",
            draw_trade_off,
        ),
        Plate(
            "tails",
            "The bad days",
            "The ratio of cost to the day's optimum at high percentiles of the test days, mean over seeds; at 100 it is the "
            "competitive ratio. A line that turns up only at the very end has few bad days, and those explain its ratio.",
            draw_tails,
        ),
        Plate(
            "highest-tails",
            "The very worst days",
            "The same beyond the 99th percentile, for the rows that the paper compares there. Shaded: from the least to the "
            f"largest of {len(study.seeds)} seed{'s' if len(study.seeds) > 1 else ''}. One percent of the test days are "
            f"{study.test_days / 100:.1f} days.",
            draw_highest_tails,
        ),
        Plate(
            "worst-day",
            f"The worst day of {label}",
            f"{worst.time[0]:%d %B}, the test day on which {label} had its largest ratio, {worst.ratios[worst.row]:.3g} (first "
            "seed), and what every row did on it. Each starts from its own last action of the day before and is compared with "
            "the optimum from there; the dashed line is the oracle that ran through all test days. "
            + _worst_day_in_words(study),
            draw_worst_day,
        ),
        Plate(
            "week",
            "A week of contexts and actions",
            f"The test week of median cost, with {best(study, 'average_cost').label}, which is the cheapest row on average, and "
            "R-OBD. Moving is expensive, so good actions follow the context late and smoothly; the oracle starts to move before "
            "the context does, because it knows it.",
            draw_week,
        ),
        Plate(
            "shift",
            "Training days and test days",
            "t-SNE of whole days: days with similar contexts lie near each other, axes have no meaning. Test days (triangles) "
            "away from the days before them (circles) are unlike anything that the networks were trained on.",
            draw_shift,
        ),
        *moved,
        Plate(
            "bounds",
            "What the theorems promise",
            "Competitive ratio against the error of the advice, for this problem's constants. Pure ML can be at least as bad as "
            "its dotted line; MLA-ROBD and R-OBD are never worse than theirs. More trust pays for good advice and costs for bad; "
            "to the right of the thin line no trust helps. Left: the corrected and sharper forms (docs/errata.md); right: as "
            "printed. Where alpha = beta only pure ML's line differs." + _constant_curvature_in_words(study),
            _draw_study_bounds,
        ),
    ]
    return [plate for plate in every if not (unfinished and plate.stem in _OF_NETWORKS)]


_MOVED_DAYS = Plate(
    "moved-days",
    "Days unlike the training days, on purpose",
    "The training days with a number added to every context, or multiplied by one: average cost over that of the oracle of the "
    "same days, mean and standard deviation over seeds. Below each amount is the Wasserstein distance that it moves them by. "
    "R-OBD does not notice; where a line that is calibrated rises less than PureML's, calibration helps.",
    draw_moved_days,
)


def save_plate(plate: Plate, study: Study, folder: Path) -> None:
    """Draw a figure into a folder, once per format."""
    figure = plate.draw(study)
    for kind in FORMATS:
        save_as(figure, folder / f"{plate.stem}.{kind}")


def _worst_day_in_words(study: Study) -> str:
    """What there is to see on the worst day: often next to nothing, and that is the point."""
    day, test = study.worst_day.contexts, study.contexts.test_days().days
    moved = float(np.ptp(day, axis=0).max() / max(float(np.ptp(test)), 1e-300))
    if moved < _LITTLE:
        return (
            f"There is next to nothing on it, and that is the point: the context stays within {moved:.1%} of its range, so that "
            "the optimum costs next to nothing, and whoever moves at all pays many times that. In money this day is small."
        )
    return (
        f"The context moves through {moved:.0%} of its range on it. A ratio is large where the optimum costs little, so look at "
        "how far the line is from the context before judging."
    )


def _constant_curvature_in_words(study: Study) -> str:
    """Why R-OBD's line is higher than its worst day in the table can be."""
    if study.study != "demand-response":
        return ""
    m, beta = study.constants["m"], study.constants["beta"]
    printed = float(theory.robd_ratio(m, study.constants["alpha"], beta))
    return (
        f" R-OBD's line, at {printed:.2f}, is for costs whose curvature may change from hour to hour. Here it is constant, and "
        f"R-OBD's worst case exactly {float(theory.exact_robd_ratio(m, beta)):.2f}, which no day of the table exceeds (erratum "
        "E21)."
    )


def _draw_study_bounds(study: Study) -> Figure:
    constants = study.constants
    return draw_bounds(constants["m"], constants["alpha"], constants["beta"], TRUSTS)
