"""The service over HTTP: an API in JSON, a page that shows it working, and who may ask for what."""

from ecl2o.serving.http.access import Access
from ecl2o.serving.http.app import make_app
from ecl2o.serving.http.server import serve

__all__ = ["Access", "make_app", "serve"]
