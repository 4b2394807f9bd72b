# %% [markdown]
# # Training a network through the calibrator
#
# A *calibrator* moves a network's advice toward the expert before it is played. The paper's idea is to train the network
# through the calibrator, so that the network learns how its advice will be changed. The calibrator is differentiable, so this
# takes one line.

# %%
import jax
import matplotlib.pyplot as plt

import ecl2o as ec

problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
contexts = ec.data.weather_contexts()
windows = contexts.training_windows()
print(windows.contexts.shape, "windows, hours, numbers")

# %% [markdown]
# `MLAROBD(advisor, trust)` is the calibrated agent; `PureML(advisor)` plays the advice as it is. Both are trained on the cost of
# the actions that are *played*. Three hundred steps show the effect; the [study](../reproduction.md) uses more.

# %%
key = jax.random.key(0)
network = ec.advisors.MLP(1, 1, key=key)
agents = {"calibrated": ec.MLAROBD(network, trust=0.5), "network alone": ec.PureML(network)}
fitted = {
    name: ec.fit(agent, problem, windows, loss=ec.CalibratedLoss(mu=0.0), key=key, steps=300, learning_rate=1e-2)
    for name, agent in agents.items()
}

# %%
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
for name, result in fitted.items():
    axes.plot(result.log.loss, label=name)
axes.set(xlabel="step", ylabel="loss", yscale="log")
_ = axes.legend(frameon=False)

# %% [markdown]
# Test both on unseen days. Each day starts from the last action of the day before.

# %%
x0, days, _ = contexts.test_days()
oracle, _ = ec.oracle_days(problem, x0, days)
for name, agent in {"R-OBD": ec.ROBD(), **{name: result.agent for name, result in fitted.items()}}.items():
    runs, _ = ec.rollout_days(agent, problem, x0, days)
    print(f"{name:14} {float(runs.cost.sum() / oracle.cost.sum()):.3f} times the oracle")

# %% [markdown]
# Gradients are exact, also where bounds are active ([gradient study](../gradient-study.md)). These agents promise nothing yet:
# put [a guard](promise_and_price.py) around them, and train through the guard as well.
