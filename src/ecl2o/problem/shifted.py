"""Problems in which an action belongs to another step than the context that it answers: delays, and contexts known ahead."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.exceptions import NotApplicableError
from ecl2o.problem.actions import Limited, Total
from ecl2o.problem.arrays import AnyArray, cast_floats
from ecl2o.problem.control import ControlProblem, delayed, known_ahead
from ecl2o.problem.instance import Instance
from ecl2o.problem.problem import Problem


class ShiftedProblem(Problem):
    """A `Problem` in which the action that answers the context of step t is in force at step t + shift.

    A positive shift is a delay: actions take effect so many steps late. A negative one means that contexts are known so many
    steps ahead, such as a schedule: the action for a step is due when the context of a later step has arrived.

    What a step leaves to the next one is a state, as in a `ControlProblem`. With a delay it holds the actions that are not yet
    due, the latest first; else the latest action and the contexts whose actions are still to be chosen, the earliest first. A
    step costs f of the action and the context whose turn it is, plus c of the move to the action that is chosen: moves are paid
    for when they are decided. `start_state` makes the first state, in which x_0 is in force until the first action is.

    Agents for a `Problem` act on it inside of `agents.Shifted`.

    Args:
        hitting: f.
        switching: c, a `Mahalanobis`.
        actions: X. Default: all of R^d.
        shift: steps from a context to its action, not 0. Default: 1.

    Raises:
        ValueError: The shift is not a whole number, or 0.

    >>> import ecl2o as ec
    >>> late = ShiftedProblem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1), shift=2)
    >>> state = late.start_state(jnp.array([1.0]), jnp.zeros((0, 1)))
    >>> late.next_state(state, jnp.array([5.0]), jnp.array([4.0])).tolist()
    [5.0, 1.0]
    >>> [float(cost) for cost in late.step_costs(state, jnp.array([5.0]), jnp.array([4.0]))]
    [4.5, 16.0]
    """

    shift: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        if type(self.shift) is not int or not self.shift:
            raise ValueError(f"shift must be a whole number of steps other than 0, got {self.shift!r}.")
        if isinstance(self.actions, Limited) and self.actions.ramp is not None:
            raise NotApplicableError(
                "a ramp of actions is not supported beside a delay or contexts known ahead; a spacing is."
            )
        if isinstance(self.actions, Total):
            raise NotApplicableError(
                "actions that share a total are not supported beside a delay or contexts known ahead; use a Problem."
            )

    @property
    def unshifted(self) -> Problem:
        """The same costs and actions without a shift."""
        return Problem(self.hitting, self.switching, self.actions)

    @property
    def control(self) -> ControlProblem:
        """The same problem as linear dynamics with quadratic costs, without a spacing; its states are those of `control_state`.

        Raises:
            NotApplicableError: Costs are not quadratic and constant, or actions have bounds.
        """
        plain = self.unshifted.relaxed.without_covariates
        made = delayed(plain, self.shift) if self.shift > 0 else known_ahead(plain, -self.shift)
        return cast_floats(made, self.Q.dtype)

    def control_state(self, state: Float[Array, " n"]) -> Float[Array, " m"]:
        """Return a state without the numbers of contexts that are not followed."""
        if self.shift > 0:
            return state
        waiting = self._waiting(state)[:, : self._dim]
        return jnp.concatenate([state[: self._dim], waiting.ravel()])

    @property
    def _dim(self) -> int:
        return self.Q.shape[-1]

    def _waiting(self, state: Float[Array, " n"]) -> Float[Array, "w q"]:
        """Return the known contexts whose actions are still to be chosen."""
        return state[self._dim :].reshape(-self.shift, -1)

    def action_size(self, state_size: int) -> int:
        return self._dim

    def state_size(self, dim: int, context_dim: int) -> int:
        return self.shift * dim if self.shift > 0 else dim - self.shift * context_dim

    def start_state(self, x0: Float[AnyArray, "*n d"], history: Float[AnyArray, "*n H q"]) -> Float[AnyArray, "*n s"]:
        if self.shift > 0:
            return jnp.concatenate([x0] * self.shift, axis=-1)
        known = -self.shift
        if history.shape[-2] < known:
            raise ValueError(
                f"contexts are known {known} steps ahead: a run needs a history of at least so many, got {history.shape[-2]}."
            )
        waiting = history[..., history.shape[-2] - known :, :]
        return jnp.concatenate([x0, waiting.reshape(*x0.shape[:-1], -1)], axis=-1)

    def end_state(
        self, actions: Float[AnyArray, "*n T d"], contexts: Float[AnyArray, "*n T q"]
    ) -> Float[AnyArray, "*n s"]:
        left, T = abs(self.shift), actions.shape[-2]
        if left > T:
            raise ValueError(f"a shift of {self.shift} steps is longer than a day of {T}.")
        xp: Any = np if isinstance(actions, np.ndarray) else jnp
        if self.shift > 0:
            return actions[..., ::-1, :][..., :left, :].reshape(*actions.shape[:-2], -1)
        waiting = xp.asarray(contexts)[..., T - left :, :].reshape(*actions.shape[:-2], -1)
        return xp.concatenate([actions[..., -1, :], waiting], axis=-1)

    def limit(self, previous: Float[Array, " s"], action: Float[Array, " d"]) -> Float[Array, " d"]:
        return self.unshifted.limit(previous[: self._dim], action)

    def due(
        self, state: Float[Array, " s"], action: Float[Array, " d"], context: Float[Array, " q"]
    ) -> tuple[Float[Array, " d"], Float[Array, " q"]]:
        """Return the action and the context that meet at a step."""
        return (state[-self._dim :], context) if self.shift > 0 else (action, self._waiting(state)[0])

    def next_state(
        self, state: Float[Array, " s"], action: Float[Array, " d"], context: Float[Array, " q"], step: Any = 0
    ) -> Float[Array, " s"]:
        if self.shift > 0:
            return jnp.concatenate([action, state[: -self._dim]])
        return jnp.concatenate([action, self._waiting(state)[1:].ravel(), context])

    def step_costs(
        self, state: Float[Array, " s"], action: Float[Array, " d"], context: Float[Array, " q"], step: Any = 0
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return self.hitting(*self.due(state, action, context)), self.switching(action, state[: self._dim])

    def costs(
        self, x0: Float[Array, " s"], actions: Float[Array, "T d"], contexts: Float[Array, "T q"]
    ) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
        T, in_force, met = contexts.shape[0], actions, contexts
        if self.shift > 0:
            in_force = jnp.concatenate([x0.reshape(self.shift, self._dim)[::-1], actions])[:T]
        else:
            met = jnp.concatenate([self._waiting(x0), contexts])[:T]
        previous = jnp.concatenate([x0[None, : self._dim], actions[:-1]])
        return jax.vmap(self.hitting)(in_force, met), jax.vmap(self.switching)(actions, previous)

    def check(self, instance: Instance) -> None:
        expected = self.state_size(self._dim, instance.contexts.shape[-1])
        if instance.x0.ndim == 1 and instance.dim != expected:
            raise ValueError(f"x0 must be a state of {expected} numbers, as start_state makes it, got {instance.dim}.")
        self.unshifted.check(Instance(instance.x0[..., : self._dim], instance.contexts, instance.history))
