"""Lazy Capacity Provisioning: move only when staying could not have been part of any optimum."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.linear_switching import prefix_bounds
from ecl2o.planning.optimal_path import movement_hessian
from ecl2o.problem import LinearSwitching, Problem
from ecl2o.solvers.bounded_newton import minimize_sequence

Interval = tuple[Float[Array, " 1"], Float[Array, " 1"], Bool[Array, ""]]


class Prefix(eqx.Module):
    """What the bounds are made of: x_0 and the contexts so far."""

    x0: Float[Array, " 1"]
    contexts: Float[Array, "T q"]


class LCP(AbstractAgent):
    """Lazy Capacity Provisioning (Lin et al. 2011), d = 1: x_t is x_{t-1} clipped to [x^L_t, x^U_t].

    x^L_t and x^U_t are the last actions of the cheapest paths through the contexts so far, when only increases, or only
    decreases, are charged. With `LinearSwitching` the offline optimum lies between them and LCP is 3-competitive. With squared
    movement it does not (from x_0 = 0 through y = (0, 1000), both bounds of the first step are 0 and the optimum is not), and
    nothing is promised; `heuristic=True` says that this is understood.

    It keeps all contexts, so the horizon must be known; a step takes time in proportion to it.

    Args:
        heuristic: play on with squared movement, where nothing is promised. Default: false.
    """

    heuristic: bool = eqx.field(static=True, default=False)

    def init(self, problem: Problem, start: Start) -> Prefix:
        if start.dim != 1:
            raise NotApplicableError(f"LCP lives on a line, but x0 has dimension {start.dim}.")
        if start.horizon is None:
            raise NotApplicableError(
                "LCP keeps the contexts of the whole run and needs to know the horizon; for runs without an end there is "
                "Periodic(LCP(), period, keeps='history'), which restarts every period."
            )
        if not isinstance(problem.switching, LinearSwitching):
            _ = problem.quadratic_movement  # rejects any third kind
            if not self.heuristic:
                raise NotApplicableError(
                    "LCP is 3-competitive with LinearSwitching only; to use it as a heuristic with "
                    f"{type(problem.switching).__name__} say LCP(heuristic=True)."
                )
        return Prefix(start.x0, jnp.zeros((start.horizon, start.history.shape[1]), start.x0.dtype))

    def step(self, problem: Problem, state: Prefix, observation: Observation):
        now = observation.step
        state = Prefix(state.x0, state.contexts.at[now].set(observation.context))
        # contexts to come are not known: this one stands for them and has no influence
        known = jnp.where((jnp.arange(state.contexts.shape[0]) <= now)[:, None], state.contexts, observation.context)
        lower, upper, converged = _bounds_for(problem)(problem, state.x0, known, now)
        details = {"lower": lower, "upper": upper}
        return state, jnp.clip(observation.previous_action, lower, upper), Info(converged, details=details)


def _bounds_for(problem: Problem) -> Callable[..., Interval]:
    return _bounds_of_linear if isinstance(problem.switching, LinearSwitching) else _bounds_of_squared


def _bounds_of_linear(problem: Problem, x0, contexts, last: Int[Array, ""]) -> Interval:
    return *prefix_bounds(problem, x0, contexts, last), jnp.ones((), bool)


def _bounds_of_squared(problem: Problem, x0, contexts, last: Int[Array, ""]) -> Interval:
    """The same with squared movement: two path problems in which only one direction costs."""
    horizon = contexts.shape[0]
    weights = (jnp.arange(horizon) <= last).astype(x0.dtype)
    bounds = [jnp.broadcast_to(bound, (horizon, 1)) for bound in problem.actions.bounds(1, x0.dtype)]

    def last_action(direction):
        parameters = (problem, x0, contexts, weights, direction)
        path = minimize_sequence(
            _one_way_cost, _one_way_curvature, jnp.broadcast_to(x0, (horizon, 1)), parameters, *bounds
        )
        return path.x[last], path.converged

    ends, converged = jax.vmap(last_action)(jnp.array([1.0, -1.0], x0.dtype))
    return ends[0], ends[1], converged.all()


def _charged(path, x0, direction):
    """Moves in the direction that costs, zero for the others."""
    return jnp.maximum(direction * (path - jnp.concatenate([x0[None], path[:-1]])), 0.0)


def _one_way_cost(path, parameters):
    problem, x0, contexts, weights, direction = parameters
    hitting = jax.vmap(problem.hitting)(path, contexts)
    moves = _charged(path, x0, direction)[:, 0]
    return jnp.sum(hitting) + jnp.sum(weights * problem.Q[0, 0] * moves**2)


def _one_way_curvature(path, parameters):
    problem, x0, contexts, weights, direction = parameters
    active = weights * (_charged(path, x0, direction)[:, 0] > 0)
    diagonal, below = movement_hessian(problem.Q, active)
    return diagonal + jax.vmap(problem.hitting.hessian)(path, contexts), below
