"""How unlike the training days the test days are, and what that costs: D(P, P') of Theorem 5.1 as a number.

Three things: the exact Wasserstein distance from the training days to each quarter of the test days; how much dearer than in
training each row is there; and a controlled experiment, in which the training days themselves are moved by known amounts.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ecl2o.agents import AbstractAgent
from ecl2o.data import Contexts
from ecl2o.evaluation import TestDays, score_agents, solve_transport
from ecl2o.paper.results import StudyRow, summarize_seeds
from ecl2o.problem import Problem

OFFSETS = (-0.2, -0.1, 0.1, 0.2, 0.4)  # added to every context of the training days, in the contexts' unit
FACTORS = (0.5, 0.75, 1.25, 1.5, 2.0)  # multiplying every context
_FEWEST = 10  # days of a quarter of its own
_PARTS = 3  # where there is one quarter only
_NAMES = ("January to March", "April to June", "July to September", "October to December")


@dataclasses.dataclass(frozen=True)
class Quarter:
    """Some of the test days, in order, and what they are called."""

    label: str
    days: np.ndarray


def split_quarters(mornings: pd.DatetimeIndex) -> list[Quarter]:
    """The calendar quarters of the test days, which begin at these times.

    A quarter of fewer than 10 days goes with its neighbour; what lies in one quarter is cut into three equal parts.

    >>> [part.label for part in split_quarters(pd.date_range("2015-04-01", "2015-12-31"))]
    ['April to June', 'July to September', 'October to December']
    """
    number = np.asarray(mornings.year * 4 + mornings.quarter - 1)
    parts = [np.flatnonzero(number == each) for each in np.unique(number)]
    while len(parts) > 1 and len(parts[0]) < _FEWEST:
        parts[:2] = [np.concatenate(parts[:2])]
    while len(parts) > 1 and len(parts[-1]) < _FEWEST:
        parts[-2:] = [np.concatenate(parts[-2:])]
    if len(parts) > 1:
        return [Quarter(_NAMES[int(np.median(number[part])) % 4], part) for part in parts]
    cut = [part for part in np.array_split(np.arange(len(mornings)), _PARTS) if len(part)]
    return [Quarter(f"{mornings[part[0]]:%d %b} to {mornings[part[-1]]:%d %b}", part) for part in cut]


def make_training_test_days(problem: Problem, contexts: Contexts) -> TestDays:
    """The training days after the first, for continuous testing from its last context."""
    per_day = contexts.steps_per_day
    days = contexts.training.reshape(-1, per_day, contexts.dim)
    return TestDays.of(problem, days[0, -1], days[1:])


def measure_distances(contexts: Contexts) -> dict[str, Any]:
    """W1 from the training days to the validation days and to each quarter of the test days, in the contexts' unit.

    `within` is the distance between every other training day and the rest: what chance alone makes of sets of that size.
    """
    training, validation, test = (
        np.asarray(days).reshape(-1, contexts.steps_per_day * contexts.dim)
        for days in (contexts.training, contexts.validation_days().days, contexts.test_days().days)
    )
    mornings = contexts.test_time()[:: contexts.steps_per_day]
    return {
        "within": solve_transport(training[::2], training[1::2]).distance,
        "validation": solve_transport(training, validation).distance,
        "test": solve_transport(training, test).distance,
        "quarters": {q.label: solve_transport(training, test[q.days]).distance for q in split_quarters(mornings)},
    }


def measure_gaps(
    rows: Mapping[str, StudyRow], agents: Mapping[str, Sequence[AbstractAgent]], contexts: Contexts, test: TestDays
) -> dict[str, Any]:
    """Each row's cost over the oracle's on the training days, and by how much it is larger in each quarter; over seeds."""
    bed = make_training_test_days(test.problem, contexts)
    parts = split_quarters(contexts.test_time()[:: contexts.steps_per_day])
    oracle = np.asarray(test.oracle_cost)
    found = {}
    for name, trained in agents.items():
        before = np.array([score.average_cost for score in score_agents(trained, bed)])
        costs = np.stack([score.cost for score in rows[name].scores])
        dearer = {q.label: costs[:, q.days].sum(axis=1) / oracle[q.days].sum() - before for q in parts}
        found[name] = {
            "training": summarize_seeds(before),
            "gap": {label: summarize_seeds(gap) for label, gap in dearer.items()},
        }
    return found


@dataclasses.dataclass(frozen=True)
class ShiftedDays:
    """The training days, moved by a known amount: how far that is, and what each row costs there, over the oracle's."""

    what: str  # "offset" or "factor"
    amount: float
    distance: float
    costs: dict[str, np.ndarray]  # row -> one per seed

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        costs = {name: summarize_seeds(values) for name, values in self.costs.items()}
        return {"what": self.what, "amount": self.amount, "distance": self.distance, "cost": costs}


def score_shifted_days(
    problem: Problem, contexts: Contexts, agents: Mapping[str, Sequence[AbstractAgent]]
) -> list[ShiftedDays]:
    """The controlled experiment: agents on training days with an offset, or times a factor; the days as they are first."""
    bed = make_training_test_days(problem, contexts)
    cases = [("offset", 0.0), *(("offset", amount) for amount in OFFSETS), *(("factor", amount) for amount in FACTORS)]
    still = np.asarray(bed.days).reshape(len(bed.days), -1)
    found = []
    for what, amount in cases:
        offset, factor = (amount, 1.0) if what == "offset" else (0.0, amount)
        there = TestDays.of(problem, factor * bed.x0 + offset, factor * bed.days + offset)
        distance = solve_transport(still, factor * still + offset).distance
        costs = {name: [score.average_cost for score in score_agents(group, there)] for name, group in agents.items()}
        found.append(ShiftedDays(what, amount, distance, {name: np.array(values) for name, values in costs.items()}))
    return found


def measure_savings(experiment: Sequence[ShiftedDays], pure: str, calibrated: str) -> dict[str, Any]:
    """What calibration saves, cost of `pure` less that of `calibrated`, against distance: the least-squares slope by seed.

    The paper's claim is that it is positive.
    """
    distance = np.array([case.distance for case in experiment])
    saved = np.stack([case.costs[pure] - case.costs[calibrated] for case in experiment])  # (cases, seeds)
    slopes = np.polyfit(distance, saved, 1)[0]
    return {
        "slope": summarize_seeds(slopes),
        "at_home": summarize_seeds(saved[0]),
        "furthest": summarize_seeds(saved[np.argmax(distance)]),
    }


def measure_shift(
    contexts: Contexts, test: TestDays, rows: Mapping[str, StudyRow], agents: Mapping[str, Sequence[AbstractAgent]]
) -> dict[str, Any]:
    """Collect what results.json says: distances, gaps, days moved on purpose, and what each calibrated row saves on those."""
    moved = score_shifted_days(test.problem, contexts, agents)
    calibrated = [name for name in agents if name not in ("r-obd", "pure-ml")]
    return {
        "distances": measure_distances(contexts),
        "gaps": measure_gaps(rows, agents, contexts, test),
        "moved": [case.as_json() for case in moved],
        "saved": {name: measure_savings(moved, "pure-ml", name) for name in calibrated},
    }
