"""Kill and freeze services while clients go on: no answered step is lost, none is made twice, and the results are the same.

After a request without an answer, a client sends the step again with another context. So a step that was made, lost and made
again has another context than its answer.
"""

import contextlib
import dataclasses
import itertools
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from ecl2o.service import Service, Store
from ecl2o.service.models import StepRecord, StepRequest

_HERE = Path(__file__).parent
_KILLS = int(os.environ.get("ECL2O_KILLS", "35"))  # 70 and more by hand, after a change of the store
_SINGLE = [f"single-{number}" for number in range(4)]  # one request per step, a client each
_TOGETHER = [f"together-{number}" for number in range(6)]  # one client, one request for all of them
_ASIDE = ["aside-0", "aside-1"]  # a client each, which knows only the first or only the second service
_STREAMS = [*_SINGLE, *_TOGETHER, *_ASIDE]
_TIMEOUT = 0.5  # seconds until a client gives up a request
_FREEZE = 0.8  # seconds


def context(stream: str, step: int, attempt: int) -> list[float]:
    """Return the context of a stream at a step; each attempt to send it has another one."""
    place = 1000.7 * step + _STREAMS.index(stream) + 0.1 * attempt
    return [4 * math.sin(step / 3 + len(stream)) + 3 * math.sin(place)]


@pytest.fixture(scope="module")
def start_service(policy_file):
    """`start_service(store, port)` starts a service once the previous one on that port is dead; it returns the process id."""
    cache = Path(sys.prefix) / ".jax-cache-service"
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, str(_HERE / "service_forks.py"), str(policy_file)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        commands, pids = process.stdin, process.stdout

        def start_service(store: str, port: int) -> int:
            commands.write(f"{port} {store}\n")
            commands.flush()
            return int(pids.readline())

        yield start_service
        commands.close()


def wait_until_ready(url: str, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    with httpx2.Client(base_url=url, timeout=5) as client:
        while time.monotonic() < until:
            try:
                if client.get("/readyz").status_code == 200:
                    return
            except httpx2.TransportError:
                time.sleep(0.02)
    raise AssertionError("the service did not become ready")


class Crowd:
    """Clients that step their streams until the block ends, and record every answer."""

    def __init__(self, urls: list[str]):
        aside = _ASIDE if len(urls) > 1 else []
        self.answers: dict[str, list[StepRecord]] = {stream: [] for stream in (*_SINGLE, *_TOGETHER, *aside)}
        self.errors: list[BaseException] = []
        self.resent = 0  # steps with another context
        self._stop = threading.Event()
        work = [([stream], urls) for stream in _SINGLE] + [(_TOGETHER, urls)]
        work += [([stream], [url]) for stream, url in zip(aside, urls, strict=False)]
        self._threads = [threading.Thread(target=self._run, args=task) for task in work]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in self._threads)

    def wait_for_answers(self, streams: list[str] | None = None, number: int = 1, seconds: float = 100.0) -> None:
        """Wait for this number of answers to each of some streams, or to each stream."""
        wanted = {stream: len(self.answers[stream]) + number for stream in streams or self.answers}
        until = time.monotonic() + seconds
        while any(len(self.answers[stream]) < length for stream, length in wanted.items()):
            assert not self.errors, self.errors
            assert time.monotonic() < until
            time.sleep(0.005)

    def _run(self, streams: list[str], urls: list[str]) -> None:
        clients = [httpx2.Client(base_url=url, timeout=_TIMEOUT) for url in urls]
        try:
            for stream in streams:
                self._request(clients, "PUT", f"/streams/{stream}", json={"policy": "small", "x0": [0.0]})
            for step in itertools.count(1):
                if self._stop.is_set():
                    break
                self._make_steps(clients, streams, step)
                time.sleep(0.002)
        except BaseException as error:
            self.errors.append(error)
        finally:
            for client in clients:
                client.close()

    def _make_steps(self, clients: list[httpx2.Client], streams: list[str], step: int) -> None:
        """Send a step of each stream until all are answered, to each service in turn."""
        sent: dict[str, list[list[float]]] = {stream: [] for stream in streams}
        waiting = list(streams)
        for attempt in itertools.count():
            for stream in waiting:
                sent[stream].append(context(stream, step, attempt))
            bodies = {stream: {"step": step, "context": sent[stream][-1]} for stream in waiting}
            for stream, (status, body) in self._send(clients[(step + attempt) % len(clients)], bodies).items():
                if status == 409:  # an earlier attempt was stored
                    assert body["context_answered"] in sent[stream][:-1]
                    path = f"/streams/{stream}/steps?after={step - 1}&limit=1"
                    (stored,) = self._request(clients, "GET", path)
                    assert stored["context"] == body["context_answered"]
                    body = stored
                elif status != 200:
                    assert status == 503, body
                    continue
                self.answers[stream].append(StepRecord(**body))
                waiting.remove(stream)
            if not waiting:
                break
            self.resent += len(waiting)
            time.sleep(0.01)

    def _send(self, client: httpx2.Client, bodies: dict[str, dict]) -> dict[str, tuple[int, dict]]:
        """Return the status and the answer of each stream that got one."""
        try:
            if len(bodies) == 1:
                ((stream, body),) = bodies.items()
                answer = client.post(f"/streams/{stream}/steps", json=body)
                return {stream: (answer.status_code, answer.json())}
            answer = client.post("/steps", json=bodies)
        except httpx2.TransportError:
            return {}
        found = answer.json()
        if answer.status_code != 200:
            return dict.fromkeys(bodies, (answer.status_code, found))
        refused = {stream: (error["status"], error) for stream, error in found["refused"].items()}
        return {stream: (200, step) for stream, step in found["answered"].items()} | refused

    def _request(self, clients: list[httpx2.Client], method: str, path: str, **body) -> Any:
        """Send a request until it succeeds; return the answer."""
        turns = itertools.cycle(clients)
        while True:
            with contextlib.suppress(httpx2.TransportError):
                answer = next(turns).request(method, path, **body)
                if answer.is_success:
                    return answer.json()
                assert answer.status_code == 503, answer.text
            time.sleep(0.01)


