"""Predictions of future contexts, for agents that plan.

Knows contexts; knows nothing of agents.
"""

from ecl2o.forecasters.base import AbstractCausalForecaster, AbstractClairvoyantForecaster, AbstractForecaster
from ecl2o.forecasters.causal import FromFunction, Persistence, RollingProfile, SeasonalNaive
from ecl2o.forecasters.clairvoyant import Exact, NoisyExact

__all__ = [
    "AbstractCausalForecaster",
    "AbstractClairvoyantForecaster",
    "AbstractForecaster",
    "Exact",
    "FromFunction",
    "NoisyExact",
    "Persistence",
    "RollingProfile",
    "SeasonalNaive",
]
