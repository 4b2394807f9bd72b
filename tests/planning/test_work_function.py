"""The work function: its optimum is the oracle's at every prefix, and its centre is where that path ends."""

import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.planning.work_function import WorkFunction, hitting_form
from matrices import spd

MOVEMENT = ec.Mahalanobis(spd(2, 2, 0.5, 4.0))
PROBLEMS = {
    "constant": (ec.Problem(ec.Quadratic(spd(2, 1, 0.5, 2.0)), MOVEMENT), 2),
    "varying": (ec.Problem(ec.CurvedTracking(0.1, 9.0), MOVEMENT), 3),
}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_every_prefix(kind):
    problem, q = PROBLEMS[kind]
    contexts = jnp.asarray(np.random.default_rng(3).normal(size=(4, q))).at[:, -1].add(3.0)
    x0 = jnp.array([0.3, -0.2])
    work, optimum = WorkFunction.at(x0, 2 * problem.Q), 0.0
    for t, context in enumerate(contexts):
        prefix = work.with_context(*hitting_form(problem, context, 2))
        work, optimum = prefix.moved(2 * problem.Q), optimum + float(prefix.growth)
        best = ec.oracle(problem, ec.Instance(x0, contexts[: t + 1]))
        np.testing.assert_allclose(prefix.centre, best.actions[-1], atol=1e-12)
        assert optimum == pytest.approx(float(best.cost), rel=1e-12)


def test_its_value_away_from_the_centre():
    """W(z): the oracle of the prefix that must end in z, by one more context that weighs much."""
    problem, _ = PROBLEMS["varying"]
    contexts, x0 = jnp.asarray([[0.4, 1.0, 2.0], [-0.3, 0.2, 5.0]]), jnp.zeros(2)
    work = WorkFunction.at(x0, 2 * problem.Q)
    optimum = 0.0
    for context in contexts:
        prefix = work.with_context(*hitting_form(problem, context, 2))
        work, optimum = prefix.moved(2 * problem.Q), optimum + prefix.growth
    z = jnp.array([0.7, -0.9])
    expected = optimum + 0.5 * (z - prefix.centre) @ prefix.P @ (z - prefix.centre)
    free = ec.Problem(ec.CurvedTracking(0.1), MOVEMENT)

    def cost(first):
        hitting, switching = free.costs(x0, jnp.stack([first, z]), contexts)
        return jnp.sum(hitting + switching)

    H = 2 * problem.Q * 2 + 2.0 * jnp.eye(2)  # of the first action: two moves and the first context
    best = jnp.linalg.solve(H, 2 * problem.Q @ (x0 + z) + 2.0 * contexts[0, :2])
    np.testing.assert_allclose(cost(best), expected, rtol=1e-12)
