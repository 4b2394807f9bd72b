"""Symmetric positive definite block-tridiagonal systems in O(T d^3).

The Hessian of "hitting costs plus switching costs along a path" has one diagonal block per step and couples only
neighbours. We factor it as a block LDL' (the block form of the Thomas algorithm) in one scan and solve in two more.

The factor keeps S_t^{-1} as a matrix (made through a Cholesky factor), so that solving for many right-hand sides, under
`vmap`, is matrix products only: no triangular solve inside the loop. The blocks are well conditioned wherever this
library uses them (Hessians bounded below by the strong convexity m), and tests hold the result to a dense solver.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class BlockTridiagonalFactor(eqx.Module):
    """Block LDL' of M: the inverses of the Schur complements S_t, and the coupling blocks L_t = B_t S_t^{-1}.

    M has diagonal blocks D_1..D_T and B_t below the diagonal (row t+1, column t);
    S_1 = D_1 and S_{t+1} = D_{t+1} - B_t S_t^{-1} B_t'.

    Args:
        inverse: (T, d, d), S_t^{-1}.
        coupling: (T - 1, d, d), L_t.
    """

    inverse: Float[Array, "T d d"]
    coupling: Float[Array, "T-1 d d"]


class DenseInverse(eqx.Module):
    """The whole inverse of a short system: one matrix product solves it for any number of right-hand sides.

    Args:
        matrix: (T, d, T, d).
    """

    matrix: Float[Array, "T d T d"]


def spd_inverse(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Inverse of a symmetric positive definite matrix; a division where d = 1."""
    d = matrix.shape[-1]
    if d == 1:
        return 1.0 / matrix
    cholesky = jnp.linalg.cholesky(matrix)
    return jax.scipy.linalg.cho_solve((cholesky, True), jnp.eye(d, dtype=matrix.dtype))


def factor(diagonal: Float[Array, "T d d"], lower: Float[Array, "T-1 d d"]) -> BlockTridiagonalFactor:
    """Factor the matrix with these diagonal blocks and the blocks `lower` below them (their transposes above).

    Args:
        diagonal: (T, d, d), the blocks D_t.
        lower: (T - 1, d, d), the blocks B_t.

    >>> import jax.numpy as jnp
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

    # Two steps at once: where many matrices of 8 numbers are factored, that takes half the time (benchmarks/oracle.py).
    _, (inverses, couplings) = jax.lax.scan(eliminate, first, (diagonal[1:], lower), unroll=2)
    return BlockTridiagonalFactor(jnp.concatenate([first[None], inverses]), couplings)


def invert(diagonal: Float[Array, "T d d"], lower: Float[Array, "T-1 d d"]) -> DenseInverse:
    """The inverse as one matrix; cubic in T d, for short systems that are solved many times.

    Args:
        diagonal: (T, d, d), the blocks D_t.
        lower: (T - 1, d, d), the blocks B_t.
    """
    T, d, _ = diagonal.shape
    t = jnp.arange(T)
    matrix = jnp.zeros((T, d, T, d), diagonal.dtype).at[t, :, t, :].set(diagonal)
    matrix = matrix.at[t[1:], :, t[:-1], :].set(lower)
    matrix = matrix.at[t[:-1], :, t[1:], :].set(jnp.swapaxes(lower, 1, 2))
    return DenseInverse(spd_inverse(matrix.reshape(T * d, T * d)).reshape(T, d, T, d))


def _apply(matrix: Float[Array, "d d"], vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """Matrix @ vector; a plain product where d = 1, which XLA fuses over a batch."""
    return matrix[0] * vector if vector.shape[-1] == 1 else matrix @ vector


def solve(factored: BlockTridiagonalFactor | DenseInverse, right: Float[Array, "T d"]) -> Float[Array, "T d"]:
    """Solve M x = right: one forward and one backward sweep, or one product.

    Args:
        factored: M, factored or inverted.
        right: (T, d), the right-hand side.
    """
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
    """The product M x.

    Args:
        diagonal: (T, d, d), the blocks D_t.
        lower: (T - 1, d, d), the blocks B_t.
        x: (T, d).
    """
    product = jnp.einsum("tij,tj->ti", diagonal, x)
    product = product.at[1:].add(jnp.einsum("tij,tj->ti", lower, x[:-1]))
    return product.at[:-1].add(jnp.einsum("tji,tj->ti", lower, x[1:]))
