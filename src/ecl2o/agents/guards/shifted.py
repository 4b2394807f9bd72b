"""`Competitive` on a `ShiftedProblem`: the guard of linear dynamics, with everything measured from the latest action.

The problem does not change if all contexts and actions are moved by the same amount. So states, contexts and the centre of the
past are taken relative to the latest action, and no large numbers cancel.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.agents.guards.control import CompetitiveControl, ControlGuardState
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import ControlProblem, ShiftedProblem
from ecl2o.theory.control import Past


class GivenAdvice(AbstractAgent):
    """An agent whose next action is known."""

    action: Float[Array, " d"]

    def init(self, problem: ControlProblem, start: Start) -> None:
        return None

    def step(self, problem: ControlProblem, state: None, observation: Observation):
        return state, self.action, Info.plain()


def guard_shifted(guard: Any, problem: ShiftedProblem, advice: Float[Array, " d"] | None = None) -> CompetitiveControl:
    """Return the guard of the linear dynamics with the numbers of a `Competitive`, around advice that is known.

    With a delay later contexts can make every state free, so that promises at every step and at the end are the same.
    """
    around = GivenAdvice(jnp.zeros(problem.Q.shape[0], problem.Q.dtype) if advice is None else advice)
    terms = {"ratio": guard.ratio, "horizon": guard.horizon, "allowance": guard.allowance}
    return CompetitiveControl(around, every_prefix=problem.shift > 0, **terms)


def check_shifted(guard: Any, problem: ShiftedProblem, start: Start) -> None:
    """Reject problems that do not fit, and ratios that cannot be promised."""
    if guard.contexts is not None or guard.weights is not None:
        raise NotApplicableError(
            "with a delay, or contexts known ahead, a promise covers neither bounds (of actions or contexts) nor weights."
        )
    guard_shifted(guard, problem).check(problem.control, _shift_start(problem, start))


def restart_shifted(guard: Any, problem: ShiftedProblem, start: Start, inner: State) -> ControlGuardState:
    """Return the state at the start of a promise, around the state of the agent inside."""
    state = guard_shifted(guard, problem).init(problem.control, _shift_start(problem, start))
    return dataclasses.replace(state, inner=inner)


def step_shifted(
    guard: Any,
    problem: ShiftedProblem,
    state: ControlGuardState,
    observation: Observation,
    inner_state: State,
    advice: Float[Array, " d"],
    inner: Info,
) -> tuple[ControlGuardState, Float[Array, " d"], Info]:
    """Play the advice as far as the promise allows."""
    position, origin = problem.control_state(observation.previous_action), observation.previous_action[: len(advice)]
    everywhere = jnp.tile(origin, len(position) // len(origin))
    assert isinstance(state.reference, Past)
    near = dataclasses.replace(state, inner=None, reference=_move(state.reference, -everywhere))
    seen = dataclasses.replace(
        observation, previous_action=position - everywhere, context=observation.context[: len(origin)] - origin
    )
    after, action, info = guard_shifted(guard, problem, advice - origin).step(problem.control, near, seen)
    assert isinstance(after.reference, Past)
    after = dataclasses.replace(after, inner=inner_state, reference=_move(after.reference, everywhere))
    action = jnp.where(info.details["active"], action + origin, advice)  # allowed advice is played to the last bit
    return after, action, Info(info.converged & inner.converged, advice, info.details, inner)


def _shift_start(problem: ShiftedProblem, start: Start) -> Start:
    return dataclasses.replace(start, x0=problem.control_state(start.x0))


def _move(past: Past, by: Float[Array, " n"]) -> Past:
    return Past(past.covariance, past.centre + by)
