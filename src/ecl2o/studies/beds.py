"""The days of the studies that need no file, for comparisons of agents."""

from collections.abc import Callable

import jax
import numpy as np

from ecl2o.data import weather_contexts
from ecl2o.evaluation import TestBed
from ecl2o.studies.own_series import tracking_problem
from ecl2o.studies.varying_curvature import random_instances, varying_curvature_problem

_HISTORY = 14 * 24
_INSTANCES = 200


def demand_response_bed(alpha: float, seed: int) -> TestBed:
    """The test days of the demand-response study on the built-in weather."""
    return TestBed.of(tracking_problem(1, alpha), *weather_contexts().test_days(_HISTORY))


def varying_curvature_bed(alpha: float, seed: int) -> TestBed:
    """Random days on which the curvature of the hitting cost changes from step to step."""
    problem = varying_curvature_problem(beta=alpha)
    instances = random_instances(jax.random.key(seed), _INSTANCES, 24, problem)
    return TestBed.of(problem, np.zeros(1), instances.contexts)


BEDS: dict[str, Callable[[float, int], TestBed]] = {
    "demand-response": demand_response_bed,
    "varying-curvature": varying_curvature_bed,
}
