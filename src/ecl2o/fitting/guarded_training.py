"""Training through a guard: the recipe behind the guarded rows of the studies.

`OnlineRidge` has no weights that gradients could change, and what it makes of the contexts does not depend on what is played.
So its outlook is recorded once, in one causal pass from the first context on, and only the 70 weights of the correction are
trained, through the guard, on windows in which the promise is renewed as it will be in use. What is kept is what did best on the
validation days if these show, beyond chance, that it is better than no correction: where one learned in winter does not carry
over, or a week of validation cannot tell, there is none.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from ecl2o.agents import Competitive, Guarded, trainable_mask
from ecl2o.agents.advisors import OnlineRidge
from ecl2o.agents.advisors.discounted_forecast import DiscountedForecast, Replayed
from ecl2o.agents.advisors.guard_aware_correction import GuardAwareCorrection
from ecl2o.data import Contexts
from ecl2o.fitting.batches import check_same_shape, stack_trees
from ecl2o.fitting.settings import PromiseSpec, renewed
from ecl2o.learning.training_loop import init_at_zero
from ecl2o.offline import oracle, oracle_days
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import AnyArray, to_device
from ecl2o.running import rollout, rollout_batch
from ecl2o.running.rollout import vmap_unless_single

Guard = TypeVar("Guard", Competitive, Guarded)

# Of all windows together. A year of hourly rows has 6,000 days of windows that overlap, and evenly chosen ones serve it.
_MOST_DAYS, _MOST_STEPS = 510, 200_000
_CLEARLY = 2.0  # standard errors by which the validation days must prefer a correction to none


class GuardedLog(eqx.Module):
    """The loss of every step, and the normalised average cost on the validation days after each chunk (0: untrained).

    `best_step` is the step whose weights are kept, 0 where no correction is.
    """

    loss: Float[np.ndarray, " steps"]
    validation_steps: Int[np.ndarray, " k"]
    validation_cost: Float[np.ndarray, " k"]
    best_step: int


class _Recording(eqx.Module):
    """A set of windows, or the validation days as one window, with the outlook at each of their steps and a unit of cost."""

    instances: Instance
    outlook: DiscountedForecast
    unit: Float[Array, ""]


def competitive_ridge(terms: PromiseSpec, steps_per_day: int = 24) -> Competitive:
    """`Competitive` around the corrected `OnlineRidge`, for one period of the terms; to be trained, and played `renewed`."""
    return terms.guard(GuardAwareCorrection(OnlineRidge(steps_per_day), steps_per_day), steps_per_day)


def guarded_ridge(slack: float, steps_per_day: int = 24) -> Guarded:
    """The same in `Guarded`, beside R-OBD."""
    return Guarded(GuardAwareCorrection(OnlineRidge(steps_per_day), steps_per_day), slack=slack)


def record_outlook(advisor: OnlineRidge, problem: Problem, contexts: Float[AnyArray, "n q"]) -> DiscountedForecast:
    """What the advisor makes of each context of a series, having seen those before it and nothing else."""
    return rollout(advisor, problem, Instance(contexts[0], contexts)).details["discounted_forecast"]


def train_through(guard: Guard, problem: Problem, contexts: Contexts, **options: Any) -> tuple[Guard, GuardedLog]:
    """Train the correction inside one guard; the options are those of `train_through_each`."""
    return train_through_each([guard], problem, contexts, **options)[0]


def train_through_each(
    guards: Sequence[Guard],
    problem: Problem,
    contexts: Contexts,
    *,
    outlook: DiscountedForecast | None = None,
    **options: Any,
) -> list[tuple[Guard, GuardedLog]]:
    """Train the corrections inside several guards on one site; the options are those of `train_through_sites`."""
    outlooks = None if outlook is None else jax.tree.map(lambda leaf: leaf[None], outlook)
    return train_through_sites([guards], [problem], [contexts], outlooks=outlooks, **options)[0]


def train_through_sites(
    guards: Sequence[Sequence[Guard]],
    problems: Sequence[Problem],
    sites: Sequence[Contexts],
    *,
    period: int | None,
    steps: int = 200,
    learning_rate: float = 0.05,
    window_days: int | None = None,
    skipped_days: int | None = None,
    checks: int = 4,
    outlooks: DiscountedForecast | None = None,
) -> list[list[tuple[Guard, GuardedLog]]]:
    """Train the corrections inside guards on the training days; choose when to stop, and whether, on the validation days.

    Sites of one shape and the guards of each, which differ in numbers only, such as their ratios, are trained in one program,
    each by itself. All windows are used at every step (Adam, cosine decay; the defaults are those of docs/choices.md). There is
    nothing random.

    Args:
        guards: by site, each around `GuardAwareCorrection(OnlineRidge(...))`.
        problems: what is decided, by site.
        sites: the series with their splits.
        period: steps after which the promise begins anew; None: never, and then nothing is trained, because what a long run
            leaves of its promise is in no window of the training days.
        steps: Adam steps.
        learning_rate: the first one, in units of the weights.
        window_days: the length of the windows, one beginning on each day; by default two periods of up to a week or one of more,
            at least 5 days and at most 30, where there are so many.
        skipped_days: the first days, in which the regression has hardly begun: 14, but at most a third.
        checks: how often the validation days are asked.
        outlooks: what the regression makes of the training and validation days, by site; recorded here unless given.

    Returns:
        By site, each guard with its weights, and its log.
    """
    corrected = guards[0][0].agent
    if not (isinstance(corrected, GuardAwareCorrection) and isinstance(corrected.advisor, OnlineRidge)):
        raise TypeError(
            "train_through takes a guard around Corrected(OnlineRidge(...)), such as competitive_ridge(PromiseSpec(2.5))."
        )
    if steps < checks or checks < 1:
        raise ValueError(f"steps must be at least checks, and checks at least 1, got {steps} and {checks}.")
    check_same_shape(sites)
    split, per_day = sites[0].split, sites[0].steps_per_day
    skipped = max(1, min(14, split.training_days // 3)) if skipped_days is None else skipped_days
    window = _window_days(period, per_day, split.training_days - skipped) if window_days is None else window_days
    costs_of = stack_trees(problems)
    if outlooks is None:
        known = (split.training_days + split.validation_days) * per_day
        past = np.stack([contexts.values[:known] for contexts in sites])
        outlooks = _outlooks(corrected.advisor, costs_of, past)
    by_site = [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], outlooks) for i in range(len(sites))]
    recorded = list(zip(problems, sites, by_site, strict=True))
    training = stack_trees([_windows(*each, window, skipped) for each in recorded])
    validation = stack_trees([_validation(*each) for each in recorded])

    every = stack_trees([stack_trees(group) for group in guards])
    weights, frozen = eqx.partition(every, trainable_mask(every))
    adam = init_at_zero(jax.vmap(jax.vmap(_ADAM.init)), weights)
    rates = learning_rate * 0.5 * (1 + np.cos(np.pi * np.arange(steps) / steps))
    losses, done = [np.zeros((len(sites), len(guards[0]), 0))], [0]
    kept, costs = [weights], [_daily_costs(weights, frozen, costs_of, validation, period, per_day)]
    for chunk in np.array_split(rates, checks) if period is not None else ():
        weights, adam, values = _descend(weights, adam, frozen, costs_of, training, chunk, period)
        losses.append(np.asarray(values))
        done.append(done[-1] + len(chunk))
        kept.append(weights)
        costs.append(_daily_costs(weights, frozen, costs_of, validation, period, per_day))
    loss, cost = np.concatenate(losses, axis=-1), np.stack(costs, axis=2)  # by site and guard
    kept = [jax.tree.map(np.asarray, each) for each in kept]
    results = []
    for i, group in enumerate(guards):
        results.append([])
        for j, guard in enumerate(group):
            best = _choice(cost[i, j])
            log = GuardedLog(loss[i, j], np.array(done), cost[i, j].sum(axis=1), done[best])
            chosen = jax.tree.map(lambda leaf, i=i, j=j: to_device(leaf[i, j]), kept[best])
            results[i].append((eqx.combine(chosen, eqx.filter(guard, trainable_mask(guard), inverse=True)), log))
    return results


@eqx.filter_jit
def _outlooks(advisor: OnlineRidge, problems: Problem, values: Float[AnyArray, "sites n q"]) -> DiscountedForecast:
    return vmap_unless_single(lambda problem, contexts: record_outlook(advisor, problem, contexts))(problems, values)


def _window_days(period: int | None, steps_per_day: int, most: int) -> int:
    """How long the windows are: what a period leaves for the next must be seen, and a long promise needs a long account."""
    days = 30 if period is None else period // steps_per_day
    return max(1, min(max(5, 2 * days if days <= 7 else days), 30, most))


def _choice(costs: Float[np.ndarray, "k n"]) -> int:
    """Which of the weights to keep, by what they cost on each validation day: the cheapest, or the first if it is not clear.

    Clear is a mean gain over the first, day by day, of more than two standard errors.
    """
    best = int(np.argmin(costs.sum(axis=1)))
    gains, days = costs[0] - costs[best], costs.shape[1]
    error = np.std(gains, ddof=1) / np.sqrt(days) if days > 1 else np.inf
    return best if np.mean(gains) > _CLEARLY * error else 0


def _windows(problem: Problem, contexts: Contexts, outlook: DiscountedForecast, days: int, skipped: int) -> _Recording:
    """Windows of whole days inside the training days, one beginning on each day but the skipped ones, or on some of them."""
    per_day, last = contexts.steps_per_day, contexts.split.training_days - days
    if not 1 <= skipped <= last:
        raise ValueError(
            f"skipped_days must be from 1 to {last} to leave a window of {days} of the {contexts.split.training_days} "
            f"training days, got {skipped}."
        )
    starts = np.arange(skipped, last + 1) * per_day
    most = max(1, min(_MOST_DAYS // days, _MOST_STEPS // (days * per_day)))
    if len(starts) > most:
        starts = starts[np.linspace(0, len(starts) - 1, most).astype(int)]
    steps = starts[:, None] + np.arange(days * per_day)
    instances = Instance(contexts.values[starts - 1], contexts.values[steps])
    recorded = jax.tree.map(lambda leaf: leaf[steps], outlook)
    return _Recording(instances, recorded, to_device(np.mean(np.asarray(_optima(problem, instances)))))


@eqx.filter_jit
def _optima(problem: Problem, instances: Instance) -> Float[Array, " n"]:
    return jax.vmap(lambda instance: oracle(problem, instance).cost)(instances)


def _validation(problem: Problem, contexts: Contexts, outlook: DiscountedForecast) -> _Recording:
    """The validation days as one window, in units of the daily oracle that runs through them."""
    x0, days, _ = contexts.validation_days()
    n, T, q = days.shape
    start = contexts.split.training_days * T
    best, _ = oracle_days(problem, x0, days)
    recorded = jax.tree.map(lambda leaf: leaf[None, start : start + n * T], outlook)
    return _Recording(Instance(x0[None], days.reshape(1, n * T, q)), recorded, to_device(np.sum(np.asarray(best.cost))))


def _runs(weights, frozen, problem: Problem, recording: _Recording, period: int | None) -> Trajectory:
    """The guard's runs on the recorded outlooks, its promise renewed every period."""
    guard = eqx.combine(weights, frozen)

    def advised(guard, advisor):
        return renewed(eqx.tree_at(lambda g: g.agent.advisor, guard, advisor), period)

    axes = jax.tree.map(lambda _: None, guard)
    each = Replayed(jax.tree.map(lambda _: 0, recording.outlook))
    agent = advised(guard, Replayed(recording.outlook))
    return rollout_batch(agent, problem, recording.instances, agent_axes=advised(axes, each))


