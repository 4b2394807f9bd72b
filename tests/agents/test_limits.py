"""Ramp limits and spacings: what is played obeys them, and the promises that they leave are kept."""

import os

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents.guards.promises import PromiseTerms
from ecl2o.running.stepper import Stepper

RUNS = int(os.environ.get("ECL2O_HOSTILE_RUNS", "200"))  # of each kind; 20000 is a thorough attack
STEPS = 40


def track(alpha, dim=1, **limits):
    movement = ec.Mahalanobis(jnp.asarray(alpha) / 2 * jnp.eye(dim))
    return ec.Problem(ec.SquaredTracking(), movement, ec.Limited(**limits) if limits else ec.Everywhere())


def hostile(guard_of, problem, size, key, x0=None):
    """Play hostile contexts in [0, size] against NaN and far advice; return actions, costs, details and contexts by step.

    In half of the runs contexts stay, from some step on, at the end of the range that is farther from the action.
    """
    dim, (draw, far, walk, late) = problem.Q.shape[0], jax.random.split(key, 4)
    advice = size * jax.random.normal(draw, (STEPS, dim)) * 10.0 ** jax.random.uniform(far, (STEPS, 1), maxval=4.0)
    stepper = Stepper(guard_of(ec.advisors.Fixed(advice.at[::5].set(jnp.nan))), problem)
    x0, turn = jnp.zeros(dim) if x0 is None else x0, jax.random.randint(late, (), 5, 2 * STEPS)
    ahead = problem.timing.early > 0
    state = stepper.init(ec.Start(x0, jnp.zeros((0, dim)), STEPS if ahead else None))

    def step(carry, now):
        (state, last), (key, t) = carry, now
        here = state.action[:dim] if ahead else state.action[-dim:]
        kind, uniform = jax.random.randint(key, (), 0, 4), size * jax.random.uniform(key, (dim,))
        away = jnp.where(here > size / 2, 0.0, size)
        context = jnp.where(kind == 0, uniform, jnp.where(kind == 1, jnp.clip(here, 0.0, size), away))
        context = jnp.where(t > turn, last, jnp.where(t == turn, away, context))
        state, made = stepper.step(state, context)
        return (state, context), (made.action, made.hitting + made.switching, made.info.details, context)

    return jax.lax.scan(step, (state, x0[:dim]), (jax.random.split(walk, STEPS), jnp.arange(STEPS)))[1]


def by_run(attack):
    """Run an attack on arrays of numbers, each run on its own."""
    return lambda *numbers: jax.tree.map(np.asarray, jax.jit(jax.vmap(attack))(*numbers))


def judge(name, cost, promised, details, least_kept=0.98):
    """Check that runs that are said to be kept are, and that nearly all are; print the largest figures (-s)."""
    kept = np.asarray(details["kept"]).all(axis=1)
    use = np.where(cost > 0, cost / np.where(promised > 0, promised, np.finfo(float).tiny), 0.0)
    lost = f", {np.count_nonzero(~kept)} lost, largest of these {use[~kept].max():.3g}" if not kept.all() else ""
    print(f"\n{name}: {len(use)} runs, largest cost over promise 1 {use[kept].max() - 1:+.2e}{lost}")
    assert kept.mean() >= least_kept  # extreme alpha may exceed what 64 bits resolve, and says so
    assert (use[kept] <= 1 + 1e-9).all()
    return kept


def draw_numbers(seed, greatest=6):
    rng = np.random.default_rng(seed)
    alpha, size = 10 ** rng.uniform(-3, greatest, RUNS), 10 ** rng.uniform(-2, 3, RUNS)
    return rng, alpha, size, jax.random.split(jax.random.key(seed), RUNS)


def stiffness(alpha, weight=1.0):
    return (np.sqrt(weight**2 + 4 * alpha * weight) - weight) / 2


def fraction(alpha, weight=1.0):
    """(w + k)/(w + a + k), the share of the range that a ramp must leave; 1 - r for w = 1."""
    k = stiffness(alpha, weight)
    return (weight + k) / (weight + alpha + k)


def optimum(alpha, contexts, x0=0.0):
    dim = contexts.shape[-1]
    return ec.oracle(track(alpha, dim), ec.Instance(jnp.zeros(dim) + x0, contexts)).cost


