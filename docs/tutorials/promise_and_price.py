# %% [markdown]
# # A promise, and what it costs
#
# `Competitive(agent, ratio)` lets an agent act as long as the cost can still be kept at or below `ratio` times the optimum for
# any future. What does that cost when the advice is good, and what does it save when the advice is bad?

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import ecl2o as ec

jax.config.update("jax_enable_x64", True)

problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
contexts = ec.data.weather_contexts()
x0, days, _ = contexts.test_days()
days = days[:90]
starts = np.concatenate([x0[None], days[:-1, -1]])
instances = ec.Instance(starts, days)
optimum = jax.vmap(lambda day: ec.oracle(problem, day).cost)(instances)

# %% [markdown]
# Not every ratio can be promised. The smallest ratio that an online algorithm can promise over 24 hours is:

# %%
smallest = float(ec.theory.smallest_feasible_ratio(10.0, horizon=24))
print(f"{smallest:.4f}")

# %% [markdown]
# Compare two extreme advisors: one that knows the day (its advice is the optimum), and one that proposes full load at every
# hour.


# %%
def guarded_cost(day, ratio, knowing):
    advice = ec.oracle(problem, day).actions if knowing else jnp.ones((24, 1))
    guard = ec.Competitive(ec.advisors.Fixed(advice), ratio, horizon=24)
    return ec.rollout(guard, problem, day).cost


ratios = jnp.array([1.75, 1.8, 1.9, 2.0, 2.25, 2.5, 3.0, 4.0])
costs = {
    knowing: jax.vmap(lambda ratio, k=knowing: jax.vmap(lambda day: guarded_cost(day, ratio, k))(instances))(ratios)
    for knowing in (True, False)
}

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for knowing, colour, label in ((True, "#0072B2", "advice that knows the day"), (False, "#D55E00", "full load, always")):
    axes[0].plot(ratios, costs[knowing].sum(1) / optimum.sum(), color=colour, marker="o", label=label)
    axes[1].plot(ratios, (costs[knowing] / optimum).max(1), color=colour, marker="o", label=label)
axes[1].plot(ratios, ratios, color="black", linestyle="--", label="the promise")
axes[0].set(xlabel="promised ratio", title="Average cost over the optimum")
axes[1].set(xlabel="promised ratio", title="Worst of 90 days")
for axis in axes:
    axis.legend(frameon=False)
assert ((costs[False] / optimum).max(1) <= ratios * (1 + 1e-9)).all()

# %% [markdown]
# With good advice, a promise slightly above the smallest ratio costs little. With the worst advice, the cost rises to the
# promise and stays there. These promises hold for each day by itself. A promise over a whole run is cheaper, because cheap hours
# leave budget for expensive ones; see [the frontier](../frontier.md) and [the proofs](../guarantees.md).
