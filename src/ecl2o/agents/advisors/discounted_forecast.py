"""What can be made of contexts alone, whatever is played; recorded once, it makes training through a guard cheap."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.planning.decoupling import Modes
from ecl2o.problem import Problem
from ecl2o.theory import decay_root


class DiscountedForecast(eqx.Module):
    """zhat, the predicted discounted mean of the contexts from now on, and signals: differences that say where they go.

    The signals are what the correction layer sees of the contexts: the last change, and the profile a period's eighth and
    quarter ahead, less the present context.
    """

    mean: Float[Array, "*n d"]
    signals: Float[Array, "*n s d"]

    def advice(self, modes: Modes, previous: Float[Array, " d"]) -> Float[Array, " d"]:
        """The action rho x_{t-1} + (1 - rho) zhat in every mode: the whole-horizon optimum where zhat is exact."""
        rho = decay_root(1.0, modes.a)
        return previous + modes.from_modes @ ((1 - rho) * (modes.to_modes @ (self.mean - previous)))


class ReplayedState(eqx.Module):
    """The modes, and how many steps have been played back."""

    modes: Modes
    played: Int[Array, ""]


class Replayed(AbstractAgent):
    """Advise on a recorded outlook, one entry per step: what `OnlineRidge` would say after the history it was recorded with."""

    forecast: DiscountedForecast

    def init(self, problem: Problem, start: Start) -> ReplayedState:
        return ReplayedState(Modes.from_problem(problem, start.dim), jnp.zeros((), int))

    def step(self, problem: Problem, state: ReplayedState, observation: Observation):
        forecast = DiscountedForecast(self.forecast.mean[state.played], self.forecast.signals[state.played])
        advice = forecast.advice(state.modes, observation.previous_action)
        return (
            ReplayedState(state.modes, state.played + 1),
            advice,
            Info(jnp.ones((), bool), details={"discounted_forecast": forecast}),
        )
