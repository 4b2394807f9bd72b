"""A small study made up in a moment, with everything a report shows; nothing in it was computed by an agent."""

import numpy as np
import pandas as pd

from ecl2o.agents import MLAROBD, ROBD
from ecl2o.agents.advisors import Fixed
from ecl2o.data import Contexts, Split
from ecl2o.evaluation import DailyScore
from ecl2o.paper.results import SkippedRow, StudyResults, StudyRow, TradeOffPoint, WorstDay
from ecl2o.policy import Policy
from ecl2o.problem import Mahalanobis, Problem, SquaredTracking, Trajectory

HOURS = 24
LABELS = {
    "oracle": "Oracle",
    "greedy": "Greedy",
    "r-obd": "R-OBD",
    "rhc": "RHC",
    "pure-ml": "PureML-0",
    "switch": "Switch",
    "mla-robd": "MLA-ROBD",
    "ec-l2o": "EC-L2O",
    "ec-l2o-tuned": "EC-L2O, tuned",
    "seasonal": "Seasonal",
    "guarded": "Guarded, 2.5",
}
LEARNED = ("pure-ml", "switch", "mla-robd", "ec-l2o", "ec-l2o-tuned", "seasonal", "guarded")


def fake_contexts(days: int, split: Split, random: np.random.Generator, shortage: float | None) -> Contexts:
    hours = np.arange(days * HOURS)
    values = np.clip(0.4 + 0.3 * np.sin(2 * np.pi * hours / HOURS) + random.normal(0, 0.08, hours.size), 0, 0.8)
    time = pd.date_range("2015-01-01", periods=hours.size, freq="h")
    return Contexts(values[:, None], time, None, HOURS, split, 4e-5, "authors-code", shortage)


def fake_score(contexts: np.ndarray, worst: float, dim: int, advised: bool, random: np.random.Generator) -> DailyScore:
    """Actions near the contexts, ratios from 1 to `worst`."""
    days = len(contexts)
    actions = np.repeat(
        np.clip(contexts + random.normal(0, 0.03 * min(worst, 10.0), contexts.shape), 0, None), dim, axis=-1
    )
    ratio = 1 + (min(worst, 50.0) - 1) * np.linspace(0, 1, days) ** 4
    ratio[-1] = worst
    cost = 0.5 * np.minimum(ratio, 50.0) * random.uniform(0.9, 1.1, days)
    steps = np.repeat(cost[:, None] / HOURS, HOURS, axis=1) / 2
    runs = Trajectory(*map(_array, (actions, steps, steps)), _array(actions) if advised else None, _truth(steps))
    return DailyScore(runs, actions[:, 0], cost, ratio, float(cost.mean() / 0.5), 0.3 if advised else None)


def fake_study(
    *,
    study: str = "demand-response",
    dim: int = 1,
    seeds: int = 3,
    worst: float = 9.0,
    names=tuple(LABELS),
    quick: bool = False,
) -> StudyResults:
    random = np.random.default_rng(0)
    split = Split(training_days=10, validation_days=4)
    contexts = fake_contexts(42, split, random, 2e4 if study == "demand-response" else None)
    days = contexts.test_days().days
    rows = {}
    for place, name in enumerate(names):
        learned = name in LEARNED
        largest = (
            1.0
            if name == "oracle"
            else 1.5 + worst * place / len(names)
            if name in LEARNED or np.isfinite(worst)
            else 2.0
        )
        scores = [fake_score(days, largest + 0.3 * k, dim, learned, random) for k in range(seeds if learned else 1)]
        parameters = {"trust": 0.5, "advisor": "LSTM"} if learned else {}
        rows[name] = StudyRow(name, LABELS[name], f"What {LABELS[name]} <is> & does.", parameters, scores)
    problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=dim))
    policies = {
        "r-obd": Policy(ROBD(), problem),
        "mla-robd": Policy(MLAROBD(Fixed(np.zeros((HOURS, dim))), 0.3), problem),
    }
    trade_off = [
        TradeOffPoint(family, f"trust {k:g}", 1.1 + 0.05 * k + 0.1 * i, 9.0 / (k + 1) + i)
        for i, family in enumerate(name for name in names if name in LEARNED)
        for k in range(5)
    ]
    row = "ec-l2o" if "ec-l2o" in rows else names[-1]
    day = int(np.argmax(rows[row].scores[0].ratio))
    per_day = contexts.steps_per_day
    return StudyResults(
        study=study,
        title="Sustainable datacenter <demand> response",
        preset="authors-code" if study == "demand-response" else None,
        contexts=contexts,
        constants={"m": 1.0, "alpha": 10.0, "beta": 10.0},
        seeds=list(range(seeds)),
        oracle_average_cost=0.5,
        test_days=len(days),
        rows=rows,
        trade_off=trade_off,
        worst_day=WorstDay(
            row=row,
            day=day,
            time=contexts.test_time()[day * per_day : (day + 1) * per_day],
            contexts=days[day],
            actions={name: np.asarray(entry.scores[0].runs.actions[day]) for name, entry in rows.items()},
            ratios={name: float(entry.scores[0].ratio[day]) for name, entry in rows.items()},
        ),
        policies=policies,
        settings={"weather": None, "preset": "authors-code", "base_shortage": "auto", "seeds": seeds, "quick": quick},
        weather={"file": "made & up.csv", "site": "Nowhere", "base_shortage": 2e4, "years": [2015]},
        seconds={"weather": 0.1, "training": 12.0, "testing": 3.0},
        skipped={
            "competitive": SkippedRow("Competitive, 2.5", "What it <would> promise.", "costs are not <quadratic>.")
        },
        problem="Contexts are shortages, actions are shed load & alpha = 10.",
    )


def _array(values):
    import jax.numpy as jnp

    return jnp.asarray(values)


def _truth(steps):
    import jax.numpy as jnp

    return jnp.ones(steps.shape, bool)
