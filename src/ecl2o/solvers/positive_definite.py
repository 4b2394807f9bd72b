"""Small matrices, most of them symmetric and positive definite: products, solves, parallel sums, fixed points of Riccati steps.

Products are written as sums, because a batched matrix product rounds differently by place in a batch. One-by-one matrices, the
most common ones here, become divisions, and those of a few rows are eliminated entry by entry: batched LAPACK calls are slow, and
some 5,000 of them at once, in a program with several, can block one another for ever (jaxlib 0.10.2).
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Doublings in `riccati_fixed_point`: 2^32 rounds, enough for ratios of matrices up to 1e16.
_DOUBLINGS = 32
_FEW_ROWS = 4  # matrices up to this size are solved without LAPACK


def multiply(matrix: Float[Array, "d d"], vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """Return the matrix times the vector."""
    return jnp.sum(matrix * vector, axis=-1)


def half_quadratic_form(matrix: Float[Array, "d d"], vector: Float[Array, " d"]) -> Float[Array, ""]:
    """Return 1/2 u' M u."""
    return 0.5 * jnp.sum(vector * multiply(matrix, vector))


def accurate_product(
    matrix: Float[Array, "d d"], vector: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Return M u and a bound on its error, to about one and a half times the digits of the precision.

    Terms of M u cancel where M is ill-conditioned. M and u are split into leading and remaining bits, and products of leading
    bits add up without rounding (Ozaki's scheme).
    """
    dim, limits = vector.shape[0], jnp.finfo(vector.dtype)
    if dim == 1:
        product = multiply(matrix, vector)
        return product, limits.eps * jnp.abs(product)
    bits = (limits.nmant + 1 - math.ceil(math.log2(dim))) // 2 - 1
    lead_matrix, lead = _leading_bits(matrix, bits), _leading_bits(vector, bits)
    remaining = multiply(lead_matrix, vector - lead) + multiply(matrix - lead_matrix, vector)
    product = multiply(lead_matrix, lead) + remaining
    size = jnp.abs(product) + dim * 2.0**-bits * jnp.abs(matrix).sum(axis=-1) * jnp.abs(vector).max()
    return product, limits.eps * size


def accurate_half_form(
    matrix: Float[Array, "d d"], vector: Float[Array, " d"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return 1/2 u' M u for a vector of rounded differences, and a bound on its error.

    Where squares underflow, the bound is at least the smallest normal number.
    """
    dim, limits = vector.shape[0], jnp.finfo(vector.dtype)
    product, error = accurate_product(matrix, vector)
    size = 0.5 * jnp.sum(jnp.abs(vector) * ((dim + 3) * limits.eps * jnp.abs(product) + error))
    underflow = jnp.where((vector != 0).any(), dim**2 * limits.tiny, 0.0)
    return 0.5 * jnp.sum(vector * product), jax.lax.stop_gradient(size + underflow)


def _leading_bits(values: Float[Array, "*n d"], bits: int) -> Float[Array, "*n d"]:
    """Round to multiples of about 2^-bits of the largest value of a row."""
    shift = 2.0 ** (jnp.finfo(values.dtype).nmant - bits) * jnp.abs(values).max(axis=-1, keepdims=True)
    return (values + shift) - shift


def small_solve(matrix: Float[Array, "d d"], right: Float[Array, " d *columns"]) -> Float[Array, " d *columns"]:
    """Solve M x = right for a regular M; by Cramer's rule up to two dimensions, which batches well.

    >>> small_solve(jnp.array([[2.0, 1.0], [0.0, 4.0]]), jnp.array([3.0, 4.0])).tolist()
    [1.0, 1.0]
    """
    if matrix.shape[-1] == 1:
        return right / matrix[0, 0]
    if matrix.shape[-1] > 2:
        return jnp.linalg.solve(matrix, right)
    (a, b), (c, d) = matrix
    first, second = right
    return jnp.stack([d * first - b * second, a * second - c * first]) / (a * d - b * c)


def spd_solve(matrix: Float[Array, "d d"], right: Float[Array, " d *columns"]) -> Float[Array, " d *columns"]:
    """Solve M x = right for a symmetric positive definite M; `right` is (d,) or (d, k). NaN if M is not definite."""
    if matrix.shape[-1] == 1:
        return right / matrix[0, 0]
    if matrix.shape[-1] > _FEW_ROWS:
        return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(matrix), True), right)
    return _eliminate(matrix, right)