def without_time(step: StepRecord) -> StepRecord:
    return dataclasses.replace(step, at=0.0)


def run_uninterrupted(policy: Path, folder: Path, stored: dict[str, list[StepRecord]]) -> dict[str, list[StepRecord]]:
    """Return the steps of a service that is not killed, for the same contexts."""
    service = Service(Store(f"sqlite:///{folder / 'reference.db'}"))
    service.put_policy("small", policy.read_bytes())
    steps: dict[str, list[StepRecord]] = {stream: [] for stream in stored}
    for stream in stored:
        service.create_stream(stream, "small", [0.0])
    for row in itertools.zip_longest(*stored.values()):
        requests = [StepRequest(stream, step.context) for stream, step in zip(stored, row, strict=True) if step]
        for result in service.submit_steps(requests).result():
            steps[result.stream].append(without_time(result.record))
    service.close()
    return steps


def check_nothing_lost(crowd: Crowd, store: str, policy: Path, folder: Path, check_promise) -> None:
    assert not crowd.errors, crowd.errors
    assert crowd.resent > 10
    service = Service(Store(store))
    stored = {stream: service.list_steps(stream, 0, 1_000_000) for stream in crowd.answers}
    service.close()
    expected = run_uninterrupted(policy, folder, stored)
    for stream, steps in stored.items():
        assert [step.step for step in steps] == list(range(1, len(steps) + 1))
        assert steps == crowd.answers[stream]  # every answered step is there, with its time, and no other
        assert [without_time(step) for step in steps] == expected[stream]  # JSON writes doubles exactly
        check_promise(0.0, [step.context[0] for step in steps], [step.action[0] for step in steps], 1.6)
        assert len(steps) > 10
    assert sum(step.guard_active for steps in stored.values() for step in steps) > 10  # the guard was needed


def test_kills_and_freezes_on_sqlite(tmp_path, policy_file, start_service, port, check_promise):
    moments = random.Random(18)
    store, url = f"sqlite:///{tmp_path / 'streams.db'}", f"http://127.0.0.1:{port}"
    pid = start_service(store, port)
    wait_until_ready(url)
    with Crowd([url]) as crowd:
        for number in range(_KILLS):
            if number % 5:  # every fifth one is killed while it starts
                crowd.wait_for_answers()
            time.sleep(moments.uniform(0.0, 0.1))
            if number % 9 == 1:
                with freeze(pid):
                    pass
                crowd.wait_for_answers()
            os.kill(pid, signal.SIGKILL)
            pid = start_service(store, port)
        crowd.wait_for_answers()
    os.kill(pid, signal.SIGKILL)
    check_nothing_lost(crowd, store, policy_file, tmp_path, check_promise)
    with sqlite3.connect(tmp_path / "streams.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@contextlib.contextmanager
def freeze(pid: int):
    """Stop a process, and let it go on after the block, at the earliest after some time."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + _FREEZE
    try:
        yield
        time.sleep(max(0.0, end - time.monotonic()))
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.integration
def test_kills_and_freezes_of_two_services_on_postgresql(
    tmp_path, policy_file, postgresql, start_service, port, other_port, check_promise
):
    moments = random.Random(10)
    ports = (port, other_port)
    urls = [f"http://127.0.0.1:{one}" for one in ports]
    pids = [start_service(postgresql, one) for one in ports]
    for url in urls:
        wait_until_ready(url)
    with Crowd(urls) as crowd:
        for number in range(_KILLS // 2):
            turn = number % 2
            crowd.wait_for_answers()
            time.sleep(moments.uniform(0.0, 0.2))
            if number % 7 in (2, 5):
                with freeze(pids[turn]):  # the other service goes on
                    crowd.wait_for_answers([_ASIDE[1 - turn]], 2)
                crowd.wait_for_answers()
            os.kill(pids[turn], signal.SIGKILL)
            pids[turn] = start_service(postgresql, ports[turn])
        for _ in range(4):
            with freeze(find_backend(postgresql)):
                pass
            crowd.wait_for_answers()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    check_nothing_lost(crowd, postgresql, policy_file, tmp_path, check_promise)


def find_backend(url: str) -> int:
    """Return the process of PostgreSQL that works for a service's writer: the last one that wrote."""
    with sa.create_engine(url).connect() as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid()"
        return connection.scalar(
            sa.text(f"{query} AND backend_type = 'client backend' ORDER BY xact_start DESC NULLS LAST")
        )


@pytest.mark.integration
def test_two_services_on_one_postgresql_execute_a_step_once(tmp_path, policy_file, postgresql):
    services = [Service(Store(postgresql)), Service(Store(postgresql))]
    for service in services:
        service.put_policy("small", policy_file.read_bytes())
        for number in range(3):
            service.create_stream(f"race-{number}", "small", [0.0])
        service.warm_up()
    for step in range(1, 31):
        requests = [StepRequest(f"race-{number}", [float(step)], step) for number in range(3)]
        first, second = [service.submit_steps(requests) for service in services]
        for one, two in zip(first.result(), second.result(), strict=True):
            assert one.json == two.json
            assert (one.record is None) != (two.record is None)
    with sa.create_engine(postgresql).connect() as connection:
        found = connection.execute(
            sa.text("SELECT count(*), count(DISTINCT (stream, step)) FROM steps WHERE step <= 30")
        )
        assert found.one()[0] >= 90
    for service in services:
        service.close()
