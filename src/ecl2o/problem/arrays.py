"""How numbers become leaves: floating arrays, checked where their values are known."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

AnyArray = Array | np.ndarray  # where NumPy's arrays are welcome too


def to_device(value: Any) -> Array:
    """What `jnp.asarray` makes of a value, which compiles a program for each shape of NumPy's arrays; here none is."""
    if isinstance(value, np.ndarray | np.generic):
        return jax.device_put(np.array(value))  # a copy, since a device that is the host keeps what it is given
    return jnp.asarray(value)


def as_float(value: Any) -> Float[Array, "..."]:
    """A floating-point array of any shape; integers become floats of the default precision."""
    array = to_device(value)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(f"expected real numbers, got complex ones: {value!r}")
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def as_optional_float(value: Any) -> Float[Array, "..."] | None:
    """The same, where None means "not given"."""
    return None if value is None else as_float(value)


def concrete_value(array: Any) -> np.ndarray | None:
    """The values of an array as NumPy, or None while JAX is tracing and they are not known."""
    return None if isinstance(array, jax.core.Tracer) else np.asarray(array)


def to_host(array: Any) -> Any:
    """The values of an array as NumPy, which is cut without compiling; the array itself while JAX is tracing."""
    return array if isinstance(array, jax.core.Tracer) else np.asarray(array)


def times_identity(weights: Float[Array, "*n"], dim: int) -> Float[Array, "*n d d"]:
    """The identity times each weight; nothing is compiled where the weights are known."""
    return to_device(to_host(weights)[..., None, None] * np.eye(dim, dtype=weights.dtype))


def check_finite(name: str, array: Any) -> None:
    """Refuse NaN and infinity, saying where the first one is."""
    values = concrete_value(array)
    if values is not None and not np.isfinite(values).all():
        if values.ndim == 0:
            raise ValueError(f"{name} must be finite, got {values}.")
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ValueError(f"{name} must be finite, but {name}{list(where)} is {values[where]}.")


def check_positive(name: str, array: Any) -> None:
    """Refuse zero, negative numbers and NaN."""
    values = concrete_value(array)
    if values is not None and not (values > 0).all():
        raise ValueError(f"{name} must be positive, got {_shown(values)}.")


def check_nonnegative(name: str, array: Any) -> None:
    """Refuse negative numbers and NaN."""
    values = concrete_value(array)
    if values is not None and not (values >= 0).all():
        raise ValueError(f"{name} must not be negative, got {_shown(values)}.")


def check_fraction(name: str, array: Any) -> None:
    """Refuse numbers outside [0, 1] and NaN."""
    values = concrete_value(array)
    if values is not None and not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"{name} must lie between 0 and 1, got {_shown(values)}.")


def _shown(values: np.ndarray) -> str:
    return f"{values.item():g}" if values.ndim == 0 else np.array2string(values, threshold=8)


def cast_floats(tree: PyTree, dtype: Any) -> PyTree:
    """The same tree with every floating array in this precision."""

    def cast(leaf):
        if not eqx.is_inexact_array(leaf) or leaf.dtype == dtype:
            return leaf
        return leaf.astype(dtype) if isinstance(leaf, jax.core.Tracer) else to_device(np.asarray(leaf).astype(dtype))

    return jax.tree.map(cast, tree)


def strip_weak_types(tree: PyTree) -> PyTree:
    """The same tree without weak types, which Python's numbers leave behind: so it runs as one program with what was loaded."""

    def own(leaf):
        weak = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) and leaf.weak_type
        return to_device(np.asarray(leaf)) if weak else leaf

    return jax.tree.map(own, tree)


def check_count(name: str, value: Any) -> None:
    """Refuse anything but a whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive whole number, got {value!r}.")


def as_pytree(fn: Callable[..., Any]) -> Any:
    """A function as a tree: a plain one has no leaves (it is static), a Module keeps its own."""
    return fn if isinstance(fn, eqx.Module | jax.tree_util.Partial) else jax.tree_util.Partial(fn)
