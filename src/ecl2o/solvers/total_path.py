"""Minimisation over a path whose points are bounded and sum to given totals.

Mehrotra's predictor-corrector method, as in `interior_point`, on a chain of springs: every point moves in the plane of its sum,
by one multiplier a point, and steps that would leave the centre are shortened, so that iterates do not go in circles. The
minimiser is differentiated through one further Newton step.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ecl2o.solvers.bounded_newton import BoundedMinimum, Objective
from ecl2o.solvers.ramped_path import Edges, Nodes
from ecl2o.solvers.shared_total import narrow_bounds, project_on_total
from ecl2o.solvers.small_dense import multiply, parallel_sum, spd_solve_sum_zero

_MAX_STEPS = 60
_TO_BOUNDARY = 0.995  # share of the way to the nearest constraint that a step goes
_CENTRED = 1e-3  # the least product of slack and multiplier, relative to their mean, below which a step is shortened


class TotalPath(eqx.Module):
    """The constraints on a path x (T, d): lower <= x <= upper, and the numbers of x_t sum to the total of step t."""

    totals: Float[Array, " T"]
    lower: Float[Array, "T d"]
    upper: Float[Array, "T d"]

    def slack(self, x: Float[Array, "T d"]) -> Float[Array, "2 T d"]:
        """Return how far x is inside each bound."""
        return jnp.stack([x - self.lower, self.upper - x])

    @property
    def exists(self) -> Bool[Array, "2 T d"]:
        """Which bounds there are; a fixed number has none."""
        return jnp.stack([jnp.isfinite(self.lower), jnp.isfinite(self.upper)]) & ~self.fixed

    @property
    def room(self) -> Float[Array, "T d"]:
        """How far each number can vary within bounds and totals."""
        low, high = jax.vmap(narrow_bounds)(self.totals, self.lower, self.upper)
        return high - low

    @property
    def fixed(self) -> Bool[Array, "T d"]:
        """Which numbers the totals leave no room but rounding."""
        ends = jnp.stack([self.lower, self.upper])
        size = jnp.sum(jnp.where(jnp.isfinite(ends), jnp.abs(ends), 0.0), axis=(0, 2)) + jnp.abs(self.totals)
        return self.room <= jnp.finfo(size.dtype).eps ** 0.75 * size[:, None]

    def clean(self, x: Float[Array, "T d"]) -> Float[Array, "T d"]:
        """Return the nearest path that obeys the constraints."""
        return jax.vmap(project_on_total)(x, self.totals, self.lower, self.upper)

    def misses_total(self, x: Float[Array, "T d"]) -> Bool[Array, ""]:
        """Return whether some point is far from its total, as where the bounds do not allow it."""
        size = jnp.sum(jnp.abs(x), axis=1) + jnp.abs(self.totals)
        return (jnp.abs(jnp.sum(x, axis=1) - self.totals) > 1e3 * jnp.finfo(x.dtype).eps * size).any()

    def in_plane(self, slope: Float[Array, "T d"]) -> Float[Array, "T d"]:
        """Return the part of a slope along which paths can move."""
        free = ~self.fixed
        mean = jnp.sum(jnp.where(free, slope, 0.0), axis=1) / jnp.maximum(jnp.sum(free, axis=1), 1)
        return jnp.where(free, slope - mean[:, None], 0.0)

    def lengths(self, start: Float[Array, "T d"]) -> tuple[Float[Array, ""], Float[Array, "T d"]]:
        """Return the size of the problem, and how far inside of its bounds a first iterate should be."""
        ends, eps = jnp.stack([self.lower, self.upper]), jnp.finfo(start.dtype).eps
        size = jnp.max(jnp.abs(start)) + jnp.max(jnp.where(jnp.isfinite(ends), jnp.abs(ends), 0.0))
        room = jnp.where(self.fixed, 0.0, jnp.where(jnp.isfinite(self.room), self.room, size))
        length = jnp.where(jnp.max(room) > 0, jnp.max(room), 1.0)
        return length, jnp.maximum(0.1 * room, eps * length)


class _Iterate(eqx.Module):
    x: Float[Array, "T d"]
    slack: Float[Array, "2 T d"]
    dual: Float[Array, "2 T d"]


def solve_sum_zero_chain(
    held: Float[Array, "T d d"], joined: Float[Array, "T d d"], force: Float[Array, "T d"]
) -> Float[Array, "T d"]:
    """Return the points of a chain of springs under forces, as `solve_chain` does, if the numbers of each sum to zero.

    >>> two = jnp.stack([2 * jnp.eye(2)] * 2)
    >>> solve_sum_zero_chain(two, 0 * two, jnp.array([[4.0, 0.0], [0.0, 8.0]])).tolist()
    [[1.0, -1.0], [-2.0, 2.0]]
    """
    after = jnp.concatenate([joined[1:], jnp.zeros_like(joined[:1])])

    def eliminate(before, here):
        stiffness, pull = before
        N, W, f = here
        P, p = N + stiffness, f + pull
        return (parallel_sum(P, W, spd_solve_sum_zero(P + W, W)), multiply(W, spd_solve_sum_zero(P + W, p))), (P, p)

    start = joined[0], jnp.zeros_like(force[0])
    _, (P, p) = jax.lax.scan(eliminate, start, (held, after, force))

    def substitute(x, here):
        P, W, p = here
        x = spd_solve_sum_zero(P + W, p + multiply(W, x))
        return x, x

    return jax.lax.scan(substitute, jnp.zeros_like(force[0]), (P, after, p), reverse=True)[1]


def _newton(gradient, held, joined, within: TotalPath, at: _Iterate) -> Callable[[Array], _Iterate]:
    """Return the Newton direction as a function of the products of slacks and multipliers to be reached."""
    exists = within.exists
    stiff = jnp.where(exists, at.dual / at.slack, 0.0)
    firm = jnp.where(within.fixed, jnp.max(jnp.abs(held) + jnp.abs(joined)) / jnp.finfo(at.x.dtype).eps ** 2, 0.0)
    held = held + jax.vmap(jnp.diag)(stiff[0] + stiff[1] + firm)
    missing = jnp.where(exists, within.slack(at.x) - at.slack, 0.0)
    residual = gradient + at.dual[1] - at.dual[0]

    def direction(products) -> _Iterate:
        rise = jnp.where(exists, (products - at.dual * missing) / at.slack - at.dual, 0.0)
        step = solve_sum_zero_chain(held, jnp.broadcast_to(joined, held.shape), rise[0] - rise[1] - residual)
        slack = jnp.where(exists, missing + jnp.stack([step, -step]), 0.0)
        dual = jnp.where(exists, (products - at.dual * slack) / at.slack - at.dual, 0.0)
        return _Iterate(step, slack, dual)

    return direction


def _longest(at: _Iterate, step: _Iterate) -> Float[Array, ""]:
    """Return the longest step, at most 1, along which slacks and multipliers stay positive."""
    value, change = jnp.stack([at.slack, at.dual]), jnp.stack([step.slack, step.dual])
    return jnp.min(jnp.where(change < 0, value / jnp.where(change < 0, -change, 1.0), jnp.inf), initial=1.0)


def _along_step(at: _Iterate, step: _Iterate, parts: tuple[float, ...]) -> _Iterate:
    """Return the iterates after these parts of the longest step, with a leading axis."""
    shares = _TO_BOUNDARY * _longest(at, step) * jnp.array(parts, at.x.dtype)
    return jax.vmap(lambda share: jax.tree.map(lambda a, b: a + share * b, at, step))(shares)


def minimize_total_path(
    objective: Objective,
    nodes: Nodes,
    edges: Edges,
    start: Float[Array, "T d"],
    parameters: PyTree,
    within: TotalPath,
) -> BoundedMinimum:
    """Minimise objective(x, parameters), convex, over the paths x (T, d) that obey the constraints.

    `converged` is false where there is no such path.

    Args:
        objective: maps x (T, d) and the parameters to a number.
        nodes: returns the Hessian of each point's own cost, (T, d, d).
        edges: returns the Hessian of the cost of each move, (T, d, d).
        start: (T, d), the first iterate; it need not obey the constraints.
        parameters: any tree; derivatives with respect to it and to `within` are those of the minimiser.
        within: the constraints.
    """
    found, converged, steps = _iterate(objective, nodes, edges, *jax.lax.stop_gradient((start, parameters, within)))
    found = jax.lax.stop_gradient(found)
    springs = jax.lax.stop_gradient((nodes(found.x, parameters), edges(parameters)))
    found = dataclasses.replace(found, x=within.clean(found.x))
    last = _newton(jax.grad(objective)(found.x, parameters), *springs, within, found)(found.slack * found.dual)
    # Bounds and totals to the last bit; the derivatives are those of the Newton step.
    x = found.x + last.x
    return BoundedMinimum(jax.lax.stop_gradient(found.x) + (x - jax.lax.stop_gradient(x)), converged, steps)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _iterate(objective, nodes, edges, start, parameters, within: TotalPath) -> tuple[_Iterate, Any, Any]:
    exists, limits = within.exists, jnp.finfo(start.dtype)
    count = jnp.maximum(jnp.sum(exists), 1)
    gradient, joined, start = jax.grad(objective), edges(parameters), within.clean(start)
    length, inside = within.lengths(start)
    slope = gradient(start, parameters)
    # Of the gradient, what totals leave of it, and its rounding.
    force = jnp.max(jnp.abs(within.in_plane(slope))) + limits.eps ** (1 / 3) * jnp.max(jnp.abs(slope)) + limits.tiny

    def mean_product(at: _Iterate):
        return jnp.sum(jnp.where(exists, at.slack * at.dual, 0.0)) / count

    def centring_of(at: _Iterate):
        """Return the least product relative to the mean."""
        least = jnp.min(jnp.where(exists, at.slack * at.dual, jnp.inf))
        return least / jnp.where(least < jnp.inf, mean_product(at), 1.0)

    def errors(at: _Iterate):
        """Return how far the optimality conditions are violated, relative to the problem's size."""
        largest = jnp.maximum(force, jnp.max(at.dual))
        slope = within.in_plane(gradient(at.x, parameters) + at.dual[1] - at.dual[0])
        missing = jnp.max(jnp.where(exists, jnp.abs(within.slack(at.x) - at.slack), 0.0)) / length
        off = jnp.maximum(jnp.max(jnp.abs(slope)) / largest, missing)
        return jnp.maximum(off, mean_product(at) / (largest * length))

    def advance(carry):
        at, steps, off, _ = carry
        direction = _newton(gradient(at.x, parameters), nodes(at.x, parameters), joined, within, at)
        reached = mean_product(at)
        # The direction is affine in the products: half way between two of them are those to half of the present mean.
        ends = jax.vmap(direction)(jnp.stack([jnp.zeros_like(at.slack), jnp.full_like(at.slack, reached)]))
        predicted, safe = jax.tree.map(lambda leaf: leaf[0], ends), jax.tree.map(lambda leaf: leaf.mean(axis=0), ends)
        share = _longest(at, predicted)
        tried = jax.tree.map(lambda a, b: a + share * b, at, predicted)
        centring = (mean_product(tried) / jnp.where(reached > 0, reached, 1.0)) ** 3
        step = direction(centring * reached - predicted.slack * predicted.dual)
        parts = _along_step(at, step, (1.0, 0.9, 0.75, 0.5)), _along_step(at, safe, (1.0, 0.5, 0.25, 0.1, 0.01))
        tried = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), *parts)
        allowed = jax.vmap(centring_of)(tried) >= jnp.minimum(_CENTRED, centring_of(at))
        moved = jax.tree.map(lambda leaf: leaf[jnp.argmax(allowed.at[-1].set(True))], tried)  # the first that is
        left = errors(moved)
        improved = (left < off) | (jnp.isfinite(left) & (off > jnp.sqrt(limits.eps)))  # then rounding takes over
        new, old = (moved, steps + 1, left), (at, steps, off)
        return *jax.tree.map(lambda a, b: jnp.where(improved, a, b), new, old), improved

    def unfinished(carry):
        _, steps, off, improved = carry
        return improved & (steps < _MAX_STEPS) & (off > limits.eps**0.85)

    slack = jnp.where(exists, jnp.maximum(within.slack(start), inside), 1.0)
    at = _Iterate(start, slack, jnp.where(exists, force, 0.0))
    begin = at, jnp.zeros((), int), errors(at), jnp.ones((), bool)
    at, steps, off, _ = jax.lax.while_loop(unfinished, advance, begin)
    return at, (off <= limits.eps**0.6) & ~within.misses_total(within.clean(at.x)), steps


