"""Arrays: conversion to leaves of a tree, checks of known values, arithmetic that is safe at zero."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ecl2o.solvers.small_dense import eigenvalues

AnyArray = Array | np.ndarray  # JAX's or NumPy's
LEAST_STEPS = 1 << 14  # of padded runs: almost two years of hourly rows


def to_device(value: Any) -> Array:
    """Convert to a JAX array. `jnp.asarray` compiles a program for each shape of a NumPy array; this does not."""
    if isinstance(value, np.ndarray | np.generic):
        return jax.device_put(np.array(value))  # a copy: on the CPU, JAX goes on using the memory it is given
    return jax.device_put(value) if isinstance(value, bool | int | float) else jnp.asarray(value)


def as_float(value: Any) -> Float[Array, "..."]:
    """Convert to a floating-point array of any shape; integers get the default precision."""
    array = to_device(value)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(f"expected real numbers, got complex ones: {value!r}")
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def as_optional_float(value: Any) -> Float[Array, "..."] | None:
    """Convert as `as_float` does, but pass None through."""
    return None if value is None else as_float(value)


def as_pytree(fn: Callable[..., Any]) -> Any:
    """Wrap a plain function as a tree without leaves; a Module stays as it is."""
    return fn if isinstance(fn, eqx.Module | jax.tree_util.Partial) else jax.tree_util.Partial(fn)


def concrete_value(array: Any) -> np.ndarray | None:
    """Return the values as NumPy, or None while JAX is tracing."""
    return None if isinstance(array, jax.core.Tracer) else np.asarray(array)


def to_host(array: Any) -> Any:
    """Return the values as NumPy, which slices without compiling; a tracer is returned as it is."""
    return array if isinstance(array, jax.core.Tracer) else np.asarray(array)


def round_up(count: int, least: int) -> int:
    """Return the length to pad to: `least` times a power of 4, so that sequences of most lengths share a program.

    >>> [round_up(count, 256) for count in (1, 256, 257, 5000)]
    [256, 256, 1024, 16384]
    """
    while least < count:
        least *= 4
    return least


def pad_rows(array: AnyArray, least: int = LEAST_STEPS) -> np.ndarray:
    """Repeat the last row of an array (n, ...) until there are `round_up` of them."""
    array = np.asarray(array)
    return np.concatenate([array, np.repeat(array[-1:], round_up(len(array), least) - len(array), axis=0)])


def times_identity(weights: Float[Array, "*n"], dim: int) -> Float[Array, "*n d d"]:
    """Multiply the identity by each weight, in NumPy where the weights are known."""
    return to_device(to_host(weights)[..., None, None] * np.eye(dim, dtype=weights.dtype))


def cast_floats(tree: PyTree, dtype: Any) -> PyTree:
    """Cast every floating array of a tree to one precision."""

    def cast(leaf):
        if not eqx.is_inexact_array(leaf) or leaf.dtype == dtype:
            return leaf
        return leaf.astype(dtype) if isinstance(leaf, jax.core.Tracer) else to_device(np.asarray(leaf).astype(dtype))

    return jax.tree.map(cast, tree)


def strip_weak_types(tree: PyTree) -> PyTree:
    """Remove the weak types that Python numbers leave, so that a tree runs the same program before saving and after loading."""

    def strip(leaf):
        weak = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) and leaf.weak_type
        return to_device(np.asarray(leaf)) if weak else leaf

    return jax.tree.map(strip, tree)


def check_finite(name: str, array: Any) -> None:
    """Raise ValueError for NaN and infinity, with the place of the first one."""
    values = concrete_value(array)
    if values is not None and not np.isfinite(values).all():
        if values.ndim == 0:
            raise ValueError(f"{name} must be finite, got {values}.")
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ValueError(f"{name} must be finite, but {name}{list(where)} is {values[where]}.")


def check_positive(name: str, array: Any) -> None:
    """Raise ValueError for zero, negative numbers and NaN."""
    _check(name, array, "be positive", lambda values: values > 0)


def check_nonnegative(name: str, array: Any) -> None:
    """Raise ValueError for negative numbers and NaN."""
    _check(name, array, "not be negative", lambda values: values >= 0)


def check_fraction(name: str, array: Any) -> None:
    """Raise ValueError for numbers outside [0, 1] and NaN."""
    _check(name, array, "lie between 0 and 1", lambda values: (values >= 0) & (values <= 1))


def _check(name: str, array: Any, rule: str, holds: Callable[[np.ndarray], np.ndarray]) -> None:
    values = concrete_value(array)
    if values is not None and not holds(values).all():
        found = f"{values.item():g}" if values.ndim == 0 else np.array2string(values, threshold=8)
        raise ValueError(f"{name} must {rule}, got {found}.")


def check_scalar(name: str, array: Float[Array, "..."]) -> None:
    """Raise ValueError for a vector or a matrix."""
    if array.shape != ():
        raise ValueError(f"{name} must be one number, got an array of shape {array.shape}.")


def check_count(name: str, value: Any) -> None:
    """Raise ValueError for anything but a whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive whole number, got {value!r}.")


