"""Switch between machine learning and an expert, each on a trajectory of its own."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.agents.calibrator import ROBD
from ecl2o.agents.wrappers import Independent, PureML
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_float, as_optional_float, check_finite, check_positive, concrete_value


class SwitchState(eqx.Module):
    """The two legs (0: ML, 1: expert), the level, and the limit that belongs to it."""

    legs: tuple[State, State]
    level: Int[Array, ""]
    limit: Float[Array, ""]


class Switch(AbstractAgent):
    """The agent that follows advice until it costs too much, then the expert, and so on (Antoniadis et al. 2020, MIN^det).

    The advisor and the expert run from x_0 on trajectories of their own, with costs C^0 and C^1 that include this step.
    At level l = 0, 1, ... leg l mod 2 is played. `mode="threshold"` goes up a level while C^(l mod 2) > Gamma gamma^l;
    `mode="ratio"` does so while the leg's cost exceeds gamma^(l + 1) times the other's. In mode threshold the cost is at most
    `theory.switch_bound` times the smaller of the two, if that is at least Gamma; with the default Gamma > 0 always. Where
    rounding makes gamma 1 inside a compiled program, steps count as not converged. `Info.details` has `level` and `costs`.

    Args:
        advisor: the leg that is followed first.
        expert: the other leg. Default: `ROBD()`.
        gamma: the factor from level to level, more than 1. Default: 1.5.
        threshold: Gamma, positive, in units of cost. Default: the expert's cost of the first step, which needs no units.
        mode: "threshold" or "ratio". Default: "threshold".

    Raises:
        ValueError: if a number is out of its range, or if a threshold is given with mode="ratio".

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=1))
    >>> run = ec.rollout(Switch(ec.advisors.Fixed([[9.0], [9.0]])), problem, ec.Instance([0.0], [[1.0], [1.0]]))
    >>> bool(run.actions[0, 0] < 1)  # bad advice is dropped at once
    True
    """

    advisor: AbstractAgent
    expert: AbstractAgent = eqx.field(default_factory=ROBD)
    gamma: Float[Array, ""] = eqx.field(converter=as_float, default=1.5)
    threshold: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)
    mode: Literal["threshold", "ratio"] = eqx.field(static=True, default="threshold")

    def __check_init__(self):
        if self.mode not in ("threshold", "ratio"):
            raise ValueError(f"mode must be 'threshold' or 'ratio', got {self.mode!r}.")
        check_finite("gamma", self.gamma)
        gamma = concrete_value(self.gamma)
        if gamma is not None and not (gamma > 1).all():
            raise ValueError(f"gamma must exceed 1, got {gamma}.")
        if self.threshold is not None:
            check_positive("threshold", self.threshold)
            if self.mode == "ratio":
                raise ValueError("threshold has no meaning with mode='ratio'.")

    @property
    def _legs(self) -> tuple[Independent, Independent]:
        return Independent(PureML(self.advisor)), Independent(self.expert)

    def init(self, problem: Problem, start: Start) -> SwitchState:
        ml, expert = (leg.init(problem, start) for leg in self._legs)
        return SwitchState((ml, expert), jnp.zeros((), int), jnp.zeros((), start.x0.dtype))

    def step(self, problem: Problem, state: SwitchState, observation: Observation):
        ml, expert = self._legs
        ml_state, ml_action, ml_info = ml.step(problem, state.legs[0], observation)
        expert_state, expert_action, expert_info = expert.step(problem, state.legs[1], observation)
        costs = jnp.stack([ml_info.details["cost"], expert_info.details["cost"]])
        limit = jnp.where(observation.step == 0, self._first_limit(costs), state.limit)
        level, limit = self._climb(costs, state.level, limit)
        action = jnp.where(level % 2 == 0, ml_action, expert_action)
        details = {"level": level, "costs": costs, "expert": expert_info}
        converged = ml_info.converged & expert_info.converged & (self.gamma > 1)
        return SwitchState((ml_state, expert_state), level, limit), action, Info(converged, ml_action, details, ml_info)

    def _first_limit(self, costs: Float[Array, " 2"]) -> Float[Array, ""]:
        if self.mode == "ratio":
            return self.gamma
        if self.threshold is not None:
            return self.threshold
        return jnp.maximum(costs[1], jnp.finfo(costs.dtype).tiny)

    def _climb(self, costs: Float[Array, " 2"], level: Int[Array, ""], limit: Float[Array, ""]):
        """Go up while the leg is too expensive and its limit grows; without derivatives, as a level is a count."""
        costs, limit, gamma = jax.lax.stop_gradient((costs, limit, self.gamma))

        def is_too_expensive(carry):
            level, limit = carry
            cost = costs[level % 2]
            largest = limit if self.mode == "threshold" else limit * costs[1 - level % 2]
            return (cost > largest) & (limit * gamma > limit)

        def go_up(carry):
            level, limit = carry
            return level + 1, limit * gamma

        return jax.lax.while_loop(is_too_expensive, go_up, (level, limit))
