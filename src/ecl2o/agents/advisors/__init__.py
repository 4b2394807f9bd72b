"""Agents made to be asked for advice: given sequences, networks, and structured learners."""

from ecl2o.agents.advisors import correction, weighted  # noqa: F401  loaded, since policy files name their classes
from ecl2o.agents.advisors.dense import Scaling
from ecl2o.agents.advisors.fixed import Fixed
from ecl2o.agents.advisors.lstm import LSTM
from ecl2o.agents.advisors.mlp import MLP
from ecl2o.agents.advisors.ridge import OnlineRidge
from ecl2o.agents.advisors.seasonal import SeasonalLinear

__all__ = ["LSTM", "MLP", "Fixed", "OnlineRidge", "Scaling", "SeasonalLinear"]
