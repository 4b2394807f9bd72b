"""Delays and contexts known ahead: costs, optimum, R-OBD's and RHC's counterparts, and the guard, against linear dynamics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents.advisors import Fixed, OnlineRidge
from ecl2o.forecasters import Exact, Persistence
from ecl2o.theory import decay_root, smallest_control_ratio

ALPHA, STEPS = 10.0, 24
SHIFTS = (1, 2, -2)


def timing(shift: int) -> ec.AbstractTiming:
    return ec.Delayed(shift) if shift > 0 else ec.KnownAhead(-shift)


def line(shift: int, alpha: float = ALPHA) -> ec.Problem:
    return ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha, 1), timing=timing(shift))


def make_day(problem: ec.Problem, seed: int, level: float = 0.0, steps: int = STEPS) -> ec.Instance:
    rng = np.random.default_rng(seed)
    dim = problem.Q.shape[0]
    contexts = level + np.cumsum(rng.normal(size=(steps + 4, dim)), axis=0)
    history, contexts = contexts[:4], contexts[4:]
    return ec.Instance(problem.start_state(jnp.asarray(history[0]), jnp.asarray(history)), contexts, history)


def play(shift: int, day: ec.Instance, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The actions in force and the contexts they meet, step by step, as an operator would say it."""
    x0, values = np.asarray(day.x0), np.asarray(day.contexts)[:, 0]
    if shift > 0:
        return np.concatenate([x0[::-1], actions])[: len(values)], values
    return actions, np.concatenate([x0[1:], values])[: len(values)]


@pytest.mark.parametrize("shift", SHIFTS)
def test_a_step_costs_the_miss_of_what_meets_and_the_move_that_is_decided(shift):
    problem, rng = line(shift), np.random.default_rng(1)
    day, actions = make_day(problem, 2), rng.normal(size=STEPS)
    in_force, met = play(shift, day, actions)
    hitting, switching = problem.costs(day.x0, jnp.asarray(actions[:, None]), day.contexts)
    np.testing.assert_allclose(hitting, 0.5 * (in_force - met) ** 2, rtol=1e-12)
    moves = np.diff(actions, prepend=float(day.x0[0]))
    np.testing.assert_allclose(switching, ALPHA / 2 * moves**2, rtol=1e-12)
    run = ec.rollout(Fixed(actions[:, None]), problem.game, day)
    np.testing.assert_allclose(run.hitting, hitting + switching, rtol=1e-10, atol=1e-12)
    by_step = ec.rollout(Fixed(actions[:, None]), problem, day)
    np.testing.assert_allclose(by_step.cost, hitting.sum() + switching.sum(), rtol=1e-12)


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("shift", SHIFTS)
def test_the_optimum_is_that_of_the_dynamics(shift, dim):
    rng = np.random.default_rng(3)
    A, Q = (root @ root.T + np.eye(dim) for root in rng.normal(size=(2, dim, dim)))
    problem = ec.Problem(ec.Quadratic(A), ec.Mahalanobis(Q), timing=timing(shift))
    for steps in (STEPS, abs(shift)):
        day = make_day(problem, 4, steps=steps)
        np.testing.assert_allclose(ec.oracle(problem, day).cost, ec.oracle(problem.game, day).cost, rtol=1e-10)


@pytest.mark.parametrize("shift", SHIFTS)
def test_a_planner_that_knows_the_future_plays_the_optimum(shift):
    """From the end on nothing changes, so that a window that leaves it makes no difference."""
    problem, steady = line(shift), 60
    day = make_day(problem, 5)
    still = np.concatenate([day.contexts, np.repeat(day.contexts[-1:], steady, axis=0)])
    whole = ec.Instance(day.x0, still, day.history)
    best = ec.oracle(problem, whole)
    run = ec.rollout(ec.RHC(50, truncate=False), problem, whole, Exact())
    np.testing.assert_allclose(run.actions[:STEPS], best.actions[:STEPS], atol=1e-5)


@pytest.mark.parametrize("shift", SHIFTS)
def test_r_obd_takes_the_last_known_context_to_stay(shift):
    problem = line(shift)
    day = make_day(problem, 6)
    expert = ec.rollout(ec.ROBD(), problem, day)
    planner = ec.rollout(ec.RHC(60, truncate=False), problem, day, Persistence())
    np.testing.assert_allclose(expert.actions, planner.actions, atol=1e-7)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("level", [0.0, 1e4])
