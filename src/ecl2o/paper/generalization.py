"""Generalisation (section 5): how far the test days are from the training days, what that costs, and Theorems 5.1 and 5.2.

The shift D(P, P') is measured as the Wasserstein distance from the training days to each quarter of the test days; beside it
stands how much more each row costs there, and a controlled experiment in which the training days are moved by known amounts.

For the theorems, each day is an instance of its own that starts from the last context before it, so training days and test
days are two sets of vectors (x_0, y) and expectations are means over them. The reference W*, the best weights for the test
days, is the same network trained on the test days. That is what training finds, not a minimum; the theorems hold for any
reference.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from ecl2o import theory
from ecl2o.agents import MLAROBD, AbstractAgent
from ecl2o.data import Contexts
from ecl2o.evaluation import TestDays, metrics, score_agents, solve_transport
from ecl2o.learning.losses import CalibratedLoss, fix_scale
from ecl2o.offline import oracle_batch
from ecl2o.paper.results import StudyRow, summarize_seeds
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.running import rollout_batch
from ecl2o.theory.forms import Form

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
    """Return the calendar quarters of the test days, which begin at these times.

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
    """Return the training days after the first, for continuous testing from its last context."""
    return TestDays.of(problem, *_days_after_first(contexts))


def _days_after_first(contexts: Contexts) -> tuple[np.ndarray, np.ndarray]:
    days = contexts.training.reshape(-1, contexts.steps_per_day, contexts.dim)
    return days[0, -1], days[1:]


def measure_distances(contexts: Contexts) -> dict[str, Any]:
    """Return W1 from the training days to the validation days and to each quarter of the test days.

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
    """Return each row's cost over the oracle's on the training days, and by how much it is larger in each quarter."""
    days = make_training_test_days(test.problem, contexts)
    parts = split_quarters(contexts.test_time()[:: contexts.steps_per_day])
    oracle = np.asarray(test.oracle_cost)
    found = {}
    for name, trained in agents.items():
        before = np.array([score.average_cost for score in score_agents(trained, days)])
        costs = np.stack([score.cost for score in rows[name].scores])
        gap = {q.label: costs[:, q.days].sum(axis=1) / oracle[q.days].sum() - before for q in parts}
        found[name] = {
            "training": summarize_seeds(before),
            "gap": {label: summarize_seeds(more) for label, more in gap.items()},
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
        """Return plain values."""
        costs = {name: summarize_seeds(values) for name, values in self.costs.items()}
        return {"what": self.what, "amount": self.amount, "distance": self.distance, "cost": costs}


def score_shifted_days(
    problem: Problem, contexts: Contexts, agents: Mapping[str, Sequence[AbstractAgent]]
) -> list[ShiftedDays]:
    """Score agents on training days with an offset, or times a factor; the days as they are first."""
    days = make_training_test_days(problem, contexts)
    cases = [("offset", 0.0), *(("offset", amount) for amount in OFFSETS), *(("factor", amount) for amount in FACTORS)]
    still = np.asarray(days.days).reshape(len(days.days), -1)
    found = []
    for what, amount in cases:
        offset, factor = (amount, 1.0) if what == "offset" else (0.0, amount)
        there = TestDays.of(problem, factor * days.x0 + offset, factor * days.days + offset)
        distance = solve_transport(still, factor * still + offset).distance
        scores = {name: score_agents(group, there) for name, group in agents.items()}
        costs = {name: np.array([score.average_cost for score in group]) for name, group in scores.items()}
        found.append(ShiftedDays(what, amount, distance, costs))
    return found


def measure_savings(experiment: Sequence[ShiftedDays], pure: str, calibrated: str) -> dict[str, Any]:
    """Return what calibration saves, `pure` less `calibrated`, and its slope against distance (positive, says the paper)."""
    distance = np.array([case.distance for case in experiment])
    saved = np.stack([case.costs[pure] - case.costs[calibrated] for case in experiment])  # (cases, seeds)
    return {
        "slope": summarize_seeds(np.polyfit(distance, saved, 1)[0]),
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


# --- Theorems 5.1 and 5.2

DELTA = 0.01
_FORMS: tuple[Form, ...] = ("tight", "paper")


@dataclasses.dataclass(frozen=True)
class SolvedDays:
    """Days as instances, with the optimum of each."""

    instances: Instance
    best: Trajectory

    @property
    def vectors(self) -> Float[np.ndarray, "n k"]:
        """(x_0, y) of each day."""
        x0, contexts = np.asarray(self.instances.x0), np.asarray(self.instances.contexts)
        return np.concatenate([x0, contexts.reshape(len(x0), -1)], axis=1)


def solve_days(problem: Problem, x0: np.ndarray, days: np.ndarray) -> SolvedDays:
    """Solve each day from the last context before it, the first from `x0`."""
    instances = Instance(np.concatenate([np.asarray(x0)[None], days[:-1, -1]]), days)
    return SolvedDays(instances, oracle_batch(problem, instances))


def solve_training_days(problem: Problem, contexts: Contexts) -> SolvedDays:
    """Solve the training days after the first."""
    return solve_days(problem, *_days_after_first(contexts))


def solve_test_days(problem: Problem, contexts: Contexts) -> SolvedDays:
    """Solve the test days."""
    return solve_days(problem, *contexts.test_days()[:2])


@eqx.filter_jit
def _terms(
    agent: MLAROBD, problem: Problem, loss: CalibratedLoss, instances: Instance, best: Trajectory
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Return (cost in the loss's unit, l) of every day."""
    assert loss.scale is not None
    played = rollout_batch(agent, problem, instances)
    assert played.advice is not None
    error = loss.scale.ratio(jnp.sum((played.advice - best.actions) ** 2, axis=(-2, -1)), best.cost)
    return loss.scale.factor * played.cost, jax.nn.relu(error - loss.rho_bar)


