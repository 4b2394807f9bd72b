"""Fixtures of the service's tests: a small policy, its compiled step, a running server, a PostgreSQL cluster."""

import asyncio
import contextlib
import math
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

import ecl2o as ec
from ecl2o.policy.policy import describe
from ecl2o.service import Store, policy_registry
from ecl2o.service.http import Access, make_app
from ecl2o.service.http.connections import Server
from ecl2o.service.http.startup import bind


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def policy_file(tmp_path_factory) -> Path:
    """A policy whose guard has work to do: following every context breaks its promise of 1.6."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    path = tmp_path_factory.mktemp("policy") / "small.ecl2o"
    ec.save(path, ec.Policy(ec.Competitive(ec.HittingMinimizer(), ratio=1.6), problem))
    return path


@pytest.fixture(scope="session")
def policy_bytes(policy_file) -> bytes:
    return policy_file.read_bytes()


@pytest.fixture(scope="session", autouse=True)
def shared_steppers():
    """Compile the step of a policy once for all services of a test run: a stepper has no state."""
    steppers, make = {}, policy_registry.BatchedStepper

    def get_stepper(policy, *sizes):
        about = describe(policy)
        key = (about["fingerprint"], str(about["contract"]), *sizes)
        if key not in steppers:
            steppers[key] = make(policy, *sizes)
        return steppers[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_registry, "BatchedStepper", get_stepper)
        patch.setattr(policy_registry, "_WAIT_SECONDS", 60.0)  # the machine may be busy
        yield


@pytest.fixture(scope="session")
def check_promise():
    """`check_promise(x0, contexts, actions, ratio)` compares the costs of all prefixes with their optimum, computed here.

    For the problem of `policy_file`: the least cost of a path that ends in x is curvature/2 (x - center)^2 + optimum.
    """

    def check_promise(x0: float, contexts: list[float], actions: list[float], ratio: float, alpha: float = 3.0) -> None:
        cost, optimum, before, curvature, center = 0.0, 0.0, x0, math.inf, x0
        for context, action in zip(contexts, actions, strict=True):
            cost += (action - context) ** 2 / 2 + alpha * (action - before) ** 2 / 2
            before = action
            moved = 1 / (1 / alpha + 1 / curvature)
            optimum += moved / (1 + moved) * (center - context) ** 2 / 2
            center = (moved * center + context) / (1 + moved)
            curvature = 1 + moved
            assert cost <= ratio * optimum + 1e-9 * max(1.0, optimum)

    return check_promise


@contextlib.contextmanager
def running(app):
    """Run the application in a server on a free port of this machine; give its URL."""
    bound = bind("127.0.0.1", 0)
    server = Server(app, app.state.events.stop)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])), daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        for _ in range(600):
            with contextlib.suppress(httpx2.TransportError):
                if httpx2.get(url + "/healthz").status_code == 200:
                    break
            time.sleep(0.05)
        yield url
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="session")
def running_app():
    return running


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """Start a PostgreSQL cluster in a temporary folder, on loopback; give the URL of its database."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    if initdb is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="ecl2o-postgresql-"))  # pytest's own folders are closed to other users
    port = free_port()
    as_user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        if shutil.which("runuser") is None:
            pytest.skip("PostgreSQL does not run as root, and there is no runuser")
        as_user = ["runuser", "-u", "postgres", "--"]
        shutil.chown(folder, "postgres")
    cluster, control = folder / "cluster", Path(initdb).with_name("pg_ctl")
    run = {"check": True, "cwd": folder, "stdout": subprocess.DEVNULL}
    subprocess.run([*as_user, initdb, "-D", cluster, "-A", "trust", "-U", "ecl2o", "-N"], **run)
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c max_connections=60"
    subprocess.run([*as_user, control, "-D", cluster, "-o", options, "-l", folder / "log", "-w", "start"], **run)
    yield f"postgresql+psycopg://ecl2o@127.0.0.1:{port}/postgres"
    subprocess.run([*as_user, control, "-D", cluster, "-m", "immediate", "stop"], **run)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def other_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def url(tmp_path_factory, policy_bytes, running_app):
    """The URL of a service without tokens, with the policy `small` and the streams `a` and `b`."""
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'streams.db'}")
    with running_app(make_app(store, Access(), {"small": policy_bytes})) as url:
        for stream in ("a", "b"):
            httpx2.put(f"{url}/streams/{stream}", json={"policy": "small", "x0": [0.0]}, timeout=60).raise_for_status()
        yield url


@pytest.fixture(scope="module")
def guarded_url(tmp_path_factory, policy_bytes, running_app):
    """The URL of a service with the tokens "secret" (full access) and "reading"."""
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'streams.db'}")
    with running_app(make_app(store, Access("secret", "reading"), {"small": policy_bytes})) as url:
        yield url
