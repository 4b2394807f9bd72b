"""Level sets coordinate by coordinate: cost plus reserve is a sum over coordinates, and the reserve a maximum over something
worst.

All matrices are diagonal here, so that coordinates are lines.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.agents.guards.level_sets import AbstractLevelSet, Action, Number, Share
from ecl2o.problem.arrays import safe_sqrt
from ecl2o.solvers.bisection import bisect_root


class AbstractLines(eqx.Module):
    """What an action costs and must reserve, by coordinate; points are less the origin."""

    @property
    @abc.abstractmethod
    def least_curvature(self) -> Float[Array, " d"]:
        """A lower bound on the second derivatives of cost plus reserve."""

    @property
    @abc.abstractmethod
    def shape(self) -> Float[Array, " d"]:
        """An upper bound on them."""

    @property
    @abc.abstractmethod
    def value(self) -> Float[Array, " d"]:
        """The reserve's curvature where it is greatest; negative or infinite where nothing is feasible."""

    @abc.abstractmethod
    def worst(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return what is worst for an action: the argument at which its reserve is attained."""

    @abc.abstractmethod
    def cost(self, x: Float[Array, " d"], worst: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return what x costs and must reserve against `worst`, by coordinate."""

    @abc.abstractmethod
    def lowest(self) -> Float[Array, " d"]:
        """Return where cost plus reserve is least."""

    def ends(self, level: Number, safest: Float[Array, " 1"]) -> tuple[Float[Array, " 1"], Float[Array, " 1"]] | None:
        """Return, on a line, the ends of what is at most the level. Default: None, bisection finds them."""
        return None

    def total(self, x: Float[Array, " d"]) -> Number:
        """Return what x costs and must reserve."""
        return jnp.sum(self.cost(x, self.worst(x)))


class LineSet(AbstractLevelSet):
    """The set where the sum over coordinates is at most the level."""

    lines: AbstractLines
    level: Number

    @property
    def sound(self) -> Bool[Array, ""]:
        return (jnp.isfinite(self.lines.value) & (self.lines.value >= 0)).all()

    def lowest(self) -> Action:
        return self.lines.lowest()

    def spare(self, away: Action) -> Number:
        return self.level - self.lines.total(away)

    def largest_share(self, safest: Action, advice: Action, rounding: Action | None, is_lowest: bool) -> Share:
        lines, lowest, way = self.lines, safest if is_lowest else self.lines.lowest(), advice - safest
        least, level = lines.total(lowest), self.level
        if rounding is not None:  # roots of heights add up
            of_rounding = 0.5 * jnp.sum(jnp.maximum(lines.shape, lines.least_curvature) * rounding**2)
            level = least + jnp.maximum(safe_sqrt(level - least) - safe_sqrt(of_rounding), 0.0) ** 2
        fits = self.spare(safest + way) >= 0
        ends = lines.ends(level, safest) if len(safest) == 1 else None
        if ends is None:
            # Allowed points are at most sqrt(2 left) from the lowest one in the norm of the least curvature: at most twice that
            # apart.
            curved = jnp.sum(lines.least_curvature * way**2)
            longest = 2 * jnp.sqrt(2 * jnp.maximum(level - least, 0.0) / jnp.where(curved > 0, curved, 1.0))
            longest = jax.lax.stop_gradient(jnp.minimum(longest, 1.0))
            return fits, bisect_root(_spare_at_share, jnp.zeros_like(longest), longest, (lines, level, safest, way))
        # Where rounding leaves nothing between the ends, only the safest action is allowed.
        room = jnp.where(way < 0, jnp.minimum(ends[0], safest), jnp.maximum(ends[1], safest)) - safest
        return fits, jnp.minimum(room / jnp.where(way == 0, 1.0, way), 1.0)[0]


def _spare_at_share(share, parameters):
    lines, level, safest, way = parameters
    return level - lines.total(safest + share * way)
