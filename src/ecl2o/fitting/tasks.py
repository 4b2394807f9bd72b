"""What a series poses: its problem, the scaled task that training works on, and the days to validate and test on."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ecl2o.agents import ROBD, AbstractAgent, Guard, Start
from ecl2o.agents.advisors import FromContext, Scaling
from ecl2o.agents.calibrator import find_hitting_minimizer
from ecl2o.data import Contexts, SeriesMetadata
from ecl2o.evaluation import DailyScore, TestDays, score_runs_batch
from ecl2o.evaluation.comparison import Contender, score_contender
from ecl2o.exceptions import DataError
from ecl2o.fitting.settings import FitSettings, PromiseSpec, column_alphas, with_promise
from ecl2o.policy import Policy
from ecl2o.policy.start_run import choose_x0
from ecl2o.problem import (
    AsymmetricTracking,
    Box,
    CurvedTracking,
    Delayed,
    Everywhere,
    Immediate,
    KnownAhead,
    Limited,
    Mahalanobis,
    Problem,
    SquaredTracking,
)
from ecl2o.problem.arrays import strip_weak_types, to_device, to_host
from ecl2o.running.rollout import stack_trees
from ecl2o.solvers.exponential_weights import ExponentialWeights

HISTORY_DAYS, MOST_HISTORY_DAYS = 14, 365  # before the days of a comparison; for agents that learn while they run
_FEWEST_HISTORY_DAYS = 7
_WIDENED = 1.25  # factor by which the range of past weights is widened at both ends


@dataclasses.dataclass(frozen=True)
class FitTask:
    """A series, the problem it poses, and the settings of its fit; see `scale_task` for the units."""

    contexts: Contexts
    problem: Problem
    settings: FitSettings


def scale_task(contexts: Contexts, settings: FitSettings) -> FitTask:
    """Return the task in units in which the training days reach 1.

    Candidates are trained and validated in these units, because training works in single precision and its learning rates are
    tuned for contexts of size 1. `unscale_agent` brings the agents back: the policy takes and gives the user's numbers.

    Raises:
        DataError: If the training days never change.
    """
    training = contexts.followed[: len(contexts.training)]
    if (training == training[0]).all():
        raise DataError(f"the training days of {contexts.name} never change: every context is {training[0].tolist()}.")
    scaled = contexts.scale_to(1.0)
    own = settings.rescale(scaled.scale / contexts.scale)
    return FitTask(scaled, series_problem(contexts, own), own)


def unscale_agent(agent: AbstractAgent, factor: float, promise: PromiseSpec | None = None) -> AbstractAgent:
    """Return the agent for contexts `factor` times as large.

    Networks, guards and weights of mixtures carry units and are rescaled; all other agents are homogeneous. With the `promise` in
    the new units, the guard takes exactly its numbers: a rounded product could lie outside the bounds.
    """

    def has_units(node):
        return isinstance(node, Scaling | FromContext | Guard | ExponentialWeights)

    def convert(node):
        if isinstance(node, ExponentialWeights):  # of squared errors
            return jax.tree.map(lambda leaf: to_device(np.asarray(leaf) * factor**2), node)
        if isinstance(node, Scaling):
            return Scaling(to_host(node.offset) * factor, to_host(node.scale) * factor)  # nothing to compile
        if isinstance(node, FromContext):
            return dataclasses.replace(node, scale=node.scale * factor if promise is None else 1.0)
        if isinstance(node, Guard):
            guard = node.rescale(factor)
            if promise is not None:
                guard = guard.with_terms(promise.allowance, promise.contexts)
            return guard.map_agents(lambda inside: unscale_agent(inside, factor, promise))
        return node

    return jax.tree.map(convert, agent, is_leaf=has_units)


def check_promise_feasible(task: FitTask) -> None:
    """Raise before any training if no algorithm can keep the promise."""
    contexts, period = task.contexts, task.contexts.steps_per_day
    past, x0 = np.zeros((period, contexts.dim)), task.problem.actions.project(to_device(np.zeros(contexts.action_dim)))
    start = Start(_start_state(task.problem, x0, past), to_device(past[:0]), period)
    with_promise(ROBD(), task.settings.promise, period).check(task.problem, start)


def tracking_problem(
    dim: int,
    alpha: float | Float[np.ndarray, " d"],
    bounds: tuple[float, float] | None = None,
    weights: tuple[float, float] | None = None,
    covariates: int = 0,
    misses: tuple[float, float] = (1.0, 1.0),
    shift: int = 0,
    limits: tuple[float | None, float | None] = (None, None),
) -> Problem:
    """Return the problem f = 1/2 |x - y|^2, c = alpha/2 |x - z|^2, one action per column.

    Args:
        dim: d, the number of columns that are followed.
        alpha: one for all columns, or one for each, (d,).
        bounds: (low, high) of actions. Default: none.
        weights: (low, high) of the weight of a miss, which then is a number of a context after them and multiplies f.
        covariates: how many numbers at the end of a context are not followed.
        misses: (short, long), factors of f for actions below and above the context; without weights.
        shift: steps from a context to the step in which its action is in force; see `Delayed` and, below 0, `KnownAhead`.
        limits: (ramp, spacing) of actions, None for none.
    """
    actions = Everywhere() if bounds is None else Box(*bounds)
    actions = actions if limits == (None, None) else Limited(actions, *limits)
    if misses != (1.0, 1.0):
        hitting = AsymmetricTracking(*misses, covariates)
    else:
        hitting = SquaredTracking(covariates=covariates) if weights is None else CurvedTracking(*weights, covariates)
    timing = Delayed(shift) if shift > 0 else KnownAhead(-shift) if shift < 0 else Immediate()
    costs = hitting, Mahalanobis(np.diag(np.broadcast_to(alpha, (dim,))) / 2), actions
    return strip_weak_types(Problem(*costs, timing))


def series_problem(contexts: Contexts, settings: FitSettings = FitSettings()) -> Problem:
    """Return the `tracking_problem` of a series; weights default to the range of the training days."""
    assert isinstance(contexts.metadata, SeriesMetadata)
    weights, misses, shift = settings.weights, settings.misses, settings.shift
    if not contexts.weighted and weights is not None:
        raise DataError("weights are given, but no weight_column.")
    if misses != (1.0, 1.0) and contexts.weighted:
        raise DataError(
            f"with a weight column, misses weigh the same on both sides; got short {misses[0]:g}, long {misses[1]:g}."
        )
    if contexts.weighted and weights is None:
        weights = weight_range(contexts.weights[: len(contexts.training)])
    alphas = column_alphas(settings.alpha, contexts.metadata.followed)
    if abs(shift) > contexts.steps_per_day:
        raise DataError(f"a delay, or known contexts, of {abs(shift)} steps exceed a day of {contexts.steps_per_day}.")
    if shift < 0 and misses != (1.0, 1.0):
        raise DataError("with contexts known ahead, misses weigh the same on both sides; got different short and long.")
    if shift and contexts.weighted:
        raise DataError("a weight column is not supported beside a delay or contexts known ahead.")
    seen = settings.bounds, weights, len(contexts.covariates)
    return tracking_problem(contexts.action_dim, alphas, *seen, misses, shift, settings.limits)


def weight_range(weights: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Return (low, high) for future weights: the range of past ones, a quarter wider at both ends.

    >>> weight_range(np.array([0.5, 1.0, 2.0]))
    (0.4, 2.5)

    Raises:
        DataError: If a weight is not positive.
    """
    low, high = float(np.min(weights)), float(np.max(weights))
    if not low > 0:
        raise DataError(f"weights must be positive, but the least is {low:g}. Give a range as `weights` to clip them.")
    return low / _WIDENED, high * _WIDENED