def _cost(weights, frozen, problem: Problem, recording: _Recording, period: int | None) -> Float[Array, ""]:
    """The mean cost of the runs, in the recording's unit."""
    return jnp.mean(_runs(weights, frozen, problem, recording, period).cost) / recording.unit


@eqx.filter_jit
def _daily_costs(
    weights, frozen, problems: Problem, recordings: _Recording, period: int | None, steps_per_day: int
) -> Float[Array, "sites guards n"]:
    """What each day of each guard's one run costs, in the recording's unit."""

    def one(weights, frozen, problem, recording):
        runs = _runs(weights, frozen, problem, recording, period)
        return ((runs.hitting + runs.switching) / recording.unit).reshape(-1, steps_per_day).sum(axis=1)

    return vmap_unless_single(vmap_unless_single(one, (0, 0, None, None)))(weights, frozen, problems, recordings)


_ADAM = optax.scale_by_adam()


@eqx.filter_jit
def _descend(
    weights, adam, frozen, problems: Problem, training: _Recording, rates: Float[AnyArray, " n"], period: int | None
):
    """Adam steps with these learning rates, compiled as one loop, for each site and guard."""

    def one(weights, adam, frozen, problem, recording):
        def step(carry, rate):
            weights, adam = carry
            value, slope = jax.value_and_grad(_cost)(weights, frozen, problem, recording, period)
            direction, adam = _ADAM.update(slope, adam)
            return (jax.tree.map(lambda w, u: w - rate * u, weights, direction), adam), value

        (weights, adam), values = jax.lax.scan(step, (weights, adam), rates)
        return weights, adam, values

    return vmap_unless_single(vmap_unless_single(one, (0, 0, 0, None, None)))(weights, adam, frozen, problems, training)
