"""Switch: its rule step by step, its proven factor, and the cases where it must be one of its legs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import ecl2o as ec
from ecl2o.agents import AbstractAgent, Info, Observation, Start
from ecl2o.problem.arrays import to_device
from ecl2o.theory import switch_bound

HORIZON, GAMMA = 12, 1.5
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(10.0, 1))


@eqx.filter_jit
def _runs(instance, advice, mode="threshold", gamma=GAMMA):
    """Switch, and its two legs alone."""
    advisor = ec.advisors.Fixed(advice)
    switch = ec.Switch(advisor, gamma=gamma, mode=mode)
    return tuple(ec.rollout(a, PROBLEM, instance) for a in (switch, ec.PureML(advisor), ec.ROBD()))


def _random(count, seed):
    """Advice good for a while and bad for a while, up to a thousand times too far."""
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(count, HORIZON, 1))
    instances = ec.Instance(rng.normal(size=(count, 1)), contexts)
    noise = rng.normal(size=(count, HORIZON, 1)) * 10 ** rng.uniform(-3, 3, (count, 1, 1))
    bad = rng.random((count, HORIZON, 1)) < rng.random((count, 1, 1))
    best = np.asarray(jax.vmap(lambda s: ec.oracle(PROBLEM, s).actions)(instances))
    return instances, best + np.where(bad, noise, 0.0)


def _by_hand(ml, expert, gamma, first=None):
    """The rule in plain Python, from the two legs' trajectories: levels."""
    costs = [np.cumsum(np.asarray(leg.hitting + leg.switching)) for leg in (ml, expert)]
    threshold, level, levels = first or costs[1][0], 0, []
    for t in range(HORIZON):
        while costs[level % 2][t] > threshold * gamma**level * (1 + 1e-12):
            level += 1
        levels.append(level)
    return np.array(levels)


def test_follows_the_rule_on_virtual_trajectories_and_pays_the_real_movement():
    instances, advice = _random(60, 1)
    instances, runs = jax.device_get((instances, jax.jit(jax.vmap(_runs))(instances, advice)))
    levels = runs[0].info.details["level"]
    for i in range(60):
        run, ml, expert = (jax.tree.map(lambda leaf, i=i: leaf[i], r) for r in runs)
        expected = _by_hand(ml, expert, GAMMA)
        np.testing.assert_array_equal(levels[i], expected)
        played = np.where(expected[:, None] % 2 == 0, ml.actions, expert.actions)
        np.testing.assert_array_equal(run.actions, played)
        previous = np.concatenate([instances.x0[i][None], played[:-1]])
        contexts = np.asarray(instances.contexts[i])
        cost = 0.5 * np.sum((played - contexts) ** 2) + 5 * np.sum((played - previous) ** 2)
        np.testing.assert_allclose(run.cost, cost, rtol=1e-12)
        np.testing.assert_allclose(run.info.details["costs"][-1], [ml.cost, expert.cost], rtol=1e-12)
    assert (np.diff(levels, axis=1) >= 0).all()
    assert levels.max() > 3
    assert (levels[:, 0] == 0).any()
    assert ((levels % 2 == 0) & (levels > 0)).any()  # back to machine learning


def test_never_exceeds_its_factor_on_random_advice():
    instances, advice = _random(3000, 2)
    cost, ml, expert = (np.asarray(run.cost) for run in jax.jit(jax.vmap(_runs))(instances, advice))
    factor = float(switch_bound(1.0, 10.0, GAMMA))
    shares = cost / (factor * np.minimum(ml, expert))
    assert shares.max() <= 1.0
    assert shares.max() > 1e-3


factor_of = jax.jit(lambda gamma: switch_bound(1.0, 10.0, gamma))  # compiled once: hypothesis calls it many times
numbers = st.floats(-100, 100, allow_subnormal=False)


@given(
    x0=numbers,
    contexts=st.lists(numbers, min_size=HORIZON, max_size=HORIZON),
    advice=st.lists(numbers, min_size=HORIZON, max_size=HORIZON),
    gamma=st.floats(1.05, 3.0),
)
def test_never_exceeds_its_factor_on_anything(x0, contexts, advice, gamma):
    assume((x0 - contexts[0]) ** 2 > 1e-300)  # a first step that costs nothing has a test of its own, which cannot hang
    instance = ec.Instance([x0], np.asarray(contexts)[:, None])
    gamma = np.asarray(gamma)
    run, ml, expert = jax.device_get(_runs(instance, np.asarray(advice)[:, None], gamma=gamma))
    smaller = min(float(ml.cost), float(expert.cost))
    assert float(run.cost) <= float(factor_of(gamma)) * smaller * (1 + 1e-9)
    assert (np.diff(run.info.details["level"]) >= 0).all()


