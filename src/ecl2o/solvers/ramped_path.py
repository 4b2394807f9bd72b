"""Minimisation over a path whose points are bounded and change by at most a ramp from step to step.

Mehrotra's predictor-corrector method (a primal-dual interior point). The Hessian is that of a chain of springs: one holds each
point, one joins it to the point before. Bounds stiffen the first kind and ramps the second, so that every iteration eliminates
a chain, O(T d^3). Springs in series have no differences in them, so that even the stiffest ones lose no digits. The minimiser
is differentiated through one further Newton step, which is the implicit function theorem at the solution.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ecl2o.solvers.bounded_newton import BoundedMinimum, Objective
from ecl2o.solvers.positive_definite import multiply, parallel_sum, spd_solve

_MAX_STEPS = 60
_TO_BOUNDARY = 0.995  # share of the way to the nearest constraint that a step goes


class RampedPath(eqx.Module):
    """The constraints on a path x (T, d): lower <= x <= upper, |x_t - x_{t-1}| <= ramp where `coupled`, x_0 = `first`."""

    lower: Float[Array, "T d"]
    upper: Float[Array, "T d"]
    first: Float[Array, " d"]
    ramp: Float[Array, " d"]
    coupled: Bool[Array, " T"]

    def slack(self, x: Float[Array, "T d"]) -> Float[Array, "4 T d"]:
        """Return how far x is inside each of the four constraints."""
        change = jnp.diff(x, axis=0, prepend=self.first[None])
        return jnp.stack([x - self.lower, self.upper - x, self.ramp - change, self.ramp + change])

    @property
    def exists(self) -> Bool[Array, "4 T d"]:
        """Which constraints there are."""
        ramps = jnp.broadcast_to(self.coupled[:, None], self.lower.shape)
        return jnp.stack([jnp.isfinite(self.lower), jnp.isfinite(self.upper), ramps, ramps])


def _slope(dual: Float[Array, "4 T d"]) -> Float[Array, "T d"]:
    """Return what the constraints' multipliers add to the gradient."""
    ramps = dual[2] - dual[3]
    return dual[1] - dual[0] + ramps - jnp.concatenate([ramps[1:], jnp.zeros_like(ramps[:1])])


def _along(direction: Float[Array, "T d"]) -> Float[Array, "4 T d"]:
    """Return the change of the slacks along a direction."""
    change = jnp.diff(direction, axis=0, prepend=jnp.zeros_like(direction[:1]))
    return jnp.stack([direction, -direction, -change, change])


def solve_chain(
    held: Float[Array, "T d d"], joined: Float[Array, "T d d"], force: Float[Array, "T d"]
) -> Float[Array, "T d"]:
    """Return the points of a chain of springs under forces.

    Args:
        held: N_t, the stiffness that holds point t at zero.
        joined: W_t, the stiffness between the points t - 1 and t; point 0 is held at zero firmly.
        force: on each point.

    >>> one = jnp.ones((2, 1, 1))
    >>> solve_chain(one, one, jnp.array([[0.0], [3.0]])).ravel().round(12).tolist()  # 3 x1 = x2, 2 x2 - x1 = 3
    [0.6, 1.8]
    """
    after = jnp.concatenate([joined[1:], jnp.zeros_like(joined[:1])])

    def eliminate(before, here):
        stiffness, pull = before
        N, W, f = here
        P, p = N + stiffness, f + pull
        return (parallel_sum(P, W), multiply(W, spd_solve(P + W, p))), (P, p)

    start = joined[0], jnp.zeros_like(force[0])
    _, (P, p) = jax.lax.scan(eliminate, start, (held, after, force))

    def substitute(x, here):
        P, W, p = here
        x = x + spd_solve(P + W, p - multiply(P, x))  # where W is large, this is x and a little
        return x, x

    return jax.lax.scan(substitute, jnp.zeros_like(force[0]), (P, after, p), reverse=True)[1]


# nodes(x, parameters) -> (T, d, d), edges(parameters) -> (T, d, d): the Hessian as a chain of springs
Nodes = Callable[[Any, Any], Float[Array, "T d d"]]
Edges = Callable[[Any], Float[Array, "T d d"]]


class _Iterate(eqx.Module):
    x: Float[Array, "T d"]
    slack: Float[Array, "4 T d"]
    dual: Float[Array, "4 T d"]


