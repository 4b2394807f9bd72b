"""Hitting costs f(x, y): the cost of an action x under a context y.

Every cost is non-negative and m-strongly convex in x (the paper's assumptions, section 2). Quadratic costs derive from
`AbstractQuadraticCost` and are solved in closed form. `AsymmetricTracking` is quadratic on each side of the context, and has
closed forms on a line. All others are solved by Newton's method, except that the minimiser given to a `ConvexCost` is used where
it applies.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ecl2o.exceptions import NotApplicableError
from ecl2o.problem.arrays import (
    as_float,
    as_optional_float,
    as_pytree,
    check_finite,
    check_positive,
    check_scalar,
    check_spd,
    concrete_value,
    extreme_eigenvalues,
    times_identity,
)
from ecl2o.solvers.small_dense import spd_solve

Pull = tuple[Float[Array, ""], Float[Array, " d"]]  # a weight, and the point to which moves are counted


class AbstractHittingCost(eqx.Module):
    """A cost f(x, y) >= 0 that is m-strongly convex and twice differentiable in x.

    Implement the five methods with `jax.numpy`, for x of shape (d,) and y of shape (q,). For one formula without parameters,
    `ConvexCost` does so from the formula alone; for a quadratic, derive from `AbstractQuadraticCost` to be solved in closed form.

    >>> import ecl2o as ec
    >>> import jax
    >>> import jax.numpy as jnp
    >>> class Cosh(AbstractHittingCost):
    ...     @property
    ...     def strong_convexity(self):
    ...         return jnp.array(1.0)
    ...
    ...     def __call__(self, action, context):
    ...         return jnp.sum(jnp.cosh(action - context) - 1)
    ...
    ...     def gradient(self, action, context):
    ...         return jnp.sinh(action - context)
    ...
    ...     def hessian(self, action, context):
    ...         return jnp.diag(jnp.cosh(action - context))
    ...
    ...     def check(self, dim, context_dim):
    ...         if dim != context_dim:
    ...             raise ValueError(f"contexts must have {dim} columns, got {context_dim}.")
    >>> problem = ec.Problem(Cosh(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> run = ec.rollout(ec.Greedy(), problem, ec.Instance(x0=[0.0], contexts=[[1.0]]))
    >>> round(float(run.actions[0, 0]), 4)
    0.349
    """

    is_quadratic: ClassVar[bool] = False  # f = 1/2 (x - v)' A (x - v), with the `curvature` A and the `centre` v
    constant_curvature: ClassVar[bool] = False  # and A is the same for every context
    tracks_context: ClassVar[bool] = False  # the minimiser over R^d, the `centre`, is the context without covariates
    is_separable: ClassVar[bool] = False  # f is a sum over coordinates
    is_round: ClassVar[bool] = False  # f is a function of the distance from its minimiser
    is_two_sided: ClassVar[bool] = False  # f is quadratic on each side of the context, with the `weight` of that side
    upper_curvature_argument: ClassVar[str] = "curvature_bounds"  # what gives the Hessian an upper bound
    covariates = 0

    @property
    @abc.abstractmethod
    def strong_convexity(self) -> Float[Array, ""]:
        """m > 0, a lower bound on the eigenvalues of the Hessian for every x and y."""

    @abc.abstractmethod
    def __call__(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, ""]:
        """Return f(x, y), a number."""

    @abc.abstractmethod
    def gradient(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, " d"]:
        """Return the gradient of f in x, (d,)."""

    @abc.abstractmethod
    def hessian(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, "d d"]:
        """Return the Hessian of f in x, (d, d)."""

    @abc.abstractmethod
    def check(self, dim: int, context_dim: int) -> None:
        """Raise ValueError if actions of dimension `dim` and contexts of dimension `context_dim` do not fit."""

    def curvature_bounds(self, dim: int) -> tuple[Float[Array, "d d"], Float[Array, "d d"] | None]:
        """Return matrices below and above the Hessian for every x and y; None for the upper one if there is none.

        Default: m times the identity, and None. `Competitive` needs both.
        """
        return times_identity(self.strong_convexity, dim), None

    @property
    def weight_range(self) -> tuple[Float[Array, ""], Float[Array, ""] | None] | None:
        """The least and the greatest weight that contexts hold beside the centre; None if they hold none."""
        return None

    def context_size(self, dim: int) -> int:
        """Return how many numbers a context has, if actions have `dim` and are compared with it."""
        return dim + (self.weight_range is not None) + self.covariates

    def centre(self, context: Float[Array, " q"], dim: int) -> Float[Array, " d"]:
        """Return the centre of a quadratic cost, (d,); raise `NotApplicableError` for any other."""
        self._require_quadratic()

    def curvature(self, context: Float[Array, " q"] | None, dim: int) -> Float[Array, "d d"]:
        """Return A of a quadratic cost, (d, d); raise `NotApplicableError` for any other."""
        self._require_quadratic()

    def _require_quadratic(self) -> NoReturn:
        raise NotApplicableError(
            f"this needs a quadratic hitting cost (SquaredTracking, Quadratic, CurvedTracking), got {type(self).__name__}."
        )

    def is_in_range(self, context: Float[Array, " q"]) -> Bool[Array, ""]:
        """Return whether `curvature_bounds` and the promises made from them cover a context as it is. Default: true."""
        return jnp.ones((), bool)

    def free_minimizer(self, context: Float[Array, " q"], dim: int) -> Float[Array, " d"] | None:
        """Return the minimiser of f over R^d in closed form, by default the centre; None if Newton's method finds it."""
        return self.centre(context, dim) if self.is_quadratic or self.tracks_context else None

    def pulled_minimizer(
        self,
        context: Float[Array, " q"],
        Q: Float[Array, "d d"],
        pulls: Sequence[Pull],
        gain: Float[Array, "d d"] | None,
    ) -> Float[Array, " d"] | None:
        """Return the minimiser of f(x) + sum_i w_i (x - p_i)' Q (x - p_i) over R^d in closed form.

        Args:
            context: (q,).
            Q: (d, d).
            pulls: the pairs (w_i, p_i), at least one.
            gain: `pull_gain`, or None where it is not known.

        Returns:
            (d,). Default: None, Newton's method finds it.
        """
        return None


class AbstractQuadraticCost(AbstractHittingCost):
    """A cost f(x, y) = 1/2 (x - v)' A (x - v) whose centre v and curvature A depend on the context only.

    Implement `centre`, `curvature`, `curvature_bounds`, `strong_convexity` and `check`; set `constant_curvature` where it is.
    """

    is_quadratic: ClassVar[bool] = True

    @abc.abstractmethod
    def centre(self, context: Float[Array, " q"], dim: int) -> Float[Array, " d"]:
        """Return v, the minimiser of f over R^d."""

    @abc.abstractmethod
    def curvature(self, context: Float[Array, " q"] | None, dim: int) -> Float[Array, "d d"]:
        """Return A, (d, d). `context` may be None if `constant_curvature` is true."""

    @abc.abstractmethod
    def curvature_bounds(self, dim: int) -> tuple[Float[Array, "d d"], Float[Array, "d d"] | None]:
        """Return the least and the greatest A of any context; None for the greatest if there is none."""

    def __call__(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, ""]:
        dim = action.shape[0]
        away = action - self.centre(context, dim)
        return 0.5 * away @ self.curvature(context, dim) @ away

    def gradient(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, " d"]:
        dim = action.shape[0]
        return self.curvature(context, dim) @ (action - self.centre(context, dim))

    def hessian(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, "d d"]:
        return self.curvature(context, action.shape[0])

    def pulled_minimizer(self, context, Q, pulls, gain) -> Float[Array, " d"]:
        centre = self.centre(context, Q.shape[0])
        if gain is None:
            gain = pull_gain(self.curvature(context, Q.shape[0]), Q, [weight for weight, _ in pulls])
        pull = sum((weight * (point - centre) for weight, point in pulls), start=jnp.zeros_like(centre))
        return centre + (gain[0] * pull if Q.shape[0] == 1 else gain @ pull)


def pull_gain(
    A: Float[Array, "d d"], Q: Float[Array, "d d"], weights: Sequence[Float[Array, ""]]
) -> Float[Array, "d d"]:
    """Return 2 (A + 2 Lambda Q)^{-1} Q, by which weighted points pull the action from the centre; Lambda sums the weights."""
    return spd_solve(A + 2 * sum(weights, start=jnp.zeros((), A.dtype)) * Q, 2 * Q)


class _ContextTracking(AbstractQuadraticCost):
    """A cost whose centre is the context, or its first d numbers, and whose curvature is constant."""

    constant_curvature: ClassVar[bool] = True
    tracks_context: ClassVar[bool] = True

    def centre(self, context: Float[Array, " q"], dim: int) -> Float[Array, " d"]:
        return _followed(context, dim)

    def curvature_bounds(self, dim: int) -> tuple[Float[Array, "d d"], Float[Array, "d d"] | None]:
        A = self.curvature(None, dim)
        return A, A

    def check(self, dim: int, context_dim: int) -> None:
        check_comparable(self, dim, context_dim)


def _followed(context: Float[Array, " q"], dim: int) -> Float[Array, " d"]:
    return context if context.shape[0] == dim else context[:dim]


def check_comparable(cost: AbstractHittingCost, dim: int, context_dim: int) -> None:
    """Raise ValueError if actions and contexts differ in dimension."""
    if dim != context_dim:
        raise ValueError(
            f"{type(cost).__name__} compares the action with the context, so both must have the same dimension; "
            f"contexts have {context_dim}, x0 has {dim}."
        )


class SquaredTracking(_ContextTracking):
    """f(x, y) = weight/2 |x - y|^2, the mismatch cost of the paper's case study; m = weight.

    Args:
        weight: One positive number. Default: 1.
        covariates: How many numbers at the end of a context agents see and the cost ignores. Default: 0.

    >>> import jax.numpy as jnp
    >>> float(SquaredTracking(weight=2.0)(jnp.array([3.0]), jnp.array([1.0])))
    4.0
    """

    is_round: ClassVar[bool] = True

    weight: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)
    covariates: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        check_scalar("weight", self.weight)
        check_finite("weight", self.weight)
        check_positive("weight", self.weight)

    @property
    def strong_convexity(self) -> Float[Array, ""]:
        return self.weight

    def curvature(self, context: Float[Array, " q"] | None, dim: int) -> Float[Array, "d d"]:
        return times_identity(self.weight, dim)

    def check(self, dim: int, context_dim: int) -> None:
        super().check(dim, context_dim - self.covariates)


class Quadratic(_ContextTracking):
    """f(x, y) = 1/2 (x - y)' A (x - y) with a symmetric positive definite A; m is A's smallest eigenvalue.

    Args:
        A: (d, d), symmetric and positive definite.
        covariates: As in `SquaredTracking`. Default: 0.

    >>> import jax.numpy as jnp
    >>> float(Quadratic(A=jnp.diag(jnp.array([1.0, 4.0]))).strong_convexity)
    1.0
    """

    A: Float[Array, "d d"] = eqx.field(converter=as_float)
    covariates: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        check_spd("A", self.A)

    @property
    def strong_convexity(self) -> Float[Array, ""]:
        return extreme_eigenvalues(self.A)[0]

    def curvature(self, context: Float[Array, " q"] | None, dim: int) -> Float[Array, "d d"]:
        return self.A

    def check(self, dim: int, context_dim: int) -> None:
        super().check(dim, context_dim - self.covariates)
        if self.A.shape != (dim, dim):
            raise ValueError(f"A must have shape ({dim}, {dim}) to fit x0, got {self.A.shape}.")


class CurvedTracking(AbstractQuadraticCost):
    """f(x, y) = k/2 |x - v|^2 with the context y = (v, k): a centre, and a curvature k that changes over time.

    Contexts have one number more than actions, the curvature, such as a price or a confidence. It is clipped to the range from
    `minimum` to `maximum`. The worst-case bounds of the expert algorithms are attained here (erratum E21); with
    constant curvature R-OBD is far better than its bound.

    Args:
        minimum: m, the least curvature, positive. Default: 1.
        maximum: The greatest curvature. Default: unbounded.
        covariates: As in `SquaredTracking`; they come after the curvature. Default: 0.

    >>> import jax.numpy as jnp
    >>> float(CurvedTracking(minimum=1.0)(jnp.array([3.0]), jnp.array([1.0, 5.0])))
    10.0
    """

    is_round: ClassVar[bool] = True
    upper_curvature_argument: ClassVar[str] = "a maximum, or weights"

    minimum: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)
    maximum: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)
    covariates: int = eqx.field(static=True, default=0)

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
    def strong_convexity(self) -> Float[Array, ""]:
        return self.minimum

    def centre(self, context: Float[Array, " q"], dim: int) -> Float[Array, " d"]:
        return context[: -1 - self.covariates]

    def curvature(self, context: Float[Array, " q"] | None, dim: int) -> Float[Array, "d d"]:
        if context is None:
            raise ValueError("the curvature of CurvedTracking depends on the context.")
        weight = jnp.maximum(context[-1 - self.covariates], self.minimum)
        if self.maximum is not None:
            weight = jnp.minimum(weight, self.maximum)
        return weight * np.eye(dim, dtype=context.dtype)

    @property
    def weight_range(self) -> tuple[Float[Array, ""], Float[Array, ""] | None]:
        return self.minimum, self.maximum

    def is_in_range(self, context: Float[Array, " q"]) -> Bool[Array, ""]:
        """Return whether the curvature of a context lies in the range, up to rounding, and so is not clipped."""
        weight, rounding = context[-1 - self.covariates], 64 * jnp.finfo(context.dtype).eps
        inside = weight >= (1 - rounding) * self.minimum
        return inside if self.maximum is None else inside & (weight <= (1 + rounding) * self.maximum)

    def curvature_bounds(self, dim: int) -> tuple[Float[Array, "d d"], Float[Array, "d d"] | None]:
        greatest = None if self.maximum is None else times_identity(self.maximum, dim)
        return times_identity(self.minimum, dim), greatest

    def check(self, dim: int, context_dim: int) -> None:
        expected = self.context_size(dim)
        if context_dim != expected:
            raise ValueError(
                f"CurvedTracking needs contexts (centre, curvature) of dimension {expected}, got {context_dim}."
            )