def moves(actions):
    return np.abs(np.diff(actions, axis=1, prepend=0.0)).max(axis=(1, 2))


def is_counted(actions, spacing):
    units = actions / spacing[:, None, None]
    return np.abs(units - np.round(units)).max() < 1e-9


@pytest.mark.parametrize("dim", [1, 3])
def test_a_wide_ramp_takes_nothing_from_the_promise(dim):
    rng, alpha, size, keys = draw_numbers(dim)
    ratio = (2 - fraction(alpha)) * (1 + 10 ** rng.uniform(-3, 0, RUNS))
    ramp = fraction(alpha) * size * (1 + 1e-9)

    @by_run
    def attack(alpha, ratio, size, ramp, key):
        problem = track(alpha, dim, ramp=ramp)
        run = hostile(lambda advice: ec.Competitive(advice, ratio, contexts=(0.0 * size, size)), problem, size, key)
        return run, optimum(alpha, run[3])

    (actions, costs, details, _), best = attack(alpha, ratio, size, ramp, keys)
    assert (moves(actions) <= ramp * (1 + 1e-12)).all()
    judge(f"wide ramp, d = {dim}", costs.sum(axis=1), ratio * best, details)


def excess(x, y, before, spent, a, L, P, m, k, n):
    """What x costs and must reserve above the level, against the worst of the contexts n that stay; and that context."""
    future = k / 2 * (x - n) ** 2 - L * P * k / (P + k) / 2 * (n - m) ** 2
    return spent + (x - y) ** 2 / 2 + a / 2 * (x - before) ** 2 + future.max(), n[future.argmax()]


def test_actions_just_outside_what_a_wide_ramp_leaves_are_punished():
    """From 0.1 % outside, contexts that stay in the range break the promise, whatever is played, even without a ramp."""
    rng, size, after = np.random.default_rng(9), 1.0, 600
    alpha = 10 ** rng.uniform(-1, 2, 400)
    ratio = (2 - fraction(alpha)) * (1 + 10 ** rng.uniform(-2, 0, 400))
    ramp, keys = fraction(alpha) * (1 + 1e-9), jax.random.split(jax.random.key(9), 400)

    @by_run
    def attack(alpha, ratio, ramp, key):
        problem = track(alpha, ramp=ramp)
        return hostile(lambda advice: ec.Competitive(advice, ratio, contexts=(0.0, size)), problem, size, key)

    actions, costs, _, contexts = attack(alpha, ratio, ramp, keys)
    cases = []  # (run, step, an action outside, the worst context that stays)
    for i, (a, L) in enumerate(zip(alpha, ratio, strict=True)):
        k, K, m, r, x = stiffness(a), a, 0.0, 0.0, np.concatenate([[0.0], actions[i, :, 0]])
        n = np.linspace(0, size, 2001)
        for t, y in enumerate(contexts[i, :, 0]):
            r, m, P = r + (y - m) ** 2 / 2 / (1 + 1 / K), (y + K * m) / (1 + K), 1 + K
            K = P * a / (P + a)
            spent = costs[i, :t].sum() - L * r

            def use(z, now=(y, x[t], spent, a, L, P, m, k, n)):
                return excess(z, *now)

            out = x[t + 1] + 1e-3 * np.array([-1, 1])
            reached = (out >= max(0.0, x[t] - ramp[i])) & (out <= min(size, x[t] + ramp[i]))
            assert use(x[t + 1])[0] <= 1e-6 * (1 + L * r)
            cases += [(i, t, z, use(z)[1]) for z in out[reached] if use(z)[0] > 1e-5 * L * r]

    i, t, out, n = map(np.asarray, zip(*cases, strict=True))
    chosen = rng.choice(len(i), 200, replace=False)
    i, t, out, n = i[chosen], t[chosen], out[chosen], n[chosen]
    stay = np.broadcast_to(n[:, None, None], (200, after, 1))
    known = np.where(np.arange(STEPS)[:, None] <= t[:, None, None], contexts[i], n[:, None, None])
    answer = jax.jit(jax.vmap(optimum))(alpha[i], stay, out)
    best = jax.jit(jax.vmap(optimum))(alpha[i], np.concatenate([known, stay], axis=1))
    before = np.take_along_axis(np.concatenate([np.zeros((200, 1)), actions[i, :, 0]], axis=1), t[:, None], axis=1)[
        :, 0
    ]
    y = np.take_along_axis(contexts[i, :, 0], t[:, None], axis=1)[:, 0]
    earlier = np.where(np.arange(STEPS) < t[:, None], costs[i], 0.0).sum(axis=1)
    least = earlier + (out - y) ** 2 / 2 + alpha[i] / 2 * (out - before) ** 2 + np.asarray(answer)
    assert (least > ratio[i] * np.asarray(best)).sum() == 200


