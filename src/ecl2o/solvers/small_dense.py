"""Linear algebra of small dense matrices, which may be mapped over a batch.

jaxlib's kernels of LAPACK share out a batch among threads and wait for them: with few threads they can block one another for ever
(jaxlib 0.10.2). So systems are solved by elimination in plain array operations. Decompositions, which steps do without, call
LAPACK for `one_at_a_time`. Products of a matrix and a vector are sums, because a batched product rounds differently by place in
the batch.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Bool, Float

# Doublings in `riccati_fixed_point`: 2^32 rounds, enough for ratios of matrices up to 1e16.
_DOUBLINGS = 32
_FEW_ROWS = 4  # matrices up to this size are eliminated entry by entry
_ONE_BLOCK = 32  # those up to this size column by column, larger ones by halves


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


def solve(matrix: Float[Array, "d d"], right: Float[Array, " d *columns"]) -> Float[Array, " d *columns"]:
    """Solve M x = right for a regular M.

    >>> solve(jnp.array([[2.0, 1.0], [0.0, 4.0]]), jnp.array([3.0, 4.0])).tolist()
    [1.0, 1.0]
    """
    if len(matrix) == 1:
        return right / matrix[0, 0]
    if len(matrix) == 2:
        (a, b), (c, d) = matrix
        first, second = right
        return jnp.stack([d * first - b * second, a * second - c * first]) / (a * d - b * c)

    return jax.lax.custom_linear_solve(
        lambda x: matrix @ x,
        right,
        lambda _, b: _eliminate_with_pivots(matrix, b),
        lambda _, b: _eliminate_with_pivots(matrix.T, b),
    )


def spd_solve(matrix: Float[Array, "d d"], right: Float[Array, " d *columns"]) -> Float[Array, " d *columns"]:
    """Solve M x = right for a symmetric positive definite M; `right` is (d,) or (d, k). NaN if M is not definite."""
    if len(matrix) == 1:
        return right / matrix[0, 0]
    if len(matrix) <= _FEW_ROWS:
        return _eliminate_entries(matrix, right)
    return jax.lax.custom_linear_solve(
        lambda x: matrix @ x, right, lambda _, b: _eliminate_halves(matrix, b), symmetric=True
    )


def spd_inverse(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Invert a symmetric positive definite matrix."""
    return spd_solve(matrix, jnp.eye(len(matrix), dtype=matrix.dtype))


def solve_free(matrix: Float[Array, "d d"], right: Float[Array, " d"], free: Bool[Array, " d"]) -> Float[Array, " d"]:
    """Solve M x = right in the free coordinates for a symmetric positive definite M; x is zero in the others.

    >>> solve_free(jnp.array([[4.0, 3.0], [3.0, 9.0]]), jnp.ones(2), jnp.array([True, False])).tolist()
    [0.25, 0.0]
    """
    own = jnp.where(free[:, None] & free, matrix, jnp.eye(len(free), dtype=matrix.dtype))
    return spd_solve(own, jnp.where(free, right, 0.0))


def is_definite(matrix: Float[Array, "d d"]) -> Bool[Array, ""]:
    """Return whether a symmetric matrix is positive definite, up to rounding.

    >>> [bool(is_definite(jnp.array([[1.0, x], [x, 1.0]]))) for x in (0.9, 1.1)]
    [True, False]
    """
    if len(matrix) == 1:
        return matrix[0, 0] > 0
    return jnp.isfinite(spd_solve(matrix, jnp.ones_like(matrix[0]))).all()


def _eliminate_entries(matrix: Float[Array, "d d"], right: Float[Array, " d *columns"]) -> Float[Array, " d *columns"]:
    """Solve by an LDL' factorisation with the lower triangle of M, written out."""
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


def _eliminate_with_pivots(
    matrix: Float[Array, "d d"], right: Float[Array, " d *columns"]
) -> Float[Array, " d *columns"]:
    """Solve by Gauss-Jordan elimination with partial pivoting."""
    size = len(matrix)
    places = jnp.arange(size)

    def eliminate(k, rows):
        largest = jnp.argmax(jnp.where(places < k, -1.0, jnp.abs(rows[:, k])))
        rows = rows[jnp.where(places == k, largest, jnp.where(places == largest, k, places))]
        row, here = rows[k] / rows[k, k], (places == k)[:, None]
        return jnp.where(here, row, rows - rows[:, k, None] * row)

    rows = jnp.concatenate([matrix, right.reshape(size, -1)], axis=1)
    return jax.lax.fori_loop(0, size, eliminate, rows)[:, size:].reshape(right.shape)


def _eliminate_columns(matrix: Float[Array, "d d"], right: Float[Array, " d *columns"]) -> Float[Array, " d *columns"]:
    """Solve by Gauss-Jordan elimination with a positive definite M, scaled to a diagonal of 1: then no pivot exceeds 1."""
    size = len(matrix)
    places, scale = jnp.arange(size), jax.lax.rsqrt(jnp.diagonal(matrix))

    def eliminate(k, columns):
        pivot = columns[k, k]
        row = columns[:, k] / jnp.where(pivot > 0, pivot, jnp.nan)
        return columns - row[:, None] * (columns[k] - (places == k))

    columns = jnp.concatenate([matrix * scale[:, None], right.reshape(size, -1).T]) * scale
    columns = jax.lax.fori_loop(0, size, eliminate, columns, unroll=2)
    return (columns[size:] * scale).T.reshape(right.shape)


