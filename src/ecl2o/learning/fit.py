"""Train the advisors inside agents: one setting, or many at once."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, PyTree, UInt32

from ecl2o.agents import AbstractAgent, trainable_mask
from ecl2o.learning.gradients import AbstractGradient, Backpropagation
from ecl2o.learning.losses import AbstractLoss, CalibratedLoss, fix_scale
from ecl2o.learning.training_loop import Schedule, SolvedInstances, init_state, make_rates, take_step, train
from ecl2o.offline import oracle_batch
from ecl2o.problem import AbstractProblem, Instance, Trajectory
from ecl2o.problem.arrays import cast_floats, to_device
from ecl2o.running import rollout_batch
from ecl2o.running.rollout import stack_trees, vmap_unless_single

CHUNK = 100  # steps that are compiled as one loop, which serves runs of any length, seed, trust and learning rate

TrainingProgress = Callable[[int, int, float], None]  # (step, steps, latest loss)


class FitLog(eqx.Module):
    """The log of a training run.

    Args:
        loss: (steps,), before each step.
        validation_steps: (k,), after which steps the agent was validated.
        validation_cost: (k,), the mean validation cost then, over that of the oracle.
        best_step: The step whose weights were kept.
        cost_factor: The factor on costs in the loss; keep it with a policy.
        loss_evaluations: Evaluations of the loss on a batch; a backward pass counts as two.
        gradient_report: Figures of the gradient, such as the error of a surrogate's Jacobians.
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
    """The result of a training.

    Args:
        agent: The trained agent, of the type that was given.
        log: Losses, costs and the selected step.
    """

    agent: Fitted
    log: FitLog


def fit(
    agent: Fitted,
    problem: AbstractProblem,
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
    progress: TrainingProgress | None = None,
) -> FitResult[Fitted]:
    """Train the advisors inside an agent on a set of instances.

    Only weights are trained (`agents.Trainable`); trust, slack and scales stay. The same key gives the same result.

    Args:
        agent: The agent to train, with an advisor that has weights.
        problem: Its costs and action set.
        instances: n of them, with a leading axis: x0 (n, d), contexts (n, T, q), history (n, H, q).
        loss: The loss to minimise. Default: None, `CalibratedLoss()`.
        key: For the order of the batches, and for gradients that draw numbers.
        steps: Adam steps, at least 1. Default: 4000.
        batch: Instances in a step, at least 1; drawn without replacement, epoch after epoch. Default: 50.
        learning_rate: The rate of the first step; positive. Default: 0.003.
        schedule: "cosine" (to zero), "constant", an optax schedule, or an array with one rate per step. Default: "cosine".
        gradient: `Backpropagation()`, `ZeroOrder()` or `SurrogateCalibrator()`. Default: `Backpropagation()`.
        dtype: The precision of training; the result has the agent's own. Default: "float32".
        validation: Instances for a validation after every 100 steps; the weights with the lowest mean cost are returned.
            Default: None, the last weights are returned.
        progress: Called with (step, steps, latest loss) after every 100 steps. Default: None.

    Returns:
        The trained agent, and the log.

    Raises:
        ValueError: A number is out of its range, the agent has no weights, or an oracle did not converge.
        FloatingPointError: The loss is not finite; the message has the number of the step.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> instances = ec.Instance(np.zeros((8, 1)), np.random.default_rng(0).normal(size=(8, 3, 1)))
    >>> agent = ec.MLAROBD(ec.advisors.MLP(1, 1, width=4, depth=2, key=jax.random.key(0)))
    >>> result = ec.fit(agent, problem, instances, key=jax.random.key(1), steps=3, batch=4)
    >>> result.log.loss.shape
    (3,)
    """
    options = {"steps": steps, "batch": batch, "schedule": schedule, "gradient": gradient, "dtype": dtype}
    one_each = {"losses": loss, "learning_rates": [learning_rate], "keys": [key]}
    return fit_many([agent], problem, instances, **one_each, **options, validation=validation, progress=progress)[0]