def test_a_wide_ramp_takes_nothing_from_the_promise_with_two_weights():
    rng, alpha, size, keys = draw_numbers(4, greatest=3)
    low = 10 ** rng.uniform(-1, 0, RUNS)
    high = low * 10 ** rng.uniform(0, 1.3, RUNS)
    ratio = 1 + stiffness(alpha, high) / (low + stiffness(alpha, low)) * (1 + 10 ** rng.uniform(-3, 0, RUNS))
    ramp, short = fraction(alpha, high) * size * (1 + 1e-9), np.where(rng.uniform(size=RUNS) < 0.5, low, high)

    @by_run
    def attack(alpha, short, long, ratio, size, ramp, key):
        def pose(actions):
            return ec.Problem(ec.AsymmetricTracking(short, long), ec.Mahalanobis(alpha / 2 * jnp.eye(1)), actions)

        problem = pose(ec.Limited(ramp=ramp))
        run = hostile(lambda advice: ec.Competitive(advice, ratio, contexts=(0.0 * size, size)), problem, size, key)
        return run, ec.oracle(pose(ec.Everywhere()), ec.Instance(jnp.zeros(1), run[3])).cost

    (actions, costs, details, _), best = attack(alpha, short, low + high - short, ratio, size, ramp, keys)
    assert (moves(actions) <= ramp * (1 + 1e-12)).all()
    judge("wide ramp, two weights", costs.sum(axis=1), ratio * best, details)


def test_a_narrow_ramp_leaves_the_looser_promise():
    rng, alpha, size, keys = draw_numbers(2, greatest=3)
    share = fraction(alpha) * 10 ** rng.uniform(-1, 0, RUNS)
    counted, ramp = (1 - share) / share**2, share * size
    ratio = (2 - share) * (1 + 10 ** rng.uniform(-3, 0, RUNS))

    @by_run
    def attack(alpha, ratio, size, ramp, key):
        problem = track(alpha, ramp=ramp)
        run = hostile(lambda advice: ec.Competitive(advice, ratio, contexts=(0.0 * size, size)), problem, size, key)
        limited = ec.oracle(problem, ec.Instance(jnp.zeros(1), run[3]))
        return run, optimum(alpha, run[3]), limited.cost, limited.converged.all()

    (actions, costs, details, _), best, limited, solved = attack(alpha, ratio, size, ramp, keys)
    assert (moves(actions) <= ramp * (1 + 1e-12)).all()
    cost = costs.sum(axis=1)
    judge("narrow ramp", cost, ratio * np.maximum(counted / alpha, 1) * best, details)
    other = ratio * (limited + STEPS * (counted - alpha) * ramp**2 / 2)
    assert solved.all()
    judge("narrow ramp, plus a step", cost, other, details)


@pytest.mark.parametrize("dim", [1, 3])
def test_whole_numbers_keep_the_promise_and_what_they_book(dim):
    rng, alpha, size, keys = draw_numbers(10 + dim)
    ratio = (2 - fraction(alpha)) * (1 + 10 ** rng.uniform(-3, 0, RUNS))
    spacing = size * 10 ** rng.uniform(-2, 0, RUNS)

    @by_run
    def attack(alpha, ratio, size, spacing, key):
        problem = track(alpha, dim, spacing=spacing)
        run = hostile(lambda advice: ec.Competitive(advice, ratio), problem, size, key)
        return run, optimum(alpha, run[3])

    (actions, costs, details, _), best = attack(alpha, ratio, size, spacing, keys)
    assert is_counted(actions, spacing)
    k = stiffness(alpha)
    curvature = 1 + alpha + ratio * k / (ratio - 1 - k / (1 + k))
    kept = judge(f"whole numbers, d = {dim}", costs.sum(axis=1), ratio * best + details["booked"][:, -1], details)
    assert check_booked(details["booked"], dim * curvature * spacing**2 / 8, kept) > 0.5


