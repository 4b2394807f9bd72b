"""Predictions of future contexts, for agents that plan."""

from ecl2o.forecasters.base import AbstractCausalForecaster, AbstractClairvoyantForecaster, AbstractForecaster
from ecl2o.forecasters.clairvoyant import Exact

__all__ = [
    "AbstractCausalForecaster",
    "AbstractClairvoyantForecaster",
    "AbstractForecaster",
    "Exact",
]
