"""WHO decides: every algorithm is an agent, a PyTree with `init` and `step`."""

from ecl2o.agents import advisors
from ecl2o.agents.balanced import ABCS, OBD, GreedyOBD
from ecl2o.agents.base import AbstractAgent, Info, Observation, Promise, Start, nested_agents
from ecl2o.agents.calibrated import MLAROBD, ROBD, FollowPrediction, Greedy, HittingMinimizer
from ecl2o.agents.calibration import Calibration, Weights, calibrate
from ecl2o.agents.citations import citation
from ecl2o.agents.combined import Independent, PureML
from ecl2o.agents.gradient import OGD
from ecl2o.agents.guards import AbstractGuard, ClippedAdvice, Competitive, Guarded
from ecl2o.agents.horizon import AFHC, CHC, RHC
from ecl2o.agents.horizon_gradient import RHGD
from ecl2o.agents.lazy import LCP
from ecl2o.agents.martingale import LAI
from ecl2o.agents.periodic import Periodic, Renewed, Restarting
from ecl2o.agents.switch import Switch
from ecl2o.agents.trainable import Trainable, trainable_mask

__all__ = [
    "ABCS",
    "AFHC",
    "AbstractAgent",
    "AbstractGuard",
    "CHC",
    "Calibration",
    "ClippedAdvice",
    "Competitive",
    "FollowPrediction",
    "Greedy",
    "GreedyOBD",
    "Guarded",
    "HittingMinimizer",
    "Independent",
    "Info",
    "LAI",
    "LCP",
    "MLAROBD",
    "OBD",
    "OGD",
    "Observation",
    "Periodic",
    "Promise",
    "PureML",
    "RHC",
    "RHGD",
    "ROBD",
    "Renewed",
    "Restarting",
    "Start",
    "Switch",
    "Trainable",
    "Weights",
    "advisors",
    "calibrate",
    "citation",
    "nested_agents",
    "trainable_mask",
]
