# %% [markdown]
# # Concepts
#
# Six words carry the library: problem, agent, advisor, calibrator, guard, promise. Every picture on this page is drawn by the code above it when the page is built.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import ecl2o as ec

jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## Problem
#
# At every step a *context* y_t arrives, an *action* x_t is due at once, and the bill is f(x_t, y_t) + c(x_t, x_{t-1}): the *hitting cost* for what you do now, the
# *movement cost* for changing your mind. α says how dear movement is. Cheap movement follows every context; dear movement waits.

# %%
contexts = 0.5 + 0.35 * jnp.sign(jnp.sin(jnp.arange(36.0) / 4.5))
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
axes.step(range(36), contexts, color="#767676", where="mid", label="context")
for alpha, colour in ((1.0, "#56B4E9"), (10.0, "#0072B2"), (100.0, "#332288")):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=alpha, dim=1))
    best = ec.oracle(problem, ec.Instance([0.5], contexts[:, None]))
    axes.plot(best.actions[:, 0], color=colour, label=f"best actions, α = {alpha:g}")
axes.set(xlabel="step")
_ = axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1))

# %% [markdown]
# The *oracle* (above) knows all contexts in advance. What you pay over what it pays is a *ratio*; the largest ratio over all sequences of contexts is the *competitive ratio*.
#
# ## Agents
#
# Everything that acts is an *agent*. An *expert* is one with a proven ratio, R-OBD above all. An *advisor* is an agent in the role of the one who proposes, usually a learned
# one. A *calibrator* turns advice into an action that lies between advice and expert; *trust* says where.

# %%
problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
day = ec.Instance([0.5], contexts[:, None])
advice = ec.advisors.Fixed(jnp.where(contexts > 0.5, 1.0, 0.2)[:, None])
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
axes.plot(ec.rollout(ec.ROBD(), problem, day).actions, color="#0072B2", label="expert (R-OBD)")
axes.plot(advice.actions, color="#D55E00", linestyle=":", label="advice")
for trust, style in ((0.3, "--"), (3.0, "-.")):
    run = ec.rollout(ec.MLAROBD(advice, trust), problem, day)
    axes.plot(run.actions, color="#009E73", linestyle=style, label=f"calibrated, trust {trust:g}")
axes.set(xlabel="step")
_ = axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1))

# %% [markdown]
# ## Guards
#
# A calibrator bounds the damage if the advice is not too wrong. A *guard* bounds it whatever the advice. It works out which actions can still be paid for, however the contexts
# go on, plays the advice where it is one of them, and moves it inside where not.

# %%
mad = ec.advisors.Fixed(jnp.where(jnp.arange(36) % 12 < 6, 2.0, -1.0)[:, None])
guarded = ec.rollout(ec.Competitive(mad, ratio=2.0, horizon=36), problem, day)
figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
axes[0].plot(mad.actions, color="#D55E00", linestyle=":", label="advice")
axes[0].plot(guarded.actions, color="#0072B2", label="played")
axes[0].step(range(36), contexts, color="#767676", where="mid", label="context")
axes[0].legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
axes[1].plot(guarded.info.details["live_ratio"], color="#0072B2", label="cost over optimum, so far")
axes[1].axhline(2.0, color="black", linestyle="--", label="promise")
axes[1].set(ylim=(0.9, 2.2))
_ = axes[1].legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))

# %% [markdown]
# ## Promises
#
# A *promise* is a sentence about the bill: cost ≤ ratio × reference + allowance, from one beginning of the account to the next. The reference is the optimum (`Competitive`) or
# an expert (`Guarded`). The account may begin anew every day, every week, every month, or never (`Periodic`). It is a theorem, not a statistic: it holds for every sequence of contexts and for any
# advice, not for most of them. Nobody can promise less than this, by horizon:

# %%
horizons = [1, 2, 3, 4, 6, 8, 12, 24, 48]
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
for alpha, colour in ((1.0, "#56B4E9"), (10.0, "#0072B2"), (100.0, "#332288")):
    least = [float(ec.theory.smallest_feasible_ratio(alpha, horizon=steps)) for steps in horizons]
    axes.plot(horizons, least, marker="o", color=colour, label=f"α = {alpha:g}")
axes.set(xlabel="steps", ylabel="smallest ratio that can be promised", xscale="log")
_ = axes.legend(frameon=False)

# %% [markdown]
# ## From a policy to its use
#
# A *policy* is an agent with its problem, its forecaster, its history and a *contract*: what columns it expects, how far apart the steps are, what it promises. It travels as one file. A
# `Runner` steps it, the [service](service.md) steps many, and both survive a crash. What follows from all that, room by room, is in the [architecture](architecture.md).
