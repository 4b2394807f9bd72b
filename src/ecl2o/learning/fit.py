"""Training: Adam through the roll-out, compiled in chunks, for one setting or many at once.

Python is not in the loop: a chunk of steps is one compiled loop, and a run of any length, seed, trust and learning rate goes
through the same program (a last chunk may be shorter: how many steps it makes is an argument). Between chunks the host looks
at the losses, runs the validation, and tells the progress callback.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, PyTree, UInt32

from ecl2o.agents import AbstractAgent, trainable_mask
from ecl2o.learning.gradients import AbstractGradient, Backpropagation
from ecl2o.learning.losses import AbstractLoss, CalibratedLoss, scaled
from ecl2o.learning.losses import runs as runs_of
from ecl2o.offline import oracle
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import cast_floats

_CHUNK = 100

Schedule = Literal["cosine", "constant"] | Callable[[Any], Any] | Float[Array, " steps"] | Float[np.ndarray, " steps"]
# progress(step, steps, latest loss)
Progress = Callable[[int, int, float], None]


class FitLog(eqx.Module):
    """How training went: the loss of every step, and the validation figure after each chunk.

    `loss_evaluations` is what it cost in evaluations of the loss on a batch (a backward pass counts as two), and
    `gradient_report` what the source of the gradient has to say, such as the error of a surrogate's Jacobians.
    """

    loss: Float[np.ndarray, " steps"]
    validation_steps: Int[np.ndarray, " k"]
    validation_cost: Float[np.ndarray, " k"]
    best_step: int
    cost_factor: float
    loss_evaluations: int
    gradient_report: dict[str, float]


Fitted = TypeVar("Fitted", bound=AbstractAgent)


class FitResult(eqx.Module, Generic[Fitted]):
    """The trained agent and the log. `log.cost_factor` is the factor on costs in the loss, to be kept with a policy."""

    agent: Fitted
    log: FitLog


class _Data(eqx.Module):
    """A training or validation set with its oracles."""

    instances: Instance
    oracles: Trajectory

    def batch(self, indices: Int[Array, " b"]) -> "_Data":
        return jax.tree.map(lambda leaf: leaf[indices], self)


class _Progress(eqx.Module):
    """Where training stands: the weights, and Adam's memory of them."""

    weights: PyTree
    adam: PyTree


def fit(
    agent: Fitted,
    problem: Problem,
    instances: Instance,
    *,
    loss: AbstractLoss | None = None,
    key: PRNGKeyArray,
    steps: int = 4000,
    batch: int = 50,
    learning_rate: float = 3e-3,
    schedule: Schedule = "cosine",
    gradient: AbstractGradient = Backpropagation(),
    dtype: Any = "float32",
    validation: Instance | None = None,
    progress: Progress | None = None,
) -> FitResult[Fitted]:
    """Train the advisors inside an agent on a set of instances.

    Only weights are trained (`agents.Trainable`); trust, slack and scales stay. Batches are drawn without replacement,
    epoch after epoch. With `validation`, the weights that had the lowest mean cost there are returned, not the last ones.
    A loss that is not finite stops training with the number of the step. The same key gives the same result. `gradient`
    says how the gradient is found: the true one unless given (`learning.gradients` has two others, to compare with).
    """
    many = fit_many(
        [agent],
        problem,
        instances,
        losses=[CalibratedLoss() if loss is None else loss],
        keys=[key],
        steps=steps,
        batch=batch,
        learning_rates=[learning_rate],
        schedule=schedule,
        gradient=gradient,
        dtype=dtype,
        validation=validation,
        progress=progress,
    )
    return many[0]


