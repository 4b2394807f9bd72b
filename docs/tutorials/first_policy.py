# %% [markdown]
# # A first policy
#
# A datacenter is asked, hour by hour, to shed some of its load. Shedding less than asked costs; changing the load costs too.
# You see the request y_t, you choose x_t at once, and you pay ½ (x_t - y_t)² for missing it and α/2 (x_t - x_{t-1})² for moving.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import ecl2o as ec

jax.config.update("jax_enable_x64", True)

problem = ec.Problem(
    hitting=ec.SquaredTracking(),  # f = 1/2 (x - y)^2
    switching=ec.Mahalanobis.isotropic(alpha=10.0, dim=1),  # c = 10/2 (x - z)^2
)

# %% [markdown]
# One day of real weather gives 24 requests. They come with the library, so nothing is fetched.

# %%
contexts = ec.data.weather_contexts()
x0, days, _ = contexts.test_days()
day = ec.Instance(x0=x0, contexts=days[16])

# %% [markdown]
# An *agent* decides. R-OBD is the expert of the field: it needs no data, and nobody has a better worst case. The *oracle* knows the whole day
# in advance. It is what everybody is measured with, because nobody can pay less.

# %%
expert = ec.rollout(ec.ROBD(), problem, day)
best = ec.oracle(problem, day)
print(f"R-OBD pays {expert.cost:.4f}, the oracle {best.cost:.4f}: {expert.cost / best.cost:.2f} times as much")

# %%
figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
axes.plot(day.contexts[:, 0], color="#767676", label="asked")
axes.plot(expert.actions[:, 0], color="#0072B2", label="R-OBD")
axes.plot(best.actions[:, 0], color="black", linestyle="--", label="oracle")
axes.set(xlabel="hour", ylabel="share of load")
_ = axes.legend(frameon=False)

# %% [markdown]
# The oracle moves before the request does. R-OBD cannot know, so it follows late and smoothly. How bad can that get? For this agent the answer is
# exact: the worst of *all* days of 24 hours, with the day itself.

# %%
worst = ec.certify(ec.ROBD(), problem, horizon=24)
again = ec.rollout(ec.ROBD(), problem, worst.instance)
print(worst)
print("played:", float(again.cost / ec.oracle(problem, worst.instance).cost))
assert np.isclose(worst.ratio, 1.729844, atol=1e-5)

# %% [markdown]
# A learned policy does better on ordinary days and worse on strange ones. The next tutorials fit one to [your own data](own_csv.py), and put a
# [promise](promise_and_price.py) around it.
