"""Agents made to be asked for advice: given sequences, networks, and structured learners."""

from ecl2o.agents.advisors.fixed import Fixed

__all__ = ["Fixed"]
