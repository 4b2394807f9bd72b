"""A problem: hitting cost, switching cost, action set and timing; and what every kind of problem can do."""

import abc
import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.exceptions import NotApplicableError
from ecl2o.problem.actions import AbstractActionSet, Everywhere, Limited, Total
from ecl2o.problem.arrays import AnyArray
from ecl2o.problem.hitting import AbstractHittingCost, AbstractQuadraticCost, Quadratic, SquaredTracking
from ecl2o.problem.instance import Instance
from ecl2o.problem.switching import AbstractSwitchingCost, Mahalanobis
from ecl2o.problem.timing import AbstractTiming, Immediate


class AbstractProblem(eqx.Module):
    """The base class of problems: what a step costs, and where it leads. `rollout`, `Stepper` and `oracle` take any of them.

    The *state* is what a step leaves to the next one: the action of a `Problem`, or more where its timing is not `Immediate`; the
    state of a `ControlProblem`. It starts at x_0 and is in `Observation.previous_action`.
    """

    timing = Immediate()

    @property
    @abc.abstractmethod
    def dynamics(self) -> Any:
        """The problem as a `ControlProblem`, if its state is more than an action (`AbstractTiming.dynamics`); else None."""

    @abc.abstractmethod
    def action_size(self, state_size: int) -> int:
        """Return how many numbers an action has, if a state has `state_size`."""

    @abc.abstractmethod
    def next_state(
        self, state: Float[Array, " n"], action: Float[Array, " k"], context: Float[Array, " q"], step: Any
    ) -> Float[Array, " n"]:
        """Return the state after a step, the number `step` from 0."""

    @abc.abstractmethod
    def step_costs(
        self, state: Float[Array, " n"], action: Float[Array, " k"], context: Float[Array, " q"], step: Any
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return the hitting and the switching cost of a step."""

    @abc.abstractmethod
    def costs(
        self, x0: Float[Array, " n"], actions: Float[Array, "T k"], contexts: Float[Array, "T q"]
    ) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
        """Return the hitting and the switching cost of each step of a path."""

    @abc.abstractmethod
    def check(self, instance: Instance) -> None:
        """Raise ValueError if an instance does not fit this problem."""

    @property
    @abc.abstractmethod
    def is_unbounded_quadratic(self) -> bool:
        """Whether every solve is linear: quadratic costs, no bounds."""

    @property
    @abc.abstractmethod
    def is_linear_quadratic(self) -> bool:
        """Whether, in addition, optimal actions are linear in the contexts."""

    @property
    @abc.abstractmethod
    def is_bounded(self) -> bool:
        """Whether actions have bounds."""

    def at_context(self, context: Float[Array, " q"]) -> "AbstractProblem":
        """Return the problem of a step: where a context determines the action set, with that set. Default: the problem."""
        return self

    def limit(self, previous: Float[Array, " n"], action: Float[Array, " k"]) -> Float[Array, " k"]:
        """Return the action that is played instead of `action` where limits on actions must be obeyed. Default: `action`."""
        return action

    @property
    def covariates(self) -> int:
        """How many numbers at the end of a context the costs ignore."""
        return getattr(getattr(self, "hitting", None), "covariates", 0)

    def drop_covariates(self, contexts: Float[AnyArray, "*n q"]) -> Float[AnyArray, "*n r"]:
        """Return the numbers of contexts that the costs depend on."""
        return contexts[..., : contexts.shape[-1] - self.covariates] if self.covariates else contexts


class Problem(AbstractProblem):
    """min over x_1..x_T in X of the sum of f(x_t, y_t) + c(x_t, x_{t-1}) (Eqn. obj of the paper).

    Args:
        hitting: f, the cost of an action under a context.
        switching: c, the cost of a move.
        actions: X, the allowed actions. Default: all of R^d.
        timing: When an action is in force: `Immediate()`, `Delayed(k)`, k steps after its context, or `KnownAhead(k)`. The last
            two need a `Mahalanobis` switching cost. Default: `Immediate()`.

    >>> from ecl2o.problem import SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> float(problem.m), float(problem.alpha), float(problem.beta)
    (1.0, 10.0, 10.0)
    """

    hitting: AbstractHittingCost
    switching: AbstractSwitchingCost
    actions: AbstractActionSet = Everywhere()
    timing: AbstractTiming = Immediate()  # pyright: ignore[reportIncompatibleVariableOverride]

    def __check_init__(self):
        self.timing.check(self)

    @property
    def is_bounded(self) -> bool:
        return not isinstance(self.actions, Everywhere)

    @property
    def immediate(self) -> "Problem":
        """The same costs and actions, where an action is in force in the step of its context."""
        return dataclasses.replace(self, timing=Immediate())

    @property
    def dynamics(self) -> Any:
        return self.timing.dynamics(self)

    @property
    def without_covariates(self) -> "Problem":
        """The problem whose contexts are what the costs depend on, for `SquaredTracking`; others are returned as they are."""
        if not (isinstance(self.hitting, SquaredTracking) and self.covariates):
            return self
        return dataclasses.replace(self, hitting=dataclasses.replace(self.hitting, covariates=0))

    @property
    def relaxed(self) -> "Problem":
        """The problem without a spacing of its actions."""
        if not isinstance(self.actions, Limited):
            return self
        return dataclasses.replace(self, actions=self.actions.relaxed)

    def at_context(self, context: Float[Array, " q"]) -> "Problem":
        if not isinstance(self.actions, Total) or self.actions.column is None:
            return self
        return dataclasses.replace(self, actions=self.actions.at(context))

    def limit(self, previous: Float[Array, " s"], action: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the nearest action that the ramp and the spacing of `Limited` allow; any action without them."""
        return self.actions.reach(previous[: len(action)], action) if isinstance(self.actions, Limited) else action

    @property
    def m(self) -> Float[Array, ""]:
        """The strong convexity of the hitting cost."""
        return self.hitting.strong_convexity

    @property
    def quadratic_movement(self) -> Mahalanobis:
        """The switching cost as a `Mahalanobis`; raises `NotApplicableError` for any other kind."""
        if not isinstance(self.switching, Mahalanobis):
            raise NotApplicableError(f"this needs a Mahalanobis switching cost, got {type(self.switching).__name__}.")
        return self.switching

    @property
    def Q(self) -> Float[Array, "d d"]:
        """The matrix of the switching cost."""
        return self.quadratic_movement.Q

    @property
    def alpha(self) -> Float[Array, ""]:
        """Twice the smallest eigenvalue of Q."""
        return self.quadratic_movement.alpha

    @property
    def beta(self) -> Float[Array, ""]:
        """Twice the largest eigenvalue of Q."""
        return self.quadratic_movement.beta

    @property
    def is_unbounded_quadratic(self) -> bool:
        """Whether every solve is linear: quadratic hitting and switching costs, no bounds."""
        return (
            isinstance(self.hitting, AbstractQuadraticCost)
            and isinstance(self.switching, Mahalanobis)
            and not self.is_bounded
        )

    @property
    def is_constant_quadratic(self) -> bool:
        """Whether, in addition, the curvature is the same for every context: optimal actions are then linear in the centres."""
        hitting = self.hitting
        return self.is_unbounded_quadratic and isinstance(hitting, AbstractQuadraticCost) and hitting.constant_curvature

    @property
    def is_linear_quadratic(self) -> bool:
        """Whether, in addition, the contexts themselves are the centres: optimal actions are then linear in the contexts."""
        tracks = isinstance(self.hitting, SquaredTracking | Quadratic) and not self.covariates
        return self.is_unbounded_quadratic and tracks

    def check(self, instance: Instance) -> None:
        """Check that an instance fits this problem.

        Raises:
            ValueError: It is a set of instances, its shapes do not fit, or x0 lies outside the action set.
        """
        if instance.x0.ndim != 1:
            raise ValueError(
                f"this takes one instance, got a set of {instance.x0.shape[0]}; use jax.vmap over the set, "
                "for example jax.vmap(lambda s: ec.rollout(agent, problem, s))(instances)."
            )
        dim, context_dim = self.action_size(instance.dim), instance.contexts.shape[-1]
        if instance.dim != (expected := self.state_size(dim, context_dim)):
            raise ValueError(f"x0 must be a state of {expected} numbers, as start_state makes it, got {instance.dim}.")
        self.switching.check(dim)
        self.hitting.check(dim, context_dim)
        self.actions.check(instance.x0[:dim])
        if isinstance(self.actions, Total) and self.actions.column is not None:
            if not -context_dim <= self.actions.column < context_dim:
                raise ValueError(
                    f"the total is number {self.actions.column} of a context, but these have {context_dim}."
                )
            self.actions.check_totals(self.actions.totals(instance.contexts), dim)

    def action_size(self, state_size: int) -> int:
        return self.Q.shape[-1] if self.timing.shift else state_size

    def state_size(self, dim: int, context_dim: int) -> int:
        """Return how many numbers a state has, if actions have `dim` and contexts `context_dim`."""
        return self.timing.state_size(dim, context_dim)

    def start_state(self, x0: Float[AnyArray, "*n d"], history: Float[AnyArray, "*n H q"]) -> Float[AnyArray, "*n s"]:
        """Return the state before the first step, for an action in force and the contexts before it.

        Raises:
            ValueError: The history is shorter than the state needs.
        """
        return self.timing.start_state(x0, history)

    def end_state(
        self, actions: Float[AnyArray, "*n T d"], contexts: Float[AnyArray, "*n T q"]
    ) -> Float[AnyArray, "*n s"]:
        """Return the state after a day, or after each of several.

        Raises:
            ValueError: The state depends on more steps than a day has.
        """
        return self.timing.end_state(actions, contexts)

    def next_state(
        self, state: Float[Array, " s"], action: Float[Array, " d"], context: Float[Array, " q"], step: Any = 0
    ) -> Float[Array, " s"]:
        """Return the state after a step; the action where it is in force at once."""
        return self.timing.next_state(state, action, context)

    def step_costs(
        self, state: Float[Array, " s"], action: Float[Array, " d"], context: Float[Array, " q"], step: Any = 0
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return f(x_t, y_t) of the action in force and its context, and c(x_t, x_{t-1}) of the move that is decided."""
        in_force, met = self.timing.meet(state, action[None], context[None])
        return self.hitting(in_force[0], met[0]), self.switching(action, state[: len(action)])

    def costs(
        self, x0: Float[Array, " s"], actions: Float[Array, "T d"], contexts: Float[Array, "T q"]
    ) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
        """Return the hitting and the switching cost of each step of a path.

        Args:
            x0: (s,), the state before the first step.
            actions: (T, d).
            contexts: (T, q).

        Returns:
            Two arrays (T,).
        """
        previous = jnp.concatenate([x0[None, : actions.shape[1]], actions[:-1]])
        return jax.vmap(self.hitting)(*self.timing.meet(x0, actions, contexts)), jax.vmap(self.switching)(
            actions, previous
        )
