"""WHAT is decided: hitting costs, switching costs, action sets, and the records of instances and runs.

Imports `solvers` only.
"""

from ecl2o.problem.actions import AbstractActionSet, Box, Everywhere, Limited, Simplex, Total
from ecl2o.problem.cluster_cost import ClusterCost
from ecl2o.problem.control import ControlProblem, battery, delayed, known_ahead, with_memory
from ecl2o.problem.hitting import (
    AbstractHittingCost,
    AbstractQuadraticCost,
    AsymmetricTracking,
    ConvexCost,
    CurvedTracking,
    Quadratic,
    SquaredTracking,
)
from ecl2o.problem.instance import Instance
from ecl2o.problem.problem import AbstractProblem, Problem
from ecl2o.problem.switching import AbstractSwitchingCost, LinearSwitching, Mahalanobis
from ecl2o.problem.timing import AbstractTiming, Delayed, Immediate, KnownAhead
from ecl2o.problem.trajectory import Info, Trajectory

__all__ = [
    "AbstractActionSet",
    "AbstractHittingCost",
    "AbstractProblem",
    "AbstractQuadraticCost",
    "AbstractSwitchingCost",
    "AbstractTiming",
    "AsymmetricTracking",
    "Box",
    "ClusterCost",
    "ControlProblem",
    "ConvexCost",
    "CurvedTracking",
    "Delayed",
    "Everywhere",
    "Immediate",
    "Info",
    "Instance",
    "KnownAhead",
    "Limited",
    "LinearSwitching",
    "Mahalanobis",
    "Problem",
    "Quadratic",
    "Simplex",
    "SquaredTracking",
    "Total",
    "Trajectory",
    "battery",
    "delayed",
    "known_ahead",
    "with_memory",
]
