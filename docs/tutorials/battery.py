# %% [markdown]
# # A battery, promised
#
# A battery follows a demand. Its power u should meet the demand y, changing power costs money, and so does a charge away from its
# middle. The charge is a *state*: what you do now decides what you can do later. An hour costs
#
# $$\tfrac{1}{2} (u - y)^2 + \tfrac{10}{2} (u - u_{-1})^2 + \tfrac{0.05}{2} c^2, \qquad c = c_{-1} - u .$$

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import ecl2o as ec
from ecl2o.theory import smallest_control_ratio

jax.config.update("jax_enable_x64", True)

problem = ec.battery(alpha=10.0, charge=0.05)  # the state is (previous power, charge)

# %% [markdown]
# The demand is the built-in weather less its mean of the last week, in standard deviations. Ten days from the middle of the year
# are run as one, from an idle battery.

# %%
load = np.asarray(ec.data.weather_contexts().values)[:, 0]
week = 7 * 24
demand = load[week:] - np.convolve(load, np.ones(week) / week, "valid")[:-1]
demand = (demand / demand.std())[:, None]
first, hours = 200 * 24, 10 * 24
run_days = ec.Instance([0.0, 0.0], demand[first : first + hours], demand[first - 28 * 24 : first])
best = ec.oracle(problem, run_days)

# %% [markdown]
# Two controllers of the textbooks. LQR assumes that no demand comes after this hour. Model-predictive control plans a day ahead on
# a forecast, here the mean of the last seven days at each hour.

# %%
forecaster = ec.forecasters.RollingProfile()
mpc = ec.RHC(23, truncate=False)  # plans beyond the end of a day
for name, agent in {"LQR": ec.LQR(), "MPC": mpc}.items():
    run = ec.rollout(agent, problem, run_days, forecaster)
    print(f"{name}: {run.cost / best.cost:.3f} times the optimum")

# %% [markdown]
# ## What can be promised
#
# No controller can promise less than these multiples of the optimum. "At the end" is a promise for the day as a whole. "At every
# hour" is a promise for each prefix of the day, and harder to keep: the charge of this morning must be paid for tonight.

# %%
print(f"at the end of 24 hours: {smallest_control_ratio(problem, horizon=24):.6f}")
print(f"at every hour:          {smallest_control_ratio(problem, every_prefix=True):.6f}")

# %% [markdown]
# ## A broken forecast
#
# From the third day on the forecast has the wrong sign. MPC alone follows it. Behind a guard it may do what it likes as long as a
# promise of 1.5 for the end of each day can still be kept, whatever comes.


# %%
class WrongFromDayThree(ec.forecasters.AbstractClairvoyantForecaster):
    """Exact forecasts, then their negatives."""

    def prepare(self, contexts, window, key):
        sign = jnp.where(jnp.arange(len(contexts)) < 48, 1.0, -1.0)[:, None]
        return ec.forecasters.Exact().prepare(contexts * sign, window, None)


guarded = ec.CompetitiveControl(mpc, ratio=1.5, period=24)
print(guarded.promise(problem))
runs = {
    name: ec.rollout(agent, problem, run_days, WrongFromDayThree())
    for name, agent in {"MPC alone": mpc, "behind the guard": guarded}.items()
}


def daily_ratios(run):
    """Return the cost of each day over its optimum from the same state."""
    states = problem.states(run_days.x0, run.actions, run_days.contexts)
    days = ec.Instance(states[:-1:24], run_days.contexts.reshape(10, 24, 1))
    return run.hitting.reshape(10, 24).sum(1) / jax.vmap(lambda day: ec.oracle(problem, day).cost)(days)


for name, run in runs.items():
    print(f"{name:17} {run.cost / best.cost:.3f} times the optimum, worst day {daily_ratios(run).max():.3f}")
assert daily_ratios(runs["behind the guard"]).max() <= 1.5 * (1 + 1e-9)

# %%
figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(8, 6), sharex=True, layout="constrained")
time, colors = np.arange(hours), {"MPC alone": "#D55E00", "behind the guard": "#0072B2"}
top.plot(time, run_days.contexts[:, 0], color="#767676", linewidth=1, label="demand")
for name, run in runs.items():
    states = problem.states(run_days.x0, run.actions, run_days.contexts)
    top.plot(time, run.actions[:, 0], color=colors[name], label=name)
    middle.plot(time, states[1:, 1], color=colors[name])
details = runs["behind the guard"].details
for day in range(10):
    part = slice(24 * day, 24 * day + 24)
    bottom.plot(
        time[part], 1.5 * details["reference"][part], "--", color="black", label="promise" if day == 0 else None
    )
    bottom.plot(time[part], details["cost"][part], color="#0072B2", label="cost" if day == 0 else None)
top.set(ylabel="power", ylim=(None, 2.3), title="Forecasts have the wrong sign after 48 hours")
middle.set(ylabel="charge")
bottom.set(ylabel="cost of the day so far", xlabel="hour")
_ = [axes.legend(frameon=False, loc="upper left", ncols=3) for axes in (top, bottom)]

# %% [markdown]
# ## A network behind the guard
#
# Guard and dynamics are differentiable, so a network can be trained through both. It learns to use what the promise allows.

# %%
rng = np.random.default_rng(0)
starts = rng.integers(0, 150, size=200) * 24
states = rng.normal(size=(200, 2)) * [0.5, 3.0]
training = ec.Instance(states, np.stack([demand[t : t + 72] for t in starts]))  # three days from any state
network = ec.advisors.MLP(1, 1, width=16, depth=2, key=jax.random.key(0), state_dim=2)
guard = ec.CompetitiveControl(network, ratio=1.5, period=24)
trained = ec.fit(guard, problem, training, loss=ec.StandaloneLoss(), key=jax.random.key(1), steps=600, batch=32).agent
for name, agent in {"untrained": guard, "trained": trained}.items():
    run = ec.rollout(agent, problem, run_days)
    print(f"{name}: {run.cost / best.cost:.3f} times the optimum, worst day {daily_ratios(run).max():.3f}")

# %% [markdown]
# ## A full battery
#
# The costs are quadratic, and the promise is for power without limits. A hard limit of charge is not covered by it. What the promise
# does give is a soft bound: 0.05/2 c² is part of each hour's cost, so |c| is at most sqrt(2 · 1.5 · OPT / 0.05) at every hour of a
# day whose optimum is OPT. To keep a limit in all cases, clip the power that is played; the cost is then measured, not promised.
#
# More: [real net load and an aircraft](../control.md), [proofs](../guarantees.md#with-a-state).