def test_the_guard_is_that_of_the_dynamics(shift, level):
    problem, ratio = line(shift), smallest_control_ratio(line(shift).game) + 0.1
    day = make_day(problem, 7, level)
    advice = Fixed(level + 5 * np.random.default_rng(8).normal(size=(STEPS, 1)))
    ours = ec.rollout(ec.Competitive(advice, ratio), problem, day)
    theirs = ec.rollout(ec.CompetitiveControl(advice, ratio), problem.game, day)
    assert bool(ours.details["active"].any())
    np.testing.assert_allclose(ours.actions, theirs.actions, rtol=1e-10, atol=1e-10 if level == 0 else 1e-3)
    assert bool(ours.details["kept"].all())


def test_a_delay_of_one_step_is_acting_before_the_context_is_seen():
    """Competitive control of the miss, due before the disturbance is seen: the same actions and ratio."""
    problem, ratio = line(1), 2.6
    regulator = ec.ControlProblem.regulator(F=1.0, B=1.0, Q=1.0, R=ALPHA, before_context=True)
    np.testing.assert_allclose(smallest_control_ratio(problem.game), smallest_control_ratio(regulator), rtol=1e-10)
    day = make_day(problem, 9)
    ours = ec.rollout(ec.Competitive(ec.ROBD(), ratio), problem, day)
    np.testing.assert_allclose(ours.details["ratio"][-1, 0], ours.cost / ec.oracle(problem, day).cost, rtol=1e-10)
    advice = Fixed(np.asarray(day.x0) + np.random.default_rng(10).normal(size=(STEPS, 1)))
    late = ec.rollout(ec.Competitive(advice, ratio), problem, day)
    values, x0 = np.asarray(day.contexts)[:, 0], float(day.x0[0])
    before = np.concatenate([[x0], values[:-1]])
    positions = np.concatenate([[x0], np.asarray(late.actions)[:, 0]])
    moves = Fixed((np.asarray(advice.actions)[:, 0] - positions[:-1])[:, None])
    control = ec.rollout(ec.CompetitiveControl(moves, ratio), regulator, ec.Instance([0.0], (before - values)[:, None]))
    np.testing.assert_allclose(control.actions[:, 0], np.diff(positions), atol=1e-10)
    np.testing.assert_allclose(control.details["reference"], late.details["reference"], rtol=1e-10)


@pytest.mark.parametrize("horizon", [None, STEPS])
@pytest.mark.parametrize("shift", [2, -2])
def test_hostile_runs_keep_the_promise(shift, horizon):
    """Advice of any size against contexts that jump away from it; the optimum by the oracle."""
    problem = line(shift)
    ratio = smallest_control_ratio(problem.game, horizon) * 1.02

    def run(seed):
        keys = jax.random.split(jax.random.key(seed), 3)
        sizes = 10.0 ** jax.random.uniform(keys[0], (STEPS, 1), minval=-2, maxval=2)
        jumps = jnp.cumsum(sizes * jax.random.rademacher(keys[1], (STEPS, 1), float), axis=0)
        advice = 20 * jax.random.normal(keys[2], (STEPS, 1))
        history = jnp.zeros((4, 1))
        day = ec.Instance(problem.start_state(jnp.zeros(1), history), jumps, history)
        guard = ec.Competitive(Fixed(advice), ratio, horizon)
        played = ec.rollout(guard, problem, day)
        return (
            played.cost,
            ec.oracle(problem, day).cost,
            played.details["reference"][-1, 0],
            played.details["kept"].all(),
        )

    cost, optimum, reported, kept = jax.jit(jax.vmap(run))(jnp.arange(300))
    assert bool(kept.all())
    allowed = optimum if shift > 0 or horizon is not None else reported
    assert float(jnp.max(cost / (ratio * allowed))) <= 1 + 1e-9
    if shift > 0 or horizon is not None:
        np.testing.assert_allclose(reported, optimum, rtol=1e-8)
        assert float(jnp.max(cost / (ratio * allowed))) > 0.97  # the bound is reached


