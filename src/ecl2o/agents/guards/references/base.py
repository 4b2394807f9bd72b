"""The interface of references: whose cost a promise multiplies, and what the future can still cost relative to it.

A guard asks its reference at every step for a `ReferenceStep`: how the reference's cost grows, and the set of actions with
which the promise can still be kept. A new kind of promise is a new reference, in a file of its own, and a line in the
conformance tests.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.agents.base import AbstractAgent, AnyProblem, Observation, Start
from ecl2o.agents.guards.level_sets import AbstractLevelSet, Action, Number, Origin
from ecl2o.agents.guards.needs import check_needs
from ecl2o.agents.promise import Promise
from ecl2o.problem.arrays import as_float

State = Any
Prepared = Any


class AbstractReferenceStep(eqx.Module):
    """What a reference says about a step, before the action is chosen.

    Fields of every subclass:
        growth: by how much the reference's cost grows, as far as it does not depend on the action; 0 where the step is not
            usable.
        usable: whether the growth is finite.
        announced: whether the conditions of the promise are met.
    """

    @property
    @abc.abstractmethod
    def origin(self) -> Origin:
        """From where its level set is measured."""

    def only_if(self: Any, finite: Bool[Array, ""]) -> Any:
        """Return the step, which is not usable unless its context is finite."""
        usable = self.usable & finite
        return dataclasses.replace(self, usable=usable, growth=jnp.where(usable, self.growth, 0.0))

    @abc.abstractmethod
    def level_set(self, left: Number, origin: Origin | None = None) -> AbstractLevelSet:
        """Return what is allowed if the account has so much left; measured from another origin for several promises."""

    @property
    def converged(self) -> Bool[Array, "*n"] | None:
        """Whether every solve did. Default: None, there is none."""
        return None

    @property
    def safest(self) -> Action | None:
        """An action that is allowed, less the origin, if it is not the one of least cost and reserve. Default: None, it is."""
        return None

    @property
    def hold(self) -> Action | None:
        """What is played where the step is not usable. Default: None, the previous action."""
        return None

    @property
    def when_lost(self) -> Action | None:
        """What is played, less the origin, once the promise is lost. Default: None, the safest action."""
        return None


class Settlement(eqx.Module):
    """The account of a step that was played.

    Fields:
        state: the reference's state after the step.
        growth: of the reference's cost.
        rounding: a bound on the error of the growth.
        reported: the growth for reports.
        cost: what the promise counts as the cost of the step.
        cost_rounding: a bound on its error.
        paid: the cost for reports.
    """

    state: State
    growth: Number
    rounding: Number
    reported: Number
    cost: Number
    cost_rounding: Number
    paid: Number


class PromiseTerms(eqx.Module):
    """The numbers of one promise, and which reference they multiply.

    Args:
        ratio: the factor.
        allowance: cost allowed on top in each period, 0 or more. Default: 0.
        period: steps that the promise covers; None: the whole run. Default: None.
        rolling: whether it covers every window of up to `period` steps. Default: False.
        reference: the place of its reference in the guard. Default: 0.
    """

    ratio: Float[Array, ""] = eqx.field(converter=as_float)
    allowance: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)
    period: int | None = eqx.field(static=True, default=None)
    rolling: bool = eqx.field(static=True, default=False)
    reference: int = eqx.field(static=True, default=0)

    @property
    def phases(self) -> list[int]:
        """The places in a period at which its accounts restart: one account, or one for each window; -1 is never."""
        if self.period is None:
            return [-1]
        return list(range(self.period)) if self.rolling else [0]


class AbstractReference(eqx.Module):
    """Whose cost a promise is relative to. Every method is a pure function of its arguments.

    `kind` is its row in `NEEDS`. `several` says that the promise is kept beside others: all of them then price the future in the
    same way.
    """

    kind: ClassVar[str]

    @property
    def conditions(self) -> Any:
        """The conditions of its promise, which `NEEDS` are asked about. Default: none."""
        return None

    def on(self, problem: AnyProblem) -> "AbstractReference":
        """Return the reference that follows the same cost on this kind of problem. Default: itself."""
        return self

    @property
    def known_as(self) -> str:
        """The name by which descriptions and `citation` know a guard with it. Default: that of its class."""
        return type(self).__name__

    @property
    def lookahead(self) -> int:
        """How many future contexts it needs. Default: none."""
        return 0

    def map_agent(self, function: Callable[[AbstractAgent], AbstractAgent]) -> "AbstractReference":
        """Return the reference with another agent instead of its own. Default: itself, it has none."""
        return self

    def with_contexts(self, contexts: Any) -> "AbstractReference":
        """Return the reference with this range of contexts, if it has one. Default: itself."""
        return self

    def reachable(self, problem: AnyProblem, previous: Action) -> tuple[Action, Action] | None:
        """Return the least and the greatest action that a ramp and the promise allow. Default: None, there is no ramp."""
        return None

    @abc.abstractmethod
    def describe(self, problem: AnyProblem, terms: PromiseTerms, least: float | None) -> Promise:
        """Return what is promised with these numbers; `least` is the least ratio of several promises, None for one alone."""

    def check_problem(self, problem: AnyProblem, start: Start, several: bool) -> None:
        """Raise `NotApplicableError` if the problem lacks what the promise needs."""
        check_needs(self.kind, problem, problem.action_size(start.dim), self.conditions, several)

    @abc.abstractmethod
    def check(self, problem: AnyProblem, start: Start, ratios: list[Float[Array, ""]], several: bool) -> None:
        """Raise `NotApplicableError` if the run does not fit or, where numbers are concrete, a ratio cannot be promised."""

    @abc.abstractmethod
    def prepare(self, problem: AnyProblem, start: Start, several: bool) -> Prepared:
        """Return what does not change from step to step: the future's stiffness, say."""

    @abc.abstractmethod
    def feasible(
        self, problem: AnyProblem, prepared: Prepared, start: Start, ratios: Float[Array, " promises"], several: bool
    ) -> tuple[Bool[Array, ""], Number]:
        """Return whether the ratios can be promised, checked under tracing too, and a ratio that always can."""

    @abc.abstractmethod
    def init(self, problem: AnyProblem, prepared: Prepared, start: Start) -> State:
        """Return the state before the first step."""

    @abc.abstractmethod
    def restart(self, problem: AnyProblem, prepared: Prepared, state: State, position: Float[Array, " n"]) -> State:
        """Return the state at the start of a period, from the position in force. What was learned stays."""

    @abc.abstractmethod
    def observe(
        self, problem: AnyProblem, prepared: Prepared, state: State, ratio: Number, observation: Observation
    ) -> AbstractReferenceStep:
        """Return what it says about a step; the context has zeros where it is not finite, and the step is then not usable."""

    @abc.abstractmethod
    def settle(
        self,
        problem: AnyProblem,
        term: AbstractReferenceStep,
        state: State,
        ratio: Number,
        observation: Observation,
        action: Action,
    ) -> Settlement:
        """Return the account of a step in which `action` was played."""

    def common_action(
        self, problem: AnyProblem, prepared: Prepared, observation: Observation, least: Number, origin: Origin
    ) -> tuple[Action, Bool[Array, ""]]:
        """Return an action that all promises of at least this ratio allow, less the origin, and whether it exists."""
        raise NotImplementedError

    def rescale(self, factor: float) -> "AbstractReference":
        """Return the reference for contexts `factor` times as large. Default: itself."""
        return self

    def within(self, low: float, high: float) -> "AbstractReference":
        """Return the reference for actions between `low` and `high`; a promise may then require contexts there."""
        return self


def name_reference(agent: AbstractAgent) -> str:
    """Return how a promise relative to an agent calls it: its class, unless that has a `reference_name`."""
    return getattr(type(agent), "reference_name", type(agent).__name__)
