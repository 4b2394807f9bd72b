"""Actions from outside: those that come with the context, and the action in force."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import AbstractProblem, Problem
from ecl2o.problem.arrays import as_float, check_positive

LARGEST_ADVICE = 1e100  # costs are sums of squares, which must be numbers for any weights and alpha in use


class HoldStill(AbstractAgent):
    """The agent that keeps the action in force: a baseline for those who may do nothing.

    On its own trajectory, as the expert of a guard, it keeps x_0; of a promise for each day, the action at the start of the day.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> ec.rollout(HoldStill(), problem, ec.Instance([3.0], [[1.0], [2.0]])).actions.ravel().tolist()
    [3.0, 3.0]
    """

    reference_name: ClassVar[str] = "holding still"  # in a promise relative to it

    def is_linear(self, problem: AbstractProblem) -> bool:
        return True

    def init(self, problem: AbstractProblem, start: Start) -> None:
        """Return nothing: the action in force is in the observation."""

    def step(self, problem: AbstractProblem, state: None, observation: Observation):
        return state, observation.previous_action, Info.plain()


class FromContext(AbstractAgent):
    """An advisor whose action is a part of the context: the rule in use today, as a baseline or as advice.

    Args:
        first: the place of the action's first number in the context; negative ones count from the end. Default: -1.
        scale: factor of these numbers, which may be in other units than actions. Default: 1.
        otherwise: the agent whose action replaces missing numbers: NaN, or beyond 1e100. Default: None, they stay as they are.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(covariates=1), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> day = ec.Instance([0.0], [[1.0, 0.25], [1.0, 0.5]])  # (demand, what today's rule does)
    >>> ec.rollout(FromContext(), problem, day).actions.ravel().tolist()
    [0.25, 0.5]
    """

    reference_name: ClassVar[str] = "the baseline"  # in a promise relative to it

    first: int = eqx.field(static=True, default=-1)
    scale: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)
    otherwise: AbstractAgent | None = None

    def __check_init__(self):
        check_positive("scale", self.scale)

    def init(self, problem: Problem, start: Start) -> State:
        """Reject contexts that do not have so many numbers."""
        length, dim = start.history.shape[1], start.dim
        if not 0 <= self.first % length <= length - dim or not -length <= self.first < length:
            raise NotApplicableError(
                f"FromContext takes {dim} numbers from place {self.first} of a context, which has {length}."
            )
        return None if self.otherwise is None else self.otherwise.init(problem, start)

    def step(self, problem: Problem, state: State, observation: Observation):
        context, dim = observation.context, observation.previous_action.shape[0]
        first = self.first % context.shape[0]
        given = self.scale * context[first : first + dim]
        if self.otherwise is None:
            return state, given, Info.plain()
        state, instead, inner = self.otherwise.step(problem, state, observation)
        return state, jnp.where(jnp.abs(given) <= LARGEST_ADVICE, given, instead), Info(inner.converged, inner=inner)