def mean_training_weight(contexts: Contexts, ends: tuple[float, float]) -> float:
    """Return the mean weight of the training days, clipped to the range."""
    return float(np.mean(np.clip(contexts.weights[: len(contexts.training)], *ends)))


def check_weights_inside(contexts: Contexts, ends: tuple[float, float]) -> None:
    """Raise if training days leave the range of weights that a promise would assume."""
    weights = contexts.weights[: len(contexts.training)]
    outside = np.flatnonzero((weights < ends[0]) | (weights > ends[1]))
    if len(outside):
        raise DataError(
            f"a promise assumes weights from {ends[0]:g} to {ends[1]:g}, but {len(outside)} of the {len(weights)} in the "
            f"training days lie outside, the first, {weights[outside[0]]:g}, at {contexts.time[outside[0]]}. Give a wider "
            "range with `weights` (LOW:HIGH), or make no promise."
        )


def check_same_shape(series: Sequence[Contexts]) -> None:
    """Raise if the series differ in shape or split."""
    shapes = {(each.values.shape, each.steps_per_day, each.split) for each in series}
    if len(shapes) != 1:
        raise ValueError(f"series of one program must have one shape and one split, got {sorted(map(str, shapes))}.")


def held_back_days(
    problem: Problem, contexts: Contexts, part: Literal["validation", "test"], history_steps: int
) -> TestDays:
    """Return the validation or test days of a split, with up to `history_steps` contexts before them."""
    split, test = contexts.split, part == "test"
    before = (split.training_days + (split.validation_days if test else 0)) * contexts.steps_per_day
    cut_days = contexts.test_days if test else contexts.validation_days
    x0, days, history = cut_days(min(history_steps, before))
    first = before // contexts.steps_per_day
    scored = _find_scored(contexts, first, first + len(days))
    state = _start_state(problem, x0, days[0][:0] if history is None else history)
    return TestDays.with_whole_span_optimum(problem, state, days, history, scored)