def fit_many(
    agents: Sequence[Fitted],
    problem: AbstractProblem,
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
    progress: TrainingProgress | None = None,
    oracles: Trajectory | None = None,
) -> list[FitResult[Fitted]]:
    """Train many seeds and settings at once: one compilation, one program under `vmap`.

    The i-th run trains `agents[i]` on `losses[i]` with `keys[i]` and `learning_rates[i]`.

    Args:
        agents: Of one structure; they may differ in their arrays (weights, trust, slack).
        problem: As in `fit`.
        instances: As in `fit`.
        losses: One for each, or one for all; they may differ in their arrays (mu, kappa, rho_bar). Default: None,
            `CalibratedLoss()`.
        keys: One for each.
        steps: As in `fit`. Default: 4000.
        batch: As in `fit`. Default: 50.
        learning_rates: One for each, or one for all; positive. Default: 0.003.
        schedule: As in `fit`. Default: "cosine".
        gradient: As in `fit`. Default: `Backpropagation()`.
        dtype: As in `fit`. Default: "float32".
        validation: As in `fit`; each run keeps its own best weights. Default: None.
        progress: Called with (step, steps, mean of the latest losses). Default: None.
        oracles: The optima of the instances (`offline.oracle_batch`). Default: None, they are solved here.

    Returns:
        One result per agent, in their order.

    Raises:
        ValueError: As in `fit`; or lengths do not match, or structures differ.
        FloatingPointError: A loss is not finite; the message has the numbers of the run and the step.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> instances = ec.Instance(np.zeros((8, 1)), np.random.default_rng(0).normal(size=(8, 3, 1)))
    >>> keys = [jax.random.key(seed) for seed in (0, 1)]
    >>> agents = [ec.MLAROBD(ec.advisors.MLP(1, 1, width=4, depth=2, key=key)) for key in keys]
    >>> [result.log.best_step for result in ec.fit_many(agents, problem, instances, keys=keys, steps=3, batch=4)]
    [3, 3]
    """
    count = len(agents)
    losses = _one_each("losses", CalibratedLoss() if losses is None else losses, count)
    rates = _one_each("learning_rates", learning_rates, count)
    _check_settings(agents, keys, rates, steps, batch, dtype)
    solved = _solve(problem, instances, oracles)
    training = cast_floats(solved, dtype)
    validated = None if validation is None else cast_floats(_solve(problem, validation), dtype)
    losses = [cast_floats(fix_scale(loss, training.oracles), dtype) for loss in losses]
    weights, frozen = stack_trees(
        [eqx.partition(cast_floats(agent, dtype), trainable_mask(agent)) for agent in agents], "agents"
    )
    gradients = [
        gradient.prepare_for(agent, problem, solved.instances, solved.oracles, jax.random.fold_in(key, 0))
        for agent, key in zip(agents, keys, strict=True)
    ]
    runs = _Runs(
        frozen,
        stack_trees(losses, "losses"),
        stack_trees([cast_floats(one, dtype) for one in gradients], "gradients"),
        jnp.stack([jax.random.fold_in(key, 1) for key in keys]),
    )
    chunks = -(-steps // CHUNK)
    indices = np.stack([_draw_epochs(key, instances.x0.shape[0], chunks * CHUNK * batch) for key in keys])
    indices = indices.reshape(count, chunks, CHUNK, batch)
    schedules = np.stack([make_rates(schedule, rate, steps) for rate in rates])
    schedules = np.pad(schedules, ((0, 0), (0, chunks * CHUNK - steps))).reshape(count, chunks, CHUNK).astype(dtype)
    problem = cast_floats(problem, dtype)

    def train_chunk(state, chunk):
        first, size = chunk * CHUNK, min(CHUNK, steps - chunk * CHUNK)
        batches = indices[:, chunk], schedules[:, chunk], jnp.asarray(first), jnp.asarray(size)
        state, values = _train_chunk(state, runs, problem, training, *batches)
        values = np.asarray(values)[:, :size]
        if not np.isfinite(values).all():
            run, step = np.argwhere(~np.isfinite(values))[0]
            which = f" of run {run}" if count > 1 else ""
            raise FloatingPointError(
                f"the loss{which} became {values[run, step]} at step {first + step + 1}; use a smaller learning rate, or "
                "scale the inputs."
            )
        return state, values

    validate = None if validated is None else lambda weights: _validate(weights, frozen, problem, validated)
    report = None if progress is None else lambda done, loss: progress(done, steps, loss)
    trained, history = train(init_state(weights), range(chunks), train_chunk, validate, progress=report)
    costs = np.concatenate([np.zeros((count, 0)), *history.validation_costs], axis=-1)
    loss = np.concatenate(history.losses, axis=-1)
    best_step = np.broadcast_to(steps if validated is None else history.best_step, count)
    results = []
    for i, agent in enumerate(agents):
        _, kept = eqx.partition(agent, trainable_mask(agent))
        finished = eqx.combine(jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], trained), kept)
        finished = jax.tree.map(lambda new, old: to_device(np.asarray(new, old.dtype)), finished, agent)
        figures = loss[i], history.validation_steps, costs[i], int(best_step[i]), float(losses[i].scale.factor)
        results.append(FitResult(finished, FitLog(*figures, steps * gradient.evaluations, gradients[i].report())))
    return results


