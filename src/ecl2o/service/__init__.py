"""Many streams of policies in a database: steps survive crashes, and one compiled call serves many streams.

Store, executor and registry know nothing of HTTP, which is in `http`. `Client` talks to a running service. May import `policy`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ecl2o.service.client import Client
    from ecl2o.service.service import Service
    from ecl2o.service.store import Store

__all__ = ["Client", "Service", "Store"]


def __getattr__(name: str) -> Any:
    """Import on first use: `http.startup` needs neither JAX nor a database."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{name.lower()}"), name)
