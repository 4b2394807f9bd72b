"""Periodic profiles, updated one context at a time."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ecl2o.problem.arrays import as_float, check_count, check_positive


class ProfileState(eqx.Module):
    """The decaying mean at each node, and the weight of the contexts in it."""

    means: Float[Array, " b"]
    weights: Float[Array, " b"]


class PeriodicProfile(eqx.Module):
    """A periodic profile: linear between `nodes` nodes, each the mean of the contexts near it, with a half-life in periods.

    With as many nodes as steps it is the decaying mean by phase.
    """

    half_life: Float[Array, ""] = eqx.field(converter=as_float)
    period: int = eqx.field(static=True)
    nodes: int = eqx.field(static=True)

    def __check_init__(self):
        check_positive("half_life", self.half_life)
        check_count("period", self.period)
        check_count("nodes", self.nodes)

    @property
    def _neighbours(self) -> tuple[Int[np.ndarray, "2 p"], Float[np.ndarray, "2 p"]]:
        """Return the nodes before and after each phase, and the share of each of them."""
        left, rest = np.divmod(np.arange(self.period) * self.nodes, self.period)
        return np.stack([left, (left + 1) % self.nodes]), np.stack([self.period - rest, rest]) / self.period

    def empty(self, dtype) -> ProfileState:
        """Return the state before the first context."""
        return ProfileState(jnp.zeros((self.nodes,), dtype), jnp.zeros((self.nodes,), dtype))

    def at(self, profile: ProfileState, phases: Int[Array, " n"], otherwise: Float[Array, "*n"]) -> Float[Array, " n"]:
        """Return the profile at these phases; `otherwise` where neither node beside a phase has seen anything."""
        sides, shares = self._neighbours
        sides, shares = jnp.asarray(sides)[:, phases], jnp.asarray(shares, profile.means.dtype)[:, phases]
        weight = shares * (profile.weights[sides] > 0)
        total = jnp.sum(weight, axis=0)
        mean = jnp.sum(weight * profile.means[sides], axis=0)
        return jnp.where(total > 0, mean / jnp.where(total > 0, total, 1.0), otherwise)

    def update(self, profile: ProfileState, phase: Int[Array, ""], now: Float[Array, ""]) -> ProfileState:
        """Return the state after one more context."""
        decay = jnp.asarray(0.5, now.dtype) ** (1 / (self.half_life * self.period))
        position = phase * (self.nodes / self.period)
        distance = jnp.abs(jnp.arange(self.nodes) - position)
        near = jnp.maximum(1 - jnp.minimum(distance, self.nodes - distance), 0.0).astype(now.dtype)
        weights = decay * profile.weights + near
        gain = near / jnp.where(weights > 0, weights, 1.0)
        return ProfileState(profile.means + gain * (now - profile.means), weights)
