"""Small symmetric positive definite matrices: products, solves, parallel sums, and the one that a round of them
reproduces.

Products are written as sums, because a batched matrix product rounds differently by place in a batch. One-by-one matrices, the
commonest ones here, become divisions.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Doublings until the fixed point of `riccati_fixed_point`: 2^32 rounds, which settles ratios of matrices up to 1e16.
_DOUBLINGS = 32


def multiply(matrix: Float[Array, "d d"], vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """The matrix times the vector.

    Args:
        matrix: (d, d).
        vector: (d,).
    """
    return jnp.sum(matrix * vector, axis=-1)


def half_quadratic_form(matrix: Float[Array, "d d"], vector: Float[Array, " d"]) -> Float[Array, ""]:
    """1/2 u' M u.

    Args:
        matrix: (d, d), M.
        vector: (d,), u.
    """
    return 0.5 * jnp.sum(vector * multiply(matrix, vector))


def spd_solve(matrix: Float[Array, "d d"], right: Float[Array, " d *columns"]) -> Float[Array, " d *columns"]:
    """M^-1 right; a division where d = 1.

    Args:
        matrix: (d, d), M, symmetric and positive definite.
        right: (d,) or (d, k).
    """
    if matrix.shape[-1] == 1:
        return right / matrix[0, 0]
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(matrix), True), right)


def sandwich_solve(
    left: Float[Array, "d d"], matrix: Float[Array, "d d"], right: Float[Array, "d d"]
) -> Float[Array, "d d"]:
    """L M^-1 R for symmetric L, M and R whose product is known to be symmetric; it is made so to the last bit.

    Args:
        left: (d, d), L.
        matrix: (d, d), M.
        right: (d, d), R.
    """
    if matrix.shape[-1] == 1:
        return left * right / matrix
    product = left @ spd_solve(matrix, right)
    return 0.5 * (product + product.T)


def parallel_sum(a: Float[Array, "d d"], b: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """(A^-1 + B^-1)^-1 = A (A + B)^-1 B: two springs one behind the other. Either may be zero.

    Args:
        a: (d, d), symmetric and positive semidefinite.
        b: (d, d), likewise; their sum is definite.

    >>> import jax.numpy as jnp
    >>> float(parallel_sum(jnp.array([[2.0]]), jnp.array([[2.0]]))[0, 0])
    1.0
    """
    return sandwich_solve(a, a + b, b)


def riccati_fixed_point(a: Float[Array, "d d"] | Float[Array, "T d d"], b: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The X to which a round of steps X -> parallel_sum(X + A_t, B), t = 1..T, leads back, and repeated leads from anywhere.

    On a line and for one step it is the positive root of x^2 + a x - a b. In general a round is the `_Ladder` of its steps; two
    rounds are a ladder again, and so the rounds double until the far end is not felt. No eigenvalues are needed, and derivatives
    are finite for equal ones too.

    Args:
        a: (d, d), A, symmetric and positive definite; or one for each step of a round, (T, d, d), the first one applied first.
        b: (d, d), B, likewise.

    >>> import jax.numpy as jnp
    >>> float(riccati_fixed_point(jnp.array([[1.0]]), jnp.array([[2.0]]))[0, 0])
    1.0
    """
    if a.ndim == 3:
        return _doubled(a, b)
    if a.shape[-1] == 1:
        return 2 * a * b / (a + jnp.sqrt(a * a + 4 * a * b))
    return _doubled(a[None], b)


class _Ladder(eqx.Module):
    """Steps X -> parallel_sum(X + A_t, B), composed: X -> H - E' (X + F)^-1 E with F = near + E and H = far + E'.

    Springs, with X at the near end. Of F and H the differences from E are carried: they only grow, and nothing cancels, however
    soft A is beside B.
    """

    near: Float[Array, "d d"]
    E: Float[Array, "d d"]
    far: Float[Array, "d d"]

    @classmethod
    def of_step(cls, a: Float[Array, "d d"], b: Float[Array, "d d"]) -> "_Ladder":
        return cls(a, b, jnp.zeros_like(b))

    def then(self, later: "_Ladder") -> "_Ladder":
        """The ladder of both, this one first: what stands between them, held by M = H + F, is eliminated."""
        held = self.far + later.near
        M = held + self.E.T + later.E
        onward = spd_solve(0.5 * (M + M.T), jnp.concatenate([later.E, held], axis=-1))
        through, kept = jnp.split(onward, 2, axis=-1)  # M^-1 E, M^-1 held
        return _Ladder(self.near + self.E @ kept, self.E @ through, later.far + later.E.T @ kept)


@jax.jit  # a loop outside of a compiled function would be compiled at every call
def _doubled(a, b):
    def add(ladder, a_t):
        return ladder.then(_Ladder.of_step(a_t, b)), None

    one_round, _ = jax.lax.scan(add, _Ladder.of_step(a[0], b), a[1:])
    rounds, _ = jax.lax.scan(lambda ladder, _: (ladder.then(ladder), None), one_round, None, length=_DOUBLINGS)
    return 0.5 * (rounds.far + rounds.far.T)


def largest_ratio(a: Float[Array, "d d"], b: Float[Array, "d d"]) -> Float[Array, ""]:
    """The largest u'Au / u'Bu, the greatest eigenvalue of B^-1 A.

    Args:
        a: (d, d), symmetric.
        b: (d, d), symmetric and positive definite.

    >>> import jax.numpy as jnp
    >>> round(float(largest_ratio(jnp.diag(jnp.array([3.0, 1.0])), jnp.diag(jnp.array([2.0, 2.0])))), 6)
    1.5
    """
    if a.shape[-1] == 1:
        return (a / b)[0, 0]
    cholesky = jnp.linalg.cholesky(b)
    half = jax.scipy.linalg.solve_triangular(cholesky, a, lower=True)
    whole = jax.scipy.linalg.solve_triangular(cholesky, half.T, lower=True)
    return jnp.linalg.eigvalsh(0.5 * (whole + whole.T))[-1]