def fit_many(
    agents: Sequence[Fitted],
    problem: Problem,
    instances: Instance,
    *,
    losses: Sequence[AbstractLoss] | AbstractLoss | None = None,
    keys: Sequence[PRNGKeyArray],
    steps: int = 4000,
    batch: int = 50,
    learning_rates: Sequence[float] | float = 3e-3,
    schedule: Schedule = "cosine",
    gradient: AbstractGradient = Backpropagation(),
    dtype: Any = "float32",
    validation: Instance | None = None,
    progress: Progress | None = None,
) -> list[FitResult[Fitted]]:
    """`fit` for many seeds and settings at once: one compilation, one program under `vmap`.

    The i-th run trains `agents[i]` on `losses[i]` with `keys[i]` and `learning_rates[i]`; agents may differ in their arrays
    (weights, trust, slack), losses in theirs (mu, kappa, rho_bar), not in structure. A single loss or rate serves all.
    """
    count = len(agents)
    losses = _one_each("losses", CalibratedLoss() if losses is None else losses, count)
    rates = _one_each("learning_rates", learning_rates, count)
    _refuse_bad_settings(agents, keys, rates, steps, batch, dtype)
    solved = _with_oracles(problem, instances)
    training = cast_floats(solved, dtype)
    checked = None if validation is None else cast_floats(_with_oracles(problem, validation), dtype)
    losses = [cast_floats(scaled(loss, training.oracles), dtype) for loss in losses]
    weights, frozen = _stack(
        [eqx.partition(cast_floats(agent, dtype), trainable_mask(agent)) for agent in agents], "agents"
    )
    gradients = [
        gradient.prepare(agent, problem, solved.instances, solved.oracles, jax.random.fold_in(key, 0))
        for agent, key in zip(agents, keys, strict=True)
    ]
    runs = _Runs(
        frozen,
        _stack(losses, "losses"),
        _stack([cast_floats(one, dtype) for one in gradients], "gradients"),
        jnp.stack([jax.random.fold_in(key, 1) for key in keys]),
    )
    plan = _Plan.of(schedule, rates, keys, steps, batch, instances.x0.shape[0], dtype)
    trained, history = _train(weights, runs, cast_floats(problem, dtype), training, checked, plan, progress)
    results = []
    for i, agent in enumerate(agents):
        _, kept = eqx.partition(agent, trainable_mask(agent))
        finished = eqx.combine(jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], trained), kept)
        finished = jax.tree.map(lambda new, old: jnp.asarray(np.asarray(new), old.dtype), finished, agent)
        log = FitLog(
            history.loss[i],
            history.validation_steps,
            history.validation_cost[i],
            int(history.best_step[i]),
            float(losses[i].scale.factor),
            steps * gradient.evaluations,
            gradients[i].report(),
        )
        results.append(FitResult(finished, log))
    return results


class _Runs(eqx.Module):
    """What differs from run to run besides weights, on a leading axis."""

    frozen: PyTree
    losses: AbstractLoss
    gradients: AbstractGradient
    keys: Key[Array, "*n"] | UInt32[Array, "*n k"]


class _History(eqx.Module):
    """What happened in all runs."""

    loss: Float[np.ndarray, "n steps"]
    validation_steps: Int[np.ndarray, " k"]
    validation_cost: Float[np.ndarray, "n k"]
    best_step: Int[np.ndarray, " n"]


