"""One problem instance: the initial action and the contexts."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from ecl2o.problem.arrays import as_float, as_optional_float, check_finite, to_device


class Instance(eqx.Module):
    """An initial action and a sequence of contexts: s = (x_0, y_1..y_T), the paper's complete offline information.

    A *set* of instances has one leading axis on each array, for `jax.vmap`. Integers become floats; contexts and history take
    the precision of `x0`.

    Args:
        x0: (d,), the action in force before the first step.
        contexts: (T, q), revealed one row per step.
        history: (H, q), the contexts before the first step. Default: none.

    Raises:
        ValueError: Shapes do not fit each other, an array is empty, or a number is not finite.

    >>> Instance(x0=[0.5], contexts=[[0.1], [0.2], [0.3]]).horizon
    3
    """

    x0: Float[Array, "*n d"]
    contexts: Float[Array, "*n T q"]
    history: Float[Array, "*n H q"] | None

    def __init__(self, x0: Any, contexts: Any, history: Any = None):
        x0, contexts, history = as_float(x0), as_float(contexts), as_optional_float(history)
        self.x0 = x0
        self.contexts = contexts.astype(x0.dtype)
        self.history = None if history is None else history.astype(x0.dtype)

    def __check_init__(self):
        if self.x0.ndim not in (1, 2):
            raise ValueError(f"x0 must have shape (d,), or (n, d) for a set of instances, got {self.x0.shape}.")
        for name, array in (("contexts", self.contexts), ("history", self.history)):
            if array is None:
                continue
            if array.ndim != self.x0.ndim + 1 or array.shape[:-2] != self.x0.shape[:-1]:
                axes = "(n, steps, q) with the n of x0" if self.x0.ndim == 2 else "(steps, q)"
                raise ValueError(
                    f"{name} must have shape {axes} beside an x0 of shape {self.x0.shape}, got {array.shape}"
                    + ("; for contexts of one number use contexts[:, None]." if array.ndim == 1 else ".")
                )
            if array.shape[-1] != self.contexts.shape[-1]:
                raise ValueError(
                    f"history has contexts of {array.shape[-1]} numbers, but contexts have {self.contexts.shape[-1]}."
                )
        if self.horizon < 1 or self.contexts.shape[-1] < 1 or self.dim < 1:
            raise ValueError(f"x0 {self.x0.shape} and contexts {self.contexts.shape} must not be empty.")
        check_finite("x0", self.x0)
        check_finite("contexts", self.contexts)
        if self.history is not None:
            check_finite("history", self.history)

    @property
    def horizon(self) -> int:
        """T, the number of steps."""
        return self.contexts.shape[-2]

    @property
    def dim(self) -> int:
        """d, the dimension of actions."""
        return self.x0.shape[-1]

    @property
    def past(self) -> Float[Array, "*n H q"]:
        """The history; (0, q) if none was given."""
        if self.history is not None:
            return self.history
        shape = (*self.contexts.shape[:-2], 0, self.contexts.shape[-1])
        return to_device(np.zeros(shape, self.contexts.dtype))