def _eliminate_halves(matrix: Float[Array, "d d"], right: Float[Array, " d *columns"]) -> Float[Array, " d *columns"]:
    """Solve with a positive definite M by elimination of its first half, then of the other one."""
    size, half = len(matrix), len(matrix) // 2
    columns = right.reshape(size, -1)
    if size <= _ONE_BLOCK:
        if columns.shape[1] <= size:
            return _eliminate_columns(matrix, right)
        return _eliminate_columns(matrix, jnp.eye(size, dtype=matrix.dtype)) @ right
    below, last = jnp.split(matrix[half:], [half], axis=1)
    onward = _eliminate_halves(matrix[:half, :half], jnp.concatenate([below.T, columns[:half]], axis=1))
    through, first = jnp.split(onward, [size - half], axis=1)
    second = _eliminate_halves(last - below @ through, columns[half:] - below @ first)
    return jnp.concatenate([first - through @ second, second]).reshape(right.shape)


def one_at_a_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of arrays that is mapped over a batch in a loop; its derivatives are not."""
    looped = jax.custom_jvp(sequential_vmap(function))
    looped.defjvp(lambda primals, tangents: jax.jvp(function, primals, tangents))
    return looped


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


def parallel_sum(
    a: Float[Array, "d d"], b: Float[Array, "d d"], share: Float[Array, "d d"] | None = None
) -> Float[Array, "d d"]:
    """Return (A^-1 + B^-1)^-1 = A (A + B)^-1 B for symmetric semidefinite A and B whose sum is definite.

    It is the least T' A T + (I - T)' B (I - T), and computed as that: the rounding error of T = (A + B)^-1 B enters only squared.

    Args:
        a: (d, d), A.
        b: (d, d), B.
        share: (d, d), another T. Default: the one above.

    >>> float(parallel_sum(jnp.array([[2.0]]), jnp.array([[2.0]]))[0, 0])
    1.0
    """
    if share is None and len(a) == 1:
        return a * b / (a + b)
    share = spd_solve(a + b, b) if share is None else share
    other = jnp.eye(len(share), dtype=share.dtype) - share
    both = share.T @ a @ share + other.T @ b @ other
    return 0.5 * (both + both.T)


def riccati_fixed_point(a: Float[Array, "d d"] | Float[Array, "T d d"], b: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Return the fixed point X of a round of steps X -> parallel_sum(X + A_t, B), t = 1..T.

    In one dimension and for one step it is the positive root of x^2 + a x - a b. In general a round is the `_Steps` of its
    steps. Two rounds are one of those again, so doubling converges fast. It needs no eigenvalues, so derivatives are finite also
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


class _Steps(eqx.Module):
    """Steps X -> parallel_sum(X + A_t, B), composed: X -> H - E' (X + F)^-1 E with F = before + E and H = after + E'.

    It stores the differences of F and H from E, which only grow: nothing cancels, however small A is beside B.
    """

    before: Float[Array, "d d"]
    E: Float[Array, "d d"]
    after: Float[Array, "d d"]

    @classmethod
    def of_one(cls, a: Float[Array, "d d"], b: Float[Array, "d d"]) -> "_Steps":
        return cls(a, b, jnp.zeros_like(b))

    def then(self, later: "_Steps") -> "_Steps":
        """Compose with later steps, by eliminating the point between (M = H + F)."""
        own = self.after + later.before
        M = own + self.E.T + later.E
        solved = spd_solve(0.5 * (M + M.T), jnp.concatenate([later.E, own], axis=-1))
        by_E, by_own = jnp.split(solved, 2, axis=-1)
        return _Steps(self.before + self.E @ by_own, self.E @ by_E, later.after + later.E.T @ by_own)


@jax.jit  # a loop outside of a compiled function would be compiled at every call
def _doubled(a, b):
    def add(steps, a_t):
        return steps.then(_Steps.of_one(a_t, b)), None

    one_round, _ = jax.lax.scan(add, _Steps.of_one(a[0], b), a[1:])
    rounds, _ = jax.lax.scan(lambda steps, _: (steps.then(steps), None), one_round, None, length=_DOUBLINGS)
    return 0.5 * (rounds.after + rounds.after.T)


def largest_ratio(a: Float[Array, "d d"], b: Float[Array, "d d"]) -> Float[Array, ""]:
    """Return the largest u'Au / u'Bu, the greatest eigenvalue of B^-1 A, for symmetric A and B with B definite.

    >>> round(float(largest_ratio(jnp.diag(jnp.array([3.0, 1.0])), jnp.diag(jnp.array([2.0, 2.0])))), 6)
    1.5
    """
    return (a / b)[0, 0] if len(a) == 1 else largest_ratio_at(a, b)[0]


@one_at_a_time
def largest_ratio_at(a: Float[Array, "d d"], b: Float[Array, "d d"]) -> tuple[Float[Array, ""], Float[Array, " d"]]:
    """Return the `largest_ratio`, and a u at which it is attained."""
    root = jnp.linalg.cholesky(b)
    half = jax.scipy.linalg.solve_triangular(root, a, lower=True)
    whole = jax.scipy.linalg.solve_triangular(root, half.T, lower=True)
    ratios, directions = jnp.linalg.eigh(0.5 * (whole + whole.T))
    return ratios[-1], jax.scipy.linalg.solve_triangular(root.T, directions[:, -1])


@one_at_a_time
def eigenvalues(matrix: Float[Array, "d d"]) -> Float[Array, " d"]:
    """Return the eigenvalues of a symmetric matrix, the smallest first."""
    return jnp.linalg.eigvalsh(matrix)


@one_at_a_time
def eigh(matrix: Float[Array, "d d"]) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Return the `eigenvalues` of a symmetric matrix, and its eigenvectors as columns."""
    return tuple(jnp.linalg.eigh(matrix))
