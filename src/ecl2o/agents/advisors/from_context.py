"""Actions that come with the context: what another system would do, given from outside at each step."""

from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_float, check_positive


class FromContext(AbstractAgent):
    """An advisor whose action is a part of the context: the rule in use today, as a baseline or as advice.

    Args:
        first: the place of the action's first number in the context; negative ones count from the end. Default: -1.
        scale: factor of these numbers, which may be in other units than actions. Default: 1.

    >>> import ecl2o as ec
    >>> cost = ec.ConvexCost(lambda x, y: 0.5 * (x[0] - y[0]) ** 2, strong_convexity=1.0)
    >>> problem = ec.Problem(cost, ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> day = ec.Instance([0.0], [[1.0, 0.3], [1.0, 0.4]])  # (demand, what today's rule does)
    >>> ec.rollout(FromContext(), problem, day).actions.ravel().tolist() == [0.3, 0.4]
    True
    """

    reference_name: ClassVar[str] = "the baseline"  # in a promise relative to it

    first: int = eqx.field(static=True, default=-1)
    scale: Float[Array, ""] = eqx.field(converter=as_float, default=1.0)

    def __check_init__(self):
        check_positive("scale", self.scale)

    def init(self, problem: Problem, start: Start) -> None:
        """Reject contexts that do not have so many numbers."""
        length, dim = start.history.shape[1], start.dim
        if not 0 <= self.first % length <= length - dim or not -length <= self.first < length:
            raise NotApplicableError(
                f"FromContext takes {dim} numbers from place {self.first} of a context, which has {length}."
            )

    def step(self, problem: Problem, state: None, observation: Observation):
        context, dim = observation.context, observation.previous_action.shape[0]
        first = self.first % context.shape[0]
        return state, self.scale * context[first : first + dim], Info.plain()
