"""Train through a guard: a loss on recorded forecasts, and its training for many sites and guards at once.

The forecasts of regressions and of their mixture do not depend on the actions. They are recorded once, in one causal pass, and
only the 70 weights of the `GuardAwareCorrection` around it are trained.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ecl2o.agents import AbstractAgent, Guard, trainable_mask
from ecl2o.agents.advisors.discounted_forecast import DiscountedForecast, Replayed
from ecl2o.learning.fit import FitLog
from ecl2o.learning.losses import AbstractLoss, get_scale
from ecl2o.learning.training_loop import SolvedInstances, TrainingState, init_state, make_rates, take_step, train
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import AnyArray, to_device
from ecl2o.running import rollout, rollout_batch
from ecl2o.running.rollout import stack_trees, vmap_unless_single
from ecl2o.running.stored_jit import stored_jit

_CLEAR = 2.0  # standard errors by which the validation days must prefer a correction to none


class GuardedLoss(AbstractLoss):
    """Mean cost of a guard around a `GuardAwareCorrection`, on recorded forecasts.

    Args:
        forecasts: Of each step of each instance, in their order: (n, T, ...), cut from `record_forecasts`.
        period: Steps after which the promise starts again. Default: None, never.
        cost_scale: As in `AbstractLoss`. Default: "oracle".
        scale: As in `AbstractLoss`. Default: None.
    """

    forecasts: DiscountedForecast
    period: int | None = eqx.field(static=True, default=None)

    def __call__(self, agent: Any, problem, instances, oracles):
        return get_scale(self, oracles).mean_cost(self.roll_out(agent, problem, instances).cost, oracles.cost)

    def roll_out(self, guard: Guard, problem: Problem, instances: Instance) -> Trajectory:
        """Run the guard on every instance, with the recorded forecasts instead of the regression."""
        guard = guard.every(self.period)

        def replay(guard, advisor):
            return eqx.tree_at(lambda g: g.agent.advisor, guard, advisor)

        axes = replay(jax.tree.map(lambda _: None, guard), Replayed(jax.tree.map(lambda _: 0, self.forecasts)))
        return rollout_batch(replay(guard, Replayed(self.forecasts)), problem, instances, agent_axes=axes)


class RecordedInstances(eqx.Module):
    """Instances with their oracles, the loss on their recorded forecasts, and which days of a validation count."""

    loss: GuardedLoss
    data: SolvedInstances
    scored: Bool[AnyArray, " n"] | None = None


def record_forecasts(advisor: AbstractAgent, problem: Problem, contexts: Float[AnyArray, "n q"]) -> DiscountedForecast:
    """Return the advisor's forecast at each step of a series, made from the contexts until then."""
    x0 = problem.drop_covariates(contexts[0])
    return rollout(advisor, problem, Instance(x0, contexts)).details["discounted_forecast"]


