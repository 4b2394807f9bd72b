"""Checks of contexts that come in from outside, before a policy sees them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ecl2o.json_text import shorten

LARGEST = 1e100  # squares, and their sums, must stay far from where doubles end
_FEW = 32
_MOST_SHOWN = 8  # numbers of a context in a message

Ranges = Sequence[tuple[float, float]]


def validate_context(context: Any, shape: tuple[int, ...], dtype: np.dtype, gaps: bool = False) -> np.ndarray:
    """Return a context as an array.

    Args:
        context: Numbers, lists of them, or an array.
        shape: (q,) for one stream, (n, q) for many.
        dtype: The working precision.
        gaps: Whether numbers may be missing: None, NaN, infinite or masked. They are not finite in the result.

    Raises:
        ValueError: The context is not such an array of finite numbers; the message says where.
    """
    array = _fill_gaps(context, shape, dtype) if gaps else _as_array(context)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"the context must be numbers, got {shorten(context)}.")
    if array.shape != shape:
        raise ValueError(f"the context must have shape {shape}, got {array.shape}.")
    if array.dtype is not dtype:
        with np.errstate(over="ignore"):
            array = array.astype(dtype)
    if not gaps and not is_finite(array):
        where = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
        raise ValueError(f"the context must be finite, but context{where} is {array[tuple(where)]}.")
    return array


def is_finite(array: np.ndarray) -> bool:
    """Return `np.isfinite(array).all()`, ten times faster for a few numbers: a finite sum has finite terms."""
    if array.size <= _FEW and math.isfinite(sum(array.ravel().tolist())):
        return True
    return bool(np.isfinite(array).all())


def check_magnitude(name: str, numbers: np.ndarray) -> None:
    """Raise `ValueError` for numbers that are too large for finite costs."""
    largest = np.max(np.abs(numbers), initial=0.0)
    if not largest <= LARGEST:
        raise ValueError(f"{name} has a number of size {largest:g}; costs are computed for numbers up to {LARGEST:g}.")


def format_context(context: Iterable[float | None]) -> str:
    """Return a context for a message: plain numbers, the first eight of them.

    >>> format_context(np.array([100.0, 0.25, np.nan]))
    '100, 0.25, missing'
    """
    cells = ["missing" if entry is None or math.isnan(entry) else f"{float(entry):.6g}" for entry in context]
    return ", ".join(cells[:_MOST_SHOWN]) + (", ..." if len(cells) > _MOST_SHOWN else "")


def explain_failed_step(context: Sequence[float | None] | np.ndarray, used: Any, plausible: Ranges | None) -> str:
    """Return the message for a context that has no finite action.

    Args:
        context: (q,), the given context.
        used: (q,), the context that was used, not finite where no plausible one is known; None if it was the given one.
        plausible: The lowest and highest plausible value of each number; None if the policy has no such ranges.

    >>> explain_failed_step([100.0], [math.nan], [(0.0, 45.0)])[:67]
    'the context (100) is missing or outside the plausible range 0 to 45'
    """
    if plausible is None or used is None or np.isfinite(np.asarray(used, float)).all():
        return f"the policy has no finite action for the context ({format_context(context)}); the state is unchanged."
    ranges = ", ".join(f"{low:g} to {high:g}" for low, high in plausible[:_MOST_SHOWN])
    return (
        f"the context ({format_context(context)}) is missing or outside the plausible range {ranges}, and there is no earlier "
        "one to use instead. Start from a `history` of contexts, or send a plausible context first."
    )


def _fill_gaps(context: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return the context with NaN for missing numbers."""
    if context is None:
        return np.full(shape, np.nan, dtype)
    if isinstance(context, np.ma.MaskedArray):
        return np.ma.filled(context.astype(dtype), np.nan)
    array = _as_array(context)
    if array.dtype == object and all(entry is None or type(entry) in (int, float) for entry in array.ravel()):
        return array.astype(dtype)
    return array


def _as_array(context: Any) -> np.ndarray:
    if isinstance(context, np.ma.MaskedArray):
        raise ValueError("the context must not be a masked array; fill the gaps first.")
    try:
        return np.array(context)
    except ValueError:
        raise ValueError(f"the context must be numbers in an array, got {shorten(context)}.") from None
