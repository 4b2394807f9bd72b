"""A policy at work: what it is, the file it travels in, and the runner that steps it through a live stream.

Knows how agents are run; knows nothing of training data, studies or printing. What the extra `serve` installs is imported when
it is asked for: `Client`, and the rooms `durable` and `http`.
"""

from typing import TYPE_CHECKING, Any

from ecl2o.serving.beginning import begin
from ecl2o.serving.contract import Contract, PromiseTerms
from ecl2o.serving.policy import Policy, describe, load, save
from ecl2o.serving.policy_file import PolicyFileError
from ecl2o.serving.runner import Runner
from ecl2o.serving.streams import Streams, StreamsReport

if TYPE_CHECKING:
    from ecl2o.serving.client import Client

__all__ = [
    "Client",
    "Contract",
    "Policy",
    "PolicyFileError",
    "PromiseTerms",
    "Runner",
    "Streams",
    "StreamsReport",
    "begin",
    "describe",
    "load",
    "save",
]


def __getattr__(name: str) -> Any:
    if name == "Client":
        from ecl2o.serving.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
