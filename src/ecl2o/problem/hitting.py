"""Hitting costs f(x, y): what an action costs under a context, before any movement.

Every cost is non-negative and m-strongly convex in x (the paper's assumptions, section 2). Quadratic costs say so by
their type, because they are solved in closed form; anything else is a `ConvexCost` and goes through Newton's method.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ecl2o.problem.arrays import (
    as_float,
    as_optional_float,
    as_pytree,
    check_finite,
    check_positive,
    concrete_value,
    times_identity,
)


class AbstractHittingCost(eqx.Module):
    """f(x, y) >= 0, m-strongly convex in x."""

    @property
    @abc.abstractmethod
    def strong_convexity(self) -> Float[Array, ""]:
        """m, the smallest curvature."""

    @abc.abstractmethod
    def __call__(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, ""]:
        """f(x, y)."""

    @abc.abstractmethod
    def check(self, dim: int, context_dim: int) -> None:
        """Refuse dimensions that do not fit, naming the field."""

    @abc.abstractmethod
    def gradient(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, " d"]:
        """The gradient of f in x."""

    @abc.abstractmethod
    def hessian(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, "d d"]:
        """The Hessian of f in x."""


class AbstractQuadraticCost(AbstractHittingCost):
    """f(x, y) = 1/2 (x - v)' A (x - v), where centre v and curvature A may depend on the context, not on x."""

    @property
    @abc.abstractmethod
    def constant_curvature(self) -> bool:
        """Whether A is the same for every context."""

    @abc.abstractmethod
    def centre(self, context: Float[Array, " q"], dim: int) -> Float[Array, " d"]:
        """v, the minimiser of f over all of R^d."""

    @abc.abstractmethod
    def curvature(self, context: Float[Array, " q"] | None, dim: int) -> Float[Array, "d d"]:
        """A, the Hessian. The context may be None where `constant_curvature` is true."""

    @abc.abstractmethod
    def curvature_bounds(self, dim: int) -> tuple[Float[Array, "d d"], Float[Array, "d d"] | None]:
        """Matrices between which A always lies; the upper one is None where nothing bounds it."""

    def __call__(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, ""]:
        dim = action.shape[0]
        away = action - self.centre(context, dim)
        return 0.5 * away @ self.curvature(context, dim) @ away

    def gradient(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, " d"]:
        dim = action.shape[0]
        return self.curvature(context, dim) @ (action - self.centre(context, dim))

    def hessian(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, "d d"]:
        return self.curvature(context, action.shape[0])


def _refuse_unlike(what: str, dim: int, context_dim: int) -> None:
    if dim != context_dim:
        raise ValueError(
            f"{what} compares the action with the context, so both must have the same dimension; "
            f"contexts have {context_dim}, x0 has {dim}."
        )


class SquaredTracking(AbstractQuadraticCost):
    """f(x, y) = weight/2 |x - y|^2: the mismatch cost of the paper's case study; m = weight.

    Args:
        weight: positive. Default: 1.

    >>> import jax.numpy as jnp
    >>> float(SquaredTracking(weight=2.0)(jnp.array([3.0]), jnp.array([1.0])))
    4.0
    """

    weight: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)

    def __check_init__(self):
        if self.weight.shape != ():
            raise ValueError(f"weight must be one number, got an array of shape {self.weight.shape}.")
        check_finite("weight", self.weight)
        check_positive("weight", self.weight)

    @property
    def constant_curvature(self) -> bool:
        return True

    @property
    def strong_convexity(self) -> Float[Array, ""]:
        return self.weight

    def centre(self, context: Float[Array, " q"], dim: int) -> Float[Array, " d"]:
        return context

    def curvature(self, context: Float[Array, " q"] | None, dim: int) -> Float[Array, "d d"]:
        return times_identity(self.weight, dim)

    def curvature_bounds(self, dim: int) -> tuple[Float[Array, "d d"], Float[Array, "d d"] | None]:
        A = self.curvature(None, dim)
        return A, A

    def check(self, dim: int, context_dim: int) -> None:
        _refuse_unlike("SquaredTracking", dim, context_dim)


