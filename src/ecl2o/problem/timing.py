"""When the action that answers a context is in force: at once, later, or, where contexts are known ahead, before they arrive.

A step leaves a state to the next one, as in a `ControlProblem`: the latest action, older ones that are not yet due, the latest
first, and the known contexts whose actions are still to be chosen, the earliest first. Moves are paid for when they are decided.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ecl2o.exceptions import NotApplicableError
from ecl2o.problem.arrays import AnyArray, cast_floats, check_count


class AbstractTiming(eqx.Module):
    """The base class of timings: which action and which context meet at a step, and the state between steps.

    `late` is by how many steps an action is in force after its context, `early` how many contexts are known ahead; one of them
    is 0. `Problem` explains the methods that it delegates.
    """

    late = 0
    early = 0

    @property
    def shift(self) -> int:
        """Steps from a context to the step in which its action is in force; below 0 where contexts are known ahead."""
        return self.late - self.early

    def check(self, problem: Any) -> None:
        """Raise NotApplicableError if a problem cannot have this timing."""
        if not self.shift:
            return
        _ = problem.quadratic_movement  # Q tells how many numbers of a state are an action
        if problem.actions.ramp is not None or not problem.unlimited.actions.is_box:
            raise NotApplicableError(
                "with a delay, or contexts known ahead, actions may have bounds and a spacing, neither a ramp nor a total, got "
                f"{type(problem.actions).__name__} and {self}: leave one of them out."
            )

    def lookahead(self, window: int) -> int:
        """Return how many forecasts it takes to tell an agent the `window` contexts after the one that its action meets."""
        return max(window + self.shift, 0) if window else 0

    def _count_actions(self) -> int:
        return max(self.late, 1)

    def state_size(self, dim: int, context_dim: int) -> int:
        return self._count_actions() * dim + self.early * context_dim

    def start_state(self, x0: Float[AnyArray, "*n d"], history: Float[AnyArray, "*n H q"]) -> Float[AnyArray, "*n s"]:
        if not self.shift:
            return x0
        if (seen := history.shape[-2]) < self.early:
            raise ValueError(
                f"contexts are known {self.early} steps ahead: a run needs a history of at least so many, got {seen}."
            )
        known = [history[..., seen - self.early :, :].reshape(*x0.shape[:-1], -1)] if self.early else []
        return jnp.concatenate([x0] * self._count_actions() + known, axis=-1)

    def end_state(
        self, actions: Float[AnyArray, "*n T d"], contexts: Float[AnyArray, "*n T q"]
    ) -> Float[AnyArray, "*n s"]:
        before, T = actions.shape[:-2], actions.shape[-2]
        if abs(self.shift) > T:
            raise ValueError(f"a shift of {self.shift} steps is longer than a day of {T}.")
        latest = actions[..., ::-1, :][..., : self._count_actions(), :].reshape(*before, -1)
        if not self.early:
            return latest
        xp: Any = np if isinstance(actions, np.ndarray) else jnp
        return xp.concatenate([latest, xp.asarray(contexts)[..., T - self.early :, :].reshape(*before, -1)], axis=-1)

    def next_state(
        self, state: Float[Array, " s"], action: Float[Array, " d"], context: Float[Array, " q"]
    ) -> Float[Array, " s"]:
        if not self.shift:
            return action
        actions = self._count_actions() * len(action)
        known = jnp.concatenate([state[actions:], context])[len(context) :]
        return jnp.concatenate([action, state[: actions - len(action)], known])

    def meet(
        self, state: Float[Array, " s"], actions: Float[Array, "T d"], contexts: Float[Array, "T q"]
    ) -> tuple[Float[Array, "T d"], Float[Array, "T q"]]:
        """Return the actions and contexts that meet at the next steps: `actions` are chosen in them, and `contexts` arrive."""
        if not self.shift:
            return actions, contexts
        T, d = actions.shape
        if self.early:
            return actions, self.contexts_to_meet(state, d, contexts)[:T]
        decided = state.reshape(self.late, d)[::-1]
        return jnp.concatenate([decided, actions])[:T], contexts

    def meet_now(
        self, state: Float[Array, " s"], action: Float[Array, " d"], context: Float[Array, " q"]
    ) -> tuple[Float[Array, " d"], Float[Array, " q"]]:
        """Return the action and the context that meet at the next step."""
        if not self.shift:
            return action, context
        actions, contexts = self.meet(state, action[None], context[None])
        return actions[0], contexts[0]

    def contexts_to_meet(
        self, state: Float[Array, " s"], dim: int, contexts: Float[Array, "T q"]
    ) -> Float[Array, "n q"]:
        """Return the contexts that actions chosen from a state on will meet, as far as they are known when `contexts` are."""
        known = state[self._count_actions() * dim :].reshape(self.early, contexts.shape[1])
        return jnp.concatenate([known, contexts])[self.late :]

    def find_path(
        self, solve: Callable[..., Any], state: Float[Array, " s"], dim: int, contexts: Float[Array, "T q"], steps: Any
    ) -> tuple[Float[Array, "T d"], Bool[Array, ""]]:
        """Return the optimal actions of the first `steps` steps, and whether the solve converged.

        `solve(x0, contexts, steps)` returns both for the immediate problem.

        With a delay, the first contexts meet actions that are decided already, and the last actions meet none: they
        repeat the one before. With contexts known ahead, the last ones are not reached.
        """
        if not self.shift:
            return solve(state, contexts, steps)
        x0, T = state[:dim], len(contexts)
        if self.late >= T:
            return jnp.broadcast_to(x0, (T, dim)), jnp.ones((), bool)
        actions, converged = solve(x0, self.contexts_to_meet(state, dim, contexts)[:T], steps - self.late)
        chosen = jnp.concatenate([x0[None], actions])  # x0 for runs that end before any action takes effect
        last = jnp.maximum(steps - self.late, 0)
        return chosen[jnp.minimum(jnp.arange(1, T + 1), last)], converged

    def game(self, problem: Any) -> Any:
        """Return a problem with a shift as a `ControlProblem` without a spacing, else None.

        Raises:
            NotApplicableError: Costs are not quadratic and constant, or actions have bounds.
        """
        if not self.shift:
            return None
        from ecl2o.problem.control import delayed, known_ahead

        plain = problem.immediate.relaxed.without_covariates
        return cast_floats(delayed(plain, self.late) if self.late else known_ahead(plain, self.early), problem.Q.dtype)

    def control_state(self, state: Float[Array, " s"], dim: int) -> Float[Array, " n"]:
        """Return the state of that problem, which is without the numbers of contexts that are not followed."""
        if not self.early:
            return state
        return jnp.concatenate([state[:dim], state[dim:].reshape(self.early, -1)[:, :dim].ravel()])


class Immediate(AbstractTiming):
    """An action is in force in the step of its context.

    >>> Immediate().shift
    0
    """


class Delayed(AbstractTiming):
    """An action is in force `late` steps after the context that it answers; until the first one is, x_0 is.

    Args:
        late: the delay in steps, 1 or more.

    Raises:
        ValueError: it is not such a whole number.

    >>> import ecl2o as ec
    >>> late = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1), timing=Delayed(2))
    >>> state = late.start_state(jnp.array([1.0]), jnp.zeros((0, 1)))
    >>> late.next_state(state, jnp.array([5.0]), jnp.array([4.0])).tolist()
    [5.0, 1.0]
    >>> [float(cost) for cost in late.step_costs(state, jnp.array([5.0]), jnp.array([4.0]))]
    [4.5, 16.0]
    """

    late: int = eqx.field(static=True)

    def __check_init__(self):
        check_count("late", self.late)


class KnownAhead(AbstractTiming):
    """Contexts are known `early` steps ahead, as a schedule is: the action for a step is due when that of a later one arrives.

    Args:
        early: steps, 1 or more. A run needs a history of as many contexts.

    Raises:
        ValueError: it is not such a whole number.

    >>> import ecl2o as ec
    >>> plan = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1), timing=KnownAhead(1))
    >>> plan.next_state(jnp.array([1.0, 4.0]), jnp.array([5.0]), jnp.array([6.0])).tolist()
    [5.0, 6.0]
    """

    early: int = eqx.field(static=True)

    def __check_init__(self):
        check_count("early", self.early)
