"""Guards: they bound the cost of an agent, whatever the agent proposes.

There is one, `Guard`. It keeps any number of promises, each relative to one of the `references`.
"""

from ecl2o.agents.guards.account import Account
from ecl2o.agents.guards.clipped_advice import ClippedAdvice
from ecl2o.agents.guards.constructors import (
    Competitive,
    CompetitiveBand,
    CompetitiveControl,
    Guarded,
    GuardedControl,
    Promises,
)
from ecl2o.agents.guards.guard import Guard

__all__ = [
    "Account",
    "ClippedAdvice",
    "Competitive",
    "CompetitiveBand",
    "CompetitiveControl",
    "Guard",
    "Guarded",
    "GuardedControl",
    "Promises",
]
