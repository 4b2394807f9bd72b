"""The record of one run."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree


class Trajectory(eqx.Module):
    """What was done and what it cost; a set of runs has a leading axis on every field.

    Args:
        actions: (T, d).
        hitting: (T,), f(x_t, y_t).
        switching: (T,), c(x_t, x_{t-1}).
        advice: (T, d), what the agent's advisor proposed; None: it has none.
        converged: (T,), false where a solve did not converge.
        info: what the agent itself reports, nested by wrappers. Default: nothing.
    """

    actions: Float[Array, "*n T d"]
    hitting: Float[Array, "*n T"]
    switching: Float[Array, "*n T"]
    advice: Float[Array, "*n T d"] | None
    converged: Bool[Array, "*n T"]
    info: PyTree = None

    @property
    def cost(self) -> Float[Array, "*n"]:
        """The total bill, sum of f(x_t, y_t) + c(x_t, x_{t-1}) over t."""
        return _total(self.hitting, self.switching)


@jax.jit
def _total(hitting, switching):
    return jnp.sum(hitting + switching, axis=-1)
