"""Level sets: the actions that a promise allows at a step, and how advice is moved into them.

An action is allowed if what it costs, and what it must reserve for the future, is at most a level. Cost plus reserve is convex,
so advice that is not allowed is pulled toward an action that is, until it is allowed: one way to move, whatever the promise.
Actions are measured from an origin near the interesting points, so that no large numbers cancel.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.problem.arrays import safe_sqrt
from ecl2o.solvers.bisection import bisect_root
from ecl2o.solvers.small_dense import half_quadratic_form, multiply, spd_solve

Action = Float[Array, " d"]
Number = Float[Array, ""]
Share = tuple[Bool[Array, ""], Number]


class Origin(eqx.Module):
    """A point from which actions are measured: the rounded point, and what rounding removed from it."""

    point: Action
    rest: Action

    @classmethod
    def at(cls, point: Action) -> "Origin":
        """Return the origin at a point of the working precision."""
        return cls(point, jnp.zeros_like(point))

    def away(self, action: Action) -> Action:
        """Return the action less the origin."""
        return action - self.point - self.rest

    def back(self, away: Action) -> Action:
        """Return the action that is so far away."""
        return self.point + (self.rest + away)

    @property
    def rounding(self) -> Action:
        """By how much rounding may move an action nearby: advice that is moved stays by so much inside."""
        return jax.lax.stop_gradient(jnp.finfo(self.point.dtype).eps * jnp.abs(self.point))


class AbstractLevelSet(eqx.Module):
    """{u: cost + reserve <= level}, a convex set of actions, less the origin."""

    @abc.abstractmethod
    def lowest(self) -> Action:
        """Return where cost plus reserve is least."""

    @abc.abstractmethod
    def spare(self, away: Action) -> Number:
        """Return by how much an action stays below the level."""

    @abc.abstractmethod
    def largest_share(self, safest: Action, advice: Action, rounding: Action | None, is_lowest: bool) -> Share:
        """Return whether the advice is inside, and the largest share of the way to it from the safest action that is.

        Args:
            safest: (d,), where the way begins.
            advice: (d,), finite.
            rounding: (d,), by how much rounding may move an action: a share stays inside by that much. None: not at all.
            is_lowest: whether `safest` is what `lowest` returned.
        """

    @property
    def sound(self) -> Bool[Array, ""]:
        """Whether the reserve exists, as the promise requires. Default: true."""
        return jnp.ones((), bool)


class Form(eqx.Module):
    """1/2 |u - centre|^2 in the norm of a symmetric matrix; None: the centre is the origin."""

    matrix: Float[Array, "d d"]
    centre: Action | None = None

    def from_centre(self, away: Action) -> Action:
        """Return an action less the centre."""
        return away if self.centre is None else away - self.centre

    def __call__(self, away: Action) -> Number:
        """Return the form at an action."""
        return half_quadratic_form(self.matrix, self.from_centre(away))


class QuadraticSet(AbstractLevelSet):
    """A set whose cost plus reserve is a sum of quadratic forms: an ellipsoid.

    Args:
        forms: the parts of the cost, and last the reserve.
        level: what they may sum to.
        exists: whether the reserve exists.
    """

    forms: tuple[Form, ...]
    level: Number
    exists: Bool[Array, ""]

    @property
    def sound(self) -> Bool[Array, ""]:
        return self.exists

    @property
    def shape(self) -> Float[Array, "d d"]:
        """The curvature of cost plus reserve."""
        return sum((form.matrix for form in self.forms[1:]), start=self.forms[0].matrix)

    def lowest(self) -> Action:
        pulls = [multiply(form.matrix, form.centre) for form in self.forms if form.centre is not None]
        return spd_solve(self.shape, sum(pulls[1:], start=pulls[0]))

    def spare(self, away: Action) -> Number:
        *cost, reserve = (form(away) for form in self.forms)
        left = self.level - sum(cost[1:], start=cost[0]) if cost else self.level
        return left - reserve

    def largest_share(self, safest: Action, advice: Action, rounding: Action | None, is_lowest: bool) -> Share:
        shape, way = self.shape, advice - safest
        if is_lowest and len(self.forms) == 1:  # its centre
            return _share_from_lowest(shape, self.level, way, rounding)
        spare = self.spare(safest)
        if is_lowest:
            return _share_from_lowest(shape, spare, way, rounding)
        slopes = [multiply(form.matrix, form.from_centre(safest)) for form in self.forms]
        normal, turn = sum(slopes[1:], start=slopes[0]), multiply(shape, way)
        slope, bend = jnp.sum(normal * way), jnp.sum(turn * way)

        def share_of(spare):
            inside = (spare > 0) & (bend > 0)
            room, curve = jnp.where(inside, spare, jnp.finfo(spare.dtype).tiny), jnp.where(inside, bend, 1.0)
            root, falls = safe_sqrt(slope**2 + 2 * curve * room), slope <= 0
            # Two forms of one root: in neither do close numbers cancel.
            share = jnp.where(falls, (root - slope) / curve, 2 * room / jnp.where(falls, 1.0, slope + root))
            return jnp.minimum(jnp.where(inside, share, 0.0), 1.0)

        fits = slope + 0.5 * bend <= spare
        if rounding is None:
            return fits, share_of(spare)
        rounded = jnp.sum(jnp.abs(normal + share_of(spare) * turn) * rounding)
        rounded += half_quadratic_form(jnp.abs(shape), rounding)
        return fits, share_of(spare - jax.lax.stop_gradient(rounded))


def _share_from_lowest(shape: Float[Array, "d d"], spare: Number, way: Action, rounding: Action | None) -> Share:
    """Return the share of a way from the centre of an ellipsoid, whose square is a quotient of heights."""
    height = half_quadratic_form(shape, way)
    fits = height <= spare
    pulled = ~fits & (spare > 0)
    height = jnp.where(pulled, height, 1.0)
    # A filler that is close to 0, as the share is: a compiled program may compute `spare` twice, rounded differently.
    share = jnp.sqrt(jnp.where(pulled, spare, jnp.finfo(spare.dtype).tiny) / height)
    if rounding is not None:
        share = jnp.maximum(share - safe_sqrt(half_quadratic_form(jnp.abs(shape), rounding) / height), 0.0)
    return fits, jnp.where(pulled, share, 0.0)


class ConvexSet(AbstractLevelSet):
    """{u: cost(u) <= level} of any convex cost plus reserve, with a known point inside.

    Args:
        cost: maps (parameters, u) to cost plus reserve.
        parameters: any tree.
        level: what it may be.
        inside: (d,), the point of least cost plus reserve, or another one that is allowed.
        least_curvature: a positive lower bound on the second derivatives.
    """

    cost: Callable[..., Number] = eqx.field(static=True)
    parameters: tuple
    level: Number
    inside: Action
    least_curvature: Number

    def lowest(self) -> Action:
        return self.inside

    def spare(self, away: Action) -> Number:
        return self.level - self.cost(self.parameters, away)

    def largest_share(self, safest: Action, advice: Action, rounding: Action | None, is_lowest: bool) -> Share:
        """Cost plus reserve is m-strongly convex and not negative, so an allowed share s of the way d obeys m s^2 |d|^2 <= 8
        level (compare the two ends with the middle), which brackets the root however far the advice is.
        """
        way = advice - safest
        distance = jnp.sum(way**2)
        reach = 8 * jnp.maximum(self.level, 0.0) / (self.least_curvature * jnp.where(distance > 0, distance, 1.0))
        longest = jax.lax.stop_gradient(jnp.minimum(jnp.sqrt(jnp.where(distance > 0, reach, 1.0)), 1.0))
        share = bisect_root(_spare_at_share, jnp.zeros_like(longest), longest, (self, safest, way))
        return self.spare(advice) >= 0, share * self._without_rounding(safest, share * way)

    def _without_rounding(self, safest: Action, way: Action) -> Number:
        """Return the share of a way that rounding left just outside, which convexity shows to suffice.

        What is left may exceed the level by 4e-11 of it in double precision. Where the set is so small that rounding the action
        itself leads further out, a shorter way is taken, or none.
        """
        spare, before = self.spare(safest + way), self.spare(safest)
        fall = before - spare
        share = jnp.where(fall > 0, before / jnp.where(fall > 0, fall, 1.0), 0.0)
        share = jnp.where(~(spare >= 0), jax.lax.stop_gradient(jnp.clip(share, 0.0, 1.0)), 1.0)
        eps = jnp.finfo(way.dtype).eps
        slack = eps ** (2 / 3) * jnp.abs(self.level)
        shorter = (1 - eps ** (1 / 3)) * share

        def fits(share):
            return self.spare(safest + share * way) >= -slack

        return jnp.where(fits(share), share, jnp.where(fits(shorter), shorter, 0.0))


def _spare_at_share(share, parameters):
    level_set, safest, way = parameters
    return level_set.spare(safest + share * way)


class Pulled(eqx.Module):
    """The advice moved inside, less the origin, and by set whether it had to be moved."""

    action: Action
    active: Bool[Array, "*n"]


def pull_inside(
    sets: AbstractLevelSet,
    safest: Action,
    advice: Action,
    rounding: Action | None,
    *,
    several: bool = False,
    is_lowest: bool = False,
) -> Pulled:
    """Return the advice if every set allows it, else the last point on the way to it from the safest action that all allow.

    Args:
        sets: one set, or several with a leading axis on every array.
        safest: (d,), an action that all sets allow.
        advice: (d,); if it is not finite, or its square is not, the safest action is returned.
        rounding: as in `AbstractLevelSet.largest_share`.
        several: whether there are several sets.
        is_lowest: as in `AbstractLevelSet.largest_share`.
    """
    usable = jnp.isfinite(jnp.sum((advice - safest) ** 2))
    target = jnp.where(usable, advice, safest)

    def ask(one):
        return one.largest_share(safest, target, rounding, is_lowest)

    fits, share = jax.vmap(ask)(sets) if several else ask(sets)
    fits &= usable
    all_fit, share = (jnp.all(fits), jnp.min(share)) if several else (fits, share)
    return Pulled(jnp.where(all_fit, advice, safest + share * (target - safest)), ~fits)
