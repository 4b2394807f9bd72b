"""Costs, constants and action sets against their definitions."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.problem.arrays import to_device

RNG = np.random.default_rng(0)
FACTOR = RNG.normal(size=(3, 3))
A = FACTOR @ FACTOR.T + np.eye(3)
Q = np.diag([0.5, 2.0, 3.0])
X, Y, Z = RNG.normal(size=(3, 3))


@pytest.mark.parametrize(
    ("cost", "context", "expected", "strong_convexity"),
    [
        (ec.SquaredTracking(3.0), Y, 1.5 * np.sum((X - Y) ** 2), 3.0),
        (ec.Quadratic(A), Y, 0.5 * (X - Y) @ A @ (X - Y), np.linalg.eigvalsh(A)[0]),
        (ec.CurvedTracking(2.0), np.append(Y, 5.0), 2.5 * np.sum((X - Y) ** 2), 2.0),
        (ec.CurvedTracking(2.0), np.append(Y, 0.1), 1.0 * np.sum((X - Y) ** 2), 2.0),
        (ec.CurvedTracking(2.0, 2.0), np.append(Y, 5.0), 1.0 * np.sum((X - Y) ** 2), 2.0),
        (
            ec.ConvexCost(lambda x, y: jnp.sum((x - y) ** 4 + (x - y) ** 2), 2.0),
            Y,
            np.sum((X - Y) ** 4 + (X - Y) ** 2),
            2.0,
        ),
    ],
)
def test_hitting_costs(cost, context, expected, strong_convexity):
    @jax.jit
    def evaluated(x, y):
        own = cost(x, y), cost.gradient(x, y), cost.hessian(x, y)
        return own, (jax.grad(cost)(x, y), jax.hessian(cost)(x, y))

    (value, gradient, hessian), derivatives = evaluated(X, context)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(cost.strong_convexity, strong_convexity, rtol=1e-12)
    np.testing.assert_allclose(gradient, derivatives[0], rtol=1e-10)
    np.testing.assert_allclose(hessian, derivatives[1], rtol=1e-10, atol=1e-12)
    assert np.linalg.eigvalsh(hessian)[0] >= strong_convexity * (1 - 1e-12)


def test_switching_cost_and_its_constants():
    cost = ec.Mahalanobis(Q)
    np.testing.assert_allclose(cost(to_device(X), to_device(Z)), (X - Z) @ Q @ (X - Z), rtol=1e-12)
    np.testing.assert_allclose((cost.alpha, cost.beta), (1.0, 6.0), rtol=1e-12)  # *twice* the extreme eigenvalues
    isotropic = ec.Mahalanobis.isotropic(alpha=10.0, dim=3)
    np.testing.assert_allclose(isotropic(to_device(X), to_device(Z)), 5.0 * np.sum((X - Z) ** 2), rtol=1e-12)
    np.testing.assert_allclose((isotropic.alpha, isotropic.beta), (10.0, 10.0), rtol=1e-12)


def test_costs_of_a_path_start_from_x0():
    problem = ec.Problem(ec.Quadratic(A), ec.Mahalanobis(Q))
    x0, contexts, actions = X, RNG.normal(size=(4, 3)), RNG.normal(size=(4, 3))
    hitting, switching = jax.device_get(eqx.filter_jit(problem.costs)(x0, actions, contexts))
    previous = x0
    for t in range(4):
        np.testing.assert_allclose(hitting[t], 0.5 * (actions[t] - contexts[t]) @ A @ (actions[t] - contexts[t]))
        np.testing.assert_allclose(switching[t], (actions[t] - previous) @ Q @ (actions[t] - previous))
        previous = actions[t]


def test_box():
    box = ec.Box([0.0, -np.inf, 1.0], [1.0, 2.0, 1.0])
    np.testing.assert_array_equal(box.project(jnp.array([-1.0, -9.0, 5.0])), [0.0, -9.0, 1.0])
    lower, upper = ec.Box(0.0, 1.0).bounds(2, jnp.float32)
    assert lower.dtype == upper.dtype == jnp.float32
    np.testing.assert_array_equal((lower, upper), [[0.0, 0.0], [1.0, 1.0]])


def test_x0_may_leave_the_box_by_its_rounding_and_no_further():
    box = ec.Box(0.0, 0.1)
    box.check(to_device(np.array([0.1], np.float32)))  # a little more than the 0.1 of double precision
    with pytest.raises(ValueError, match=r"0\.1001"):
        box.check(to_device(np.array([0.1001])))


def test_trajectory_cost_sums_over_steps_only():
    ones = to_device(np.ones((4, 3)))
    runs = ec.Trajectory(
        to_device(np.ones((4, 3, 2))), ones, to_device(2 * np.ones((4, 3))), None, to_device(np.ones((4, 3), bool))
    )
    np.testing.assert_array_equal(runs.cost, [9.0] * 4)


def test_what_was_given_may_be_changed_afterwards():
    """A device that is the host could go on using the memory that it was given."""
    contexts, Q = np.zeros((4096, 1)), np.eye(64)
    instance, movement = ec.Instance(np.zeros(1), contexts), ec.Mahalanobis(Q)
    contexts[:], Q[:] = 1.0, 2.0
    assert not np.asarray(instance.contexts).any()
    np.testing.assert_array_equal(movement.Q, np.eye(64))
