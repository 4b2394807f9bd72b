"""Agents that plan over forecasts and play the beginning of the plan (ALGORITHMS section 3).

`window` counts future contexts, so a plan has window + 1 steps. With `truncate` a plan ends at the known horizon; without,
it runs on into whatever the forecaster says about the time after, as one who will have to live with the last action would.
"""

import equinox as eqx
import jax.numpy as jnp

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.agents.plans import Planner, known_contexts, make_plan, prepare_planner, steps_left
from ecl2o.problem import Problem


def check_window(window: int) -> None:
    """Refuse what is not a number of future contexts."""
    if isinstance(window, bool) or not isinstance(window, int) or window < 0:
        raise ValueError(f"window must be a number of future contexts, 0 or more, got {window!r}.")


def check_horizon(agent: AbstractAgent, truncate: bool, start: Start) -> None:
    """Refuse to cut plans at a horizon that is not known."""
    if truncate and start.horizon is None:
        raise ValueError(
            f"{type(agent).__name__}(truncate=True) ends its plans at the horizon, which is not known here; "
            "use truncate=False, or give a horizon."
        )


class RHC(AbstractAgent):
    """Receding Horizon Control (Lin et al. 2012), also called MPC: plan, play the first action, plan again.

    Plans from the action that was played through y_t and `window` forecasts, without a terminal cost. RHC(0) is Greedy;
    with exact forecasts, RHC(T - 1) is the oracle and the excess cost falls like r^(2 window), r the decay root of
    section 0.
    """

    window: int = eqx.field(static=True)
    truncate: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        check_window(self.window)

    @property
    def lookahead(self) -> int:
        return self.window

    def init(self, problem: Problem, start: Start) -> Planner:
        check_horizon(self, self.truncate, start)
        steps = self.window + 1
        return prepare_planner(problem, start.dim, steps, first=1, shortest=1 if self.truncate else steps)

    def step(self, problem: Problem, state: Planner, observation: Observation):
        contexts, length = known_contexts(observation, self.window), state.steps
        if self.truncate:
            length = jnp.minimum(length, steps_left(observation))
        plan = make_plan(problem, state, observation.previous_action, contexts, length)
        return state, plan.actions[0], Info(plan.converged)
