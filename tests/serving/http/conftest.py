"""An application in this process, a service in a thread, and a small policy."""

import asyncio
import contextlib
import threading
import time

import httpx
import pytest
import uvicorn

import ecl2o as ec
from ecl2o.serving.durable import Store
from ecl2o.serving.http import Access, make_app
from ecl2o.serving.http.server import bind


@pytest.fixture(scope="session")
def policy_bytes(tmp_path_factory) -> bytes:
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    path = tmp_path_factory.mktemp("policy") / "small.ecl2o"
    ec.save(path, ec.Policy(ec.Competitive(ec.HittingMinimizer(), ratio=1.6), problem))
    return path.read_bytes()


@contextlib.contextmanager
def running(app):
    """The application behind a real server on a free port of this machine; gives its address."""
    bound = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, server_header=False))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])), daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        for _ in range(600):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(url + "/healthz").status_code == 200:
                    break
            time.sleep(0.05)
        yield url
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="module")
def url(tmp_path_factory, policy_bytes):
    """A service without tokens, with the policy `small` and the streams `a` and `b`."""
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'streams.db'}")
    with running(make_app(store, Access(), {"small": policy_bytes})) as url:
        for stream in ("a", "b"):
            httpx.put(f"{url}/streams/{stream}", json={"policy": "small", "x0": [0.0]}, timeout=60).raise_for_status()
        yield url


@pytest.fixture(scope="module")
def guarded_url(tmp_path_factory, policy_bytes):
    """A service with the tokens "secret" and "looking"."""
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'streams.db'}")
    with running(make_app(store, Access("secret", "looking"), {"small": policy_bytes})) as url:
        yield url


@pytest.fixture
def running_app():
    return running
