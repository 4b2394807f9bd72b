"""Bounded Newton against problems whose solution is known by construction, and against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.test_util import check_grads

from ecl2o.solvers.bounded_newton import minimize

INFINITY = np.inf


def _quadratic(x, parameters):
    A, b = parameters
    return 0.5 * x @ A @ x - b @ x


_solve_quadratics = jax.jit(
    jax.vmap(lambda start, A, b, lower, upper: minimize(_quadratic, start, (A, b), lower, upper))
)


def _spd(rng, n: int, d: int, condition: float) -> np.ndarray:
    basis = np.linalg.qr(rng.normal(size=(n, d, d)))[0]
    values = np.exp(rng.uniform(0, np.log(condition), (n, d)))
    values[:, 0], values[:, -1] = 1.0, condition
    matrix = np.einsum("nij,nj,nkj->nik", basis, values, basis)
    return (matrix + matrix.transpose(0, 2, 1)) / 2


def _known_optima(rng, n: int, d: int, condition: float):
    """Quadratic programs made backwards from a solution and multipliers, so that every kind of coordinate occurs.

    0: free, 1 and 2: held at its lower or upper bound, 3: at its lower bound with multiplier zero (degenerate),
    4: lower == upper, 5: free without bounds.
    """
    A, x = _spd(rng, n, d, condition), rng.normal(size=(n, d)) * np.exp(rng.uniform(-3, 3, (n, 1)))
    kind, room, push = rng.integers(0, 6, (n, d)), rng.uniform(0.1, 2.0, (2, n, d)), rng.uniform(0.01, 5.0, (n, d))
    lower, upper = x - room[0], x + room[1]
    lower = np.where(np.isin(kind, (1, 3, 4)), x, lower)
    upper = np.where(np.isin(kind, (2, 4)), x, upper)
    lower, upper = np.where(kind == 5, -INFINITY, lower), np.where(kind == 5, INFINITY, upper)
    gradient = np.select([kind == 1, kind == 2, kind == 4], [push, -push, push * rng.choice([-1, 1], (n, d))], 0.0)
    return A, np.einsum("nij,nj->ni", A, x) - gradient, lower, upper, x


@pytest.mark.parametrize("d", [2, 8])
@pytest.mark.parametrize("condition", [1.0, 30.0, 1e6])
def test_converges_to_the_known_solution(d, condition):
    rng = np.random.default_rng(d)
    A, b, lower, upper, expected = _known_optima(rng, 400, d, condition)
    found = _solve_quadratics(10 * rng.normal(size=(400, d)), A, b, lower, upper)
    assert bool(found.converged.all()), f"{int((~found.converged).sum())} of 400 did not converge"
    error = np.abs(found.x - expected).max(axis=1) / (1 + np.abs(expected).max(axis=1))
    assert error.max() < 1e-10 * max(condition, 10.0)
    assert bool(((found.x >= lower) & (found.x <= upper)).all())


def test_agrees_with_scipy_on_random_boxes():
    rng = np.random.default_rng(1)
    n, d = 40, 8
    A, b = _spd(rng, n, d, 300.0), 30 * rng.normal(size=(n, d))
    lower = -rng.uniform(0, 2, (n, d))
    upper = lower + rng.uniform(0.01, 3, (n, d))
    found = _solve_quadratics(np.zeros((n, d)), A, b, lower, upper)
    assert bool(found.converged.all())
    for i in range(n):
        root = np.linalg.cholesky(A[i]).T
        referee = scipy.optimize.lsq_linear(
            root, np.linalg.solve(root.T, b[i]), (lower[i], upper[i]), method="bvls", tol=1e-15
        )
        np.testing.assert_allclose(found.x[i], referee.x, atol=1e-8)


def _smooth_costs(x, parameters):
    """A quadratic plus a choice of logistic, cosh and quartic costs."""
    mix, directions, centre = parameters
    z = directions @ (x - centre)
    others = jnp.array([jnp.sum(jax.nn.softplus(5 * z)), jnp.sum(jnp.cosh(z)), jnp.sum(z**4)])
    return mix @ others + 0.05 * jnp.sum((x - centre) ** 2)


def _slope_and_curvature(x, parameters):
    return jax.grad(_smooth_costs)(x, parameters), jnp.diagonal(jax.hessian(_smooth_costs)(x, parameters))


def test_costs_that_are_not_quadratic():
    rng = np.random.default_rng(2)
    n, d = 400, 4
    mix = np.eye(3)[rng.integers(0, 3, n)] * rng.uniform(0.1, 3.0, (n, 1))
    directions, centre, start = rng.normal(size=(n, 6, d)), 3 * rng.normal(size=(n, d)), 2 * rng.normal(size=(n, d))
    lower = np.where(rng.random((n, d)) < 0.3, -INFINITY, -rng.uniform(0, 2, (n, d)))
    upper = np.where(rng.random((n, d)) < 0.3, INFINITY, rng.uniform(0, 2, (n, d)))
    found = jax.jit(jax.vmap(lambda s, p, lo, hi: minimize(_smooth_costs, s, p, lo, hi)))(
        start, (mix, directions, centre), lower, upper
    )
    assert bool(found.converged.all())
    x = np.asarray(found.x)
    slope, curvature = jax.jit(jax.vmap(_slope_and_curvature))(x, (mix, directions, centre))
    slope = np.asarray(slope)
    stationary = np.where(x <= lower, np.minimum(slope, 0), np.where(x >= upper, np.maximum(slope, 0), slope))
    assert np.abs(stationary / curvature).max() < 1e-10
    assert ((x >= lower) & (x <= upper)).all()
    assert ((x == lower) | (x == upper)).any(axis=1).mean() > 0.3  # bounds do bind
    value_and_slope = jax.jit(jax.value_and_grad(_smooth_costs))
    for i in range(12):
        parameters = (mix[i], directions[i], centre[i])

        def score(x, parameters=parameters):
            value, slope = value_and_slope(x, parameters)
            return float(value), np.asarray(slope)

        bounds = list(zip(lower[i], upper[i], strict=True))
        guess = np.clip(start[i], lower[i], upper[i])
        referee = scipy.optimize.minimize(
            score, guess, jac=True, bounds=bounds, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9}
        )
        np.testing.assert_allclose(x[i], referee.x, atol=1e-5)
        assert score(x[i])[0] <= referee.fun * (1 + 1e-12) + 1e-12


def _difference_of_large_numbers(x, centre):
    """cosh - 1 near its minimum: its values are rounding, its gradients are not."""
    return jnp.sum(16 * (jnp.cosh((x - centre) / 4) - 1) + 5e-2 * (x - centre) ** 2)


def test_rounding_of_values_does_not_stop_it_and_a_lane_that_fails_spoils_no_other():
    centres = np.random.default_rng(3).normal(size=(300, 1)) * 0.05
    centres[7] = np.nan
    bounds = jnp.array([-0.4]), jnp.array([0.7])
    found = jax.jit(jax.vmap(lambda c: minimize(_difference_of_large_numbers, jnp.zeros(1), c, *bounds)))(centres)
    assert np.flatnonzero(~found.converged).tolist() == [7]
    np.testing.assert_allclose(np.delete(found.x, 7), np.delete(centres, 7), atol=1e-10)


def _nan_cost(x, p):
    return jnp.sum(jnp.log(x - 5.0)) * p


def _hill(x, p):
    return -p * jnp.sum(x**2)


def _slope_without_end(x, p):
    return p * jnp.sum(x)


@pytest.mark.parametrize("cost", [_nan_cost, _hill, _slope_without_end])
def test_failure_is_reported(cost):
    free = jnp.full(1, jnp.inf)
    found = minimize(cost, jnp.array([0.5]), jnp.array(1.0), -free, free)
    assert not bool(found.converged)


def test_float32_converges():
    rng = np.random.default_rng(4)
    A, b, lower, upper, expected = (a.astype(np.float32) for a in _known_optima(rng, 100, 2, 30.0))
    found = _solve_quadratics(np.zeros((100, 2), np.float32), A, b, lower, upper)
    assert found.x.dtype == jnp.float32
    assert bool(found.converged.all())
    np.testing.assert_allclose(found.x, expected, atol=2e-3 * (1 + np.abs(expected).max()))


def test_derivatives_including_bounds():
    """Free, held (both bounds) and fixed coordinates; forward and reverse mode against central differences."""
    A = jnp.asarray(_spd(np.random.default_rng(5), 1, 4, 10.0)[0])
    b, lower, upper = (
        jnp.array([0.3, -40.0, 50.0, 1.0]),
        jnp.array([-5.0, -1.0, -5.0, 0.2]),
        jnp.array([5.0, 5.0, 1.5, 0.2]),
    )

    @jax.jit
    def solution(A, b, lower, upper):
        return minimize(_quadratic, jnp.zeros(4), (A @ A.T, b), lower, upper).x

    x = solution(A, b, lower, upper)
    assert (x[1], x[2], x[3]) == (-1.0, 1.5, 0.2)
    # A coordinate with lower == upper can only be moved by both at once.
    check_grads(
        lambda A, b, lower, upper, fixed: solution(A, b, jnp.append(lower, fixed), jnp.append(upper, fixed)),
        (A, b, lower[:3], upper[:3], jnp.array(0.2)),
        order=1,
        modes=("fwd", "rev"),
        eps=1e-5,
        rtol=1e-6,
    )


def test_second_derivatives_of_the_smooth_case():
    free = jnp.full(1, jnp.inf)
    costs = (jnp.array([0.5, 0.2, 0.3]), jnp.array([[1.0], [-0.5]]), jnp.array([0.4]))

    def score(target):
        return jnp.sum(minimize(_anchored, jnp.zeros(1), (costs, target), -free, free).x ** 2)

    slope, curvature = jax.jit(jax.grad(score)), jax.jit(jax.hessian(score))
    target, step = np.array([1.5]), 1e-5
    expected = (slope(target + step) - slope(target - step)) / (2 * step)
    np.testing.assert_allclose(curvature(target)[0], expected, rtol=1e-6)


def _anchored(x, parameters):
    costs, target = parameters
    return _smooth_costs(x, costs) + jnp.sum((x - target) ** 2)
