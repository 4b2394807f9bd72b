"""Agents: every algorithm is a PyTree with `init` and `step`. One file per family, named for the algorithm."""

from ecl2o.agents import advisors
from ecl2o.agents.advised import Advised
from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, Trainable, trainable_mask, walk_agents
from ecl2o.agents.calibrator import (
    MLAROBD,
    ROBD,
    Calibration,
    FollowPrediction,
    Greedy,
    HittingMinimizer,
    Weights,
    calibrate,
)
from ecl2o.agents.citations import citation
from ecl2o.agents.control import LQR, HInfinity, WithinLimits
from ecl2o.agents.guards import (
    AbstractGuard,
    ClippedAdvice,
    Competitive,
    CompetitiveBand,
    CompetitiveControl,
    Guarded,
    GuardedControl,
    Promises,
)
from ecl2o.agents.lai import LAI
from ecl2o.agents.lcp import LCP
from ecl2o.agents.limits import RampLimited, Rounded
from ecl2o.agents.obd import ABCS, OBD, GreedyOBD
from ecl2o.agents.ogd import OGD
from ecl2o.agents.periodic import Periodic
from ecl2o.agents.promise import Promise, Reference
from ecl2o.agents.receding_horizon import AFHC, CHC, RHC, RHGD
from ecl2o.agents.switch import Switch
from ecl2o.agents.wrappers import Independent, PureML

__all__ = ["AbstractAgent", "Info", "Observation", "Start", "Trainable", "trainable_mask", "walk_agents", "citation"]
__all__ += ["MLAROBD", "ROBD", "FollowPrediction", "Greedy", "HittingMinimizer", "Calibration", "Weights", "calibrate"]
__all__ += [
    "ABCS",
    "AFHC",
    "CHC",
    "GreedyOBD",
    "HInfinity",
    "LAI",
    "LCP",
    "LQR",
    "OBD",
    "OGD",
    "RHC",
    "RHGD",
    "advisors",
]
__all__ += [
    "Advised",
    "Independent",
    "Periodic",
    "PureML",
    "RampLimited",
    "Rounded",
    "Switch",
    "WithinLimits",
]
__all__ += [
    "AbstractGuard",
    "ClippedAdvice",
    "Competitive",
    "CompetitiveBand",
    "CompetitiveControl",
    "Guarded",
    "GuardedControl",
    "Promise",
    "Promises",
    "Reference",
]
