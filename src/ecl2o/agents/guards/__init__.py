"""Guards: wrappers that bound the cost of an agent, whatever the agent proposes.

Every guard is an `AbstractGuard`. It states a `Promise` and keeps an `Account` of it.
"""

from ecl2o.agents.guards.band import CompetitiveBand
from ecl2o.agents.guards.base import AbstractGuard, Account
from ecl2o.agents.guards.competitive import Competitive
from ecl2o.agents.guards.control import CompetitiveControl, GuardedControl
from ecl2o.agents.guards.guarded import ClippedAdvice, Guarded
from ecl2o.agents.guards.promises import Promises

__all__ = [
    "AbstractGuard",
    "Account",
    "ClippedAdvice",
    "Competitive",
    "CompetitiveBand",
    "CompetitiveControl",
    "Guarded",
    "GuardedControl",
    "Promises",
]
