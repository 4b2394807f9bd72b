"""A policy at work: what it is, the file it travels in, and the runner that steps it through a live stream.

Knows how agents are run; knows nothing of training data, studies or printing. What the extra `serve` installs is imported when
it is asked for: `Client`, and the rooms `durable` and `http`.
"""

from ecl2o.policy.contract import Contract, PromiseTerms
from ecl2o.policy.policy import Policy, describe, load, save
from ecl2o.policy.runner import BatchReport, BatchRunner, Runner

__all__ = [
    "Contract",
    "Policy",
    "PromiseTerms",
    "Runner",
    "BatchRunner",
    "BatchReport",
    "describe",
    "load",
    "save",
]
