"""Actions that share a total: independent referees for each solver, gradients, hostile runs of `Guarded`, refusals."""

import dataclasses
import os

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ecl2o as ec
from ecl2o.policy.policy import with_action_limits
from ecl2o.running.stepper import Stepper
from ecl2o.solvers.shared_total import narrow_bounds, project_on_total
from ecl2o.solvers.total_path import minimize_with_total
from matrices import spd

RUNS = int(os.environ.get("ECL2O_HOSTILE_RUNS", "200"))  # of each kind; 20000 is a thorough attack
STEPS, DIM = 5, 3
A, Q = spd(DIM, 1, 1.0, 3.0), spd(DIM, 2, 0.5, 4.0)
LOWER, UPPER = np.array([-0.2, 0.0, -0.5]), np.array([1.0, 1.5, 2.0])
EXACT = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}
DISPATCH = ec.Problem(ec.Quadratic(A, covariates=1), ec.Mahalanobis(Q), ec.Total(lower=LOWER, upper=UPPER, column=-1))


def draw_day(seed=0):
    """A day whose totals are the last numbers of its contexts; some bounds are active at every step."""
    rng = np.random.default_rng(seed)
    totals = rng.uniform(LOWER.sum() + 0.1, UPPER.sum() - 0.1, STEPS)
    return ec.Instance([0.5, 0.5, 0.5], np.c_[rng.normal(size=(STEPS, DIM)) * 2, totals])


def referee(x0, contexts, weights=(1.0, 0.0, 0.0), advice=None):
    """The cheapest path by cvxpy; for one step with the weights of R_lambda."""
    x, cost, before = cp.Variable((len(contexts), DIM)), 0.0, np.asarray(x0)
    for t, row in enumerate(contexts):
        cost += 0.5 * cp.quad_form(x[t] - row[:DIM], A) + weights[0] * cp.quad_form(x[t] - before, Q)
        before = x[t]
    if advice is not None:
        cost += weights[2] * cp.quad_form(x[0] - advice, Q)
    where = [x >= LOWER[None], x <= UPPER[None], cp.sum(x, axis=1) == contexts[:, -1]]
    problem = cp.Problem(cp.Minimize(cost), where)
    problem.solve(solver="CLARABEL", **EXACT)
    return x.value, problem.value


numbers = st.integers(-(10**9), 10**9).map(lambda thousandths: thousandths / 1000)
widths = st.integers(0, 9000).map(lambda thousandths: thousandths / 1000)
project = jax.jit(project_on_total)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(numbers, widths, widths), min_size=3, max_size=3), st.floats(0, 1))
def test_the_projection_satisfies_its_optimality_conditions(rows, share):
    point, below, above = map(np.array, zip(*rows, strict=True))
    lower, upper = -below, above
    total = lower.sum() + share * (upper - lower).sum()
    x = np.asarray(project(*map(jnp.asarray, (point, total, lower, upper))))
    assert (lower <= x).all()
    assert (x <= upper).all()
    assert abs(x.sum() - total) < 1e-13 * (1 + below.sum() + above.sum())
    moved, slack = point - x, 1e-9 * (1 + np.abs(point).max())
    most, least = moved[x < upper].max(initial=-np.inf), moved[x > lower].min(initial=np.inf)
    assert most <= least + slack  # one multiplier: free coordinates move alike, held ones would move further


def test_far_points_and_sets_of_one_point_are_projected_exactly():
    far, low, up = jnp.array([1e15, 1e15 + 0.3, -1e12]), jnp.zeros(3), jnp.array([1.0, 1.0, 5.0])
    assert abs(float(jnp.sum(project_on_total(far, jnp.array(1.7), low, up))) - 1.7) < 1e-12
    assert project_on_total(far, jnp.array(7.0), low, up).tolist() == [1.0, 1.0, 5.0]
    unbounded = project_on_total(jnp.array([3.0, 5.0]), jnp.array(2.0), -jnp.inf * jnp.ones(2), jnp.inf * jnp.ones(2))
    assert unbounded.tolist() == [0.0, 2.0]
    assert [end.tolist() for end in narrow_bounds(jnp.array(6.5), low, up)] == [[0.5, 0.5, 4.5], [1.0, 1.0, 5.0]]


