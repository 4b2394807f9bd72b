"""A policy and its contract, the file that holds it, the start of a run, and the runners.

Imports the library (`agents`, `running`, ...) and `exceptions`; knows nothing of training data, studies or printing.
"""

from ecl2o.policy.contract import Contract
from ecl2o.policy.policy import Policy, describe, load, save
from ecl2o.policy.runner import BatchReport, BatchRunner, Runner

__all__ = ["BatchReport", "BatchRunner", "Contract", "Policy", "Runner", "describe", "load", "save"]
