"""When the action that answers a context is in force: at once, later, or, for a context that is known ahead, by its step.

A step leaves a state to the next one, as in a `ControlProblem`. It begins with the latest action. With a delay the older actions
that are not yet due follow, the latest first; else the known contexts whose actions are still to be chosen, the earliest first.
Moves are paid for when they are decided.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ecl2o.exceptions import NotApplicableError
from ecl2o.problem.arrays import AnyArray, cast_floats, check_count

Solution = tuple[Float[Array, "T d"], Bool[Array, ""]]  # actions, and whether the solve converged


class AbstractTiming(eqx.Module):
    """The base class of timings: which action and which context meet at a step, and the state between steps.

    In signatures `d` is the number of numbers of an action. A `Problem` delegates to its timing what is not explained here.
    """

    @property
    @abc.abstractmethod
    def shift(self) -> int:
        """Steps from a context to the step in which its action is in force; below 0 where contexts are known ahead."""

    def check(self, problem: Any) -> None:
        """Raise NotApplicableError if a problem cannot have this timing."""
        if not self.shift:
            return
        _ = problem.quadratic_movement  # its Q tells how many numbers of a state are an action
        if problem.actions.ramp is not None:
            raise NotApplicableError(
                "a ramp of actions is not supported beside a delay or contexts known ahead; a spacing is."
            )
        if not problem.unlimited.actions.is_box:
            raise NotApplicableError(
                "actions that share a total are not supported beside a delay or contexts known ahead; use Immediate()."
            )

    def lookahead(self, window: int) -> int:
        """Return how many forecasts it takes to tell an agent the `window` contexts after that of its action's step."""
        return max(window + self.shift, 0) if window else 0

    @abc.abstractmethod
    def state_size(self, d: int, context_dim: int) -> int: ...

    @abc.abstractmethod
    def start_state(
        self, x0: Float[AnyArray, "*n d"], history: Float[AnyArray, "*n H q"]
    ) -> Float[AnyArray, "*n s"]: ...

    @abc.abstractmethod
    def end_state(
        self, actions: Float[AnyArray, "*n T d"], contexts: Float[AnyArray, "*n T q"]
    ) -> Float[AnyArray, "*n s"]: ...

    @abc.abstractmethod
    def next_state(
        self, state: Float[Array, " s"], action: Float[Array, " d"], context: Float[Array, " q"]
    ) -> Float[Array, " s"]: ...

    @abc.abstractmethod
    def meet(
        self, state: Float[Array, " s"], action: Float[Array, " d"], context: Float[Array, " q"]
    ) -> tuple[Float[Array, " d"], Float[Array, " q"]]:
        """Return the action and the context that meet at a step, in which `action` is chosen and `context` arrives."""

    @abc.abstractmethod
    def meet_all(
        self, state: Float[Array, " s"], actions: Float[Array, "T d"], contexts: Float[Array, "T q"]
    ) -> tuple[Float[Array, "T d"], Float[Array, "T q"]]:
        """Return the actions and the contexts that meet at the steps of a path from a state."""

    @abc.abstractmethod
    def answered(self, state: Float[Array, " s"], d: int, contexts: Float[Array, "T q"]) -> Float[Array, "n q"]:
        """Return the contexts, of a state and those after it, that meet the actions chosen from then on."""

    def find_path(
        self,
        solve: Callable[..., Solution],
        state: Float[Array, " s"],
        d: int,
        contexts: Float[Array, "T q"],
        steps: Any,
    ) -> Solution:
        """Return the optimal path of the first `steps` steps, from `solve(x0, contexts, steps)` of the immediate problem."""
        return solve(state[:d], self.answered(state, d, contexts)[: len(contexts)], steps)

    def game(self, problem: Any) -> Any:
        """Return the problem as a `ControlProblem`, without a spacing; None where actions are in force at once. Default: None.

        Raises:
            NotApplicableError: Costs are not quadratic and constant, or actions have bounds.
        """
        return None

    def control_state(self, state: Float[Array, " s"], d: int) -> Float[Array, " n"]:
        """Return the state of these dynamics: without covariates of known contexts. Default: the state."""
        return state


class Immediate(AbstractTiming):
    """An action is in force in the step of its context.

    >>> Immediate().shift
    0
    """

    @property
    def shift(self) -> int:
        return 0

    def state_size(self, d: int, context_dim: int) -> int:
        return d

    def start_state(self, x0, history):
        return x0

    def end_state(self, actions, contexts):
        return actions[..., -1, :]

    def next_state(self, state, action, context):
        return action

    def meet(self, state, action, context):
        return action, context

    def meet_all(self, state, actions, contexts):
        return actions, contexts

    def answered(self, state, d, contexts):
        return contexts


