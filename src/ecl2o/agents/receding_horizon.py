"""Agents that plan over forecasts and play the beginning of the plan (docs/algorithms.md).

`window` counts future contexts, so a plan has window + 1 steps. With `truncate` a plan ends at the known horizon; without,
it runs on into whatever the forecaster says about the time after, as one who will have to live with the last action would.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.receding_plan import Planner, make_plan, prepare_planner
from ecl2o.problem import Problem


def check_window(window: int) -> None:
    """Refuse what is not a number of future contexts."""
    if isinstance(window, bool) or not isinstance(window, int) or window < 0:
        raise ValueError(f"window must be a number of future contexts, 0 or more, got {window!r}.")


def check_horizon(agent: AbstractAgent, truncate: bool, start: Start) -> None:
    """Refuse to cut plans at a horizon that is not known."""
    if truncate and start.horizon is None:
        raise NotApplicableError(
            f"{type(agent).__name__}(truncate=True) ends its plans at the horizon, which is not known here; "
            "use truncate=False, or give a horizon."
        )


class RHC(AbstractAgent):
    """Receding Horizon Control (Lin et al. 2012), also called MPC: plan, play the first action, plan again.

    Plans from the action that was played through y_t and `window` forecasts, without a terminal cost. RHC(0) is Greedy;
    with exact forecasts, RHC(T - 1) is the oracle and the excess cost falls like r^(2 window), r the decay root of
    section 0.

    Args:
        window: how many future contexts it plans with; 0 or more.
        truncate: whether plans stop at a known horizon. Default: true.
    """

    window: int = eqx.field(static=True)
    truncate: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        check_window(self.window)

    @property
    def lookahead(self) -> int:
        return self.window

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic

    def init(self, problem: Problem, start: Start) -> Planner:
        check_horizon(self, self.truncate, start)
        steps = self.window + 1
        return prepare_planner(problem, start.dim, steps, shortest=1 if self.truncate else steps)

    def step(self, problem: Problem, state: Planner, observation: Observation):
        contexts, length = observation.known_contexts(self.window), state.steps
        if self.truncate:
            length = jnp.minimum(length, observation.steps_left)
        plan = make_plan(problem, state, observation.previous_action, contexts, length)
        return state, plan.actions[0], Info(plan.converged)


class CommittedState(eqx.Module):
    """The committed plans of all v copies, the next action first, and the last action of each."""

    planner: Planner
    plans: Float[Array, "v v d"]
    last: Float[Array, "v d"]


class CHC(AbstractAgent):
    """Committed Horizon Control (Chen et al. 2016): the mean of v = `commitment` copies that replan in turn every v steps.

    Copy k = 1..v plans at the steps t = k (mod v), from *its own* last action, and commits v actions. At the first step
    each copy but the first is in the middle of a plan of which that much is over: it plans window + k - v steps and commits
    k - 1 of them. With v = 1 it is RHC, with v = window + 1 AFHC. Its cost is at most the mean of its copies' (Jensen).

    Copies never see what was played: behind a wrapper that plays something else, they stay on their own paths.

    Args:
        window: how many future contexts it plans with; 0 or more.
        commitment: v, how many actions of a plan are played; from 1 to window + 1.
        truncate: whether plans stop at a known horizon. Default: true.
    """

    window: int = eqx.field(static=True)
    commitment: int = eqx.field(static=True)
    truncate: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        check_window(self.window)
        commitment = self.commitment
        if isinstance(commitment, bool) or not isinstance(commitment, int) or not 1 <= commitment <= self.window + 1:
            raise ValueError(
                f"commitment must be a number of actions from 1 to window + 1 = {self.window + 1}, got {commitment!r}."
            )

    @property
    def lookahead(self) -> int:
        return self.window

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic

    def init(self, problem: Problem, start: Start) -> CommittedState:
        check_horizon(self, self.truncate, start)
        v, steps = self.commitment, self.window + 1
        shortest = 1 if self.truncate else steps - v + 1
        planner = prepare_planner(problem, start.dim, steps, shortest)
        last = jnp.broadcast_to(start.x0, (v, start.dim))
        return CommittedState(planner, jnp.zeros((v, v, start.dim), start.x0.dtype), last)

    def step(self, problem: Problem, state: CommittedState, observation: Observation):
        contexts, v = observation.known_contexts(self.window), self.commitment
        longest = observation.steps_left if self.truncate else self.window + 1

        copies, turn = jnp.arange(v), observation.step % v
        first_lengths = copies.at[0].set(v) + self.window + 1 - v  # at the first step, copy k has k - 1 actions to play
        lengths = jnp.minimum(jnp.where(observation.step == 0, first_lengths, self.window + 1), longest)
        due = (copies == turn) | (observation.step == 0)

        def replan_if_due(converged, copy):
            is_due, length, plan, last = copy

            def replan():
                made = make_plan(problem, state.planner, last, contexts, length, first=v)
                return made.actions, converged & made.converged

            plan, converged = jax.lax.cond(is_due, replan, lambda: (plan, converged))
            return converged, plan

        converged, plans = jax.lax.scan(replan_if_due, jnp.ones((), bool), (due, lengths, state.plans, state.last))
        last = plans[:, 0]
        state = CommittedState(state.planner, jnp.roll(plans, -1, axis=1), last)
        return state, jnp.mean(last, axis=0), Info(converged)


class AFHC(AbstractAgent):
    """Averaging Fixed Horizon Control (Lin et al. 2012): CHC whose copies commit to their whole plans, v = window + 1.

    Args:
        window: how many future contexts it plans with; 0 or more.
        truncate: whether plans stop at a known horizon. Default: true.
    """

    window: int = eqx.field(static=True)
    truncate: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        check_window(self.window)

    @property
    def lookahead(self) -> int:
        return self.window

    @property
    def committed(self) -> CHC:
        """The CHC that it is."""
        return CHC(self.window, self.window + 1, self.truncate)

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic

    def init(self, problem: Problem, start: Start) -> CommittedState:
        check_horizon(self, self.truncate, start)
        return self.committed.init(problem, start)

    def step(self, problem: Problem, state: CommittedState, observation: Observation):
        return self.committed.step(problem, state, observation)
