"""Advice for misses that cost more on one side: what its parts are, invariances, and what it saves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents.advisors.asymmetric_ridge import AsymmetricRidge

PERIOD, MOVEMENT = 6, ec.Mahalanobis.isotropic(alpha=4.0, dim=1)
PROBLEM = ec.Problem(ec.AsymmetricTracking(3.0, 1.0), MOVEMENT)


def _ridge() -> AsymmetricRidge:
    return AsymmetricRidge(ec.advisors.OnlineRidge(PERIOD, lags=4, harmonics=1, maturity=12))


def _series(steps: int, seed: int = 0) -> np.ndarray:
    rng, time = np.random.default_rng(seed), np.arange(steps)
    noise = np.zeros(steps)
    for t in range(1, steps):
        noise[t] = 0.8 * noise[t - 1] + 0.3 * rng.normal()
    return (np.sin(2 * np.pi * time / PERIOD) + noise)[:, None]


@jax.jit
def _play(problem, values, history):
    return ec.rollout(_ridge(), problem, ec.Instance(values[0], values, history))


def test_it_learns_to_be_long_where_being_short_is_expensive():
    """Cheaper than the regression of one weight, however that one is shifted; and on the other side if weights are swapped."""
    values = _series(900)
    history, test = values[:600], values[600:]
    own = _play(PROBLEM, test, history)
    swapped = ec.Problem(ec.AsymmetricTracking(1.0, 3.0), MOVEMENT)
    assert float(jnp.mean(own.actions - test)) > 0.05
    assert float(jnp.mean(_play(swapped, test, history).actions - test)) < -0.05

    @jax.jit
    @jax.vmap
    def shifted(shift):
        plain = ec.rollout(ec.advisors.OnlineRidge(PERIOD, lags=4, harmonics=1, maturity=12), SYMMETRIC, RUN)
        return sum(map(jnp.sum, PROBLEM.costs(RUN.x0, plain.actions + shift, RUN.contexts)))

    SYMMETRIC, RUN = ec.Problem(ec.SquaredTracking(), MOVEMENT), ec.Instance(test[0], test, history)
    costs = np.asarray(shifted(np.linspace(0.0, 0.5, 11)))
    assert costs.argmin() > 0
    assert float(own.cost) < 0.97 * costs.min()


def test_units_and_origin_do_not_matter_and_history_teaches_what_steps_do():
    values = _series(300)
    run = np.asarray(_play(PROBLEM, values[200:], values[:200]).actions)
    other = np.asarray(_play(PROBLEM, 1e3 * values[200:] + 50.0, 1e3 * values[:200] + 50.0).actions)
    np.testing.assert_allclose((other - 50.0) / 1e3, run, atol=1e-7)
    # From one start, the last steps of a long run are those of a run whose first steps are history.
    stepper = ec.rollout(_ridge(), PROBLEM, ec.Instance(values[0], values))
    later = ec.rollout(_ridge(), PROBLEM, ec.Instance(stepper.actions[199], values[200:], values[:200]))
    np.testing.assert_allclose(later.actions, stepper.actions[200:], atol=1e-9)


def test_each_column_is_a_line():
    values = np.concatenate([_series(160, 1), 5 * _series(160, 2)], axis=1)
    both = ec.Problem(PROBLEM.hitting, ec.Mahalanobis(np.diag([2.0, 7.0])))
    together = np.asarray(_play(both, values[100:], values[:100]).actions)
    for i, weight in enumerate((2.0, 7.0)):
        alone = ec.Problem(PROBLEM.hitting, ec.Mahalanobis([[weight]]))
        run = _play(alone, values[100:, [i]], values[:100, [i]])
        np.testing.assert_allclose(together[:, [i]], run.actions, atol=1e-9)


def test_theta_is_the_least_squares_solution_of_the_cost_of_its_own_path():
    """Once sides are known, the cost of all steps is a quadratic of theta: at the weights found its slope is the penalty's."""
    agent, values = _ridge(), _series(260)
    init = agent.init(PROBLEM, ec.Start(jnp.asarray(values[0]), jnp.zeros((0, 1)), None))

    def observe(state, y):
        after, _, _ = agent._observe(PROBLEM, state, y)
        return after, (
            after.shifts.decided.base[0],
            after.shifts.decided.slopes[0],
            after.shifts.regression.weights[0],
            after.shifts.power[0],
        )

    _, found = jax.jit(lambda v: jax.lax.scan(observe, init, v))(jnp.asarray(values))
    base, slopes, theta, power = map(np.asarray, found)
    size, usual = np.sqrt(power[-1]), np.sqrt(3.0)
    learns = np.flatnonzero(np.abs(slopes).max(axis=1) > 0)
    path = base + size * np.sum(
        slopes * np.concatenate([0 * theta[:1], theta[:-1]]), axis=1
    )  # as known before each step
    weight = np.where(path < values[:, 0], 3.0, 1.0) / usual
    rows = np.concatenate(
        [np.sqrt(weight[learns])[:, None] * slopes[learns], np.sqrt(4.0 / usual) * np.diff(slopes, axis=0)[learns - 1]]
    )
    targets = np.concatenate(
        [
            np.sqrt(weight[learns]) * (values[learns, 0] - base[learns]),
            -np.sqrt(4.0 / usual) * np.diff(base)[learns - 1],
        ]
    )
    expected = np.linalg.solve(rows.T @ rows + np.eye(rows.shape[1]), rows.T @ (targets / size))
    np.testing.assert_allclose(theta[-1], expected, atol=1e-8)


def test_one_bad_reading_has_a_bounded_effect():
    values = _series(400)
    broken = values.copy()
    broken[250] = 1e6
    runs = [np.asarray(_play(PROBLEM, each[260:], each[:260]).actions) for each in (values, broken)]
    assert np.abs(runs[1][60:] - runs[0][60:]).max() < 0.5


def test_a_policy_file_holds_it(tmp_path):
    values = _series(80)
    policy = ec.Policy(ec.Competitive(_ridge(), 3.0), PROBLEM, history=values)
    ec.save(tmp_path / "policy.ecl2o", policy)
    loaded = ec.load(tmp_path / "policy.ecl2o")
    assert loaded.fingerprint == policy.fingerprint
    assert float(loaded.problem.hitting.short) == 3.0
    assert loaded.optimum_is_bound
    for runner in (ec.Runner(loaded), ec.Runner(policy)):
        actions = [runner.step(value) for value in ([0.1], [0.4])]
    np.testing.assert_array_equal(actions, [runner.action * 0 + a for a in actions])


def test_refusals():
    with pytest.raises(ValueError, match="ridge must be positive"):
        AsymmetricRidge(ec.advisors.OnlineRidge(), 0.0)
    with pytest.raises(ec.NotApplicableError, match="AsymmetricTracking"):
        ec.rollout(_ridge(), ec.Problem(ec.SquaredTracking(), MOVEMENT), ec.Instance([0.0], np.zeros((2, 1))))
