"""Minimisation of a smooth convex function under linear inequalities, differentiably.

Mehrotra's predictor-corrector method (a primal-dual interior point). A kind of problem says what its constraints are, and solves
the Newton system in which each of them adds a stiffness. Constraints may have a price: they then give way at that cost for each
unit, so that there is a minimiser even where they contradict each other. Where the price exceeds all multipliers, it is the one
that obeys them. The minimiser is differentiated through one further Newton step, which is the implicit function theorem at the
solution.
"""

import abc
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ecl2o.solvers.bounded_newton import BoundedMinimum, Objective

_MAX_STEPS = 60
_PATIENCE = 4  # steps without progress after which the best iterate is returned: rounding has taken over
_TO_BOUNDARY = 0.995  # share of the way to the nearest constraint that a step goes


class AbstractConstraints(eqx.Module):
    """The constraints slack(x) >= 0 on an array x, one slack for each constraint; `slack` is affine."""

    @property
    @abc.abstractmethod
    def exists(self) -> Bool[Array, "*c"]:
        """Which constraints there are."""

    @property
    @abc.abstractmethod
    def price(self) -> Float[Array, "*c"] | None:
        """What a unit of violation costs, infinite where there must be none; None if that is everywhere."""

    @property
    @abc.abstractmethod
    def room(self) -> Float[Array, ""]:
        """How much room constraints leave, as a length."""

    @abc.abstractmethod
    def slack(self, x: Float[Array, "*x"]) -> Float[Array, "*c"]:
        """Return how far x is inside each of the constraints."""

    @abc.abstractmethod
    def along(self, direction: Float[Array, "*x"]) -> Float[Array, "*c"]:
        """Return the change of the slacks along a direction."""

    @abc.abstractmethod
    def pull(self, dual: Float[Array, "*c"]) -> Float[Array, "*x"]:
        """Return the transpose of `along` times the multipliers: minus what they add to the gradient."""


# solver(x, parameters, within, stiffness of each constraint) -> (force on x -> the Newton step)
Solver = Callable[[Any, Any, Any, Any], Callable[[Any], Float[Array, "*x"]]]


class _Iterate(eqx.Module):
    x: Float[Array, "*x"]
    slack: Float[Array, "*c"]
    dual: Float[Array, "*c"]
    given: Float[Array, "*c"] | None  # by how much a constraint gives way; None if none does


def _to_price(within: AbstractConstraints, dual):
    """Return which constraints give way, and how far their multipliers are below the price, 1 at others."""
    price = jnp.inf if within.price is None else within.price
    gives = within.exists & jnp.isfinite(price)
    return gives, jnp.where(gives, price - dual, 1.0)


def _newton(gradient, solver: Callable, within: AbstractConstraints, at: _Iterate) -> Callable[..., _Iterate]:
    """Return the Newton direction as a function of the products of slacks and multipliers to be reached.

    A constraint that gives way is a spring in series with another one.
    """
    exists = within.exists
    multiplier = jnp.where(exists, at.dual, 1.0)
    softness = at.slack / multiplier
    missing = within.slack(at.x) - at.slack
    gives, below = _to_price(within, at.dual)
    if at.given is not None:
        softness, missing = softness + jnp.where(gives, at.given / below, 0.0), missing + at.given
    missing = jnp.where(exists, missing, 0.0)
    residual, solve = gradient - within.pull(at.dual), solver(jnp.where(exists, 1 / softness, 0.0))

    def direction(products, products_of_given=0.0) -> _Iterate:
        strained = products / multiplier - at.slack - missing
        if at.given is not None:
            strained -= jnp.where(gives, products_of_given / below - at.given, 0.0)
        step = solve(-residual + within.pull(jnp.where(exists, strained / softness, 0.0)))
        dual = jnp.where(exists, (strained - within.along(step)) / softness, 0.0)
        slack = jnp.where(exists, (products - at.slack * dual) / multiplier - at.slack, 0.0)
        if at.given is None:
            return _Iterate(step, slack, dual, None)
        given = jnp.where(gives, (products_of_given + at.given * dual) / below - at.given, 0.0)
        return _Iterate(step, slack, dual, given)

    return direction


def _longest(value, change):
    """Return the longest step, at most 1, along which values stay positive."""
    return jnp.min(jnp.where(change < 0, value / jnp.where(change < 0, -change, 1.0), jnp.inf), initial=1.0)


