"""OBD, Greedy OBD and ABCS: the balance itself, closed forms, and identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ecl2o as ec
from ecl2o.agents import Start
from ecl2o.agents.obd import balanced_point
from ecl2o.theory import decay_root
from matrices import spd

COUNT, HORIZON = 40, 8


def _bowl(x, y):
    return jnp.sum(jnp.cosh(x - y) - 1) + 0.25 * jnp.sum((x - y) ** 2) + 0.02


LINE = ec.Problem(ec.SquaredTracking(weight=2.0), ec.Mahalanobis.isotropic(alpha=7.0, dim=1))
SPACE = ec.Problem(ec.Quadratic(spd(3, 1, 0.5, 5.0)), ec.Mahalanobis(spd(3, 2, 0.3, 4.0)))
BOXED = ec.Problem(SPACE.hitting, SPACE.switching, ec.Box(-0.5, 0.8))
CONVEX = ec.Problem(ec.ConvexCost(_bowl, strong_convexity=1.5), ec.Mahalanobis(spd(2, 3, 0.3, 4.0)), ec.Box(-0.5, 0.8))
PROBLEMS = {
    "line": (LINE, 1),
    "space": (SPACE, 3),
    "boxed": (BOXED, 3),
    "convex, boxed": (CONVEX, 2),
}


def _draws(dim, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.uniform(-0.5, 0.8, size=(COUNT, dim)),
        rng.normal(size=(COUNT, dim)) * 2,
        rng.uniform(0.05, 5, size=COUNT),
    )


def _minimizer(problem, context, previous):
    return ec.rollout(ec.HittingMinimizer(), problem, ec.Instance(previous, context[None])).actions[0]


def _instances(dim, seed, count=COUNT):
    rng = np.random.default_rng(seed)
    return ec.Instance(rng.uniform(-0.5, 0.8, size=(count, dim)), rng.normal(size=(count, HORIZON, dim)))


def _actions(agent, problem, instances):
    return jax.jit(jax.vmap(lambda s: ec.rollout(agent, problem, s).actions))(instances)


@pytest.mark.parametrize("name", PROBLEMS)
def test_movement_balances_the_hitting_cost(name):
    problem, dim = PROBLEMS[name]

    def one(previous, context, gamma):
        x, converged = balanced_point(problem, gamma, context, previous)
        v = _minimizer(problem, context, previous)
        gap = problem.switching(x, previous) - gamma * problem.hitting(x, context)
        spare = gamma * problem.hitting(v, context) - problem.switching(v, previous)
        return gap, spare, jnp.abs(x - v).max(), converged

    gap, spare, to_minimizer, converged = jax.device_get(jax.jit(jax.vmap(one))(*_draws(dim)))
    assert bool(converged.all())
    arrives = spare >= 0
    assert (np.abs(gap[~arrives]) < 1e-8).all()
    assert (to_minimizer[arrives] == 0).all()
    assert (~arrives).sum() > 5
    assert arrives.any() == (name not in ("line", "space"))  # there f(v) > 0 happens


@pytest.mark.parametrize("name", ["space", "boxed"])
def test_is_the_projection_on_its_level_set(name):
    """No point that is as good is nearer: checked along random directions around the balanced point."""
    problem, dim = PROBLEMS[name]
    directions = jnp.asarray(np.random.default_rng(5).normal(size=(200, dim))) * jnp.logspace(-4, 0, 200)[:, None]

    def one(previous, context, gamma):
        x, _ = balanced_point(problem, gamma, context, previous)
        others = jax.vmap(problem.actions.project)(x + directions)
        as_good = jax.vmap(problem.hitting, (0, None))(others, context) <= problem.hitting(x, context)
        nearer = jax.vmap(problem.switching, (0, None))(others, previous) < problem.switching(x, previous) - 1e-9
        return (as_good & nearer).sum(), as_good.sum()

    bad, tried = jax.jit(jax.vmap(one))(*_draws(dim, 1))
    assert int(bad.sum()) == 0
    assert int(tried.sum()) > 100


@given(
    m=st.floats(1e-3, 1e3),
    beta=st.floats(1e-3, 1e3),
    gamma=st.floats(1e-3, 1e3),
    previous=st.floats(-10, 10),
    y=st.floats(-10, 10),
)
def test_step_toward_the_minimiser_on_a_line(m, beta, gamma, previous, y):
    problem = ec.Problem(ec.SquaredTracking(m), ec.Mahalanobis.isotropic(beta, 1))
    run = ec.rollout(ec.OBD(gamma), problem, ec.Instance([previous], [[y]]))
    step = np.sqrt(gamma * m) / (np.sqrt(gamma * m) + np.sqrt(beta))
    np.testing.assert_allclose(run.actions[0, 0], previous + step * (y - previous), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(run.switching, gamma * run.hitting, rtol=1e-7, atol=1e-12)


def test_closed_form_of_isotropic_costs_in_space_and_general_path_agree():
    dim, gamma, m, beta = 3, 0.7, 2.0, 5.0
    problem = ec.Problem(ec.SquaredTracking(m), ec.Mahalanobis.isotropic(beta, dim))
    instances = _instances(dim, 3)
    step, x = np.sqrt(gamma * m) / (np.sqrt(gamma * m) + np.sqrt(beta)), instances.x0
    actions = _actions(ec.OBD(gamma), problem, instances)
    for t in range(HORIZON):
        x = x + step * (instances.contexts[:, t] - x)
        np.testing.assert_allclose(actions[:, t], x, atol=1e-10)


def test_bounds_clip_on_a_line():
    """The closed form inside a box, against the general path through a function that the library knows nothing about."""
    box = ec.Box(-0.3, 0.4)
    closed = ec.Problem(LINE.hitting, LINE.switching, box)
    general = ec.Problem(ec.ConvexCost(lambda x, y: jnp.sum((x - y) ** 2), 2.0), LINE.switching, box)
    instances = ec.Instance(np.clip(_instances(1, 4).x0, -0.3, 0.4), _instances(1, 4).contexts)
    actions = _actions(ec.OBD(0.8), closed, instances)
    np.testing.assert_allclose(actions, _actions(ec.OBD(0.8), general, instances), atol=1e-9)
    assert float((jnp.abs(actions - 0.05) == 0.35).mean()) > 0.1


@pytest.mark.parametrize(("m", "beta"), [(1.0, 10.0), (3.0, 0.5)])
def test_is_the_moving_average_for_the_right_gamma(m, beta):
    r = decay_root(m, beta)
    problem = ec.Problem(ec.SquaredTracking(m), ec.Mahalanobis.isotropic(beta, 1))
    agent, instances = ec.OBD(beta / m * ((1 - r) / r) ** 2), _instances(1, 6)
    np.testing.assert_allclose(_actions(agent, problem, instances), _actions(ec.ROBD(), problem, instances), atol=1e-12)


@pytest.mark.parametrize("name", ["line", "space"])
def test_greedy_obd_lies_between_obd_and_the_minimiser(name):
    problem, dim = PROBLEMS[name]
    instance = jax.tree.map(lambda leaf: leaf[0], _instances(dim, 7))
    whole = jnp.sqrt(problem.beta / problem.m)
    obd, minimizer = (ec.rollout(agent, problem, instance).actions for agent in (ec.OBD(0.6), ec.HittingMinimizer()))
    mus = whole * jnp.array([0.0, 0.25, 1.0, 3.0])
    none, quarter, exact, more = jax.vmap(lambda mu: ec.rollout(ec.GreedyOBD(0.6, mu), problem, instance).actions)(mus)
    np.testing.assert_allclose(none, obd, atol=1e-12)
    np.testing.assert_allclose(quarter[0], 0.25 * minimizer[0] + 0.75 * obd[0], atol=1e-12)
    np.testing.assert_allclose(exact, minimizer, atol=1e-10)
    np.testing.assert_array_equal(more, minimizer)


@pytest.mark.parametrize("name", ["line", "space"])
def test_abcs_with_one_rate_is_obd(name):
    problem, dim = PROBLEMS[name]
    instances = _instances(dim, 8, count=6)
    advice = ec.advisors.Fixed(np.random.default_rng(1).normal(size=(HORIZON, dim)) * 3)
    abcs = _actions(ec.ABCS(advice, slow=0.9, fast=0.9), problem, instances)
    np.testing.assert_allclose(abcs, _actions(ec.OBD(0.9), problem, instances), atol=1e-10)


def test_abcs_is_as_near_to_the_advice_as_the_two_rates_allow():
    slow, fast = 0.4, 3.0
    rng = np.random.default_rng(2)
    instances = _instances(1, 9)
    for scale in (0.1, 1.0, 30.0):
        advice = rng.normal(size=(HORIZON, 1)) * scale
        agent = ec.ABCS(ec.advisors.Fixed(advice), slow, fast)
        run = jax.jit(jax.vmap(lambda s, a=agent: ec.rollout(a, LINE, s)))(instances)
        assert bool((slow * run.hitting <= run.switching + 1e-12).all())
        assert bool((run.switching <= fast * run.hitting + 1e-12).all())
        before = jnp.concatenate([instances.x0[:, None], run.actions[:, :-1]], axis=1)
        ends = [
            before + s * (instances.contexts - before)
            for s in (np.sqrt(g * 2.0) / (np.sqrt(g * 2.0) + np.sqrt(7.0)) for g in (slow, fast))
        ]
        nearest = jnp.clip(advice, jnp.minimum(*ends), jnp.maximum(*ends))
        np.testing.assert_allclose(run.actions, nearest, atol=1e-12)


def test_abcs_in_space_is_the_nearest_point_of_the_segment_in_the_norm_of_the_movement():
    previous, context, _ = (jnp.asarray(a) for a in _draws(3, 4))
    advice = jnp.asarray(np.random.default_rng(8).normal(size=(COUNT, 3)))

    def one(previous, context, advice):
        agent = ec.ABCS(ec.advisors.Fixed(advice[None]), slow=0.3, fast=2.5)
        action = ec.rollout(agent, SPACE, ec.Instance(previous, context[None])).actions[0]
        ends = [balanced_point(SPACE, jnp.asarray(g), context, previous)[0] for g in (0.3, 2.5)]
        shares = jnp.linspace(0, 1, 2001)[:, None]
        grid = ends[0] + shares * (ends[1] - ends[0])
        distance = jax.vmap(SPACE.switching, (0, None))(grid, advice)
        return SPACE.switching(action, advice) - distance.min()

    assert bool((jax.jit(jax.vmap(one))(previous, context, advice) <= 1e-12).all())


def test_gradients_of_the_general_path():
    """Through the bisection, against central differences, in gamma, context and previous action."""

    def score(gamma, context, previous):
        return jnp.sum(jnp.sin(balanced_point(SPACE, gamma, context, previous)[0]))

    slope = jax.jit(jax.grad(score, argnums=(0, 1, 2)))
    point = (jnp.asarray(0.8), jnp.array([1.0, -0.7, 0.4]), jnp.array([0.2, 0.3, -0.1]))
    step, value = 1e-5, jax.jit(score)
    for i, found in enumerate(slope(*point)):
        direction = jnp.ones_like(point[i])
        ahead, behind = (value(*point[:i], point[i] + s * direction, *point[i + 1 :]) for s in (step, -step))
        np.testing.assert_allclose(jnp.sum(found), (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-9)


def test_bad_parameters_are_refused():
    for make, message in [
        (lambda: ec.OBD(gamma=0.0), "gamma must be positive"),
        (lambda: ec.GreedyOBD(mu=-1.0), "mu must not be negative"),
        (lambda: ec.ABCS(ec.Greedy(), slow=2.0, fast=1.0), "slow must not exceed fast"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
    linear = ec.Problem(ec.SquaredTracking(), ec.LinearSwitching(1.0))
    for agent in (ec.OBD(), ec.GreedyOBD(), ec.ABCS(ec.HittingMinimizer()), ec.Greedy()):
        with pytest.raises(ec.NotApplicableError, match="Mahalanobis"):
            agent.init(linear, Start(jnp.zeros(1), jnp.zeros((0, 1)), 3))