class Delayed(AbstractTiming):
    """An action is in force `steps` steps after the context that it answers.

    Until the first action is in force, x_0 is. Costs of misses are those of the action in force.

    Args:
        steps: 1 or more.

    Raises:
        ValueError: `steps` is not such a whole number.

    >>> import ecl2o as ec
    >>> late = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1), timing=Delayed(2))
    >>> state = late.start_state(jnp.array([1.0]), jnp.zeros((0, 1)))
    >>> late.next_state(state, jnp.array([5.0]), jnp.array([4.0])).tolist()
    [5.0, 1.0]
    >>> [float(cost) for cost in late.step_costs(state, jnp.array([5.0]), jnp.array([4.0]))]
    [4.5, 16.0]
    """

    steps: int = eqx.field(static=True)

    def __check_init__(self):
        check_count("steps", self.steps)

    @property
    def shift(self) -> int:
        return self.steps

    def state_size(self, d: int, context_dim: int) -> int:
        return self.steps * d

    def start_state(self, x0, history):
        return jnp.concatenate([x0] * self.steps, axis=-1)

    def end_state(self, actions, contexts):
        _check_day(self.steps, actions)
        return actions[..., ::-1, :][..., : self.steps, :].reshape(*actions.shape[:-2], -1)

    def next_state(self, state, action, context):
        return jnp.concatenate([action, state[: -len(action)]])

    def meet(self, state, action, context):
        return state[-len(action) :], context

    def meet_all(self, state, actions, contexts):
        decided = state.reshape(self.steps, -1)[::-1]
        return jnp.concatenate([decided, actions])[: len(contexts)], contexts

    def answered(self, state, d, contexts):
        return contexts[self.steps :]

    def find_path(self, solve, state, d, contexts, steps):
        """The first contexts meet actions that are decided already; the last actions meet none, and repeat the one before."""
        x0, T = state[:d], len(contexts)
        if self.steps >= T:
            return jnp.broadcast_to(x0, (T, d)), jnp.ones((), bool)
        actions, converged = solve(x0, self.answered(state, d, contexts), steps - self.steps)
        chosen = jnp.concatenate([x0[None], actions])  # x0 for runs that end before any action takes effect
        last = jnp.maximum(steps - self.steps, 0)
        return chosen[jnp.minimum(jnp.arange(1, T + 1), last)], converged

    def game(self, problem: Any) -> Any:
        from ecl2o.problem.control import delayed

        return _make_game(delayed, problem, self.steps)


class KnownAhead(AbstractTiming):
    """Contexts are known `steps` steps ahead, such as a schedule: an action is due when the context of a later step arrives.

    Args:
        steps: 1 or more. A run needs a history of as many contexts.

    Raises:
        ValueError: `steps` is not such a whole number.

    >>> import ecl2o as ec
    >>> early = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1), timing=KnownAhead(1))
    >>> state = early.start_state(jnp.array([1.0]), jnp.array([[4.0]]))
    >>> early.next_state(state, jnp.array([5.0]), jnp.array([6.0])).tolist()
    [5.0, 6.0]
    """

    steps: int = eqx.field(static=True)

    def __check_init__(self):
        check_count("steps", self.steps)

    @property
    def shift(self) -> int:
        return -self.steps

    def state_size(self, d: int, context_dim: int) -> int:
        return d + self.steps * context_dim

    def start_state(self, x0, history):
        if history.shape[-2] < self.steps:
            raise ValueError(
                f"contexts are known {self.steps} steps ahead: a run needs a history of at least so many, got "
                f"{history.shape[-2]}."
            )
        known = history[..., history.shape[-2] - self.steps :, :]
        return jnp.concatenate([x0, known.reshape(*x0.shape[:-1], -1)], axis=-1)

    def end_state(self, actions, contexts):
        _check_day(self.steps, actions)
        xp: Any = np if isinstance(actions, np.ndarray) else jnp
        known = xp.asarray(contexts)[..., actions.shape[-2] - self.steps :, :].reshape(*actions.shape[:-2], -1)
        return xp.concatenate([actions[..., -1, :], known], axis=-1)

    def next_state(self, state, action, context):
        return jnp.concatenate([action, state[len(action) + len(context) :], context])

    def meet(self, state, action, context):
        return action, state[len(action) : len(action) + len(context)]

    def meet_all(self, state, actions, contexts):
        return actions, self.answered(state, actions.shape[1], contexts)[: len(contexts)]

    def answered(self, state, d, contexts):
        return jnp.concatenate([state[d:].reshape(self.steps, -1), contexts])

    def game(self, problem: Any) -> Any:
        from ecl2o.problem.control import known_ahead

        return _make_game(known_ahead, problem, self.steps)

    def control_state(self, state, d):
        known = state[d:].reshape(self.steps, -1)[:, :d]
        return jnp.concatenate([state[:d], known.ravel()])


def _check_day(steps: int, actions: AnyArray) -> None:
    if steps > actions.shape[-2]:
        raise ValueError(f"a shift of {steps} steps is longer than a day of {actions.shape[-2]}.")


def _make_game(make: Callable[..., Any], problem: Any, steps: int) -> Any:
    return cast_floats(make(problem.immediate.relaxed.without_covariates, steps), problem.Q.dtype)
