"""Agents that plan over forecasts and play the beginning of the plan (docs/algorithms.md): RHC, CHC, AFHC and RHGD.

`window` counts future contexts, so a plan has window + 1 steps. With `truncate` a plan ends at the known horizon. Without, it
continues into the forecasts of the time after the horizon, as if the last action had to be kept.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, AnyProblem, Info, Observation, Start
from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.control_path import find_optimal_controls
from ecl2o.planning.receding_plan import Planner, make_plan, prepare_planner
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_optional_float, check_finite, check_positive, extreme_eigenvalues


class AbstractRecedingHorizon(AbstractAgent):
    """An agent that looks `window` contexts ahead."""

    window: eqx.AbstractVar[int]

    def __check_init__(self):
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 0:
            raise ValueError(f"window must be a number of future contexts, 0 or more, got {self.window!r}.")

    @property
    def lookahead(self) -> int:
        return self.window

    def is_linear(self, problem: AnyProblem) -> bool:
        return problem.is_linear_quadratic

    def _check_horizon(self, truncate: bool, start: Start) -> None:
        if truncate and start.horizon is None:
            raise NotApplicableError(f"{type(self).__name__} needs a horizon; give one, or use truncate=False.")


class RHC(AbstractRecedingHorizon):
    """Receding Horizon Control (Lin et al. 2012), also called MPC: plan, play the first action, plan again.

    Plans from the action that was played through y_t and `window` forecasts, without a terminal cost. RHC(0) is Greedy.
    With exact forecasts, RHC(T - 1) is the oracle, and the excess cost falls like r^(2 window), r the decay root. It plans
    through the dynamics of a `ControlProblem` too.

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

    def init(self, problem: AnyProblem, start: Start) -> Planner | None:
        self._check_horizon(self.truncate, start)
        if problem.dynamics is not None:
            return None
        return prepare_planner(problem, start.dim, self.window + 1, shortest=1 if self.truncate else self.window + 1)

    def step(self, problem: AnyProblem, state: Any, observation: Observation):
        contexts, previous, steps = (
            observation.known_contexts(self.window),
            observation.previous_action,
            self.window + 1,
        )
        length = jnp.minimum(steps, observation.steps_left) if self.truncate else steps
        if problem.dynamics is None:
            plan = make_plan(problem, state, previous, contexts, length)
        else:
            plan = find_optimal_controls(problem.dynamics, previous, contexts, observation.step, length)
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
            raise ValueError(f"commitment must be from 1 to window + 1 = {self.window + 1}, got {commitment!r}.")

    def init(self, problem: Problem, start: Start) -> CommittedState:
        self._check_horizon(self.truncate, start)
        v, steps, dim = self.commitment, self.window + 1, start.dim
        planner = prepare_planner(problem, dim, steps, shortest=1 if self.truncate else steps - v + 1)
        return CommittedState(planner, jnp.zeros((v, v, dim), start.x0.dtype), jnp.broadcast_to(start.x0, (v, dim)))

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
        # Of plans made earlier for other totals, the mean may miss the total of this step.
        return state, problem.relaxed.actions.project(jnp.mean(last, axis=0)), Info(converged)


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
        return self.committed.init(problem, start)

    def step(self, problem: Problem, state: CommittedState, observation: Observation):
        return self.committed.step(problem, state, observation)


class Iterates(eqx.Module):
    """x_{t+W-k}^(k) for k = 0..W, as stages t - 1 (`latest`) and t - 2 (`earlier`) left it."""

    latest: Float[Array, "levels d"]
    earlier: Float[Array, "levels d"]
    smoothness: Float[Array, ""]


