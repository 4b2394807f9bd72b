"""What can be made of contexts alone, whatever is played; recorded once, it makes training through a guard cheap."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.planning.decoupling import Modes
from ecl2o.problem import Problem
from ecl2o.theory import decay_root


class Outlook(eqx.Module):
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


class RecordedState(eqx.Module):
    """The modes, and how many steps have been played back."""

    modes: Modes
    played: Int[Array, ""]


class Recorded(AbstractAgent):
    """Advise on a recorded outlook, one entry per step: what `OnlineRidge` would say after the history it was recorded with."""

    outlook: Outlook

    @property
    def lookahead(self) -> int:
        return 0

    def init(self, problem: Problem, start: Start) -> RecordedState:
        return RecordedState(Modes.from_problem(problem, start.dim), jnp.zeros((), int))

    def step(self, problem: Problem, state: RecordedState, observation: Observation):
        outlook = Outlook(self.outlook.mean[state.played], self.outlook.signals[state.played])
        advice = outlook.advice(state.modes, observation.previous_action)
        return (
            RecordedState(state.modes, state.played + 1),
            advice,
            Info(jnp.ones((), bool), details={"outlook": outlook}),
        )
