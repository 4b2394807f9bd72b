"""The service over HTTP: an API in JSON, a page that shows it working, and who may ask for what."""

from ecl2o.service.http.app import make_app, serve
from ecl2o.service.http.middleware import Access

__all__ = ["Access", "make_app", "serve"]
