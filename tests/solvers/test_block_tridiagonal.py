"""The block-tridiagonal factor and solve against a dense one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecl2o.solvers import block_tridiagonal


def _random_system(T: int, d: int, seed: int, condition: float = 1e3):
    """SPD blocks as a path's Hessian has them (A_t + coupling), and the dense matrix that they mean."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(T, d, d)))[0]
    diagonal = np.einsum("tij,tj,tkj->tik", basis, np.exp(rng.uniform(0, np.log(condition), (T, d))), basis)
    below = rng.normal(size=(T - 1, d, d))  # not symmetric: a transposed block would show
    dense = np.zeros((T * d, T * d))
    for t in range(T):
        dense[t * d : t * d + d, t * d : t * d + d] += diagonal[t]
    for t in range(T - 1):
        dense[(t + 1) * d : (t + 2) * d, t * d : t * d + d] = below[t]
        dense[t * d : t * d + d, (t + 1) * d : (t + 2) * d] = below[t].T
    shift = max(0.0, 1.0 - np.linalg.eigvalsh(dense)[0])
    return diagonal + shift * np.eye(d), below, dense + shift * np.eye(T * d)


@pytest.mark.parametrize(("T", "d"), [(1, 1), (40, 1), (11, 3)])
def test_solves_as_the_dense_matrix_does(T, d):
    diagonal, below, dense = _random_system(T, d, seed=T + d)
    right = np.random.default_rng(0).normal(size=(T, d))
    expected = np.linalg.solve(dense, right.reshape(-1)).reshape(T, d)
    blocks = jnp.asarray(diagonal), jnp.asarray(below)
    swept, inverted, product = _all_ways(*blocks, jnp.asarray(right))
    np.testing.assert_allclose(swept, expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(inverted, expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(product.reshape(-1), dense @ right.reshape(-1), rtol=1e-11, atol=1e-9)


@jax.jit
def _all_ways(diagonal, below, right):
    swept = block_tridiagonal.solve(block_tridiagonal.factor(diagonal, below), right)
    inverted = block_tridiagonal.solve(block_tridiagonal.invert(diagonal, below), right)
    return swept, inverted, block_tridiagonal.matvec(diagonal, below, right)


def test_inverse_is_the_inverse():
    diagonal, below, dense = _random_system(4, 3, seed=9)
    inverse = block_tridiagonal.invert(jnp.asarray(diagonal), jnp.asarray(below)).matrix.reshape(12, 12)
    np.testing.assert_allclose(inverse, np.linalg.inv(dense), rtol=1e-9, atol=1e-11)


def test_derivative_of_the_solution():
    """dx = -M^{-1} dM x + M^{-1} db, with M as the dense matrix."""
    T, d = 5, 2
    diagonal, below, dense = _random_system(T, d, seed=3)
    diagonal_dot, below_dot, dense_dot = _random_system(T, d, seed=4)
    rng = np.random.default_rng(5)
    right, right_dot = rng.normal(size=(2, T, d))

    @jax.jit
    def solution(diagonal, below, right):
        return block_tridiagonal.solve(block_tridiagonal.factor(diagonal, below), right)

    x, x_dot = jax.jvp(solution, (diagonal, below, right), (diagonal_dot, below_dot, right_dot))
    expected = np.linalg.solve(dense, right_dot.reshape(-1) - dense_dot @ np.asarray(x).reshape(-1))
    np.testing.assert_allclose(x_dot.reshape(-1), expected, rtol=1e-8, atol=1e-10)
