"""`Competitive` with a delay or contexts known ahead: the guard of linear dynamics, all measured from the latest action.

The problem does not change if all contexts and actions are moved by the same amount. So states, contexts and the centre of the
past are taken relative to the latest action, and no large numbers cancel.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.agents.guards.control import CompetitiveControl, ControlGuardState, Controls, play_chosen
from ecl2o.agents.guards.limited import round_inside
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import ControlProblem, Limited, Problem
from ecl2o.theory.control import Past, largest_control_shape


class GivenAdvice(AbstractAgent):
    """An agent whose next action is known."""

    action: Float[Array, " d"]

    def init(self, problem: ControlProblem, start: Start) -> None:
        return None

    def step(self, problem: ControlProblem, state: None, observation: Observation):
        return state, self.action, Info.plain()


def guard_shifted(guard: Any, problem: Problem, advice: Float[Array, " d"] | None = None) -> CompetitiveControl:
    """Return the guard of the linear dynamics with the numbers of a `Competitive`, around advice that is known.

    With a delay later contexts can make every state free, so that promises at every step and at the end are the same.
    """
    around = GivenAdvice(jnp.zeros(problem.Q.shape[0], problem.Q.dtype) if advice is None else advice)
    terms = {"ratio": guard.ratio, "horizon": guard.horizon, "allowance": guard.allowance}
    return CompetitiveControl(around, every_prefix=bool(problem.timing.late), **terms)


def book_shifted(guard: Any, problem: Problem) -> float:
    """Return the most that a step of `guard_shifted` books: a spacing s costs sum_ij |H_ij| s_i s_j / 8 of the curvature H."""
    if not isinstance(problem.actions, Limited):
        return 0.0
    assert problem.actions.spacing is not None
    shape = largest_control_shape(
        problem.dynamics, float(guard.ratio), guard.horizon, every_prefix=bool(problem.timing.late)
    )
    units = np.broadcast_to(np.asarray(problem.actions.spacing, float), len(shape))
    return float(units @ np.abs(shape) @ units) / 8


def check_shifted(guard: Any, problem: Problem, start: Start) -> None:
    """Reject problems that do not fit, and ratios that cannot be promised."""
    if guard.contexts is not None or guard.weights is not None:
        raise NotApplicableError(
            "with a delay, or contexts known ahead, a promise covers neither bounds (of actions or contexts) nor weights."
        )
    guard_shifted(guard, problem).check(problem.dynamics, _shift_start(problem, start))


def restart_shifted(guard: Any, problem: Problem, start: Start, inner: State) -> ControlGuardState:
    """Return the state at the start of a promise, around the state of the agent inside."""
    state = guard_shifted(guard, problem).init(problem.dynamics, _shift_start(problem, start))
    books = jnp.zeros((), start.x0.dtype) if isinstance(problem.actions, Limited) else None
    return dataclasses.replace(state, inner=inner, account=dataclasses.replace(state.account, booked=books))


def step_shifted(
    guard: Any,
    problem: Problem,
    state: ControlGuardState,
    observation: Observation,
    inner_state: State,
    advice: Float[Array, " d"],
    inner: Info,
) -> tuple[ControlGuardState, Float[Array, " d"], Info]:
    """Play the advice as far as the promise allows."""
    position = problem.timing.control_state(observation.previous_action, len(advice))
    origin = observation.previous_action[: len(advice)]
    everywhere = jnp.tile(origin, len(position) // len(origin))
    assert isinstance(state.reference, Past)
    near = dataclasses.replace(state, inner=None, reference=_move(state.reference, -everywhere))
    seen = dataclasses.replace(
        observation, previous_action=position - everywhere, context=observation.context[: len(origin)] - origin
    )
    limits = problem.actions

    def play_counted(chosen: Controls, kept: Bool[Array, ""], wish: Float[Array, " d"]):
        """Play a multiple of the spacing: it is one from zero, not from the origin."""
        assert isinstance(limits, Limited)
        wish, moved, safest = (origin + u for u in (wish, chosen.action, chosen.safest))
        found, active, booked = round_inside(
            limits, origin, wish, moved, safest, kept, lambda x: chosen.spare(x - origin)
        )
        return found - origin, active, booked

    settle = play_counted if isinstance(limits, Limited) else play_chosen
    inside = guard_shifted(guard, problem, advice - origin)
    after, action, info = inside.step_settled(problem.dynamics, near, seen, settle)
    assert isinstance(after.reference, Past)
    after = dataclasses.replace(after, inner=inner_state, reference=_move(after.reference, everywhere))
    action = jnp.where(info.details["active"], action + origin, advice)  # allowed advice is played to the last bit
    action = problem.limit(observation.previous_action, action)
    return after, action, Info(info.converged & inner.converged, advice, info.details, inner)


def _shift_start(problem: Problem, start: Start) -> Start:
    return dataclasses.replace(start, x0=problem.timing.control_state(start.x0, problem.action_size(start.dim)))


def _move(past: Past, by: Float[Array, " n"]) -> Past:
    return Past(past.covariance, past.centre + by)
