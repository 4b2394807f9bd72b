"""What `OnlineRidge` regresses on, step by step and for a whole history at once."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Bool, Float, Int

from ecl2o.problem.arrays import as_float, refuse_unless_count, refuse_unless_positive


class Memory(eqx.Module):
    """The last contexts in order of time, the decaying sums by phase, and the clock.

    `totals` and `weights` begin with the phase of the context to come.
    """

    recent: Float[Array, "n d"]
    totals: Float[Array, "p d"]
    weights: Float[Array, " p"]
    phase: Int[Array, ""]
    seen: Int[Array, ""]


class RidgeFeatures(eqx.Module):
    """Features of degree one: they scale with the contexts, and do not change when all contexts are shifted."""

    half_life: Float[Array, ""] = eqx.field(converter=as_float)
    period: int = eqx.field(static=True)
    lags: int = eqx.field(static=True)
    ahead: int = eqx.field(static=True)
    harmonics: int = eqx.field(static=True)

    def __check_init__(self):
        refuse_unless_positive("half_life", self.half_life)
        for name in ("period", "lags", "ahead", "harmonics"):
            refuse_unless_count(name, getattr(self, name))
        if not self.period // 4 <= self.ahead < self.period:
            raise ValueError(
                f"ahead must be at least a quarter of the period and less than it, got {self.ahead} with period {self.period}."
            )

    @property
    def count(self) -> int:
        """k, how many features there are."""
        return self.lags + (self.ahead + 1) + self.ahead + 2 * self.harmonics

    @property
    def pooling(self) -> Float[np.ndarray, "k k"]:
        """The matrix that averages over features of the same kind."""
        sizes = (self.lags, self.ahead + 1, self.ahead, 2 * self.harmonics)
        return np.asarray(scipy.linalg.block_diag(*(np.full((n, n), 1 / n) for n in sizes)))

    @property
    def needed(self) -> int:
        """How many contexts must have been seen before: two periods."""
        return max(2 * self.period, self.lags)

    def memory(self, past: Float[Array, "H d"], size: int) -> Memory:
        """The memory after a history, with the last `size` contexts of it."""
        totals, weights = self._sums(past)
        missing = jnp.zeros((max(size - past.shape[0], 0), past.shape[1]), past.dtype)
        recent = jnp.concatenate([missing, past[max(past.shape[0] - size, 0) :]])
        return Memory(recent, totals[-1], weights[-1], jnp.zeros((), int), jnp.asarray(past.shape[0]))

    def then(self, memory: Memory, now: Float[Array, " d"]) -> Memory:
        """The memory after one more context."""
        keep = self._keep(now.dtype)
        totals, weights = (
            jnp.concatenate([old[1:], (keep * old[0] + new)[None]])
            for old, new in ((memory.totals, now), (memory.weights, 1.0))
        )
        recent = jnp.concatenate([memory.recent[1:], now[None]])
        return Memory(recent, totals, weights, (memory.phase + 1) % self.period, memory.seen + 1)

    def at(self, memory: Memory, now: Float[Array, " d"]) -> tuple[Float[Array, "k d"], Bool[Array, ""]]:
        """The features of the present, zeros while too little has been seen; and whether they are real."""
        coming = _profile(memory.totals, memory.weights, now)[: self.ahead + 1]
        before = memory.recent[::-1][: self.lags]
        start = memory.recent.shape[0] - self.period + 1
        yesterday = memory.recent[start : start + self.ahead]
        real = memory.seen >= self.needed
        return jnp.where(real, self._assemble(now, before, coming, yesterday, memory.phase), 0.0), real

    def along(self, past: Float[Array, "H d"]) -> tuple[Float[Array, "H k d"], Bool[Array, " H"]]:
        """The same for every step of a history, all at once: no loop over time."""
        H, d = past.shape
        if H == 0:
            return jnp.zeros((0, self.count, d), past.dtype), jnp.zeros((0,), bool)
        time = jnp.arange(H)
        totals, weights = self._sums(past)
        offset = (-H) % self.period  # so that the history ends with a whole period
        day, phase = (time + offset) // self.period, (time + offset) % self.period
        ahead = (phase[:, None] + jnp.arange(self.ahead + 1)) % self.period
        table = day[:, None] + (ahead < phase[:, None])  # phases of today that are over are in tomorrow's table
        coming = _profile(totals[table, ahead], weights[table, ahead], past[:, None])
        before = past[jnp.maximum(time[:, None] - 1 - jnp.arange(self.lags), 0)]
        yesterday = past[jnp.maximum(time[:, None] - self.period + 1 + jnp.arange(self.ahead), 0)]
        real = time >= self.needed
        features = self._assemble(past, before, coming, yesterday, phase)
        return jnp.where(real[:, None, None], features, 0.0), real

    def signals(self, features: Float[Array, "k d"]) -> Float[Array, "3 d"]:
        """The last change, and the profile an eighth and a quarter of a period ahead, less the present context."""
        eighth, quarter = max(self.period // 8, 1), self.period // 4
        return features[jnp.array([0, self.lags + eighth, self.lags + quarter])]

    def _assemble(self, now, before, coming, yesterday, phase) -> Float[Array, "*n k d"]:
        now = now[..., None, :]
        changes = -jnp.diff(jnp.concatenate([now, before], axis=-2), axis=-2)  # y_t - y_{t-1}, y_{t-1} - y_{t-2}, ...
        angle = (2 * jnp.pi / self.period) * phase[..., None] * jnp.arange(1, self.harmonics + 1)
        waves = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1).astype(now.dtype)[..., None]
        anomaly = now - coming[..., :1, :]
        return jnp.concatenate([changes, coming - now, yesterday - now, waves * anomaly], axis=-2)

    def _keep(self, dtype) -> Float[Array, ""]:
        """What is left of a weight after a period."""
        return jnp.asarray(0.5, dtype) ** (1 / self.half_life)

    def _sums(self, past: Float[Array, "H d"]) -> tuple[Float[Array, "n p d"], Float[Array, "n p"]]:
        """The decaying sums by phase before each period of the history, and after the last."""
        H, d = past.shape
        offset = (-H) % self.period
        count = (H + offset) // self.period
        days = jnp.concatenate([jnp.zeros((offset, d), past.dtype), past]).reshape(count, self.period, d)
        real = (jnp.arange(H + offset) >= offset).astype(past.dtype).reshape(count, self.period)
        age = jnp.arange(count + 1)[:, None] - 1 - jnp.arange(count)
        decay = jnp.where(age >= 0, self._keep(past.dtype) ** jnp.maximum(age, 0).astype(past.dtype), 0.0)
        return jnp.einsum("ij,jpd->ipd", decay, days), decay @ real


def _profile(totals: Float[Array, "*n d"], weights: Float[Array, "*m"], otherwise: Float[Array, "*o d"]) -> Array:
    """Means by phase; `otherwise` for phases never seen."""
    weights = weights[..., None]
    known = weights > 0
    return jnp.where(known, totals / jnp.where(known, weights, 1.0), otherwise)