class Quadratic(AbstractQuadraticCost):
    """f(x, y) = 1/2 (x - y)' A (x - y) with a symmetric positive definite A; m is A's smallest eigenvalue.

    Args:
        A: (d, d), symmetric and positive definite.

    >>> import jax.numpy as jnp
    >>> float(Quadratic(A=jnp.diag(jnp.array([1.0, 4.0]))).strong_convexity)
    1.0
    """

    A: Float[Array, "d d"] = eqx.field(converter=as_float)

    def __check_init__(self):
        check_spd("A", self.A)

    @property
    def constant_curvature(self) -> bool:
        return True

    @property
    def strong_convexity(self) -> Float[Array, ""]:
        return extreme_eigenvalues(self.A)[0]

    def centre(self, context: Float[Array, " q"], dim: int) -> Float[Array, " d"]:
        return context

    def curvature(self, context: Float[Array, " q"] | None, dim: int) -> Float[Array, "d d"]:
        return self.A

    def curvature_bounds(self, dim: int) -> tuple[Float[Array, "d d"], Float[Array, "d d"] | None]:
        return self.A, self.A

    def check(self, dim: int, context_dim: int) -> None:
        _refuse_unlike("Quadratic", dim, context_dim)
        if self.A.shape != (dim, dim):
            raise ValueError(f"A must have shape ({dim}, {dim}) to fit x0, got {self.A.shape}.")


class CurvedTracking(AbstractQuadraticCost):
    """f(x, y) = k/2 |x - v|^2 with the context y = (v, k): a centre and a curvature k that changes over time.

    Contexts have one number more than actions; the last is the curvature, a price or a confidence. Where it leaves the range from
    `minimum` to `maximum` (None: no upper end) the nearer end is billed. This is where the worst-case bounds of the
    expert algorithms are attained (erratum E21): with constant curvature R-OBD is far better than its bound.

    Args:
        minimum: m, the least curvature, positive. Default: 1.
        maximum: the greatest one. Default: there is none.

    >>> import jax.numpy as jnp
    >>> float(CurvedTracking(minimum=1.0)(jnp.array([3.0]), jnp.array([1.0, 5.0])))
    10.0
    """

    minimum: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)
    maximum: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)

    def __check_init__(self):
        check_finite("minimum", self.minimum)
        check_positive("minimum", self.minimum)
        if self.maximum is None:
            return
        check_finite("maximum", self.maximum)
        low, high = concrete_value(self.minimum), concrete_value(self.maximum)
        if low is not None and high is not None and (low > high).any():
            raise ValueError(f"minimum must not exceed maximum, got minimum {low} and maximum {high}.")

    @property
    def constant_curvature(self) -> bool:
        return False

    @property
    def strong_convexity(self) -> Float[Array, ""]:
        return self.minimum

    def centre(self, context: Float[Array, " q"], dim: int) -> Float[Array, " d"]:
        return context[:-1]

    def curvature(self, context: Float[Array, " q"] | None, dim: int) -> Float[Array, "d d"]:
        if context is None:
            raise ValueError("the curvature of CurvedTracking depends on the context.")
        weight = jnp.maximum(context[-1], self.minimum)
        if self.maximum is not None:
            weight = jnp.minimum(weight, self.maximum)
        return weight * np.eye(dim, dtype=context.dtype)

    def has_in_range(self, context: Float[Array, " q"]) -> Bool[Array, ""]:
        """Whether the curvature of a context is what is billed, to rounding, and not one that the nearer end stands for."""
        weight, rounding = context[-1], 64 * jnp.finfo(context.dtype).eps
        inside = weight >= (1 - rounding) * self.minimum
        return inside if self.maximum is None else inside & (weight <= (1 + rounding) * self.maximum)

    def curvature_bounds(self, dim: int) -> tuple[Float[Array, "d d"], Float[Array, "d d"] | None]:
        greatest = None if self.maximum is None else times_identity(self.maximum, dim)
        return times_identity(self.minimum, dim), greatest

    def check(self, dim: int, context_dim: int) -> None:
        if context_dim != dim + 1:
            raise ValueError(
                f"CurvedTracking wants contexts (centre, curvature) of dimension {dim + 1}, got {context_dim}."
            )


