"""Guards and controllers of a `ControlProblem`: special cases, planners, gradients. Attacks: tests/properties."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import ecl2o as ec
from ecl2o.exceptions import NotApplicableError
from ecl2o.theory import smallest_control_ratio
from ecl2o.theory.control import Past, Stage, control_future

STEPS = 8
LINE = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(10.0, 1))
BATTERY = ec.battery(10.0, 0.05)


def random_problem(seed: int, n: int = 2, k: int = 1, q: int = 1, rank: int | None = None) -> ec.ControlProblem:
    rng = np.random.default_rng(seed)
    size = n + k + q
    root = rng.normal(size=(rank or size, size))
    M = root.T @ root
    M[n : n + k, n : n + k] += 0.5 * np.eye(k)
    F = rng.normal(size=(n, n))
    F *= rng.uniform(0.3, 1.2) / np.abs(np.linalg.eigvals(F)).max()
    return ec.ControlProblem(F, rng.normal(size=(n, k)), rng.normal(size=(n, q)), M)


def hostile_run(problem: ec.ControlProblem, guard: ec.Guard, seed: int, rounds: int = STEPS):
    """Advice far away, NaN or infinite, and contexts that push the state away from the centre of the work function."""
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(rounds, problem.context_dim)) * 10.0 ** rng.uniform(-2, 2, size=(rounds, 1))
    if rng.random() < 0.3:
        contexts = np.repeat(contexts[:1], rounds, axis=0)
    return ec.Instance(10.0 ** rng.uniform(-2, 1) * rng.normal(size=problem.state_dim), contexts)


def bad_advice(seed: int, k: int) -> ec.advisors.Fixed:
    rng = np.random.default_rng(seed)
    advice = rng.normal(size=(STEPS, k)) * 10.0 ** rng.uniform(-2, 4, size=(STEPS, 1))
    advice[rng.integers(STEPS)] = rng.choice([np.nan, np.inf, 1e300])
    return ec.advisors.Fixed(advice)


# --- special cases


@pytest.mark.parametrize("horizon", [STEPS, None])
@pytest.mark.parametrize("ratio", [1.75, 2.5])
def test_tracking_is_a_special_case(horizon, ratio):
    rng = np.random.default_rng(0)
    day = ec.Instance([0.3], rng.normal(size=(STEPS, 1)))
    advice = ec.advisors.Fixed(3 * rng.normal(size=(STEPS, 1)))
    same = ec.with_memory(LINE, (1.0,))
    ours = ec.rollout(ec.CompetitiveControl(advice, ratio, horizon), same, day)
    theirs = ec.rollout(ec.Competitive(advice, ratio, horizon), LINE, day)
    np.testing.assert_allclose(ours.actions, theirs.actions, atol=1e-12)
    np.testing.assert_allclose(ours.details["reference"], theirs.details["reference"], rtol=1e-10)
    np.testing.assert_allclose(ec.oracle(same, day).actions, ec.oracle(LINE, day).actions, atol=1e-12)
    np.testing.assert_allclose(
        ec.rollout(ec.RHC(3), same, day).actions, ec.rollout(ec.RHC(3), LINE, day).actions, atol=1e-12
    )


def test_tracking_in_two_dimensions():
    rng = np.random.default_rng(1)
    A, Q = (root @ root.T + np.eye(2) for root in rng.normal(size=(2, 2, 2)))
    plain = ec.Problem(ec.Quadratic(A), ec.Mahalanobis(Q))
    day = ec.Instance(rng.normal(size=2), rng.normal(size=(STEPS, 2)))
    advice = ec.advisors.Fixed(3 * rng.normal(size=(STEPS, 2)))
    ours = ec.rollout(ec.CompetitiveControl(advice, 6.0), ec.with_memory(plain, (1.0,)), day)
    theirs = ec.rollout(ec.Competitive(advice, 6.0), plain, day)
    np.testing.assert_allclose(ours.actions, theirs.actions, atol=1e-10)


def test_a_delay_is_the_tracking_cost_of_the_delayed_actions():
    rng = np.random.default_rng(2)
    contexts, actions = rng.normal(size=(2, STEPS, 1))
    problem = ec.delayed(LINE, 2)
    x0 = np.array([0.5, 0.5])
    hitting, _ = problem.costs(jnp.asarray(x0), jnp.asarray(actions), jnp.asarray(contexts))
    played = np.concatenate([x0[::-1], actions[:, 0]])
    expected = 0.5 * (played[:STEPS] - contexts[:, 0]) ** 2 + 5.0 * (played[2:] - played[1:-1]) ** 2
    np.testing.assert_allclose(hitting, expected, rtol=1e-12)


def test_what_is_known_ahead_is_a_plan_with_certain_contexts():
    """The oracle of the extended problem plays the oracle's actions, w steps of context later."""
    rng = np.random.default_rng(3)
    contexts = rng.normal(size=(STEPS + 2, 1))
    ahead = ec.known_ahead(LINE, 2)
    day = ec.Instance(np.concatenate([[0.2], contexts[:2, 0]]), contexts[2:])
    plain = ec.oracle(LINE, ec.Instance([0.2], contexts[:STEPS]))
    np.testing.assert_allclose(ec.oracle(ahead, day).actions, plain.actions, atol=1e-12)


