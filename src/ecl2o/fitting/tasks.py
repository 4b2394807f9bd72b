"""What is decided for a series: the problem, the weights of misses, and the scaled copy that training works on."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float

from ecl2o.agents import ROBD, AbstractAgent, AbstractGuard, Start
from ecl2o.agents.advisors import Scaling
from ecl2o.data import Contexts, SeriesMetadata
from ecl2o.exceptions import DataError
from ecl2o.fitting.settings import Alpha, FitSettings, PromiseSpec, column_alphas, with_promise
from ecl2o.problem import Box, CurvedTracking, Everywhere, Mahalanobis, Problem, SquaredTracking
from ecl2o.problem.arrays import strip_weak_types, to_device

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
    training = contexts.training[:, : contexts.action_dim]
    if (training == training[0]).all():
        raise DataError(
            f"the training days of {contexts.name} never change (every context is {training[0].tolist()}): there is nothing to "
            "learn."
        )
    scaled = contexts.scale_to(1.0)
    own = settings.rescale(scaled.scale / contexts.scale)
    return FitTask(scaled, series_problem(contexts, settings.alpha, own.bounds, own.weights), own)


def unscale_agent(agent: AbstractAgent, factor: float, promise: PromiseSpec | None = None) -> AbstractAgent:
    """Return the agent for contexts `factor` times as large.

    Networks and guards carry units and are rescaled; all other agents are homogeneous. With the `promise` in the new units, the
    guard takes exactly its numbers: a rounded product could lie outside the bounds.
    """

    def has_units(node):
        return isinstance(node, Scaling | AbstractGuard)

    def convert(node):
        if isinstance(node, Scaling):
            return Scaling(node.offset * factor, node.scale * factor)
        if isinstance(node, AbstractGuard):
            guard = node.rescale(factor)
            if promise is not None:
                guard = guard.with_terms(promise.allowance, promise.contexts)
            return dataclasses.replace(guard, agent=unscale_agent(node.agent, factor, promise))
        return node

    return jax.tree.map(convert, agent, is_leaf=has_units)


def check_promise_feasible(task: FitTask) -> None:
    """Raise before any training if no algorithm can keep the promise."""
    contexts, period = task.contexts, task.contexts.steps_per_day
    start = Start(to_device(np.zeros(contexts.action_dim)), to_device(np.zeros((0, contexts.dim))), period)
    with_promise(ROBD(), task.settings.promise, period).check(task.problem, start)


def tracking_problem(
    dim: int,
    alpha: float | Float[np.ndarray, " d"],
    bounds: tuple[float, float] | None = None,
    weights: tuple[float, float] | None = None,
) -> Problem:
    """Return the problem f = 1/2 |x - y|^2, c = alpha/2 |x - z|^2, one action per column.

    Args:
        dim: d, the number of columns that are followed.
        alpha: one for all columns, or one for each, (d,).
        bounds: (low, high) of actions. Default: none.
        weights: (low, high) of the weight of a miss, which then is the last number of a context and multiplies f.
    """
    actions = Everywhere() if bounds is None else Box(*bounds)
    hitting = SquaredTracking() if weights is None else CurvedTracking(*weights)
    return strip_weak_types(Problem(hitting, Mahalanobis(np.diag(np.broadcast_to(alpha, (dim,))) / 2), actions))


def series_problem(
    contexts: Contexts,
    alpha: Alpha,
    bounds: tuple[float, float] | None = None,
    weights: tuple[float, float] | None = None,
) -> Problem:
    """Return the `tracking_problem` of a series; weights default to the range of the training days."""
    assert isinstance(contexts.metadata, SeriesMetadata)
    if not contexts.weighted and weights is not None:
        raise DataError("weights are given, but no weight_column.")
    if contexts.weighted and weights is None:
        weights = weight_range(contexts.training[:, -1])
    alphas = column_alphas(alpha, contexts.metadata.followed)
    return tracking_problem(contexts.action_dim, alphas, bounds, weights)


def weight_range(weights: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Return (low, high) for future weights: the range of past ones, a quarter wider at both ends.

    >>> weight_range(np.array([0.5, 1.0, 2.0]))
    (0.4, 2.5)

    Raises:
        DataError: If a weight is not positive.
    """
    low, high = float(np.min(weights)), float(np.max(weights))
    if not low > 0:
        raise DataError(
            f"weights must be positive, but the smallest is {low:g}. Give a range with weights (LOW:HIGH): weights outside it "
            "are replaced by the nearer end."
        )
    return low / _WIDENED, high * _WIDENED


def mean_training_weight(contexts: Contexts, ends: tuple[float, float]) -> float:
    """Return the mean weight of the training days, clipped to the range."""
    return float(np.mean(np.clip(contexts.training[:, -1], *ends)))


def check_weights_inside(contexts: Contexts, ends: tuple[float, float]) -> None:
    """Raise if training days leave the range of weights that a promise would assume."""
    weights = contexts.training[:, -1]
    outside = np.flatnonzero((weights < ends[0]) | (weights > ends[1]))
    if len(outside):
        raise DataError(
            f"a promise assumes weights from {ends[0]:g} to {ends[1]:g}, but {len(outside)} of the {len(weights)} in the "
            f"training days lie outside, the first, {weights[outside[0]]:g}, at {contexts.time[outside[0]]}. Give a wider "
            "range with weights (LOW:HIGH), or make no promise."
        )


def check_same_shape(series: Sequence[Contexts]) -> None:
    """Raise if the series differ in shape or split."""
    shapes = {(each.values.shape, each.steps_per_day, each.split) for each in series}
    if len(shapes) != 1:
        raise ValueError(
            f"series that run as one program must have one shape and one split, got {sorted(map(str, shapes))}."
        )
