# %% [markdown]
# # Concepts
#
# Six terms are enough to read the rest: problem, agent, advisor, calibrator, guard, promise. The
# [glossary](glossary.md) has all others. Each figure is drawn by the code above it when the site is built.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import ecl2o as ec

jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## Problem
#
# At every step a *context* y_t arrives and you choose an *action* x_t at once. You pay f(x_t, y_t) + c(x_t, x_{t-1}): the
# *hitting cost* of the action for this context, and the *switching cost* of the change. α is the price of a change. If
# changes are cheap, the best actions follow every context; if they are expensive, the best actions wait.

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
# The *oracle* (above) knows all contexts in advance. Your cost divided by the oracle's is a *ratio*; the largest ratio over
# all sequences of contexts is the *competitive ratio*.
#
# ## Agents
#
# Everything that acts is an *agent*. An *expert* is an agent with a proven ratio, such as R-OBD. An *advisor* is an agent
# whose actions are taken as advice; usually it is learned. A *calibrator* turns advice into an action between the advice and
# the expert's action; *trust* sets how close to the advice.

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
# A calibrator bounds the cost as long as the advice is not too wrong. A *guard* bounds it for any advice. At every step it
# computes the set of actions from which it can still keep its promise for any future contexts. Advice inside this set is
# played as it is; other advice is moved into the set.

# %%
mad = ec.advisors.Fixed(jnp.where(jnp.arange(36) % 12 < 6, 2.0, -1.0)[:, None])
guarded = ec.rollout(ec.Competitive(mad, ratio=2.0, horizon=36), problem, day)
figure, axes = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
axes[0].plot(mad.actions, color="#D55E00", linestyle=":", label="advice")
axes[0].plot(guarded.actions, color="#0072B2", label="played")
axes[0].step(range(36), contexts, color="#767676", where="mid", label="context")
axes[0].legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
axes[1].plot(guarded.info.details["ratio"], color="#0072B2", label="cost / optimum so far")
axes[1].axhline(2.0, color="black", linestyle="--", label="promise")
axes[1].set(ylim=(0.9, 2.2))
_ = axes[1].legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))

# %% [markdown]
# ## Promises
#
# A *promise* bounds the cost: cost ≤ ratio × reference + allowance, at every step of a period. The reference is the optimum's
# cost (`Competitive`) or an expert's (`Guarded`). `period` restarts the promise every day, week or month. A promise is a
# theorem, not a statistic: it holds for every sequence of contexts and for any advice. The smallest ratio that any online
# algorithm can promise depends on the horizon:

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
# A *policy* is an agent with its problem, forecaster, history and a *contract*: the columns it expects, the time between
# steps, what it promises. It is saved as one file. A `Runner` steps one policy through a live stream, the
# [service](service.md) steps many; both resume after a crash. The [architecture](architecture.md) shows where each part lives.
