"""The work function: its optimum is the oracle's at every prefix, and its centre is where that path ends."""

import equinox as eqx
import jax
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.planning.work_function import WorkFunction, quadratic_terms
from matrices import spd

MOVEMENT = ec.Mahalanobis(spd(2, 2, 0.5, 4.0))
PROBLEMS = {
    "constant": (ec.Problem(ec.Quadratic(spd(2, 1, 0.5, 2.0)), MOVEMENT), 2),
    "varying": (ec.Problem(ec.CurvedTracking(0.1, 9.0), MOVEMENT), 3),
}


def _of(problem):
    """(x0 -> the work function before the first context, (it, a context) -> (it with that context, moved on))."""

    def advance(work, context):
        prefix = work.with_context(*quadratic_terms(problem, context, 2))
        return prefix, prefix.after_move(2 * problem.Q)

    return jax.jit(lambda x0: WorkFunction.from_start(x0, 2 * problem.Q)), jax.jit(advance)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_every_prefix(kind):
    problem, q = PROBLEMS[kind]
    contexts = np.random.default_rng(3).normal(size=(4, q))
    contexts[:, -1] += 3.0
    x0 = np.array([0.3, -0.2])
    begin, advance = _of(problem)
    work, optimum = begin(x0), 0.0
    for t, context in enumerate(contexts):
        prefix, work = advance(work, context)
        optimum += float(prefix.growth)
        best = ec.oracle(problem, ec.Instance(x0, contexts[: t + 1]))
        np.testing.assert_allclose(prefix.centre, np.asarray(best.actions)[-1], atol=1e-12)
        assert optimum == pytest.approx(float(best.cost), rel=1e-12)


def test_its_value_away_from_the_centre():
    """W(z): the oracle of the prefix that must end in z, by one more context that weighs much."""
    problem, _ = PROBLEMS["varying"]
    contexts, x0 = np.array([[0.4, 1.0, 2.0], [-0.3, 0.2, 5.0]]), np.zeros(2)
    begin, advance = _of(problem)
    work, optimum = begin(x0), 0.0
    for context in contexts:
        prefix, work = advance(work, context)
        optimum += float(prefix.growth)
    z, Q, prefix = np.array([0.7, -0.9]), np.asarray(problem.Q), jax.device_get(prefix)
    expected = optimum + 0.5 * (z - prefix.centre) @ prefix.P @ (z - prefix.centre)
    free = ec.Problem(ec.CurvedTracking(0.1), MOVEMENT)
    H = 2 * Q * 2 + 2.0 * np.eye(2)  # of the first action: two moves and the first context
    best = np.linalg.solve(H, 2 * Q @ (x0 + z) + 2.0 * contexts[0, :2])
    hitting, switching = eqx.filter_jit(free.costs)(x0, np.stack([best, z]), contexts)
    np.testing.assert_allclose(np.sum(hitting) + np.sum(switching), expected, rtol=1e-12)
