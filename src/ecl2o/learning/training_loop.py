"""The training loop: Adam in chunks of steps, for one run or many at once, and its learning rates.

A chunk of steps is one compiled loop. Between chunks the host validates and reports.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ecl2o.problem import Instance, Trajectory
from ecl2o.problem.arrays import AnyArray

# As the published configuration lists them, and as the published program uses them: it sets each rate one stage late.
AUTHORS_RATES = (4e-4, 3e-4, 2e-4, 1e-4, 6e-5, 3e-5)
AUTHORS_RATES_IN_USE = (4e-4, *AUTHORS_RATES[:-1])
_AUTHORS_EPOCHS = 25  # at each rate

Schedule = Literal["cosine", "constant"] | Callable[[Any], Any] | Float[Array, " steps"] | Float[np.ndarray, " steps"]


def make_rates(schedule: Schedule, learning_rate: float, steps: int) -> Float[np.ndarray, " steps"]:
    """Return the learning rate of each step, as an array: a function would make jit compile again."""
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


def authors_schedule(
    n_instances: int, batch: int = 50, rates: tuple[float, ...] = AUTHORS_RATES
) -> tuple[int, Float[np.ndarray, " steps"]]:
    """Return the authors' schedule: 25 epochs at each of their learning rates.

    Args:
        n_instances: Size of the training set.
        batch: Instances in a step. Default: 50.
        rates: Learning rates, each for 25 epochs. Default: 4e-4, 3e-4, 2e-4, 1e-4, 6e-5, 3e-5, as in the authors'
            configuration; `AUTHORS_RATES_IN_USE` has those that their program really uses: 4e-4 twice, 3e-5 never.

    Returns:
        The number of steps, and the learning rate of each: `steps` and `schedule` of `fit`.

    >>> steps, rates = authors_schedule(1416)
    >>> steps, float(rates[0]), float(rates[-1])
    (4350, 0.0004, 3e-05)
    """
    per_epoch = -(-n_instances // batch)
    stages = np.repeat(np.array(rates, float), _AUTHORS_EPOCHS * per_epoch)
    return stages.size, stages


class SolvedInstances(eqx.Module):
    """A training or validation set with its oracles."""

    instances: Instance
    oracles: Trajectory


class TrainingHistory(eqx.Module):
    """The losses and validation costs of all runs."""

    losses: list[Float[np.ndarray, "*n _"]]  # of each chunk
    validation_steps: Int[np.ndarray, " checks"]
    validation_costs: list[Float[np.ndarray, "*n k"]]  # of each check
    best_step: Int[np.ndarray, "*n"] | int


class TrainingState(eqx.Module):
    """The weights, and Adam's moments."""

    weights: PyTree
    adam: PyTree


@functools.cache
def _adam() -> Any:
    import optax  # a slow import, needed here only

    return optax.flatten(optax.scale_by_adam())  # one vector: a program of a third of the size


def take_step(
    state: TrainingState, rate: Float[AnyArray, ""], value_and_grad: Callable[[PyTree], tuple[Float[Array, ""], PyTree]]
) -> tuple[TrainingState, Float[Array, ""]]:
    """Take one Adam step; return the new state and the loss before it."""
    value, slope = value_and_grad(state.weights)
    direction, adam = _adam().update(slope, state.adam)
    weights = jax.tree.map(lambda w, u: w - rate * u, state.weights, direction)
    return TrainingState(weights, adam), value


def init_state(weights: PyTree, axes: int = 1) -> TrainingState:
    """Return the state before the first step of runs on so many leading axes, without compiling: Adam starts at zero."""
    init = _adam().init
    for _ in range(axes):
        init = jax.vmap(init)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(init, weights))
    return TrainingState(weights, zeros)


def train(
    state: TrainingState,
    chunks: Sequence[Any],
    train_chunk: Callable[[TrainingState, Any], tuple[TrainingState, Float[np.ndarray, "*n steps"]]],
    validate: Callable[[PyTree], Float[Array, "*n k"]] | None = None,
    *,
    validate_first: bool = False,
    progress: Callable[[int, float], None] | None = None,
) -> tuple[PyTree, TrainingHistory]:
    """Train chunk by chunk, and keep the weights of each run that validate best.

    Args:
        state: Before the first step, with the axes of the runs first.
        chunks: The second argument of `train_chunk`, one after the other.
        train_chunk: (state, chunk) to the state after it and the losses of its steps.
        validate: Weights to costs, which are compared by their sum over the last axis. Default: None, keep the last weights.
        validate_first: Validate the untrained weights, too. Default: False.
        progress: Called with (steps done, mean of the latest losses). Default: None.

    Returns:
        The weights, and the history.
    """
    best, best_cost, best_step = state.weights, np.inf, 0
    losses, checks, done = [], [], []
    for chunk in [None, *chunks] if validate_first else chunks:
        if chunk is not None:
            state, values = train_chunk(state, chunk)
            losses.append(np.asarray(values))
        steps = sum(values.shape[-1] for values in losses)
        if validate is not None:
            costs = np.asarray(validate(state.weights))
            better = costs.sum(axis=-1) < best_cost
            best = jax.tree.map(
                lambda new, old, b=better: jnp.where(b.reshape(*b.shape, *[1] * (new.ndim - b.ndim)), new, old),
                state.weights,
                best,
            )
            best_cost, best_step = np.where(better, costs.sum(axis=-1), best_cost), np.where(better, steps, best_step)
            checks.append(costs)
            done.append(steps)
        if progress is not None and chunk is not None:
            progress(steps, float(losses[-1][..., -1].mean()))
    history = TrainingHistory(losses, np.array(done, int), checks, best_step)
    return (state.weights if validate is None else best), history
