"""Numerics with no domain in them: block-tridiagonal systems, small definite matrices, bounded Newton, roots, projections."""

from ecl2o.solvers.bisection import decreasing_root
from ecl2o.solvers.block_tridiagonal import BlockTridiagonalFactor, DenseInverse, factor, invert, matvec, solve
from ecl2o.solvers.bounded_newton import BoundedMinimum, minimize, minimize_sequence
from ecl2o.solvers.ellipsoid import project_on_ellipsoid
from ecl2o.solvers.positive_definite import apply, between, energy, largest_ratio, parallel_sum, reproduced, spd_solve
from ecl2o.solvers.recursive_least_squares import RecursiveLeastSquares

__all__ = [
    "BlockTridiagonalFactor",
    "BoundedMinimum",
    "DenseInverse",
    "RecursiveLeastSquares",
    "apply",
    "between",
    "decreasing_root",
    "energy",
    "factor",
    "invert",
    "largest_ratio",
    "matvec",
    "minimize",
    "minimize_sequence",
    "parallel_sum",
    "project_on_ellipsoid",
    "reproduced",
    "solve",
    "spd_solve",
]
