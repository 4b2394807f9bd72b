"""What each training step uses: which instances, and which learning rate.

Adam through the roll-out, compiled in chunks, for one run or many at once.

Python is not in the loop: a chunk of steps is one compiled loop, and a run of any length, seed, trust and learning rate goes
through the same program (a last chunk may be shorter: how many steps it makes is an argument). Between chunks the host looks
at the losses, runs the validation, and reports.
"""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, PyTree, UInt32

from ecl2o.learning.gradients import AbstractGradient
from ecl2o.learning.losses import AbstractLoss
from ecl2o.learning.losses import runs as runs_of
from ecl2o.problem import Instance, Trajectory
from ecl2o.running.rollout import vmap_unless_single

CHUNK = 100  # steps that are compiled as one loop

Schedule = Literal["cosine", "constant"] | Callable[[Any], Any] | Float[Array, " steps"] | Float[np.ndarray, " steps"]


class BatchSchedule(eqx.Module):
    """Which instances and which learning rate each step of each run uses, padded to whole chunks with steps never made."""

    indices: Int[np.ndarray, "chunks n chunk b"]
    rates: Float[np.ndarray, "chunks n chunk"]
    steps: int

    @classmethod
    def of(
        cls, schedule: Schedule, learning_rates, keys, steps: int, batch: int, n_instances: int, dtype
    ) -> "BatchSchedule":
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


# report(step, steps, latest loss)
Report = Callable[[int, int, float], None]


class SolvedInstances(eqx.Module):
    """A training or validation set with its oracles."""

    instances: Instance
    oracles: Trajectory

    def batch(self, indices: Int[Array, " b"]) -> "SolvedInstances":
        """Some of them."""
        return jax.tree.map(lambda leaf: leaf[indices], self)


class TrainingRuns(eqx.Module):
    """What differs from run to run besides weights, on a leading axis."""

    frozen: PyTree
    losses: AbstractLoss
    gradients: AbstractGradient
    keys: Key[Array, "*n"] | UInt32[Array, "*n k"]


class TrainingHistory(eqx.Module):
    """What happened in all runs."""

    loss: Float[np.ndarray, "n steps"]
    validation_steps: Int[np.ndarray, " k"]
    validation_cost: Float[np.ndarray, "n k"]
    best_step: Int[np.ndarray, " n"]


class TrainingState(eqx.Module):
    """Where training stands: the weights, and Adam's memory of them."""

    weights: PyTree
    adam: PyTree


_ADAM = optax.flatten(optax.scale_by_adam())  # one vector: a program of a third of the size


def _one_step(carry: TrainingState, indices, rate, number, run: TrainingRuns, problem, training: SolvedInstances):
    data = training.batch(indices)

    def loss(agent):
        return run.losses(agent, problem, data.instances, data.oracles)

    key = jax.random.fold_in(run.keys, number)
    value, slope = run.gradients.value_and_grad(loss, carry.weights, run.frozen, key)
    direction, adam = _ADAM.update(slope, carry.adam)
    weights = jax.tree.map(lambda w, u: w - rate * u, carry.weights, direction)
    return TrainingState(weights, adam), value


@eqx.filter_jit
def _train_chunk(states, runs: TrainingRuns, problem, training, indices, rates, first, count):
    """Many runs through `count` steps of a chunk that begins with step `first`; one run is not vmapped, which is faster."""

    def one(state, run, indices, rates):
        def step(i, carry):
            state, losses = carry
            state, loss = _one_step(state, indices[i], rates[i], first + i, run, problem, training)
            return state, losses.at[i].set(loss)

        return jax.lax.fori_loop(0, count, step, (state, jnp.zeros_like(rates)))

    return vmap_unless_single(one)(states, runs, indices, rates)


@eqx.filter_jit
def _validate(weights, frozen, problem, checked: SolvedInstances):
    """Mean cost over the validation set, over the oracle's."""

    def one(weights, frozen):
        return jnp.mean(runs_of(eqx.combine(weights, frozen), problem, checked.instances).cost)

    return vmap_unless_single(one)(weights, frozen) / jnp.mean(checked.oracles.cost)


def init_at_zero(init: Callable, weights) -> Any:
    """The state of an optimiser that begins at zero, as Adam does: nothing is compiled for it."""
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(init, weights))


def train(weights, runs: TrainingRuns, problem, training, checked, plan: BatchSchedule, report: Report | None):
    """The loop over chunks on the host. Returns the weights to keep, and what happened."""
    state = TrainingState(weights, init_at_zero(jax.vmap(_ADAM.init), weights))
    count = plan.rates.shape[1]
    losses, checks, check_steps = [], [], []
    best, best_cost, best_step = weights, np.full(count, np.inf), np.full(count, plan.steps)
    for chunk in range(plan.rates.shape[0]):
        first = chunk * CHUNK
        done = min(first + CHUNK, plan.steps)
        steps = jnp.asarray(first), jnp.asarray(done - first)
        state, values = _train_chunk(state, runs, problem, training, plan.indices[chunk], plan.rates[chunk], *steps)
        values = np.asarray(values)[:, : done - first]
        _refuse_non_finite(values, first, count)
        losses.append(values)
        if checked is not None:
            cost = np.asarray(_validate(state.weights, runs.frozen, problem, checked))
            better = cost < best_cost
            best = jax.tree.map(lambda new, old, b=better: _choose(b, new, old), state.weights, best)
            best_cost, best_step = np.where(better, cost, best_cost), np.where(better, done, best_step)
            checks.append(cost)
            check_steps.append(done)
        if report is not None:
            report(done, plan.steps, float(values[:, -1].mean()))
    validation_cost = np.stack(checks, axis=1) if checks else np.zeros((count, 0))
    history = TrainingHistory(np.concatenate(losses, axis=1), np.array(check_steps, int), validation_cost, best_step)
    return (state.weights if checked is None else best), history


def _choose(better: np.ndarray, new: Array, old: Array) -> Array:
    return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _refuse_non_finite(values: np.ndarray, first_step: int, count: int) -> None:
    if not np.isfinite(values).all():
        run, step = np.argwhere(~np.isfinite(values))[0]
        which = f" of run {run}" if count > 1 else ""
        raise FloatingPointError(
            f"the loss{which} became {values[run, step]} at step {first_step + step + 1}; "
            "a smaller learning rate, or scaled inputs, usually help."
        )
