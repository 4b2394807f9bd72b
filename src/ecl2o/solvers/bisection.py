"""Bisection for a decreasing function of one number, differentiable by the implicit function theorem.

Without a sign change the result is the nearer end of the interval, with the derivative of that end. (Optimistix' bisection takes
five times as long and has no such derivative: docs/decisions.md.)
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
    """Find the s in [lower, upper] with fn(s, parameters) = 0, for an fn that decreases in s.

    The derivative is that of the root clipped to the interval; it is 0 where fn is flat at the root.

    Args:
        fn: Maps s and the parameters to a number.
        lower: The lower end of the interval.
        upper: The upper end.
        parameters: Any tree.
        halvings: The number of bisections. Default: 64.

    >>> round(float(bisect_root(lambda s, p: p - s**3, jnp.array(0.0), jnp.array(9.0), jnp.array(8.0))), 5)
    2.0
    """
    return _bisect(fn, lower, upper, parameters, halvings)


# Jitted by itself, so that JAX traces the loop once and not again for the derivative.
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
    lower, upper, parameters = primals
    lower_dot, upper_dot, parameters_dot = tangents
    root = bisect_root(fn, lower, upper, parameters, halvings)
    slope = jax.grad(fn)(root, parameters)
    _, fn_dot = jax.jvp(lambda p: fn(root, p), (parameters,), (parameters_dot,))
    root_dot = jnp.where(slope == 0, 0.0, -fn_dot / jnp.where(slope == 0, 1.0, slope))
    root_dot = jnp.where(fn(upper, parameters) > 0, upper_dot, root_dot)
    return root, jnp.where(fn(lower, parameters) < 0, lower_dot, root_dot)
