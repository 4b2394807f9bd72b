"""The server's connections: limits on headers, time and number; a stop that does not wait for watchers of events."""

import asyncio
import ipaddress
import json
import math
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

_MAX_CONNECTIONS = 700  # fewer than the 1024 files that a process may usually open
_MAX_PER_ADDRESS = 200  # of another machine
_MAX_HEADER_BYTES = 32 << 10
_MAX_HEADERS = 100
_MAX_PIPELINED = 16  # requests that a connection may send ahead of their answers
_HEADER_SECONDS = 10.0
_UNREAD_SECONDS = 60.0  # in which the client takes nothing of its answer


class Server(uvicorn.Server):
    """Serve an application with limits on its connections.

    Args:
        app: The ASGI application.
        on_stop: Called when the server is asked to stop, before it waits for requests in progress.
    """

    def __init__(self, app: Any, on_stop: Callable[[], None]):
        off: dict[str, Any] = {"ws": "none", "access_log": False, "server_header": False, "proxy_headers": False}
        times: dict[str, Any] = {"timeout_keep_alive": 75, "timeout_graceful_shutdown": 3}
        super().__init__(uvicorn.Config(app, http=LimitedProtocol, lifespan="on", log_level="warning", **off, **times))
        self._on_stop = on_stop

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # once per second
            now, connections = asyncio.get_running_loop().time(), self.server_state.connections
            for late in [one for one in connections if isinstance(one, LimitedProtocol) and one.deadline < now]:
                late.cut()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: Any = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)


class LimitedProtocol(HttpToolsProtocol):
    """A connection. At `deadline` it is cut: its header is incomplete, or its client does not read the answer."""

    deadline, idle_since, client_group = math.inf, 0.0, ""
    _in_header, _header_bytes, _is_too_large = False, 0, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        self.deadline = self.idle_since + _HEADER_SECONDS
        self.client_group = group_address(self.client[0]) if self.client else ""
        everyone: list[Any] = list(self.connections)
        neighbours = [one for one in everyone if one.client_group == self.client_group]
        if self.client_group and len(neighbours) > _MAX_PER_ADDRESS:
            self._make_room(neighbours)
        elif len(everyone) > _MAX_CONNECTIONS:
            self._make_room(everyone)

    def _make_room(self, connections: "list[LimitedProtocol]") -> None:
        """Close the tenth of the idle connections that is idle for longest; refuse this one if none is idle."""
        idle = [one for one in connections if one.is_idle and one is not self and not one.transport.is_closing()]
        idle.sort(key=lambda one: one.idle_since)
        for one in idle[: len(idle) // 10 + 1]:
            one.transport.close()
        if not idle:
            self._refuse(503, "Too many connections. Try again in a moment.")

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        if self.deadline == math.inf and self.is_idle:
            self.deadline = self.loop.time() + _HEADER_SECONDS
        self._header_bytes += len(data)
        super().data_received(data)
        if not self._in_header:
            self._header_bytes = 0
        elif self._header_bytes > _MAX_HEADER_BYTES:
            self._is_too_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_header = True

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > _MAX_HEADERS:
            self._is_too_large = True
            raise ValueError("the parser stops, and send_400_response answers")

    def on_headers_complete(self) -> None:
        self._in_header = False
        if not self.flow.write_paused:
            self.deadline = math.inf
        if self._header_bytes > _MAX_HEADER_BYTES:  # maybe with a part of the body
            sizes = [len(name) + len(value) for name, value in self.headers]
            self._is_too_large = len(self.url) + sum(sizes) > _MAX_HEADER_BYTES
        if self._is_too_large or len(self.pipeline) >= _MAX_PIPELINED:
            raise ValueError("as above")
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self.deadline = self.loop.time() + _UNREAD_SECONDS
        super().pause_writing()

    def resume_writing(self) -> None:
        self.deadline = math.inf
        super().resume_writing()

    def cut(self) -> None:
        """End the connection after its deadline."""
        if self._in_header and self.is_idle:
            self._refuse(408, f"The header did not arrive within {_HEADER_SECONDS:g} seconds.")
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        too_large = f"URL and headers may have {_MAX_HEADER_BYTES} bytes and {_MAX_HEADERS} fields."
        self._refuse(*((431, too_large) if self._is_too_large else (400, msg)))

    def _refuse(self, status: int, detail: str) -> None:
        """Answer without the application, unless an answer is being sent, and close."""
        if self.is_idle and not self.transport.is_closing():
            body = json.dumps({"detail": detail}).encode()
            header = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + header + body)
        self.transport.close()


def group_address(address: str) -> str:
    """Return what counts as one client: an IPv4 address or the first half of an IPv6 address; empty for this machine."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    if parsed.is_loopback:
        return ""
    return str(parsed) if parsed.version == 4 else f"{int(parsed) >> 64:x}"