def _newton(gradient, held, joined, within: RampedPath, at: _Iterate) -> Callable[[Array], _Iterate]:
    """Return the Newton direction as a function of the products of slacks and multipliers to be reached."""
    exists = within.exists
    stiff = jnp.where(exists, at.dual / at.slack, 0.0)
    to_blocks = jax.vmap(jnp.diag)
    held, joined = held + to_blocks(stiff[0] + stiff[1]), joined + to_blocks(stiff[2] + stiff[3])
    missing = jnp.where(exists, within.slack(at.x) - at.slack, 0.0)
    residual = gradient + _slope(at.dual)

    def direction(products) -> _Iterate:
        rise = jnp.where(exists, (products - at.dual * missing) / at.slack - at.dual, 0.0)
        step = solve_chain(held, joined, -residual - _slope(rise))
        slack = jnp.where(exists, missing + _along(step), 0.0)
        dual = jnp.where(exists, (products - at.dual * slack) / at.slack - at.dual, 0.0)
        return _Iterate(step, slack, dual)

    return direction


def _longest(value, change):
    """Return the longest step, at most 1, along which values stay positive."""
    return jnp.min(jnp.where(change < 0, value / jnp.where(change < 0, -change, 1.0), jnp.inf), initial=1.0)


def minimize_ramped_path(
    objective: Objective,
    nodes: Nodes,
    edges: Edges,
    start: Float[Array, "T d"],
    parameters: PyTree,
    within: RampedPath,
) -> BoundedMinimum:
    """Minimise objective(x, parameters), convex, over the paths x (T, d) that obey the constraints.

    Args:
        objective: maps x (T, d) and the parameters to a number.
        nodes: returns the Hessian of each point's own cost, (T, d, d).
        edges: returns the Hessian of the cost of each move, (T, d, d).
        start: (T, d), the first iterate; it need not obey the constraints.
        parameters: any tree; derivatives with respect to it and to `within` are those of the minimiser.
        within: the constraints, some path strictly inside of them.
    """
    found, converged, steps = _iterate(objective, nodes, edges, *jax.lax.stop_gradient((start, parameters, within)))
    found = jax.lax.stop_gradient(found)
    springs = jax.lax.stop_gradient((nodes(found.x, parameters), edges(parameters)))
    last = _newton(jax.grad(objective)(found.x, parameters), *springs, within, found)(found.slack * found.dual)
    return BoundedMinimum(found.x + last.x, converged, steps)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _iterate(objective, nodes, edges, start, parameters, within: RampedPath) -> tuple[_Iterate, Any, Any]:
    exists, eps = within.exists, jnp.finfo(start.dtype).eps
    count = jnp.maximum(jnp.sum(exists), 1)
    gradient, joined = jax.grad(objective), edges(parameters)
    length = jnp.max(within.ramp) + jnp.max(jnp.abs(start - within.first))
    force = jnp.max(jnp.abs(gradient(start, parameters))) + jnp.finfo(start.dtype).tiny

    def mean_product(at: _Iterate):
        return jnp.sum(jnp.where(exists, at.slack * at.dual, 0.0)) / count

    def errors(at: _Iterate):
        """Return how far the optimality conditions are violated, relative to the problem's size."""
        largest = jnp.maximum(force, jnp.max(at.dual))
        slope = jnp.max(jnp.abs(gradient(at.x, parameters) + _slope(at.dual))) / largest
        missing = jnp.max(jnp.where(exists, jnp.abs(within.slack(at.x) - at.slack), 0.0)) / length
        return jnp.maximum(jnp.maximum(slope, missing), mean_product(at) / (largest * length))

    def advance(carry):
        at, steps, off, _ = carry
        direction = _newton(gradient(at.x, parameters), nodes(at.x, parameters), joined, within, at)
        reached = mean_product(at)
        predicted = direction(jnp.zeros_like(at.slack))
        share = jnp.minimum(_longest(at.slack, predicted.slack), _longest(at.dual, predicted.dual))
        tried = jax.tree.map(lambda a, b: a + share * b, at, predicted)
        centring = (mean_product(tried) / reached) ** 3
        step = direction(centring * reached - predicted.slack * predicted.dual)
        share = _TO_BOUNDARY * jnp.minimum(_longest(at.slack, step.slack), _longest(at.dual, step.dual))
        moved = jax.tree.map(lambda a, b: a + jnp.minimum(share, 1.0) * b, at, step)
        left = errors(moved)
        improved = (left < off) | (jnp.isfinite(left) & (off > jnp.sqrt(eps)))  # close to the end rounding takes over
        new, old = (moved, steps + 1, left), (at, steps, off)
        return *jax.tree.map(lambda a, b: jnp.where(improved, a, b), new, old), improved

    def unfinished(carry):
        _, steps, off, improved = carry
        return improved & (steps < _MAX_STEPS) & (off > eps**0.85)

    slack = jnp.where(exists, jnp.maximum(within.slack(start), 0.1 * jnp.min(within.ramp)), 1.0)
    at = _Iterate(start, slack, jnp.where(exists, force, 0.0))
    begin = at, jnp.zeros((), int), errors(at), jnp.ones((), bool)
    at, steps, off, _ = jax.lax.while_loop(unfinished, advance, begin)
    return at, off <= eps**0.6, steps