def fit_guards(
    guards: Sequence[Sequence[Guard]],
    problems: Sequence[Problem],
    training: Sequence[RecordedInstances],
    validation: Sequence[RecordedInstances],
    *,
    steps_per_day: int,
    steps: int = 200,
    learning_rate: float = 0.05,
    checks: int = 4,
) -> list[list[tuple[Guard, FitLog]]]:
    """Train the correction inside each guard of each site, all in one program.

    Every step uses all instances (Adam, cosine decay; nothing is random). The weights with the lowest cost on the
    validation days are kept if these prefer them to no correction by more than two standard errors; else the guard
    stays as it is.

    Args:
        guards: By site, each around a `GuardAwareCorrection`; they differ in their arrays only.
        problems: By site.
        training: By site.
        validation: By site: the validation days as one instance, with the daily oracles. Empty without checks.
        steps_per_day: Steps of a validation day.
        steps: Adam steps; 0 only validates the guards. Default: 200.
        learning_rate: The rate of the first step. Default: 0.05.
        checks: Number of validations after training steps. Default: 4. 0: the last weights are kept.

    Returns:
        By site, each guard with its weights, and its log; `best_step` is 0 if no correction is kept.
    """
    together = stack_trees([stack_trees(group) for group in guards])
    weights, frozen = eqx.partition(together, trainable_mask(together))
    problem, instances = stack_trees(problems), stack_trees(training)

    def train_chunk(state, rates):
        adam, structure = jax.tree.flatten(state.adam)
        loss, data = instances.loss, (instances.data.instances, instances.data.oracles)
        scales = loss.cost_scale, loss.scale
        known = frozen, problem, loss.forecasts, loss.period, scales, data
        weights, adam, losses = _train_chunk(state.weights, tuple(adam), *known, rates)
        return TrainingState(weights, jax.tree.unflatten(structure, adam)), losses

    def validate(weights):
        return daily_costs(weights, frozen, problem, stack_trees(validation), steps_per_day)

    rates = np.array_split(make_rates("cosine", learning_rate, steps), max(checks, 1)) if steps else ()
    asked = validate if checks else None
    best, history = train(init_state(weights, axes=2), rates, train_chunk, asked, validate_first=True)
    best = jax.tree.map(np.asarray, best)
    loss = np.concatenate([np.zeros((len(guards), len(guards[0]), 0)), *history.losses], axis=-1)
    costs = np.stack(history.validation_costs, axis=2) if checks else np.zeros((len(guards), len(guards[0]), 0, 1))
    factors = 1 / np.mean(np.asarray(instances.data.oracles.cost), axis=-1)
    results = []
    for i, group in enumerate(guards):
        results.append([])
        for j, guard in enumerate(group):
            done = int(history.validation_steps[choose_check(costs[i, j])]) if checks else steps
            if done:
                chosen = jax.tree.map(lambda leaf, i=i, j=j: to_device(leaf[i, j]), best)
                guard = eqx.combine(chosen, eqx.filter(guard, trainable_mask(guard), inverse=True))
            figures = loss[i, j], history.validation_steps, costs[i, j].sum(axis=1), done, float(factors[i]), 3 * steps
            results[i].append((guard, FitLog(*figures, {})))
    return results


def choose_check(costs: Float[np.ndarray, "k n"]) -> int:
    """Return the check with the lowest cost over the validation days, or 0 if its gain over the first is not clear."""
    best = int(np.argmin(costs.sum(axis=1)))
    gains, days = costs[0] - costs[best], costs.shape[1]
    error = np.std(gains, ddof=1) / np.sqrt(days) if days > 1 else np.inf
    return best if np.mean(gains) > _CLEAR * error else 0


@eqx.filter_jit
def daily_costs(
    weights, frozen, problems: Problem, validation: RecordedInstances, steps_per_day: int
) -> Float[Array, "sites guards n"]:
    """Return the cost of each validation day of each guard, over the daily oracles' total; 0 for days that do not count."""

    def one(weights, frozen, problem, days):
        runs = days.loss.roll_out(eqx.combine(weights, frozen), problem, days.data.instances)
        total = jnp.sum(days.data.oracles.cost)
        costs = ((runs.hitting + runs.switching) / total).reshape(-1, steps_per_day).sum(axis=1)
        return costs if days.scored is None else jnp.where(days.scored, costs, 0.0)

    return vmap_unless_single(vmap_unless_single(one, (0, 0, None, None)))(weights, frozen, problems, validation)


@stored_jit
def _train_chunk(weights, adam: tuple[Array, ...], frozen, problems: Problem, forecasts, period, scales, data, rates):
    """Take a step for each rate; return the weights, the leaves of Adam's state, and the losses before the steps.

    The loss is given by its fields, and Adam's state by its leaves: executables are stored for the library's agents and problems.
    """
    structure = jax.tree.structure(init_state(weights, axes=2).adam)

    def one(state, frozen, problem, forecasts, scale, data):
        guarded_loss = GuardedLoss(forecasts, period, cost_scale=scales[0], scale=scale)

        def loss(weights):
            return guarded_loss(eqx.combine(weights, frozen), problem, *data)

        return jax.lax.scan(lambda state, rate: take_step(state, rate, jax.value_and_grad(loss)), state, rates)

    state = TrainingState(weights, jax.tree.unflatten(structure, adam))
    train = vmap_unless_single(vmap_unless_single(one, (0, 0, None, None, None, None)))
    state, values = train(state, frozen, problems, forecasts, scales[1], data)
    return state.weights, tuple(jax.tree.leaves(state.adam)), values
