"""The calibration primitive R_lambda: what it minimises, its closed form, and every derivative."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents.calibrator import minimize_hitting


def _spd(rng, d: int, smallest: float, largest: float) -> np.ndarray:
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return basis @ np.diag(np.linspace(smallest, largest, d)) @ basis.T


def _quartic(x, y):
    return jnp.sum((x - y) ** 4) + 0.5 * jnp.sum((x - y) ** 2) + 0.2 * jnp.sum(x - y) ** 2


D = 3
RNG = np.random.default_rng(1)
A, Q = _spd(RNG, D, 0.7, 4.0), _spd(RNG, D, 0.4, 2.0)
PREVIOUS, ADVICE, CONTEXT = (jnp.asarray(v) for v in 2 * RNG.normal(size=(3, D)))
LAMBDAS = jnp.array([0.9, 0.3, 0.6])
BOX = ec.Box([-0.2, -3.0, -0.5], [3.0, 0.1, 5.0])
SWITCHING = ec.Mahalanobis(Q)
PROBLEMS = {
    "closed form": ec.Problem(ec.Quadratic(A), SWITCHING),
    "box": ec.Problem(ec.Quadratic(A), SWITCHING, BOX),
    "function in a box": ec.Problem(ec.ConvexCost(_quartic, 1.0), SWITCHING, BOX),
}


def calibrated(problem, context, previous, advice, lambdas):
    calibration = ec.Calibration.of(problem, ec.Weights(*lambdas), previous.shape[0])
    return ec.calibrate(problem, calibration, context, previous, advice)


def _objective(problem, context, previous, advice, lambdas, x):
    """Line 5 of Algorithm 1, with v from the library (itself checked below)."""
    v, _ = minimize_hitting(problem, context, previous)
    c = problem.switching
    pulls = lambdas[0] * c(x, previous) + lambdas[1] * c(x, v) + lambdas[2] * c(x, advice)
    return problem.hitting(x, context) + pulls


@pytest.mark.parametrize("name", PROBLEMS)
def test_minimises_what_algorithm_1_says(name):
    """Optimality conditions on X: zero slope inside, slope outward at a bound; for many inputs at once."""
    problem, n = PROBLEMS[name], 200
    rng = np.random.default_rng(2)
    context, previous, advice = (jnp.asarray(v) for v in 2 * rng.normal(size=(3, n, D)))
    lambdas = jnp.asarray(np.exp(rng.normal(size=(n, 3))))
    lower, upper = problem.actions.bounds(D, jnp.float64)

    @jax.jit
    @jax.vmap
    def look(context, previous, advice, lambdas):
        x, converged = calibrated(problem, context, previous, advice, lambdas)
        slope = jax.grad(_objective, argnums=5)(problem, context, previous, advice, lambdas, x)
        v, found = minimize_hitting(problem, context, previous)
        return x, converged, slope, v, found, jax.grad(problem.hitting)(v, context)

    x, converged, slope, v, found, v_slope = look(context, previous, advice, lambdas)
    assert bool(converged.all())
    assert bool(found.all())
    for point, gradient in ((x, slope), (v, v_slope)):
        outward = jnp.where(
            point <= lower, jnp.minimum(gradient, 0), jnp.where(point >= upper, jnp.maximum(gradient, 0), gradient)
        )
        np.testing.assert_allclose(outward, 0.0, atol=1e-8)
        assert bool(((point >= lower) & (point <= upper)).all())
    if problem.is_bounded:
        assert float(((x <= lower) | (x >= upper)).mean()) > 0.2


def test_closed_form():
    """(A + 2 Lambda Q) x = A y + 2 Q (lambda1 x_prev + lambda2 y + lambda3 advice)."""
    l1, l2, l3 = (float(l) for l in LAMBDAS)
    expected = np.linalg.solve(
        A + 2 * (l1 + l2 + l3) * Q, A @ CONTEXT + 2 * Q @ (l1 * PREVIOUS + l2 * CONTEXT + l3 * ADVICE)
    )
    x, _ = calibrated(PROBLEMS["closed form"], CONTEXT, PREVIOUS, ADVICE, LAMBDAS)
    np.testing.assert_allclose(x, expected, rtol=1e-12)


def test_varying_curvature_uses_the_context():
    problem = ec.Problem(ec.CurvedTracking(1.0), SWITCHING)
    context = jnp.append(CONTEXT, 7.0)
    expected = np.linalg.solve(7 * np.eye(D) + 2 * 0.9 * Q, 7 * CONTEXT + 2 * 0.9 * Q @ PREVIOUS)
    calibration = ec.Calibration.of(problem, ec.Weights(previous=0.9), D)
    x, _ = ec.calibrate(problem, calibration, context, PREVIOUS)
    np.testing.assert_allclose(x, expected, rtol=1e-12)


def test_paths_agree_where_both_apply():
    """A minimiser that is given or found; a quadratic that is known or not, in a box of one dimension."""
    line = ec.Mahalanobis.isotropic(alpha=3.0, dim=1)
    box = ec.Box(-0.3, 0.4)
    y, previous, advice = (jnp.asarray(v) for v in np.random.default_rng(3).normal(size=(3, 60, 1)))

    def everywhere(problem):
        return jax.jit(jax.vmap(lambda *inputs: calibrated(problem, *inputs, LAMBDAS)[0]))(y, previous, advice)

    def cost(x, y):
        return jnp.sum((x - y) ** 2)

    known = everywhere(ec.Problem(ec.SquaredTracking(2.0), line, box))
    found = everywhere(ec.Problem(ec.ConvexCost(cost, 2.0), line, box))
    given = everywhere(ec.Problem(ec.ConvexCost(cost, 2.0, minimizer=lambda y: y), line, box))
    np.testing.assert_allclose(found, known, atol=1e-11)
    np.testing.assert_allclose(given, known, atol=1e-11)
    assert 0.1 < float(((known == -0.3) | (known == 0.4)).mean()) < 0.9


@pytest.mark.parametrize("bounded", [False, True])
def test_asymmetric_steps_on_a_line_agree_with_the_general_path(bounded):
    """The side of the action is known in advance, so that one linear equation is left; values and derivatives."""
    y, previous, advice = (jnp.asarray(v) for v in np.random.default_rng(4).normal(size=(3, 60, 1)))
    movement, box = ec.Mahalanobis.isotropic(alpha=3.0, dim=1), ec.Box(-0.6, 0.4) if bounded else ec.Everywhere()
    cost = ec.AsymmetricTracking(3.0, 0.5)

    def everywhere(hitting):
        @jax.jit
        @jax.vmap
        def look(*inputs):
            def first(inputs):
                return calibrated(ec.Problem(hitting, movement, box), *inputs, LAMBDAS)[0][0]

            return jax.value_and_grad(first)(inputs)

        return look(y, previous, advice)

    known, found = everywhere(cost), everywhere(ec.ConvexCost(lambda x, y: cost(x, y), 0.5))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), known, found)
    assert 0.1 < float((known[0] < y[:, 0]).mean()) < 0.9


@pytest.mark.parametrize("name", PROBLEMS)
def test_derivatives(name):
    """Previous action, advice, context, weights, Q, the cost's and the box's parameters: both modes, central differences."""
    problem = PROBLEMS[name]
    parameters, rest = eqx.partition(problem, eqx.is_array)

    def symmetric(leaf):  # matrices move among the symmetric ones
        return (leaf + leaf.T) / 2 if leaf.ndim == 2 else leaf

    def action(given):
        parameters, *inputs = given
        return calibrated(eqx.combine(jax.tree.map(symmetric, parameters), rest), *inputs)[0]

    @jax.jit
    def evaluate(given, direction, weights):
        """The action, its derivative along a direction, and the slopes of its sum with these weights."""
        x, forward = jax.jvp(action, (given,), (direction,))
        return x, forward, jax.vjp(action, given)[1](weights)[0]

    given = jax.tree.map(np.asarray, (parameters, CONTEXT, PREVIOUS, ADVICE, LAMBDAS))
    rng, reach = np.random.default_rng(4), 1e-5
    for _ in range(3):
        direction, weights = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), given), rng.normal(size=D)
        x, forward, slopes = jax.device_get(evaluate(given, direction, weights))
        if problem.is_bounded:  # some coordinate at a bound, some inside
            held = (x == BOX.lower) | (x == BOX.upper)
            assert held.any()
            assert not held.all()
        ahead, behind = (
            np.asarray(evaluate(jax.tree.map(lambda v, d, s=s: v + s * d, given, direction), direction, weights)[0])
            for s in (reach, -reach)
        )
        expected = (ahead - behind) / (2 * reach)
        np.testing.assert_allclose(forward, expected, rtol=1e-6, atol=1e-8)
        pairs = zip(jax.tree.leaves(slopes), jax.tree.leaves(direction), strict=True)
        np.testing.assert_allclose(sum(np.sum(s * d) for s, d in pairs), weights @ expected, rtol=1e-6, atol=1e-8)


def test_jacobians_are_those_of_the_paper():
    """Eqns. gradientml and gradientprior: 2 lambda3 Z^{-1} Q and 2 lambda1 Z^{-1} Q."""
    problem = PROBLEMS["closed form"]
    Z = A + 2 * float(LAMBDAS.sum()) * Q
    action = jax.jacobian(
        lambda previous, advice: calibrated(problem, CONTEXT, previous, advice, LAMBDAS)[0], argnums=(0, 1)
    )
    by_previous, by_advice = action(PREVIOUS, ADVICE)
    np.testing.assert_allclose(by_previous, 2 * 0.9 * np.linalg.solve(Z, Q), rtol=1e-10)
    np.testing.assert_allclose(by_advice, 2 * 0.6 * np.linalg.solve(Z, Q), rtol=1e-10)


def test_second_derivatives():
    problem = ec.Problem(ec.ConvexCost(_quartic, 1.0), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    context, previous, advice = CONTEXT[:1], PREVIOUS[:1], ADVICE[:1]

    def score(advice):
        return jnp.sum(calibrated(problem, context, previous, advice, LAMBDAS)[0] ** 2)

    slope, curvature = jax.jit(jax.grad(score)), jax.jit(jax.hessian(score))
    step = 1e-5
    expected = (slope(advice + step) - slope(advice - step)) / (2 * step)
    np.testing.assert_allclose(curvature(advice)[0], expected, rtol=1e-6)


def _nowhere(x, y):
    return jnp.sum(jnp.sqrt(y - 1e9 - x))


def test_failure_is_reported():
    problem = ec.Problem(ec.ConvexCost(_nowhere, 1.0), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    _, converged = calibrated(problem, CONTEXT[:1], PREVIOUS[:1], ADVICE[:1], LAMBDAS)
    assert not bool(converged)