def test_the_regression_predicts_what_the_delayed_action_will_meet():
    """On a series that repeats, zhat is the discounted mean from the step on in which the action is in force."""
    period, delay = 6, 2
    values = np.tile([0.0, 1.0, 3.0, 2.0, 5.0, 4.0], 60)[:, None]
    problem = line(delay)
    day = ec.Instance(problem.start_state(jnp.zeros(1), jnp.zeros((0, 1))), values)
    run = ec.rollout(OnlineRidge(period, ahead=delay), problem, day)
    rho = float(decay_root(1.0, ALPHA))
    weights = (1 - rho) * rho ** np.arange(100)
    last = len(values) - 120
    expected = weights @ values[last + delay : last + delay + 100, 0]
    found = float(run.details["discounted_forecast"].mean[last, 0])
    assert abs(found - expected) < 0.1
    assert abs(found - weights @ values[last : last + 100, 0]) > 1.0


@pytest.mark.parametrize("shift", SHIFTS)
def test_days_start_from_where_the_day_before_ended(shift):
    """A stream that is cut into days has the costs of the stream, and each day is a run by itself."""
    problem, days = line(shift), 3
    day = make_day(problem, 11, steps=days * 8)
    by_day = np.asarray(day.contexts).reshape(days, 8, 1)
    agent = ec.ROBD()
    runs, starts = ec.stream_days(agent, problem, day.x0, by_day, day.history)
    np.testing.assert_allclose(runs.cost.sum(), ec.rollout(agent, problem, day).cost, rtol=1e-10)
    for run_actions, start, contexts, cost in zip(runs.actions, starts, by_day, runs.cost, strict=True):
        hitting, switching = problem.costs(start, jnp.asarray(run_actions), jnp.asarray(contexts))
        np.testing.assert_allclose(hitting.sum() + switching.sum(), cost, rtol=1e-10)
    np.testing.assert_allclose(
        ec.rollout_days(agent, problem, day.x0, by_day, day.history)[0].actions, runs.actions, atol=1e-10
    )


def test_refusals():
    late = line(1)
    day = make_day(late, 12)
    with pytest.raises(ec.NotApplicableError, match=r"2\.3701562"):
        ec.rollout(ec.Competitive(ec.ROBD(), 2.3), late, day)
    early = line(-1)
    with pytest.raises(ec.NotApplicableError, match="beside other promises"):
        ec.rollout(ec.Promises(ec.ROBD(), [ec.Promise(4.0), ec.Promise(5.0, period=4)]), early, make_day(early, 12))
    with pytest.raises(ec.NotApplicableError, match="contexts="):
        ec.rollout(ec.Competitive(ec.ROBD(), 3.0, contexts=(-9.0, 9.0)), late, day)
    bounded = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(ALPHA, 1), ec.Box(-99.0, 99.0), ec.Delayed(1))
    with pytest.raises(ec.NotApplicableError, match="bounds"):
        ec.rollout(ec.Competitive(ec.ROBD(), 3.0), bounded, day)
    with pytest.raises(ValueError, match="history of at least so many, got 1"):
        line(-2).start_state(jnp.zeros(1), jnp.zeros((1, 1)))
    with pytest.raises(ValueError, match="late must be a positive whole number, got 0"):
        ec.Delayed(0)
    with pytest.raises(ec.NotApplicableError, match="Mahalanobis"):
        ec.Problem(ec.SquaredTracking(), ec.LinearSwitching(1.0), timing=ec.Delayed(1))


@pytest.mark.parametrize("actions", [ec.Everywhere(), ec.Limited(spacing=1.0)])
def test_a_promise_with_a_delay_needs_equal_weights(actions):
    """As the page on replicas says: with whole numbers and without."""
    day = ec.Instance([2.0], [[3.0], [5.0]])
    for hitting in (ec.SquaredTracking(), ec.AsymmetricTracking(3.0, 1.0)):
        problem = ec.Problem(hitting, ec.Mahalanobis.isotropic(alpha=1.0, dim=1), actions, ec.Delayed(1))
        ec.rollout(ec.Greedy(), problem, day)
        guard = ec.Competitive(ec.Greedy(), ratio=4.0)
        if isinstance(hitting, ec.AsymmetricTracking):
            with pytest.raises(ec.NotApplicableError, match="weight"):
                ec.rollout(guard, problem, day)
        else:
            assert ec.rollout(guard, problem, day).info.details["kept"].all()
