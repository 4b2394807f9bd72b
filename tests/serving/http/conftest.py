"""Services in this process for the tests over HTTP."""

import httpx
import pytest

from ecl2o.serving.durable import Store
from ecl2o.serving.http import Access, make_app


@pytest.fixture(scope="module")
def url(tmp_path_factory, policy_bytes, running_app):
    """A service without tokens, with the policy `small` and the streams `a` and `b`."""
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'streams.db'}")
    with running_app(make_app(store, Access(), {"small": policy_bytes})) as url:
        for stream in ("a", "b"):
            httpx.put(f"{url}/streams/{stream}", json={"policy": "small", "x0": [0.0]}, timeout=60).raise_for_status()
        yield url


@pytest.fixture(scope="module")
def guarded_url(tmp_path_factory, policy_bytes, running_app):
    """A service with the tokens "secret" and "looking"."""
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'streams.db'}")
    with running_app(make_app(store, Access("secret", "looking"), {"small": policy_bytes})) as url:
        yield url