def test_one_point_agrees_with_a_referee_also_where_nothing_can_move():
    """Over random matrices and totals, some of them those of all bounds together."""
    rng, count = np.random.default_rng(3), 400
    root = rng.normal(size=(count, 2, 2))
    H, centre = (
        root @ np.swapaxes(root, 1, 2) + 0.05 * np.eye(2),
        10 ** rng.uniform(-1, 3, (count, 1)) * rng.normal(size=(count, 2)),
    )
    lower, upper = -rng.exponential(size=(count, 2)), rng.exponential(size=(count, 2))
    total = lower.sum(1) + rng.uniform(size=count) * (upper - lower).sum(1)
    total[:20], total[20:40] = upper[:20].sum(1), lower[20:40].sum(1)

    def solve(H, centre, lower, upper, total):
        return minimize_with_total(_bowl, centre, (H, centre), lower, upper, total)

    found = jax.jit(jax.vmap(solve))(*map(jnp.asarray, (H, centre, lower, upper, total)))
    x = np.asarray(found.x)
    assert bool(found.converged.all())
    assert np.abs(x.sum(1) - total).max() < 1e-12
    # On the segment x = (s, total - s) the minimum is that of a parabola, clipped.
    low, high = np.maximum(lower[:, 0], total - upper[:, 1]), np.minimum(upper[:, 0], total - lower[:, 1])
    way = np.array([1.0, -1.0])
    at_zero = np.einsum("ni,nij,j->n", np.stack([np.zeros(count), total], 1) - centre, H, way)
    best = np.clip(-at_zero / np.einsum("i,nij,j->n", way, H, way), low, high)
    assert np.abs(x[:, 0] - best).max() < 1e-7


def _bowl(x, parameters):
    H, centre = parameters
    return 0.5 * (x - centre) @ H @ (x - centre)


def test_oracle_plans_and_calibrator_agree_with_cvxpy():
    day = draw_day()
    contexts, x0 = np.asarray(day.contexts), np.asarray(day.x0)
    best = ec.oracle(DISPATCH, day)
    path, cost = referee(x0, contexts)
    assert bool(best.converged.all())
    assert abs(float(best.cost) - cost) < 1e-9 * cost
    assert np.abs(np.asarray(best.actions) - path).max() < 1e-7
    plan = ec.rollout(ec.RHC(STEPS - 1), DISPATCH, day)
    assert np.abs(np.asarray(plan.actions) - path).max() < 1e-7
    advice = np.array([2.0, -1.0, 0.3])
    weights = ec.Weights(1.0, None, 0.7)
    prepared = ec.Calibration.of(DISPATCH, weights, DIM)
    action, converged = ec.calibrate(DISPATCH, prepared, day.contexts[0], day.x0, jnp.asarray(advice))
    expected, _ = referee(x0, contexts[:1], (1.0, 0.0, 0.7), advice)
    assert bool(converged)
    assert np.abs(np.asarray(action) - expected[0]).max() < 1e-7
    for actions in (best.actions, plan.actions, action[None]):
        x, totals = np.asarray(actions), contexts[: len(actions), -1]
        assert np.abs(x.sum(1) - totals).max() < 1e-12
        assert ((x >= LOWER) & (x <= UPPER)).all()
    held = (np.abs(np.asarray(best.actions) - LOWER) < 1e-9) | (np.abs(np.asarray(best.actions) - UPPER) < 1e-9)
    assert held.any()
    assert not held.all()


