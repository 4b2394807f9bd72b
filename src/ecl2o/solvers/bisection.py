"""The root of a monotone function of one number, by bisection, differentiable by the implicit function theorem.

Where the root is not bracketed the nearer end is the answer, and its derivative is the end's. (Optimistix' bisection takes five
times as long, and differentiates a root that is not there: docs/decisions.md.)
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


@partial(jax.custom_jvp, nondiff_argnums=(0, 4))
def bisect_root(
    fn: Callable[[Float[Array, ""], PyTree], Float[Array, ""]],
    lower: Float[Array, ""],
    upper: Float[Array, ""],
    parameters: PyTree,
    halvings: int = 64,
) -> Float[Array, ""]:
    """The s in [lower, upper] with fn(s, parameters) = 0 for an fn that falls in s; an end where there is no sign change.

    Its derivative is that of the root clipped to the two ends: with respect to the parameters it is 0 where an end is the
    answer. (0 also where fn has no slope at the root, and the derivative is infinite.)

    Args:
        fn: of s and the parameters, a number that falls in s.
        lower: where the search begins.
        upper: where it ends.
        parameters: any tree.
        halvings: of the interval. Default: 64.

    >>> import jax.numpy as jnp
    >>> round(float(bisect_root(lambda s, p: p - s**3, jnp.array(0.0), jnp.array(9.0), jnp.array(8.0))), 5)
    2.0
    """
    return _bisect(fn, lower, upper, parameters, halvings)


# A program of its own, so that JAX traces the loop once, and not again for the derivative.
@partial(jax.jit, static_argnums=(0, 4))
def _bisect(fn, lower, upper, parameters, halvings):
    def halve(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        right = fn(middle, parameters) > 0
        return jnp.where(right, middle, low), jnp.where(right, high, middle)

    low, high = jax.lax.fori_loop(0, halvings, halve, (lower, upper))
    return 0.5 * (low + high)


@bisect_root.defjvp
def _decreasing_root_jvp(fn, halvings, primals, tangents):
    """The root moves by -dfn/slope; an end that is the answer moves as the end does, whatever the parameters do."""
    lower, upper, parameters = primals
    lower_moved, upper_moved, parameters_moved = tangents
    root = bisect_root(fn, lower, upper, parameters, halvings)
    slope = jax.grad(fn)(root, parameters)
    _, fn_moved = jax.jvp(lambda p: fn(root, p), (parameters,), (parameters_moved,))
    moved = jnp.where(slope == 0, 0.0, -fn_moved / jnp.where(slope == 0, 1.0, slope))
    moved = jnp.where(fn(upper, parameters) > 0, upper_moved, moved)
    return root, jnp.where(fn(lower, parameters) < 0, lower_moved, moved)