def check_spd(name: str, matrix: Float[Array, "d d"]) -> None:
    """Raise ValueError unless the matrix is square, finite, symmetric and positive definite."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ValueError(f"{name} must be a square matrix, got shape {matrix.shape}.")
    values = concrete_value(matrix)
    if values is None:
        return
    check_finite(name, values)
    if not np.allclose(values, values.T, rtol=1e-6, atol=1e-6 * np.abs(values).max()):
        raise ValueError(f"{name} must be symmetric; it differs from {name}' by {np.abs(values - values.T).max():g}.")
    smallest = np.linalg.eigvalsh(values)[0]
    if not smallest > 0:
        raise ValueError(f"{name} must be positive definite; its smallest eigenvalue is {smallest:g}.")


def extreme_eigenvalues(matrix: Float[AnyArray, "d d"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the smallest and the largest eigenvalue of a symmetric matrix; a known one needs no program."""
    matrix = to_host(matrix)
    if matrix.shape == (1, 1):
        return to_device(matrix[0, 0]), to_device(matrix[0, 0])
    ordered = np.linalg.eigvalsh(matrix) if isinstance(matrix, np.ndarray) else eigenvalues(matrix)
    return to_device(ordered[0]), to_device(ordered[-1])


def safe_sqrt(value: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Return the square root; 0 with derivative 0 where the value is not positive.

    >>> float(jax.grad(safe_sqrt)(0.0))
    0.0
    """
    positive = value > 0
    # A compiled program may compute `value` twice, rounded differently: the filler must not matter where only one is positive.
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, value, jnp.finfo(value.dtype).tiny)), 0.0)


def add_exactly(a: Float[Array, "*n"], b: Float[Array, "*n"]) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """Return the rounded sum, and the rest that rounding removed: together they are a + b exactly.

    >>> total, rest = add_exactly(jnp.array(1.0), jnp.array(1e-30))
    >>> float(total), bool(rest == 1e-30)
    (1.0, True)
    """
    total = a + b
    from_b = total - a
    return total, (a - (total - from_b)) + (b - from_b)


def cost_ratio(
    cost: Float[AnyArray, "*n"] | float, reference: Float[AnyArray, "*n"] | float, both_zero: float = 1.0
) -> Float[AnyArray, "*n"]:
    """Return cost / reference, also where the reference is zero; in NumPy unless one of them is JAX's.

    Args:
        cost: (*n), any shape.
        reference: (*n), in the same unit; a negative one counts as zero.
        both_zero: The ratio of 0 to 0. Default: 1.

    Returns:
        (*n). A positive cost over a reference of zero is infinite; a cost of NaN gives NaN.

    >>> [float(cost_ratio(*pair)) for pair in ((3.0, 2.0), (0.0, 0.0), (3.0, 0.0))]
    [1.5, 1.0, inf]
    """
    if isinstance(cost, jax.Array) or isinstance(reference, jax.Array):
        return _cost_ratio(cost, reference, both_zero)
    return _divide_costs(np.asarray(cost), np.asarray(reference), both_zero, np)


def _divide_costs(cost: Any, reference: Any, both_zero: float, xp: Any) -> Any:
    free = reference <= 0
    ratio = cost / xp.where(free, 1.0, reference)
    return xp.where(free & ~xp.isnan(cost), xp.where(cost <= 0, both_zero, xp.inf), ratio)


@partial(jax.jit, static_argnames="both_zero", inline=True)
def _cost_ratio(cost, reference, both_zero):
    return _divide_costs(jnp.asarray(cost), jnp.asarray(reference), both_zero, jnp)
