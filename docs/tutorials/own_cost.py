# %% [markdown]
# # Your own cost: load following with two units
#
# Two generators serve one load. The big one is cheap and slow, the small one is expensive and quick. An action has two
# numbers, and moving the first costs more than moving the second. (A battery is another problem, with a state:
# [A battery, promised](battery.py).)

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import ecl2o as ec

jax.config.update("jax_enable_x64", True)


def serve(x, y):
    """Fuel of both units, and a penalty for each MW by which they miss the load, either way."""
    fuel = 0.02 * x[0] ** 2 + 0.10 * x[1] ** 2
    return fuel + 2.0 * (x[0] + x[1] - y[0]) ** 2


problem = ec.Problem(
    hitting=ec.ConvexCost(serve, strong_convexity=0.04),  # the fuel alone has this curvature
    switching=ec.Mahalanobis([[4.0, 0.0], [0.0, 0.25]]),  # the big unit is slow
    actions=ec.Box(lower=[0.0, 0.0], upper=[8.0, 4.0]),
)

# %% [markdown]
# You state m, the strong convexity; every bound rests on it. The oracle, the experts, guards and training use the function
# alone.

# %%
hours = jnp.arange(24.0)
load = 6.0 + 2.5 * jnp.sin((hours - 8) / 24 * 2 * jnp.pi) + 1.5 * (hours == 18)
day = ec.Instance(x0=jnp.array([4.0, 1.0]), contexts=load[:, None])
best, expert = ec.oracle(problem, day), ec.rollout(ec.ROBD(), problem, day)
print(f"R-OBD {expert.cost:.2f}, oracle {best.cost:.2f}, every solve converged: {bool(expert.converged.all())}")

# %%
figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
axes.plot(hours, load, color="#767676", label="load")
axes.stackplot(hours, *expert.actions.T, colors=["#0072B2", "#E69F00"], alpha=0.8, labels=["big unit", "small unit"])
axes.set(xlabel="hour", ylabel="MW", title="R-OBD: the small unit takes the jump")
_ = axes.legend(frameon=False, loc="upper left")

# %% [markdown]
# Now take reckless advice: run the small unit at full power all day. A guard relative to R-OBD works for any cost and any box:
# at every step the cost so far is at most 1.5 times that of R-OBD.

# %%
reckless = ec.advisors.Fixed(jnp.tile(jnp.array([0.0, 4.0]), (24, 1)))
for name, agent in {"advice alone": ec.PureML(reckless), "behind the guard": ec.Guarded(reckless, slack=0.5)}.items():
    run = ec.rollout(agent, problem, day)
    print(f"{name:18} {run.cost / expert.cost:8.2f} times R-OBD")
assert run.cost <= 1.5 * expert.cost * (1 + 1e-9)

# %% [markdown]
# [Your own problem](../your-own-problem.md) explains m, closed-form minimisers, and what is proved.
