"""LAI: a plan to the horizon through contexts that stay where they are, and the moving average long before it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import Start
from ecl2o.planning.optimal_path import find_optimal_path
from matrices import spd

HORIZON = 7


PROBLEMS = {
    1: ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(10.0, 1)),
    3: ec.Problem(ec.Quadratic(spd(3, 1, 0.5, 5.0)), ec.Mahalanobis(spd(3, 2, 0.3, 4.0))),
}


def _instance(dim, horizon=HORIZON, seed=0):
    rng = np.random.default_rng(seed)
    return ec.Instance(rng.normal(size=dim), rng.normal(size=(horizon, dim)))


@pytest.mark.parametrize("dim", [1, 3])
def test_is_receding_horizon_control_to_the_end_with_persistence(dim):
    problem, instance = PROBLEMS[dim], _instance(dim)
    actions, previous = ec.rollout(ec.LAI(), problem, instance).actions, instance.x0

    @jax.jit
    def first_of_plan(previous, context, steps):
        """Steps after the end are uncoupled by a movement weight of zero."""
        weights = jnp.where(jnp.arange(HORIZON) < steps, 1.0, 0.0)
        return find_optimal_path(problem, previous, jnp.broadcast_to(context, (HORIZON, dim)), weights).actions[0]

    for t in range(HORIZON):
        previous = first_of_plan(previous, instance.contexts[t], HORIZON - t)
        np.testing.assert_allclose(actions[t], previous, atol=1e-12)


def test_is_the_moving_average_long_before_the_horizon():
    instance = _instance(1, horizon=80)
    actions = ec.rollout(ec.LAI(), PROBLEMS[1], instance).actions
    robd = ec.rollout(ec.ROBD(), PROBLEMS[1], instance).actions
    np.testing.assert_allclose(actions[:30], robd[:30], atol=1e-12)  # r^(2 * 50) = 2e-14
    assert float(jnp.abs(actions[-3:] - robd[-3:]).max()) > 1e-2
    matrix = PROBLEMS[3]
    table = ec.LAI().init(matrix, Start(jnp.zeros(3), jnp.zeros((0, 3)), 200))
    C, A, Q = table[0], matrix.hitting.A, matrix.Q  # the fixed point of the recursion
    np.testing.assert_allclose((A + 4 * Q - 2 * Q @ C) @ C, 2 * Q, atol=1e-12)
    assert 0 < float(jnp.abs(jnp.linalg.eigvals(C)).max()) < 1


def test_no_other_expert_is_cheaper_on_average_when_the_minimiser_is_a_martingale():
    rng = np.random.default_rng(4)
    instances = ec.Instance(np.zeros((4000, 1)), np.cumsum(rng.normal(size=(4000, 12, 1)), axis=1))

    def mean_cost(agent):
        return jax.jit(jax.vmap(lambda s: ec.rollout(agent, PROBLEMS[1], s).cost))(instances)

    lai = mean_cost(ec.LAI())
    for other in (ec.ROBD(), ec.Greedy(), ec.HittingMinimizer(), ec.OBD()):
        gain = np.asarray(mean_cost(other) - lai)
        assert gain.mean() > 4 * gain.std() / np.sqrt(4000), type(other).__name__


def test_what_it_needs_is_said():
    quadratic, start = PROBLEMS[1], Start(jnp.zeros(1), jnp.zeros((0, 1)), 5)
    with pytest.raises(ec.NotApplicableError, match="horizon"):
        ec.LAI().init(quadratic, Start(jnp.zeros(1), jnp.zeros((0, 1)), None))
    with pytest.raises(ec.NotApplicableError, match="Box"):
        ec.LAI().init(ec.Problem(quadratic.hitting, quadratic.switching, ec.Box(-1.0, 1.0)), start)
    for hitting in (ec.CurvedTracking(), ec.ConvexCost(lambda x, y: jnp.sum((x - y) ** 2), 2.0)):
        with pytest.raises(ec.NotApplicableError, match=type(hitting).__name__):
            ec.LAI().init(ec.Problem(hitting, quadratic.switching), start)
