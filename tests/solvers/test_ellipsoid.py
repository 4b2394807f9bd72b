"""The nearest point of an ellipsoid, by the conditions that make it the nearest, and its derivative by differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecl2o.solvers.ellipsoid import project_on_ellipsoid
from matrices import spd


def _height(x, centre, shape):
    return 0.5 * np.einsum("ni,ij,nj->n", x - centre, shape, x - centre)


@pytest.mark.parametrize("dim", [1, 3])
def test_it_is_the_nearest_point(dim):
    """On the boundary, and point - x = nu H (x - centre) with nu >= 0: necessary and sufficient for a convex set."""
    rng = np.random.default_rng(dim)
    points, centre, shape = 3 * rng.normal(size=(40, dim)), rng.normal(size=dim), spd(dim, 5, 0.3, 4.0)
    points[0] = centre
    heights = _height(points, centre, shape)
    levels = heights * 10.0 ** rng.uniform(-3, 0.7, size=40)
    levels[1:3] = 0.0, -1.0
    found = np.asarray(jax.jit(jax.vmap(project_on_ellipsoid, (0, None, None, 0)))(points, centre, shape, levels))
    inside = heights <= levels
    assert 5 < inside.sum() < 35
    np.testing.assert_array_equal(found[inside], points[inside])
    np.testing.assert_array_equal(found[1:3], [centre, centre])
    reached = ~inside
    reached[1:3] = False
    np.testing.assert_allclose(_height(found[reached], centre, shape), levels[reached], rtol=1e-9)
    moved, normal = (points - found)[reached], ((found - centre) @ shape)[reached]
    nu = np.sum(moved * normal, axis=1) / np.sum(normal**2, axis=1)
    assert (nu > 0).all()
    np.testing.assert_allclose(moved, nu[:, None] * normal, rtol=0, atol=1e-8 * np.abs(moved).max())


@pytest.mark.parametrize("dim", [1, 3])
def test_derivative_in_everything(dim):
    rng = np.random.default_rng(10 + dim)
    given = (rng.normal(size=dim) + 3, rng.normal(size=dim), spd(dim, 6, 0.5, 2.0), np.array(0.4))
    towards = [rng.normal(size=np.shape(part)) for part in given]
    towards[2] = towards[2] + towards[2].T
    _, slope = jax.jit(lambda a, b: jax.jvp(project_on_ellipsoid, a, b))(given, tuple(towards))
    step, project = 1e-6, jax.jit(project_on_ellipsoid)
    ahead, behind = (project(*(a + sign * step * b for a, b in zip(given, towards, strict=True))) for sign in (1, -1))
    np.testing.assert_allclose(slope, (np.asarray(ahead) - np.asarray(behind)) / (2 * step), rtol=1e-6, atol=1e-8)
    assert jnp.abs(slope).max() > 0.1
