"""A buffer of the most recent contexts."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


class RecentContexts(eqx.Module):
    """The last n contexts, oldest first, and how many of them were seen; the rest, at the front, are zeros.

    >>> memory = RecentContexts.from_history(jnp.array([[1.0]]), size=3).append(jnp.array([2.0]))
    >>> [float(y) for y in memory.contexts.ravel()], int(memory.seen)
    ([0.0, 1.0, 2.0], 2)
    """

    contexts: Float[Array, "n q"]
    seen: Int[Array, ""]

    @classmethod
    def from_history(cls, history: Float[Array, "H q"], size: int) -> "RecentContexts":
        """Return the last `size` contexts of a history that may be shorter."""
        kept = min(history.shape[0], size)
        return cls(_last(history, kept, size), jnp.array(kept))

    @property
    def was_seen(self) -> Bool[Array, " n"]:
        """Which rows hold a context."""
        size = self.contexts.shape[0]
        return size - self.seen <= np.arange(size)

    def append(self, context: Float[Array, " q"]) -> "RecentContexts":
        """Return the buffer with one more context and without the oldest."""
        contexts = jnp.concatenate([self.contexts[1:], context[None]])
        return RecentContexts(contexts, jnp.minimum(self.seen + 1, contexts.shape[0]))

    def mean_by_phase(self, period: int, otherwise: Float[Array, " q"] | float = 0.0) -> Float[Array, "period q"]:
        """Return the mean context at each phase; row 0 has the phase of the next context.

        Args:
            period: Steps per period; the size of the buffer is a multiple of it.
            otherwise: The value at phases without a context. Default: 0.
        """
        size, q = self.contexts.shape
        missing = size - self.seen - np.arange(period)  # entries at or after each phase's first that were not seen
        count = (size // period - jnp.clip(-(-missing // period), 0, size // period))[:, None]
        total = self.contexts.reshape(-1, period, q).sum(0)  # rows without a context are zero
        return jnp.where(count > 0, total / jnp.maximum(count, 1), otherwise)


@partial(jax.jit, static_argnames=("kept", "size"))
def _last(history, kept, size):
    return jnp.pad(history[history.shape[0] - kept :], ((size - kept, 0), (0, 0)))
