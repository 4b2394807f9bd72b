"""Lazy Adaptive Interpolation: the optimal policy where the best action is a martingale."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import Problem
from ecl2o.solvers.small_dense import solve


class LAI(AbstractAgent):
    """Lazy Adaptive Interpolation (Bhuyan, Mukherjee and Wierman 2023), for costs 1/2 (x - v_t)' A (x - v_t), A constant.

    x_t = C_t x_{t-1} + (I - C_t) v_t, with C_T = (A + 2Q)^{-1} 2Q and C_t = (A + 4Q - 2Q C_{t+1})^{-1} 2Q. It plans as if v_t
    stayed where it is until T. Of all online algorithms it has the least expected cost when v_t is a martingale.

    Raises:
        NotApplicableError: at the start of a run with other costs, with bounds, or without a horizon.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=1))
    >>> ec.rollout(LAI(), problem, ec.Instance([0.0], [[1.0]])).actions.tolist()
    [[0.5]]
    """

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic

    def init(self, problem: Problem, start: Start) -> Float[Array, "T d d"]:
        hitting = problem.hitting
        if not hitting.constant_curvature:
            raise NotApplicableError(f"LAI needs a quadratic cost of constant curvature, got {type(hitting).__name__}.")
        if problem.is_bounded:
            raise NotApplicableError(f"LAI needs unbounded actions, got {type(problem.actions).__name__}.")
        if start.horizon is None:
            raise NotApplicableError("LAI needs to know the horizon; give one, or use RHC with persistence forecasts.")
        return _interpolation_matrices(hitting.curvature(None, start.dim), problem.Q, start.horizon)

    def step(self, problem: Problem, state: Float[Array, "T d d"], observation: Observation):
        previous = observation.previous_action
        centre = problem.hitting.centre(observation.context, previous.shape[0])
        return state, centre + state[observation.place] @ (previous - centre), Info.plain()


def _interpolation_matrices(A: Float[Array, "d d"], Q: Float[Array, "d d"], horizon: int) -> Float[Array, "T d d"]:
    """Return C_1..C_T; the recursion for C_T is the general one with C_{T+1} = I."""

    def back(later, _):
        now = solve(A + 4 * Q - 2 * Q @ later, 2 * Q)
        return now, now

    identity = jnp.eye(A.shape[0], dtype=A.dtype)
    return jax.lax.scan(back, identity, None, length=horizon, reverse=True)[1]
