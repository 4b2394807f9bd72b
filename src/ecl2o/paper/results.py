"""Results of a case study, as tables, figures, reports and results.json share them."""

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ecl2o.data import Contexts
from ecl2o.evaluation import DailyScore, TestDays, UnconvergedCounts
from ecl2o.json_text import as_json
from ecl2o.paper.pareto import paired_difference
from ecl2o.policy import Policy

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class StudyRow:
    """An entry after its test: its scores over seeds (one score where nothing is random)."""

    name: str
    label: str
    what: str  # one sentence for the report
    parameters: dict[str, Any]
    scores: Sequence[DailyScore]

    def over_seeds(self, figure: str) -> np.ndarray:
        """Return one figure of every score, e.g. `average_cost`."""
        return np.array([getattr(score, figure) for score in self.scores], float)

    def tails(self, level: str) -> np.ndarray:
        """Return a percentile of the daily ratio, e.g. "p99", of every score."""
        return np.array([score.tail_ratio[level] for score in self.scores], float)

    @property
    def has_advice(self) -> bool:
        """Whether there is advice, whose error is measured."""
        return all(score.prediction_error is not None for score in self.scores)

    @property
    def unconverged(self) -> UnconvergedCounts:
        """Over all seeds."""
        return sum((score.unconverged for score in self.scores), start=UnconvergedCounts())

    def as_json(self) -> dict[str, Any]:
        """Return the entry in results.json."""
        return {
            "label": self.label,
            "parameters": self.parameters,
            "average_cost": summarize_seeds(self.over_seeds("average_cost")),
            "competitive_ratio": summarize_seeds(self.over_seeds("competitive_ratio")),
            "third_worst_ratio": summarize_seeds(self.over_seeds("third_worst_ratio")),
            "tail_ratio": {level: summarize_seeds(self.tails(level)) for level in self.scores[0].tail_ratio},
            "prediction_error": summarize_seeds(self.over_seeds("prediction_error")) if self.has_advice else None,
            "unconverged": self.unconverged.as_json(),
        }


@dataclasses.dataclass(frozen=True)
class SkippedRow:
    """An entry whose agent does not apply to the study's problem, and why."""

    label: str
    what: str  # one sentence for the report
    reason: str


def summarize_seeds(values: Any) -> dict[str, Any]:
    """Return mean, standard deviation (over seeds, of the population; infinite if a value is) and the values."""
    array = np.asarray(values, float)
    spread = float(array.std()) if np.isfinite(array).all() else math.inf
    return {"mean": float(array.mean()), "std": spread, "per_seed": array.tolist()}


@dataclasses.dataclass(frozen=True)
class TradeOffPoint:
    """One setting of one family of algorithms on the plane of average cost and competitive ratio."""

    family: str  # the name of an entry
    setting: str  # e.g. "trust 0.5"
    average_cost: float
    competitive_ratio: float

    @classmethod
    def of(cls, family: str, setting: str, score: DailyScore) -> "TradeOffPoint":
        """Return the point of a score."""
        return cls(family, setting, score.average_cost, score.competitive_ratio)


@dataclasses.dataclass(frozen=True)
class WorstDay:
    """The day on which a learned row did worst, and what each row did on it (first seed)."""

    row: str
    day: int
    time: pd.DatetimeIndex
    contexts: np.ndarray  # (T, q)
    actions: dict[str, np.ndarray]  # row name -> (T, d)
    ratios: dict[str, float]

    @classmethod
    def of(cls, name: str, rows: dict[str, StudyRow], contexts: Contexts, test: TestDays) -> "WorstDay":
        """Return the day on which the row's ratio was largest."""
        day = int(np.argmax(rows[name].scores[0].ratio))
        steps = contexts.steps_per_day
        firsts = {name: row.scores[0] for name, row in rows.items()}
        return cls(
            row=name,
            day=day,
            time=contexts.test_time()[day * steps : (day + 1) * steps],
            contexts=np.asarray(test.days[day]),
            actions={row: np.asarray(score.runs.actions[day]) for row, score in firsts.items()},
            ratios={row: float(score.ratio[day]) for row, score in firsts.items()},
        )


class StageTimer:
    """The seconds that each part of a run took."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self._started = time.perf_counter()

    def record(self, name: str) -> None:
        """Count all time since the last call as this part's."""
        self.seconds[name] = time.perf_counter() - self._started - sum(self.seconds.values())


