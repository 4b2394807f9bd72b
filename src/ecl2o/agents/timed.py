"""What an agent sees of a problem whose actions are in force later, or whose contexts are known ahead."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, AnyProblem, Info, Observation, Start, State, check_fields
from ecl2o.planning.decoupling import Modes
from ecl2o.problem import AbstractTiming, Problem
from ecl2o.theory import decay_root


def follow_timing(agent: AbstractAgent, problem: AnyProblem) -> AbstractAgent:
    """Return the agent as it acts under the problem's timing. An agent that was returned by it stays as it is.

    What proposes actions acts as on the immediate problem, by the same law on what is known when the action is due. Its previous
    action is the latest one that was chosen, in force or not.

    With a delay, an agent with a lookahead gets the forecast of the step in which its action will be in force as the context, and
    the forecasts of the steps after it. Any other agent gets the present context: so R-OBD follows the last context that is
    known, as if it stayed. `advisors.OnlineRidge` takes the delay as `ahead`, and predicts what its action will meet.

    With contexts known ahead, an agent with a lookahead gets the context of its action's step, and the known ones before
    forecasts. Any other agent gets the last known context; its advice rho x_{t-1} + (1 - rho) v, in each mode of a problem with
    constant curvature, takes v for the discounted mean of that context and all later ones. The action goes to the discounted
    mean of the earlier known contexts and v.

    >>> import ecl2o as ec
    >>> movement = ec.Mahalanobis.isotropic(alpha=2.0, dim=1)
    >>> late = ec.Problem(ec.SquaredTracking(), movement, timing=ec.Delayed(1))
    >>> ec.rollout(ec.Greedy(), late, ec.Instance([0.0], [[3.0], [3.0]])).hitting.tolist()
    [4.5, 2.0]
    """
    timing = problem.timing
    return agent.around_proposals(lambda inside: _Timed(inside, timing)) if timing.shift else agent


class _Timed(AbstractAgent):
    agent: AbstractAgent
    timing: AbstractTiming

    @property
    def lookahead(self) -> int:
        return self.timing.lookahead(self.agent.lookahead)

    def around_proposals(self, wrap: Callable[[AbstractAgent], AbstractAgent]) -> AbstractAgent:
        return self

    def check(self, problem: Problem, start: Start) -> None:
        check_fields(self)
        self.agent.check(problem.immediate, _drop_waiting(problem, start))

    def init(self, problem: Problem, start: Start) -> tuple[State, Modes | None]:
        """Return the agent's state, and the modes in which known contexts are averaged."""
        seen, averages = _drop_waiting(problem, start), self.timing.early and not self.agent.lookahead
        modes = Modes.from_problem(problem.immediate, seen.dim) if averages else None
        return self.agent.init(problem.immediate, seen), modes

    def step(self, problem: Problem, state: tuple[State, Modes | None], observation: Observation):
        inner, modes = state
        position, window = observation.previous_action, self.agent.lookahead
        dim = problem.action_size(len(position))
        seen = dataclasses.replace(observation, previous_action=position[:dim])
        if window:
            known = self.timing.contexts_to_meet(position, dim, observation.known_contexts(self.lookahead))
            seen = dataclasses.replace(seen, context=known[0], forecast=known[1 : window + 1])
        inner, action, info = self.agent.step(problem.immediate, inner, seen)
        if modes is not None:
            waiting = self.timing.contexts_to_meet(position, dim, observation.context[None])[:-1, :dim]
            action = _toward_known(modes, waiting, seen.previous_action, action)
        advice = None if info.advice is None else action
        action = problem.actions.project(action)
        return (inner, modes), action, Info(info.converged, advice, info.details, info)


def _drop_waiting(problem: Problem, start: Start) -> Start:
    return dataclasses.replace(start, x0=start.x0[: problem.action_size(start.dim)])


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
