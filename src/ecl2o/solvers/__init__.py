"""Numerics with no domain in them: block-tridiagonal systems, bounded Newton's method, projections."""

from ecl2o.solvers.block_tridiagonal import BlockTridiagonalFactor, DenseInverse, factor, invert, matvec, solve
from ecl2o.solvers.bounded_newton import BoundedMinimum, minimize, minimize_sequence
from ecl2o.solvers.ellipsoid import project_on_ellipsoid
from ecl2o.solvers.root import decreasing_root

__all__ = [
    "BlockTridiagonalFactor",
    "BoundedMinimum",
    "DenseInverse",
    "decreasing_root",
    "factor",
    "invert",
    "matvec",
    "minimize",
    "minimize_sequence",
    "project_on_ellipsoid",
    "solve",
]