@dataclasses.dataclass(frozen=True)
class StudyResults:
    """Everything a study leaves behind."""

    study: str  # "demand-response" or "right-sizing"
    title: str
    preset: str | None
    contexts: Contexts
    constants: dict[str, float]  # m, alpha, beta
    seeds: list[int]
    oracle_average_cost: float
    test_days: int
    rows: dict[str, StudyRow]  # by name, in the order of the table
    trade_off: list[TradeOffPoint]
    worst_day: WorstDay
    policies: dict[str, Policy]
    settings: dict[str, Any]  # resolved, enough to repeat the run
    weather: dict[str, Any]  # where the contexts come from
    seconds: dict[str, float]
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    skipped: dict[str, SkippedRow] = dataclasses.field(default_factory=dict)  # by name
    problem: str = ""  # what is decided, in one paragraph for the report

    def paired_differences(self) -> dict[str, dict[str, float]]:
        """Return, by row, the average cost of each other network less PureML-0's of the same seed and schedule."""
        found = {}
        for name, row in self.rows.items():
            pure = self.rows.get("pure-ml-code" if name.endswith(AUTHORS_ROWS) else "pure-ml")
            if (
                pure not in (None, row)
                and row.parameters.get("advisor") in NETWORKS
                and len(row.scores) == len(self.seeds)
            ):
                found[name] = paired_difference(row.over_seeds("average_cost"), pure.over_seeds("average_cost"))
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the content of results.json; infinities are the string "inf"."""
        shown = {
            "format": FORMAT,
            "study": self.study,
            "preset": self.preset,
            "weather": self.weather,
            "problem": self.constants,
            "seeds": self.seeds,
            "oracle": {"average_cost": self.oracle_average_cost},
            "test_days": self.test_days,
            "algorithms": {name: row.as_json() for name, row in self.rows.items()},
            "minus_pure_ml": self.paired_differences(),
            "not_applicable": {name: entry.reason for name, entry in self.skipped.items()},
            "trade_off": [dataclasses.asdict(point) for point in self.trade_off],
            **self.extra,
            "seconds": self.seconds,
        }
        return as_json(shown)


NETWORKS = ("LSTM", "MLP")  # which a quick run trains too little for their rows to mean anything
AUTHORS_ROWS = ("-code", "-example")  # endings of the rows that are trained at the authors' learning rates
_LEVELS = ("p95", "p99", "p99.5")
HEADINGS = ("", "average cost", "competitive ratio", "third-worst day", *_LEVELS, "prediction error")


def format_cells(row: StudyRow) -> tuple[str, ...]:
    """Return one line: label, then figures in the order of `HEADINGS`."""
    return (
        row.unconverged.mark(row.label),
        format_spread(row.over_seeds("average_cost"), 3),
        format_spread(row.over_seeds("competitive_ratio"), 2),
        format_spread(row.over_seeds("third_worst_ratio"), 2),
        *(format_number(float(row.tails(level).mean()), 2) for level in _LEVELS),
        format_spread(row.over_seeds("prediction_error"), 3) if row.has_advice else "",
    )


def reported_rows(study: StudyResults) -> list[StudyRow]:
    """Return the rows of table and figures: all but the barely trained networks of a quick run."""
    return [row for row in study.rows.values() if not is_unfinished(study, row)]


def table_notes(study: StudyResults) -> list[str]:
    """Return what the marks in the table mean, and which rows it leaves out."""
    rows = reported_rows(study)
    found = [row.unconverged.note(row.label) for row in rows if row.unconverged]
    pairs = [(row.label, study.paired_differences().get(row.name)) for row in rows if len(study.seeds) > 1]
    paired = [
        f"{label} {more['mean']:+.3f} ± {more['standard_error']:.3f}" for label, more in pairs if more is not None
    ]
    if paired:
        found.append(
            f"Average cost less PureML-0's of the same seed and schedule, ± standard error: {'; '.join(paired)}."
        )
    unfinished = [row.label for row in study.rows.values() if is_unfinished(study, row)]
    if unfinished:
        found.append(
            "This is a quick run: networks had at most a tenth of their training, so table and figures leave out "
            f"{'; '.join(unfinished)}. Their figures are in results.json."
        )
    return found


def is_unfinished(study: StudyResults, row: StudyRow) -> bool:
    """Return whether a row is a barely trained network of a quick run."""
    return bool(study.settings.get("quick")) and row.parameters.get("advisor") in NETWORKS


def format_spread(values: np.ndarray, digits: int) -> str:
    """Format mean and standard deviation.

    >>> format_spread(np.array([1.0, 2.0]), 2), format_spread(np.array([1.5]), 2)
    ('1.50 ± 0.50', '1.50')
    """
    mean = format_number(float(values.mean()), digits)
    spread = float(values.std()) if np.isfinite(values).all() else 0.0
    return f"{mean} ± {spread:.{digits}f}" if len(values) > 1 and spread > 0 else mean


def format_number(value: float, digits: int) -> str:
    """Format a number, or the sign of infinity."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "∞"


def find_best_row(study: StudyResults, figure: str) -> StudyRow:
    """Return the row, other than the oracle, with the lowest mean of a figure; one whose solves converged, if there is any."""
    rows = [row for row in reported_rows(study) if row.name != "oracle"]
    rows = [row for row in rows if not row.unconverged] or rows
    return min(rows, key=lambda row: float(row.over_seeds(figure).mean()))
