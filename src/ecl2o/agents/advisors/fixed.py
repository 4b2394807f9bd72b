"""A given sequence of actions, for tests and theory."""

from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import AbstractProblem
from ecl2o.problem.arrays import as_float


class Fixed(AbstractAgent):
    """An advisor that proposes a given sequence of actions, and the last one again after its end.

    Args:
        actions: (T, d), one for each step.

    >>> Fixed([[0.1], [0.2]]).actions.shape
    (2, 1)
    """

    actions: Float[Array, "T d"] = eqx.field(converter=as_float)

    def __check_init__(self):
        if self.actions.ndim != 2 or self.actions.shape[0] == 0:
            raise ValueError(f"actions must have shape (T, d) with T >= 1, got {self.actions.shape}.")

    def around_proposals(self, wrap: Callable[[AbstractAgent], AbstractAgent]) -> AbstractAgent:
        return self  # what it proposes does not depend on what it sees

    def init(self, problem: AbstractProblem, start: Start) -> None:
        expected = problem.action_size(start.dim)
        if self.actions.shape[1] != expected:
            raise NotApplicableError(
                f"Fixed actions have dimension {self.actions.shape[1]}, but the problem's {expected}."
            )
        if start.horizon is not None and self.actions.shape[0] < start.horizon:
            raise NotApplicableError(f"Fixed has {self.actions.shape[0]} actions for {start.horizon} steps.")

    def step(self, problem: AbstractProblem, state: None, observation: Observation):
        return state, self.actions[observation.place], Info.plain()
