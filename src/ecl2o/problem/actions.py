"""Action sets X: the actions that are allowed."""

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.problem.arrays import as_float, concrete_value


class AbstractActionSet(eqx.Module):
    """A set of actions given by bounds on each coordinate. Implement `bounds`, `project` and `check`.

    Solvers read `bounds` only, so the set must be exactly what lies between them.

    >>> import jax.numpy as jnp
    >>> class AtMost(AbstractActionSet):
    ...     capacity: float
    ...
    ...     def bounds(self, dim, dtype):
    ...         return jnp.zeros(dim, dtype), jnp.full(dim, self.capacity, dtype)
    ...
    ...     def project(self, action):
    ...         return jnp.clip(action, 0.0, self.capacity)
    ...
    ...     def check(self, x0):
    ...         pass
    >>> AtMost(2.0).project(jnp.array([-1.0, 3.0])).tolist()
    [0.0, 2.0]
    """

    @abc.abstractmethod
    def bounds(self, dim: int, dtype) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Return the lower and the upper bounds, infinite if there is none.

        Args:
            dim: d, the dimension of actions.
            dtype: The precision of the bounds.

        Returns:
            Two arrays (d,).
        """

    @abc.abstractmethod
    def project(self, action: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the nearest point of the set, (d,) for (d,)."""

    @abc.abstractmethod
    def check(self, x0: Float[Array, " d"]) -> None:
        """Raise ValueError if an initial action (d,) has the wrong dimension or lies outside the set."""


class Everywhere(AbstractActionSet):
    """X = R^d, no bounds.

    >>> import jax.numpy as jnp
    >>> Everywhere().project(jnp.array([-3.0])).tolist()
    [-3.0]
    """

    def bounds(self, dim: int, dtype) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        infinite = jnp.full((dim,), jnp.inf, dtype)
        return -infinite, infinite

    def project(self, action: Float[Array, " d"]) -> Float[Array, " d"]:
        return action

    def check(self, x0: Float[Array, " d"]) -> None:
        pass


class Box(AbstractActionSet):
    """X = {x: lower <= x <= upper}, by coordinate.

    Args:
        lower: (d,), or one number for all coordinates, in the units of actions; may be -inf.
        upper: The same, at least `lower`; may be inf.

    Raises:
        ValueError: A bound is NaN or a matrix, the lengths differ, or `lower` exceeds `upper`.

    >>> import jax.numpy as jnp
    >>> [float(x) for x in Box(lower=0.0, upper=1.0).project(jnp.array([-3.0, 0.5]))]
    [0.0, 0.5]
    """

    lower: Float[Array, "*d"] = eqx.field(converter=as_float)
    upper: Float[Array, "*d"] = eqx.field(converter=as_float)

    def __check_init__(self):
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            if bound.ndim > 1:
                raise ValueError(f"{name} must be a number or a vector, got shape {bound.shape}.")
            values = concrete_value(bound)
            if values is not None and np.isnan(values).any():
                raise ValueError(f"{name} must not be NaN.")
        if self.lower.ndim == self.upper.ndim == 1 and self.lower.shape != self.upper.shape:
            raise ValueError(
                f"lower and upper must have the same length, got {self.lower.shape} and {self.upper.shape}."
            )
        lower, upper = concrete_value(self.lower), concrete_value(self.upper)
        if lower is not None and upper is not None and (lower > upper).any():
            where = int(np.argmax(np.atleast_1d(lower > upper)))
            low, high = np.broadcast_arrays(np.atleast_1d(lower), np.atleast_1d(upper))
            raise ValueError(
                f"lower must not exceed upper, but lower[{where}] = {low[where]:g} > upper[{where}] = {high[where]:g}."
            )

    def bounds(self, dim: int, dtype) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        return jnp.full((dim,), self.lower, dtype), jnp.full((dim,), self.upper, dtype)

    def project(self, action: Float[Array, " d"]) -> Float[Array, " d"]:
        return jnp.clip(action, self.lower, self.upper)

    def check(self, x0: Float[Array, " d"]) -> None:
        dim = x0.shape[-1]
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            if bound.ndim == 1 and bound.shape != (dim,):
                raise ValueError(f"{name} must have {dim} entries to fit x0, got {bound.shape[0]}.")
        values, lower, upper = concrete_value(x0), concrete_value(self.lower), concrete_value(self.upper)
        if values is None or lower is None or upper is None:
            return
        slack = 1e-6 * (1 + np.abs(values))  # a float32 x0 of a float64 box
        if (values < lower - slack).any() or (values > upper + slack).any():
            raise ValueError(f"x0 = {values} lies outside the box from {lower} to {upper}.")
