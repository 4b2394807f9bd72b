"""What promises: wrappers that let an agent act only as far as a bound on the bill allows, whatever the agent proposes.

Every guard is an `AbstractGuard`; what it promises is a `Promise`, how that stands an `Account`. Nobody outside this room asks
which guard it is.
"""

from ecl2o.agents.guards.base import AbstractGuard, Account
from ecl2o.agents.guards.competitive import Competitive
from ecl2o.agents.guards.guarded import ClippedAdvice, Guarded

__all__ = ["AbstractGuard", "Account", "ClippedAdvice", "Competitive", "Guarded"]
