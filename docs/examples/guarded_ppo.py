"""Train a stable-baselines3 agent on the built-in weather with and without a guard, and test it on days it has not seen.

    pip install 'ecl2o[docs]'
    python docs/examples/guarded_ppo.py [--steps 20480] [--seed 0]

Prints one row for each of: R-OBD; PPO by itself; the same PPO put behind the guard afterwards; PPO trained behind the guard.
"""

import argparse
import time
from collections.abc import Callable

import gymnasium
import jax
import numpy as np

jax.config.update("jax_enable_x64", True)  # promises are made in 64 bits

import ecl2o as ec  # noqa: E402
from ecl2o.gym import DecisionEnv, GuardWrapper  # noqa: E402

PROMISE = 2.0
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


def guard(env: gymnasium.Env) -> gymnasium.Env:
    """Wrap an environment so that every episode, a day, costs at most twice its optimum."""
    return GuardWrapper(env, PROMISE)


def adapt(env: gymnasium.Env) -> gymnasium.Env:
    """Convert to what stable-baselines3 expects: actions from -1 to 1, 32 bits, rewards of about 1."""
    env = gymnasium.wrappers.RescaleAction(env, np.float32(-1.0), np.float32(1.0))
    seen = gymnasium.spaces.Box(-np.inf, np.inf, env.observation_space.shape, np.float32)
    env = gymnasium.wrappers.TransformObservation(env, lambda observation: observation.astype(np.float32), seen)
    return gymnasium.wrappers.TransformReward(env, lambda reward: 100 * reward)


def train(env: gymnasium.Env, steps: int, seed: int):
    """Train PPO with shorter roll-outs, a faster rate and little noise, since movement is expensive."""
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)  # the networks are small
    started = time.perf_counter()
    agent = PPO(
        "MlpPolicy",
        adapt(env),
        learning_rate=1e-3,
        n_steps=1024,
        gamma=0.97,
        policy_kwargs={"log_std_init": -3.0},
        seed=seed,
        device="cpu",
    )
    agent.learn(steps)
    print(f"trained on {steps} steps in {time.perf_counter() - started:.0f} s")
    return agent


def act_by(agent) -> Callable[[np.ndarray], np.ndarray]:
    """Return a trained agent as a function to actions in the problem's units."""
    return lambda seen: (agent.predict(seen.astype(np.float32), deterministic=True)[0] + 1) / 2


def run_days(env: gymnasium.Env, act: Callable[[np.ndarray], np.ndarray], days: list[ec.Instance]) -> np.ndarray:
    """Return the cost of each day."""
    found = []
    for day in days:
        observation, info = env.reset(options={"instance": day})
        ended = False
        while not ended:
            observation, _, ended, _, info = env.step(act(observation))
        found.append(info["cost"])
    return np.array(found)


def main() -> None:
    """Train, test, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_480)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    contexts = ec.data.weather_contexts()
    x0, test, _ = contexts.test_days()
    starts = np.concatenate([x0[None], test[:-1, -1]])
    days = [ec.Instance(start, day) for start, day in zip(starts, test, strict=True)]
    optima = np.array([float(ec.oracle(PROBLEM, day).cost) for day in days])

    def env() -> DecisionEnv:
        return DecisionEnv(PROBLEM, contexts.training_windows(), actions=(0.0, 1.0))

    alone = act_by(train(env(), given.steps, given.seed))
    through = act_by(train(guard(env()), given.steps, given.seed))
    rows = {
        "R-OBD": np.array([float(ec.rollout(ec.ROBD(), PROBLEM, day).cost) for day in days]),
        "PPO": run_days(env(), alone, days),
        "PPO, guarded afterwards": run_days(guard(env()), alone, days),
        "PPO, trained behind the guard": run_days(guard(env()), through, days),
    }
    costly = optima > 1e-9  # a day of one context costs nothing at its best
    print(f"{'':32}average cost   worst of {costly.sum()} days, in units of the optimum")
    for name, cost in rows.items():
        print(f"{name:32}{cost.sum() / optima.sum():12.3f}{np.max(cost[costly] / optima[costly]):12.3g}")


if __name__ == "__main__":
    main()
