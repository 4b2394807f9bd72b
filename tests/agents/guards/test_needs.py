"""What can be promised for what: the table, the guards and the page on guarantees say the same."""

import itertools
import re
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import Start
from ecl2o.agents.timed import follow_timing

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guarantees.md"
HORIZON = 6
CONTEXTS = (-3.0, 3.0)


def _dented(x, y):
    return 0.5 * (x - y) @ (x - y) + jnp.sqrt(1 + (x - y) @ (x - y)) - 1


COSTS = {
    "squared": lambda d: ec.SquaredTracking(),
    "full matrix": lambda d: ec.Quadratic(np.eye(d) + 0.5 * np.ones((d, d))),
    "weights": lambda d: ec.CurvedTracking(1.0, 2.0),
    "weights without an end": lambda d: ec.CurvedTracking(1.0),
    "two sides": lambda d: ec.AsymmetricTracking(2.0, 1.0),
    "convex": lambda d: ec.ConvexCost(_dented, strong_convexity=1.0, smoothness=2.0),
    "convex without an end": lambda d: ec.ConvexCost(_dented, strong_convexity=1.0),
}
MOVEMENT = {"squares": lambda d: ec.Mahalanobis.isotropic(2.0, d), "distance": lambda d: ec.LinearSwitching(1.0)}
SETS = {
    "everywhere": lambda d: ec.Everywhere(),
    "box": lambda d: ec.Box(*CONTEXTS),
    "ramp": lambda d: ec.Limited(ec.Box(*CONTEXTS), ramp=5.0),
    "spacing": lambda d: ec.Limited(spacing=0.5),
    "both": lambda d: ec.Limited(ec.Box(*CONTEXTS), ramp=5.0, spacing=0.5),
    "total": lambda d: ec.Total(0.0),
}
TIMING = {"now": ec.Immediate(), "late": ec.Delayed(1), "early": ec.KnownAhead(1)}
RATIO = 8.0
TODAY = ec.Promise(RATIO, ec.Reference.EXPERT, "ROBD", period=3)
GUARDS = {
    "optimum": lambda a: ec.Competitive(a, RATIO),
    "optimum, contexts": lambda a: ec.Competitive(a, RATIO, contexts=CONTEXTS),
    "optimum, period": lambda a: ec.Competitive(a, RATIO, period=3),
    "baseline": lambda a: ec.Guarded(a, ec.HittingMinimizer(), slack=0.5),
    "several": lambda a: ec.Promises(a, [ec.Promise(RATIO), ec.Promise(RATIO, period=3)]),
    "several, contexts": lambda a: ec.Promises(a, [ec.Promise(RATIO), ec.Promise(RATIO, period=3)], contexts=CONTEXTS),
    "several, baseline": lambda a: ec.Promises(a, [ec.Promise(RATIO), TODAY], ec.ROBD()),
}
DIMS = (1, 2)
ALL = list(itertools.product(COSTS, MOVEMENT, SETS, TIMING, DIMS))


def make(cost, movement, actions, timing, dim):
    """Return a problem and an instance of it; None where the problem itself is refused."""
    try:
        problem = ec.Problem(COSTS[cost](dim), MOVEMENT[movement](dim), SETS[actions](dim), timing=TIMING[timing])
    except ec.NotApplicableError:
        return None
    rng = np.random.default_rng(dim)
    contexts = rng.uniform(-2.5, 2.5, (HORIZON, dim + cost.startswith("weights")))
    if cost.startswith("weights"):
        contexts[:, -1] = rng.uniform(1.0, 2.0, HORIZON)
    x0 = np.asarray(problem.start_state(np.zeros(dim), contexts[:1]))
    return problem, ec.Instance(x0, contexts)


def accepts(guard, problem, instance) -> bool:
    """Return whether a guard can be made for a problem."""
    start = Start(instance.x0, instance.past, instance.horizon)
    try:
        follow_timing(guard, problem).check(problem, start)
    except ec.NotApplicableError:
        return False
    return True


def hostile(dim):
    return ec.advisors.Fixed(np.where(np.arange(HORIZON)[:, None] % 2, 1e3, -1e3) * np.ones((1, dim)))


@pytest.mark.parametrize("kind", GUARDS)
def test_what_is_accepted_runs(kind):
    """Of all combinations, what the check accepts can be traced; a few are run, and keep their promise against hostile advice."""
    accepted = []
    for combination in ALL:
        made = make(*combination)
        if made is None or not accepts(GUARDS[kind](hostile(combination[-1])), *made):
            continue
        accepted.append(combination)
    assert accepted
    for combination in accepted:
        draw = zlib.crc32(repr((kind, combination)).encode())
        if draw % 8 and len(accepted) > 8:
            continue
        problem, instance = make(*combination)
        guard = GUARDS[kind](hostile(combination[-1]))
        shapes = jax.eval_shape(
            lambda guard=guard, problem=problem, instance=instance: ec.rollout(guard, problem, instance)
        )
        assert shapes.actions.shape == (HORIZON, combination[-1])
        if draw % 32 == 0:
            details = ec.rollout(guard, problem, instance).info.details
            assert bool(np.all(details["kept"])), combination


# By row of the page's table, the problem that it speaks of, and what its columns are made with.
ROWS = {
    "quadratic, constant weight": ("squared", "squares", "everywhere", "now", False),
    "quadratic, weights in": ("weights", "squares", "everywhere", "now", False),
    "misses with two weights": ("two sides", "squares", "everywhere", "now", False),
    "bounds on actions, contexts within": ("squared", "squares", "box", "now", True),
    "bounds on actions, contexts anywhere": ("squared", "squares", "box", "now", False),
    "any $f": ("convex without an end", "squares", "everywhere", "now", False),
    "movement measured by distance": ("squared", "distance", "everywhere", "now", False),
    "a ramp of at least": ("squared", "squares", "ramp", "now", True),
    "whole numbers, or": ("squared", "squares", "spacing", "now", False),
    "whole numbers and a delay": ("squared", "squares", "spacing", "late", False),
    "a delay of": ("squared", "squares", "everywhere", "late", False),
    "contexts known": ("squared", "squares", "everywhere", "early", False),
    "actions that share a `Total`, with": ("squared", "squares", "total", "now", False),
}


@pytest.mark.parametrize("row", ROWS)
def test_page_agrees(row):
    """A cell of the page begins with "rejected" if and only if the guard refuses."""
    *combination, bounded = ROWS[row]
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {row}")]
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[2:5]]
    problem, instance = make(*combination, 1)
    name = ", contexts" if bounded else ""
    for cell, kind in zip(cells, (f"optimum{name}", "baseline", f"several{name}"), strict=True):
        guard = GUARDS[kind](hostile(1))
        if kind == "baseline" and combination[1] == "distance":
            guard = ec.Guarded(hostile(1), slack=0.0)
        assert accepts(guard, problem, instance) == (not cell.startswith("rejected")), (row, kind, cell)
