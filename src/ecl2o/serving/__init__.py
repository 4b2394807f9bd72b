"""A policy at work: what it is, the file it travels in, and the runner that steps it through a live stream.

Knows how agents are run; knows nothing of training data, studies or printing.
"""

from ecl2o.serving.beginning import begin
from ecl2o.serving.contract import Contract, PromiseTerms
from ecl2o.serving.policy import Policy, describe, load, save
from ecl2o.serving.policy_file import PolicyFileError
from ecl2o.serving.runner import Runner, Streams

__all__ = [
    "Contract",
    "Policy",
    "PolicyFileError",
    "PromiseTerms",
    "Runner",
    "Streams",
    "begin",
    "describe",
    "load",
    "save",
]