class _Runs(eqx.Module):
    """What differs from run to run besides weights, on a leading axis."""

    frozen: PyTree
    losses: AbstractLoss
    gradients: AbstractGradient
    keys: Key[Array, "*n"] | UInt32[Array, "*n k"]


@eqx.filter_jit
def _train_chunk(states, runs: _Runs, problem, training, indices, rates, first, count):
    """Take many runs through `count` steps; one run is not vmapped, which is faster."""

    def one(state, run, indices, rates):
        def step(i, carry):
            state, losses = carry
            data = jax.tree.map(lambda leaf: leaf[indices[i]], training)
            key = jax.random.fold_in(run.keys, first + i)

            def loss(agent):
                return run.losses(agent, problem, data.instances, data.oracles)

            def value_and_grad(weights):
                return run.gradients.value_and_grad(loss, weights, run.frozen, key)

            state, value = take_step(state, rates[i], value_and_grad)
            return state, losses.at[i].set(value)

        return jax.lax.fori_loop(0, count, step, (state, jnp.zeros_like(rates)))

    return vmap_unless_single(one)(states, runs, indices, rates)


@eqx.filter_jit
def _validate(weights, frozen, problem, validation: SolvedInstances):
    def one(weights, frozen):
        return jnp.mean(rollout_batch(eqx.combine(weights, frozen), problem, validation.instances).cost)

    return vmap_unless_single(one)(weights, frozen)[:, None] / jnp.mean(validation.oracles.cost)


def _draw_epochs(key: PRNGKeyArray, n_instances: int, count: int) -> Int[np.ndarray, " count"]:
    epochs = -(-count // n_instances)
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    orders = generator.permuted(np.tile(np.arange(n_instances, dtype=np.int32), (epochs, 1)), axis=1)
    return orders.ravel()[:count]


def _solve(problem: AbstractProblem, instances: Instance, oracles: Trajectory | None = None) -> SolvedInstances:
    """Return instances with their oracles, solved in the precision of the instances unless they are given."""
    if instances.x0.ndim != 2:
        raise ValueError(f"fit takes a set of instances with a leading axis, got x0 of shape {instances.x0.shape}.")
    oracles = oracle_batch(problem, instances) if oracles is None else oracles
    if oracles.hitting.shape != instances.contexts.shape[:2]:
        raise ValueError(
            f"oracles must be those of the instances, {instances.contexts.shape[:2]} steps, got {oracles.hitting.shape}."
        )
    failed = ~np.asarray(oracles.converged).all(axis=-1)
    if failed.any():
        raise ValueError(f"the oracle did not converge on {failed.sum()} instances.")
    return SolvedInstances(instances, oracles)


def _check_settings(agents, keys, rates, steps: int, batch: int, dtype) -> None:
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
    if isinstance(values, list | tuple):
        if len(values) != count:
            raise ValueError(f"{name} must have one entry per agent, {count} in all, got {len(values)}.")
        return list(values)
    return [values] * count