def minimize_within(
    objective: Objective,
    solver: Solver,
    start: Float[Array, "*x"],
    parameters: PyTree,
    within: AbstractConstraints,
    power: float = 0.6,
) -> BoundedMinimum:
    """Minimise objective(x, parameters), convex, over the x that obey the constraints.

    Args:
        objective: maps x and the parameters to a number.
        solver: solves the Newton system: the objective's Hessian plus each constraint's stiffness.
        start: the first iterate; it need not obey the constraints.
        parameters: any tree; derivatives with respect to it and to `within` are those of the minimiser.
        within: the constraints. Some x must be strictly inside of those without a price.
        power: the solve has converged where optimality conditions are violated by less than eps ** power of the problem's size.
    """
    found, off, steps = _iterate(objective, solver, *jax.lax.stop_gradient((start, parameters, within)))
    found = jax.lax.stop_gradient(found)
    fixed = partial(solver, found.x, *jax.lax.stop_gradient((parameters, within)))
    kept = () if found.given is None else (found.given * _to_price(jax.lax.stop_gradient(within), found.dual)[1],)
    last = _newton(jax.grad(objective)(found.x, parameters), fixed, within, found)(found.slack * found.dual, *kept)
    return BoundedMinimum(found.x + last.x, off <= jnp.finfo(start.dtype).eps ** power, steps)


@partial(jax.jit, static_argnums=(0, 1))
def _iterate(objective, solver, start, parameters, within: AbstractConstraints) -> tuple[_Iterate, Any, Any]:
    exists, eps = within.exists, jnp.finfo(start.dtype).eps
    gradient, room = jax.grad(objective), within.room
    length = room + jnp.max(jnp.where(exists, -within.slack(start), 0.0), initial=0.0)
    force = jnp.max(jnp.abs(gradient(start, parameters))) + jnp.finfo(start.dtype).tiny

    def products(at: _Iterate):
        """Return the products of slacks and multipliers, and those of what is given and the way to the price."""
        own = jnp.where(exists, at.slack * at.dual, 0.0)
        if at.given is None:
            return own, jnp.zeros(())
        gives, below = _to_price(within, at.dual)
        return own, jnp.where(gives, at.given * below, 0.0)

    def mean_product(at: _Iterate):
        count = jnp.sum(exists) + (0 if at.given is None else jnp.sum(_to_price(within, at.dual)[0]))
        own, given = products(at)
        return (jnp.sum(own) + jnp.sum(given)) / jnp.maximum(count, 1)

    def errors(at: _Iterate):
        """Return how far the optimality conditions are violated, relative to the problem's size."""
        largest = jnp.maximum(force, jnp.max(at.dual))
        slope = jnp.max(jnp.abs(gradient(at.x, parameters) - within.pull(at.dual))) / largest
        given = 0.0 if at.given is None else at.given
        missing = jnp.max(jnp.where(exists, jnp.abs(within.slack(at.x) + given - at.slack), 0.0)) / length
        return jnp.maximum(jnp.maximum(slope, missing), mean_product(at) / (largest * length))

    def longest(at: _Iterate, step: _Iterate):
        share = jnp.minimum(_longest(at.slack, step.slack), _longest(at.dual, step.dual))
        if at.given is None:
            return share
        gives, below = _to_price(within, at.dual)
        return jnp.minimum(
            share, jnp.minimum(_longest(at.given, step.given), _longest(below, jnp.where(gives, -step.dual, 0.0)))
        )

    def advance(carry):
        at, steps, best, off, idle = carry
        solve = partial(solver, at.x, parameters, within)
        direction = _newton(gradient(at.x, parameters), solve, within, at)
        reached = mean_product(at)
        predicted = direction(jnp.zeros_like(at.slack))
        share = longest(at, predicted)
        tried = jax.tree.map(lambda a, b: a + share * b, at, predicted)
        centred = (mean_product(tried) / reached) ** 3 * reached
        bent = () if predicted.given is None else (centred + predicted.given * predicted.dual,)
        step = direction(centred - predicted.slack * predicted.dual, *bent)
        share = _TO_BOUNDARY * longest(at, step)
        moved = jax.tree.map(lambda a, b: a + jnp.minimum(share, 1.0) * b, at, step)
        left = errors(moved)
        better = left < off
        best, off = jax.tree.map(lambda a, b: jnp.where(better, a, b), (moved, left), (best, off))
        return moved, steps + 1, best, off, jnp.where(better, 0, jnp.where(jnp.isfinite(left), idle + 1, _PATIENCE))

    def unfinished(carry):
        _, steps, _, off, idle = carry
        return (idle < _PATIENCE) & (steps < _MAX_STEPS) & (off > eps**0.85)

    slack = jnp.where(exists, jnp.maximum(within.slack(start), 0.1 * room), 1.0)
    dual, given = jnp.broadcast_to(force, slack.shape), None
    if within.price is not None:
        gives = exists & jnp.isfinite(within.price)
        dual = jnp.where(gives, jnp.minimum(force, 0.5 * within.price), dual)
        given = jnp.where(gives, jnp.maximum(slack - within.slack(start), 0.1 * room), 0.0)
    at = _Iterate(start, slack, jnp.where(exists, dual, 0.0), given)
    begin = at, jnp.zeros((), int), at, errors(at), jnp.zeros((), int)
    _, steps, best, off, _ = jax.lax.while_loop(unfinished, advance, begin)
    return best, off, steps
