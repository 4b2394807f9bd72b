"""What differs from site to site, or from run to run, is on a leading axis of every array."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def mapped(function: Callable[..., Any], in_axes: tuple[int | None, ...] | None = None) -> Callable[..., Any]:
    """`jax.vmap` over leading axes, which leaves out an axis of one: a map around a loop takes as long to trace as the loop.

    Args:
        function: of trees of arrays.
        in_axes: 0 for each argument with the axis, None for those without it. Default: all have it.
    """

    def run(*arguments: Any) -> Any:
        axes = (0,) * len(arguments) if in_axes is None else in_axes
        along = [tree for tree, axis in zip(arguments, axes, strict=True) if axis is not None]
        if {leaf.shape[0] for leaf in jax.tree.leaves(along)} != {1}:
            return jax.vmap(function, axes)(*arguments)
        alone = [
            tree if axis is None else jax.tree.map(lambda leaf: leaf[0], tree)
            for tree, axis in zip(arguments, axes, strict=True)
        ]
        return jax.tree.map(lambda leaf: jnp.expand_dims(leaf, 0), function(*alone))

    return run