def _start_state(problem: Problem, x0, history) -> Array:
    """Return the state before test days, for an action that is brought into the bounds."""
    return to_device(problem.start_state(problem.actions.project(to_device(x0)), to_device(history)))


def _find_scored(contexts: Contexts, first: int, last: int | None = None) -> Bool[np.ndarray, " n"]:
    """Return which of these days were measured throughout; the others are run, but not scored.

    Raises:
        DataError: If there are none.
    """
    scored = contexts.measured_days[first:last]
    if not scored.any():
        start = contexts.time[first * contexts.steps_per_day]
        raise DataError(
            f"each of the {len(scored)} days of {contexts.name} to be scored, from {start} on, has a row that `fill` imputed. "
            "Use a file with fewer gaps, or more days."
        )
    return scored


def series_test_days(contexts: Contexts, settings: FitSettings = FitSettings(), days: int | None = None) -> TestDays:
    """Return the days of a series for a comparison; the first two weeks, at most half, are history.

    Args:
        contexts: the series; its split is not used.
        settings: costs and limits of actions. Weights default to their range in the series, a quarter wider.
        days: use only the last ones; up to a year before them is history. Default: all.
    """
    if contexts.weighted and settings.weights is None:
        settings = dataclasses.replace(settings, weights=weight_range(contexts.weights))
    per_day = contexts.steps_per_day
    first = min(HISTORY_DAYS, contexts.n_days // 2)
    if days is not None:
        first = max(first, contexts.n_days - days)
    history = contexts.values[max(first - MOST_HISTORY_DAYS, 0) * per_day : first * per_day]
    problem = series_problem(contexts, settings)
    x0 = _start_state(problem, history[-1, : contexts.action_dim], history)
    scored = _find_scored(contexts, first)
    return TestDays.with_whole_span_optimum(problem, x0, _whole_days(contexts)[first:], history, scored)


def last_test_days(test_days: TestDays, days: int | None) -> TestDays:
    """Return the last days only; earlier ones become history. None: all days."""
    if days is None or days >= test_days.days.shape[0]:
        return test_days
    before, kept = test_days.days[:-days], test_days.days[-days:]
    past = before.reshape(-1, before.shape[-1])
    x0 = find_hitting_minimizer(test_days.problem, past[-1], test_days.x0.shape[0])
    if test_days.history is not None:
        past = jnp.concatenate([test_days.history, past])[-MOST_HISTORY_DAYS * test_days.days.shape[1] :]
    make = TestDays.of if test_days.whole_span_optimum is None else TestDays.with_whole_span_optimum
    return make(test_days.problem, x0, kept, None if test_days.history is None else past, test_days.scored[-days:])


def policy_test_days(policy: Policy, contexts: Contexts, days: int | None) -> tuple[TestDays, int]:
    """Return the days to test a policy on, and the number of the first; the policy starts on the days before.

    Raises:
        DataError: If there are not `days` days and one before them.
    """
    per_day = contexts.steps_per_day
    remembered = policy.contract.history_steps
    wanted = _FEWEST_HISTORY_DAYS if remembered is None else -(-remembered // per_day)
    first = min(max(wanted, 1), contexts.n_days - 1)
    if days is not None:
        if days > contexts.n_days - 1:
            limit = f"{contexts.name} has {contexts.n_days} whole days, and a test starts after the first"
            raise DataError(f"`days` must be at most {contexts.n_days - 1}, got {days}: {limit}.")
        first = contexts.n_days - days
    saved = 0 if policy.history is None else len(policy.history) // per_day
    longest = max(wanted, saved, _FEWEST_HISTORY_DAYS)
    history = contexts.values[max(first - longest, 0) * per_day : first * per_day]
    quadratic = policy.problem.switching.is_quadratic  # else the optimum of a long span takes too long
    make = TestDays.with_whole_span_optimum if quadratic else TestDays.of
    scored = _find_scored(contexts, first)
    x0 = _start_state(policy.problem, choose_x0(policy, history[-1]), history)
    return make(policy.problem, x0, _whole_days(contexts)[first:], history, scored), first


def count_seen_days(policy: Policy, contexts: Contexts, first: int) -> int:
    """Count the days from `first` on that fitted the policy; 0 if the file is not the one it was fitted to."""
    source, until, metadata = policy.contract.source, policy.contract.seen_until, contexts.metadata
    if source is None or until is None or metadata is None or source.sha256 != metadata.sha256:
        return 0
    per_day = contexts.steps_per_day
    begins = contexts.time[first * per_day : contexts.n_days * per_day : per_day]
    return sum(str(time) <= until for time in begins)


def _whole_days(contexts: Contexts):
    used = contexts.n_days * contexts.steps_per_day
    return contexts.values[:used].reshape(contexts.n_days, contexts.steps_per_day, contexts.dim)


def score_together(contenders: Sequence[Contender], test_days: Sequence[TestDays]) -> list[DailyScore]:
    """Score contenders of one structure, each on its own days, in one program."""
    if len(test_days) == 1:
        return [score_contender(contenders[0], test_days[0])]
    if len({contender.run for contender in contenders}) != 1:
        raise ValueError("contenders that run as one program must go through the days in the same way.")
    inputs = [
        (each.agent, each.forecaster if each.agent.lookahead else None, days.problem, days.x0, days.days, days.history)
        for each, days in zip(contenders, test_days, strict=True)
    ]
    runs, starts = _run_together(contenders[0].run, stack_trees(inputs))
    return score_runs_batch(runs, starts, test_days)


@eqx.filter_jit
def _run_together(run: Callable, inputs: Any) -> Any:
    def run_one(agent, forecaster, problem, *days):
        return run(agent, problem, *days, forecaster)

    return jax.vmap(run_one)(*inputs)