def test_adversarial_advice_that_is_cheap_whenever_the_expert_is_played():
    """Both legs in turn run far away just when they are followed; the factor still holds."""
    worst, rng, trying = 0.0, np.random.default_rng(5), jax.jit(jax.vmap(_runs, (None, 0)))
    factor = float(switch_bound(1.0, 10.0, GAMMA))
    for _ in range(4):
        advice, contexts = np.zeros((HORIZON, 1)), rng.normal(size=(HORIZON, 1))
        instance = ec.Instance([0.0], contexts)
        for t in range(HORIZON):  # greedy adversary: the advice at t that hurts most
            trials = np.repeat(advice[None], 9, axis=0)
            trials[:, t, 0] = np.concatenate([contexts[t] + s for s in (-30, -10, -3, -1, 0, 1, 3, 10, 30)])
            cost, ml, expert = (np.asarray(run.cost) for run in trying(instance, trials))
            ratio = cost / np.minimum(ml, expert)
            advice, worst = trials[int(ratio.argmax())], max(worst, float(ratio.max()))
    assert 1.3 < worst <= factor


def test_perfect_advice_and_a_large_threshold_are_followed_throughout():
    instances, _ = _random(20, 3)

    def one(instance):
        best = ec.oracle(PROBLEM, instance)
        switch = ec.Switch(ec.advisors.Fixed(best.actions), threshold=1e9)
        return ec.rollout(switch, PROBLEM, instance).actions, best.actions

    played, best = jax.jit(jax.vmap(one))(instances)
    np.testing.assert_array_equal(played, best)


def test_a_tiny_threshold_leaves_hopeless_advice_at_once():
    instances, _ = _random(20, 4)
    advice = jnp.full((HORIZON, 1), 1e6)
    run, _, expert = jax.jit(jax.vmap(_runs, (0, None)))(instances, advice)
    np.testing.assert_array_equal(run.actions, expert.actions)


def test_ratio_mode_leaves_a_leg_for_one_that_is_enough_cheaper():
    """Advice that begins badly and becomes perfect while stakes grow: left for the expert, and taken up again."""
    gamma, rng = 1.05, np.random.default_rng(6)
    contexts = rng.normal(size=(60, HORIZON, 1)) * 1.5 ** np.arange(HORIZON)[:, None]
    instances = ec.Instance(rng.normal(size=(60, 1)), contexts)
    advice = np.array(jax.vmap(lambda s: ec.oracle(PROBLEM, s).actions)(instances))
    advice[:, 0] += rng.normal(size=(60, 1))
    runs = jax.device_get(jax.jit(jax.vmap(lambda s, a: _runs(s, a, mode="ratio", gamma=gamma)))(instances, advice))
    levels, costs = (runs[0].info.details[name] for name in ("level", "costs"))
    for i in range(60):
        level = 0
        for t in range(HORIZON):
            mine, other = costs[i, t, level % 2], costs[i, t, 1 - level % 2]
            level += int(mine > gamma ** (level + 1) * other)
            assert levels[i, t] == level
            played = (runs[1], runs[2])[level % 2].actions[i, t]
            np.testing.assert_array_equal(runs[0].actions[i, t], played)
    assert levels.max() >= 2


def test_legs_with_different_windows_get_the_forecasts_they_ask_for():
    instance = jax.tree.map(lambda leaf: to_device(np.asarray(leaf)[0]), _random(1, 7)[0])
    switch = ec.Switch(ec.RHC(HORIZON - 1), expert=ec.RHC(1))
    assert switch.lookahead == HORIZON - 1
    run = ec.rollout(switch, PROBLEM, instance)
    alone = [ec.rollout(ec.RHC(window), PROBLEM, instance) for window in (HORIZON - 1, 1)]
    np.testing.assert_allclose(run.info.details["costs"][-1], [a.cost for a in alone], rtol=1e-9)


def test_bad_parameters_are_refused():
    with pytest.raises(ValueError, match="gamma must exceed 1"):
        ec.Switch(ec.Greedy(), gamma=1.0)
    with pytest.raises(ValueError, match="threshold must be positive"):
        ec.Switch(ec.Greedy(), threshold=0.0)
    with pytest.raises(ValueError, match="no meaning"):
        ec.Switch(ec.Greedy(), threshold=1.0, mode="ratio")


