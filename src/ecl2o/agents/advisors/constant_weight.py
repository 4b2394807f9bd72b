"""Advice for changing weights, from an agent that knows one constant weight."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State, check_fields
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import CurvedTracking, Mahalanobis, Problem, SquaredTracking
from ecl2o.problem.arrays import as_float, check_finite, check_positive
from ecl2o.solvers.small_dense import multiply, spd_solve
from ecl2o.theory import limit_stiffness


class ConstantWeightState(eqx.Module):
    """The agent's state, and K: how stiff its choice is, 2Q + usual I + S."""

    inner: State
    stiffness: Float[Array, "d d"]


class ConstantWeight(AbstractAgent):
    """An agent for a constant weight, in a problem where weights change: the present one counts as it is, later ones as usual.

    The agent inside runs in the problem with f = usual/2 |x - y|^2 and sees no weights. In that problem the cost of an action
    is quadratic around the advice xbar, with curvature K = 2Q + usual I + S, S being the stiffness of a future without an end. A
    present weight w adds (w - usual)/2 |x - y|^2, and the least of the sum is

        x = (K + (w - usual) I)^-1 (K xbar + (w - usual) y).

    Where the agent inside plans exactly and all later weights are the usual one, so does this one.

    Args:
        agent: the advisor for the usual weight.
        usual: that weight, positive, such as the mean of past weights. Default: 1.
    """

    agent: AbstractAgent
    usual: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)

    def __check_init__(self):
        check_finite("usual", self.usual)
        check_positive("usual", self.usual)

    def check(self, problem: Problem, start: Start) -> None:
        check_fields(self)
        self.agent.check(self._usual_problem(problem), _without_weights(start))

    def init(self, problem: Problem, start: Start) -> ConstantWeightState:
        usual = self._usual_problem(problem)
        A, G = self.usual * jnp.eye(start.dim, dtype=start.x0.dtype), 2 * problem.Q
        return ConstantWeightState(self.agent.init(usual, _without_weights(start)), G + A + limit_stiffness(A, G))

    def step(self, problem: Problem, state: ConstantWeightState, observation: Observation):
        forecast, dim = observation.forecast, observation.previous_action.shape[0]
        known, coming = (None if each is None else _drop_weights(each, dim) for each in (observation.context, forecast))
        seen = dataclasses.replace(observation, context=known, forecast=coming)
        inner_state, advice, inner = self.agent.step(self._usual_problem(problem), state.inner, seen)
        target = observation.context[:dim]
        more = problem.hitting.hessian(advice, observation.context) - self.usual * jnp.eye(dim, dtype=advice.dtype)
        action = advice + spd_solve(state.stiffness + more, multiply(more, target - advice))
        return ConstantWeightState(inner_state, state.stiffness), action, Info(inner.converged, advice, {}, inner)

    def _usual_problem(self, problem: Problem) -> Problem:
        """The same with the usual weight at every step."""
        if not (isinstance(problem.hitting, CurvedTracking) and isinstance(problem.switching, Mahalanobis)):
            found = f"{type(problem.hitting).__name__} and {type(problem.switching).__name__}"
            raise NotApplicableError(f"ConstantWeight is for CurvedTracking with quadratic movement, got {found}.")
        return weigh_equally(problem, self.usual.astype(problem.hitting.minimum.dtype))


def weigh_equally(problem: Problem, weight: Float[Array, ""]) -> Problem:
    """Return the same problem with one weight for all misses."""
    return Problem(SquaredTracking(weight, covariates=problem.covariates), problem.switching, problem.actions)


def _without_weights(start: Start) -> Start:
    return dataclasses.replace(start, history=_drop_weights(start.history, start.dim))


def _drop_weights(contexts: Float[Array, "*n q"], dim: int) -> Float[Array, "*n r"]:
    return jnp.concatenate([contexts[..., :dim], contexts[..., dim + 1 :]], axis=-1)
