"""WHO decides: every algorithm is an agent, a PyTree with `init` and `step`."""

from ecl2o.agents import advisors
from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.agents.calibrated import MLAROBD, ROBD, FollowPrediction, Greedy, HittingMinimizer
from ecl2o.agents.calibration import Calibration, Weights, calibrate, prepare
from ecl2o.agents.combined import Independent, PureML
from ecl2o.agents.trainable import Trainable, trainable_mask

__all__ = [
    "AbstractAgent",
    "Calibration",
    "FollowPrediction",
    "Greedy",
    "HittingMinimizer",
    "Independent",
    "Info",
    "MLAROBD",
    "Observation",
    "PureML",
    "ROBD",
    "Start",
    "Trainable",
    "Weights",
    "advisors",
    "calibrate",
    "prepare",
    "trainable_mask",
]
