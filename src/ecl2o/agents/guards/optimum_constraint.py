"""The actions that a promise relative to the optimum allows at a step, and how advice outside is moved inside.

An action x costs f_t(x) + c(x, x_{t-1}) and must reserve the value W(x) of the game against all future contexts
(docs/guarantees.md). It is allowed if the sum is within the level that the account leaves. Everything is measured from the
centre m of the work function, so that no large numbers cancel.

Where contexts may lie anywhere, W(x) = 1/2 |x - m|^2_V and the allowed set is an ellipsoid. Where they are known to lie in a box,
and all matrices are diagonal, W(x) is a sum over coordinates of max over n in [low, high] of s/2 (x - n)^2 - L h/2 (n - m)^2.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.problem.arrays import safe_sqrt
from ecl2o.solvers.bisection import bisect_root
from ecl2o.solvers.positive_definite import half_quadratic_form, multiply, spd_solve
from ecl2o.theory import promise_value


class GameStep(eqx.Module):
    """A step of the game: matrices of the costs, of the past and of the future, the two points less m, and the level."""

    A: Float[Array, "d d"]
    G: Float[Array, "d d"]
    P: Float[Array, "d d"]
    S: Float[Array, "d d"]
    ratio: Float[Array, ""]
    context: Float[Array, " d"]
    previous: Float[Array, " d"]
    level: Float[Array, ""]


class Choice(eqx.Module):
    """The safest action, the advice moved inside, whether it was moved, and whether (L - 1) P > S, as all this requires."""

    safest: Float[Array, " d"]
    action: Float[Array, " d"]
    active: Bool[Array, ""]
    sound: Bool[Array, ""]


def choose_anywhere(step: GameStep, advice: Float[Array, " d"]) -> Choice:
    """Move advice into the ellipsoid around x_m = (A + G + V)^-1 (A y + G x_{t-1} + V m): contexts may lie anywhere."""
    V = promise_value(step.P, step.S, step.ratio)
    # Where (L - 1) P - S is not definite, V is negative if d = 1, and NaN elsewhere: there is no Cholesky factor.
    sound = jnp.isfinite(V).all() & (V.shape[0] > 1 or (V >= 0).all())
    V = jnp.where(sound, V, 0.0)
    shape = step.A + step.G + V
    safest = spd_solve(shape, multiply(step.A, step.context) + multiply(step.G, step.previous))
    cost = half_quadratic_form(step.A, safest - step.context) + half_quadratic_form(step.G, safest - step.previous)
    left = step.level - cost - half_quadratic_form(V, safest)
    usable = jnp.isfinite(half_quadratic_form(shape, advice - safest))
    way = jnp.where(usable, advice, safest) - safest
    height = half_quadratic_form(shape, way)
    allowed = height <= left
    pulled = ~allowed & (left > 0)
    share = jnp.sqrt(jnp.where(pulled, left, 1.0) / jnp.where(pulled, height, 1.0))
    inward = jnp.where(pulled, safest + share * way, safest)
    return Choice(safest, jnp.where(allowed & usable, advice, inward), ~(allowed & usable), sound)


class Lines(eqx.Module):
    """A step of the game coordinate by coordinate, contexts in a box; `low` and `high` are less m too."""

    a: Float[Array, " d"]
    g: Float[Array, " d"]
    s: Float[Array, " d"]
    gain: Float[Array, " d"]  # n - m = -gain (x - m), the worst future without a box
    weight: Float[Array, " d"]  # L h, h = (1/p + 1/s)^-1
    value: Float[Array, " d"]  # v, the value's curvature without a box
    context: Float[Array, " d"]
    previous: Float[Array, " d"]
    low: Float[Array, " d"]
    high: Float[Array, " d"]

    @classmethod
    def of(cls, step: GameStep, low: Float[Array, " d"], high: Float[Array, " d"]) -> "Lines":
        """Make the coordinates of a step whose matrices are diagonal."""
        a, g, p, s = (jnp.diagonal(matrix) for matrix in (step.A, step.G, step.P, step.S))
        outweighs = (step.ratio - 1) * p - s
        gain, weight = (p + s) / outweighs, step.ratio * p * s / (p + s)
        return cls(a, g, s, gain, weight, step.ratio * s * p / outweighs, step.context, step.previous, low, high)

    def worst(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the context n in the box that makes x most expensive."""
        return jnp.clip(-self.gain * x, self.low, self.high)

    def cost(self, x: Float[Array, " d"], n: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return what x costs and must reserve against n, by coordinate."""
        moved = self.a * (x - self.context) ** 2 + self.g * (x - self.previous) ** 2
        return 0.5 * (moved + self.s * (x - n) ** 2 - self.weight * n**2)

    def safest(self) -> Float[Array, " d"]:
        """Return where the cost is least: against the n, clipped, that is worst for the least cost without the box."""
        pull = self.a * self.context + self.g * self.previous
        free = pull / (self.a + self.g + self.value)
        return (pull + self.s * self.worst(free)) / (self.a + self.g + self.s)


def choose_within(
    step: GameStep, low: Float[Array, " d"], high: Float[Array, " d"], advice: Float[Array, " d"]
) -> Choice:
    """Move advice into the allowed set, convex around x_m, an interval if d = 1: contexts lie between `low` and `high`."""
    lines = Lines.of(step, low, high)
    safest = lines.safest()
    usable = jnp.isfinite(jnp.sum((advice - safest) ** 2))
    wish = jnp.where(usable, advice, safest)
    fits = _spare(jnp.ones(()), (lines, step.level, safest, wish - safest)) >= 0
    move = _clip_to_interval if safest.shape[0] == 1 else _along_segment
    action = jnp.where(fits, wish, move(lines, step.level, safest, wish))
    return Choice(safest, action, ~(fits & usable), (jnp.isfinite(lines.value) & (lines.value >= 0)).all())


def _clip_to_interval(lines: Lines, level, safest, advice):
    """Clip to the interval where no n in the box has a cost above the level.

    Its ends belong to n = low, to n = high, or to the n that is worst at the very end, if that one lies inside the box.
    """
    pull = lines.a * lines.context + lines.g * lines.previous

    def ends(n):
        centre = (pull + lines.s * n) / (lines.a + lines.g + lines.s)
        reach = safe_sqrt(2 * (level - lines.cost(centre, n)) / (lines.a + lines.g + lines.s))
        return centre - reach, centre + reach

    shape = lines.a + lines.g + lines.value
    free = pull / shape
    reach = safe_sqrt(2 * (level - lines.cost(free, -lines.gain * free)) / shape)

    def inside(x):
        n = -lines.gain * x
        return (lines.low <= n) & (n <= lines.high)

    (left_low, right_low), (left_high, right_high) = ends(lines.low), ends(lines.high)
    left, right = jnp.maximum(left_low, left_high), jnp.minimum(right_low, right_high)
    left = jnp.where(inside(free - reach), jnp.maximum(left, free - reach), left)
    right = jnp.where(inside(free + reach), jnp.minimum(right, free + reach), right)
    # Where rounding leaves nothing between the ends, only the safest action is allowed.
    return jnp.clip(advice, jnp.minimum(left, safest), jnp.maximum(right, safest))


def _along_segment(lines: Lines, level, safest, advice):
    """Return the last allowed point on the segment from the safest action to the advice.

    A share of the way adds at least (a + g + s)/2 times its square, which bounds it.
    """
    way = advice - safest
    curved = jnp.sum((lines.a + lines.g + lines.s) * way**2)
    left = jnp.maximum(level - jnp.sum(lines.cost(safest, lines.worst(safest))), 0.0)
    longest = jnp.minimum(jnp.sqrt(2 * left / jnp.where(curved > 0, curved, 1.0)), 1.0)
    share = bisect_root(_spare, jnp.zeros_like(longest), jax.lax.stop_gradient(longest), (lines, level, safest, way))
    return safest + share * way


def _spare(share, parameters):
    """Return what the level leaves at this share of the way from the safest action."""
    lines, level, safest, way = parameters
    x = safest + share * way
    return level - jnp.sum(lines.cost(x, lines.worst(x)))
