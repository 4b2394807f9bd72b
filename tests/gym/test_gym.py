"""Environments that gymnasium accepts, bills that are the library's own, and a promise that no policy can break."""

import importlib.util

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import ecl2o as ec
from ecl2o.gym import DecisionEnv, GuardWrapper

HORIZON = 8
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1), ec.Box(0.0, 1.0))
FREE = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


def days(random: np.random.Generator) -> ec.Instance:
    """Days that wander and jump."""
    walk = 0.5 + 0.1 * np.cumsum(random.normal(size=(HORIZON, 1)), axis=0)
    jumps = np.where(random.random((HORIZON, 1)) < 0.1, random.random((HORIZON, 1)), walk)
    return ec.Instance(random.random(1), np.clip(jumps, 0.0, 1.0))


def within(agent: ec.AbstractAgent) -> ec.Competitive:
    return ec.Competitive(agent, 2.0, HORIZON, contexts=(0.0, 1.0))


@pytest.mark.parametrize("guarded", [False, True])
def test_gymnasium_accepts_it(guarded: bool):
    env = DecisionEnv(PROBLEM, days)
    check_env(GuardWrapper(env, within) if guarded else env, skip_render_check=True)


def test_stable_baselines_accepts_it():
    if importlib.util.find_spec("stable_baselines3") is None:
        pytest.skip("stable-baselines3 is not installed; it comes with the extra docs")
    from stable_baselines3.common.env_checker import check_env as check_for_baselines

    check_for_baselines(GuardWrapper(DecisionEnv(PROBLEM, days), within))


def test_many_at_once_are_each_by_itself():
    def make():
        return GuardWrapper(DecisionEnv(PROBLEM, days), within)

    many = gymnasium.vector.SyncVectorEnv([make] * 2)
    alone = [make() for _ in range(2)]
    seen, _ = many.reset(seed=5)
    begun = [env.reset(seed=5 + place)[0] for place, env in enumerate(alone)]
    np.testing.assert_array_equal(seen, begun)
    random = np.random.default_rng(0)
    for _ in range(HORIZON):
        advice = random.random((2, 1))
        seen, rewards, ended, _, _ = many.step(advice)
        answers = [env.step(row) for env, row in zip(alone, advice, strict=True)]
        np.testing.assert_array_equal(rewards, [answer[1] for answer in answers])
    assert ended.all()


def test_an_episode_is_a_rollout():
    """The same actions have the same bill, to rounding; the return is minus the cost."""
    env = DecisionEnv(FREE, days)
    observation, _ = env.reset(seed=3)
    run = ec.rollout(ec.ROBD(), FREE, env.instance)
    total, ended = 0.0, False
    for place, action in enumerate(np.asarray(run.actions)):
        assert observation[0] == env.instance.contexts[place, 0]
        assert observation[1] == (env.instance.x0 if place == 0 else run.actions[place - 1])[0]
        observation, reward, ended, _, info = env.step(action)
        assert reward == pytest.approx(-(info["hitting"] + info["switching"]))
        total += reward
    assert ended
    assert total == pytest.approx(-float(run.cost), rel=1e-12)
    assert info["cost"] == pytest.approx(float(run.cost), rel=1e-12)


def test_the_wrapper_plays_what_the_guard_plays_in_a_rollout():
    env = GuardWrapper(DecisionEnv(FREE, days), promise=2.0)
    env.reset(seed=4)
    advice = 3 * np.random.default_rng(1).normal(size=(HORIZON, 1))
    run = ec.rollout(ec.Competitive(ec.advisors.Fixed(advice), 2.0, HORIZON), FREE, env.unwrapped.instance)
    played = [env.step(row)[-1]["guard"]["action"] for row in advice]
    np.testing.assert_allclose(played, run.actions, rtol=1e-9, atol=1e-12)


def test_the_promise_is_kept_behind_an_untrained_agent_in_1000_episodes():
    """An untrained network, random noise, and numbers that are none; the referee is the oracle of the whole episode."""
    env = GuardWrapper(DecisionEnv(PROBLEM, days), within)
    random = np.random.default_rng(7)
    first, second = random.normal(size=(16, 3)), random.normal(size=(1, 16))
    bills, instances, active = [], [], 0
    for episode in range(1000):
        observation, info = env.reset(seed=episode)
        ended = False
        while not ended:
            advice = second @ np.tanh(first @ observation)
            if episode % 3 == 1:
                advice = random.normal(scale=10.0, size=1)
            elif episode % 3 == 2:
                advice = random.choice([np.nan, np.inf, -np.inf, 1e300, 0.5], size=1)
            observation, _, ended, _, info = env.step(advice)
            assert info["guard"]["kept"]
            active += bool(info["guard"]["active"])
        bills.append(info["cost"])
        instances.append(env.unwrapped.instance)
    optima = best_costs(instances)
    assert active > 1000  # the guard had something to do
    assert (np.array(bills) <= 2.0 * optima * (1 + 1e-9)).all()
    assert np.max(np.array(bills) / optima) > 1.5


