"""Ramp limits and spacings: what is played obeys them, and the promises that they leave are kept."""

import os

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.running.stepper import Stepper

RUNS = int(os.environ.get("ECL2O_HOSTILE_RUNS", "200"))  # of each kind; 20000 is a thorough attack
STEPS = 40


def track(alpha, dim=1, **limits):
    movement = ec.Mahalanobis(jnp.asarray(alpha) / 2 * jnp.eye(dim))
    return ec.Problem(ec.SquaredTracking(), movement, ec.Limited(**limits) if limits else ec.Everywhere())


def attack(alpha, ratio, size, ramp, spacing, key, dim):
    """Play hostile contexts in [0, size] against NaN and far advice; return actions, costs, booked, and the free optimum."""
    draws = jax.random.split(key, 3)
    advice = (
        size * jax.random.normal(draws[0], (STEPS, dim)) * 10.0 ** jax.random.uniform(draws[1], (STEPS, 1), maxval=4.0)
    )
    advice = advice.at[::5].set(jnp.nan)
    problem = track(alpha, dim, ramp=ramp, spacing=spacing)
    guard = ec.Competitive(ec.advisors.Fixed(advice), ratio, contexts=None if ramp is None else (0.0 * size, size))
    stepper = Stepper(guard, problem)
    x0 = jnp.zeros(dim)
    state = stepper.init(ec.Start(x0, jnp.zeros((0, dim))))

    def step(state, key):
        kind, uniform = jax.random.randint(key, (), 0, 4), size * jax.random.uniform(key, (dim,))
        away = jnp.where(state.action > size / 2, 0.0, size)
        context = jnp.where(kind == 0, uniform, jnp.where(kind == 1, state.action, away))
        state, made = stepper.step(state, jnp.clip(context, 0.0, size))
        return state, (made.action, made.hitting + made.switching, made.info.details, jnp.clip(context, 0.0, size))

    _, (actions, costs, details, contexts) = jax.lax.scan(step, state, jax.random.split(draws[2], STEPS))
    best = ec.oracle(track(alpha, dim), ec.Instance(x0, contexts)).cost
    return actions, jnp.sum(costs), details.get("booked", jnp.zeros(STEPS))[-1], details["kept"].all(), best


def draw_numbers(seed):
    rng = np.random.default_rng(seed)
    alpha, size = 10 ** rng.uniform(-3, 6, RUNS), 10 ** rng.uniform(-2, 3, RUNS)
    return rng, alpha, size, jax.random.split(jax.random.key(seed), RUNS)


def fraction(alpha):
    """1 - r = (1 + k)/(1 + a + k), the share of the range that a ramp must leave."""
    k = (np.sqrt(1 + 4 * alpha) - 1) / 2
    return (1 + k) / (1 + alpha + k)


@pytest.mark.parametrize("dim", [1, 3])
def test_a_wide_ramp_takes_nothing_from_the_promise(dim):
    rng, alpha, size, keys = draw_numbers(dim)
    ratio = (2 - fraction(alpha)) * (1 + 10 ** rng.uniform(-3, 0, RUNS))
    ramp = fraction(alpha) * size * (1 + 1e-9)
    play = jax.jit(jax.vmap(lambda *numbers: attack(*numbers[:4], None, numbers[4], dim)))
    actions, cost, _, kept, best = map(np.asarray, play(alpha, ratio, size, ramp, keys))
    moves = np.abs(np.diff(actions, axis=1, prepend=0.0)).max(axis=(1, 2))
    assert (moves <= ramp * (1 + 1e-12)).all()
    assert kept.mean() > 0.98  # extreme alpha may exceed what 64 bits resolve, and says so
    assert (cost[kept] <= (ratio * best)[kept] * (1 + 1e-9)).all()


def test_a_narrow_ramp_leaves_the_looser_promise():
    rng, alpha, size, keys = draw_numbers(2)
    alpha = np.clip(alpha, 1e-3, 1e3)
    share = fraction(alpha) * 10 ** rng.uniform(-1, 0, RUNS)
    counted, ramp = (1 - share) / share**2, share * size
    ratio = (2 - share) * (1 + 10 ** rng.uniform(-3, 0, RUNS))
    play = jax.jit(jax.vmap(lambda *numbers: attack(*numbers[:4], None, numbers[4], 1)))
    actions, cost, _, kept, best = map(np.asarray, play(alpha, ratio, size, ramp, keys))
    assert (np.abs(np.diff(actions, axis=1, prepend=0.0)).max(axis=(1, 2)) <= ramp * (1 + 1e-12)).all()
    assert kept.mean() > 0.98
    assert (cost[kept] <= (ratio * np.maximum(counted / alpha, 1) * best)[kept] * (1 + 1e-9)).all()


