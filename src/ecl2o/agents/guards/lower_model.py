"""What the promise relative to the optimum allows where costs are not quadratic, but have curvature within known bounds.

The work function is then no paraboloid. The guard carries one below it: rho + 1/2 |z - mu|^2_P <= W(z). At a step, with K the
stiffness after the move, sigma = S/(L - 1), and all points measured from mu, an action x is allowed if

    f(x) + c(x, x_{t-1}) + L max_z [ 1/2 |x - z|^2_sigma - 1/2 |z|^2_K - f(z) ] <= left.

Then f is replaced by the quadratic of the least curvature that touches it at the maximiser z* (proof: docs/guarantees.md).
All matrices are diagonal here, so that coordinates are lines.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.planning.work_function import Prefix, WorkFunction
from ecl2o.problem import AbstractHittingCost, AsymmetricTracking
from ecl2o.problem.arrays import add_exactly, safe_sqrt
from ecl2o.solvers.bisection import bisect_root
from ecl2o.solvers.bounded_newton import minimize


class ModelLines(eqx.Module):
    """The numbers of a step, by coordinate; points are less mu. `a` is the least curvature."""

    a: Float[Array, " d"]
    g: Float[Array, " d"]
    k: Float[Array, " d"]
    s: Float[Array, " d"]
    sigma: Float[Array, " d"]
    ratio: Float[Array, ""]
    previous: Float[Array, " d"]

    @classmethod
    def of(cls, least, G, S, ratio, work: WorkFunction, previous: Float[Array, " d"]) -> "ModelLines":
        """Take the numbers from diagonal matrices and the model after the last move."""
        a, g, k, s = (jnp.diagonal(matrix) for matrix in (least, G, work.stiffness, S))
        return cls(a, g, k, s, s / (ratio - 1), ratio, work.from_centre(previous))

    def value_at(self, weight: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return v, the reserve's curvature where z* sees this weight; negative or infinite where nothing is feasible."""
        return self.ratio * self.sigma * (self.k + weight) / (self.k + weight - self.sigma)


