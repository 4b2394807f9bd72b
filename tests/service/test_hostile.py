"""Hostile requests: a thousand malformed ones, too large or slow bodies, and everything that the OpenAPI description allows."""

import asyncio
import itertools
import json
import random
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import checks

import ecl2o
from ecl2o.service import Store
from ecl2o.service.http import Access, make_app, middleware
from ecl2o.service.http.api import JsonRequest

_CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
_JSON = {"content-type": "application/json"}
_NAMES = ("a", "b", "%00", "..%2f..%2fetc", "ä", "%F0%9F%92%A5", "x" * 200, "a b", "'; DROP TABLE steps; --", "%ff")
_PATHS = (
    "/streams/{}",
    "/streams/{}/steps",
    "/streams/{}/action",
    "/policies/{}",
    "/watch/{}",
    "/steps",
    "/nothing/{}",
)


def draw_body(draw: random.Random) -> bytes:
    depth = draw.randrange(1, 3000)
    return draw.choice(
        [
            b"",
            b"{",
            b"null",
            b'{"context": [NaN]}',
            b'{"context": [1e400]}',
            b'{"context": [' + b"1," * depth + b"1]}",
            b"[" * depth + b"]" * depth,
            b'{"context": "' + b"9" * depth + b'"}',
            b'{"step": -1, "context": [1]}',
            b'{"step": 1e30, "context": [1]}',
            b'{"step": true, "context": [true]}',
            b'{"policy": "../small", "x0": [0]}',
            b'{"policy": "small", "x0": [1e308, -1e308]}',
            b'{"\\ud800": [1]}',
            bytes(draw.randrange(256) for _ in range(64)),
        ]
    )


