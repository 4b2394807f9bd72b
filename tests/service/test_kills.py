"""Kill the service while clients go on: no answered step is lost, none is executed twice, and the results are the same."""

import dataclasses
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

import httpx2
import pytest
import sqlalchemy as sa

from ecl2o.service import Service, Store
from ecl2o.service.client import Client
from ecl2o.service.models import StepRecord, StepRequest

_HERE = Path(__file__).parent
_SINGLE = [f"single-{number}" for number in range(4)]  # one request per step, a client each
_TOGETHER = [f"together-{number}" for number in range(6)]  # one client, one request for all of them
_STREAMS = [*_SINGLE, *_TOGETHER]


def context(stream: str, step: int) -> list[float]:
    """Return the context of a stream at a step."""
    return [4 * math.sin(step / 3 + len(stream)) + 3 * math.sin(1000.7 * step + _STREAMS.index(stream))]


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
        self.answers: dict[str, list[StepRecord]] = {stream: [] for stream in _STREAMS}
        self.errors: list[BaseException] = []
        self._urls, self._stop = urls, threading.Event()
        work = [(self._one, [stream]) for stream in _SINGLE] + [(self._all, _TOGETHER)]
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

    def wait_for_answers(self, seconds: float = 100.0) -> None:
        """Wait until every client has another answer."""
        before, until = {stream: len(answers) for stream, answers in self.answers.items()}, time.monotonic() + seconds
        while any(len(self.answers[stream]) <= length for stream, length in before.items()):
            assert not self.errors
            assert time.monotonic() < until
            time.sleep(0.005)

    def _run(self, step_streams, streams):
        clients = [Client(url, patience=100.0, timeout=20.0) for url in self._urls]
        try:
            for client in clients:
                for stream in streams:
                    client.put_stream(stream, "small", [0.0])
            step = 1
            while not self._stop.is_set():
                client = clients[step % len(clients)]
                client._next |= dict.fromkeys(streams, step)  # clients count their own steps, and here they take turns
                step_streams(client, streams, step)
                step += 1
                time.sleep(0.002)
        except BaseException as error:
            self.errors.append(error)
        finally:
            for client in clients:
                client.close()

    def _one(self, client, streams, step):
        self.answers[streams[0]].append(client.step(streams[0], context(streams[0], step)))

    def _all(self, client, streams, step):
        for stream, answer in client.steps({stream: context(stream, step) for stream in streams}).items():
            self.answers[stream].append(answer)


def without_time(step: StepRecord) -> StepRecord:
    return dataclasses.replace(step, at=0.0)


def run_uninterrupted(policy: Path, folder: Path, lengths: dict[str, int]) -> dict[str, list[StepRecord]]:
    """Return the steps of a service that is not killed."""
    service = Service(Store(f"sqlite:///{folder / 'reference.db'}"))
    service.put_policy("small", policy.read_bytes())
    steps: dict[str, list[StepRecord]] = {}
    for stream in lengths:
        service.create_stream(stream, "small", [0.0])
        steps[stream] = []
    for step in range(1, max(lengths.values()) + 1):
        requests = [StepRequest(stream, context(stream, step)) for stream, length in lengths.items() if step <= length]
        for result in service.submit_steps(requests).result():
            steps[result.stream].append(without_time(result.record))
    service.close()
    return steps


def check_nothing_lost(crowd: Crowd, store: str, policy: Path, folder: Path) -> int:
    assert not crowd.errors
    service = Service(Store(store))
    lengths = {}
    for stream, answers in crowd.answers.items():
        stored = service.list_steps(stream, 0, 1_000_000)
        assert [step.step for step in stored] == list(range(1, len(stored) + 1))
        assert stored[: len(answers)] == answers  # every answered step is there, with its time
        assert len(stored) - len(answers) in (0, 1)  # the last step may have been executed without an answer
        lengths[stream] = len(stored)
    expected = run_uninterrupted(policy, folder, lengths)
    guarded = 0
    for stream, length in lengths.items():
        stored = [without_time(step) for step in service.list_steps(stream, 0, 1_000_000)]
        assert stored == expected[stream], stream  # to the last bit: JSON writes doubles exactly
        for step in stored:
            assert step.cost <= 1.6 * step.optimum * (1 + 1e-9)
            assert step.promise_left >= -1e-9
            guarded += step.guard_active
        assert length > 10
    assert guarded > 10  # the guard was needed
    service.close()
    return sum(lengths.values())


def test_fifty_kills_on_sqlite(tmp_path, policy_file, start_service, port):
    moments = random.Random(18)
    store, url = f"sqlite:///{tmp_path / 'streams.db'}", f"http://127.0.0.1:{port}"
    pid = start_service(store, port)
    wait_until_ready(url)
    with Crowd([url]) as crowd:
        for number in range(50):
            if number % 5:  # every fifth one is killed while it starts
                crowd.wait_for_answers()
            time.sleep(moments.uniform(0.0, 0.15))
            os.kill(pid, signal.SIGKILL)
            pid = start_service(store, port)
    os.kill(pid, signal.SIGKILL)
    check_nothing_lost(crowd, store, policy_file, tmp_path)
    with sqlite3.connect(tmp_path / "streams.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.integration
def test_ten_kills_of_two_services_on_postgresql(tmp_path, policy_file, postgresql, start_service, port, other_port):
    moments = random.Random(10)
    ports = (port, other_port)
    urls = [f"http://127.0.0.1:{one}" for one in ports]
    pids = [start_service(postgresql, one) for one in ports]
    for url in urls:
        wait_until_ready(url)
    with Crowd(urls) as crowd:
        for turn in range(10):
            crowd.wait_for_answers()
            time.sleep(moments.uniform(0.0, 0.3))
            os.kill(pids[turn % 2], signal.SIGKILL)
            pids[turn % 2] = start_service(postgresql, ports[turn % 2])
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    check_nothing_lost(crowd, postgresql, policy_file, tmp_path)


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
