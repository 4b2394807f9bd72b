"""The optimal policy where the best action wanders without drift."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import AbstractQuadraticCost, Problem


class LAI(AbstractAgent):
    """Lazy Adaptive Interpolation (Bhuyan, Mukherjee and Wierman 2023), for costs 1/2 (x - v_t)' A (x - v_t) with constant A.

    x_t = C_t x_{t-1} + (I - C_t) v_t, with C_T = (A + 2Q)^{-1} 2Q and C_t = (A + 4Q - 2Q C_{t+1})^{-1} 2Q. Of all online
    algorithms it has the least expected cost when v_t is a martingale, as it plans as if v_t stayed where it is until T.
    The horizon must be known and the action set unbounded.
    """

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic

    def init(self, problem: Problem, start: Start) -> Float[Array, "T d d"]:
        hitting = problem.hitting
        if not (isinstance(hitting, AbstractQuadraticCost) and hitting.constant_curvature):
            raise NotApplicableError(
                f"LAI needs a quadratic hitting cost of constant curvature, got {type(hitting).__name__}."
            )
        if problem.is_bounded:
            raise NotApplicableError(f"LAI needs unbounded actions, got {type(problem.actions).__name__}.")
        if start.horizon is None:
            raise NotApplicableError("LAI needs to know the horizon; give one, or use RHC with persistence forecasts.")
        return interpolation(hitting.curvature(None, start.dim), problem.Q, start.horizon)

    def step(self, problem: Problem, state: Float[Array, "T d d"], observation: Observation):
        hitting, previous = problem.hitting, observation.previous_action
        assert isinstance(hitting, AbstractQuadraticCost)
        centre = hitting.centre(observation.context, previous.shape[0])
        return state, centre + state[observation.step] @ (previous - centre), Info.plain()


def interpolation(A: Float[Array, "d d"], Q: Float[Array, "d d"], horizon: int) -> Float[Array, "T d d"]:
    """C_1..C_T; the recursion for C_T is the general one with C_{T+1} = I.

    >>> import jax.numpy as jnp
    >>> [round(float(c), 4) for c in interpolation(jnp.eye(1), 5 * jnp.eye(1), 2).ravel()]
    [0.8397, 0.9091]
    """

    def back(later, _):
        now = jnp.linalg.solve(A + 4 * Q - 2 * Q @ later, 2 * Q)
        return now, now

    identity = jnp.eye(A.shape[0], dtype=A.dtype)
    return jax.lax.scan(back, identity, None, length=horizon, reverse=True)[1]
