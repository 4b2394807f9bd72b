"""RHC, CHC, AFHC and RHGD: their identities and bounds, against plain-Python referees."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import ecl2o as ec
from ecl2o.agents import Observation, Start
from ecl2o.forecasters import Exact, NoisyExact, Persistence
from ecl2o.planning.receding_plan import Planner, make_plan, prepare_planner
from ecl2o.theory import decay_root
from matrices import spd

COUNT, T = 6, 5


def _bowl(x, y):  # curvature from 1.5 to 2.5
    return jnp.sum(jnp.sqrt(1 + (x - y) ** 2) - 1) + 0.75 * jnp.sum((x - y) ** 2)


LINE = ec.Problem(ec.SquaredTracking(weight=2.0), ec.Mahalanobis.isotropic(alpha=7.0, dim=1))
SPACE = ec.Problem(ec.Quadratic(spd(3, 1, 0.5, 5.0)), ec.Mahalanobis(spd(3, 2, 0.3, 4.0)))
BOXED = ec.Problem(SPACE.hitting, SPACE.switching, ec.Box(-0.5, 0.8))
CONVEX = ec.Problem(ec.ConvexCost(_bowl, strong_convexity=1.5), ec.Mahalanobis(spd(2, 3, 0.3, 4.0)), ec.Box(-0.5, 0.8))
CURVED = ec.Problem(ec.CurvedTracking(minimum=1.0), ec.Mahalanobis(spd(2, 4, 0.3, 4.0)))
PROBLEMS = {"line": LINE, "space": SPACE, "boxed": BOXED, "convex": CONVEX, "curved": CURVED}
SMOOTHNESS = {"line": None, "space": None, "boxed": None, "convex": 2.5, "curved": 9.0}


def instances_of(name, horizon=T, count=COUNT, seed=0):
    rng, dim = np.random.default_rng(seed), PROBLEMS[name].Q.shape[0]
    contexts = rng.normal(size=(count, horizon, dim))
    if name == "curved":
        contexts = np.concatenate([contexts, rng.uniform(1, 9, size=(count, horizon, 1))], axis=2)
    return ec.Instance(rng.uniform(-0.5, 0.8, size=(count, dim)), contexts)


def runs_of(agent, problem, instances, forecaster=None):
    """One compilation of the unbatched roll-out, which is much quicker to compile than the vmapped one for Newton."""
    run = jax.jit(lambda many: jax.lax.map(lambda s: ec.rollout(agent, problem, s, forecaster), many))
    return jax.device_get(run(instances))


def first_of(instances):
    return ec.Instance(np.asarray(instances.x0)[0], np.asarray(instances.contexts)[0])


@functools.cache
def best_of(name):
    problem = PROBLEMS[name]
    return jax.device_get(jax.jit(lambda many: jax.lax.map(lambda s: ec.oracle(problem, s), many))(instances_of(name)))


@functools.cache
def rhc_of(name, window):
    return runs_of(ec.RHC(window), PROBLEMS[name], instances_of(name))


def assert_same(found, expected, atol=1e-9):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


# --- receding horizon control ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["line", "space", "convex", "curved"])
def test_rhc_without_a_window_is_greedy(name):
    greedy = runs_of(ec.Greedy(), PROBLEMS[name], instances_of(name))
    assert_same(rhc_of(name, 0).actions, greedy.actions)


@pytest.mark.parametrize(
    ("name", "window"),
    [("line", T - 1), ("line", T + 2), ("space", T - 1), ("boxed", T - 1), ("convex", T), ("curved", T)],
)
def test_rhc_that_sees_the_end_is_the_oracle(name, window):
    run = rhc_of(name, window)
    assert_same(run.actions, best_of(name).actions)
    assert bool(run.converged.all())


def test_rhc_that_does_not_see_the_end_is_not_the_oracle():
    assert np.abs(rhc_of("line", T - 2).actions - best_of("line").actions).max() > 1e-4


@pytest.mark.parametrize("name", ["line", "convex"])
def test_what_is_forecast_beyond_the_end_is_not_read(name):
    """A forecaster that knows nothing of the time after the horizon may say anything about it."""
    problem, agent = PROBLEMS[name], ec.RHC(3)
    instance = first_of(instances_of(name))
    state = agent.init(problem, Start(instance.x0, instance.past, T))

    @jax.jit
    def action(forecast):
        last_but_one = Observation(instance.contexts[3], instance.x0, jnp.asarray(3), jnp.asarray(1), forecast)
        return agent.step(problem, state, last_but_one)[1]

    forecast, unknown, other = (np.asarray(instance.contexts)[[4, 0, 1]] for _ in range(3))
    unknown[1:], other[0] = np.nan, forecast[0] + 1.0
    as_it_is, without, changed = (np.asarray(action(given)) for given in (forecast, unknown, other))
    np.testing.assert_array_equal(without, as_it_is)
    assert np.abs(changed - as_it_is).max() > 1e-3


def test_excess_cost_decays_geometrically_with_the_window():
    """cost/OPT - 1 falls like r^(2 w) on isotropic quadratics."""
    problem, r = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(10.0, 1)), decay_root(1.0, 10.0)
    rng = np.random.default_rng(1)
    many = ec.Instance(rng.normal(size=(40, 1)), rng.normal(size=(40, 60, 1)))
    best = np.asarray(jax.jit(jax.vmap(lambda s: ec.oracle(problem, s).cost))(many)).sum()
    excess = [float(runs_of(ec.RHC(w), problem, many).cost.sum() / best - 1) for w in (2, 4, 6, 8)]
    rates = np.array(excess[1:]) / np.array(excess[:-1])
    np.testing.assert_allclose(rates, float(r) ** 4, rtol=0.25)


@pytest.mark.parametrize("dim", [1, 3])
def test_rhc_with_a_large_window_and_persistence_is_the_moving_average(dim):
    problem = ec.Problem(ec.SquaredTracking(weight=2.0), ec.Mahalanobis.isotropic(7.0, dim))
    rng, r = np.random.default_rng(2), float(decay_root(2.0, 7.0))
    x, contexts = rng.normal(size=dim), rng.normal(size=(T, dim))
    run = ec.rollout(ec.RHC(50, truncate=False), problem, ec.Instance(x, contexts), Persistence())
    actions = np.asarray(run.actions)
    for t, y in enumerate(contexts):
        x = y + r * (x - y)
        assert_same(actions[t], x, atol=1e-12)


@pytest.mark.parametrize("name", ["line", "space"])
def test_rhc_to_the_end_with_persistence_is_lai(name):
    persistent = runs_of(ec.RHC(T - 1), PROBLEMS[name], instances_of(name), Persistence())
    assert_same(persistent.actions, runs_of(ec.LAI(), PROBLEMS[name], instances_of(name)).actions, atol=1e-12)


def test_plans_that_run_on_differ_from_plans_that_are_cut_only_near_the_end():
    cut = rhc_of("line", 2).actions
    on = runs_of(ec.RHC(2, truncate=False), LINE, instances_of("line")).actions
    assert_same(on[:, : T - 2], cut[:, : T - 2], atol=1e-14)
    assert np.abs(on[:, T - 2 :] - cut[:, T - 2 :]).min() > 1e-8


@pytest.mark.parametrize("name", ["line", "space"])
def test_gains_equal_solving_each_plan(name):
    """The table of matrices, the same plans by `find_optimal_path`, and paths that really are that short."""
    problem, steps, first = PROBLEMS[name], 5, 3
    dim, rng = problem.Q.shape[0], np.random.default_rng(3)
    previous, contexts = rng.normal(size=dim), rng.normal(size=(steps, dim))
    table = prepare_planner(problem, dim, steps, shortest=1)
    assert table.gains is not None
    given = jnp.asarray(previous), jnp.asarray(contexts)
    plans = [
        jax.jit(lambda length, planner=p: make_plan(problem, planner, *given, length, first).actions)
        for p in (table, Planner(None, steps, 1))
    ]
    for length in range(1, steps + 1):
        short = _plan_by_dense_algebra(problem, previous, contexts[:length])[:first]
        for plan in plans:
            assert_same(plan(length)[: len(short)], short, atol=1e-13)


def test_windows_too_long_for_a_table_are_solved_at_every_step():
    assert prepare_planner(LINE, 1, 3000, shortest=1).gains is None
    assert prepare_planner(LINE, 1, 3000, shortest=3000).gains.shape == (1, 1, 3001)


# --- committed horizon control ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["line", "space", "convex"])
def test_chc_that_commits_one_action_is_rhc(name):
    committed = runs_of(ec.CHC(2, 1), PROBLEMS[name], instances_of(name))
    assert_same(committed.actions, rhc_of(name, 2).actions, atol=1e-12)


@pytest.mark.parametrize("name", ["line", "space"])
def test_chc_of_one_step_is_greedy(name):
    assert_same(runs_of(ec.CHC(0, 1), PROBLEMS[name], instances_of(name)).actions, rhc_of(name, 0).actions)


@pytest.mark.parametrize("name", ["line", "space", "boxed"])
def test_chc_whose_every_copy_sees_the_end_is_the_oracle(name):
    enough = runs_of(ec.CHC(T, 2), PROBLEMS[name], instances_of(name))  # n = T + v - 1
    assert_same(enough.actions, best_of(name).actions)
    assert bool(enough.converged.all())


def test_one_step_less_is_not_enough():
    short = runs_of(ec.CHC(T - 1, 2), LINE, instances_of("line"))
    assert np.abs(short.actions - best_of("line").actions).max() > 1e-6


def test_afhc_commits_whole_plans():
    whole = runs_of(ec.AFHC(2), SPACE, instances_of("space")).actions
    assert_same(whole, runs_of(ec.CHC(2, 3), SPACE, instances_of("space")).actions, atol=1e-14)


@functools.cache
def _value_and_slope(problem_name):
    def cost(flat, previous, contexts):
        path = flat.reshape(contexts.shape[0], previous.shape[0])
        hitting, switching = PROBLEMS[problem_name].costs(previous, path, contexts)
        return jnp.sum(hitting) + jnp.sum(switching)

    return jax.jit(jax.value_and_grad(cost))


def _plan_by_scipy(problem, previous, contexts):
    """The cheapest path by a generic solver."""
    name = next(name for name, known in PROBLEMS.items() if known is problem)
    length, dim = len(contexts), len(previous)
    lower, upper = (np.tile(bound, length) for bound in problem.actions.bounds(dim, jnp.float64))
    found = scipy.optimize.minimize(
        lambda x: tuple(np.asarray(part) for part in _value_and_slope(name)(x, previous, contexts)),
        np.tile(previous, length),
        jac=True,
        bounds=np.stack([lower, upper], axis=1),
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 2000},
    )
    return found.x.reshape(length, dim)


def _plan_by_dense_algebra(problem, previous, contexts):
    """The cheapest path of an unbounded quadratic, from the normal equations written out in full."""
    length, dim = len(contexts), len(previous)
    A, Q = np.asarray(problem.hitting.curvature(None, dim)), np.asarray(problem.Q)
    difference = np.eye(length) - np.eye(length, k=-1)
    hessian = np.kron(np.eye(length), A) + np.kron(difference.T @ difference, 2 * Q)
    right = (contexts @ A).reshape(-1)
    right[:dim] += 2 * Q @ previous
    return np.linalg.solve(hessian, right).reshape(length, dim)


def fixed_horizon_control(plan, problem, k, steps, commitment, x0, contexts, forecasts):
    """FHC^(k) as section 3 words it, for t = 1..T; forecasts[t] are those of y_{t+1}.. made at t (from 1)."""
    horizon, x = len(contexts), {0: x0}

    def known(t, last):
        return np.concatenate([contexts[t - 1 : t], forecasts[t - 1][: last - t]])

    for tau in range(k - 2 * commitment, horizon + 1):
        if (tau - k) % commitment or tau + commitment - 1 < 1:
            continue
        first, last = max(tau, 1), min(horizon, tau + steps - 1)
        if tau <= 0 and any(t in x for t in range(1, horizon + 1)):
            raise AssertionError("two blocks before the first step")
        planned = plan(problem, x[first - 1], known(first, last))
        for t in range(first, min(horizon, tau + commitment - 1) + 1):
            x[t] = planned[t - first]
    return np.stack([x[t] for t in range(1, horizon + 1)])


def _fhc_paths(name, instance, window, commitment, plan, forecaster, key):
    prepared = jax.jit(
        lambda contexts: jax.vmap(forecaster.prepare(contexts, window, key).at)(jnp.arange(len(contexts)))
    )
    forecasts = np.asarray(prepared(instance.contexts))
    x0, contexts = np.asarray(instance.x0), np.asarray(instance.contexts)
    return np.stack(
        [
            fixed_horizon_control(plan, PROBLEMS[name], k, window + 1, commitment, x0, contexts, forecasts)
            for k in range(1, commitment + 1)
        ]
    )


@pytest.mark.parametrize(
    ("name", "window", "commitment"), [("line", 2, 2), ("line", 9, 4), ("space", 2, 3), ("space", 5, 2)]
)
def test_chc_is_the_mean_of_fixed_horizon_controllers(name, window, commitment):
    instance = first_of(instances_of(name, horizon=8, count=1, seed=4))
    noisy, key = NoisyExact(sigma=0.5), jax.random.key(window)
    paths = _fhc_paths(name, instance, window, commitment, _plan_by_dense_algebra, noisy, key)
    run = ec.rollout(ec.CHC(window, commitment), PROBLEMS[name], instance, noisy, key)
    assert_same(run.actions, paths.mean(axis=0), atol=1e-11)


@pytest.mark.parametrize(("name", "plan"), [("space", _plan_by_dense_algebra), ("convex", _plan_by_scipy)])
def test_chc_costs_at_most_the_mean_of_its_copies(name, plan):
    """Jensen, with exact forecasts; and in the convex, boxed case the copies are what a generic solver makes them."""
    problem = PROBLEMS[name]
    instance = first_of(instances_of(name, count=1, seed=5))
    paths = _fhc_paths(name, instance, 2, 2, plan, Exact(), None)
    run = ec.rollout(ec.CHC(2, 2), problem, instance)
    assert_same(run.actions, paths.mean(axis=0), atol=1e-5)
    bills = jax.jit(jax.vmap(lambda path: problem.costs(instance.x0, path, instance.contexts)))
    costs = sum(np.asarray(bill).sum(axis=1) for bill in bills(paths))
    assert float(run.cost) < np.mean(costs)


# --- receding horizon gradient descent --------------------------------------------------------------------------------


def offline_gradient_descent(problem, instance, steps, smoothness):
    """The path of online gradient descent, then projected gradient steps on the whole path; returns both."""
    project, gradient, Q = problem.actions.project, problem.hitting.gradient, problem.Q
    start = [instance.x0]
    for y in instance.contexts[:-1]:
        start.append(project(start[-1] - gradient(start[-1], y) / smoothness))
    x = start = jnp.stack(start)
    for _ in range(steps):
        moves = jnp.diff(x, axis=0, prepend=instance.x0[None]) @ (2 * Q)
        slope = jax.vmap(gradient)(x, instance.contexts) + moves
        slope = slope.at[:-1].add(-moves[1:])
        x = jax.vmap(project)(x - slope / (smoothness + 4 * problem.beta))
    return start, x


def _smoothness(name, problem):
    return SMOOTHNESS[name] or float(np.linalg.eigvalsh(problem.hitting.curvature(None, problem.Q.shape[0]))[-1])


@pytest.mark.parametrize(
    ("name", "window"),
    [("line", 0), ("line", 7), ("space", 1), ("space", 3), ("boxed", 3), ("convex", 2), ("curved", 7)],
)
def test_rhgd_is_offline_gradient_descent_within_its_bound(name, window):
    problem, l, W = PROBLEMS[name], _smoothness(name, PROBLEMS[name]), window + 1
    many, best, steepest = instances_of(name), best_of(name), l + 4 * float(problem.beta)
    runs = runs_of(ec.RHGD(window, smoothness=SMOOTHNESS[name]), problem, many)
    start, expected = jax.device_get(jax.jit(jax.vmap(lambda s: offline_gradient_descent(problem, s, W, l)))(many))
    assert_same(runs.actions, expected, atol=1e-13)
    away = np.sum((start - best.actions) ** 2, axis=(1, 2))
    bound = 0.5 * steepest * away * (1 - float(problem.m) / steepest) ** W
    assert bool((runs.cost >= best.cost - 1e-12).all())
    assert bool((runs.cost - best.cost <= bound).all())


@pytest.mark.parametrize("name", ["line", "convex"])
def test_rhgd_with_many_steps_is_the_oracle(name):
    runs = runs_of(ec.RHGD(500, smoothness=SMOOTHNESS[name]), PROBLEMS[name], instances_of(name))
    assert_same(runs.actions, best_of(name).actions)


def test_rhgd_without_a_horizon_differs_only_by_the_end():
    """Its last action of a run cut at T = 1 ignores tomorrow; one that runs on does not."""
    instance = ec.Instance([0.0], [[1.0]])
    cut, on = (float(ec.rollout(ec.RHGD(0, truncate=t), LINE, instance).actions[0, 0]) for t in (True, False))
    l, beta, a = 2.0, 7.0, 7.0
    assert cut == pytest.approx(l / (l + 4 * beta))
    assert on == pytest.approx((l + a * 1.0) / (l + 4 * beta))  # x_2^(0) = 1 pulls with 2Q = a


# --- what they ask for -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", [ec.RHC(2), ec.CHC(2, 2), ec.AFHC(2), ec.RHGD(2)])
def test_plans_cannot_be_cut_at_an_unknown_horizon(agent):
    start = Start(jnp.zeros(1), jnp.zeros((0, 1)), None)
    with pytest.raises(ValueError, match="truncate=False"):
        agent.init(LINE, start)


@pytest.mark.parametrize("agent", [ec.RHC(2, False), ec.CHC(2, 2, False), ec.AFHC(2, False), ec.RHGD(2, False)])
def test_without_a_horizon_they_run_on(agent):
    """Step by step, told of no horizon, the actions are those of a roll-out that runs on."""
    instance = first_of(instances_of("line"))
    prepared = Exact().prepare(instance.contexts, 2, None)
    state, x, actions = agent.init(LINE, Start(instance.x0, instance.past, None)), instance.x0, []

    @jax.jit
    def step(state, y, x, t):
        return agent.step(LINE, state, Observation(y, x, t, None, prepared.at(t)))

    for t, y in enumerate(np.asarray(instance.contexts)):
        state, x, _ = step(state, y, x, t)
        actions.append(np.asarray(x))
    assert_same(np.stack(actions), ec.rollout(agent, LINE, instance).actions, atol=1e-14)


def test_a_missing_forecast_is_refused():
    state = ec.RHC(2, truncate=False).init(LINE, Start(jnp.zeros(1), jnp.zeros((0, 1)), None))
    with pytest.raises(ValueError, match="forecasts of 2 future contexts, got none"):
        ec.RHC(2, truncate=False).step(LINE, state, Observation(jnp.zeros(1), jnp.zeros(1), jnp.asarray(0)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ec.RHC(-1), "window must be"),
        (lambda: ec.RHC(1.5), "window"),
        (lambda: ec.CHC(2, 4), r"commitment must be from 1 to window \+ 1 = 3, got 4"),
        (lambda: ec.CHC(2, 0), "commitment"),
        (lambda: ec.RHGD(1, smoothness=-2.0), "smoothness must be positive"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize("name", ["convex", "curved"])
def test_rhgd_asks_for_the_largest_curvature(name):
    problem = PROBLEMS[name]
    with pytest.raises(ValueError, match="smoothness="):
        ec.RHGD(1).init(problem, Start(jnp.zeros(2), jnp.zeros((0, 2)), 3))