@pytest.mark.parametrize("dim", [1, 3])
def test_whole_numbers_keep_the_promise_and_what_they_book(dim):
    rng, alpha, size, keys = draw_numbers(10 + dim)
    ratio = (2 - fraction(alpha)) * (1 + 10 ** rng.uniform(-3, 0, RUNS))
    spacing = size * 10 ** rng.uniform(-2, 0, RUNS)
    play = jax.jit(jax.vmap(lambda *numbers: attack(*numbers[:3], None, *numbers[3:], dim)))
    actions, cost, booked, kept, best = map(np.asarray, play(alpha, ratio, size, spacing, keys))
    units = actions / spacing[:, None, None]
    assert np.abs(units - np.round(units)).max() < 1e-9
    k = (np.sqrt(1 + 4 * alpha) - 1) / 2
    most = dim * STEPS * (1 + alpha + ratio * k / (ratio - 1 - k / (1 + k))) * spacing**2 / 8
    assert kept.mean() > 0.98
    assert (booked <= most * (1 + 1e-9)).all()
    assert (cost[kept] <= (ratio * best + booked)[kept] * (1 + 1e-9)).all()
    assert (booked > 0).any()


@pytest.mark.parametrize(("alpha", "ramp", "bounds"), [(10.0, 0.3, None), (0.1, 0.2, (-0.5, 1.0)), (200.0, 0.05, None)])
def test_the_ramp_limited_oracle_is_the_optimum(alpha, ramp, bounds):
    rng = np.random.default_rng(0)
    contexts = np.cumsum(rng.normal(size=(24, 1)), axis=0)
    box = ec.Everywhere() if bounds is None else ec.Box(*bounds)
    best = ec.oracle(track(alpha, actions=box, ramp=ramp), ec.Instance([0.0], contexts))
    x = cp.Variable((24, 1))
    change = x - cp.vstack([np.zeros((1, 1)), x[:-1]])
    within = [cp.abs(change) <= ramp] + ([] if bounds is None else [x >= bounds[0], x <= bounds[1]])
    referee = cp.Problem(cp.Minimize(cp.sum_squares(x - contexts) / 2 + alpha / 2 * cp.sum_squares(change)), within)
    referee.solve(solver=cp.CLARABEL)
    assert best.converged.all()
    np.testing.assert_allclose(float(best.cost), referee.value, rtol=1e-6)
    assert np.abs(np.diff(np.asarray(best.actions), axis=0)).max() <= ramp * (1 + 1e-9)


def test_promises_that_limits_do_not_leave_are_refused():
    start = ec.Start(jnp.zeros(1), jnp.zeros((0, 1)))
    several = ec.Promises(ec.ROBD(), [ec.Promise(2.0), ec.Promise(2.5, period=24)])
    for agent, problem in [
        (ec.Competitive(ec.ROBD()), track(10.0, ramp=1.0)),
        (ec.Guarded(ec.ROBD()), track(10.0, ramp=1.0)),
        (several, track(10.0, spacing=1.0)),
        (ec.Competitive(ec.ROBD(), 1.75, contexts=(0.0, 1.0)), track(10.0, ramp=0.01)),
    ]:
        with pytest.raises(ec.NotApplicableError):
            agent.check(problem, start)


def test_a_policy_file_holds_the_limits(tmp_path):
    agent, problem = (
        ec.Competitive(ec.ROBD(), 2.0, contexts=(0.0, 9.0)),
        track(10.0, actions=ec.Box(0.0, 9.0), ramp=3.0, spacing=1.0),
    )
    ec.save(tmp_path / "policy.ecl2o", ec.Policy(agent, problem))
    policy = ec.load(tmp_path / "policy.ecl2o")
    assert policy.contract.ramp == [3.0]
    assert policy.contract.spacing == [1.0]
    assert policy.contract.promise.allowance_per_step > 0
    runner = ec.Runner(policy, [0.0])
    actions = [float(runner.step([value])[0]) for value in (8.7, 8.7, 0.2, 4.4)]
    assert all(action == round(action) for action in actions)
    assert max(abs(np.diff([0.0, *actions]))) <= 3.0
