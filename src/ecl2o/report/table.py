"""The table of a study, as text cells that the terminal and the page share."""

import math

import numpy as np

from ecl2o.studies.results import Study, TestedEntry

NETWORKS = ("LSTM", "MLP")  # which a quick run trains too little for their rows to mean anything
HEADINGS = ("", "average cost", "competitive ratio", "p90", "p95", "p99", "p99.5", "prediction error")


def cells(row: TestedEntry) -> tuple[str, ...]:
    """One line: label, then figures in the order of `HEADINGS`."""
    tails = [score.tail_ratio for score in row.scores]
    errors = [score.prediction_error for score in row.scores]
    error = "" if None in errors else spread_text(np.array(errors, float), 3)
    levels = ("p90", "p95", "p99", "p99.5")
    return (
        row.unconverged.marked(row.label),
        spread_text(row.over_seeds("average_cost"), 3),
        spread_text(row.over_seeds("competitive_ratio"), 2),
        *(number_text(float(np.mean([tail[level] for tail in tails])), 2) for level in levels),
        error,
    )


def shown(study: Study) -> list[TestedEntry]:
    """The rows of table and figures: all, but not those of networks in a quick run, which say nothing about them."""
    return [row for row in study.entries.values() if not is_unfinished(study, row)]


def notes(study: Study) -> list[str]:
    """What the marks in the table mean, and what is not in it."""
    found = [row.unconverged.note(row.label) for row in shown(study) if row.unconverged]
    unfinished = [row.label for row in study.entries.values() if is_unfinished(study, row)]
    if unfinished:
        found.append(
            f"A quick run: a look, not a result. Neither in the table nor in the figures: {'; '.join(unfinished)}. Their "
            "networks had a tenth of their training or less, so that their figures (in results.json) say nothing about them."
        )
    return found


def is_unfinished(study: Study, row: TestedEntry) -> bool:
    """Whether it is a network's, and a quick run's."""
    return bool(study.settings.get("quick")) and row.parameters.get("advisor") in NETWORKS


def spread_text(values: np.ndarray, digits: int) -> str:
    """Mean and standard deviation.

    >>> spread_text(np.array([1.0, 2.0]), 2), spread_text(np.array([1.5]), 2)
    ('1.50 ± 0.50', '1.50')
    """
    mean = number_text(float(values.mean()), digits)
    spread = float(values.std()) if np.isfinite(values).all() else 0.0
    return f"{mean} ± {spread:.{digits}f}" if len(values) > 1 and spread > 0 else mean


def number_text(value: float, digits: int) -> str:
    """A number, or the sign of infinity."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "∞"


def best(study: Study, figure: str) -> TestedEntry:
    """The row, the oracle aside, with the lowest mean of a figure; one that is a result, if there is any."""
    rows = [row for row in shown(study) if row.name != "oracle"]
    rows = [row for row in rows if not row.unconverged] or rows
    return min(rows, key=lambda row: float(row.over_seeds(figure).mean()))
