"""WHO decides: every algorithm is an agent, a PyTree with `init` and `step`."""

from ecl2o.agents import advisors
from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.agents.calibrated import MLAROBD, ROBD, FollowPrediction, Greedy, HittingMinimizer
from ecl2o.agents.calibration import Calibration, Weights, calibrate, prepare

__all__ = [
    "AbstractAgent",
    "Calibration",
    "FollowPrediction",
    "Greedy",
    "HittingMinimizer",
    "Info",
    "MLAROBD",
    "Observation",
    "ROBD",
    "Start",
    "Weights",
    "advisors",
    "calibrate",
    "prepare",
]
