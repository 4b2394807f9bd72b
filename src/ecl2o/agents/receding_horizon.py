"""Agents that plan over forecasts and play the beginning of the plan (docs/algorithms.md).

`window` counts future contexts, so a plan has window + 1 steps. With `truncate` a plan ends at the known horizon. Without, it
continues into the forecasts of the time after the horizon, as if the last action had to be kept.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.receding_plan import Planner, make_plan, prepare_planner
from ecl2o.problem import Problem


class AbstractRecedingHorizon(AbstractAgent):
    """An agent that looks `window` contexts ahead."""

    window: eqx.AbstractVar[int]

    def __check_init__(self):
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 0:
            raise ValueError(f"window must be a number of future contexts, 0 or more, got {self.window!r}.")

    @property
    def lookahead(self) -> int:
        return self.window

    def is_linear(self, problem: Problem) -> bool:
        return problem.is_linear_quadratic

    def check_horizon(self, truncate: bool, start: Start) -> None:
        """Raise if plans are to end at a horizon that is not known."""
        if truncate and start.horizon is None:
            raise NotApplicableError(
                f"{type(self).__name__}(truncate=True) ends its plans at the horizon, which is not known here; "
                "use truncate=False, or give a horizon."
            )


class RHC(AbstractRecedingHorizon):
    """Receding Horizon Control (Lin et al. 2012), also called MPC: plan, play the first action, plan again.

    Plans from the action that was played through y_t and `window` forecasts, without a terminal cost. RHC(0) is Greedy.
    With exact forecasts, RHC(T - 1) is the oracle, and the excess cost falls like r^(2 window), r the decay root.

    Args:
        window: how many future contexts it plans with; 0 or more.
        truncate: whether plans stop at a known horizon. Default: True.

    Raises:
        ValueError: if window is not a whole number from 0 on.
        NotApplicableError: at the start of a run with truncate=True and no horizon.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> day = ec.Instance([0.0], [[1.0], [2.0], [0.0]])
    >>> excess = ec.rollout(RHC(2), problem, day).cost - ec.oracle(problem, day).cost
    >>> bool(abs(excess) < 1e-5)
    True
    """

    window: int = eqx.field(static=True)
    truncate: bool = eqx.field(static=True, default=True)

    def init(self, problem: Problem, start: Start) -> Planner:
        self.check_horizon(self.truncate, start)
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


class CHC(AbstractRecedingHorizon):
    """Committed Horizon Control (Chen et al. 2016): the mean of `commitment` planners that replan in turn.

    Planner k = 1..v plans at the steps t = k (mod v), from *its own* last action, and commits v actions. At the first step
    each planner but the first is in the middle of a plan of which that much is over: it plans window + k - v steps and commits
    k - 1 of them. With v = 1 it is RHC, with v = window + 1 AFHC. Its cost is at most the mean of its planners' (Jensen).

    Planners never see what was played: behind a wrapper that plays something else, they stay on their own paths.

    Args:
        window: how many future contexts it plans with; 0 or more.
        commitment: v, how many actions of a plan are played; from 1 to window + 1.
        truncate: whether plans stop at a known horizon. Default: True.

    Raises:
        ValueError: if window or commitment is out of its range.
        NotApplicableError: at the start of a run with truncate=True and no horizon.

    >>> CHC(4, commitment=2).lookahead
    4
    """

    window: int = eqx.field(static=True)
    commitment: int = eqx.field(static=True)
    truncate: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        commitment = self.commitment
        if isinstance(commitment, bool) or not isinstance(commitment, int) or not 1 <= commitment <= self.window + 1:
            raise ValueError(
                f"commitment must be a number of actions from 1 to window + 1 = {self.window + 1}, got {commitment!r}."
            )

    def init(self, problem: Problem, start: Start) -> CommittedState:
        self.check_horizon(self.truncate, start)
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


class AFHC(AbstractRecedingHorizon):
    """Averaging Fixed Horizon Control (Lin et al. 2012): CHC whose planners commit to their whole plans.

    Args:
        window: how many future contexts it plans with; 0 or more.
        truncate: whether plans stop at a known horizon. Default: True.

    Raises:
        ValueError: if window is not a whole number from 0 on.
        NotApplicableError: at the start of a run with truncate=True and no horizon.

    >>> AFHC(4).committed.commitment
    5
    """

    window: int = eqx.field(static=True)
    truncate: bool = eqx.field(static=True, default=True)

    @property
    def committed(self) -> CHC:
        """The same agent as a CHC."""
        return CHC(self.window, self.window + 1, self.truncate)

    def init(self, problem: Problem, start: Start) -> CommittedState:
        self.check_horizon(self.truncate, start)
        return self.committed.init(problem, start)

    def step(self, problem: Problem, state: CommittedState, observation: Observation):
        return self.committed.step(problem, state, observation)
