"""Train the advisors inside agents: one setting, or many at once."""

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
    """A trained agent, and the log of its training."""

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
    runs = TrainingRuns(
        frozen,
        stack_trees(losses, "losses"),
        stack_trees([cast_floats(one, dtype) for one in gradients], "gradients"),
        jnp.stack([jax.random.fold_in(key, 1) for key in keys]),
    )
    plan = BatchSchedule.of(schedule, rates, keys, steps, batch, instances.x0.shape[0], dtype)
    trained, history = train_batches(weights, runs, cast_floats(problem, dtype), training, validated, plan, progress)
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


def _solve(problem: Problem, instances: Instance, oracles: Trajectory | None = None) -> SolvedInstances:
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
