"""Points within bounds whose coordinates sum to a total: the nearest one, and what the total leaves of the bounds."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def project_on_total(
    point: Float[Array, " d"], total: Float[Array, ""], lower: Float[Array, " d"], upper: Float[Array, " d"]
) -> Float[Array, " d"]:
    """Return the nearest x with lower <= x <= upper and sum x = total; the nearest bounds if there is none.

    x = clip(point - mu, lower, upper), where the sum falls in mu and is linear between the 2d places at which a coordinate meets
    a bound. These decide which coordinates are free. Derivatives are those of the projection on the face of the free ones.

    Args:
        point: (d,).
        total: The sum.
        lower: (d,), may be -inf.
        upper: (d,), may be inf.

    >>> project_on_total(jnp.array([0.5, 0.0, 3.0]), jnp.array(2.0), jnp.zeros(3), jnp.ones(3)).tolist()
    [0.75, 0.25, 1.0]
    """
    # The projections of point and point - mu are the same: far points are brought close, where sums have all their digits.
    before, after = _places_around_mu(*jax.lax.stop_gradient((point, total, lower, upper)))
    mu = jax.lax.stop_gradient(_meet_bounds(point, total, lower, upper, before, after)[1])
    nearer = jnp.where((mu - before <= after - mu) & jnp.isfinite(before), before, after)
    point = point - jnp.where(jnp.isfinite(nearer), nearer, jnp.where(jnp.isfinite(before), before, mu))
    before, after = _places_around_mu(*jax.lax.stop_gradient((point, total, lower, upper)))
    x, mu, free = _meet_bounds(point, total, lower, upper, before, after)
    x = x - jnp.where(free, mu, 0.0)
    within = jax.lax.stop_gradient(jnp.clip(x, lower, upper))  # clips rounding only: derivatives are those of x
    return within + (x - jax.lax.stop_gradient(x))


def _meet_bounds(
    point: Float[Array, " d"],
    total: Float[Array, ""],
    lower: Float[Array, " d"],
    upper: Float[Array, " d"],
    before: Float[Array, ""],
    after: Float[Array, ""],
) -> tuple[Float[Array, " d"], Float[Array, ""], Bool[Array, " d"]]:
    """Return the point with numbers at their bounds where the projection has them there, mu, and which numbers are free."""
    at_upper, at_lower = point - upper >= after, point - lower <= before
    free = ~(at_upper | at_lower)
    x = jnp.where(at_upper, upper, jnp.where(at_lower, lower, point))
    return x, (jnp.sum(x) - total) / jnp.maximum(jnp.sum(free), 1), free


def _places_around_mu(point, total, lower, upper) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the neighbouring places between which the sum of clip(point - mu, lower, upper) passes the total."""
    places = jnp.concatenate([point - upper, point - lower])
    sums = jnp.sum(jnp.clip(point - places[:, None], lower, upper), axis=1)
    finite = jnp.isfinite(places)
    before = jnp.max(jnp.where(finite & (sums >= total), places, -jnp.inf))
    after = jnp.min(jnp.where(finite & (sums < total), places, jnp.inf))
    return before, after


def narrow_bounds(
    total: Float[Array, ""], lower: Float[Array, " d"], upper: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Return the least and the greatest value of each coordinate of the points within the bounds that sum to the total.

    >>> [end.tolist() for end in narrow_bounds(jnp.array(1.0), jnp.zeros(2), jnp.array([jnp.inf, 0.25]))]
    [[0.75, 0.0], [1.0, 0.25]]
    """

    def sum_others(ends):
        infinite = jnp.isinf(ends)
        known = jnp.where(infinite, 0.0, ends)
        return jnp.where(jnp.sum(infinite) > infinite, ends[jnp.argmax(infinite)], jnp.sum(known) - known)

    return jnp.maximum(lower, total - sum_others(upper)), jnp.minimum(upper, total - sum_others(lower))
