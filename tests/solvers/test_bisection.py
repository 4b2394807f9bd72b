"""The bisection and its derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecl2o.solvers.bisection import bisect_root


def _cubic(s, p):
    return p - s**3 - s


def _root(p, lower=0.0, upper=9.0):
    return bisect_root(_cubic, jnp.asarray(lower), jnp.asarray(upper), p)


def test_finds_the_root_of_each_lane():
    expected = np.linspace(0.1, 8.0, 50)
    found = jax.jit(jax.vmap(_root))(expected**3 + expected)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_gives_the_nearer_end_without_a_sign_change():
    np.testing.assert_allclose(_root(jnp.array(-5.0)), 0.0, atol=1e-15)
    np.testing.assert_allclose(_root(jnp.array(1e6)), 9.0, rtol=1e-15)


def test_derivative_is_that_of_the_inverse_function():
    s = 1.7
    np.testing.assert_allclose(jax.grad(_root)(jnp.array(s**3 + s)), 1 / (3 * s**2 + 1), rtol=1e-12)


def _clipped(p):
    """With ends that move: the lower one is the answer for p = -5, the root for p = 12, the upper one for p = 300."""
    return bisect_root(_cubic, 0.1 * jnp.cos(p), 3.0 + jnp.sin(p), p)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["plain", "jit"])
@pytest.mark.parametrize("derivative", [jax.jacfwd, jax.jacrev])
def test_derivative_is_that_of_the_clipped_root(transform, derivative):
    points = np.array([-5.0, 12.0, 300.0, 1.0])
    all_roots = transform(jax.vmap(_clipped))
    found = np.diagonal(jax.jit(derivative(all_roots))(points))
    step = 1e-6
    ahead, behind = (np.asarray(jax.jit(all_roots)(points + s)) for s in (step, -step))
    np.testing.assert_allclose(found, (ahead - behind) / (2 * step), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found[[0, 2]], [-0.1 * np.sin(-5.0), np.cos(300.0)], rtol=1e-14)


@pytest.mark.parametrize("p", [-5.0, 1e6])
def test_no_parameter_moves_an_end(p):
    assert float(jax.grad(_root)(jnp.array(p))) == 0.0
    assert float(jax.jvp(_root, (jnp.array(p),), (jnp.array(1.0),))[1]) == 0.0


def test_a_step_has_a_root_and_no_slope_to_divide_by():
    def root(p):
        return bisect_root(lambda s, p: p - jnp.sign(s), jnp.array(-1.0), jnp.array(2.0), p)

    value, slope = jax.value_and_grad(root)(jnp.array(0.5))
    np.testing.assert_allclose([value, slope], 0.0, atol=1e-15)
