"""`Promises`: what it equals, restarts, refusals, tracing, gradients. That all are kept: properties/test_joint_promises.py."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents.guards.references.base import PromiseTerms
from ecl2o.agents.guards.references.baseline import Baseline
from ecl2o.agents.guards.references.optimum import Optimum
from ecl2o.policy.clock import StepClock
from ecl2o.policy.contract import Contract
from matrices import spd

T = 12
LINE = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
SPACE = ec.Problem(ec.Quadratic(spd(3, 5, 1.0, 6.0)), ec.Mahalanobis(spd(3, 6, 0.4, 3.0)))
TODAY = ec.Promise(1.9, ec.Reference.EXPERT, "ROBD")


def data(dim: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(T, dim))
    return rng.normal(size=dim), contexts, contexts + 0.7 * rng.normal(size=(T, dim))


def test_a_second_promise_that_never_binds_changes_nothing():
    """One promise alone, as `Competitive` has it, pulls from another point; on a line both clip to the same interval."""
    x0, contexts, advice = data(1)
    advisor, day = ec.advisors.Fixed(0.4 * advice), ec.Instance(x0, contexts)
    alone = ec.rollout(ec.Competitive(advisor, ratio=2.0), LINE, day)
    run = ec.rollout(ec.Promises(advisor, [ec.Promise(2.0), ec.Promise(1e6)]), LINE, day)
    assert 0 < float(run.info.details["active"].mean()) < 1
    np.testing.assert_allclose(run.actions, alone.actions, rtol=1e-10)
    for name in ("cost", "reference", "ratio", "left"):
        np.testing.assert_allclose(run.info.details[name][:, :1], alone.info.details[name], rtol=1e-9, atol=1e-12)
    assert eqx.tree_equal(ec.Promises(advisor, [ec.Promise(2.0)]), ec.Competitive(advisor, ratio=2.0))


def test_accounts_restart_by_the_clock():
    """Costs and references of each promise begin anew at its own period, also in a run that starts within one."""
    x0, contexts, advice = data(1)
    promises = [ec.Promise(2.0), ec.Promise(2.5, period=5), ec.Promise(3.0, period=4, rolling=True)]
    guard = ec.Promises(ec.advisors.Fixed(advice), promises)
    policy = ec.Policy(guard, LINE)
    runner, costs = ec.Runner(policy, x0), []
    assert runner.policy.contract.promise.also[1].rolling
    run = ec.rollout(guard, LINE, ec.Instance(x0, contexts))
    step_costs = np.asarray(run.hitting + run.switching)
    for t, context in enumerate(contexts):
        action = runner.step(context)
        np.testing.assert_allclose(action, run.actions[t], rtol=1e-12)
        costs.append(np.asarray(runner.info.details["cost"]))
    for t in range(T):
        np.testing.assert_allclose(costs[t][:2], [step_costs[: t + 1].sum(), step_costs[t - t % 5 : t + 1].sum()])
        windows = [step_costs[s : t + 1].sum() for s in range(max(t - 3, 0), t + 1)]
        assert np.isclose(windows, costs[t][2]).any()


def test_a_run_may_start_within_a_period():
    """On a clock, the day's account restarts at midnight; a run from 22 o'clock has two steps until then."""
    guard = ec.Promises(
        ec.ROBD(), [ec.Promise(2.0), ec.Promise(2.5, period=24), ec.Promise(3.0, period=5, rolling=True)]
    )
    contract = Contract(columns=["load"], step_minutes=60.0, steps_per_day=24, day_start_minutes=0)
    runner = ec.Runner(ec.Policy(guard, LINE, contract=contract), [0.0], start_time="2024-03-04 22:00")
    costs = []
    for context in np.sin(np.arange(6.0))[:, None]:
        runner.step(context)
        costs.append(np.asarray(runner.info.details["cost"]))
    total, day, _ = np.array(costs).T
    np.testing.assert_allclose(day, np.where(np.arange(6) < 2, total, total - total[1]))
    assert StepClock(runner.policy).cycle == 24


def test_the_order_of_promises_does_not_matter():
    x0, contexts, advice = data(3)
    promises = [TODAY, ec.Promise(2.0), ec.Promise(2.5, period=5)]
    runs = [
        ec.rollout(ec.Promises(ec.advisors.Fixed(advice), listed, baseline=ec.ROBD()), SPACE, ec.Instance(x0, contexts))
        for listed in (promises, promises[::-1])
    ]
    np.testing.assert_allclose(runs[0].actions, runs[1].actions, rtol=1e-10)
    np.testing.assert_allclose(runs[0].info.details["left"], runs[1].info.details["left"][:, ::-1], atol=1e-10)
    # The problem is a constant of this program, which the set-up condition is read from.
    guard = ec.Promises(ec.advisors.Fixed(advice), promises, baseline=ec.ROBD())
    compiled = jax.jit(lambda y: ec.rollout(guard, SPACE, ec.Instance(x0, y)))
    np.testing.assert_allclose(compiled(contexts).actions, runs[0].actions, rtol=1e-10)
    expert = ec.rollout(ec.ROBD(), SPACE, ec.Instance(x0, contexts)).cost
    np.testing.assert_allclose(runs[0].info.details["reference"][-1, 0], expert, rtol=1e-12)


def test_refusals():
    advisor, (x0, contexts, _) = ec.advisors.Fixed(np.zeros((T, 1))), data(1)
    day = ec.Instance(x0, contexts)
    for promises, baseline in [
        ([], None),
        ([TODAY, ec.Promise(2.0)], None),
        ([ec.Promise(2.0)], ec.ROBD()),
        ([TODAY], ec.ROBD()),  # `Guarded` allows more
        ([ec.Promise(2.0, contexts=((0.0, 1.0),))], None),
        ([ec.Promise(2.0, also=(ec.Promise(3.0),))], None),
    ]:
        with pytest.raises(ValueError):
            ec.Promises(advisor, promises, baseline)
    for listed in ([ec.Promise(1.7)], [ec.Promise(2.0), ec.Promise(1.05, ec.Reference.EXPERT, "ROBD")]):
        baseline = ec.ROBD() if len(listed) > 1 else None
        with pytest.raises(ec.NotApplicableError, match=r"1\.7298438"):
            ec.rollout(ec.Promises(advisor, listed, baseline), LINE, day)
    guard = ec.Promises(advisor, [ec.Promise(2.0), ec.Promise(2.5, period=4)])
    bounded = ec.Problem(LINE.hitting, LINE.switching, ec.Box(-9.0, 9.0))
    for problem in (bounded, ec.Problem(ec.ConvexCost(lambda x, y: jnp.sum((x - y) ** 2), 2.0), LINE.switching)):
        with pytest.raises(ec.NotApplicableError):
            ec.rollout(guard, problem, day)


def test_bounds_are_kept_and_contexts_outside_end_the_promises():
    problem = ec.Problem(LINE.hitting, LINE.switching, ec.Box(-1.0, 1.0))
    far = ec.advisors.Fixed(np.where(np.arange(T) % 2, 50.0, -50.0)[:, None])
    guard = ec.Promises(far, [ec.Promise(1.8), ec.Promise(2.5, period=4)], contexts=(-1.0, 1.0))
    contexts = np.clip(data(1)[1], -1, 1)
    run = ec.rollout(guard, problem, ec.Instance([0.5], contexts))
    assert bool(run.converged.all())
    assert float(jnp.abs(run.actions).max()) <= 1
    assert float(run.info.details["ratio"][:, 0].max()) <= 1.8 * (1 + 1e-9)
    assert guard.promise(problem).contexts == ((-1.0, 1.0),)
    contexts[5] = 1.5
    run = ec.rollout(guard, problem, ec.Instance([0.5], contexts))
    restarts = (np.arange(T) < 5) | (np.arange(T) >= 8)
    np.testing.assert_array_equal(run.info.details["kept"].T, [np.arange(T) < 5, restarts])
    np.testing.assert_array_equal(run.converged, np.arange(T) < 5)  # the run's promise does not come back


@pytest.mark.parametrize(
    ("name", "bad"), [("ratio", (1.7, np.nan, np.inf, 0.5)), ("allowance", (-1.0, np.nan, np.inf))]
)
def test_numbers_that_a_compiled_program_turns_out_to_have_end_the_promises(name, bad):
    x0, contexts, advice = data(1)

    @jax.jit
    @jax.vmap
    def play(number):
        terms = PromiseTerms(**{"ratio": 2.0, name: number}), PromiseTerms(2.5, period=5)
        guard = ec.Guard(ec.advisors.Fixed(advice), terms, (Optimum(),))
        run = ec.rollout(guard, LINE, ec.Instance(x0, contexts))
        return run.converged, jnp.isfinite(run.actions).all()

    converged, finite = jax.device_get(play(jnp.array([1.8, *bad])))
    np.testing.assert_array_equal(converged, [[True] * T] + [[False] * T] * len(bad))
    assert finite.all()


def test_a_context_that_is_no_number_ends_the_promises_until_each_restarts():
    contexts = data(1)[1]
    contexts[3] = np.nan
    guard = ec.Promises(ec.ROBD(), [ec.Promise(2.0, period=4), ec.Promise(2.5, period=6)])
    run = jax.device_get(jax.jit(lambda y: ec.rollout(guard, LINE, ec.Instance(jnp.zeros(1), y)))(contexts))
    kept = [(np.arange(T) < 3) | (np.arange(T) >= again) for again in (4, 6)]
    np.testing.assert_array_equal(run.info.details["kept"].T, kept)
    np.testing.assert_array_equal(run.converged, kept[1])
    assert np.isfinite(run.actions).all()


@pytest.mark.parametrize("dim", [1, 3])
def test_gradients_match_central_differences(dim):
    """In contexts, advice, x0 and ratios at once, through runs in which the guard is active at some steps, not at others."""
    problem, weights = (LINE, SPACE)[dim > 1], np.random.default_rng(9).normal(size=(T, dim))

    def score(values):
        x0, contexts, advice, ratios = values
        listed = PromiseTerms(ratios[0]), PromiseTerms(ratios[1], period=5), PromiseTerms(ratios[2], reference=1)
        terms = *listed, PromiseTerms(ratios[3], 0.1, 4, True)
        guard = ec.Guard(ec.advisors.Fixed(0.4 * advice), terms, (Optimum(), Baseline(ec.Greedy())))
        run = ec.rollout(guard, problem, ec.Instance(x0, contexts))
        return jnp.sum(weights * run.actions) + run.cost, run.info.details["active"]

    drawn = [(*data(dim, seed), np.array([1.9, 2.4, 1.95, 3.0]) + 0.8 * seed) for seed in range(5)]
    values = jax.tree.map(lambda *leaves: np.stack(leaves), *drawn)
    rng = np.random.default_rng(4)
    directions = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), values)
    evaluate = jax.jit(lambda many: jax.lax.map(jax.value_and_grad(score, has_aux=True), many))
    (_, active), slopes = jax.device_get(evaluate(values))
    assert 0.1 < active.mean() < 0.9
    step = 3e-6
    ahead, behind = (
        np.asarray(evaluate(jax.tree.map(lambda v, d, s=s: v + s * d, values, directions))[0][0]) for s in (step, -step)
    )
    pairs = zip(jax.tree.leaves(slopes), jax.tree.leaves(directions), strict=True)
    found = sum(np.sum((g * d).reshape(5, -1), axis=1) for g, d in pairs)
    np.testing.assert_allclose(found, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-6)


def test_a_network_is_trained_through_them():
    key = jax.random.key(0)
    guard = ec.Promises(
        ec.PureML(ec.advisors.MLP(1, 1, width=4, depth=1, key=key)), [ec.Promise(2.0), ec.Promise(2.5, period=6)]
    )
    days = ec.Instance(np.zeros((8, 1)), np.sin(np.arange(T) / 2 + np.arange(8)[:, None])[..., None])

    def cost(agent):
        return float(np.mean(eqx.filter_jit(jax.vmap(lambda day: ec.rollout(agent, LINE, day).cost))(days)))

    fitted = ec.fit(guard, LINE, days, loss=ec.StandaloneLoss(), key=key, steps=60, batch=8, learning_rate=3e-2)
    assert cost(fitted.agent) < 0.98 * cost(guard)


def test_files_hold_them(tmp_path):
    guard = ec.Promises(ec.ROBD(), [TODAY, ec.Promise(2.0, allowance=0.5), ec.Promise(2.5, period=24)], ec.Greedy())
    ec.save(tmp_path / "policy.ecl2o", ec.Policy(guard, LINE))
    loaded = ec.load(tmp_path / "policy.ecl2o")
    assert eqx.tree_equal(loaded.agent, guard)
    assert loaded.contract.promise == guard.promise(LINE)
    assert ec.Promise.from_json(guard.promise(LINE).to_json()) == guard.promise(LINE)


def test_what_is_left_is_the_ratio_times_the_reference_and_one_allowance_less_the_cost():
    ratios, allowances = np.array([1.8, 2.5]), np.array([0.5, 0.25])
    promises = [ec.Promise(1.8, allowance=0.5), ec.Promise(2.5, allowance=0.25, period=12)]
    contexts = np.random.default_rng(0).normal(size=(24, 1))
    advice = ec.advisors.Fixed(1e3 * (-1.0) ** np.arange(24)[:, None])
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    details = ec.rollout(ec.Promises(advice, promises), problem, ec.Instance(np.zeros(1), contexts)).info.details
    left = ratios * details["reference"] + allowances - details["cost"]
    np.testing.assert_allclose(details["left"], left, atol=1e-10)
    assert (left > -1e-10).all()
