"""Which leaves of an agent are trained: those inside a `Trainable`, by type, never by dtype.

Trust, slack, scales and problem constants are arrays too, so that they can be vmapped; they are not weights.

What every agent is: a PyTree with `init` and `step`.

The played action is in the observation, never in an agent's state, so that a wrapper can play something else than its
inner agent proposed.
"""

import abc
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ecl2o.agents.promise import Promise
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import Problem


class Trainable(eqx.Module):
    """A part of an advisor whose every array is a weight."""


def trainable_mask(agent: PyTree) -> PyTree:
    """The agent's tree with True at weights and False elsewhere; for `equinox.partition`.

    Args:
        agent: any tree of modules.
    """

    def mark(node):
        return jax.tree.map(lambda _: isinstance(node, Trainable), node)

    return jax.tree.map(mark, agent, is_leaf=lambda node: isinstance(node, Trainable))


State = Any


class Start(eqx.Module):
    """What is known before the first step.

    Args:
        x0: (d,), the action in force before the first step.
        history: (H, q), the contexts before the first step; H may be 0.
        horizon: T, the number of steps. Default: not known.
    """

    x0: Float[Array, " d"]
    history: Float[Array, "H q"]
    horizon: int | None = eqx.field(static=True, default=None)

    @property
    def dim(self) -> int:
        """d, the dimension of actions."""
        return self.x0.shape[0]


class Observation(eqx.Module):
    """What is known at a step, when its action is due.

    Args:
        context: (q,), y_t.
        previous_action: (d,), x_{t-1}, the action that was played.
        step: t - 1: steps are counted from 0.
        remaining: the number of steps after this one. Default: the horizon is not known.
        forecast: (w, q), predictions of the next contexts, for agents with a lookahead. Default: none.
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
            raise NotApplicableError(f"this agent plans with forecasts of {window} future contexts, got {got}.")
        return jnp.concatenate([now, self.forecast[:window]])

    def with_lookahead(self, window: int) -> "Observation":
        """Return the observation with at most `window` forecasts, None if `window` is 0; a wrapper may have asked for more."""
        forecast = None if self.forecast is None or window == 0 else self.forecast[:window]
        return Observation(self.context, self.previous_action, self.step, self.remaining, forecast)

    @property
    def steps_left(self) -> Int[Array, ""]:
        """The number of steps until the horizon, this one included."""
        if self.remaining is None:
            raise NotApplicableError(
                "truncate=True needs Observation.remaining at every step; use truncate=False without a horizon."
            )
        return self.remaining + 1


class Info(eqx.Module):
    """What an agent says about its step besides the action.

    Args:
        converged: whether every solve did, those of the wrapped agent included.
        advice: (d,), what its advisor proposed. Default: it has none.
        details: the agent's own figures by name. Default: none.
        inner: what the wrapped agent said. Default: there is none.
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
    """Anything that acts.

    Besides what must be written, `check`, `promise` and `is_linear` may be: they are asked of every agent, and answer for one
    that has nothing to say. A class with nothing left to write is final: what it promises, and that it is linear, would be said
    of a subclass too, and need not be so.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for parent in cls.__mro__[1:]:
            if issubclass(parent, AbstractAgent) and not inspect.isabstract(parent):
                raise TypeError(
                    f"{parent.__name__} is final, since what it says of itself need not hold for a {cls.__name__}: wrap it "
                    "(hold it in a field and call its init and step), or begin from AbstractAgent."
                )

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

    def check(self, problem: Problem, start: Start) -> None:
        """Refuse, while numbers are known, what could only be noticed later inside a compiled run. Asks the agents inside."""
        for inner in child_agents(self):
            inner.check(problem, start)

    def promise(self, problem: Problem) -> Promise | None:
        """What is promised of the bill of the actions that this agent plays; None where nothing is."""
        return None

    def is_linear(self, problem: Problem) -> bool:
        """Whether it is known by structure that, on this problem, actions are linear in x_0, history, contexts and forecasts.

        `certify` calls a worst case exact on the strength of this answer. A wrapper is linear if the agent inside is and what it
        adds is; what clips, switches, guards or learns as it goes is not, nor is what has a constant part.
        """
        return False


def child_agents(agent: AbstractAgent) -> Iterator[AbstractAgent]:
    """The agents that this one holds in its fields, directly or in tuples and lists, in the order of the fields."""

    def found(value: Any) -> Iterator[AbstractAgent]:
        if isinstance(value, AbstractAgent):
            yield value
        elif isinstance(value, tuple | list):
            for item in value:
                yield from found(item)

    for field in dataclasses.fields(agent):
        yield from found(getattr(agent, field.name))


def walk_agents(agent: AbstractAgent) -> Iterator[AbstractAgent]:
    """The agent and every agent inside it, however deep, the outermost first.

    Args:
        agent: where to begin.
    """
    yield agent
    for inner in child_agents(agent):
        yield from walk_agents(inner)
