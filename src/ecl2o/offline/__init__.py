"""Hindsight: the optimum, for one instance, from day to day, and under a movement budget. Imports no agents."""

from ecl2o.offline.oracle import constrained_oracle, oracle, oracle_batch, oracle_days

__all__ = ["constrained_oracle", "oracle", "oracle_batch", "oracle_days"]
