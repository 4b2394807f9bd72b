"""Weights of misses that stand in a file: between what ends they are taken to lie."""

import numpy as np
from jaxtyping import Float

from ecl2o.data import Contexts
from ecl2o.exceptions import DataError

_WIDENED = 1.25  # what has been seen is widened by this factor at both ends


def weight_range(weights: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """(low, high) that weights are taken to lie between, by those of the past: their range, a quarter wider at both ends.

    >>> weight_range(np.array([0.5, 1.0, 2.0]))
    (0.4, 2.5)
    """
    low, high = float(np.min(weights)), float(np.max(weights))
    if not low > 0:
        raise DataError(
            f"weights must be positive, but the least of them is {low:g}; say between what ends to bill them, with weights "
            "(LOW:HIGH), and the nearer end stands for what lies outside."
        )
    return low / _WIDENED, high * _WIDENED


def declared_or_seen_weights(contexts: Contexts, declared: tuple[float, float] | None) -> tuple[float, float] | None:
    """What was declared, or the range of the training days; None for a series without weights."""
    if not contexts.weighted:
        if declared is not None:
            raise DataError("weights are declared, but no column is said to hold them (weight_column).")
        return None
    return weight_range(contexts.training[:, -1]) if declared is None else declared


def usual_weight(contexts: Contexts, ends: tuple[float, float]) -> float:
    """The mean weight of the training days, as they are billed."""
    return float(np.mean(np.clip(contexts.training[:, -1], *ends)))


def check_weights_inside(contexts: Contexts, ends: tuple[float, float]) -> None:
    """Refuse to promise on weights that the training days have left already."""
    weights = contexts.training[:, -1]
    outside = np.flatnonzero((weights < ends[0]) | (weights > ends[1]))
    if len(outside):
        raise DataError(
            f"a promise counts on weights from {ends[0]:g} to {ends[1]:g}, but {len(outside)} of the {len(weights)} in the "
            f"training days lie outside, the first, {weights[outside[0]]:g}, at {contexts.time[outside[0]]}. Declare a wider "
            "range with weights (LOW:HIGH), or leave the promise out."
        )