class _Plan(eqx.Module):
    """Which instances and which learning rate each step of each run uses, padded to whole chunks with steps never made."""

    indices: Int[np.ndarray, "chunks n chunk b"]
    rates: Float[np.ndarray, "chunks n chunk"]
    steps: int

    @classmethod
    def of(cls, schedule, learning_rates, keys, steps, batch, n_instances, dtype) -> "_Plan":
        chunks = -(-steps // _CHUNK)
        padded = chunks * _CHUNK
        rates = np.stack([_rates(schedule, rate, steps) for rate in learning_rates])
        rates = np.pad(rates, ((0, 0), (0, padded - steps)))
        indices = np.stack([_epochs(key, n_instances, padded * batch) for key in keys])
        return cls(
            indices.reshape(len(keys), chunks, _CHUNK, batch).swapaxes(0, 1),
            rates.reshape(len(keys), chunks, _CHUNK).swapaxes(0, 1).astype(dtype),
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


@eqx.filter_jit
def _oracle_set(problem: Problem, instances: Instance) -> Trajectory:
    return jax.vmap(lambda instance: oracle(problem, instance))(instances)


def _with_oracles(problem: Problem, instances: Instance) -> _Data:
    """Instances with their oracles, solved in the precision they come in."""
    if instances.x0.ndim != 2:
        raise ValueError(f"fit takes a set of instances with a leading axis, got x0 of shape {instances.x0.shape}.")
    oracles = _oracle_set(problem, instances)
    failed = ~np.asarray(oracles.converged).all(axis=-1)
    if failed.any():
        raise ValueError(f"the oracle did not converge on {failed.sum()} instances.")
    return _Data(instances, oracles)


def _refuse_bad_settings(agents, keys, rates, steps: int, batch: int, dtype) -> None:
    if not agents:
        raise ValueError("agents must not be empty.")
    if len(keys) != len(agents):
        raise ValueError(f"keys must have one key per agent, {len(agents)} in all, got {len(keys)}.")
    if steps < 1 or batch < 1:
        raise ValueError(f"steps and batch must be positive, got {steps} and {batch}.")
    if not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        raise ValueError(f"dtype must be a floating-point type, got {dtype!r}.")
    for rate in rates:
        if not (np.isfinite(rate) and rate > 0):
            raise ValueError(f"learning_rates must be positive and finite, got {rate:g}.")
    for agent in agents:
        if not any(jax.tree.leaves(trainable_mask(agent))):
            raise ValueError(f"{type(agent).__name__} has no weights to train (agents.Trainable).")


def _one_each(name: str, values: Any, count: int) -> list:
    """A list with one value per run; a single value serves all."""
    if isinstance(values, list | tuple):
        if len(values) != count:
            raise ValueError(f"{name} must have one entry per agent, {count} in all, got {len(values)}.")
        return list(values)
    return [values] * count


def _stack(trees: list, name: str) -> Any:
    """One tree with a leading run axis on every leaf."""
    structures = {jax.tree.structure(tree) for tree in trees}
    if len(structures) > 1:
        raise ValueError(f"{name} must all have the same structure; they differ in more than their arrays.")
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *trees)  # on the host: nothing to compile


_ADAM = optax.flatten(optax.scale_by_adam())  # one vector: a program of a third of the size


def _one_step(carry: _Progress, indices, rate, number, run: _Runs, problem, training: _Data):
    data = training.batch(indices)

    def loss(agent):
        return run.losses(agent, problem, data.instances, data.oracles)

    key = jax.random.fold_in(run.keys, number)
    value, slope = run.gradients.value_and_slope(loss, carry.weights, run.frozen, key)
    direction, adam = _ADAM.update(slope, carry.adam)
    weights = jax.tree.map(lambda w, u: w - rate * u, carry.weights, direction)
    return _Progress(weights, adam), value


@eqx.filter_jit
def _train_chunk(states, runs: _Runs, problem, training, indices, rates, first, count):
    """Many runs through `count` steps of a chunk that begins with step `first`; one run is not vmapped, which is faster."""

    def one(state, run, indices, rates):
        def step(i, carry):
            state, losses = carry
            state, loss = _one_step(state, indices[i], rates[i], first + i, run, problem, training)
            return state, losses.at[i].set(loss)

        return jax.lax.fori_loop(0, count, step, (state, jnp.zeros_like(rates)))

    return _over_runs(one)(states, runs, indices, rates)


@eqx.filter_jit
def _validate(weights, frozen, problem, checked: _Data):
    """Mean cost over the validation set, over the oracle's."""

    def one(weights, frozen):
        return jnp.mean(runs_of(eqx.combine(weights, frozen), problem, checked.instances).cost)

    return _over_runs(one)(weights, frozen) / jnp.mean(checked.oracles.cost)


def _over_runs(one: Callable) -> Callable:
    """Map over the run axis, which is squeezed away where there is one run."""

    def over(*trees):
        if jax.tree.leaves(trees)[0].shape[0] > 1:
            return jax.vmap(one)(*trees)
        single = one(*jax.tree.map(lambda leaf: leaf[0], trees))
        return jax.tree.map(lambda leaf: leaf[None], single)

    return over


def _train(weights, runs: _Runs, problem, training, checked, plan: _Plan, progress: Progress | None):
    """The loop over chunks on the host. Returns the weights to keep, and what happened."""
    state = _Progress(weights, jax.vmap(_ADAM.init)(weights))
    count = plan.rates.shape[1]
    losses, checks, check_steps = [], [], []
    best, best_cost, best_step = weights, np.full(count, np.inf), np.full(count, plan.steps)
    for chunk in range(plan.rates.shape[0]):
        first = chunk * _CHUNK
        done = min(first + _CHUNK, plan.steps)
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
        if progress is not None:
            progress(done, plan.steps, float(values[:, -1].mean()))
    validation_cost = np.stack(checks, axis=1) if checks else np.zeros((count, 0))
    history = _History(np.concatenate(losses, axis=1), np.array(check_steps, int), validation_cost, best_step)
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
