"""Hindsight: the offline optimum, alone, from day to day, and under a movement budget.

Knows problems; knows nothing of agents.
"""

from ecl2o.offline.constrained import constrained_oracle
from ecl2o.offline.oracle import oracle, oracle_batch, oracle_days

__all__ = ["constrained_oracle", "oracle", "oracle_days", "oracle_batch"]
