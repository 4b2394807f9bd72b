"""What each training step uses: which instances, and which learning rate."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

CHUNK = 100  # steps that are compiled as one loop

Schedule = Literal["cosine", "constant"] | Callable[[Any], Any] | Float[Array, " steps"] | Float[np.ndarray, " steps"]


class Plan(eqx.Module):
    """Which instances and which learning rate each step of each run uses, padded to whole chunks with steps never made."""

    indices: Int[np.ndarray, "chunks n chunk b"]
    rates: Float[np.ndarray, "chunks n chunk"]
    steps: int

    @classmethod
    def of(cls, schedule: Schedule, learning_rates, keys, steps: int, batch: int, n_instances: int, dtype) -> "Plan":
        """One run per learning rate and key."""
        chunks = -(-steps // CHUNK)
        padded = chunks * CHUNK
        rates = np.stack([_rates(schedule, rate, steps) for rate in learning_rates])
        rates = np.pad(rates, ((0, 0), (0, padded - steps)))
        indices = np.stack([_epochs(key, n_instances, padded * batch) for key in keys])
        return cls(
            indices.reshape(len(keys), chunks, CHUNK, batch).swapaxes(0, 1),
            rates.reshape(len(keys), chunks, CHUNK).swapaxes(0, 1).astype(dtype),
            steps,
        )


def _rates(schedule: Schedule, learning_rate: float, steps: int) -> Float[np.ndarray, " steps"]:
    """A schedule as an array, so that no function meets jit."""
    if isinstance(schedule, str):
        if schedule == "constant":
            return np.full(steps, learning_rate)
        if schedule != "cosine":
            raise ValueError(f"schedule must be 'cosine', 'constant', an optax schedule or an array, got {schedule!r}.")
        return learning_rate * 0.5 * (1 + np.cos(np.pi * np.arange(steps) / steps))
    if callable(schedule):
        return np.asarray(jax.vmap(schedule)(jnp.arange(steps)), float)
    rates = np.asarray(schedule, float)
    if rates.shape != (steps,):
        raise ValueError(f"schedule must have one rate per step, {steps} in all, got shape {rates.shape}.")
    return rates


def _epochs(key: PRNGKeyArray, n_instances: int, count: int) -> Int[np.ndarray, " count"]:
    """Instance numbers in a random order, epoch after epoch."""
    epochs = -(-count // n_instances)
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    orders = generator.permuted(np.tile(np.arange(n_instances, dtype=np.int32), (epochs, 1)), axis=1)
    return orders.ravel()[:count]
