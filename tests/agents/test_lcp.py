"""Movement billed by distance: the exact oracle on a line, LCP's three competitive ratio, and where it is only a heuristic."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ecl2o as ec
from ecl2o.agents import Start
from ecl2o.planning.linear_switching import prefix_bounds

HORIZON = 8


def _log_cosh(x, y):
    return jnp.sum(jnp.logaddexp(2 * (x - y), -2 * (x - y)) - jnp.log(2.0)) + 0.05 * jnp.sum((x - y) ** 2)


def _curved(rate, actions=None):
    return ec.Problem(ec.CurvedTracking(1e-3), ec.LinearSwitching(rate), actions or ec.Everywhere())


def _hard_instances(count, seed):
    """Centres at -1, 0 or 1 or anywhere, curvatures over five decades: rests, pulls and jumps."""
    rng = np.random.default_rng(seed)
    centres = np.where(
        rng.random((count, 1, 1)) < 0.5, rng.integers(-1, 2, (count, HORIZON, 1)), rng.normal(size=(count, HORIZON, 1))
    )
    curvatures = 10 ** rng.uniform(-3, 2, (count, HORIZON, 1))
    return ec.Instance(
        rng.normal(size=(count, 1)) * (rng.random((count, 1)) < 0.7), np.concatenate([centres, curvatures], 2)
    )


@jax.jit
def _both(rate, instance):
    """LCP and the oracle, for any rate and instance: one compilation."""
    problem = _curved(rate)
    return ec.rollout(ec.LCP(), problem, instance), ec.oracle(problem, instance)


def _referee(hitting, rate, x0, lower=-np.inf, upper=np.inf):
    x = cp.Variable(HORIZON)
    moves = cp.hstack([x[0] - x0, cp.diff(x)])
    bounds = [x >= lower] * bool(np.isfinite(lower)) + [x <= upper] * bool(np.isfinite(upper))
    problem = cp.Problem(cp.Minimize(hitting(x) + rate * cp.norm1(moves)), bounds)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return problem.value, x.value


def test_oracle_against_a_quadratic_program():
    instances = _hard_instances(12, 1)
    _, best = jax.vmap(_both, (None, 0))(jnp.asarray(0.4), instances)
    for i in range(12):
        v, k = np.asarray(instances.contexts[i]).T
        cost, x = _referee(lambda x, v=v, k=k: 0.5 * k @ cp.square(x - v), 0.4, float(instances.x0[i, 0]))
        np.testing.assert_allclose(best.cost[i], cost, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(best.actions[i, :, 0], x, atol=2e-3)  # curvatures of 1e-3: flat


def test_oracle_in_a_box_and_of_a_general_cost():
    rng = np.random.default_rng(2)
    problem = ec.Problem(ec.ConvexCost(_log_cosh, 0.1), ec.LinearSwitching(0.6), ec.Box(-0.5, 0.7))
    instances = ec.Instance(rng.uniform(-0.5, 0.7, (6, 1)), rng.normal(size=(6, HORIZON, 1)))
    best = jax.jit(jax.vmap(lambda s: ec.oracle(problem, s)))(instances)
    assert bool(best.converged.all())
    for i in range(6):
        y = np.asarray(instances.contexts[i, :, 0])

        def hitting(x, y=y):
            both = cp.vstack([2 * (x - y), -2 * (x - y)])
            return cp.sum(cp.log_sum_exp(both, axis=0)) - HORIZON * np.log(2) + 0.05 * cp.sum_squares(x - y)

        cost, x = _referee(hitting, 0.6, float(instances.x0[i, 0]), -0.5, 0.7)
        np.testing.assert_allclose(best.cost[i], cost, rtol=1e-6)
        np.testing.assert_allclose(best.actions[i, :, 0], x, atol=1e-4)


def test_three_competitive_and_sandwiched_on_hard_instances():
    count = 2000
    instances = _hard_instances(count, 3)
    rates = jnp.asarray(10 ** np.random.default_rng(4).uniform(-2, 1, count))
    run, best = jax.vmap(_both)(rates, instances)
    assert bool((run.cost <= 3 * best.cost * (1 + 1e-9) + 1e-12).all())
    assert float((run.cost / best.cost).max()) > 1.5
    lower, upper = run.info.details["lower"], run.info.details["upper"]
    assert bool((lower <= best.actions + 1e-9).all())
    assert bool((best.actions <= upper + 1e-9).all())
    before = jnp.concatenate([instances.x0[:, None], run.actions[:, :-1]], axis=1)
    np.testing.assert_array_equal(run.actions, jnp.clip(before, lower, upper))


finite = st.floats(-10, 10)


@given(
    rate=st.floats(1e-2, 1e2),
    x0=finite,
    contexts=st.lists(st.tuples(finite, st.floats(1e-3, 1e3)), min_size=HORIZON, max_size=HORIZON),
)
def test_three_competitive_on_anything(rate, x0, contexts):
    run, best = _both(jnp.asarray(rate), ec.Instance([x0], contexts))
    assert float(run.cost) <= 3 * float(best.cost) * (1 + 1e-8) + 1e-9


def _pull(x, y):
    """A pull of y[1] toward y[0] that does not weaken on the way, made smooth and just strongly convex."""
    away = x - y[0]
    return jnp.sum(y[1] * (jnp.sqrt(away**2 + 1e-8) - 1e-4) + 5e-7 * away**2)


def test_the_ratio_of_three_is_nearly_attained():
    """A steady pull to 1: LCP gives in when it has paid twice the move, and moves. Who knows moves at once."""
    horizon = 60
    problem = ec.Problem(ec.ConvexCost(_pull, 1e-6), ec.LinearSwitching(1.0))
    instance = ec.Instance([0.0], np.broadcast_to([1.0, 2 / (horizon - 0.5)], (horizon, 2)))
    run, best = ec.rollout(ec.LCP(), problem, instance), ec.oracle(problem, instance)
    np.testing.assert_allclose(best.cost, 1.0, atol=1e-3)
    np.testing.assert_allclose(run.actions[-2:, 0], [0.0, 1.0], atol=2e-3)
    assert 2.95 < float(run.cost / best.cost) <= 3.0


def test_prefix_bounds_charge_one_direction_only():
    """Their definition (Lin et al. 2011): last actions of prefix optima where only increases, or only decreases, cost 2a."""
    instances, rate = _hard_instances(4, 5), 0.3
    problem = _curved(rate)
    for i in range(4):
        x0, contexts = instances.x0[i], instances.contexts[i]
        lower, upper = prefix_bounds(problem, x0, contexts, jnp.asarray(HORIZON - 1))
        v, k = np.asarray(contexts).T
        for found, direction in ((lower, 1.0), (upper, -1.0)):
            x = cp.Variable(HORIZON)
            moves = cp.hstack([x[0] - float(x0[0]), cp.diff(x)])
            charge = 2 * rate * cp.sum(cp.pos(direction * moves))
            cp.Problem(cp.Minimize(0.5 * k @ cp.square(x - v) + charge)).solve(solver=cp.CLARABEL)
            np.testing.assert_allclose(found[0], x.value[-1], atol=1e-3)


def test_the_oracle_is_differentiable():
    rng = np.random.default_rng(6)  # nothing at a kink
    instance = ec.Instance(
        rng.normal(size=1), np.stack([rng.normal(size=HORIZON), rng.uniform(0.1, 3, HORIZON)], axis=1)
    )

    evaluate = jax.jit(jax.value_and_grad(lambda rate, s: ec.oracle(_curved(rate), s).cost, argnums=(0, 1)))

    def cost(rate, instance):
        return evaluate(jnp.asarray(rate), instance)[0]

    slope = evaluate(jnp.asarray(0.4), instance)[1]
    h, one = 1e-6, jnp.ones(1)
    by_rate = (cost(0.4 + h, instance) - cost(0.4 - h, instance)) / (2 * h)
    np.testing.assert_allclose(slope[0], by_rate, rtol=1e-5, atol=1e-7)
    ahead, behind = (cost(0.4, ec.Instance(instance.x0 + s * one, instance.contexts)) for s in (h, -h))
    np.testing.assert_allclose(slope[1].x0[0], (ahead - behind) / (2 * h), rtol=1e-5, atol=1e-7)


def test_with_squared_movement_the_optimum_leaves_the_bounds():
    """Why it is a heuristic there: from 0 through (0, 1000, ...) both first bounds are 0, but who knows starts early."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(10.0, 1))
    instance = ec.Instance([0.0], [[0.0], [1000.0], [1000.0], [1000.0]])
    run, best = ec.rollout(ec.LCP(heuristic=True), problem, instance), ec.oracle(problem, instance)
    details = run.info.details
    np.testing.assert_allclose([details["lower"][0, 0], details["upper"][0, 0]], 0.0, atol=1e-9)
    assert float(best.actions[0, 0]) > 10.0
    # second step, increases charged: 21 x_1 = 10 x_2 and 11 x_2 = 1000 + 10 x_1; only decreases charged: free to go
    np.testing.assert_allclose(details["lower"][1, 0], 1000 / (11 - 100 / 21), atol=1e-6)
    np.testing.assert_allclose(details["upper"][1, 0], 1000.0, atol=1e-6)
    assert bool(run.converged.all())


def test_what_it_needs_is_said():
    squared = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(10.0, 1))
    linear = ec.Problem(ec.SquaredTracking(), ec.LinearSwitching(1.0))
    start, history = Start(jnp.zeros(1), jnp.zeros((0, 1)), 5), jnp.zeros((0, 1))
    with pytest.raises(ec.NotApplicableError, match="heuristic=True"):
        ec.LCP().init(squared, start)
    with pytest.raises(ec.NotApplicableError, match="horizon"):
        ec.LCP().init(linear, Start(jnp.zeros(1), history, None))
    with pytest.raises(ValueError, match="dimension 2"):
        ec.LCP().init(linear, Start(jnp.zeros(2), jnp.zeros((0, 2)), 5))
    with pytest.raises(ValueError, match="rate must be positive, got 0"):
        ec.LinearSwitching(0.0)