class AsymmetricLines(eqx.Module):
    """`AsymmetricTracking`: x and z* lie each on one side of y, and the reserve is that of the quadratic on the side of z*."""

    of: ModelLines
    hitting: AsymmetricTracking
    context: Float[Array, " d"]

    @property
    def least_curvature(self) -> Float[Array, " d"]:
        """Return a lower bound on the second derivatives of cost plus reserve."""
        return self.of.a + self.of.g + self.of.s

    @property
    def value(self) -> Float[Array, " d"]:
        """Return the reserve's curvature where it is greatest; negative or infinite where nothing is feasible."""
        return self.of.value_at(self.of.a)

    @property
    def shape(self) -> Float[Array, " d"]:
        """Return an upper bound on the second derivatives."""
        return jnp.maximum(self.hitting.short, self.hitting.long) + self.of.g + self.value

    def worst(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the weight that z* sees. The slope at y decides on which side of y it lies."""
        return self.hitting.weight(self.of.k * self.context > self.of.sigma * (self.context - x))

    def _parts(self, weight):
        """Return v, m and growth of the optimum for the quadratic of this weight."""
        game, y = self.of, self.context
        return game.value_at(weight), weight / (game.k + weight) * y, 0.5 * game.k * weight / (game.k + weight) * y**2

    def cost(self, x: Float[Array, " d"], weight: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return what x costs and must reserve less L times the growth of the model, by coordinate."""
        return self._piece(x, self.hitting.weight(x < self.context), weight)

    def _piece(self, x, own, weight):
        game, (v, m, growth) = self.of, self._parts(weight)
        moved = own * (x - self.context) ** 2 + game.g * (x - game.previous) ** 2
        return 0.5 * (moved + v * (x - m) ** 2) - game.ratio * growth

    def _lowest(self, own, weight):
        """Return the minimiser of a piece, and its curvature."""
        game, (v, m, _) = self.of, self._parts(weight)
        shape = own + game.g + v
        return (own * self.context + game.g * game.previous + v * m) / shape, shape

    def safest(self) -> Float[Array, " d"]:
        """Return where cost plus reserve is least: for each side of z* one linear equation; the consistent one counts."""

        def lowest(weight):
            v, m, _ = self._parts(weight)
            slope = self.of.g * (self.context - self.of.previous) + v * (self.context - m)  # at y
            return self._lowest(self.hitting.weight(slope > 0), weight)[0]

        below, above = (
            lowest(jnp.broadcast_to(w, self.context.shape)) for w in (self.hitting.short, self.hitting.long)
        )
        return jnp.where(self.worst(below) == self.hitting.short, below, above)

    def clip(
        self, level: Float[Array, ""], safest: Float[Array, " 1"], advice: Float[Array, " 1"]
    ) -> Float[Array, " 1"]:
        """Clip to the interval where the cost is at most the level; each end belongs to one of the pieces between two kinks."""
        game, y = self.of, self.context
        turn = y - game.k * y / jnp.maximum(game.sigma, jnp.finfo(y.dtype).tiny)  # z* crosses y where x is here

        def reaches(kink, sign):  # whether the end on this side lies beyond the kink
            return (sign * (kink - safest) <= 0) | (self.cost(kink, self.worst(kink)) <= level)

        def end(sign):
            beyond_y, beyond_turn = reaches(y, sign), reaches(turn, sign)
            own = self.hitting.weight(beyond_y if sign < 0 else ~beyond_y)
            weight = self.hitting.weight(beyond_turn if sign > 0 else ~beyond_turn)
            lowest, shape = self._lowest(own, weight)
            return lowest + sign * safe_sqrt(2 * (level - self._piece(lowest, own, weight)) / shape)

        return jnp.clip(advice, jnp.minimum(end(-1), safest), jnp.maximum(end(1), safest))

    def touch(self, x: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, ""], Float[Array, ""]]:
        """Return the next mu less this one, the growth of rho, and the size of its terms.

        With u = x - m and e = sigma/(k + w - sigma), z* = m - e u. The next mu, m + (w - a)/(k + a) e u, lies between m and x.
        """
        game, weight = self.of, self.worst(x)
        _, m, growth = self._parts(weight)
        away = game.sigma / (game.k + weight - game.sigma) * (x - m)
        lost = 0.5 * (game.k + weight) * (weight - game.a) / (game.k + game.a) * away**2
        return m + (weight - game.a) / (game.k + game.a) * away, jnp.sum(growth - lost), jnp.sum(growth + lost)


class ConvexLine(eqx.Module):
    """Any other cost, on a line: z* by Newton's method, x_m and the ends by bisection."""

    of: ModelLines
    hitting: AbstractHittingCost
    context: Float[Array, " q"]
    greatest: Float[Array, " 1"]
    centre: Float[Array, " 1"]
    rest: Float[Array, " 1"]

    @property
    def least_curvature(self) -> Float[Array, " 1"]:
        """Return a lower bound on the second derivatives of cost plus reserve."""
        return self.of.a + self.of.g + self.of.s

    @property
    def value(self) -> Float[Array, " 1"]:
        """Return the reserve's curvature where it is greatest; negative or infinite where nothing is feasible."""
        return self.of.value_at(self.of.a)

    @property
    def shape(self) -> Float[Array, " 1"]:
        """Return an upper bound on the second derivatives."""
        return self.greatest + self.of.g + self.value

    def _hit(self, x):
        return self.hitting(self.centre + (self.rest + x), self.context)[None]

    def _slope(self, x):
        return self.hitting.gradient(self.centre + (self.rest + x), self.context)

    def worst(self, x: Float[Array, " 1"]) -> Float[Array, " 1"]:
        """Return z*."""
        infinite = jnp.full_like(x, jnp.inf)
        return minimize(_model_less_reserve, jnp.zeros_like(x), (self, x), -infinite, infinite).x

    def cost(self, x: Float[Array, " 1"], z: Float[Array, " 1"]) -> Float[Array, " 1"]:
        """Return what x costs and must reserve less L times the growth of the model."""
        game = self.of
        reserve = 0.5 * (game.sigma * (x - z) ** 2 - game.k * z**2) - self._hit(z)
        return self._hit(x) + 0.5 * game.g * (x - game.previous) ** 2 + game.ratio * reserve

    def safest(self) -> Float[Array, " 1"]:
        """Return where cost plus reserve is least: its slope rises at least as fast as the curvature of its terms."""
        here = self.of.previous[0]
        reach = jnp.abs(_descent(here, self)) / (self.of.a + self.of.g + self.of.ratio * self.of.sigma)[0]
        low, high = jax.lax.stop_gradient((here - reach, here + reach))
        return bisect_root(_descent, low, high, self)[None]

    def clip(
        self, level: Float[Array, ""], safest: Float[Array, " 1"], advice: Float[Array, " 1"]
    ) -> Float[Array, " 1"]:
        """Return the last allowed point on the way from the safest action to the advice."""
        return move_along_segment(self, level, safest, advice)

    def touch(self, x: Float[Array, " 1"]) -> tuple[Float[Array, " 1"], Float[Array, ""], Float[Array, ""]]:
        """Return the next mu less this one, the growth of rho, and the size of its terms."""
        game, z = self.of, self.worst(x)
        hit, slope = self._hit(z), self._slope(z)
        mu = (game.a * z - slope) / (game.k + game.a)
        rising, curved = slope * (mu - z), 0.5 * (game.a * (mu - z) ** 2 + game.k * mu**2)
        return mu, jnp.sum(hit + rising + curved), jnp.sum(jnp.abs(hit) + jnp.abs(rising) + curved)


