"""The days of the studies that need no file, for comparisons of agents."""

from collections.abc import Callable

import jax
import numpy as np

from ecl2o.data import weather_contexts
from ecl2o.evaluation import Bed
from ecl2o.problem import NotApplicable
from ecl2o.recipes.own_series import tracking_problem
from ecl2o.recipes.recipe import refuse_bad_alpha
from ecl2o.studies.prices import spot_bed, tariff_bed
from ecl2o.studies.right_sizing import RightSizing
from ecl2o.studies.settings import RightSizingSettings
from ecl2o.studies.varying_curvature import random_instances, varying_curvature_problem

_HISTORY = 14 * 24
_INSTANCES = 200
_ALPHA = 10.0


def _movement(alpha: float | None) -> float:
    """What moving costs, unless said the paper's."""
    if alpha is None:
        return _ALPHA
    refuse_bad_alpha(alpha)
    return alpha


def demand_response_bed(alpha: float | None, seed: int) -> Bed:
    """The test days of the demand-response study on the built-in weather."""
    return Bed.of(tracking_problem(1, _movement(alpha)), *weather_contexts().test_days(_HISTORY))


def right_sizing_bed(alpha: float | None, seed: int) -> Bed:
    """The test days of the right-sizing study on the built-in workload: three kinds of servers, a box, Newton's solves."""
    if alpha is not None:
        raise NotApplicable(
            "what moving costs in right-sizing is given by the cluster's start-up prices; leave out alpha."
        )
    return RightSizing(RightSizingSettings(seed=seed)).test


def varying_curvature_bed(alpha: float | None, seed: int) -> Bed:
    """Random days on which the curvature of the hitting cost changes from step to step."""
    problem = varying_curvature_problem(beta=_movement(alpha))
    instances = random_instances(jax.random.key(seed), _INSTANCES, 24, problem)
    return Bed.of(problem, np.zeros(1), instances.contexts)


def prices_bed(alpha: float | None, seed: int) -> Bed:
    """The demand-response days, each miss weighed by a price that is not known in advance."""
    return spot_bed(_movement(alpha), seed)


def tariff_prices_bed(alpha: float | None, seed: int) -> Bed:
    """The same under a tariff that is."""
    return tariff_bed(_movement(alpha))


# By name: alpha (None: the study's own) and seed to a bed.
BEDS: dict[str, Callable[[float | None, int], Bed]] = {
    "demand-response": demand_response_bed,
    "right-sizing": right_sizing_bed,
    "varying-curvature": varying_curvature_bed,
    "prices": prices_bed,
    "prices-tariff": tariff_prices_bed,
}
