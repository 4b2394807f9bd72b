"""The oracle where movement is billed by distance, in more than one dimension."""

import cvxpy as cp
import numpy as np
import pytest

import ecl2o as ec

RATE = 0.8


@pytest.mark.parametrize("kind", ["constant", "varying", "box"])
def test_it_is_what_cvxpy_finds(kind):
    rng, T, d = np.random.default_rng(1), 9, 2
    x0, targets = rng.uniform(-0.3, 0.4, size=d), rng.normal(size=(T, d))
    weights = np.broadcast_to([1.0, 3.0], (T, d))
    hitting, contexts = ec.Quadratic(np.diag([1.0, 3.0])), targets
    if kind == "varying":
        drawn = 10 ** rng.uniform(-1, 1, size=(T, 1))
        hitting, contexts, weights = ec.CurvedTracking(0.01), np.concatenate([targets, drawn], axis=1), drawn
    actions = ec.Box(-0.4, np.array([0.5, 0.6])) if kind == "box" else ec.Everywhere()
    best = ec.oracle(ec.Problem(hitting, ec.LinearSwitching(RATE), actions), ec.Instance(x0, contexts))

    x = cp.Variable((T, d))
    moves = cp.vstack([x[0] - x0, cp.diff(x, axis=0)])
    bounds = [x >= -0.4, x <= np.array([[0.5, 0.6]])] if kind == "box" else []
    cost = 0.5 * cp.sum(cp.multiply(weights, cp.square(x - targets))) + RATE * cp.sum(cp.abs(moves))
    expected = cp.Problem(cp.Minimize(cost), bounds).solve(solver="CLARABEL")
    assert bool(best.converged.all())
    np.testing.assert_allclose(best.cost, expected, rtol=1e-7)
    np.testing.assert_allclose(best.actions, x.value, atol=1e-4)


def test_what_does_not_fall_apart_is_not_said_to_be_solved():
    movement = ec.LinearSwitching(RATE)
    across = ec.Problem(ec.Quadratic(np.array([[1.0, 0.3], [0.3, 1.0]])), movement)
    instance = ec.Instance(np.zeros(2), np.ones((3, 2)))
    assert not bool(ec.oracle(across, instance).converged.any())
    convex = ec.Problem(ec.ConvexCost(lambda x, y: ((x - y) ** 2).sum(), strong_convexity=2.0), movement)
    with pytest.raises(ec.NotApplicableError, match="diagonal A"):
        ec.oracle(convex, instance)