def evaluate_theorems(
    trained: MLAROBD,
    reference: MLAROBD,
    problem: Problem,
    training: SolvedDays,
    use: SolvedDays,
    mu: float,
    rho_bar: float,
    diameter: float,
) -> dict[str, Any]:
    """Evaluate both theorems for weights that were trained with this mu and rho_bar: terms, bounds, and what was measured.

    Costs are in units of the mean optimum of the training days, as in the loss. `diameter` is omega; errors of different steps
    are taken for independent, which is the theorem's best case. Theorem 5.2 is left out where mu is 0, and has no bound (None)
    where the optimum of some day is 0.
    """
    loss = fix_scale(CalibratedLoss(mu=mu, rho_bar=rho_bar), training.best)
    assert isinstance(loss, CalibratedLoss)
    assert loss.scale is not None
    figures = {
        (who, where): tuple(np.asarray(part) for part in _terms(agent, problem, loss, days.instances, days.best))
        for who, agent in (("trained", trained), ("reference", reference))
        for where, days in (("training", training), ("use", use))
    }
    losses = {place: mu * prediction + (1 - mu) * cost for place, (cost, prediction) in figures.items()}
    moved = solve_transport(training.vectors, use.vectors)
    slopes = [moved.slope(losses[who, "training"], losses[who, "use"]) for who in ("trained", "reference")]
    cost, prediction = figures["reference", "use"]
    shared = {
        "training_error": float(losses["trained", "training"].mean() - losses["reference", "training"].mean()),
        "shift_effect": float(theory.shift_effect(moved.distance, *slopes)),
    }
    average = {"reference_cost": float(cost.mean()), "reference_prediction_loss": float(prediction.mean())}
    measured_cost, measured_loss = figures["trained", "use"]
    found = {
        "distance": moved.distance,
        "slopes": dict(zip(("trained", "reference"), slopes, strict=True)),
        **shared,
        **average,
        "average_cost_bound": float(theory.average_cost_bound(mu=mu, **average, **shared)),
        "average_cost": float(measured_cost.mean()),
    }
    if mu == 0:
        return found  # Theorem 5.2 divides by mu
    horizon = use.instances.horizon
    tail = {
        "rho_bar": rho_bar,
        "expected_prediction_loss": average["reference_prediction_loss"],
        "expected_cost": average["reference_cost"],
        "diameter": diameter,
        "smallest_oracle_cost": float(np.min(np.asarray(use.best.cost))),
        "horizon": horizon,
        "delta": DELTA,
    }
    bounds = {}
    for form in _FORMS:
        mixing = theory.mixing_norm(horizon, None, form)
        rho = theory.tail_prediction_error(mu=mu, mixing_norm=mixing, form=form, **tail, **shared)
        ratio = theory.tail_ratio_bound(problem.m, problem.alpha, problem.beta, trained.trust, rho, form)
        bounds[form] = {"rho_tail": _finite(rho), "ratio": _finite(ratio)}
    ratios = metrics.cost_ratio(jnp.asarray(measured_cost) / loss.scale.factor, use.best.cost)
    level = 100 * (1 - DELTA)
    measured = {
        "rho_tail": _finite(np.percentile(measured_loss + rho_bar, level)),
        "ratio": _finite(np.percentile(np.asarray(ratios), level)),
    }
    known = {name: tail[name] for name in ("smallest_oracle_cost", "diameter", "delta")}
    return found | known | {"tail": bounds, "tail_measured": measured}


def _finite(value: Float[Array, ""] | np.floating) -> float | None:
    """Return the value, or None where it is infinite: a day without a cost leaves Theorem 5.2 without a bound."""
    return float(value) if np.isfinite(value) else None
