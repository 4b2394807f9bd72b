"""Connections of strangers: slow or large headers, crowds, malformed hosts; and the end of a server that is watched."""

import asyncio
import contextlib
import socket
import threading
import time
from unittest.mock import AsyncMock
from urllib.parse import urlsplit

import httpx2
import pytest

from ecl2o.service import Store
from ecl2o.service.http import Access, connections, make_app, middleware


@pytest.fixture(scope="module")
def own_url(tmp_path_factory, policy_bytes, running_app):
    """The URL of a service that other tests do not use, so that limits can be lowered."""
    store = Store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'streams.db'}")
    with running_app(make_app(store, Access(), {"small": policy_bytes})) as url:
        yield url


@contextlib.contextmanager
def connect(url: str, *requests: bytes):
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port), timeout=30) as connection:
        for request in requests:
            connection.sendall(request)
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Return all bytes until the server closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


GET = b"GET %s HTTP/1.1\r\nhost: localhost\r\n%s\r\n"


@pytest.mark.parametrize("first", [b"", GET % (b"/healthz", b"")], ids=["new connection", "after a request"])
def test_a_header_that_trickles_is_cut(own_url, monkeypatch, first):
    monkeypatch.setattr(connections, "_HEADER_SECONDS", 0.4)
    with connect(own_url, first, b"GET / HTTP/1.1\r\nx: ") as connection:
        received = []
        reader = threading.Thread(target=lambda: received.append(read_all(connection)))
        reader.start()
        for _ in range(200):
            if not reader.is_alive():
                break
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"x")
            reader.join(0.05)
        assert not reader.is_alive()
    assert b" 408 " in received[0]


def test_a_connection_that_sends_nothing_is_closed(own_url, monkeypatch):
    monkeypatch.setattr(connections, "_HEADER_SECONDS", 0.2)
    with connect(own_url) as connection:
        assert read_all(connection) == b""


@pytest.mark.parametrize(
    "request_bytes",
    [
        GET % (b"/healthz", b"x: " + b"y" * 40_000 + b"\r\n"),
        GET % (b"/healthz", b"x: y\r\n" * 120),
        GET % (b"/healthz?" + b"y" * 40_000, b""),
        b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 100_000,
    ],
    ids=["bytes", "fields", "address", "incomplete"],
)
def test_large_headers_are_rejected(own_url, request_bytes):
    with connect(own_url, request_bytes) as connection:
        assert b" 431 " in read_all(connection)
    large_enough = GET % (b"/healthz", b"x: " + b"y" * 20_000 + b"\r\nconnection: close\r\n")
    with connect(own_url, large_enough) as connection:
        assert b" 200 " in read_all(connection)


def test_requests_sent_far_ahead_are_rejected(own_url):
    with connect(own_url, GET % (b"/healthz", b"") * 200) as connection:
        assert read_all(connection).count(b" 200 OK") <= 20


def test_a_client_that_does_not_read_is_cut(own_url, monkeypatch):
    monkeypatch.setattr(connections, "_UNREAD_SECONDS", 0.2)
    monkeypatch.setattr(connections, "_HEADER_SECONDS", 1000.0)
    where = urlsplit(own_url)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        connection.connect((where.hostname, where.port))
        cut = threading.Event()
        monkeypatch.setattr(
            connections.LimitedProtocol,
            "cut",
            lambda self, cut_=connections.LimitedProtocol.cut: (cut_(self), cut.set()),
        )
        with contextlib.suppress(ConnectionError):
            for _ in range(400):
                connection.sendall(GET % (b"/openapi.json", b""))
                if cut.wait(0.02):
                    break
        assert cut.wait(30)


def test_idle_connections_make_room(own_url, monkeypatch):
    monkeypatch.setattr(connections, "_MAX_CONNECTIONS", 20)
    with contextlib.ExitStack() as stack:
        watcher = stack.enter_context(connect(own_url, GET % (b"/events", b"")))
        assert b" 200 " in watcher.recv(100)
        idle = [stack.enter_context(connect(own_url)) for _ in range(100)]
        assert httpx2.get(f"{own_url}/healthz").status_code == 200
        assert idle[0].recv(1) == b""  # the first to go
        idle[-1].setblocking(False)
        with pytest.raises(BlockingIOError):  # the last one stays
            idle[-1].recv(1)
        watcher.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # nothing more to read: it is not closed
            while watcher.recv(1000):
                pass
            pytest.fail("the watcher was closed")


