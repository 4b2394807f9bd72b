"""Controllers of a `ControlProblem` (docs/algorithms.md): LQR, H-infinity, limits. RHC plans through dynamics too."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.control_path import find_nearest_control
from ecl2o.problem import ControlProblem
from ecl2o.problem.arrays import as_float, check_finite, check_positive
from ecl2o.theory.control import Stage, control_future, game_future


class AbstractGain(AbstractAgent):
    """An agent whose action is the best one if the cost to go is 1/2 |xi'|^2_S, for S_t that it prepares."""

    def is_linear(self, problem: ControlProblem) -> bool:
        return problem.is_linear_quadratic

    def check(self, problem: ControlProblem, start: Start) -> None:
        super().check(problem, start)
        if problem.dynamics is None:
            raise NotApplicableError(f"{type(self).__name__} is for a ControlProblem, got {type(problem).__name__}.")
        if start.horizon is None and problem.steps is not None:
            raise NotApplicableError(f"{type(self).__name__} needs a horizon: the problem has matrices by step.")

    def step(self, problem: ControlProblem, state: Float[Array, "T n n"], observation: Observation):
        stage = Stage.of(problem.at(observation.step))
        x, _, d = stage.places
        S = state[jnp.minimum(observation.step, state.shape[0] - 1)]
        gain, _ = stage.without_action(S)
        action = -gain[:, x] @ observation.previous_action - gain[:, d] @ observation.context
        return state, problem.actions.project(action), Info(jnp.isfinite(action).all())


class LQR(AbstractGain):
    """The linear-quadratic regulator: optimal if all later contexts are zero.

    >>> import ecl2o as ec
    >>> problem = ec.ControlProblem.regulator(F=1.0, B=1.0, Q=1.0, R=2.0)
    >>> round(float(ec.rollout(LQR(), problem, ec.Instance([0.0], [[1.0], [0.0]])).actions[0, 0]), 4)
    -0.4545
    """

    def init(self, problem: ControlProblem, start: Start) -> Float[Array, "T n n"]:
        return jax.lax.stop_gradient(control_future(problem, start.horizon, every_prefix=True).S)


class HInfinity(AbstractGain):
    """The H-infinity controller: it keeps cost <= level^2/2 * sum |d|^2, for a level that is large enough.

    A promise relative to the size of the contexts, not to the optimum: a row for comparison.

    Args:
        level: gamma, positive. Below the smallest possible level, steps count as not converged.

    >>> import ecl2o as ec
    >>> problem = ec.ControlProblem.regulator(F=1.0, B=1.0, Q=1.0, R=2.0)
    >>> run = ec.rollout(HInfinity(level=2.0), problem, ec.Instance([0.0], [[1.0], [-1.0]]))
    >>> bool(run.cost <= 2.0**2 / 2 * 2)
    True
    """

    level: Float[Array, ""] = eqx.field(converter=as_float)

    def __check_init__(self):
        check_finite("level", self.level)
        check_positive("level", self.level)

    def init(self, problem: ControlProblem, start: Start) -> Float[Array, "T n n"]:
        return jax.lax.stop_gradient(game_future(problem, start.horizon, self.level))


class WithinLimits(AbstractAgent):
    """An agent of a `ControlProblem` whose actions are moved to the nearest ones that keep the bounds of actions and states.

    It looks one step ahead. Bounds of actions always hold. Where no action keeps those of the next state, as after a disturbance
    or from a state outside, the violation is least. `RHC` plans with the bounds by itself.

    Args:
        agent: the agent whose actions are moved.

    >>> import ecl2o as ec
    >>> battery = ec.battery(alpha=10.0, charge=0.05, charge_within=(-1.0, 1.0))
    >>> day = ec.Instance([0.0, 0.0], [[0.0], [0.0]])
    >>> run = ec.rollout(WithinLimits(ec.advisors.Fixed([[-5.0], [5.0]])), battery, day)
    >>> run.actions.ravel().round(3).tolist()
    [-1.0, 2.0]
    """

    agent: AbstractAgent

    def init(self, problem: ControlProblem, start: Start):
        return self.agent.init(problem, start)

    def check(self, problem: ControlProblem, start: Start) -> None:
        super().check(problem, start)
        if problem.dynamics is None:
            raise NotApplicableError(f"WithinLimits is for a ControlProblem, got {type(problem).__name__}.")

    def step(self, problem: ControlProblem, state, observation: Observation):
        state, advice, info = self.agent.step(problem, state, observation.with_lookahead(self.agent.lookahead))
        if not problem.is_bounded:
            return state, advice, info
        target = jnp.where(jnp.isfinite(advice), advice, 0.0)
        now = observation.previous_action, observation.context
        near = find_nearest_control(problem, *now, target, observation.step)
        after = problem.next_state(now[0], target, now[1], observation.step)
        fits = (problem.actions.project(target) == target).all() & (problem.states_within.project(after) == after).all()
        action = jnp.where(fits, target, near.actions[0])
        return state, action, Info(info.converged & (fits | near.converged), advice, info.details, info)
