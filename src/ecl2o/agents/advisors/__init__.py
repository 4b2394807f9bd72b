"""Advisors: agents made to give advice, such as given sequences, networks and regressions."""

# Loaded because policy files name their classes.
from ecl2o.agents.advisors import asymmetric_ridge, constant_weight, guard_aware_correction  # noqa: F401
from ecl2o.agents.advisors.fixed import Fixed
from ecl2o.agents.advisors.fourier_regression import FourierRegression
from ecl2o.agents.advisors.from_context import FromContext, HoldStill
from ecl2o.agents.advisors.mixture import Mixture
from ecl2o.agents.advisors.networks import LSTM, MLP, Scaling
from ecl2o.agents.advisors.online_ridge import OnlineRidge
from ecl2o.agents.advisors.seasonal_linear import SeasonalLinear

__all__ = [
    "LSTM",
    "MLP",
    "Fixed",
    "FourierRegression",
    "FromContext",
    "HoldStill",
    "Mixture",
    "OnlineRidge",
    "Scaling",
    "SeasonalLinear",
]
