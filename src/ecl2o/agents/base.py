"""What every agent is: a PyTree with `init` and `step`.

The played action is in the observation, never in an agent's state, so that a wrapper can play something else than its
inner agent proposed.
"""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ecl2o.problem import Problem

State = Any


class Start(eqx.Module):
    """What is known before the first step."""

    x0: Float[Array, " d"]
    history: Float[Array, "H q"]
    horizon: int | None = eqx.field(static=True, default=None)

    @property
    def dim(self) -> int:
        """d, the dimension of actions."""
        return self.x0.shape[0]


class Observation(eqx.Module):
    """What is known at a step, when its action is due.

    `step` counts from 0; `remaining` is the number of steps after this one, None where the horizon is not known;
    `forecast` holds predictions of the next contexts for agents with a lookahead, None for the others.
    """

    context: Float[Array, " q"]
    previous_action: Float[Array, " d"]
    step: Int[Array, ""]
    remaining: Int[Array, ""] | None = None
    forecast: Float[Array, "w q"] | None = None

    def known_contexts(self, window: int) -> Float[Array, "steps q"]:
        """y_t and the forecasts of the `window` contexts after it."""
        now = self.context[None]
        if window == 0:
            return now
        if self.forecast is None or self.forecast.shape[0] < window:
            got = "none" if self.forecast is None else f"{self.forecast.shape[0]}"
            raise ValueError(f"this agent plans with forecasts of {window} future contexts, got {got}.")
        return jnp.concatenate([now, self.forecast[:window]])

    @property
    def steps_left(self) -> Int[Array, ""]:
        """The number of steps until the horizon, this one included."""
        if self.remaining is None:
            raise ValueError(
                "truncate=True needs Observation.remaining at every step; use truncate=False without a horizon."
            )
        return self.remaining + 1


class Info(eqx.Module):
    """What an agent says about its step besides the action.

    `advice` is what its advisor proposed; `details` are the agent's own figures by name; `inner` is what the wrapped
    agent said. `converged` covers the wrapped agent too.
    """

    converged: Bool[Array, ""]
    advice: Float[Array, " d"] | None = None
    details: dict[str, PyTree] = eqx.field(default_factory=dict)
    inner: "Info | None" = None

    @classmethod
    def plain(cls) -> "Info":
        """Nothing to report: no solve that could fail, no advice."""
        return cls(jnp.ones((), bool))


class AbstractAgent(eqx.Module):
    """Anything that acts."""

    @property
    @abc.abstractmethod
    def lookahead(self) -> int:
        """How many future contexts it wants in `Observation.forecast`; wrappers delegate it."""

    @abc.abstractmethod
    def init(self, problem: Problem, start: Start) -> State:
        """The state before the first step; what is needed once per run is made here. Refuses needs that are not met."""

    @abc.abstractmethod
    def step(self, problem: Problem, state: State, observation: Observation) -> tuple[State, Float[Array, " d"], Info]:
        """See a context, choose an action: (state, action, info)."""