def _model_less_reserve(z, parameters):
    line, x = parameters
    return jnp.sum(line._hit(z) + 0.5 * line.of.k * z**2 - 0.5 * line.of.sigma * (x - z) ** 2)


def _descent(x, line: ConvexLine):
    """Return minus the slope of cost plus reserve at x; decreasing."""
    game, x = line.of, x[None]
    pull = game.g * (x - game.previous) + game.ratio * game.sigma * (x - line.worst(x))
    return -(line._slope(x) + pull)[0]


def move_along_segment(lines, level, safest, advice):
    """Return the last allowed point on the segment from the safest action to the advice.

    Allowed points are at most sqrt(2 left) from the lowest one in the norm of the least curvature, so at most twice that apart.
    """
    way, lowest = advice - safest, lines.safest()
    curved = jnp.sum(lines.least_curvature * way**2)
    left = jnp.maximum(level - jnp.sum(lines.cost(lowest, lines.worst(lowest))), 0.0)
    longest = jnp.minimum(2 * jnp.sqrt(2 * left / jnp.where(curved > 0, curved, 1.0)), 1.0)
    share = bisect_root(
        spare_at_share, jnp.zeros_like(longest), jax.lax.stop_gradient(longest), (lines, level, safest, way)
    )
    return safest + share * way


def spare_at_share(share, parameters):
    """Return what the level leaves at this share of the way from the safest action."""
    lines, level, safest, way = parameters
    x = safest + share * way
    return level - jnp.sum(lines.cost(x, lines.worst(x)))


def bound_optimum(
    hitting: AsymmetricTracking, G: Float[Array, "1 1"], work: WorkFunction, context: Float[Array, " q"]
) -> Prefix:
    """Return a model that touches f where the model itself is least, on a line: rho is a lower bound on the optimum."""
    centre = hitting.centre(context)
    nothing, least = jnp.zeros_like(centre), hitting.curvature_bounds(1)[0].astype(context.dtype)
    game = ModelLines.of(least, G, jnp.zeros_like(G), jnp.asarray(2.0, context.dtype), work, work.centre)
    return advance_model(AsymmetricLines(game, hitting, work.from_centre(centre)), work, nothing)


def advance_model(lines: AsymmetricLines | ConvexLine, work: WorkFunction, x: Float[Array, " d"]) -> Prefix:
    """Return the model after the action x less mu: it touches f at z*, so that what x reserved is what it reserves."""
    forward, growth, size = lines.touch(x)
    centre, rest = add_exactly(work.centre, work.rest + forward)
    P = work.stiffness + jnp.diag(lines.of.a)
    rounding = jax.lax.stop_gradient(8 * jnp.finfo(x.dtype).eps * size)
    return Prefix(P, centre, rest, work.error_bound, growth, rounding)
