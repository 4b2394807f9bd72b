"""The bisection and its derivative."""

import jax
import jax.numpy as jnp
import numpy as np

from ecl2o.solvers import decreasing_root


def _cubic(s, p):
    return p - s**3 - s


def _root(p, lower=0.0, upper=9.0):
    return decreasing_root(_cubic, jnp.asarray(lower), jnp.asarray(upper), p)


def test_finds_the_root_of_each_lane():
    expected = np.linspace(0.1, 8.0, 50)
    found = jax.jit(jax.vmap(_root))(jnp.asarray(expected**3 + expected))
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_gives_the_nearer_end_without_a_sign_change():
    np.testing.assert_allclose(_root(jnp.array(-5.0)), 0.0, atol=1e-15)
    np.testing.assert_allclose(_root(jnp.array(1e6)), 9.0, rtol=1e-15)


def test_derivative_is_that_of_the_inverse_function():
    s = 1.7
    np.testing.assert_allclose(jax.grad(_root)(jnp.array(s**3 + s)), 1 / (3 * s**2 + 1), rtol=1e-12)
