"""Two services on one PostgreSQL: watchers of one see the steps of both; the database may be away for a while."""

import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
import sqlalchemy as sa

from ecl2o.service import Store
from ecl2o.service.http import Access, make_app
from ecl2o.service.pg_notify import STEPS_PER_PAYLOAD

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def urls(postgresql, policy_bytes, running_app):
    with contextlib.ExitStack() as stack:
        apps = [make_app(Store(postgresql), Access(), {"small": policy_bytes}) for _ in range(2)]
        urls = [stack.enter_context(running_app(app)) for app in apps]
        for stream in ("here", "there", "away"):
            made = {"policy": "small", "x0": [0.0]}
            httpx2.put(f"{urls[0]}/streams/{stream}", json=made, timeout=60).raise_for_status()
        yield urls


def step(url: str, stream: str, number: int) -> dict:
    asked = {"step": number, "context": [3.0 * (number % 2)]}
    return httpx2.post(f"{url}/streams/{stream}/steps", json=asked, timeout=60).raise_for_status().json()


class Watcher:
    """Collect the steps of a service's events, up to a number."""

    def __init__(self, url: str, count: int):
        self.steps: list[dict] = []
        self._connected = threading.Event()
        self._thread = threading.Thread(target=self._listen, args=(url, count), daemon=True)
        self._thread.start()
        assert self._connected.wait(30)

    def _listen(self, url, count):
        with httpx2.stream("GET", f"{url}/events", timeout=30) as events:
            for line in events.iter_lines():
                self._connected.set()
                if line.startswith("data:"):
                    self.steps += json.loads(line[5:])
                    if len(self.steps) >= count:
                        return

    def all(self) -> list[dict]:
        self._thread.join(30)
        return self.steps


def test_each_service_announces_the_steps_of_both_once(urls):
    first, second = urls
    watchers = [Watcher(first, 12), Watcher(second, 12)]
    made = []
    for number in range(1, 7):
        made.append({"stream": "here", **step(first, "here", number)})
        made.append({"stream": "there", **step((first, second)[number % 2], "there", number)})

    def by_name(steps):
        return sorted(steps, key=lambda one: (one["stream"], one["step"]))

    for watcher in watchers:
        assert by_name(watcher.all()) == by_name(made)
    counted = sum(float(httpx2.get(f"{url}/metrics").text.split("ecl2o_steps_total{")[1].split()[1]) for url in urls)
    assert counted == 12  # each step is counted by the service that executed it


def test_a_batch_larger_than_a_payload_is_announced_whole(urls):
    count = 2 * STEPS_PER_PAYLOAD + 1
    watcher = Watcher(urls[1], count)
    streams = [f"many-{number}" for number in range(count)]
    with httpx2.Client(base_url=urls[0], timeout=60) as client:
        with ThreadPoolExecutor(16) as pool:
            new, deadline = {"policy": "small", "x0": [0.0]}, time.monotonic() + 120
            while (
                client.put(f"/streams/{streams[0]}", json=new).status_code == 503
            ):  # still compiled, on a busy machine
                assert time.monotonic() < deadline
                time.sleep(0.5)
            for created in pool.map(lambda stream: client.put(f"/streams/{stream}", json=new), streams):
                created.raise_for_status()
        client.post("/steps", json={stream: [1.0] for stream in streams}).raise_for_status()
    assert sorted(step["stream"] for step in watcher.all()) == sorted(streams)
    longest = ",".join([f"{2**31 - 1}.{2**31 - 1}"] * STEPS_PER_PAYLOAD)
    assert len(longest) + 33 < 8000  # with the sender's id


def test_text_that_the_database_rejects_is_an_error_of_the_request(urls):
    assert httpx2.get(f"{urls[0]}/streams?after=%00").status_code == 422
    answer = httpx2.post(f"{urls[0]}/steps", json={"\x00": [1.0], "away": {"step": 1, "context": [1.0]}}).json()
    assert (set(answer["answered"]), answer["refused"]["\x00"]["status"]) == ({"away"}, 404)
    assert httpx2.get(f"{urls[0]}/readyz").status_code == 200


def test_recovery_from_a_read_only_and_unreachable_database(urls, postgresql):
    url, done = urls[0], httpx2.get(f"{urls[0]}/streams/away").json()["steps"]
    elsewhere = postgresql.replace("/postgres", "/template1")
    with sa.create_engine(elsewhere, isolation_level="AUTOCOMMIT").connect() as admin:

        def cut_off():
            admin.execute(sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'"))

        def check_unavailable(reason):
            answer = httpx2.post(f"{url}/streams/away/steps", json={"context": [1.0]}, timeout=60)
            ready = httpx2.get(f"{url}/readyz", timeout=60)
            assert (answer.status_code, ready.status_code) == (503, 503), (answer.text, ready.text)
            assert reason in answer.text
            assert reason in ready.text
            assert "psycopg" not in answer.text + ready.text

        try:
            admin.execute(sa.text("ALTER DATABASE postgres SET default_transaction_read_only = on"))
            cut_off()
            check_unavailable("it is read-only")
            assert httpx2.get(f"{url}/streams/away").json()["steps"] == done
            admin.execute(sa.text("ALTER DATABASE postgres ALLOW_CONNECTIONS false"))
            cut_off()
            check_unavailable("the database does not answer")
        finally:
            admin.execute(sa.text("ALTER DATABASE postgres RESET default_transaction_read_only"))
            admin.execute(sa.text("ALTER DATABASE postgres ALLOW_CONNECTIONS true"))
            cut_off()
    assert httpx2.get(f"{url}/readyz", timeout=60).json() == {"ready": True, "reasons": []}
    assert step(url, "away", done + 1)["step"] == done + 1
    watcher = Watcher(urls[0], 1)  # the listener reconnects
    for number in range(done + 2, done + 12):
        step(urls[1], "away", number)
        watcher._thread.join(1)
        if watcher.steps:
            break
    assert watcher.steps
