"""Theorems 5.1 and 5.2 with the numbers of a case study: what they say about EC-L2O on the test days, term by term.

Days are instances of their own here, each from the last context before it, so that training days and test days are two sets of
vectors (x_0, y) and the theorems' expectations are means over them. The reference W*, the best weights for the test days, is the
same network trained on *those*: no minimum, but what training finds, and the theorems hold for any reference.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o import theory
from ecl2o.agents import MLAROBD
from ecl2o.data import Contexts
from ecl2o.evaluation import metrics, solve_transport
from ecl2o.learning.losses import CalibratedLoss, fix_scale
from ecl2o.offline import oracle
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.running import rollout_batch
from ecl2o.theory.forms import Form

DELTA = 0.01
_FORMS: tuple[Form, ...] = ("tight", "paper")


@dataclasses.dataclass(frozen=True)
class SolvedDays:
    """SolvedDays as instances, with the optimum of each."""

    instances: Instance
    best: Trajectory

    @property
    def vectors(self) -> Float[np.ndarray, "n k"]:
        """(x_0, y) of each day."""
        x0, contexts = np.asarray(self.instances.x0), np.asarray(self.instances.contexts)
        return np.concatenate([x0, contexts.reshape(len(x0), -1)], axis=1)


def solve_days(problem: Problem, x0: np.ndarray, days: np.ndarray) -> SolvedDays:
    """Each day from the last context before it, the first from `x0`."""
    starts = np.concatenate([np.asarray(x0)[None], days[:-1, -1]])
    instances = Instance(starts, days)
    return SolvedDays(instances, _oracles(problem, instances))


def solve_training_days(problem: Problem, contexts: Contexts) -> SolvedDays:
    """The training days after the first."""
    days = contexts.training.reshape(-1, contexts.steps_per_day, contexts.dim)
    return solve_days(problem, days[0, -1], days[1:])


def solve_test_days(problem: Problem, contexts: Contexts) -> SolvedDays:
    """The test days."""
    x0, days, _ = contexts.test_days()
    return solve_days(problem, x0, days)


@eqx.filter_jit
def _oracles(problem: Problem, instances: Instance) -> Trajectory:
    return jax.vmap(lambda day: oracle(problem, day))(instances)


@eqx.filter_jit
def _terms(
    agent: MLAROBD, problem: Problem, loss: CalibratedLoss, instances: Instance, best: Trajectory
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """(cost in the loss's unit, l) of every day."""
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
    """The terms and bounds of both theorems for weights that were trained with this mu and rho_bar, and what was measured.

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
    measured = {"rho_tail": _finite(np.percentile(measured_loss + rho_bar, level))}
    measured["ratio"] = _finite(np.percentile(np.asarray(ratios), level))
    known = {name: tail[name] for name in ("smallest_oracle_cost", "diameter", "delta")}
    return found | known | {"tail": bounds, "tail_measured": measured}


def _finite(value: Float[Array, ""] | np.floating) -> float | None:
    """The value, or None where it is infinite: a day that costs nothing in hindsight leaves Theorem 5.2 without a bound."""
    return float(value) if np.isfinite(value) else None
