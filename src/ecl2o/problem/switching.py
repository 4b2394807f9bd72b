"""Switching costs c(x, z): what moving from z to x costs."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.problem.arrays import as_float, check_finite, check_positive, to_host
from ecl2o.problem.hitting import check_spd, extreme_eigenvalues


class AbstractSwitchingCost(eqx.Module):
    """c(x, z) >= 0, zero where x = z."""

    @abc.abstractmethod
    def __call__(self, action: Float[Array, " d"], previous: Float[Array, " d"]) -> Float[Array, ""]:
        """c(x, z)."""

    @abc.abstractmethod
    def check(self, dim: int) -> None:
        """Refuse a dimension that does not fit."""


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

    Q: Float[Array, "d d"] = eqx.field(converter=as_float)

    def __check_init__(self):
        check_spd("Q", self.Q)

    @classmethod
    def isotropic(cls, alpha: Any, dim: int) -> "Mahalanobis":
        """Q = alpha/2 I, so that alpha = beta and c = alpha/2 |x - z|^2 (the case study)."""
        alpha = as_float(alpha)
        check_positive("alpha", alpha)
        return cls(to_host(alpha) / 2 * np.eye(dim, dtype=alpha.dtype))

    @property
    def alpha(self) -> Float[Array, ""]:
        """Twice the smallest eigenvalue of Q."""
        return 2 * extreme_eigenvalues(self.Q)[0]

    @property
    def beta(self) -> Float[Array, ""]:
        """Twice the largest eigenvalue of Q."""
        return 2 * extreme_eigenvalues(self.Q)[1]

    def __call__(self, action: Float[Array, " d"], previous: Float[Array, " d"]) -> Float[Array, ""]:
        move = action - previous
        return move @ self.Q @ move

    def check(self, dim: int) -> None:
        if self.Q.shape != (dim, dim):
            raise ValueError(f"Q must have shape ({dim}, {dim}) to fit x0, got {self.Q.shape}.")


class LinearSwitching(AbstractSwitchingCost):
    """c(x, z) = rate |x - z|, summed over coordinates: the switching cost of Lin et al. 2011.

    Args:
        rate: (d,) or one number, the price of a unit of movement; positive.

    >>> import jax.numpy as jnp
    >>> float(LinearSwitching(rate=2.0)(jnp.array([1.0]), jnp.array([4.0])))
    6.0
    """

    rate: Float[Array, ""] = eqx.field(converter=as_float)

    def __check_init__(self):
        if self.rate.shape != ():
            raise ValueError(f"rate must be one number, got an array of shape {self.rate.shape}.")
        check_finite("rate", self.rate)
        check_positive("rate", self.rate)

    def __call__(self, action: Float[Array, " d"], previous: Float[Array, " d"]) -> Float[Array, ""]:
        return self.rate * jnp.sum(jnp.abs(action - previous))

    def check(self, dim: int) -> None:
        pass
