"""Minimisation over a path whose points are bounded and change by at most a ramp from step to step.

An interior point method (`interior_point`). The Hessian is that of a chain of springs: one holds each point, one joins it to the
point before. Bounds stiffen the first kind and ramps the second, so that every iteration eliminates a chain, O(T d^3). Springs
in series have no differences in them, so that even the stiffest ones lose no digits.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ecl2o.solvers.bounded_newton import BoundedMinimum, Objective
from ecl2o.solvers.interior_point import AbstractConstraints, minimize_within
from ecl2o.solvers.small_dense import multiply, parallel_sum, spd_solve


class RampedPath(AbstractConstraints):
    """The constraints on a path x (T, d): lower <= x <= upper, |x_t - x_{t-1}| <= ramp where `coupled`, x_0 = `first`."""

    lower: Float[Array, "T d"]
    upper: Float[Array, "T d"]
    first: Float[Array, " d"]
    ramp: Float[Array, " d"]
    coupled: Bool[Array, " T"]

    def slack(self, x: Float[Array, "T d"]) -> Float[Array, "4 T d"]:
        change = jnp.diff(x, axis=0, prepend=self.first[None])
        return jnp.stack([x - self.lower, self.upper - x, self.ramp - change, self.ramp + change])

    @property
    def exists(self) -> Bool[Array, "4 T d"]:
        ramps = jnp.broadcast_to(self.coupled[:, None], self.lower.shape)
        return jnp.stack([jnp.isfinite(self.lower), jnp.isfinite(self.upper), ramps, ramps])

    @property
    def price(self) -> None:
        return None

    @property
    def room(self) -> Float[Array, ""]:
        return jnp.max(self.ramp)

    def along(self, direction: Float[Array, "T d"]) -> Float[Array, "4 T d"]:
        change = jnp.diff(direction, axis=0, prepend=jnp.zeros_like(direction[:1]))
        return jnp.stack([direction, -direction, -change, change])

    def pull(self, dual: Float[Array, "4 T d"]) -> Float[Array, "T d"]:
        ramps = dual[3] - dual[2]
        return dual[0] - dual[1] + ramps - jnp.concatenate([ramps[1:], jnp.zeros_like(ramps[:1])])


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
    return minimize_within(objective, _ChainSolver(nodes, edges), start, parameters, within)


class _ChainSolver(NamedTuple):  # two of equal functions are equal, so that programs are compiled once
    nodes: Nodes
    edges: Edges

    def __call__(self, x, parameters, within: RampedPath, stiff: Float[Array, "4 T d"]) -> Callable[[Array], Array]:
        to_blocks = jax.vmap(jnp.diag)
        held = self.nodes(x, parameters) + to_blocks(stiff[0] + stiff[1])
        return partial(solve_chain, held, self.edges(parameters) + to_blocks(stiff[2] + stiff[3]))
