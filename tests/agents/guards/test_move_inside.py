"""Where advice lands on the way from the fallback, against the intersection of a line and a sphere."""

import jax
import jax.numpy as jnp
import numpy as np
from ecl2o.agents.guards.guarded import Allowance, move_inside

import ecl2o as ec

_TRACKING = ec.ConvexCost(lambda x, y: 0.5 * jnp.sum((x - y) ** 2), strong_convexity=1.0)
PROBLEM = ec.Problem(_TRACKING, ec.Mahalanobis.isotropic(alpha=2.0, dim=3))


def test_the_whole_allowed_part_of_a_segment_is_searched():
    """However far the advice, in whatever direction, and even if the fallback uses up almost all of the budget.

    With no weight on movement the allowed set is a ball around the context. A segment can cross all of it, from a fallback on
    its surface to the opposite one, which is as far as a cost of this curvature allows.
    """
    rng = np.random.default_rng(0)
    n = 300
    context, fallback = rng.normal(size=(2, n, 3))
    through_the_middle = rng.uniform(size=(n, 1)) < 0.3
    way = np.where(through_the_middle, context - fallback, rng.normal(size=(n, 3)))
    way *= 10.0 ** rng.uniform(1, 6, size=(n, 1))
    radius = np.linalg.norm(fallback - context, axis=1) * rng.choice([1.001, 1.1, 3.0], size=n)
    zero = jnp.zeros(())

    @jax.jit
    @jax.vmap
    def moved(context, fallback, way, budget):
        return move_inside(PROBLEM, Allowance(context, fallback, fallback, zero, zero, budget), fallback + way)[0]

    found = moved(*map(jnp.asarray, (context, fallback, way, 0.5 * radius**2)))
    along, from_centre = way / np.linalg.norm(way, axis=1)[:, None], fallback - context
    half = np.sum(along * from_centre, axis=1)
    outside = np.maximum(radius**2 - np.sum(from_centre**2, axis=1), 0.0)
    length = np.maximum(-half + np.sqrt(half**2 + outside), 0.0)
    np.testing.assert_allclose(found, fallback + length[:, None] * along, atol=1e-5)


def test_rounding_overdraws_no_more_than_it_says():
    """Far from the origin an allowed set is a handful of floating-point numbers: an ulp is a millionth of its radius."""
    rng = np.random.default_rng(1)
    n, far, radius = 1000, 1e8, 1e-2
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=2))
    context = far + rng.uniform(-1, 1, size=(n, 2))
    fallback = context + 0.5 * radius * rng.uniform(-1, 1, size=(n, 2))
    advice = context + rng.normal(size=(n, 2))
    zero, budget = jnp.zeros(()), jnp.asarray(0.5 * radius**2)

    @jax.jit
    @jax.vmap
    def used(context, fallback, advice):
        allowance = Allowance(context, fallback, fallback, zero, zero, budget)
        return allowance.weighted_cost(problem, move_inside(problem, allowance, advice)[0]) / budget

    shares = used(*map(jnp.asarray, (context, fallback, advice)))
    assert float(shares.max()) <= 1 + 4e-11
    assert float(shares.min()) >= 0.9999  # and gives away no more than it must
