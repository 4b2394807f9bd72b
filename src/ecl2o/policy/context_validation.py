"""Contexts as they come in from outside: judged before a policy sees them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

LARGEST = 1e100  # squares, and their sums, must stay far from where doubles end
_FEW = 32
_TOLD = 8  # numbers of a context in a message

Ranges = Sequence[tuple[float, float]]


def validate_context(context: Any, shape: tuple[int, ...], dtype: np.dtype, gaps: bool = False) -> np.ndarray:
    """The context as an array of this shape and precision.

    Args:
        context: what came in: numbers, lists of them, or an array.
        shape: (q,) for one stream, (n, q) for many.
        dtype: the working precision.
        gaps: whether numbers may be missing: None, NaN, infinite or masked. They are not finite in the result.

    Raises:
        ValueError: what came in is not such an array of finite numbers; the message says where.
    """
    array = _with_gaps(context, shape, dtype) if gaps else _as_array(context)
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
    """`np.isfinite(array).all()`, in a tenth of the time for a few numbers (a finite sum has only finite terms)."""
    if array.size <= _FEW and math.isfinite(sum(array.ravel().tolist())):
        return True
    return bool(np.isfinite(array).all())


def shorten(value: Any) -> str:
    """A value in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def check_magnitude(name: str, numbers: np.ndarray) -> None:
    """Refuse numbers so large that no cost of them is finite, and nothing that follows is."""
    largest = np.max(np.abs(numbers), initial=0.0)
    if not largest <= LARGEST:
        raise ValueError(
            f"{name} has a number of the size {largest:g}; up to {LARGEST:g} the costs of actions can be worked out."
        )


def format_context(context: Iterable[float | None]) -> str:
    """A context in a message: plain numbers, cut where there are many.

    >>> format_context(np.array([100.0, 0.25, np.nan]))
    '100, 0.25, missing'
    """
    told = ["missing" if entry is None or math.isnan(entry) else f"{float(entry):.6g}" for entry in context]
    return ", ".join(told[:_TOLD]) + (", ..." if len(told) > _TOLD else "")


def explain_failed_step(context: Sequence[float | None] | np.ndarray, used: Any, plausible: Ranges | None) -> str:
    """Why a context has no answer, in words.

    Args:
        context: (q,), what was given.
        used: (q,), what stood in for it, which is not finite where nothing plausible was known; None where all is believed.
        plausible: (lowest, highest) of each number, of a policy that says so.

    >>> explain_failed_step([100.0], [math.nan], [(0.0, 45.0)])[:88]
    'the context (100) is not plausible, which would be from 0 to 45, and none came before it'
    """
    if plausible is None or used is None or np.isfinite(np.asarray(used, float)).all():
        return f"the policy has no finite answer to the context ({format_context(context)}); nothing was changed."
    ranges = ", ".join(f"from {low:g} to {high:g}" for low, high in plausible[:_TOLD])
    return (
        f"the context ({format_context(context)}) is not plausible, which would be {ranges}, and none came before it that could "
        "stand in; nothing was changed. Begin on a history of contexts (act: --history), or send a plausible one first."
    )


def _with_gaps(context: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """NaN where there is nothing."""
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
