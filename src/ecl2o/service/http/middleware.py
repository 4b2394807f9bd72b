"""Who may ask for what: tokens, and the rules that keep other people's web pages away from a service without any.

What every request passes: who asks, how much and how slowly it sends; and the headers that every answer has.
"""

import asyncio
import dataclasses
import hmac
import json
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "ecl2o_read"
_OPEN = ("/healthz", "/readyz", "/login")
_READING = ("GET", "HEAD", "OPTIONS")
_HERE = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether a service bound to this host can be reached from this machine only."""
    return host in _HERE


@dataclasses.dataclass(frozen=True)
class Access:
    """The tokens. Without any, everybody on this machine may do everything.

    Args:
        token: for everything.
        read_token: for looking only: the page, and what can be read.
    """

    token: str | None = None
    read_token: str | None = None

    def check_host(self, host: str) -> None:
        """Refuse to be reachable from other machines without a token."""
        if not is_loopback(host) and not self.token:
            raise ValueError(
                f"{host} can be reached from other machines: set ECL2O_TOKEN (a long random text) first, "
                "or leave --host at 127.0.0.1."
            )

    def refusal(self, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
        """The status and the words with which a request is turned away; None for one that may pass."""
        if path in _OPEN or path.startswith("/static/"):
            return None if self._is_own(method, headers) else (403, "a page of another site may not do this.")
        if not self._is_own(method, headers):
            return 403, "a page of another site may not do this."
        if not self.token and not self.read_token:
            host = urlsplit("//" + headers.get("host", "")).hostname
            if host not in _HERE:
                return 403, "without a token the service answers only to localhost and 127.0.0.1."
            return None
        given = _bearer(headers)
        if given is not None and _same(given, self.token):
            return None
        if _same(given, self.read_token) or self.knows_cookie(headers):
            return None if method in _READING else (403, "this token is for looking only.")
        return 401, "a token is needed: Authorization: Bearer ..."

    def may_look(self, given: str) -> bool:
        """Whether this is one of the tokens."""
        return _same(given, self.read_token) or _same(given, self.token)

    def knows_cookie(self, headers: Headers) -> bool:
        """Whether a browser has given a token before. It may only look."""
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return found is not None and self.may_look(found.value)

    @staticmethod
    def _is_own(method: str, headers: Headers) -> bool:
        return method in _READING or headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _bearer(headers: Headers) -> str | None:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _same(given: str | None, token: str | None) -> bool:
    """Compared in constant time."""
    return bool(given and token) and hmac.compare_digest((given or "").encode(), (token or "").encode())


LARGEST_POLICY = 64 << 20
LARGEST_BODY = 8 << 20
_SECONDS = 30.0  # for a body to arrive

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class _TurnedAway(Exception):  # noqa: N818
    def __init__(self, status: int, detail: str):
        super().__init__(detail)
        self.status, self.detail = status, detail


class Gate:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, access: Access):
        self._app, self._access, self._seconds = app, access, _SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        try:
            refusal = self._access.refusal(method, path, headers)
            if refusal is not None:
                raise _TurnedAway(*refusal)
            if method in ("POST", "PUT", "PATCH", "DELETE"):
                receive = await self._whole_body(headers, method, path, receive)
        except _TurnedAway as away:
            if away.status == 401 and "text/html" in headers.get("accept", ""):
                await _send(send_with_headers, 303, b"", {"location": "/login"})
            else:
                more = {"www-authenticate": "Bearer"} if away.status == 401 else {}
                body = json.dumps({"detail": away.detail}).encode()
                await _send(send_with_headers, away.status, body, {"content-type": "application/json", **more})
            return
        await self._app(scope, receive, send_with_headers)

    async def _whole_body(self, headers: Headers, method: str, path: str, receive: Receive) -> Receive:
        """Read the body before anybody works on it: not too much of it, and not too slowly."""
        largest = LARGEST_POLICY if method == "PUT" and path.startswith("/policies/") else LARGEST_BODY
        told = headers.get("content-length", "0")
        if not told.isdecimal() or int(told) > largest:
            raise _TurnedAway(413, f"the body may have at most {largest} bytes.")
        try:
            async with asyncio.timeout(self._seconds):
                body = await _read(receive, largest)
        except TimeoutError:
            raise _TurnedAway(408, f"the body did not arrive within {self._seconds:g} seconds.") from None
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        return replay


async def _read(receive: Receive, largest: int) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _TurnedAway(400, "the connection was closed.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > largest:
            raise _TurnedAway(413, f"the body may have at most {largest} bytes.")
        if not message.get("more_body"):
            return b"".join(parts)


async def _send(send: Any, status: int, body: bytes, headers: dict[str, str]) -> None:
    raw = [(name.encode(), value.encode()) for name, value in {**headers, "content-length": str(len(body))}.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