def check_booked(booked, most, kept):
    """Check that no step books more than it may; return the largest share of that, and print it with the mean (-s)."""
    share = (
        np.maximum(np.diff(booked, axis=1, prepend=0.0), 0.0)[kept] / most[kept, None]
    )  # below 0 where a period starts
    print(f"  largest booking of a step {share.max():.3f} of its bound, mean {share.mean():.3f}")
    assert share.max() <= 1 + 1e-6
    return share.max()


@pytest.mark.parametrize("ramped", [False, True])
def test_several_promises_round_to_one_action(ramped):
    period, (rng, alpha, size, keys) = 10, draw_numbers(20 + ramped)
    ratio = (2 - fraction(alpha)) * (1 + 10 ** rng.uniform(-3, 0, RUNS))
    ratios = rng.permuted(ratio[:, None] * (1 + np.pad(10 ** rng.uniform(-2, 0, (RUNS, 2)), ((0, 0), (1, 0)))), axis=1)
    spacing = size / np.round(10 ** rng.uniform(0, 2, RUNS))  # the range is a multiple, and so is the ramp
    ramp = spacing * np.ceil(fraction(alpha) * size / spacing)

    @by_run
    def attack(alpha, ratios, size, ramp, spacing, key):
        limits = {"ramp": ramp, "spacing": spacing} if ramped else {"spacing": spacing}
        problem, terms = (
            track(alpha, **limits),
            [
                PromiseTerms(ratios[0]),
                PromiseTerms(ratios[1], period=period),
                PromiseTerms(ratios[2], to_baseline=True),
            ],
        )
        contexts = (0.0 * size, size) if ramped else None
        run = hostile(lambda advice: ec.Promises(advice, terms, ec.ROBD(), contexts=contexts), problem, size, key)
        baseline = ec.rollout(ec.ROBD(), problem, ec.Instance(jnp.zeros(1), run[3])).cost
        return run, baseline

    (actions, costs, details, contexts), baseline = attack(alpha, ratios, size, ramp, spacing, keys)
    best = by_run(optimum)(alpha, contexts)  # in programs of their own: batched LAPACK calls may block one another
    before = np.concatenate([np.zeros((RUNS, 1)), actions[:, period - 1 : -1 : period, 0]], axis=1)
    days = contexts.reshape(RUNS, -1, period, 1)
    periods = np.stack([by_run(optimum)(alpha, days[:, i], before[:, i]) for i in range(days.shape[1])], axis=1)
    assert is_counted(actions, spacing)
    assert not ramped or (moves(actions) <= ramp * (1 + 1e-12)).all()
    booked, by_period = details["all_booked"], costs.reshape(RUNS, -1, period).sum(axis=2)
    name = f"several promises, whole numbers{', ramp' if ramped else ''}"
    judge(f"{name}: run", costs.sum(axis=1), ratios[:, 0] * best + booked[:, -1, 0], details)
    judge(f"{name}: baseline", costs.sum(axis=1), ratios[:, 2] * baseline + booked[:, -1, 2], details)
    for i in range(STEPS // period):
        allowed = ratios[:, 1] * periods[:, i] + booked[:, period * (i + 1) - 1, 1]
        kept = judge(f"{name}: period {i + 1}", by_period[:, i], allowed, details)
    sigma = stiffness(alpha) / (ratio - 1)
    past = 1 + sigma * alpha / (sigma + alpha)
    curvature = 1 + alpha + ratio * stiffness(alpha) / (ratio - 1 - stiffness(alpha) / past)
    assert max(check_booked(booked[..., i], curvature * spacing**2 / 8, kept) for i in range(3)) > 0.5


@pytest.mark.parametrize("shift", [1, 2, -1])
def test_whole_numbers_keep_the_promise_with_a_shift(shift):
    rng, alpha, size, keys = draw_numbers(30 + shift, greatest=4)
    k, spacing = stiffness(alpha), size * 10 ** rng.uniform(-2, 0, RUNS)
    smallest = {1: 1 + (1 + k) / k, -1: (1 / k + 1 / (1 + k)) / (1 / k + 1 / (1 + alpha))}
    # Two steps: D C for D = diag(1, 1 + k) and C = [[1/k, 1/k], [1/k, 1/k + 1/a]], by trace and determinant.
    trace, det = 1 / k + (1 + k) * (1 / k + 1 / alpha), (1 + k) / (k * alpha)
    smallest[2] = 1 + (trace + np.sqrt(trace**2 - 4 * det)) / 2
    ratio = smallest[shift] * (1 + 10 ** rng.uniform(-3, 0, RUNS))

    @by_run
    def attack(alpha, ratio, size, spacing, key):
        movement = ec.Mahalanobis(alpha / 2 * jnp.eye(1))
        timing = ec.Delayed(shift) if shift > 0 else ec.KnownAhead(-shift)
        problem = ec.Problem(ec.SquaredTracking(), movement, ec.Limited(spacing=spacing), timing)
        start = problem.start_state(jnp.zeros(1), jnp.zeros((2, 1)))
        horizon = STEPS if shift < 0 else None
        run = hostile(lambda advice: ec.Competitive(advice, ratio, horizon=horizon), problem, size, key, start)
        return run, ec.oracle(problem, ec.Instance(start, run[3])).cost

    (actions, costs, details, _), best = attack(alpha, ratio, size, spacing, keys)
    assert is_counted(actions, spacing)
    allowed = ratio * best + details["booked"][:, -1]
    kept = judge(f"whole numbers, shift {shift}", costs.sum(axis=1), allowed, details)
    if shift == 1:
        curvature = alpha + ratio / ((ratio - 1) / (1 + k) - 1 / k)
        assert check_booked(details["booked"], curvature * spacing**2 / 8, kept) > 0.5


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


@pytest.mark.parametrize(("ramp", "least"), [(None, 0.2), (3.0, 0.0)])
def test_the_optimum_in_whole_numbers_is_near_the_oracle(ramp, least):
    """The best whole numbers by dynamic programming over the levels of the box, for contexts that are half-way often."""
    levels, steps, gaps = np.arange(21.0), 60, []
    change = levels[:, None] - levels
    for seed, alpha in enumerate((0.1, 1.0, 10.0, 100.0)):
        contexts = np.random.default_rng(seed).uniform(0, 20, size=steps)
        contexts[::2] = np.floor(contexts[::2]) + 0.5
        contexts = np.full(steps, 7.5) if alpha == 0.1 else contexts
        move = np.where(np.abs(change) <= (np.inf if ramp is None else ramp), alpha / 2 * change**2, np.inf)
        to_go = np.where(levels == 7, 0.0, np.inf)
        for y in contexts:
            to_go = (to_go + move).min(axis=1) + (levels - y) ** 2 / 2
        problem = track(alpha, actions=ec.Box(0.0, 20.0), ramp=ramp, spacing=1.0)
        gaps.append((to_go.min() - float(ec.oracle(problem, ec.Instance([7.0], contexts[:, None])).cost)) / steps)
        assert -1e-9 <= gaps[-1] <= (1 + alpha) / 8 * (1 + 1e-9)
        gaps[-1] /= (1 + alpha) / 8
    assert max(gaps) > least


def test_promises_that_limits_do_not_leave_are_refused():
    start = ec.Start(jnp.zeros(1), jnp.zeros((0, 1)))
    by_distance = ec.Problem(ec.SquaredTracking(), ec.LinearSwitching(1.0), ec.Limited(ramp=0.1, spacing=0.05))
    with pytest.raises(ec.NotApplicableError, match="ramp"):
        ec.oracle(by_distance, ec.Instance([0.0], [[1.0]]))
    with pytest.raises(ec.NotApplicableError, match="ramp"):
        ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(10.0, 1), ec.Limited(ramp=1.0), ec.Delayed(1))
    for agent, problem in [
        (ec.Competitive(ec.ROBD()), track(10.0, ramp=1.0)),
        (ec.Guarded(ec.ROBD()), track(10.0, ramp=1.0)),
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