class RHGD(AbstractRecedingHorizon):
    """Receding Horizon Gradient Descent (Li, Qu and Li 2020): W = window + 1 projected gradient steps per action.

    Iterate 0 is the path of online gradient descent, x_1^(0) = x_0. Stage t computes x_s^(k) for k = 1..W, s = t + W - k,
    by a step of size 1/(l + 4 beta) on the path's cost, from neighbours at iterate k - 1, and plays x_t^(W). The stages
    before the first step run at the first step, on its forecasts. With exact forecasts the actions are those of W steps of
    projected gradient descent on the whole horizon, and
    cost - OPT <= (l + 4 beta)/2 |x^(0) - x*|^2 (1 - m/(l + 4 beta))^W.

    The iterates never see what was played: behind a wrapper that plays something else, they stay on their own path.

    Args:
        window: how many future contexts it uses; 0 or more.
        truncate: whether the path stops at a known horizon. Default: True.
        smoothness: l, the largest curvature of the hitting cost, positive. Default: that of a constant quadratic cost; other
            costs need a value.

    Raises:
        ValueError: if window or smoothness is out of its range.
        NotApplicableError: at the start of a run without the smoothness or the horizon that it needs.

    >>> RHGD(3).lookahead
    3
    """

    window: int = eqx.field(static=True)
    truncate: bool = eqx.field(static=True, default=True)
    smoothness: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)

    def __check_init__(self):
        if self.smoothness is not None:
            check_finite("smoothness", self.smoothness)
            check_positive("smoothness", self.smoothness)

    def init(self, problem: Problem, start: Start) -> Iterates:
        self._check_horizon(self.truncate, start)
        at_start = jnp.broadcast_to(start.x0, (self.window + 2, start.dim))
        return Iterates(at_start, at_start, self._smoothness(problem, start.dim).astype(start.x0.dtype))

    def step(self, problem: Problem, state: Iterates, observation: Observation):
        contexts, W = observation.known_contexts(self.window), self.window + 1
        left = observation.steps_left if self.truncate else W + 1  # beyond every position: it never ends

        def run_stage(iterates, before):
            return _run_stage(problem, iterates, contexts, before, left), None

        def run_first_stages(iterates):  # t = 2 - W..1: the window begins at step 1, which is 1 - t steps after t
            return jax.lax.scan(run_stage, iterates, jnp.arange(W - 1, -1, -1))[0]

        state = jax.lax.cond(observation.step == 0, run_first_stages, lambda iterates: run_stage(iterates, 0)[0], state)
        return state, state.latest[W], Info.plain()

    def _smoothness(self, problem: Problem, dim: int) -> Float[Array, ""]:
        if self.smoothness is not None:
            return self.smoothness
        greatest = problem.hitting.curvature_bounds(dim)[1]
        if greatest is not None:
            return extreme_eigenvalues(greatest)[1]
        kind = type(problem.hitting).__name__
        raise NotApplicableError(f"RHGD needs the largest curvature of {kind}: give smoothness=...")


def _run_stage(problem: Problem, iterates: Iterates, contexts: Float[Array, "W q"], before, left) -> Iterates:
    """Run stage t, where contexts[0] belongs to step t + before, and the last step of all is number `left` from there.

    Position p = s - t - before is that of step s in the window: below 0 its action is x_0, from `left` on it does not exist.
    """
    W, smoothness = contexts.shape[0], iterates.smoothness
    rate = 1 / (smoothness + 4 * problem.beta)

    def exists(position):
        return (position >= 0) & (position < left)

    def gradient(action, position):
        return problem.hitting.gradient(action, context_at(position))

    def context_at(position):
        return contexts[jnp.where(exists(position), position, 0)]

    def project(action, position):
        return problem.at_context(context_at(position)).actions.project(action)

    def refine(after, level):
        """Compute x_s^(k) from x_s^(k-1), its neighbours before and (already of this stage) after."""
        k, here, preceding = level
        position = W - k - before
        ahead = jnp.where(exists(position + 1), 2 * problem.Q @ (after - here), 0.0)
        slope = gradient(here, position) + 2 * problem.Q @ (here - preceding) - ahead
        refined = jnp.where(exists(position), project(here - rate * slope, position), here)
        return refined, refined

    newest = iterates.latest[0]  # x_{t+W-1}^(0)
    start = project(newest - gradient(newest, W - 1 - before) / smoothness, W - 1 - before)
    levels = (jnp.arange(1, W + 1), iterates.latest[:-1], iterates.earlier[:-1])
    _, refined = jax.lax.scan(refine, start, levels)
    return Iterates(jnp.concatenate([start[None], refined]), iterates.latest, smoothness)