class AsymmetricTracking(AbstractHittingCost):
    """f(x, y) = 1/2 sum_i w_i (x_i - y_i)^2, where w_i is `short` if x_i < y_i, being short, and `long` if x_i > y_i.

    Every context is followed as in `SquaredTracking`, but missing it from below costs another price than from above: reserves,
    staffing, stock. m is the smaller weight.

    Args:
        short: The weight of an action below the context, positive. Default: 3.
        long: The weight of an action above the context, positive. Default: 1.
        covariates: As in `SquaredTracking`. Default: 0.

    >>> import jax.numpy as jnp
    >>> cost = AsymmetricTracking(short=3.0, long=1.0)
    >>> [float(cost(jnp.array([x]), jnp.array([1.0]))) for x in (-1.0, 3.0)]
    [6.0, 2.0]
    """

    is_separable: ClassVar[bool] = True
    is_two_sided: ClassVar[bool] = True
    tracks_context: ClassVar[bool] = True

    short: Float[Array, ""] = eqx.field(converter=as_float, default=3.0)
    long: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)
    covariates: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        for name, weight in (("short", self.short), ("long", self.long)):
            check_scalar(name, weight)
            check_finite(name, weight)
            check_positive(name, weight)

    @property
    def strong_convexity(self) -> Float[Array, ""]:
        return jnp.minimum(self.short, self.long)

    def weight(self, is_short: Bool[Array, "*n"]) -> Float[Array, "*n"]:
        """Return the weight of misses from below where `is_short`, and from above elsewhere."""
        return jnp.where(is_short, self.short, self.long)

    def centre(self, context: Float[Array, " q"], dim: int) -> Float[Array, " d"]:
        """Return the minimiser of f over R^d: the context without covariates."""
        return _followed(context, dim)

    def pulled_minimizer(self, context, Q, pulls, gain) -> Float[Array, " 1"] | None:
        """On a line the minimiser lies between the context and the mean of the points, so on the side of that mean."""
        if len(Q) > 1:
            return None
        centre, twice_Q = self.centre(context, 1), 2 * Q[0]
        stiffness = twice_Q * sum((weight for weight, _ in pulls), start=jnp.zeros((), centre.dtype))
        pull = twice_Q * sum((weight * (point - centre) for weight, point in pulls), start=jnp.zeros_like(centre))
        return centre + pull / (self.weight(pull < 0) + stiffness)

    def __call__(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, ""]:
        away = action - self.centre(context, len(action))
        return 0.5 * jnp.sum(self.weight(away < 0) * away**2)

    def gradient(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, " d"]:
        away = action - self.centre(context, len(action))
        return self.weight(away < 0) * away

    def hessian(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, "d d"]:
        return jnp.diag(self.weight(action < self.centre(context, len(action))))

    def curvature_bounds(self, dim: int) -> tuple[Float[Array, "d d"], Float[Array, "d d"]]:
        low, high = jnp.minimum(self.short, self.long), jnp.maximum(self.short, self.long)
        return times_identity(low, dim), times_identity(high, dim)

    def check(self, dim: int, context_dim: int) -> None:
        check_comparable(self, dim, context_dim - self.covariates)