def best_costs(instances: list[ec.Instance]) -> np.ndarray:
    import jax

    whole = jax.tree.map(lambda *leaves: np.stack(leaves), *instances)
    return np.asarray(jax.vmap(lambda one: ec.oracle(PROBLEM, one).cost)(whole))


def test_any_guard_will_do():
    env = GuardWrapper(DecisionEnv(FREE, days), lambda agent: ec.Guarded(agent, slack=0.1))
    env.reset(seed=0)
    ratios = [float(env.step(np.array([50.0]))[-1]["guard"]["ratio"][0]) for _ in range(HORIZON)]
    assert max(ratios) <= 1.1 * (1 + 1e-9)
    assert (env.promise.ratio, env.promise.reference_name) == (1.1, "ROBD")


def test_what_would_break_the_promise_is_refused():
    with pytest.raises(TypeError, match="DecisionEnv"):
        GuardWrapper(gymnasium.make("CartPole-v1"), promise=2.0)
    with pytest.raises(ec.NotApplicableError, match="must exceed"):
        GuardWrapper(DecisionEnv(FREE, days), promise=1.2).reset(seed=0)
    louder = gymnasium.wrappers.TransformAction(DecisionEnv(FREE, days), lambda x: 2 * x + 1, None)
    env = GuardWrapper(louder, promise=2.0)
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match="between the guard and the DecisionEnv"):
        env.step(np.array([0.5]))


def test_what_is_no_episode_is_refused():
    env = DecisionEnv(FREE, days)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.array([0.5]))
    env.reset(seed=0)
    for bad in ([np.nan], [0.1, 0.2]):
        with pytest.raises(ValueError, match="1 finite number"):
            env.step(np.array(bad))
    other = ec.Instance([0.5], np.zeros((3, 1)))
    with pytest.raises(ValueError, match="must have the shapes of the first"):
        env.reset(options={"instance": other})
    with pytest.raises(ValueError, match="leading axis"):
        DecisionEnv(FREE, other)


# --- problems with a state

BATTERY = ec.battery(alpha=10.0, charge=0.05)


def batteries(random: np.random.Generator) -> ec.Instance:
    return ec.Instance(random.normal(size=2), np.cumsum(random.normal(size=(HORIZON, 1)), axis=0))


def test_an_episode_of_a_battery_is_the_roll_out_behind_its_guard():
    env = GuardWrapper(DecisionEnv(BATTERY, batteries, actions=(-3.0, 3.0)), promise=1.5)
    check_env(env, skip_render_check=True)
    assert "end" in str(env.promise)
    random = np.random.default_rng(1)
    advice = 5 * random.normal(size=(HORIZON, 1))
    advice[2] = np.nan
    observation, _ = env.reset(seed=3)
    day = env.unwrapped.instance
    run = ec.rollout(ec.CompetitiveControl(ec.advisors.Fixed(advice), 1.5, HORIZON), BATTERY, day)
    states = BATTERY.states(day.x0, run.actions, day.contexts)
    rewards = []
    for step in range(HORIZON):
        np.testing.assert_allclose(observation[1:3], states[step], atol=1e-10)
        observation, reward, _, _, info = env.step(advice[step])
        rewards.append(reward)
        np.testing.assert_allclose(info["guard"]["action"], run.actions[step], atol=1e-10)
    np.testing.assert_allclose(-np.array(rewards), run.hitting, rtol=1e-9)
    assert info["cost"] <= 1.5 * ec.oracle(BATTERY, day).cost * (1 + 1e-9)


def test_the_wrapper_plays_what_a_guard_policy_plays():
    contexts = 10 + 3 * np.sin(np.arange(HORIZON))[:, None]
    instances = ec.Instance([[10.0]], contexts[None])
    env = GuardWrapper(
        DecisionEnv(FREE, instances, actions=(0.0, 20.0)), lambda agent: ec.Competitive(agent, ratio=2.0)
    )
    env.reset(seed=0)
    runner = ec.Runner(ec.guard_policy(promise=2.0, alpha=10.0), x0=[10.0])
    for context, advice in zip(contexts, [1e6, -1e6, 10.0, 12.0, 0.0, 9.0, 1e9, 10.5], strict=True):
        *_, info = env.step(np.array([advice]))
        expected = runner.step(context, advice=[advice])
        assert info["guard"]["action"] == pytest.approx(expected, rel=1e-5)
        assert info["guard"]["left"] == pytest.approx(runner.promises_left, rel=1e-4, abs=1e-4)
