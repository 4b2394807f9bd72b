"""What the cases of the registry are run on, and which check is for which."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.forecasters import Exact
from ecl2o.problem.arrays import to_device
from matrices import spd

from .registry import CASES, HORIZON, Case


class _QuadraticFunction(eqx.Module):
    """The quadratic cost as a function that the library knows nothing about."""

    A: jax.Array

    def __call__(self, x, y):
        return 0.5 * (x - y) @ self.A @ (x - y)


@functools.cache
def problem_of(kind: str, dim: int) -> ec.Problem:
    """The problem that a case is run on."""
    if dim == 1:
        A, switching = np.eye(1), ec.Mahalanobis.isotropic(alpha=10.0, dim=1)
    else:
        A, switching = spd(dim, 5, 1.0, 6.0), ec.Mahalanobis(spd(dim, 6, 0.4, 3.0))
    if kind == "two-sided":
        return ec.Problem(ec.AsymmetricTracking(3.0, 1.0), switching)
    if kind == "late":
        return ec.Problem(ec.Quadratic(A), switching, timing=ec.Delayed(1))
    if kind == "open":
        return ec.Problem(ec.Quadratic(A), switching)
    if kind == "total":
        return ec.Problem(ec.Quadratic(A), switching, ec.Total(column=0))
    box = ec.Box(-0.4 * np.ones(dim), 0.7 * np.ones(dim))
    if kind == "box":
        return ec.Problem(ec.Quadratic(A), switching, box)
    assert kind == "function"
    return ec.Problem(ec.ConvexCost(_QuadraticFunction(to_device(A)), strong_convexity=1.0), switching, box)


@functools.cache
def instances_of(dim: int, history: int = 0) -> ec.Instance:
    """Five instances: three ordinary ones, one with a far jump, and one where the best is to stay and pay nothing."""
    rng = np.random.default_rng(dim)
    x0, contexts = rng.uniform(-0.4, 0.7, size=(5, dim)), rng.normal(size=(5, HORIZON, dim))
    past = rng.normal(size=(5, history, dim))
    contexts[3, 2] *= 100.0
    contexts[4] = x0[4]
    past[4] = x0[4]
    return ec.Instance(x0, contexts, past if history else None)


def forecaster_of(case: Case):
    return Exact() if case.forecaster is None else case.forecaster()


def kinds_of(case: Case) -> list[tuple[str, int]]:
    """What this case can be run on."""
    kinds = [("open", dim) for dim in case.dims]
    if case.box != "refuses" and not case.variant:
        kinds += [("box", dim) for dim in case.dims]
    if case.convex and case.box != "refuses" and not case.variant:
        kinds += [("function", case.dims[-1])]  # Newton's method has one path for all dimensions
    return kinds + [("two-sided", 1)] * case.two_sided + [("late", 1)] * case.late + [("total", 3)] * case.total


def settings_of(case: Case, *kinds: str) -> list[tuple[str, int]]:
    """What this case can be run on, of these kinds; never nothing, which a test would pass without asserting."""
    settings = [(kind, dim) for kind, dim in kinds_of(case) if kind in kinds]
    assert settings, f"{case.name} runs on none of {kinds}: this check is not for it."
    return settings


ANY = ("open", "box", "function", "two-sided", "late", "total")


def of_cases(applies: Callable[[Case], Any] = lambda case: True):
    """The check is made of every case to which it applies."""
    chosen = [case for case in CASES if applies(case)]
    assert chosen, "a check that applies to no case"
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)
