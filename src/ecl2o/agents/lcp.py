"""Lazy Capacity Provisioning: move only when staying could not have been part of any optimum."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.linear_switching import prefix_bounds
from ecl2o.planning.optimal_path import movement_hessian
from ecl2o.problem import Problem
from ecl2o.solvers.bounded_newton import minimize_sequence


class Prefix(eqx.Module):
    """x_0 and the contexts so far."""

    x0: Float[Array, " 1"]
    contexts: Float[Array, "T q"]


class LCP(AbstractAgent):
    """Lazy Capacity Provisioning (Lin et al. 2011), d = 1: x_t is x_{t-1} clipped to [x^L_t, x^U_t].

    x^L_t and x^U_t are the last actions of the cheapest paths through the contexts so far, when only increases, or only
    decreases, are charged. With `LinearSwitching` the offline optimum lies between them and LCP is 3-competitive. With squared
    movement it does not (from x_0 = 0 through y = (0, 1000), both bounds of the first step are 0 and the optimum is not), and
    LCP has no bound. It keeps all contexts, so a step takes time in proportion to the horizon.

    Args:
        heuristic: whether to accept squared movement, where nothing is promised. Default: False.

    Raises:
        NotApplicableError: at the start of a run with d > 1, without a horizon, or with squared movement and no `heuristic`.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.LinearSwitching(0.25))
    >>> round(float(ec.rollout(LCP(), problem, ec.Instance([0.0], [[1.0]])).actions[0, 0]), 4)
    0.5
    """

    heuristic: bool = eqx.field(static=True, default=False)

    def init(self, problem: Problem, start: Start) -> Prefix:
        if start.dim != 1:
            raise NotApplicableError(f"LCP is for actions of one number, but x0 has dimension {start.dim}.")
        if start.horizon is None:
            raise NotApplicableError("LCP needs a horizon; without one, use Periodic(LCP(), period).")
        if not problem.switching.is_distance:
            _ = problem.quadratic_movement  # rejects any third kind
            if not self.heuristic:
                raise NotApplicableError(
                    f"LCP needs LinearSwitching, got {type(problem.switching).__name__}; LCP(heuristic=True) accepts it."
                )
        return Prefix(start.x0, jnp.zeros((start.horizon, start.history.shape[1]), start.x0.dtype))

    def step(self, problem: Problem, state: Prefix, observation: Observation):
        now = observation.step
        state = Prefix(state.x0, state.contexts.at[now].set(observation.context))
        # Future contexts are filled with the present one; they have no influence.
        known = jnp.where((jnp.arange(state.contexts.shape[0]) <= now)[:, None], state.contexts, observation.context)
        lower, upper, converged = _find_bounds(problem, state.x0, known, now)
        details = {"lower": lower, "upper": upper}
        return state, jnp.clip(observation.previous_action, lower, upper), Info(converged, details=details)


def _find_bounds(
    problem: Problem, x0, contexts, last: Int[Array, ""]
) -> tuple[Float[Array, " 1"], Float[Array, " 1"], Bool[Array, ""]]:
    """Return x^L, x^U and whether the solves converged: with squared movement, of two paths where one direction costs."""
    if problem.switching.is_distance:
        return *prefix_bounds(problem, x0, contexts, last), jnp.ones((), bool)
    horizon = contexts.shape[0]
    weights = (jnp.arange(horizon) <= last).astype(x0.dtype)
    bounds = [jnp.broadcast_to(bound, (horizon, 1)) for bound in problem.actions.bounds(1, x0.dtype)]

    def last_action(direction):
        parameters, guess = (problem, x0, contexts, weights, direction), jnp.broadcast_to(x0, (horizon, 1))
        path = minimize_sequence(_one_way_cost, _one_way_curvature, guess, parameters, *bounds)
        return path.x[last], path.converged

    ends, converged = jax.vmap(last_action)(jnp.array([1.0, -1.0], x0.dtype))
    return ends[0], ends[1], converged.all()


def _charged_moves(path, x0, direction):
    """Return the moves in the direction that costs, zero for the others."""
    return jnp.maximum(direction * (path - jnp.concatenate([x0[None], path[:-1]])), 0.0)


def _one_way_cost(path, parameters):
    problem, x0, contexts, weights, direction = parameters
    hitting = jax.vmap(problem.hitting)(path, contexts)
    moves = _charged_moves(path, x0, direction)[:, 0]
    return jnp.sum(hitting) + jnp.sum(weights * problem.Q[0, 0] * moves**2)


def _one_way_curvature(path, parameters):
    problem, x0, contexts, weights, direction = parameters
    active = weights * (_charged_moves(path, x0, direction)[:, 0] > 0)
    diagonal, below = movement_hessian(problem.Q, active)
    return diagonal + jax.vmap(problem.hitting.hessian)(path, contexts), below
