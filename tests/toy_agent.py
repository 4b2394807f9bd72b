"""The smallest agent, for tests that need one of their own."""

import abc

from jaxtyping import Array, Bool, Float

import ecl2o as ec


class StatelessAgent(ec.AbstractAgent):
    """An agent without a state; tests write `act`, and `converges` where a step may fail."""

    @abc.abstractmethod
    def act(self, observation: ec.Observation) -> Float[Array, " d"]:
        """Return the action."""

    def converges(self, observation: ec.Observation) -> Bool[Array, ""]:
        """Return whether the step counts as converged."""
        return ec.Info.plain().converged

    def init(self, problem, start):
        return None

    def step(self, problem, state, observation):
        return state, self.act(observation), ec.Info(self.converges(observation))