class ConvexCost(AbstractHittingCost):
    """Any JAX function f(x, y) that is non-negative, twice differentiable and m-strongly convex in x.

    `fn` is a plain function, or an `equinox.Module` with `__call__` if the cost has parameters of its own (they are
    then leaves and can be differentiated). `minimizer(y)`, if given, is the exact minimiser of f(., y) over R^d;
    without it, it is found by Newton's method.

    Args:
        fn: f(x, y) for x (d,) and y (q,), a number.
        strong_convexity: m, positive.
        minimizer: y to the minimiser (d,). Default: Newton's method.

    >>> import jax.numpy as jnp
    >>> cost = ConvexCost(lambda x, y: jnp.sum(jnp.cosh(x - y) - 1), strong_convexity=1.0)
    >>> float(cost(jnp.zeros(1), jnp.zeros(1)))
    0.0
    """

    fn: Callable[..., Any]
    m: Float[Array, ""]
    minimizer: Callable[..., Any] | None

    def __init__(self, fn: Callable, strong_convexity: Any, minimizer: Callable | None = None):
        self.fn = as_pytree(fn)
        self.m = as_float(strong_convexity)
        self.minimizer = None if minimizer is None else as_pytree(minimizer)

    def __check_init__(self):
        check_finite("strong_convexity", self.m)
        check_positive("strong_convexity", self.m)

    @property
    def strong_convexity(self) -> Float[Array, ""]:
        return self.m

    def __call__(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, ""]:
        return self.fn(action, context)

    def gradient(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, " d"]:
        return jax.grad(self.fn)(action, context)

    def hessian(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, "d d"]:
        return jax.jacfwd(jax.grad(self.fn))(action, context)

    def check(self, dim: int, context_dim: int) -> None:
        dtype = self.m.dtype
        wanted = (jax.ShapeDtypeStruct((dim,), dtype), jax.ShapeDtypeStruct((context_dim,), dtype))
        _refuse_reading_past_the_end("fn", self.fn, dim, context_dim)
        shape = jax.eval_shape(self.fn, *wanted)
        if getattr(shape, "shape", None) != ():
            raise ValueError(
                f"ConvexCost's fn must return one number for x ({dim},) and y ({context_dim},), got {shape}."
            )
        if self.minimizer is not None:
            _refuse_reading_past_the_end("minimizer", self.minimizer, context_dim)
            shape = jax.eval_shape(self.minimizer, wanted[1])
            if getattr(shape, "shape", None) != (dim,):
                raise ValueError(f"ConvexCost's minimizer must return an action of shape ({dim},), got {shape}.")


def _refuse_reading_past_the_end(name: str, fn: Callable[..., Any], *sizes: int) -> None:
    """Refuse a function that reads y[1] of contexts of one number, which JAX would silently take for y[0].

    NumPy's arrays do object, so the function is called once on them. What else it may not like about them says nothing: it is
    written for JAX.
    """
    try:
        with np.errstate(all="ignore"):
            fn(*map(np.ones, sizes))
    except IndexError as error:
        raise ValueError(
            f"ConvexCost's {name} reads past the end of what it is given (contexts of {sizes[-1]} numbers): {error}."
        ) from None
    except Exception:
        return


@jax.jit
def extreme_eigenvalues(matrix: Float[Array, "d d"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Smallest and largest eigenvalue of a symmetric matrix."""
    if matrix.shape == (1, 1):
        return matrix[0, 0], matrix[0, 0]
    eigenvalues = jnp.linalg.eigvalsh(matrix)
    return eigenvalues[0], eigenvalues[-1]


def check_spd(name: str, matrix: Float[Array, "d d"]) -> None:
    """Refuse a matrix that is not square, finite, symmetric and positive definite."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ValueError(f"{name} must be a square matrix, got shape {matrix.shape}.")
    values = concrete_value(matrix)
    if values is None:
        return
    check_finite(name, values)
    if not np.allclose(values, values.T, rtol=1e-6, atol=1e-6 * np.abs(values).max()):
        raise ValueError(
            f"{name} must be symmetric; {name} - {name}' has entries up to {np.abs(values - values.T).max():g}."
        )
    smallest = np.linalg.eigvalsh(values)[0]
    if not smallest > 0:
        raise ValueError(f"{name} must be positive definite; its smallest eigenvalue is {smallest:g}.")