def test_a_first_step_that_costs_the_expert_nothing_is_no_limit_of_zero():
    """Limits grow by a factor, so one that began at zero would never let anybody play."""
    contexts = np.array([[0.0], [1.0], [-2.0], [3.0]])
    agent = ec.Switch(ec.advisors.Fixed([[0.5], [1.0], [-2.0], [3.0]]))
    x0, past = to_device(np.zeros(1)), to_device(np.zeros((0, 1)))
    state = jax.jit(lambda: agent.init(PROBLEM, Start(x0, past, 4)))()
    zero, three = to_device(np.asarray(0)), to_device(np.asarray(3))
    step = jax.jit(lambda state, context: agent.step(PROBLEM, state, Observation(context, x0, zero, three)))
    state, _, info = jax.device_get(step(state, contexts[0]))
    assert float(info.details["costs"][1]) == 0.0
    assert float(state.limit) > 0
    assert np.isfinite(ec.rollout(agent, PROBLEM, ec.Instance(x0, contexts)).actions).all()


class _MeanForecast(AbstractAgent):
    """Plays the mean of all the forecasts it is given."""

    window: int = eqx.field(static=True)

    @property
    def lookahead(self) -> int:
        return self.window

    def init(self, problem, start):
        return None

    def step(self, problem, state, observation):
        return state, jnp.mean(observation.forecast, axis=0), Info.plain()


def test_each_leg_is_given_as_many_forecasts_as_it_asked_for():
    instance = ec.Instance([0.0], np.arange(6.0)[:, None])
    run = ec.rollout(ec.Switch(_MeanForecast(1), expert=_MeanForecast(3)), PROBLEM, instance)
    np.testing.assert_allclose(run.advice[:, 0], [1, 2, 3, 4, 5, 5])
    expert = np.array([2, 3, 4, 14 / 3, 5, 5])
    bills = 0.5 * (expert - np.arange(6)) ** 2 + 5 * np.diff(expert, prepend=0.0) ** 2
    np.testing.assert_allclose(run.info.details["costs"][:, 1], np.cumsum(bills))


@pytest.mark.parametrize("settings", [{"threshold": 22.0}, {"mode": "ratio", "gamma": 4.0}], ids=["threshold", "ratio"])
def test_a_bill_that_reaches_its_limit_does_not_exceed_it(settings):
    """Bills of 22 and 5.5, without rounding: the advice is still followed."""
    switch = ec.Switch(ec.advisors.Fixed([[2.0]]), expert=ec.advisors.Fixed([[1.0]]), **settings)
    run = ec.rollout(switch, PROBLEM, ec.Instance([0.0], [[0.0]]))
    assert run.info.details["costs"].tolist() == [[22.0, 5.5]]
    assert run.actions.tolist() == [[2.0]]


def test_advice_outside_of_the_bounds_is_played_and_billed_at_their_ends():
    problem = ec.Problem(PROBLEM.hitting, PROBLEM.switching, ec.Box(-1.0, 1.0))
    switch = ec.Switch(ec.advisors.Fixed([[3.0], [-3.0]]), threshold=1e9)
    run = ec.rollout(switch, problem, ec.Instance([0.0], np.zeros((2, 1))))
    assert run.actions.tolist() == run.advice.tolist() == [[1.0], [-1.0]]
    assert run.info.details["costs"][:, 0].tolist() == [5.5, 26.0]


class _Doubtful(AbstractAgent):
    """Stays where it is, and says at each step whether it converged."""

    converged: bool = eqx.field(static=True)

    @property
    def lookahead(self) -> int:
        return 0

    def init(self, problem, start):
        return None

    def step(self, problem, state, observation):
        return state, observation.previous_action, Info(jnp.asarray(self.converged))


def test_a_step_has_converged_if_both_legs_have():
    instance = ec.Instance([0.0], np.ones((2, 1)))
    for ml, expert in ((True, True), (True, False), (False, True)):
        run = ec.rollout(ec.Switch(_Doubtful(ml), expert=_Doubtful(expert)), PROBLEM, instance)
        assert run.converged.tolist() == [ml and expert] * 2


def test_limits_that_do_not_grow_end_the_climb_and_are_said():
    """Both legs are above a limit that stays what it is: a climb without an end."""
    agent, instance = ec.advisors.Fixed([[2.0]]), ec.Instance([0.0], [[1.0]])

    @jax.jit
    @jax.vmap
    def converged(gamma):
        return ec.rollout(ec.Switch(agent, expert=agent, gamma=gamma, threshold=1e-3), PROBLEM, instance).converged

    np.testing.assert_array_equal(converged(np.array([1.5, 1.0, 0.5, np.nan])).ravel(), [True, False, False, False])
    single = ec.Instance(np.zeros(1, np.float32), np.ones((1, 1), np.float32))
    run = ec.rollout(ec.Switch(agent, expert=agent, gamma=1 + 1e-8, threshold=1e-3), PROBLEM, single)
    assert not bool(run.converged.any())
