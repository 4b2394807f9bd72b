"""Online gradient descent: its identity with R-OBD, causality of the blind mode, step sizes, and Zinkevich's regret."""

import equinox as eqx
import jax
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.theory import decay_root

COUNT, HORIZON = 20, 9
LINE = ec.Problem(ec.SquaredTracking(2.0), ec.Mahalanobis.isotropic(5.0, 1))


def _instances(dim, seed=0):
    rng = np.random.default_rng(seed)
    return ec.Instance(rng.normal(size=(COUNT, dim)), rng.normal(size=(COUNT, HORIZON, dim)))


@eqx.filter_jit
def _played(agent, problem, instances):
    return jax.vmap(lambda s: ec.rollout(agent, problem, s).actions)(instances)


def _actions(agent, problem, instances):
    return np.asarray(_played(agent, problem, instances))


@pytest.mark.parametrize("dim", [1, 3])
def test_constant_steps_at_the_revealed_context_are_robd_where_all_is_isotropic(dim):
    m, beta = 2.0, 5.0
    problem = ec.Problem(ec.SquaredTracking(m), ec.Mahalanobis.isotropic(beta, dim))
    instances, robd = _instances(dim), ec.ROBD()
    expected = _actions(robd, problem, instances)
    np.testing.assert_allclose(_actions(ec.OGD(), problem, instances), expected, atol=1e-12)
    eta = (1 - decay_root(m, beta)) / m
    np.testing.assert_allclose(_actions(ec.OGD(eta=eta), problem, instances), expected, atol=1e-12)


def test_blind_descent_has_not_seen_the_context_it_acts_on():
    instances, eta = _instances(1), 0.2
    actions = _actions(ec.OGD("blind", eta=eta), LINE, instances)
    x, contexts = np.asarray(instances.x0), np.asarray(instances.contexts)
    np.testing.assert_array_equal(actions[:, 0], x)
    for t in range(1, HORIZON):
        x = x - eta * 2.0 * (x - contexts[:, t - 1])
        np.testing.assert_allclose(actions[:, t], x, atol=1e-12)
    for t in range(HORIZON):  # y_t decides x_{t+1} at the earliest
        changed = ec.Instance(instances.x0, contexts + (np.arange(HORIZON) == t)[:, None])
        other = _actions(ec.OGD("blind", eta=eta), LINE, changed)
        np.testing.assert_array_equal(other[:, : t + 1], actions[:, : t + 1])


@pytest.mark.parametrize(
    ("steps", "size"),
    [("constant", lambda t: 0.3), ("sqrt", lambda t: 0.3 / np.sqrt(t)), ("inverse", lambda t: 0.3 / t)],
)
def test_step_sizes(steps, size):
    instances = _instances(1)
    actions, x = _actions(ec.OGD(steps=steps, eta=0.3), LINE, instances), np.asarray(instances.x0)
    contexts = np.asarray(instances.contexts)
    for t in range(1, HORIZON + 1):
        x = x - size(t) * 2.0 * (x - contexts[:, t - 1])
        np.testing.assert_allclose(actions[:, t - 1], x, atol=1e-12)


def test_inverse_steps_average_the_contexts_unless_told_otherwise():
    """With eta_t = 1/(m t) on 1/2 m |x - y|^2 the action is the mean of the contexts so far."""
    instances = _instances(1)
    means = np.cumsum(instances.contexts, axis=1) / np.arange(1, HORIZON + 1)[:, None]
    np.testing.assert_allclose(_actions(ec.OGD(steps="inverse"), LINE, instances), means, atol=1e-12)
    blind = _actions(ec.OGD("blind", steps="inverse", eta=0.5), LINE, instances)
    assert np.abs(blind[:, 1:] - means[:, :-1]).max() > 1e-3  # its first step has size 1/(2 m), not 1/m


@pytest.mark.parametrize("steps", ["sqrt", "inverse"])
def test_blind_static_regret_of_the_hitting_cost(steps):
    """Zinkevich's bounds, D the diameter and G the largest slope: D^2 sqrt(T)/(2 eta) + G^2 eta sqrt(T) with eta/sqrt(t),
    and G^2 (1 + log T)/(2 m) + what the extra first step costs with 1/(m t)."""
    horizon, m = 200, 2.0
    problem = ec.Problem(ec.SquaredTracking(m), ec.Mahalanobis.isotropic(5.0, 1), ec.Box(-1.0, 1.0))
    rng = np.random.default_rng(3)
    contexts = np.sign(rng.normal(size=(COUNT, horizon, 1)) + rng.normal(size=(COUNT, 1, 1)))
    instances = ec.Instance(rng.uniform(-1, 1, size=(COUNT, 1)), contexts)
    run = jax.jit(jax.vmap(lambda s: ec.rollout(ec.OGD("blind", steps=steps), problem, s)))(instances)
    best = 0.5 * m * np.sum((contexts - contexts.mean(axis=1, keepdims=True)) ** 2, axis=(1, 2))
    regret, D, G = np.asarray(run.hitting.sum(axis=1)) - best, 2.0, 2.0 * m
    eta = (1 - float(decay_root(m, 5.0))) / m
    bound = {
        "sqrt": D**2 * np.sqrt(horizon + 1) / (2 * eta) + G**2 * eta * np.sqrt(horizon),
        "inverse": G**2 * (1 + np.log(horizon)) / (2 * m) + G * D,
    }[steps]
    assert (regret <= bound).all()
    assert regret.max() > 0


def test_actions_stay_in_the_box():
    problem = ec.Problem(LINE.hitting, LINE.switching, ec.Box(-0.1, 0.2))
    instances = ec.Instance(np.zeros((COUNT, 1)), _instances(1).contexts)
    actions = _actions(ec.OGD(eta=0.9), problem, instances)
    assert float(actions.min()) == -0.1
    assert float(actions.max()) == 0.2


def test_bad_parameters_are_refused():
    with pytest.raises((TypeError, ValueError), match="linear"):
        ec.OGD(steps="linear")
    with pytest.raises((TypeError, ValueError), match="deaf"):
        ec.OGD(mode="deaf")
    with pytest.raises(ValueError, match="eta must be positive, got -1"):
        ec.OGD(eta=-1.0)
