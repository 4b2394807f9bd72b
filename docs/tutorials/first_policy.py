# %% [markdown]
# # A first policy
#
# Every hour the grid asks a datacenter to shed some of its load. You see the request y_t and choose x_t at once. Missing the
# request costs ½ (x_t - y_t)², and changing the load costs α/2 (x_t - x_{t-1})².

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
# One day of real weather gives 24 requests. The weather is part of the package.

# %%
contexts = ec.data.weather_contexts()
x0, days, _ = contexts.test_days()
day = ec.Instance(x0=x0, contexts=days[16])

# %% [markdown]
# An *agent* decides. R-OBD is the standard expert: it needs no data, and over all strongly convex costs its competitive ratio is
# the best possible. The *oracle* knows the whole day in advance; its cost is the optimum, and all costs are compared with it.

# %%
expert = ec.rollout(ec.ROBD(), problem, day)
best = ec.oracle(problem, day)
print(f"R-OBD pays {expert.cost:.4f}, the oracle {best.cost:.4f}: {expert.cost / best.cost:.2f} times as much")

# %%
figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
axes.plot(day.contexts[:, 0], color="#767676", label="request")
axes.plot(expert.actions[:, 0], color="#0072B2", label="R-OBD")
axes.plot(best.actions[:, 0], color="black", linestyle="--", label="oracle")
axes.set(xlabel="hour", ylabel="share of load")
_ = axes.legend(frameon=False)

# %% [markdown]
# The oracle moves before the request does. R-OBD cannot foresee it and follows late and smoothly. How bad can that get? For
# R-OBD `certify` computes the exact worst case over *all* sequences of 24 contexts, and a day that attains it.

# %%
worst = ec.certify(ec.ROBD(), problem, horizon=24)
again = ec.rollout(ec.ROBD(), problem, worst.instance)
print(worst)
print("played:", float(again.cost / ec.oracle(problem, worst.instance).cost))
assert np.isclose(worst.ratio, 1.729844, atol=1e-5)

# %% [markdown]
# A learned policy is cheaper on ordinary days and can be much worse on unusual ones. The next tutorials fit one to
# [your own data](own_csv.py) and put a [promise](promise_and_price.py) around it.
