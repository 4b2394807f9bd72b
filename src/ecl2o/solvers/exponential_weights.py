"""Exponential weights on the losses of several predictions, with a rate that needs no tuning."""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

_FLOOR = 1e-3  # of the largest loss so far, below which the gap does not set the rate


class ExponentialWeights(eqx.Module):
    """Weights exp(-rate L_i) on the losses L_i = sum_s keep^(t-s) loss_si of n predictions, with a rate set by their gap.

    This is AdaHedge (de Rooij, van Erven, Grunwald, Koolen 2014) with discounted losses. Let the mix loss of a step be the
    growth of softmin(L) = -log(sum_i exp(-rate L_i)) / rate, and the gap of a step what the mixture lost above it, at least 0.
    The rate is log(n) / G, where G = gap + floor: the discounted sum of the gaps of all steps before, and a thousandth of the
    largest loss before, so that rounding does not decide between equals. On every sequence and for every i

        sum_s keep^(t-s) (own_s - loss_si) <= gap_t + gap_{t-1} + floor_{t-1} + (1 - keep) sum_s keep^(t-s) G_{s-1},

    the `regret_bound`, also if predictions were made before the last losses were known. If losses are squared errors of at most
    B^2, the mixture predicts the weighted mean, and each loss is known before the next prediction, then the bound is at most
    B^2 (6 log n + 4): such losses are exp-concave, so that the gap of a step is 0 once the rate is at most 1/(2 B^2).
    """

    losses: Float[Array, "*d n"]
    gap: Float[Array, "*d"]
    largest: Float[Array, "*d"]
    regret_bound: Float[Array, "*d"]
    faded: Float[Array, "*d"]

    @classmethod
    def empty(cls, count: int, dtype) -> "ExponentialWeights":
        """Return the state before the first losses: all weights are equal."""
        zero = jnp.zeros((), dtype)
        return cls(jnp.zeros((count,), dtype), zero, zero, zero, zero)

    @property
    def weights(self) -> Float[Array, " n"]:
        """The weights, which add up to 1."""
        raw = jnp.exp(self._exponents(self.losses))
        return raw / jnp.sum(raw)

    def with_losses(
        self, losses: Float[Array, " n"], own: Float[Array, ""], keep: Float[Array, ""] | float = 1.0
    ) -> "ExponentialWeights":
        """Add the losses of one step, and the mixture's own; earlier ones count `keep` times as much."""
        before = keep * self.losses
        after = before + losses
        mix_loss = self._softmin(after) - self._softmin(before)
        gap = keep * self.gap + jnp.maximum(own - mix_loss, 0.0)
        faded = keep * self.faded + (1 - keep) * self._total
        largest = jnp.maximum(self.largest, jnp.max(losses))
        return ExponentialWeights(after, gap, largest, gap + self._total + faded, faded)

    @property
    def _total(self) -> Float[Array, ""]:
        return self.gap + _FLOOR * self.largest

    def _exponents(self, losses: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return -rate (L - min L); all 0 before the first losses."""
        some = self._total > 0
        rate = jnp.where(some, math.log(max(losses.shape[0], 2)) / jnp.where(some, self._total, 1.0), 0.0)
        return -rate * (losses - jnp.min(losses))

    def _softmin(self, losses: Float[Array, " n"]) -> Float[Array, ""]:
        scale = self._total / math.log(max(losses.shape[0], 2))
        return jnp.min(losses) - scale * jnp.log(jnp.sum(jnp.exp(self._exponents(losses))))
