"""Projection on an ellipsoid, differentiable by the implicit function theorem.

{x: 1/2 (x - o)' H (x - o) <= level}. From outside the nearest point is x(nu) = (I + nu H)^{-1} (point + nu H o) with the one
nu > 0 that puts it on the boundary. Newton's method on 1/sqrt(1/2 (x - o)' H (x - o)), an almost linear function of nu, finds it
in a few monotone steps from 0; for one eigenvalue, hence for balls and on a line, in one. A last radial correction puts the point
on the boundary to the last digits.

The derivative uses the equations x - point + nu n = 0 with n = H (x - o) and 1/2 (x - o)' n = level, not the iteration.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.solvers.small_dense import half_quadratic_form, multiply, spd_solve

_NEWTON_STEPS = 12


def pull_into_ellipsoid(
    point: Float[Array, " d"],
    centre: Float[Array, " d"],
    shape: Float[Array, "d d"],
    level: Float[Array, ""],
    grain: Float[Array, ""] | None = None,
) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
    """Return the point, moved toward the centre until 1/2 |x - centre|^2 <= level in the norm of `shape`, and whether it was.

    A moved point stays inside by the distance of which `grain` is half the square. A point that is not finite becomes the centre.
    """
    usable = jnp.isfinite(half_quadratic_form(shape, point - centre))
    way = jnp.where(usable, point, centre) - centre
    height = half_quadratic_form(shape, way)
    inside = height <= level
    pulled = ~inside & (level > 0)
    height = jnp.where(pulled, height, 1.0)
    # A filler that is close to 0, as the share is: a compiled program may compute `level` twice, rounded differently.
    share = jnp.sqrt(jnp.where(pulled, level, jnp.finfo(level.dtype).tiny) / height)
    if grain is not None:
        share = jnp.maximum(share - jnp.sqrt(grain / height), 0.0)
    inward = jnp.where(pulled, centre + share * way, centre)
    return jnp.where(inside & usable, point, inward), ~(inside & usable)


@jax.custom_jvp
def project_on_ellipsoid(
    point: Float[Array, " d"], centre: Float[Array, " d"], shape: Float[Array, "d d"], level: Float[Array, ""]
) -> Float[Array, " d"]:
    """Return the point of {x: 1/2 (x - centre)' shape (x - centre) <= level} nearest to `point`; the centre if level <= 0.

    Args:
        point: (d,).
        centre: (d,).
        shape: (d, d), symmetric and positive definite.
        level: Half the squared radius, in the norm of `shape`.

    >>> ball = jnp.zeros(2), jnp.eye(2), jnp.array(0.5)
    >>> [round(float(x), 6) for x in project_on_ellipsoid(jnp.array([3.0, 4.0]), *ball)]
    [0.6, 0.8]
    """
    return _nearest(point, centre, shape, level)


# Jitted by itself, so that JAX traces it once and not again for the derivative.
@jax.jit
def _nearest(point, centre, shape, level):
    away = point - centre
    height = half_quadratic_form(shape, away)
    outside = height > level
    if point.shape[0] > 1:
        away = jnp.where(outside, _shortened(away, shape, level), away)
        height = half_quadratic_form(shape, away)
    share = jnp.sqrt(jnp.maximum(level, 0.0) / jnp.where(height > 0, height, 1.0))
    return jnp.where(outside, centre + jnp.minimum(share, 1.0) * away, point)


def _shortened(away, shape, level):
    """Return (I + nu H)^{-1} away on the boundary, up to Newton's accuracy."""
    identity = jnp.eye(len(away), dtype=away.dtype)
    root_level = jnp.sqrt(jnp.maximum(level, jnp.finfo(away.dtype).tiny))

    def newton(_, nu):
        stretch = identity + nu * shape
        shrunk = spd_solve(stretch, away)
        normal = multiply(shape, shrunk)
        height, fall = 0.5 * jnp.sum(shrunk * normal), jnp.sum(normal * spd_solve(stretch, normal))
        step = 2 * height * (jnp.sqrt(height) / root_level - 1) / jnp.where(fall > 0, fall, 1.0)
        return nu + jnp.maximum(step, 0.0)

    nu = jax.lax.fori_loop(0, _NEWTON_STEPS, newton, jnp.zeros((), away.dtype))
    return spd_solve(identity + nu * shape, away)


@project_on_ellipsoid.defjvp
def _project_on_ellipsoid_jvp(primals, tangents):
    point, centre, shape, level = primals
    point_dot, centre_dot, shape_dot, level_dot = tangents
    x = project_on_ellipsoid(point, centre, shape, level)
    away = x - centre
    from_centre = point - centre
    outside = half_quadratic_form(shape, from_centre) > level
    normal = shape @ away
    length = normal @ normal
    on_boundary = outside & (length > 0)
    nu = jnp.where(on_boundary, normal @ (point - x) / jnp.where(on_boundary, length, 1.0), 0.0)
    stretch = jnp.eye(x.shape[0], dtype=x.dtype) + nu * shape
    across = spd_solve(stretch, normal)  # H~^{-1} n
    sigma = jnp.where(on_boundary, normal @ across, 1.0)
    # H~ dx + n dnu = right and n' dx = height_dot.
    right = point_dot + nu * (shape @ centre_dot - shape_dot @ away)
    height_dot = level_dot + normal @ centre_dot - 0.5 * away @ shape_dot @ away
    along = spd_solve(stretch, right)
    boundary_dot = along - across * (normal @ along - height_dot) / sigma
    x_dot = jnp.where(on_boundary, boundary_dot, jnp.where(outside, centre_dot, point_dot))
    return x, x_dot
