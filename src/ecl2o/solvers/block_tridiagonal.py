"""Symmetric positive definite block-tridiagonal systems in O(T d^3).

The Hessian of a path's cost has one diagonal block per step and couples only neighbours. A block LDL' (the block form of the
Thomas algorithm) factors it in one scan and solves in two more.

The factor stores S_t^{-1} as a matrix, made through a Cholesky factor, so that solving many right-hand sides under `vmap` is
matrix products only. The blocks are well conditioned wherever this library uses them: the strong convexity m bounds them below.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.solvers.small_dense import spd_inverse


class BlockTridiagonalFactor(eqx.Module):
    """Block LDL' of M: `inverse` holds S_t^{-1} of the Schur complements, `coupling` L_t = B_t S_t^{-1}.

    M has the blocks D_1..D_T on its diagonal and B_t below it (row t+1, column t); S_1 = D_1 and
    S_{t+1} = D_{t+1} - B_t S_t^{-1} B_t'.
    """

    inverse: Float[Array, "T d d"]
    coupling: Float[Array, "T-1 d d"]


class DenseInverse(eqx.Module):
    """The whole inverse of a short system, which one matrix product solves."""

    matrix: Float[Array, "T d T d"]


def factor(diagonal: Float[Array, "T d d"], lower: Float[Array, "T-1 d d"]) -> BlockTridiagonalFactor:
    """Factor the matrix with blocks D_t = `diagonal`, B_t = `lower` below them, and their transposes above.

    >>> f = factor(jnp.full((2, 1, 1), 2.0), jnp.full((1, 1, 1), -1.0))
    >>> [round(float(s), 4) for s in f.inverse.ravel()]
    [0.5, 0.6667]
    """
    first = spd_inverse(diagonal[0])

    def eliminate(inverse, blocks):
        block, below = blocks
        coupling = below @ inverse
        schur_inverse = spd_inverse(block - coupling @ below.T)
        return schur_inverse, (schur_inverse, coupling)

    # Unrolled: it halves the time for many matrices of 8 numbers (benchmarks/oracle.py).
    _, (inverses, couplings) = jax.lax.scan(eliminate, first, (diagonal[1:], lower), unroll=2)
    return BlockTridiagonalFactor(jnp.concatenate([first[None], inverses]), couplings)


def invert(diagonal: Float[Array, "T d d"], lower: Float[Array, "T-1 d d"]) -> DenseInverse:
    """Invert the same matrix in O((T d)^3), for short systems that are solved many times."""
    T, d, _ = diagonal.shape
    t = jnp.arange(T)
    matrix = jnp.zeros((T, d, T, d), diagonal.dtype).at[t, :, t, :].set(diagonal)
    matrix = matrix.at[t[1:], :, t[:-1], :].set(lower)
    matrix = matrix.at[t[:-1], :, t[1:], :].set(jnp.swapaxes(lower, 1, 2))
    return DenseInverse(spd_inverse(matrix.reshape(T * d, T * d)).reshape(T, d, T, d))


def _apply(matrix: Float[Array, "d d"], vector: Float[Array, " d"]) -> Float[Array, " d"]:
    # For d = 1 a plain product, which XLA fuses over a batch.
    return matrix[0] * vector if vector.shape[-1] == 1 else matrix @ vector


def solve(factored: BlockTridiagonalFactor | DenseInverse, right: Float[Array, "T d"]) -> Float[Array, "T d"]:
    """Solve M x = right by one forward and one backward sweep, or by one product."""
    if isinstance(factored, DenseInverse):
        T, d = right.shape
        return (factored.matrix.reshape(T * d, T * d) @ right.reshape(T * d)).reshape(T, d)

    def forward(z, step):
        coupling, b = step
        z = b - _apply(coupling, z)
        return z, z

    def backward(x, step):
        coupling, scaled = step
        x = scaled - _apply(coupling.T, x)
        return x, x

    _, rest = jax.lax.scan(forward, right[0], (factored.coupling, right[1:]))
    swept = jnp.concatenate([right[:1], rest])  # L^{-1} right
    scaled = jax.vmap(_apply)(factored.inverse, swept)
    _, rest = jax.lax.scan(backward, scaled[-1], (factored.coupling, scaled[:-1]), reverse=True)
    return jnp.concatenate([rest, scaled[-1:]])


def matvec(
    diagonal: Float[Array, "T d d"], lower: Float[Array, "T-1 d d"], x: Float[Array, "T d"]
) -> Float[Array, "T d"]:
    """Return M x for M with the blocks D_t = `diagonal` and B_t = `lower`."""
    product = jnp.einsum("tij,tj->ti", diagonal, x)
    product = product.at[1:].add(jnp.einsum("tij,tj->ti", lower, x[:-1]))
    return product.at[:-1].add(jnp.einsum("tji,tj->ti", lower, x[1:]))
