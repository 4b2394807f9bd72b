"""The service over HTTP: a JSON API, a page that shows the streams, access by tokens. May import `service`."""

from ecl2o.service.http.app import make_app, serve
from ecl2o.service.http.middleware import Access

__all__ = ["Access", "make_app", "serve"]
