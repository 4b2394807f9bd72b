"""Switching costs c(x, z): the cost of moving from z to x."""

import abc
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.exceptions import NotApplicableError
from ecl2o.problem.arrays import (
    as_float,
    check_finite,
    check_positive,
    check_scalar,
    check_spd,
    extreme_eigenvalues,
    to_host,
)


class AbstractSwitchingCost(eqx.Module):
    """A cost of movement, c(x, z) >= 0 and c(x, x) = 0. Implement `__call__` and `check`.

    Closed forms and planners need one of the two kinds below, which they ask for by `quadratic_movement` and `linear_movement`;
    with any other kind, agents that need them raise `NotApplicableError`.

    >>> import jax.numpy as jnp
    >>> class Quartic(AbstractSwitchingCost):
    ...     def __call__(self, action, previous):
    ...         return jnp.sum((action - previous) ** 4)
    ...
    ...     def check(self, dim):
    ...         pass
    >>> float(Quartic()(jnp.array([3.0]), jnp.array([1.0])))
    16.0
    """

    is_quadratic: ClassVar[bool] = False
    is_distance: ClassVar[bool] = False

    @abc.abstractmethod
    def __call__(self, action: Float[Array, " d"], previous: Float[Array, " d"]) -> Float[Array, ""]:
        """Return c(x, z), traceable by JAX.

        Args:
            action: (d,), x.
            previous: (d,), z.
        """

    @abc.abstractmethod
    def check(self, dim: int) -> None:
        """Raise ValueError if actions of dimension `dim` do not fit this cost."""

    @property
    def dim(self) -> int | None:
        """d, the dimension of actions; None if any dimension fits."""
        return None

    @property
    def quadratic_movement(self) -> "Mahalanobis":
        """The cost as a `Mahalanobis`; raises `NotApplicableError` for any other kind."""
        raise NotApplicableError(
            f"this needs a Mahalanobis switching cost, got {type(self).__name__}; LCP, Guarded and PureML take LinearSwitching."
        )

    @property
    def linear_movement(self) -> "LinearSwitching":
        """The cost as a `LinearSwitching`; raises `NotApplicableError` for any other kind."""
        raise NotApplicableError(f"this needs a LinearSwitching cost, got {type(self).__name__}.")


class Mahalanobis(AbstractSwitchingCost):
    """c(x, z) = (x - z)' Q (x - z), the paper's squared Mahalanobis distance (section 2).

    `alpha` and `beta` are *twice* the smallest and largest eigenvalue of Q, so that alpha/2 |u|^2 <= u'Qu <= beta/2 |u|^2.

    Args:
        Q: (d, d), symmetric and positive definite.

    >>> import jax.numpy as jnp
    >>> c = Mahalanobis(Q=jnp.diag(jnp.array([0.5, 2.0])))
    >>> float(c.alpha), float(c.beta)
    (1.0, 4.0)
    """

    is_quadratic: ClassVar[bool] = True

    Q: Float[Array, "d d"] = eqx.field(converter=as_float)

    def __check_init__(self):
        check_spd("Q", self.Q)

    @classmethod
    def isotropic(cls, alpha: Float[Array, ""] | float, dim: int) -> "Mahalanobis":
        """Return c = alpha/2 |x - z|^2, that is Q = alpha/2 I and beta = alpha (the case study).

        Args:
            alpha: One positive number.
            dim: d, the dimension of actions.

        Raises:
            ValueError: `alpha` is a vector, or not positive.
        """
        alpha = as_float(alpha)
        check_scalar("alpha", alpha)
        check_positive("alpha", alpha)
        return cls(to_host(alpha) / 2 * np.eye(dim, dtype=alpha.dtype))

    @property
    def dim(self) -> int:
        return self.Q.shape[0]

    @property
    def quadratic_movement(self) -> "Mahalanobis":
        return self

    @property
    def alpha(self) -> Float[Array, ""]:
        """Twice the smallest eigenvalue of Q."""
        return extreme_eigenvalues(2 * to_host(self.Q))[0]

    @property
    def beta(self) -> Float[Array, ""]:
        """Twice the largest eigenvalue of Q."""
        return extreme_eigenvalues(2 * to_host(self.Q))[1]

    def __call__(self, action: Float[Array, " d"], previous: Float[Array, " d"]) -> Float[Array, ""]:
        move = action - previous
        return move @ self.Q @ move

    def check(self, dim: int) -> None:
        if self.Q.shape != (dim, dim):
            raise ValueError(f"Q must have shape ({dim}, {dim}) to fit x0, got {self.Q.shape}.")


class LinearSwitching(AbstractSwitchingCost):
    """c(x, z) = rate * sum_i |x_i - z_i|, the switching cost of Lin et al. 2011.

    Args:
        rate: One positive number, the cost of a unit of movement.

    >>> import jax.numpy as jnp
    >>> float(LinearSwitching(rate=2.0)(jnp.array([1.0]), jnp.array([4.0])))
    6.0
    """

    is_distance: ClassVar[bool] = True

    rate: Float[Array, ""] = eqx.field(converter=as_float)

    def __check_init__(self):
        check_scalar("rate", self.rate)
        check_finite("rate", self.rate)
        check_positive("rate", self.rate)

    @property
    def linear_movement(self) -> "LinearSwitching":
        return self

    def __call__(self, action: Float[Array, " d"], previous: Float[Array, " d"]) -> Float[Array, ""]:
        return self.rate * jnp.sum(jnp.abs(action - previous))

    def check(self, dim: int) -> None:
        pass
