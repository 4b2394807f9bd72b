"""Losses: their gradients are the true ones, their limits are the paper's other losses, and units do not matter."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import ecl2o as ec
from ecl2o.agents import trainable_mask
from ecl2o.learning.losses import fix_scale, get_scale
from matrices import spd

COUNT, HORIZON = 5, 5
RHO_BAR = 0.2


def soft_distance(x, y):
    """Neither quadratic nor separable, strongly convex with m = 1, non-negative."""
    return 0.5 * jnp.sum((x - y) ** 2) + jnp.logaddexp(jnp.sum(x - y), -jnp.sum(x - y)) - jnp.log(2.0)


@functools.cache
def problem_of(cost: str, bounds: str, dim: int) -> ec.Problem:
    hitting = (
        ec.Quadratic(spd(dim, 1, 1.0, 3.0))
        if cost == "quadratic"
        else ec.ConvexCost(soft_distance, 1.0, minimizer=lambda y: y)
    )
    actions = ec.Everywhere() if bounds == "open" else ec.Box(-0.3 * np.ones(dim), 0.3 * np.ones(dim))
    return ec.Problem(hitting, ec.Mahalanobis(spd(dim, 2, 0.5, 2.0)), actions)


def instances_of(dim: int, count: int = COUNT, horizon: int = HORIZON, seed: int = 0) -> ec.Instance:
    rng = np.random.default_rng(seed)
    return ec.Instance(rng.uniform(-0.3, 0.3, (count, dim)), 0.8 * rng.normal(size=(count, horizon, dim)))


@eqx.filter_jit
def oracles_of(problem, instances):
    return jax.vmap(lambda s: ec.oracle(problem, s))(instances)


@eqx.filter_jit
def runs_of(agent, problem, instances):
    return jax.vmap(lambda s: ec.rollout(agent, problem, s))(instances)


def network(kind: str, dim: int, key: int = 0, **scalings):
    if kind == "MLP":
        return ec.advisors.MLP(dim, dim, width=4, depth=2, key=jax.random.key(key), **scalings)
    return ec.advisors.LSTM(dim, dim, width=2, depth=2, key=jax.random.key(key), **scalings)


LOSSES = {
    "calibrated": ec.CalibratedLoss(mu=0.4, rho_bar=RHO_BAR),
    "standalone-prediction": ec.CalibratedLoss(mu=0.7, rho_bar=RHO_BAR, prediction_rollout="standalone"),
    "standalone": ec.StandaloneLoss(kappa=0.3),
    "tail": ec.TailLoss(level=0.5),
}


def slopes(loss, agent, problem, instances, oracles):
    """(gradient by automatic differentiation, gradient by central differences), from one compiled program."""
    weights, frozen = eqx.partition(agent, trainable_mask(agent))
    flat, unflatten = ravel_pytree(weights)
    reach = 1e-5
    moves = reach * np.concatenate([np.zeros((1, flat.size)), np.eye(flat.size), -np.eye(flat.size)])

    def value(flat):
        return loss(eqx.combine(unflatten(flat), frozen), problem, instances, oracles)

    # One after the other: a program for one point is half as long as one for all of them at once.
    evaluate = jax.jit(lambda points: jax.lax.map(jax.value_and_grad(value), points))
    values, gradients = jax.device_get(evaluate(np.asarray(flat) + moves))
    return gradients[0], (values[1 : flat.size + 1] - values[flat.size + 1 :]) / (2 * reach)


# The whole grid; each loss four times.
GRID = [
    pytest.param(loss, kind, cost, bounds, dim, id=f"{name}-{kind}-{cost}-{bounds}-{dim}")
    for k, kind in enumerate(("MLP", "LSTM"))
    for c, cost in enumerate(("quadratic", "convex"))
    for b, bounds in enumerate(("open", "box"))
    for d, dim in enumerate((1, 3))
    for name, loss in [list(LOSSES.items())[2 * ((k + c + d) % 2) + (k + b) % 2]]
]


def far_and_near(dim: int) -> ec.Instance:
    """Contexts that lie beyond the bounds of `problem_of` at some steps and well inside at others."""
    near, far = instances_of(dim, seed=3), np.zeros((COUNT, HORIZON, dim))
    far[:, 1], far[::2, 3] = 6.0, -6.0
    return ec.Instance(near.x0, 0.3 * near.contexts + far)


def test_bounds_are_active_at_some_steps_and_not_at_others():
    agent = ec.MLAROBD(network("LSTM", 1), trust=0.6)
    played = np.abs(runs_of(agent, problem_of("quadratic", "box", 1), far_and_near(1)).actions)
    assert 0.2 < np.mean(played == 0.3) < 0.8


@pytest.mark.parametrize(("loss", "kind", "cost", "bounds", "dim"), GRID)
def test_gradients_are_those_of_the_whole_loss(loss, kind, cost, bounds, dim):
    """Erratum E7: through the calibrator, the network, its memory, both roll-outs and the movement into the next step.

    What the loss takes for oracles is given data, so those of a simpler problem serve.
    """
    problem, instances = problem_of(cost, bounds, dim), far_and_near(dim)
    oracles = oracles_of(problem_of("quadratic", "open", dim), instances)
    agent = ec.MLAROBD(network(kind, dim), trust=0.6)
    by_autodiff, by_differences = slopes(loss, agent, problem, instances, oracles)
    size = np.linalg.norm(by_differences)
    assert size > 1e-4
    assert np.linalg.norm(by_autodiff - by_differences) < 1e-6 * size


def test_the_gradient_has_the_term_that_the_paper_omits():
    """E7: dcost/dW = sum [f'(x_t) + 2Q(x_t - x_{t-1}) - 2Q(x_{t+1} - x_t)]' dx_t/dW; the printed one ends before the minus."""
    problem, instances = problem_of("quadratic", "open", 3), instances_of(3)
    agent = ec.MLAROBD(network("MLP", 3), trust=0.6)
    weights, frozen = eqx.partition(agent, trainable_mask(agent))
    flat, unflatten = ravel_pytree(weights)
    oracles = oracles_of(problem, instances)
    loss = ec.CalibratedLoss(mu=0.0, cost_scale=1.0)

    def actions(flat):
        whole = eqx.combine(unflatten(flat), frozen)
        return jax.vmap(lambda s: ec.rollout(whole, problem, s).actions)(instances)

    ours = gradient(loss, agent, problem, instances, oracles)
    x = np.asarray(runs_of(agent, problem, instances).actions)
    dx = np.asarray(jax.jit(jax.jacfwd(actions))(flat))
    before = np.concatenate([np.asarray(instances.x0)[:, None], x[:, :-1]], axis=1)
    A, Q = np.asarray(problem.hitting.A), np.asarray(problem.Q)
    printed = (x - np.asarray(instances.contexts)) @ A + 2 * (x - before) @ Q
    missing = np.zeros_like(printed)
    missing[:, :-1] = -2 * (x[:, 1:] - x[:, :-1]) @ Q
    paper = np.einsum("ntd,ntdw->w", printed, dx) / COUNT
    true = np.einsum("ntd,ntdw->w", printed + missing, dx) / COUNT
    np.testing.assert_allclose(ours, true, rtol=1e-10, atol=1e-12)
    assert np.linalg.norm(paper - true) > 0.1 * np.linalg.norm(true)


# --- limits ---------------------------------------------------------------------------------------------------------


@eqx.filter_jit
def value_and_gradient(loss, agent, problem, instances, oracles):
    weights, frozen = eqx.partition(agent, trainable_mask(agent))
    value, slope = jax.value_and_grad(lambda w: loss(eqx.combine(w, frozen), problem, instances, oracles))(weights)
    return value, ravel_pytree(slope)[0]


def gradient(*setting):
    return value_and_gradient(*setting)[1]


@eqx.filter_jit
def value_of(loss, agent, problem, instances, oracles):
    return loss(agent, problem, instances, oracles)


@pytest.mark.parametrize("rollout", ["calibrated", "standalone"])
def test_without_trust_and_without_mu_there_is_nothing_to_learn(rollout):
    problem, instances = problem_of("quadratic", "open", 3), instances_of(3)
    agent = ec.MLAROBD(network("LSTM", 3), trust=0.0)
    loss = ec.CalibratedLoss(mu=0.0, prediction_rollout=rollout)
    assert not np.any(gradient(loss, agent, problem, instances, oracles_of(problem, instances)))


def test_with_infinite_trust_the_gradient_is_that_of_the_advisor_alone():
    problem, instances, advisor = problem_of("quadratic", "open", 3), instances_of(3), network("MLP", 3)
    oracles = oracles_of(problem, instances)
    through = gradient(ec.CalibratedLoss(mu=0.0), ec.MLAROBD(advisor, trust=1e9), problem, instances, oracles)
    alone = gradient(ec.StandaloneLoss(kappa=0.0), ec.PureML(advisor), problem, instances, oracles)
    assert np.linalg.norm(through - alone) < 1e-6 * np.linalg.norm(alone)


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rollout", ["calibrated", "standalone"])
def test_calibrated_loss_is_the_papers_formula(rollout):
    """With the advice along the calibrated roll-out, or that of a roll-out of the advisor alone."""
    problem, instances, advisor = problem_of("quadratic", "box", 1), instances_of(1, count=20), network("LSTM", 1)
    oracles, agent = oracles_of(problem, instances), ec.MLAROBD(advisor, trust=0.6)
    played = runs_of(agent, problem, instances)
    advice = played.advice if rollout == "calibrated" else runs_of(ec.PureML(advisor), problem, instances).actions
    rho = np.sum((np.asarray(advice) - np.asarray(oracles.actions)) ** 2, axis=(1, 2)) / np.asarray(oracles.cost)
    rho_bar = float(np.median(rho))  # half of the instances count
    expected = 0.4 * np.maximum(rho - rho_bar, 0).mean() + 0.6 * 100 * np.asarray(played.cost).mean()
    loss = ec.CalibratedLoss(mu=0.4, rho_bar=rho_bar, prediction_rollout=rollout, cost_scale=100.0)
    np.testing.assert_allclose(value_of(loss, agent, problem, instances, oracles), expected, rtol=1e-12)


def test_standalone_loss_is_the_papers_formula():
    problem, instances = problem_of("quadratic", "open", 1), instances_of(1)
    oracles, agent = oracles_of(problem, instances), ec.PureML(network("MLP", 1))
    cost, best = np.asarray(runs_of(agent, problem, instances).cost), np.asarray(oracles.cost)
    for kappa in (0.0, 0.3, 1.0):
        expected = kappa * (cost / best).mean() + (1 - kappa) * cost.mean() / best.mean()
        found = value_of(ec.StandaloneLoss(kappa=kappa), agent, problem, instances, oracles)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_units_do_not_matter(loss):
    """Kilowatts or watts: the same loss and the same gradient, if the network's scalings know the unit."""
    problem, unit = problem_of("quadratic", "open", 1), 1000.0

    def found(unit):
        small, scaling = instances_of(1), ec.advisors.Scaling(0.1 * unit, unit)
        instances = ec.Instance(small.x0 * unit, small.contexts * unit)
        agent = ec.MLAROBD(network("MLP", 1, contexts=scaling, actions=scaling), trust=0.6)
        oracles = oracles_of(problem, instances)
        return value_and_gradient(loss, agent, problem, instances, oracles)

    for one, other in zip(found(1.0), found(unit), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_a_number_as_cost_scale_is_taken_as_it_is():
    problem, instances = problem_of("quadratic", "open", 1), instances_of(1)
    oracles, agent = oracles_of(problem, instances), ec.PureML(network("MLP", 1))
    cost = float(runs_of(agent, problem, instances).cost.mean())
    found = value_of(ec.StandaloneLoss(cost_scale=100), agent, problem, instances, oracles)
    np.testing.assert_allclose(found, 100 * cost, rtol=1e-12)


def test_the_scale_is_fixed_on_the_whole_set_and_not_on_a_batch():
    problem, instances = problem_of("quadratic", "open", 1), instances_of(1)
    oracles, agent = oracles_of(problem, instances), ec.PureML(network("MLP", 1))
    loss = fix_scale(ec.StandaloneLoss(), oracles)
    first, its_oracle = jax.tree.map(lambda leaf: leaf[:1], (instances, oracles))
    cost = float(runs_of(agent, problem, first).cost[0])
    found = value_of(loss, agent, problem, first, its_oracle)
    np.testing.assert_allclose(found, cost / float(oracles.cost.mean()), rtol=1e-12)


def one_that_is_free() -> ec.Instance:
    """Instances of which the third stays where it is."""
    ordinary = instances_of(1)
    x0, contexts = np.asarray(ordinary.x0), np.array(ordinary.contexts)
    contexts[2] = x0[2]
    return ec.Instance(x0, contexts)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_an_instance_whose_optimum_is_free_has_a_finite_loss(loss):
    problem, instances = problem_of("quadratic", "open", 1), one_that_is_free()
    oracles, agent = oracles_of(problem, instances), ec.MLAROBD(network("MLP", 1), trust=0.6)
    assert float(oracles.cost[2]) < 1e-20
    value, slope = value_and_gradient(loss, agent, problem, instances, oracles)
    assert np.isfinite(value)
    assert np.isfinite(slope).all()


def test_the_floor_is_a_millionth_of_the_mean_oracle_cost():
    problem, instances = problem_of("quadratic", "open", 1), one_that_is_free()
    oracles = oracles_of(problem, instances)
    scale = get_scale(ec.TailLoss(), oracles)
    best = np.asarray(oracles.cost)
    expected = np.ones(COUNT) / np.maximum(best, 1e-6 * best.mean())
    np.testing.assert_allclose(scale.ratio(jnp.ones(COUNT), oracles.cost), expected, rtol=1e-12)


# --- the tail -------------------------------------------------------------------------------------------------------


@functools.cache
def tail_setting():
    problem, instances = problem_of("quadratic", "open", 1), instances_of(1, count=20)
    oracles = oracles_of(problem, instances)
    ratios = np.asarray(runs_of(ec.Greedy(), problem, instances).cost / oracles.cost)
    tail = jax.jit(lambda level: ec.TailLoss(level)(ec.Greedy(), problem, instances, oracles))
    return ratios, tail


@given(st.floats(0, 0.999))
def test_tail_loss_is_the_conditional_value_at_risk(level):
    """By the variational formula of Rockafellar and Uryasev: min over c of c + mean (ratio - c)^+ / (1 - level)."""
    ratios, tail = tail_setting()
    over = np.maximum(ratios[:, None] - ratios[None, :], 0).mean(axis=0)
    np.testing.assert_allclose(tail(jnp.asarray(level)), np.min(ratios + over / (1 - level)), rtol=1e-9)


def test_the_ends_of_the_tail_are_the_mean_and_the_worst():
    ratios, tail = tail_setting()
    np.testing.assert_allclose(tail(jnp.asarray(0.0)), ratios.mean(), rtol=1e-12)
    np.testing.assert_allclose(tail(jnp.asarray(0.96)), ratios.max(), rtol=1e-12)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ec.CalibratedLoss(mu=1.5), "mu must .*1.5"),
        (lambda: ec.CalibratedLoss(rho_bar=-0.2), "rho_bar must .*-0.2"),
        (lambda: ec.StandaloneLoss(kappa=-0.1), "kappa must .*-0.1"),
        (lambda: ec.TailLoss(level=1.0), r"level must lie in \[0, 1\), got 1.0"),
        (
            lambda: ec.CalibratedLoss(cost_scale=0.0),
            "cost_scale must be 'oracle', 'instance' or a positive number, got 0.0",
        ),
        (
            lambda: ec.StandaloneLoss(cost_scale="mean"),
            "cost_scale must be 'oracle', 'instance' or a positive number, got 'mean'",
        ),
        (lambda: ec.CalibratedLoss(prediction_rollout="free"), "prediction_rollout must be 'calibrated' or"),
    ],
)
@pytest.mark.usefixtures("as_users_run_it")
def test_bad_losses_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_calibrated_loss_needs_an_advisor():
    problem, instances = problem_of("quadratic", "open", 1), instances_of(1)
    with pytest.raises(TypeError, match="needs an agent with an advisor, got ROBD"):
        value_of(ec.CalibratedLoss(), ec.ROBD(), problem, instances, oracles_of(problem, instances))


def test_a_set_on_which_the_optimum_is_free_has_no_oracle_scale():
    problem = problem_of("quadratic", "open", 1)
    instances = ec.Instance(np.zeros((3, 1)), np.zeros((3, HORIZON, 1)))
    with pytest.raises(ValueError, match="mean oracle cost"):
        fix_scale(ec.StandaloneLoss(), oracles_of(problem, instances))
