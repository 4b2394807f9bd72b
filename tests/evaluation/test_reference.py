"""The deterministic figures of an independent implementation on Riverside 2015, from file to ratio."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecl2o.agents import MLAROBD, ROBD, Greedy
from ecl2o.agents.advisors import Fixed
from ecl2o.data import weather_contexts
from ecl2o.evaluation import metrics
from ecl2o.offline import oracle, oracle_days
from ecl2o.problem import Instance, Mahalanobis, Problem, SquaredTracking
from ecl2o.running import rollout_days

REFERENCE = Path(__file__).parents[1] / "reference" / "riverside_2015.json"

TRUSTED_MEAN = "mla-robd, trust 0.3, advice = mean of the training contexts"


@pytest.fixture(scope="module")
def study(shared):
    contexts = weather_contexts(shared / "data" / "nsrdb_riverside_2015.csv", preset="authors-code")
    problem = Problem(SquaredTracking(1.0), Mahalanobis.isotropic(alpha=10.0, dim=1))
    reference = json.loads(REFERENCE.read_text())
    x0, days, _ = contexts.test_days()
    best, _ = oracle_days(problem, jnp.asarray(x0), jnp.asarray(days))
    return contexts, problem, reference, best


def test_oracles(study):
    contexts, problem, reference, best = study
    assert float(best.cost.mean()) == pytest.approx(reference["oracle_average_cost"], abs=1e-6)
    x0, days, _ = contexts.test_days()
    whole = oracle(problem, Instance(x0, days.reshape(-1, 1)))
    ratio = float(whole.cost / best.cost.sum())
    assert ratio == pytest.approx(reference["whole_horizon_oracle_over_daily_oracle"], abs=1e-6)


@pytest.mark.parametrize("name", ["r-obd", "greedy", TRUSTED_MEAN])
def test_agents(study, name):
    contexts, problem, reference, best = study
    mean = Fixed(np.full((24, 1), contexts.training.mean()))
    agent = {"r-obd": ROBD(), "greedy": Greedy(), TRUSTED_MEAN: MLAROBD(mean, trust=0.3)}[name]
    x0, days, _ = contexts.test_days()
    runs, starts = rollout_days(agent, problem, jnp.asarray(x0), jnp.asarray(days))
    same_start = jax.vmap(lambda start, day: oracle(problem, Instance(start, day)).cost)(starts, jnp.asarray(days))
    ratios = metrics.cost_ratio(runs.cost, same_start)
    measured = {
        "normalized_average_cost": metrics.average_cost(runs.cost, best.cost),
        "competitive_ratio": metrics.competitive_ratio(runs.cost, same_start),
        "ratio_p99": metrics.tail_ratios(runs.cost, same_start, (99.0,))[0],
        "ratio_mean": ratios.mean(),
    }
    assert {key: float(value) for key, value in measured.items()} == pytest.approx(reference[name], abs=1e-6)