@dataclasses.dataclass(frozen=True)
class _OnePoint:
    """A function of one point as that of a path of one step; equal for equal functions, as compiled programs need it."""

    objective: Objective

    def __call__(self, x: Float[Array, "1 d"], parameters: Any) -> Float[Array, ""]:
        return self.objective(x[0], parameters)

    def nodes(self, x: Float[Array, "1 d"], parameters: Any) -> Float[Array, "1 d d"]:
        return jax.hessian(self.objective)(x[0], parameters)[None]

    def edges(self, parameters: Any) -> Float[Array, ""]:
        return jnp.zeros(())


def minimize_with_total(
    objective: Objective,
    start: Float[Array, " d"],
    parameters: PyTree,
    lower: Float[Array, " d"],
    upper: Float[Array, " d"],
    total: Float[Array, ""],
) -> BoundedMinimum:
    """Minimise objective(x, parameters), convex, over the points lower <= x <= upper whose numbers sum to the total.

    `converged` is false where there is no such point.

    Args:
        objective: maps x (d,) and the parameters to a number.
        start: (d,), the first iterate; it need not obey the constraints.
        parameters: any tree; derivatives with respect to it, the bounds and the total are those of the minimiser.
        lower: (d,), may be -inf.
        upper: (d,), may be inf.
        total: the sum.

    >>> def bowl(x, centre):
    ...     return jnp.sum((x - centre) ** 2)
    >>> found = minimize_with_total(
    ...     bowl, jnp.zeros(2), jnp.array([3.0, 1.0]), jnp.zeros(2), jnp.ones(2), jnp.array(1.5)
    ... )
    >>> [round(float(v), 6) for v in found.x], bool(found.converged)
    ([1.0, 0.5], True)
    """
    point, within = _OnePoint(objective), TotalPath(total[None], lower[None], upper[None])
    found = minimize_total_path(point, point.nodes, point.edges, start[None], parameters, within)
    return dataclasses.replace(found, x=found.x[0])