def _eliminate(matrix: Float[Array, "d d"], right: Float[Array, " d *columns"]) -> Float[Array, " d *columns"]:
    """Solve by elimination, an LDL' factorisation, with the lower triangle of M."""
    size = len(matrix)
    left, rows = {(i, j): matrix[i, j] for i in range(size) for j in range(i + 1)}, list(right)
    factors, pivots = {}, []
    for j in range(size):
        pivots.append(jnp.where(left[j, j] > 0, left[j, j], jnp.nan))
        for i in range(j + 1, size):
            factors[i, j] = left[i, j] / pivots[j]
            rows[i] = rows[i] - factors[i, j] * rows[j]
            for k in range(j + 1, i + 1):
                left[i, k] = left[i, k] - factors[i, j] * left[k, j]
    for i in reversed(range(size)):
        rows[i] = rows[i] / pivots[i]
        for k in range(i + 1, size):
            rows[i] = rows[i] - factors[k, i] * rows[k]
    return jnp.stack(rows)


def spd_solve_sum_zero(matrix: Float[Array, "d d"], right: Float[Array, " d *columns"]) -> Float[Array, " d *columns"]:
    """Return the x whose coordinates sum to zero and with M x = right + mu, one number mu; of each column of `right`.

    >>> spd_solve_sum_zero(jnp.diag(jnp.array([1.0, 3.0])), jnp.array([4.0, 0.0])).tolist()
    [1.0, -1.0]
    """
    free, along = spd_solve(matrix, right), spd_solve(matrix, jnp.ones_like(matrix[0]))
    share = along / jnp.sum(along)
    return free - (share if right.ndim == 1 else share[:, None]) * jnp.sum(free, axis=0)


def sandwich_solve(
    left: Float[Array, "d d"], matrix: Float[Array, "d d"], right: Float[Array, "d d"]
) -> Float[Array, "d d"]:
    """Return L M^-1 R for symmetric L, M and R whose product is symmetric; the result is symmetric to the last bit."""
    if matrix.shape[-1] == 1:
        return left * right / matrix
    product = left @ spd_solve(matrix, right)
    return 0.5 * (product + product.T)


def parallel_sum(a: Float[Array, "d d"], b: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Return (A^-1 + B^-1)^-1 = A (A + B)^-1 B, the stiffness of two springs in series.

    A and B are symmetric and semidefinite, and their sum is definite. A move of the end by u moves the joint by T u,
    T = (A + B)^-1 B, and the stiffness is computed as that of the two springs, T' A T + (I - T)' B (I - T): T minimises it, so
    its rounding error enters only squared.

    >>> float(parallel_sum(jnp.array([[2.0]]), jnp.array([[2.0]]))[0, 0])
    1.0
    """
    if len(a) == 1:
        return a * b / (a + b)
    joint = spd_solve(a + b, b)
    both = two_springs(a, b, joint)
    return 0.5 * (both + both.T)


def two_springs(a: Float[Array, "d d"], b: Float[Array, "d d"], joint: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Return T' A T + (I - T)' B (I - T), the stiffness of two springs in series whose joint moves by T u."""
    other = jnp.eye(len(joint), dtype=joint.dtype) - joint
    return joint.T @ a @ joint + other.T @ b @ other


def riccati_fixed_point(a: Float[Array, "d d"] | Float[Array, "T d d"], b: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Return the fixed point X of a round of steps X -> parallel_sum(X + A_t, B), t = 1..T.

    In one dimension and for one step it is the positive root of x^2 + a x - a b. In general a round is the `_Ladder` of its
    steps. Two rounds are a ladder again, so doubling converges fast. It needs no eigenvalues, so derivatives are finite also
    where eigenvalues coincide.

    Args:
        a: (d, d), A, symmetric and positive definite; or (T, d, d), one for each step of a round in the order of application.
        b: (d, d), B, symmetric and positive definite.

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

    Springs, with X at the near end. It stores the differences of F and H from E, which only grow: nothing cancels, however small
    A is beside B.
    """

    near: Float[Array, "d d"]
    E: Float[Array, "d d"]
    far: Float[Array, "d d"]

    @classmethod
    def of_step(cls, a: Float[Array, "d d"], b: Float[Array, "d d"]) -> "_Ladder":
        return cls(a, b, jnp.zeros_like(b))

    def then(self, later: "_Ladder") -> "_Ladder":
        """Compose two ladders, this one first, by eliminating the point between them (M = H + F)."""
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
    """Return the largest u'Au / u'Bu, the greatest eigenvalue of B^-1 A, for symmetric A and B with B definite.

    >>> round(float(largest_ratio(jnp.diag(jnp.array([3.0, 1.0])), jnp.diag(jnp.array([2.0, 2.0])))), 6)
    1.5
    """
    if a.shape[-1] == 1:
        return (a / b)[0, 0]
    cholesky = jnp.linalg.cholesky(b)
    half = jax.scipy.linalg.solve_triangular(cholesky, a, lower=True)
    whole = jax.scipy.linalg.solve_triangular(cholesky, half.T, lower=True)
    return jnp.linalg.eigvalsh(0.5 * (whole + whole.T))[-1]