def draw_request(draw: random.Random) -> dict | None:
    """Return the arguments of a request; None for one that would delete what other tests need."""
    method = draw.choice(("GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "BREW"))
    name = draw.choice(_NAMES)
    if method == "DELETE" and name in ("a", "b"):
        return None
    headers = {"content-type": draw.choice(("application/json", "text/plain", "", "multipart/form-data"))}
    if draw.random() < 0.2:
        headers |= {"authorization": draw.choice(("Bearer", "Bearer x", "Basic eA==", "Bearer " + "x" * 4000))}
    url = draw.choice(_PATHS).format(name)
    return {"method": method, "url": url, "headers": headers, "content": draw_body(draw)}


async def send_all(url: str, requests: list[dict]) -> list[httpx2.Response]:
    """Send requests, sixteen at a time, and return the answers."""
    waiting = iter(requests)
    async with httpx2.AsyncClient(base_url=url, timeout=60) as client:

        async def some() -> list[httpx2.Response]:
            return [await client.request(**request) for request in waiting]

        parts = await asyncio.gather(*(some() for _ in range(16)))
    return [answer for part in parts for answer in part]


# Paths of this machine, which no answer may reveal.
LOCAL_PATHS = (str(Path(ecl2o.__file__).parent), sys.prefix, sys.base_prefix)


def test_a_thousand_hostile_requests_do_not_stop_it(url):
    draw = random.Random(1000)
    before = httpx2.get(f"{url}/streams/a").json()
    requests = [request for request in (draw_request(draw) for _ in range(1040)) if request is not None][:1000]
    answers = asyncio.run(send_all(url, requests))
    assert len(answers) == 1000
    for answer in answers:
        assert answer.status_code < 500, (answer.request.method, answer.request.url, answer.text)
        assert "Traceback" not in answer.text
        assert not any(path in answer.text for path in LOCAL_PATHS), answer.text
    assert {200, 404, 405, 422} <= {answer.status_code for answer in answers}
    assert httpx2.get(f"{url}/readyz").status_code == 200
    after = httpx2.get(f"{url}/streams/a").json()
    assert after["steps"] >= before["steps"]  # some requests are valid steps
    number = after["steps"] + 1
    answer = httpx2.post(f"{url}/streams/a/steps", json={"context": [1.0], "step": number})
    assert answer.json()["step"] == number


def send_raw(url: str, request: bytes) -> bytes:
    """Send bytes and return the first line of the answer."""
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=60) as connection:
        connection.sendall(request)
        return connection.recv(200).split(b"\r\n")[0]


def test_too_large_bodies_are_rejected(url):
    assert b" 413 " in send_raw(url, b"POST /steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9000000\r\n\r\n")
    assert b" 413 " in send_raw(url, b"PUT /policies/x HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 68000000\r\n\r\n")
    assert b" 200 " not in send_raw(url, b"POST /steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: -1\r\n\r\n")

    def pieces():
        for _ in range(9):
            yield b" " * (1 << 20)

    with httpx2.Client() as client:
        assert client.post(f"{url}/steps", content=pieces()).status_code == 413
    assert httpx2.get(f"{url}/healthz").status_code == 200


def test_the_service_answers_while_it_parses_a_large_body(url, monkeypatch):
    parsing, answered, loads = threading.Event(), threading.Event(), json.loads

    def wait_and_load(text, **hooks):
        if len(text) > 100_000:
            parsing.set()
            answered.wait(30)
        return loads(text, **hooks)

    monkeypatch.setattr(json, "loads", wait_and_load)
    body = b'{"context": [' + b"1.5," * 50_000 + b"1]}"
    with ThreadPoolExecutor(1) as pool:
        posted = pool.submit(httpx2.post, f"{url}/streams/a/steps", content=body, headers=_JSON, timeout=120)
        try:
            assert parsing.wait(30)
            assert httpx2.get(f"{url}/healthz", timeout=10).status_code == 200
        finally:
            answered.set()
        assert posted.result().status_code == 422


def test_the_event_loop_runs_while_a_thread_parses(monkeypatch):
    """The parser is written in C and would keep the interpreter for itself. Measured in its own CPU time, whatever else runs."""
    body, loads = b"[" + b"1.5,2," * 300_000 + b"1]", json.loads
    parser, ended, seen = [], [], []  # its thread; its CPU time at the end; and as seen from the loop

    def watch_and_load(text, **hooks):
        seen.append(time.thread_time())
        parser.append(threading.get_ident())
        found = loads(text, **hooks)
        ended.append(time.thread_time())
        return found

    monkeypatch.setattr(json, "loads", watch_and_load)

    async def run_beside() -> None:
        async def receive():
            return {"type": "http.request", "body": body}

        parsed = asyncio.create_task(JsonRequest({"type": "http", "headers": []}, receive).json())
        while not parsed.done():
            await asyncio.sleep(0)
            if parser and not ended:
                seen.append(time.clock_gettime(time.pthread_getcpuclockid(parser[0])))
        assert len(parsed.result()) == 600_001
        assert parser[0] != threading.get_ident()

    asyncio.run(run_beside())
    alone = max(after - before for before, after in itertools.pairwise([*seen, *ended]))
    assert alone < 0.5 * (ended[0] - seen[0])


def test_bodies_of_many_parts_are_rejected_unparsed(url):
    names = "{" + ",".join(f'"{number}":1' for number in range(160_000)) + "}"
    for method, path, content in (
        ("POST", "/steps", names),
        ("PUT", "/streams/many", '{"policy": "small", "history": [' + "[]," * 250_000 + "[]]}"),
    ):
        answer = httpx2.request(method, url + path, content=content, headers=_JSON, timeout=60)
        assert answer.status_code == 422
        assert "20000 streams and 200000 contexts" in answer.json()["detail"]
    wrong = {"policy": "small", "x0": [0.0], "history": [[True, True]] * 20_000}
    answer = httpx2.put(f"{url}/streams/many", json=wrong, timeout=60)
    assert answer.status_code == 422
    assert answer.json()["detail"].count("history") == 1  # the rest is not read after the first error


def test_slow_bodies_are_rejected(tmp_path, policy_bytes, running_app, monkeypatch):
    monkeypatch.setattr(middleware, "_BODY_SECONDS", 0.3)
    store = Store(f"sqlite:///{tmp_path / 'streams.db'}")
    with running_app(make_app(store, Access(), {"small": policy_bytes})) as url:
        began = time.monotonic()
        assert b" 408 " in send_raw(url, b"POST /steps HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{")
        assert time.monotonic() - began < 25
        assert httpx2.get(f"{url}/healthz").status_code == 200


def test_answers_conform_to_the_openapi_description(url):
    """No 5xx, and no status, type or body that is not in the description."""
    description = schemathesis.openapi.from_url(f"{url}/openapi.json").exclude(path="/events")
    operations = [found.ok() for found in description.get_all_operations()]
    assert len(operations) == 15  # all but /events, which never ends
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def check(case):
            case.validate_response(case.call(timeout=60), checks=_CHECKS)

        check()