def test_a_connection_too_many_is_refused(own_url, monkeypatch):
    monkeypatch.setattr(connections, "_MAX_CONNECTIONS", 4)
    with contextlib.ExitStack() as stack:
        watchers = [stack.enter_context(connect(own_url, GET % (b"/events", b""))) for _ in range(4)]
        assert all(b" 200 " in watcher.recv(100) for watcher in watchers)
        refused = stack.enter_context(connect(own_url))
        assert b" 503 " in read_all(refused)


def test_one_address_has_its_share(own_url, monkeypatch):
    monkeypatch.setattr(connections, "_MAX_PER_ADDRESS", 4)
    with contextlib.ExitStack() as stack:
        local = stack.enter_context(connect(own_url, GET % (b"/healthz", b"")))
        assert b" 200 " in local.recv(100)
        monkeypatch.setattr(connections, "group_address", lambda address: "192.0.2.7")
        watchers = [stack.enter_context(connect(own_url, GET % (b"/events", b""))) for _ in range(4)]
        assert all(b" 200 " in watcher.recv(100) for watcher in watchers)
        assert b" 503 " in read_all(stack.enter_context(connect(own_url)))
        monkeypatch.setattr(connections, "group_address", lambda address: "192.0.2.8")
        other = stack.enter_context(connect(own_url, GET % (b"/healthz", b"")))
        assert b" 200 " in other.recv(1000)
        local.sendall(GET % (b"/healthz", b"connection: close\r\n"))  # idle connections of other addresses stay
        assert b" 200 " in read_all(local)


def test_addresses_are_grouped():
    group = connections.group_address
    assert [group(local) for local in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")] == [""] * 4
    assert group("192.0.2.7") == group("::ffff:192.0.2.7") != group("192.0.2.8")
    assert group("2001:db8::1") == group("2001:db8::ffff:2") != group("2001:db8:0:1::1")
    assert group("fe80::1%eth0") == group("fe80::2")


@pytest.mark.parametrize(
    "host",
    [b"host: [", b"host: [::1", b"host: ", b"x: y", b"host: localhost\r\nhost: localhost", b"host: a b", b"host: ]["],
)
@pytest.mark.parametrize("path", [b"/", b"/streams", b"/nothing/"])
def test_malformed_hosts_are_rejected(own_url, guarded_url, host, path):
    request = b"GET %s HTTP/1.1\r\n%s\r\nauthorization: Bearer secret\r\nconnection: close\r\n\r\n" % (path, host)
    for url in (own_url, guarded_url):
        with connect(url, request) as connection:
            assert b" 400 " in read_all(connection)[:20]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8700", "[::1]", "[::1]:8700"])
def test_hosts_of_this_machine_are_accepted(own_url, host):
    assert httpx2.get(f"{own_url}/streams", headers={"host": host}).status_code == 200
    for other in (f"{host}.example", "evil.example", "[::2]"):
        assert httpx2.get(f"{own_url}/streams", headers={"host": other}).status_code in (400, 403)


def test_a_stop_answers_requests_that_take_too_long():
    """Uvicorn cancels them; without an answer it would print a traceback for each."""
    sent = []

    async def work(scope, receive, send):
        await asyncio.Event().wait()

    async def run():
        answer_step, receive, send = (AsyncMock(return_value=None) for _ in range(3))
        send.side_effect = sent.append
        request = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
        task = asyncio.create_task(middleware.RequestFilter(work, Access(), answer_step)(request, receive, send))
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(run())
    assert sent[0]["status"] == 503
    assert b'"in_doubt":true' in sent[1]["body"]  # a step may have been made
    assert (b"x-content-type-options", b"nosniff") in sent[0]["headers"]


def test_a_stop_ends_event_streams_first(tmp_path, policy_bytes, running_app, capfd):
    store = Store(f"sqlite:///{tmp_path / 'streams.db'}")
    with contextlib.ExitStack() as stack:
        with running_app(make_app(store, Access(), {"small": policy_bytes})) as url:
            watcher = stack.enter_context(connect(url, GET % (b"/events", b"")))
            idle = stack.enter_context(connect(url, GET % (b"/healthz", b"")))
            assert b" 200 " in watcher.recv(100)
            assert b" 200 " in idle.recv(1000)
            began = time.monotonic()
        assert time.monotonic() - began < 15
        assert read_all(watcher).endswith(b"0\r\n\r\n")  # the end of the answer, not of the patience with it
        read_all(idle)  # returns, as it is closed
    assert "Traceback" not in capfd.readouterr().err
