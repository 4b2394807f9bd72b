"""Memory made of contexts: the last few, in order of time."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


class RecentContexts(eqx.Module):
    """The last contexts, oldest first, and how many of them were really seen (the others, at the front, are zeros).

    >>> import jax.numpy as jnp
    >>> memory = RecentContexts.from_history(jnp.array([[1.0]]), size=3).append(jnp.array([2.0]))
    >>> [float(y) for y in memory.contexts.ravel()], int(memory.seen)
    ([0.0, 1.0, 2.0], 2)
    """

    contexts: Float[Array, "n q"]
    seen: Int[Array, ""]

    @classmethod
    def from_history(cls, history: Float[Array, "H q"], size: int) -> "RecentContexts":
        """The last `size` contexts of a history that may be shorter."""
        kept = min(history.shape[0], size)
        return cls(_last(history, kept, size), jnp.array(kept))

    @property
    def was_seen(self) -> Bool[Array, " n"]:
        """Which of them are real."""
        size = self.contexts.shape[0]
        return size - self.seen <= np.arange(size)

    def append(self, context: Float[Array, " q"]) -> "RecentContexts":
        """The same one context later; the oldest is forgotten."""
        contexts = jnp.concatenate([self.contexts[1:], context[None]])
        return RecentContexts(contexts, jnp.minimum(self.seen + 1, contexts.shape[0]))

    def mean_by_phase(self, period: int, otherwise: Float[Array, " q"] | float = 0.0) -> Float[Array, "period q"]:
        """The mean of those seen at each phase, entry 0 being the phase of the context to come; `otherwise` where none was.

        The size of the memory is a multiple of the period.
        """
        size, q = self.contexts.shape
        missing = size - self.seen - np.arange(period)  # entries at or after each phase's first that were not seen
        count = (size // period - jnp.clip(-(-missing // period), 0, size // period))[:, None]
        total = self.contexts.reshape(-1, period, q).sum(0)  # what was not seen is zero
        return jnp.where(count > 0, total / jnp.maximum(count, 1), otherwise)


@partial(jax.jit, static_argnames=("kept", "size"))
def _last(history, kept, size):
    return jnp.pad(history[history.shape[0] - kept :], ((size - kept, 0), (0, 0)))
