"""Where advice lands on the way from the safest action: lines and spheres, forms in NumPy, rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecl2o.agents.guards.level_sets import ConvexSet, Form, Origin, QuadraticSet, pull_inside

ONE, TRUE = jnp.ones(()), jnp.ones((), bool)


def _half_square(known, away):
    context, fallback = known
    return 0.5 * jnp.sum((fallback + away - context) ** 2)


def ball(kind, context, fallback, level):
    """{x: 1/2 |x - context|^2 <= level}, less the fallback."""
    if kind == "convex":
        return ConvexSet(_half_square, (context, fallback), level, jnp.zeros_like(fallback), ONE)
    return QuadraticSet((Form(jnp.eye(len(fallback)), context - fallback),), level, TRUE)


@pytest.mark.parametrize("kind", ["convex", "quadratic"])
def test_the_whole_allowed_part_of_a_segment_is_searched(kind):
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

    @jax.jit
    @jax.vmap
    def moved(context, fallback, way, level):
        return fallback + pull_inside(ball(kind, context, fallback, level), jnp.zeros(3), way, None).action

    found = moved(*map(jnp.asarray, (context, fallback, way, 0.5 * radius**2)))
    along, from_centre = way / np.linalg.norm(way, axis=1)[:, None], fallback - context
    half = np.sum(along * from_centre, axis=1)
    outside = np.maximum(radius**2 - np.sum(from_centre**2, axis=1), 0.0)
    length = np.maximum(-half + np.sqrt(half**2 + outside), 0.0)
    np.testing.assert_allclose(found, fallback + length[:, None] * along, atol=1e-5)


@pytest.mark.parametrize("kind", ["convex", "quadratic"])
def test_rounding_overdraws_no_more_than_it_says(kind):
    """Far from the origin an allowed set is a handful of floating-point numbers: an ulp is a millionth of its radius."""
    rng = np.random.default_rng(1)
    n, far, radius = 1000, 1e8, 1e-2
    context = far + rng.uniform(-1, 1, size=(n, 2))
    fallback = context + 0.5 * radius * rng.uniform(-1, 1, size=(n, 2))
    advice = context + rng.normal(size=(n, 2))
    level = jnp.asarray(0.5 * radius**2)

    @jax.jit
    @jax.vmap
    def used(context, fallback, advice):
        origin = Origin.at(fallback)
        allowed = ball(kind, context, fallback, level)
        pulled = pull_inside(allowed, jnp.zeros(2), origin.away(advice), origin.rounding)
        return 0.5 * jnp.sum((origin.back(pulled.action) - context) ** 2) / level

    shares = used(*map(jnp.asarray, (context, fallback, advice)))
    assert float(shares.max()) <= 1 + 4e-11
    assert float(shares.min()) >= 0.9999  # and gives away no more than it must


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("dim", [1, 3])
def test_advice_lands_where_a_sum_of_forms_reaches_its_level(several, dim):
    """From the lowest point and from another one; of several sets the first that ends counts. The referee is NumPy."""
    rng, runs, sets = np.random.default_rng(dim), 200, 3
    roots = rng.normal(size=(runs, sets, 3, dim, dim))
    matrices = np.einsum("...ij,...kj->...ik", roots, roots) + 0.1 * np.eye(dim)
    centres = 0.3 * rng.normal(size=(runs, sets, 3, dim))
    safest = 0.1 * rng.normal(size=(runs, dim))
    advice = rng.normal(size=(runs, dim)) * 10.0 ** rng.uniform(-2, 6, size=(runs, 1))

    def height(x):  # by run and set
        away = x[:, None, None] - centres
        return 0.5 * np.einsum("rsfi,rsfij,rsfj->rs", away, matrices, away)

    levels = height(safest) * 10.0 ** rng.uniform(0.01, 1, size=(runs, sets))
    lowest = np.linalg.solve(
        matrices.sum(2)[:, 0], np.einsum("rfij,rfj->ri", matrices[:, 0], centres[:, 0])[..., None]
    )[..., 0]

    @jax.jit
    @jax.vmap
    def pull(matrices, centres, levels, safest, advice):
        def one(matrices, centres, level):
            return QuadraticSet(tuple(map(Form, matrices, centres)), level, TRUE)

        if several:
            return pull_inside(jax.vmap(one)(matrices, centres, levels), safest, advice, None, several=True)
        alone = one(matrices[0], centres[0], levels[0])
        from_lowest = pull_inside(alone, alone.lowest(), advice, None, is_lowest=True)
        return pull_inside(alone, safest, advice, None), from_lowest, alone.lowest()

    given = tuple(map(jnp.asarray, (matrices, centres, levels, safest, advice)))
    cases = [(jax.device_get(pull(*given)), safest)]
    if not several:
        (here, from_lowest, low), _ = cases[0]
        np.testing.assert_allclose(low, lowest, atol=1e-12)
        cases = [(here, safest), (from_lowest, lowest)]
    counted = slice(None) if several else slice(1)
    for pulled, start in cases:
        active, way = np.any(pulled.active.reshape(runs, -1), axis=1), advice - start
        np.testing.assert_array_equal(pulled.active.reshape(runs, -1), (height(advice) > levels)[:, counted])
        np.testing.assert_array_equal(pulled.action[~active], advice[~active])
        assert 0.3 < active.mean() < 0.95
        share = np.sum((pulled.action - start) * way, axis=1) / np.sum(way**2, axis=1)
        np.testing.assert_allclose(pulled.action, start + share[:, None] * way, atol=1e-12)
        used = (height(pulled.action) / levels)[:, counted].max(axis=1)
        np.testing.assert_allclose(used[active], 1.0, rtol=1e-9)
        beyond = (height(start + 1.001 * share[:, None] * way) / levels)[:, counted].max(axis=1)
        assert (beyond[active] > 1).all()


def test_advice_that_is_no_number_becomes_the_safest_action():
    allowed = ball("quadratic", jnp.ones(2), jnp.zeros(2), ONE)
    for broken in (np.nan, np.inf, 1e200):
        pulled = pull_inside(allowed, jnp.full(2, 0.5), jnp.array([broken, 0.5]), None)
        np.testing.assert_array_equal(pulled.action, [0.5, 0.5])
        assert bool(pulled.active)
