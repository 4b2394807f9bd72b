"""Many streams of policies in a database: steps survive crashes, and one compiled call serves many streams.

Store, executor and registry know nothing of HTTP, which is in `http`. `Client` talks to a running service. May import `policy`.
"""

from typing import TYPE_CHECKING, Any

from ecl2o.service.service import Service
from ecl2o.service.store import Store

if TYPE_CHECKING:
    from ecl2o.service.client import Client

__all__ = ["Client", "Service", "Store"]


def __getattr__(name: str) -> Any:
    """Import the client, and with it the HTTP libraries, on first use."""
    if name != "Client":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ecl2o.service.client import Client

    return Client
