"""What is minimised at one step: a hitting cost, and moves to some points with weights."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.problem.hitting import AbstractHittingCost, Pull
from ecl2o.problem.switching import AbstractSwitchingCost


class StepObjective(eqx.Module):
    """f(x, y) + sum_i w_i c(x, p_i), a function of x. `AbstractActionSet.minimize` minimises it over a set.

    Args:
        hitting: f.
        switching: c.
        context: (q,), y.
        pulls: the pairs (w_i, p_i).
        gain: `pull_gain`, if it is known. Default: it is computed where it is needed.
    """

    hitting: AbstractHittingCost
    switching: AbstractSwitchingCost
    context: Float[Array, " q"]
    pulls: tuple[Pull, ...] = ()
    gain: Float[Array, "d d"] | None = None

    def __call__(self, action: Float[Array, " d"]) -> Float[Array, ""]:
        distances = [weight * self.switching(action, point) for weight, point in self.pulls]
        return self.hitting(action, self.context) + sum(distances, start=jnp.zeros((), action.dtype))

    def free_minimizer(self, dim: int) -> Float[Array, " d"] | None:
        """Return the minimiser over R^d if it has a closed form, else None."""
        if not self.pulls:
            return self.hitting.free_minimizer(self.context, dim)
        if not self.switching.is_quadratic:
            return None
        return self.hitting.pulled_minimizer(self.context, self.switching.quadratic_movement.Q, self.pulls, self.gain)

    @property
    def is_separable(self) -> bool:
        """Whether it is known to be a sum over coordinates, whose minimiser in a box is the free one, clipped."""
        return self.hitting.is_separable and not self.pulls

    @property
    def is_round(self) -> bool:
        """Whether its level sets are known to be balls: its minimiser in a convex set is the point nearest to the free one."""
        return self.hitting.is_round and not self.pulls