# --- planners


@pytest.mark.parametrize("seed", range(4))
def test_the_oracle_is_the_dense_minimum(seed):
    problem = random_problem(seed, n=3, k=2, q=2)
    day = hostile_run(problem, None, seed)
    best = ec.oracle(problem, day)

    def cost(actions):
        return problem.costs(day.x0, actions.reshape(STEPS, -1), day.contexts)[0].sum()

    zero = jnp.zeros(best.actions.size)
    dense = -jnp.linalg.solve(jax.hessian(cost)(zero), jax.grad(cost)(zero))
    np.testing.assert_allclose(best.cost, cost(dense), rtol=1e-10)
    np.testing.assert_allclose(ec.rollout(ec.RHC(STEPS - 1), problem, day).cost, best.cost, rtol=1e-10)


def test_lqr_is_optimal_without_contexts():
    problem = random_problem(5)
    still = ec.Instance([1.0, -2.0], np.zeros((STEPS, 1)))
    np.testing.assert_allclose(ec.rollout(ec.LQR(), problem, still).cost, ec.oracle(problem, still).cost, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_h_infinity_keeps_its_level(seed):
    problem = random_problem(seed)
    rng = np.random.default_rng(seed)
    day = ec.Instance(np.zeros(2), rng.normal(size=(STEPS, 1)))
    for level in (1.0, 4.0, 16.0, 64.0):
        run = ec.rollout(ec.HInfinity(level), problem, day)
        if run.converged.all():
            assert run.cost <= level**2 / 2 * (day.contexts**2).sum() * (1 + 1e-9)
            return
    raise AssertionError("no level was large enough")


def test_matrices_by_step():
    rng = np.random.default_rng(6)
    stages = [random_problem(seed) for seed in range(STEPS)]
    stacked = ec.ControlProblem(*(np.stack([getattr(stage, name) for stage in stages]) for name in "FBEM"))
    day = ec.Instance(rng.normal(size=2), rng.normal(size=(STEPS, 1)))
    run = ec.rollout(ec.LQR(), stacked, day)
    state, total = np.asarray(day.x0), 0.0
    for stage, action, context in zip(stages, run.actions, day.contexts, strict=True):
        point = np.concatenate([state, action, context])
        total += 0.5 * point @ np.asarray(stage.M) @ point
        state = np.asarray(stage.F) @ state + np.asarray(stage.B) @ action + np.asarray(stage.E) @ context
    np.testing.assert_allclose(run.cost, total, rtol=1e-12)
    ratio = 1.01 * smallest_control_ratio(stacked, STEPS)
    guarded = ec.rollout(ec.CompetitiveControl(bad_advice(0, 1), ratio, STEPS), stacked, day)
    assert guarded.cost <= ratio * ec.oracle(stacked, day).cost * (1 + 1e-9)


# --- promises


def test_ratios_that_cannot_be_promised_are_rejected():
    day = ec.Instance([0.0, 0.0], np.ones((24, 1)))
    with pytest.raises(NotApplicableError, match=r"1\.266436"):
        ec.rollout(ec.CompetitiveControl(ec.LQR(), 1.26, 24), BATTERY, day)
    assert ec.rollout(ec.CompetitiveControl(ec.LQR(), 1.267, 24), BATTERY, day).converged.all()
    with pytest.raises(NotApplicableError):
        ec.rollout(ec.CompetitiveControl(ec.LQR(), 3.3, every_prefix=True), BATTERY, day)


def test_a_ratio_that_is_traced_ends_the_promise():
    day = ec.Instance([0.0, 0.0], np.ones((24, 1)))
    cost = jax.jit(lambda ratio: ec.rollout(ec.CompetitiveControl(ec.LQR(), ratio, 24), BATTERY, day).converged.all())
    assert not cost(1.2)
    assert cost(1.3)


def test_promises_at_the_end_and_at_every_step_read_differently():
    ends, always = (str(ec.CompetitiveControl(ec.LQR(), 4.0, 24, prefix).promise(BATTERY)) for prefix in (False, True))
    assert "end" in ends
    assert "end" not in always


@pytest.mark.parametrize("name", ["hitting", "switching", "Q", "m"])
def test_parts_that_a_control_problem_does_not_have(name):
    """Agents for tracking ask for one of them."""
    with pytest.raises(NotApplicableError, match="ControlProblem"):
        getattr(BATTERY, name)


@pytest.mark.parametrize("agent", [ec.LQR(), ec.CompetitiveControl(ec.LQR()), ec.HInfinity(1.0)])
def test_agents_for_control_reject_tracking(agent):
    with pytest.raises((NotApplicableError, TypeError)):
        ec.rollout(agent, LINE, ec.Instance([0.0], [[1.0]]))


def test_bounded_actions_are_obeyed_and_not_promised():
    bounded = eqx.tree_at(lambda p: p.actions, BATTERY, ec.Box(-0.1, 0.1))
    day = ec.Instance([0.0, 0.0], np.ones((STEPS, 1)))
    assert np.abs(ec.rollout(ec.LQR(), bounded, day).actions).max() <= 0.1
    with pytest.raises(NotApplicableError):
        ec.rollout(ec.CompetitiveControl(ec.LQR(), 3.0, STEPS), bounded, day)


# --- gradients and batches


@pytest.mark.parametrize(
    ("wrap", "kind"),
    [
        (partial(ec.CompetitiveControl, ratio=1.5), ec.advisors.MLP),
        (partial(ec.CompetitiveControl, ratio=1.5), ec.advisors.LSTM),
        (partial(ec.GuardedControl, slack=0.2), ec.advisors.MLP),
    ],
)
def test_training_through_a_guard(wrap, kind):
    """The gradient through roll-out and guard is that of central differences, by one compiled program."""
    rng = np.random.default_rng(0)
    day = ec.Instance(rng.normal(size=2), rng.normal(size=(STEPS, 1)).cumsum(0))
    network = kind(1, 1, width=4, depth=1, key=jax.random.key(3), state_dim=2)
    weights, frozen = eqx.partition(wrap(network, horizon=STEPS), ec.trainable_mask(wrap(network, horizon=STEPS)))
    flat, restore = ravel_pytree(weights)

    def loss(flat):
        run = ec.rollout(eqx.combine(restore(flat), frozen), BATTERY, day)
        return run.cost, run.details["active"]

    program = jax.jit(jax.grad(loss, has_aux=True))
    program(2 * flat)
    slope, active = program(flat)
    assert active.any()
    assert program._cache_size() == 1
    direction = jnp.asarray(rng.normal(size=flat.shape))
    value = jax.jit(lambda share: loss(flat + share * direction)[0])
    numeric = (value(1e-5) - value(-1e-5)) / 2e-5
    np.testing.assert_allclose(slope @ direction, numeric, rtol=1e-5, atol=1e-8)


def test_a_network_learns_behind_a_guard():
    rng = np.random.default_rng(0)
    waves = np.sin(np.arange(STEPS) / 2 + rng.uniform(size=(32, 1)))[..., None]
    days = ec.Instance(0.1 * rng.normal(size=(32, 2)), waves)
    network = ec.advisors.MLP(1, 1, width=8, depth=1, key=jax.random.key(0), state_dim=2)
    guard = ec.CompetitiveControl(network, 1.5, STEPS)
    settings = {"loss": ec.StandaloneLoss(), "steps": 100, "learning_rate": 0.02}
    trained = ec.fit(guard, BATTERY, days, key=jax.random.key(1), **settings).agent
    best = jax.vmap(lambda day: ec.oracle(BATTERY, day).cost)(days)
    before, after = (jax.vmap(lambda day, a=a: ec.rollout(a, BATTERY, day).cost)(days) for a in (guard, trained))
    assert (after <= 1.5 * best * (1 + 1e-8)).all()
    assert after.sum() < 0.9 * before.sum()


def test_batches_are_single_runs():
    rng = np.random.default_rng(7)
    days = ec.Instance(rng.normal(size=(3, 2)), rng.normal(size=(3, STEPS, 1)))
    guard = ec.CompetitiveControl(ec.LQR(), 1.4, STEPS)
    together = jax.vmap(lambda day: ec.rollout(guard, BATTERY, day))(days)
    for place in range(3):
        alone = ec.rollout(guard, BATTERY, ec.Instance(days.x0[place], days.contexts[place]))
        np.testing.assert_allclose(together.actions[place], alone.actions, rtol=1e-10, atol=1e-12)


def test_the_past_is_the_work_function():
    """Its minimum over the last state is the optimum of the prefix."""
    problem = random_problem(8)
    day = hostile_run(problem, None, 8)
    past, total = Past(jnp.zeros((2, 2)), day.x0), 0.0
    for step in range(STEPS):
        past, growth = past.after(Stage.of(problem), day.contexts[step])
        total += growth
    np.testing.assert_allclose(total, ec.oracle(problem, day).cost, rtol=1e-9)


def test_friendly_contexts_make_tracking_free():
    for problem in (ec.delayed(LINE, 2), ec.with_memory(LINE, (2.0, -1.0))):
        assert np.abs(control_future(problem, 12).S0).max() < 1e-9
    assert np.abs(control_future(BATTERY, 12).S0[0]).max() > 0.1
