"""Numerics with no domain in them: block-tridiagonal systems, small definite matrices, bounded Newton, roots, projections."""

from ecl2o.solvers.bisection import bisect_root
from ecl2o.solvers.block_tridiagonal import BlockTridiagonalFactor, DenseInverse, factor, invert, matvec, solve
from ecl2o.solvers.bounded_newton import BoundedMinimum, minimize, minimize_sequence
from ecl2o.solvers.ellipsoid import project_on_ellipsoid
from ecl2o.solvers.positive_definite import (
    half_quadratic_form,
    largest_ratio,
    multiply,
    parallel_sum,
    riccati_fixed_point,
    sandwich_solve,
    spd_solve,
)
from ecl2o.solvers.recursive_least_squares import RecursiveLeastSquares

__all__ = [
    "BlockTridiagonalFactor",
    "BoundedMinimum",
    "DenseInverse",
    "RecursiveLeastSquares",
    "multiply",
    "sandwich_solve",
    "bisect_root",
    "half_quadratic_form",
    "factor",
    "invert",
    "largest_ratio",
    "matvec",
    "minimize",
    "minimize_sequence",
    "parallel_sum",
    "project_on_ellipsoid",
    "riccati_fixed_point",
    "solve",
    "spd_solve",
]