def test_every_kind_of_agent_stays_in_a_moving_set_and_costs_at_least_the_optimum():
    day = draw_day(1)
    best, totals = float(ec.oracle(DISPATCH, day).cost), np.asarray(day.contexts[:, -1])
    wild = ec.advisors.Fixed(9 * np.random.default_rng(2).normal(size=(STEPS, DIM)))
    for agent in (ec.PureML(wild), ec.OGD(), ec.ROBD(), ec.AFHC(1), ec.RHGD(1), ec.Guarded(wild, ec.PureML(wild))):
        run = ec.rollout(agent, DISPATCH, day)
        x = np.asarray(run.actions)
        assert bool(run.converged.all()), type(agent)
        assert np.abs(x.sum(1) - totals).max() < 1e-9, type(agent)
        assert ((x >= LOWER - 1e-9) & (x <= UPPER + 1e-9)).all(), type(agent)
        assert float(run.cost) >= best * (1 - 1e-9), type(agent)


def test_gradients_are_those_of_central_differences_with_active_bounds():
    """Through R-OBD's steps and through the oracle: contexts, totals among them, bounds, and the action before."""
    day, weights = draw_day(4), jnp.asarray(np.random.default_rng(5).normal(size=(STEPS, DIM)))

    def of_actions(solve):
        def value(contexts, lower, x0):
            actions = ec.Total(lower=lower, upper=UPPER, column=-1)
            problem = dataclasses.replace(DISPATCH, actions=actions)
            return jnp.sum(weights * solve(problem, ec.Instance(x0, contexts)).actions)

        return value

    at = (day.contexts, jnp.asarray(LOWER), day.x0)
    for solve in (ec.oracle, lambda problem, instance: ec.rollout(ec.Greedy(), problem, instance)):
        value = jax.jit(of_actions(solve))
        slopes = jax.jit(jax.grad(of_actions(solve), (0, 1, 2)))(*at)
        rng, step = np.random.default_rng(6), 1e-4
        for _ in range(4):
            way = [jnp.asarray(rng.normal(size=each.shape)) for each in at]
            ahead, behind = (value(*(a + sign * step * w for a, w in zip(at, way, strict=True))) for sign in (1, -1))
            exact = sum(float(jnp.sum(s * w)) for s, w in zip(slopes, way, strict=True))
            assert abs(float(ahead - behind) / (2 * step) - exact) < 1e-5 * (1 + abs(exact))


# --- Guarded ----------------------------------------------------------------------------------------------------------


def attack(numbers, key, dim):
    """Play hostile contexts, totals and baselines against NaN and far advice; what was played, and the baseline's actions."""
    alpha, slack, size, lower, upper = numbers
    draws, steps = jax.random.split(key, 4), 24
    baseline = size * jax.random.normal(draws[0], (steps, dim))
    advice = (
        10
        * size
        * jax.random.normal(draws[1], (steps, dim))
        * 10.0 ** jax.random.uniform(draws[1], (steps, 1), maxval=4.0)
    )
    advice = advice.at[::5].set(jnp.nan)
    movement = ec.Mahalanobis(alpha / 2 * jnp.asarray(spd(dim, 2, 0.5, 1.0)))
    hitting = ec.Quadratic(jnp.asarray(spd(dim, 1, 1.0, 3.0)), covariates=1)
    problem = ec.Problem(hitting, movement, ec.Total(lower=lower, upper=upper, column=-1))
    guard = ec.Guarded(ec.advisors.Fixed(advice), ec.advisors.Fixed(baseline), slack)
    stepper, x0 = Stepper(guard, problem), jnp.clip(jnp.zeros(dim), lower, upper)

    def step(state, given):
        key, base = given
        kind = jax.random.randint(key, (), 0, 4)
        share = jnp.clip(jax.random.uniform(key, minval=-0.3, maxval=1.3), 0.0, 1.0)  # often all that bounds allow
        total = jnp.sum(lower) + share * jnp.sum(upper - lower)
        far = base + (base - state.action) / slack  # punishes an action that is far from the baseline
        target = jnp.where(kind == 0, size * jax.random.normal(key, (dim,)), jnp.where(kind == 1, state.action, far))
        context = jnp.append(target, total)
        state, made = stepper.step(state, context)
        return state, (context, made.action, made.info.details["kept"])

    state = stepper.init(ec.Start(x0, jnp.zeros((0, dim + 1))))
    _, (contexts, actions, kept) = jax.lax.scan(step, state, (jax.random.split(draws[2], steps), baseline))
    projected = jax.vmap(lambda y, b: problem.at_context(y).actions.project(b))(contexts, baseline)
    instance = ec.Instance(x0, contexts)
    costs = [sum(map(jnp.sum, problem.costs(instance.x0, x, contexts))) for x in (actions, projected)]
    return *costs, contexts[:, -1], actions, kept.all()


