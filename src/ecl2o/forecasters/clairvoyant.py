"""Forecasters that know the future."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ecl2o.forecasters.base import AbstractClairvoyantForecaster, AbstractPreparedForecast


class Slices(AbstractPreparedForecast):
    """The contexts themselves, read by slicing: no table of T x window entries."""

    padded: Float[Array, "T+w q"]
    window: int = eqx.field(static=True)

    def at(self, step: Int[Array, ""]) -> Float[Array, "w q"]:
        return jax.lax.dynamic_slice_in_dim(self.padded, step + 1, self.window)


class Exact(AbstractClairvoyantForecaster):
    """The true contexts; after the last one, that one again (a plan that is truncated at the horizon never reads it)."""

    def prepare(self, contexts: Float[Array, "T q"], window: int, key: PRNGKeyArray | None) -> Slices:
        beyond = jnp.broadcast_to(contexts[-1], (window, contexts.shape[1]))
        return Slices(jnp.concatenate([contexts, beyond]), window)
