"""The expert inside a guard: on its own trajectory, with the forecasts that it asked for."""

from ecl2o.agents.base import AbstractAgent, Observation
from ecl2o.agents.combined import Independent, PureML


def seen_by(agent: AbstractAgent, observation: Observation) -> Observation:
    """The observation with the forecasts that this agent asked for; a wrapper may have asked for more."""
    window = agent.lookahead
    forecast = None if observation.forecast is None or window == 0 else observation.forecast[:window]
    return Observation(
        observation.context, observation.previous_action, observation.step, observation.remaining, forecast
    )


def on_its_own(expert: AbstractAgent) -> Independent:
    """The expert on its own trajectory and bill, its actions projected on X, which some agents leave."""
    return Independent(PureML(expert))
