"""Predictions of future contexts, for agents that plan: causal forecasters, and clairvoyant ones for study."""

from ecl2o.forecasters.forecasters import (
    AbstractCausalForecaster,
    AbstractClairvoyantForecaster,
    AbstractForecaster,
    AbstractPreparedForecast,
    Exact,
    FromFunction,
    Given,
    NoisyExact,
    Persistence,
    RollingProfile,
    SeasonalNaive,
)

__all__ = [
    "AbstractCausalForecaster",
    "AbstractClairvoyantForecaster",
    "AbstractForecaster",
    "AbstractPreparedForecast",
    "Exact",
    "FromFunction",
    "Given",
    "NoisyExact",
    "Persistence",
    "RollingProfile",
    "SeasonalNaive",
]
