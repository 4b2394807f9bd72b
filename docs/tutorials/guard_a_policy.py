# %% [markdown]
# # Guard a policy that is not yours
#
# The policy may be a vendor's controller, an agent of another library or three lines of Python. It need not be differentiable,
# written in JAX, or even correct. A wrapper around a [gymnasium environment](../gymnasium.md) keeps a promise for it.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import ecl2o as ec
from ecl2o.gym import DecisionEnv, GuardWrapper

jax.config.update("jax_enable_x64", True)

problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
contexts = ec.data.weather_contexts()
windows = contexts.training_windows()
env = DecisionEnv(problem, windows, actions=(0.0, 1.0))


def vendor(seen: np.ndarray) -> np.ndarray:
    """Return full load above a threshold, none below, and sometimes NaN."""
    request, _, left = seen
    return np.array([np.nan if left == 0.5 else float(request > 0.3)])


# %%
def play(env, seed):
    observation, _ = env.reset(seed=seed)
    actions, ended, info = [], False, {}
    while not ended:
        advice = vendor(observation)
        observation, _, ended, _, info = env.step(advice if isinstance(env, GuardWrapper) else np.nan_to_num(advice))
        actions.append(observation[1])
    day = env.unwrapped.instance
    return np.array(actions), info["cost"] / float(ec.oracle(problem, day).cost)


safe = GuardWrapper(env, promise=2.0)
print(safe.promise)
alone, guarded = zip(*[(play(env, seed)[1], play(safe, seed)[1]) for seed in range(25)], strict=True)
print(f"the vendor alone: up to {max(alone):.0f} times the optimum; behind the guard: {max(guarded):.4f}")
assert max(guarded) <= 2.0 * (1 + 1e-9)

# %%
worst = int(np.argmax(alone))
figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
axes.plot(play(env, worst)[0], color="#D55E00", label="vendor")
axes.plot(play(safe, worst)[0], color="#0072B2", label="behind the guard")
axes.plot(env.instance.contexts[:, 0], color="#767676", label="request")
axes.set(xlabel="hour", ylabel="share of load")
_ = axes.legend(frameon=False)

# %% [markdown]
# The guard needs to know the costs, and nothing about the policy. [An example](../gymnasium.md) trains an agent of
# stable-baselines3 with and without it.