class ConvexCost(AbstractHittingCost):
    """Any JAX function f(x, y) that is non-negative, twice differentiable and m-strongly convex in x.

    Args:
        fn: Maps x (d,) and y (q,) to a number. An `equinox.Module` with `__call__` if the cost has parameters: they are then
            leaves, and can be differentiated.
        strong_convexity: m, positive.
        smoothness: M, an upper bound on the second derivatives, at least m; `Competitive` needs it. Default: None, not known.
        minimizer: Maps y to the exact minimiser (d,) of f(., y) over R^d. Default: Newton's method finds it.

    >>> import jax.numpy as jnp
    >>> cost = ConvexCost(lambda x, y: jnp.sum(jnp.cosh(x - y) - 1), strong_convexity=1.0)
    >>> float(cost(jnp.zeros(1), jnp.zeros(1)))
    0.0
    """

    upper_curvature_argument: ClassVar[str] = "smoothness"

    fn: Callable[..., Any]
    m: Float[Array, ""]
    smoothness: Float[Array, ""] | None
    minimizer: Callable[..., Any] | None

    def __init__(self, fn: Callable, strong_convexity: Any, smoothness: Any = None, minimizer: Callable | None = None):
        self.fn = as_pytree(fn)
        self.m = as_float(strong_convexity)
        self.smoothness = as_optional_float(smoothness)
        self.minimizer = None if minimizer is None else as_pytree(minimizer)

    def __check_init__(self):
        check_finite("strong_convexity", self.m)
        check_positive("strong_convexity", self.m)
        if self.smoothness is None:
            return
        check_finite("smoothness", self.smoothness)
        low, high = concrete_value(self.m), concrete_value(self.smoothness)
        if low is not None and high is not None and (low > high).any():
            raise ValueError(f"smoothness must be at least strong_convexity, got {high} and {low}.")

    @property
    def strong_convexity(self) -> Float[Array, ""]:
        return self.m

    def __call__(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, ""]:
        return self.fn(action, context)

    def gradient(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, " d"]:
        return jax.grad(self.fn)(action, context)

    def hessian(self, action: Float[Array, " d"], context: Float[Array, " q"]) -> Float[Array, "d d"]:
        return jax.jacfwd(jax.grad(self.fn))(action, context)

    def free_minimizer(self, context: Float[Array, " q"], dim: int) -> Float[Array, " d"] | None:
        return None if self.minimizer is None else self.minimizer(context)

    def curvature_bounds(self, dim: int) -> tuple[Float[Array, "d d"], Float[Array, "d d"] | None]:
        greatest = None if self.smoothness is None else times_identity(self.smoothness, dim)
        return times_identity(self.m, dim), greatest

    def check(self, dim: int, context_dim: int) -> None:
        dtype = self.m.dtype
        wanted = (jax.ShapeDtypeStruct((dim,), dtype), jax.ShapeDtypeStruct((context_dim,), dtype))
        _check_indices("fn", self.fn, dim, context_dim)
        shape = jax.eval_shape(self.fn, *wanted)
        if getattr(shape, "shape", None) != ():
            raise ValueError(
                f"ConvexCost's fn must return one number for x ({dim},) and y ({context_dim},), got {shape}."
            )
        if self.minimizer is not None:
            _check_indices("minimizer", self.minimizer, context_dim)
            shape = jax.eval_shape(self.minimizer, wanted[1])
            if getattr(shape, "shape", None) != (dim,):
                raise ValueError(f"ConvexCost's minimizer must return an action of shape ({dim},), got {shape}.")


def _check_indices(name: str, fn: Callable[..., Any], *sizes: int) -> None:
    """Raise ValueError if a function reads past the end of its arguments, which JAX silently clamps.

    NumPy arrays raise IndexError, so the function is called on them once. It is written for JAX: other errors are ignored.
    """
    try:
        with np.errstate(all="ignore"):
            fn(*map(np.ones, sizes))
    except IndexError as error:
        raise ValueError(
            f"ConvexCost's {name} reads past the end of its argument (contexts of {sizes[-1]} numbers): {error}."
        ) from None
    except Exception:
        return