@pytest.mark.parametrize("dim", [2, 3])
def test_no_hostile_run_breaks_the_promise_of_guarded_or_leaves_the_set(dim):
    rng = np.random.default_rng(dim)
    alpha, slack, size = 10 ** rng.uniform(-3, 6, RUNS), 10 ** rng.uniform(-3, 1, RUNS), 10 ** rng.uniform(-2, 3, RUNS)
    lower, upper = (sign * size[:, None] * rng.exponential(size=(RUNS, dim)) for sign in (-1, 1))
    numbers = tuple(map(jnp.asarray, (alpha, slack, size, lower, upper)))
    play = jax.jit(jax.vmap(lambda numbers, key: attack(numbers, key, dim)))
    cost, expert, totals, actions, kept = map(np.asarray, play(numbers, jax.random.split(jax.random.key(dim), RUNS)))
    used = cost / ((1 + slack) * expert)
    outside = np.maximum(lower[:, None] - actions, actions - upper[:, None]).max(axis=(1, 2)) / size
    missed = np.abs(actions.sum(axis=2) - totals).max(axis=1) / size
    print(
        f"d = {dim}: cost over promise {used.max():.15f}, outside {outside.max():.1e}, total missed {missed.max():.1e}"
    )
    assert kept.all()
    assert used.max() <= 1 + 1e-9
    assert outside.max() <= 1e-9
    assert missed.max() <= 1e-9
    assert np.quantile(used, 0.9) > 0.5  # the attack uses what is promised


def test_a_total_that_the_bounds_do_not_allow_is_an_error_or_ends_the_promise():
    day = draw_day(1)
    impossible = ec.Instance(day.x0, day.contexts.at[2, -1].set(4.6))
    with pytest.raises(ValueError, match=r"step 2 .* 4\.5, got 4\.6"):
        ec.rollout(ec.Greedy(), DISPATCH, impossible)
    wild = ec.advisors.Fixed(np.full((STEPS, DIM), 9.0))
    run = jax.jit(lambda contexts: ec.rollout(ec.Guarded(wild, wild), DISPATCH, ec.Instance(day.x0, contexts)))(
        impossible.contexts
    )
    assert run.info.details["kept"][:, 0].tolist() == [True, True, False, False, False]
    assert not bool(jax.jit(lambda c: ec.oracle(DISPATCH, ec.Instance(day.x0, c)).converged.all())(impossible.contexts))


# --- sets, files, refusals --------------------------------------------------------------------------------------------


