"""Ridge regression on rows that arrive one at a time, in O(k^2) each and without refactorising."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class RecursiveLeastSquares(eqx.Module):
    """The weights w that minimise sum_i c_i (w'f_i - z_i)^2 + ridge |w|^2, and P = (ridge I + sum_i c_i f_i f_i')^-1.

    P is kept as root root', which rounding cannot make indefinite however many rows there are (Potter's form of the update;
    Bierman 1977, chapter 5).

    Args:
        root: (k, k), with P = root root'.
        weights: (k,), w.
    """

    root: Float[Array, "k k"]
    weights: Float[Array, " k"]

    @classmethod
    def empty(cls, count: int, ridge: Float[Array, ""], dtype) -> "RecursiveLeastSquares":
        """No rows yet: w = 0 and P = I / ridge."""
        return cls(jnp.divide(np.eye(count, dtype=dtype), jnp.sqrt(ridge)), jnp.zeros((count,), dtype))

    def image(self, features: Float[Array, " k"]) -> Float[Array, " k"]:
        """root'f; its squared length is the leverage f'Pf, which says how unlike the rows so far f is."""
        return features @ self.root

    def with_row(
        self, features: Float[Array, " k"], residual: Float[Array, ""], counted: Float[Array, ""]
    ) -> "RecursiveLeastSquares":
        """With one more row, of which the residual z - w'f is known already; c = `counted`, 0 for none."""
        image = self.image(features)
        along = self.root @ image
        shrink = 1 / (1 + counted * jnp.sum(image * image))
        root = self.root - (counted * shrink / (1 + jnp.sqrt(shrink))) * along[:, None] * image
        return RecursiveLeastSquares(root, self.weights + (counted * shrink * residual) * along)
