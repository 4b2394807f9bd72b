"""The maximum of a concave quadratic on a box, with a bound on what is missing from it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.solvers.small_dense import solve_free

# Active-set steps after which the best point so far is returned: a handful is the rule.
_STEPS = 24
_GRADIENT_STEPS = 4


@jax.custom_jvp
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
    scale, eps = jnp.abs(jnp.diagonal(H)), jnp.finfo(c.dtype).eps

    def gap_of(d):
        slope = H @ d + c
        return jnp.sum(jnp.where(slope > 0, slope * (high - d), slope * (low - d)))

    def noise_of(d):
        return 8 * eps * jnp.sum((jnp.abs(H) @ jnp.abs(d) + jnp.abs(c)) * (high - low))

    def is_open(carry):
        step, _, _, gap, noise = carry
        return (gap > noise) & (step < _STEPS)

    def again(carry):
        step, d, best, gap, noise = carry
        target = d + (H @ d + c) / scale
        free, fixed = (target > low) & (target < high), jnp.where(target >= high, high, low)
        fixed = jnp.where(free, 0.0, fixed)
        d = fixed + solve_free(-H, c + H @ fixed, free)
        inside = jnp.clip(d, low, high)
        new = gap_of(inside)
        better = new < gap
        best, gap, noise = (jnp.where(better, a, b) for a, b in ((inside, best), (new, gap), (noise_of(inside), noise)))
        return step + 1, d, best, gap, noise

    first = jnp.clip(c / scale, low, high)
    for _ in range(_GRADIENT_STEPS):  # each costs little and raises the value, and most leave fewer systems to solve
        first = jnp.clip(first + (H @ first + c) / jnp.sum(jnp.abs(H), axis=1), low, high)
    _, _, best, gap, _ = jax.lax.while_loop(is_open, again, (0, first, first, gap_of(first), noise_of(first)))
    return best, gap


@maximize_on_box.defjvp
def _maximize_on_box_jvp(primals, tangents):
    """Coordinates at a bound follow it, free ones keep the slope at zero; the gap is rounding."""
    (H, _, low, high), (H_dot, c_dot, low_dot, high_dot) = primals, tangents
    best, gap = maximize_on_box(*primals)
    free = (low < best) & (best < high)
    bound_dot = jnp.where(free, 0.0, jnp.where(best == high, high_dot, low_dot))
    free_dot = solve_free(-H, H_dot @ best + c_dot + H @ bound_dot, free)
    return (best, gap), (bound_dot + free_dot, jnp.zeros_like(gap))