def test_sets_reject_what_does_not_fit():
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(1.0, 2), ec.Simplex())
    flat = np.full((3, 2), 0.5)
    assert np.allclose(ec.rollout(ec.HittingMinimizer(), problem, ec.Instance([1.0, 0.0], flat)).actions, 0.5)
    for made, x0 in ((problem, [0.4, 0.4]), (problem, [1.5, -0.5])):
        with pytest.raises(ValueError, match="x0"):
            ec.rollout(ec.HittingMinimizer(), made, ec.Instance(x0, flat))
    narrow = dataclasses.replace(problem, actions=ec.Total(3.0, upper=1.0))
    with pytest.raises(ValueError, match="sums of the bounds"):
        ec.oracle(narrow, ec.Instance([1.0, 1.0], flat))
    for wrong in (
        {},
        {"total": np.inf},
        {"total": [1.0, 2.0]},
        {"total": 1.0, "lower": 2.0, "upper": 1.0},
    ):
        with pytest.raises(ValueError):
            ec.Total(**wrong)


@pytest.mark.parametrize(
    "agent",
    [
        ec.Competitive(ec.ROBD(), ratio=9.0),
        ec.Competitive(ec.ROBD(), ratio=9.0, contexts=(0.0, 1.0)),
        ec.Promises(ec.ROBD(), [ec.Promise(9.0)], contexts=(0.0, 1.0)),
        ec.LAI(),
    ],
    ids=["Competitive", "with contexts", "Promises", "LAI"],
)
def test_what_is_not_proved_is_refused(agent):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(1.0, 2), ec.Simplex())
    with pytest.raises(ec.NotApplicableError):
        ec.rollout(agent, problem, ec.Instance([1.0, 0.0], np.full((3, 2), 0.5)))


def test_problems_that_know_no_totals_refuse_them():
    costs = ec.SquaredTracking(), ec.Mahalanobis.isotropic(1.0, 2)
    with pytest.raises(ec.NotApplicableError):
        ec.Limited(ec.Simplex(), ramp=0.1)
    with pytest.raises(ec.NotApplicableError):
        ec.delayed(ec.Problem(*costs, ec.Simplex()), 1)
    with pytest.raises(ec.NotApplicableError):
        ec.constrained_oracle(DISPATCH, draw_day(), 1.0)
    with pytest.raises(ec.NotApplicableError):
        ec.oracle(ec.Problem(costs[0], ec.LinearSwitching(1.0), ec.Simplex()), ec.Instance([1.0, 0.0], np.eye(2)))


def test_a_policy_file_keeps_the_set_and_limits_narrow_it(tmp_path):
    agent = ec.Guarded(ec.HittingMinimizer(), ec.advisors.HoldStill())
    problem = ec.Problem(
        ec.SquaredTracking(covariates=1), ec.Mahalanobis.isotropic(1.0, 2), ec.Total(lower=0.0, upper=3.0, column=2)
    )
    ec.save(tmp_path / "dispatch.ecl2o", ec.Policy(agent, problem))
    loaded = ec.load(tmp_path / "dispatch.ecl2o")
    runner = ec.Runner(loaded, x0=[1.0, 1.0])
    actions = [np.asarray(runner.step(y)) for y in ([2.0, 1.0, 2.0], [0.0, 5.0, 4.0])]
    assert [round(float(x.sum()), 9) for x in actions] == [2.0, 4.0]
    assert max(x.max() for x in actions) <= 3.0
    limited = with_action_limits(loaded, 0.5, 2.5).problem.actions
    assert isinstance(limited, ec.Total)
    assert limited.column == 2
    assert np.asarray(limited.lower).tolist() == [0.5, 0.5]
    assert np.asarray(limited.upper).tolist() == [2.5, 2.5]


@pytest.mark.parametrize(
    ("point", "upper", "nearest"),
    [
        ([1e300, 0.0], 1.5, [1.5, 0.5]),
        ([1e300, 0.0], np.inf, [2.0, 0.0]),
        ([-1e300, 1e300], np.inf, [0.0, 2.0]),
        ([1e20, 1e20 + 1e6], 1.5, [0.5, 1.5]),
    ],
)
def test_far_points_are_projected_to_all_digits(point, upper, nearest):
    found = ec.Total(2.0, lower=0.0, upper=upper).project(jnp.array(point))
    np.testing.assert_array_equal(found, nearest)
