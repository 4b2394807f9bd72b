"""The service over HTTP: a JSON API, a page that shows the streams, access by tokens. May import `service`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ecl2o.service.http.app import make_app, serve
    from ecl2o.service.http.middleware import Access

__all__ = ["Access", "make_app", "serve"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `startup` listens before JAX is imported."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ecl2o.service.http import app

    return getattr(app, name)
