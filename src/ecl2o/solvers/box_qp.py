"""The maximum of a concave quadratic on a box, with a bound on what is missing from it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# Active-set steps after which the best point so far is returned: a handful is the rule.
_STEPS = 24


def maximize_on_box(
    H: Float[Array, "n n"], c: Float[Array, " n"], low: Float[Array, " n"], high: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """Maximise 1/2 d'Hd + c'd over low <= d <= high by a primal-dual active-set method.

    The gap is max over d' in the box of slope'(d' - d): the maximum is at most the value at d plus the gap, whatever d is. The
    method ends where the gap is rounding. Derivatives are those of the maximiser with its active bounds.

    Args:
        H: (n, n), symmetric and negative definite.
        c: (n,).
        low: (n,).
        high: (n,), not below `low`.

    Returns:
        The maximiser, and the gap.

    >>> d, gap = maximize_on_box(-jnp.eye(2), jnp.array([0.5, 3.0]), jnp.zeros(2), jnp.ones(2))
    >>> d.tolist(), float(gap)
    ([0.5, 1.0], 0.0)
    """
    H_, c_, low_, high_ = jax.lax.stop_gradient((H, c, low, high))
    scale = jnp.abs(jnp.diagonal(H_))
    eps = jnp.finfo(c.dtype).eps

    def gap_of(d):
        slope = H_ @ d + c_
        return jnp.sum(jnp.where(slope > 0, slope * (high_ - d), slope * (low_ - d)))

    def noise_of(d):
        return 8 * eps * jnp.sum((jnp.abs(H_) @ jnp.abs(d) + jnp.abs(c_)) * (high_ - low_))

    def is_open(carry):
        step, _, _, _, gap, noise = carry
        return (gap > noise) & (step < _STEPS)

    def again(carry):
        step, d, best, mask, gap, noise = carry
        wish = d + (H_ @ d + c_) / scale
        free, at_high = (wish > low_) & (wish < high_), wish >= high_
        d = _solve_free(H_, c_, jnp.where(at_high, high_, low_), free)
        inside = jnp.clip(d, low_, high_)
        new = gap_of(inside)
        better = new < gap
        best, gap, noise = (jnp.where(better, a, b) for a, b in ((inside, best), (new, gap), (noise_of(inside), noise)))
        clean = free & (d > low_) & (d < high_)
        mask = jnp.where(better, clean, mask)
        return step + 1, d, best, mask, gap, noise

    first = jnp.clip(c_ / scale, low_, high_)
    start = (0, first, first, jnp.zeros(first.shape, bool), gap_of(first), noise_of(first))
    _, _, best, mask, gap, _ = jax.lax.while_loop(is_open, again, start)
    # At the optimum the free part solves a linear system: what is added is rounding, and has the derivatives.
    bound = jnp.where(best == high_, high, low)
    exact = _solve_free(H, c, bound, mask)
    return best + (exact - jax.lax.stop_gradient(exact)), gap


def _solve_free(H, c, bound, free: Bool[Array, " n"]) -> Float[Array, " n"]:
    """Return d with slope 0 in the free coordinates, and equal to `bound` in the others."""
    fixed = jnp.where(free, 0.0, bound)
    own = jnp.where(free[:, None] & free[None, :], -H, jnp.eye(len(c), dtype=c.dtype))
    right = jnp.where(free, c + H @ fixed, fixed)
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(own), True), right)
