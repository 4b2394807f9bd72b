"""The exact offline optimum on a line where movement is billed by distance."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.planning.line import linear_rate, prefix_bounds, tilted_minimizers
from ecl2o.planning.path import Path
from ecl2o.problem import Problem


def cheapest_linear_path(problem: Problem, x0: Float[Array, " d"], contexts: Float[Array, "T q"]) -> Path:
    """The cheapest path under `LinearSwitching`, d = 1, whatever the hitting cost; O(T^2).

    x*_T minimises the work function, and going back, x*_t is x*_{t+1} clipped to the prefix bounds of step t.
    """
    linear_rate(problem, x0.shape[0])
    steps = jnp.arange(contexts.shape[0])
    lower, upper = jax.vmap(lambda t: prefix_bounds(problem, x0, contexts, t))(steps)
    last = tilted_minimizers(problem, x0, contexts, steps[-1], jnp.zeros((1,), x0.dtype))[0]

    def back(later, bounds):
        now = jnp.clip(later, *bounds)
        return now, now

    _, earlier = jax.lax.scan(back, last, (lower[:-1], upper[:-1]), reverse=True)
    actions = jnp.concatenate([earlier, last[None]])
    return Path(actions, jnp.isfinite(actions).all())
