"""Training the advisors inside agents: one setting, or many at once."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from ecl2o.agents import AbstractAgent, trainable_mask
from ecl2o.learning.gradients import AbstractGradient, Backpropagation
from ecl2o.learning.losses import AbstractLoss, CalibratedLoss, fix_scale
from ecl2o.learning.training_loop import (
    BatchSchedule,
    Schedule,
    SolvedInstances,
    TrainingProgress,
    TrainingRuns,
    train_batches,
)
from ecl2o.offline import oracle_batch
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import cast_floats, to_device
from ecl2o.running.rollout import stack_trees


class FitLog(eqx.Module):
    """How training went: the loss of every step, and the validation figure after each chunk.

    `loss_evaluations` is what it cost in evaluations of the loss on a batch (a backward pass counts as two), and
    `gradient_report` what the source of the gradient has to say, such as the error of a surrogate's Jacobians.

    Args:
        loss: (steps,), of every step.
        validation_steps: (k,), after which steps the agent was validated.
        validation_cost: (k,), the figure then.
        best_step: the step whose weights were kept.
        cost_factor: the factor on costs in the loss.
        loss_evaluations: on a batch; a backward pass counts as two.
        gradient_report: what the source of the gradient has to say, such as the error of a surrogate's Jacobians.
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
    """The trained agent and the log. `log.cost_factor` is the factor on costs in the loss, to be kept with a policy.

    Args:
        agent: the trained one.
        log: how training went.
    """

    agent: Fitted
    log: FitLog


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
    progress: TrainingProgress | None = None,
) -> FitResult[Fitted]:
    """Train the advisors inside an agent on a set of instances.

    Only weights are trained (`agents.Trainable`); trust, slack and scales stay. The same key gives the same result.

    Args:
        agent: what to train.
        problem: what is decided.
        instances: n of them, with a leading axis: x0 (n, d), contexts (n, T, q), history (n, H, q).
        loss: what to minimise. Default: `CalibratedLoss()`.
        key: for the order of the batches, and for gradients that draw numbers.
        steps: Adam steps.
        batch: instances in a step, drawn without replacement, epoch after epoch.
        learning_rate: the first one; `schedule` says how it goes on.
        schedule: "cosine" (to zero), "constant", an optax schedule, or an array with one rate per step.
        gradient: how the gradient is found; `learning.gradients` has two others to compare with.
        dtype: the precision of training; the result has the agent's own.
        validation: instances on which the mean cost is taken after every 100 steps; the weights with the lowest are returned,
            not the last ones.
        progress: called with (step, steps, latest loss).

    Returns:
        The trained agent, and the log.

    Raises:
        FloatingPointError: the loss is not finite; the message has the number of the step.
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
    progress: TrainingProgress | None = None,
    oracles: Trajectory | None = None,
) -> list[FitResult[Fitted]]:
    """`fit` for many seeds and settings at once: one compilation, one program under `vmap`.

    The i-th run trains `agents[i]` on `losses[i]` with `keys[i]` and `learning_rates[i]`; the other
    arguments are those of `fit`, and serve all runs.

    Args:
        agents: may differ in their arrays (weights, trust, slack), not in structure.
        problem: what is decided.
        instances: with a leading axis, as in `fit`.
        losses: one for each, or one for all; they may differ in their arrays (mu, kappa, rho_bar).
        keys: one for each.
        learning_rates: one for each, or one for all.
        steps: Adam steps.
        batch: instances in a step.
        schedule: how the learning rates go on.
        gradient: how the gradient is found.
        dtype: the precision of training.
        validation: instances that choose the weights to return, in each run by itself.
        progress: called with (step, steps, mean of the latest losses).
        oracles: of the instances, where they are known (`offline.oracle_batch`). Default: they are solved here.

    Returns:
        One result per agent, in their order.
    """
    count = len(agents)
    losses = _one_each("losses", CalibratedLoss() if losses is None else losses, count)
    rates = _one_each("learning_rates", learning_rates, count)
    _refuse_bad_settings(agents, keys, rates, steps, batch, dtype)
    solved = _with_oracles(problem, instances, oracles)
    training = cast_floats(solved, dtype)
    checked = None if validation is None else cast_floats(_with_oracles(problem, validation), dtype)
    losses = [cast_floats(fix_scale(loss, training.oracles), dtype) for loss in losses]
    weights, frozen = stack_trees(
        [eqx.partition(cast_floats(agent, dtype), trainable_mask(agent)) for agent in agents], "agents"
    )
    gradients = [
        gradient.prepare_for(agent, problem, solved.instances, solved.oracles, jax.random.fold_in(key, 0))
        for agent, key in zip(agents, keys, strict=True)
    ]
    runs = TrainingRuns(
        frozen,
        stack_trees(losses, "losses"),
        stack_trees([cast_floats(one, dtype) for one in gradients], "gradients"),
        jnp.stack([jax.random.fold_in(key, 1) for key in keys]),
    )
    plan = BatchSchedule.of(schedule, rates, keys, steps, batch, instances.x0.shape[0], dtype)
    trained, history = train_batches(weights, runs, cast_floats(problem, dtype), training, checked, plan, progress)
    costs = np.concatenate(history.validation_costs, axis=-1) if checked is not None else np.zeros((count, 0))
    loss, best_step = np.concatenate(history.losses, axis=-1), np.broadcast_to(history.best_step, count)
    results = []
    for i, agent in enumerate(agents):
        _, kept = eqx.partition(agent, trainable_mask(agent))
        finished = eqx.combine(jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], trained), kept)
        finished = jax.tree.map(lambda new, old: to_device(np.asarray(new, old.dtype)), finished, agent)
        log = FitLog(
            loss[i],
            history.validation_steps,
            costs[i],
            steps if checked is None else int(best_step[i]),
            float(losses[i].scale.factor),
            steps * gradient.evaluations,
            gradients[i].report(),
        )
        results.append(FitResult(finished, log))
    return results


def _with_oracles(problem: Problem, instances: Instance, oracles: Trajectory | None = None) -> SolvedInstances:
    """Instances with their oracles, solved in the precision they come in unless they are known."""
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
