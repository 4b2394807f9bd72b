"""Agents for a `Problem`, on a `ShiftedProblem`: their actions are in force later, or their contexts are known ahead."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State, check_fields
from ecl2o.agents.guards import AbstractGuard, Competitive
from ecl2o.agents.periodic import Periodic
from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.decoupling import Modes
from ecl2o.problem import Problem, ShiftedProblem
from ecl2o.theory import decay_root


class ShiftedState(eqx.Module):
    """The agent's state, and the modes in which known contexts are averaged."""

    inner: State
    modes: Modes | None


class Shifted(AbstractAgent):
    """An agent for a `Problem`, on a `ShiftedProblem`: the same law on what is known when the action is due.

    The agent's previous action is the latest one that was chosen, in force or not.

    With a delay, an agent with a lookahead gets the forecast of the step in which its action will be in force as the context, and
    the forecasts of the steps after it. Any other agent gets the present context: so R-OBD follows the last context that is
    known, as if it stayed. `advisors.OnlineRidge` takes the delay as `ahead`, and predicts what its action will meet.

    With contexts known ahead, an agent with a lookahead gets the context of its action's step, and the known ones before
    forecasts. Any other agent gets the last known context; its advice rho x_{t-1} + (1 - rho) v, in each mode of a problem with
    constant curvature, takes v for the discounted mean of that context and all later ones. The action goes to the discounted
    mean of the earlier known contexts and v.

    Args:
        agent: The agent.
        shift: That of the problem.

    Raises:
        NotApplicableError: at the start of a run, if the problem has another shift.

    >>> import ecl2o as ec
    >>> late = ec.ShiftedProblem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1), shift=1)
    >>> ec.rollout(Shifted(ec.Greedy(), 1), late, ec.Instance([0.0], [[3.0], [3.0]])).hitting.tolist()
    [4.5, 2.0]
    """

    agent: AbstractAgent
    shift: int = eqx.field(static=True)

    @property
    def lookahead(self) -> int:
        return max(self.agent.lookahead + self.shift, 0) if self.agent.lookahead else 0

    def check(self, problem: ShiftedProblem, start: Start) -> None:
        check_fields(self)
        if not isinstance(problem, ShiftedProblem) or problem.shift != self.shift:
            found = getattr(problem, "shift", 0)
            raise NotApplicableError(f"Shifted(..., {self.shift}) is for a problem with that shift, got {found}.")
        self.agent.check(problem.unshifted, self._unshift_start(problem, start))

    def init(self, problem: ShiftedProblem, start: Start) -> ShiftedState:
        plain, dim = problem.unshifted, problem.action_size(start.dim)
        averages = self.shift < 0 and not self.agent.lookahead
        inner = self.agent.init(plain, self._unshift_start(problem, start))
        return ShiftedState(inner, Modes.from_problem(plain, dim) if averages else None)

    def step(self, problem: ShiftedProblem, state: ShiftedState, observation: Observation):
        plain, dim = problem.unshifted, problem.action_size(observation.previous_action.shape[0])
        seen = self._unshift(observation, dim)
        inner, action, info = self.agent.step(plain, state.inner, seen)
        if state.modes is not None:
            waiting = observation.previous_action[dim:].reshape(-self.shift, -1)[:, :dim]
            action = _toward_known(state.modes, waiting, seen.previous_action, action)
        advice = None if info.advice is None else action
        action = plain.actions.project(action)
        return ShiftedState(inner, state.modes), action, Info(info.converged, advice, info.details, info)

    def _unshift_start(self, problem: ShiftedProblem, start: Start) -> Start:
        return dataclasses.replace(start, x0=start.x0[: problem.action_size(start.dim)])

    def _unshift(self, observation: Observation, dim: int) -> Observation:
        """Return what the agent sees."""
        state, context, forecast = observation.previous_action, observation.context, observation.forecast
        if self.agent.lookahead and self.shift > 0:
            known = observation.known_contexts(self.lookahead)
            context, forecast = known[self.shift], known[self.shift + 1 :]
        elif self.agent.lookahead:
            waiting = state[dim:].reshape(-self.shift, -1)
            known = jnp.concatenate([waiting, observation.known_contexts(self.lookahead)])
            context, forecast = known[0], known[1 : self.agent.lookahead + 1]
        return dataclasses.replace(observation, context=context, previous_action=state[:dim], forecast=forecast)


def _toward_known(
    modes: Modes, waiting: Float[Array, "w d"], previous: Float[Array, " d"], action: Float[Array, " d"]
) -> Float[Array, " d"]:
    """Return rho x_{t-1} + (1 - rho) z for advice rho x_{t-1} + (1 - rho) v: z = (1 - rho) sum_{j<w} rho^j y_{t+j} + rho^w v."""
    rho, steps = decay_root(1.0, modes.a), jnp.arange(waiting.shape[0])
    away = (waiting - previous) @ modes.to_modes.T
    shares = (1 - rho) * rho ** steps[:, None]
    known = (1 - rho) * jnp.sum(shares * away, axis=0)
    later = rho ** waiting.shape[0] * (modes.to_modes @ (action - previous))
    return previous + modes.from_modes @ (known + later)


def shift_agent(agent: AbstractAgent, problem: Problem) -> AbstractAgent:
    """Return the agent for a problem that may have a shift; a promise relative to the optimum stays outside.

    Args:
        agent: An agent for a `Problem`, or one that is wrapped already.
        problem: The problem, with or without a shift.

    Raises:
        NotApplicableError: The agent is another guard, whose promise would be lost.

    >>> import ecl2o as ec
    >>> late = ec.ShiftedProblem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1), shift=1)
    >>> type(shift_agent(ec.Competitive(ec.ROBD(), ratio=3.0), late).agent).__name__
    'Shifted'
    """
    if not isinstance(problem, ShiftedProblem) or isinstance(agent, Shifted):
        return agent
    if isinstance(agent, Periodic | Competitive):
        return dataclasses.replace(agent, agent=shift_agent(agent.agent, problem))
    if isinstance(agent, AbstractGuard):
        raise NotApplicableError(
            "with a delay, or contexts known ahead, one promise relative to the optimum can be made, for a run or for periods; "
            "not several at once, and none relative to a baseline."
        )
    return Shifted(agent, problem.shift)
