"""A problem: hitting cost, switching cost, action set and timing; and what every kind of problem can do."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.problem.actions import AbstractActionSet, Everywhere
from ecl2o.problem.arrays import AnyArray
from ecl2o.problem.hitting import AbstractHittingCost, Pull
from ecl2o.problem.instance import Instance
from ecl2o.problem.objectives import StepObjective
from ecl2o.problem.switching import AbstractSwitchingCost, Mahalanobis
from ecl2o.problem.timing import AbstractTiming, Immediate

if TYPE_CHECKING:
    from ecl2o.problem.control import ControlProblem


class AbstractProblem(eqx.Module):
    """The base class of problems: what a step costs, and where it leads. `rollout`, `Stepper` and `oracle` take any of them.

    The *state* is what a step leaves to the next one: the action of a `Problem`, or more where its timing is not `Immediate`; the
    state of a `ControlProblem`. It starts at x_0 and is in `Observation.previous_action`.
    """

    actions = Everywhere()
    timing = Immediate()

    @property
    @abc.abstractmethod
    def game(self) -> "ControlProblem | None":
        """The problem as linear dynamics, in which promises are priced, if its state is more than an action; else None.

        Raises:
            NotApplicableError: It has such a state, but costs are not quadratic and constant, or actions have bounds.
        """

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

    @property
    def relaxed(self) -> "AbstractProblem":
        """The problem without a spacing of its actions. Default: the problem."""
        return self

    @property
    def unlimited(self) -> "AbstractProblem":
        """The problem without a ramp and a spacing of its actions. Default: the problem."""
        return self

    @property
    def dynamics(self) -> "ControlProblem | None":
        """The problem as linear dynamics with quadratic costs, if that is how it is solved. Default: None."""
        return None

    def last_action(self, state: Float[Array, " n"]) -> Float[Array, " k"]:
        """Return the action that is repeated where there is no other: by default, the action in force."""
        return state[: self.action_size(len(state))]

    def limit(self, previous: Float[Array, " n"], action: Float[Array, " k"]) -> Float[Array, " k"]:
        """Return the action that is played instead of `action` where limits on actions must be obeyed. Default: `action`."""
        return action

    @property
    def covariates(self) -> int:
        """How many numbers at the end of a context the costs ignore."""
        return 0

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
    actions: AbstractActionSet = Everywhere()  # pyright: ignore[reportIncompatibleVariableOverride]
    timing: AbstractTiming = Immediate()  # pyright: ignore[reportIncompatibleVariableOverride]

    def __check_init__(self):
        self.timing.check(self)

    @property
    def is_bounded(self) -> bool:
        return self.actions.is_bounded

    @property
    def covariates(self) -> int:
        return self.hitting.covariates

    @property
    def immediate(self) -> "Problem":
        """The same costs and actions, where an action is in force in the step of its context."""
        return dataclasses.replace(self, timing=Immediate())

    @property
    def game(self) -> "ControlProblem | None":
        return self.timing.game(self)

    @property
    def without_covariates(self) -> "Problem":
        """The problem whose contexts are what the costs depend on."""
        if not self.covariates:
            return self
        return dataclasses.replace(self, hitting=dataclasses.replace(self.hitting, covariates=0))

    @property
    def relaxed(self) -> "Problem":
        """The problem without a spacing of its actions."""
        return self._with_actions(self.actions.relaxed)

    @property
    def unlimited(self) -> "Problem":
        return self._with_actions(self.actions.unlimited)

    def _with_actions(self, actions: AbstractActionSet) -> "Problem":
        return self if actions is self.actions else dataclasses.replace(self, actions=actions)

    def at_context(self, context: Float[Array, " q"]) -> "Problem":
        return self._with_actions(self.actions.at_context(context))

    def limit(self, previous: Float[Array, " s"], action: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the nearest action that the ramp and the spacing of `Limited` allow; any action without them."""
        return self.actions.reach(previous[: len(action)], action)

    def objective(
        self, context: Float[Array, " q"], pulls: Sequence[Pull] = (), gain: Float[Array, "d d"] | None = None
    ) -> StepObjective:
        """Return f(x, y) + sum_i w_i c(x, p_i) as a function of x, for `self.actions.minimize`.

        Args:
            context: (q,), y.
            pulls: the pairs (w_i, p_i). Default: none.
            gain: `pull_gain`, if it is known. Default: it is computed where it is needed.
        """
        return StepObjective(self.hitting, self.switching, context, tuple(pulls), gain)

    @property
    def m(self) -> Float[Array, ""]:
        """The strong convexity of the hitting cost."""
        return self.hitting.strong_convexity

    @property
    def quadratic_movement(self) -> Mahalanobis:
        """The switching cost as a `Mahalanobis`; raises `NotApplicableError` for any other kind."""
        return self.switching.quadratic_movement

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
    def is_quadratic(self) -> bool:
        """Whether hitting and switching costs are quadratic."""
        return self.hitting.is_quadratic and self.switching.is_quadratic

    @property
    def is_unbounded_quadratic(self) -> bool:
        """Whether every solve is linear: quadratic hitting and switching costs, no bounds."""
        return self.is_quadratic and not self.is_bounded

    @property
    def is_constant_quadratic(self) -> bool:
        """Whether, in addition, the curvature is the same for every context: optimal actions are then linear in the centres."""
        return self.is_unbounded_quadratic and self.hitting.constant_curvature

    @property
    def is_linear_quadratic(self) -> bool:
        """Whether, in addition, the contexts themselves are the centres: optimal actions are then linear in the contexts."""
        return self.is_unbounded_quadratic and self.hitting.tracks_context and not self.covariates

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
        self.actions.check_contexts(instance.contexts, dim)

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
        in_force = self.timing.meet_now(state, action, context)
        return self.hitting(*in_force), self.switching(action, state[: len(action)])

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
