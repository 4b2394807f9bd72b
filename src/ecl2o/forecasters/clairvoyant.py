"""Forecasters that know the future."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ecl2o.forecasters.base import AbstractClairvoyantForecaster, AbstractPreparedForecast
from ecl2o.problem.arrays import as_float, check_fraction, check_nonnegative


class Slices(AbstractPreparedForecast):
    """The contexts themselves, read by slicing: no table of T x window entries."""

    padded: Float[Array, "steps q"]
    window: int = eqx.field(static=True)

    def at(self, step: Int[Array, ""]) -> Float[Array, "w q"]:
        return jax.lax.dynamic_slice_in_dim(self.padded, step + 1, self.window)


class Exact(AbstractClairvoyantForecaster):
    """The true contexts; after the last one, that one again (a plan that is truncated at the horizon never reads it)."""

    def prepare(self, contexts: Float[Array, "T q"], window: int, key: PRNGKeyArray | None) -> Slices:
        beyond = jnp.broadcast_to(contexts[-1], (window, contexts.shape[1]))
        return Slices(jnp.concatenate([contexts, beyond]), window)


class FilteredNoise(AbstractPreparedForecast):
    """The contexts plus noise that accumulates over the distance of the forecast, read by slicing."""

    truth: Slices
    shocks: Float[Array, "steps q"]
    filter: Float[Array, "w w"]

    def at(self, step: Int[Array, ""]) -> Float[Array, "w q"]:
        shocks = jax.lax.dynamic_slice_in_dim(self.shocks, step + 1, self.truth.window)
        return self.truth.at(step) + self.filter @ shocks


class NoisyExact(AbstractClairvoyantForecaster):
    """The true contexts plus the filtered noise of Chen et al. (2016).

    The forecast of y_s made at t is y_s + sigma (e_s + g e_{s-1} + ... + g^(s-t-1) e_{t+1}), with g = `decay` and standard
    normal shocks e_s that are the same whenever the forecast is made: one that is made later is never worse. The shocks
    come from the `key` given to `rollout`; give every instance of a set its own.

    Args:
        sigma: the standard deviation of a shock, in the units of the contexts.
        decay: g, in [0, 1]. Default: 0.9.
    """

    sigma: Float[Array, ""] = eqx.field(converter=as_float)
    decay: Float[Array, ""] = eqx.field(converter=as_float, default=0.9)

    def __check_init__(self):
        check_nonnegative("sigma", self.sigma)
        check_fraction("decay", self.decay)

    def prepare(self, contexts: Float[Array, "T q"], window: int, key: PRNGKeyArray | None) -> FilteredNoise:
        if key is None:
            raise ValueError("NoisyExact draws noise and needs a key: rollout(..., key=jax.random.key(0)).")
        truth = Exact().prepare(contexts, window, None)
        shocks = jax.random.normal(key, truth.padded.shape, contexts.dtype)
        age = jnp.arange(window)[:, None] - jnp.arange(window)[None, :]
        weights = jnp.where(age >= 0, self.decay ** jnp.maximum(age, 0), 0.0)
        return FilteredNoise(truth, shocks, self.sigma * weights)
