"""Ridge regression on rows that arrive one at a time, in O(k^2) each and without refactorising."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class RecursiveLeastSquares(eqx.Module):
    """The weights w that minimise sum_i c_i (w'f_i - z_i)^2 + ridge |w|^2, and P = (ridge I + sum_i c_i f_i f_i')^-1.

    P is stored as root root', which rounding cannot make indefinite (Potter's update; Bierman 1977, chapter 5). With forgetting,
    each new row multiplies the weights of all earlier ones, and the ridge, by `keep`.
    """

    root: Float[Array, "k k"]
    weights: Float[Array, " k"]

    @classmethod
    def empty(cls, count: int, ridge: Float[Array, ""], dtype) -> "RecursiveLeastSquares":
        """Return the state before the first row: w = 0 and P = I / ridge."""
        return cls(jnp.divide(np.eye(count, dtype=dtype), jnp.sqrt(ridge)), jnp.zeros((count,), dtype))

    def image(self, features: Float[Array, " k"]) -> Float[Array, " k"]:
        """Return root'f; its squared length is the leverage f'Pf, a measure of how unlike the rows so far f is."""
        return features @ self.root

    def with_row(
        self,
        features: Float[Array, " k"],
        residual: Float[Array, ""],
        counted: Float[Array, ""],
        keep: Float[Array, ""] | float = 1.0,
    ) -> "RecursiveLeastSquares":
        """Add a row with the known residual z - w'f and the weight c = `counted`; earlier rows count `keep` times as much."""
        image = self.image(features)
        along = self.root @ image
        shrink = 1 / (keep + counted * jnp.sum(image * image))
        part = counted * shrink / (1 + jnp.sqrt(keep * shrink))
        root = (self.root - part * along[:, None] * image) / jnp.sqrt(keep)
        return RecursiveLeastSquares(root, self.weights + (counted * shrink * residual) * along)
