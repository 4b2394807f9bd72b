"""What every request passes: access by tokens, protection against other sites' pages, limits on bodies, security headers."""

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
_PUBLIC = ("/healthz", "/readyz", "/login")
_READ_METHODS = ("GET", "HEAD", "OPTIONS")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_OTHER_SITE = (403, "Pages of other sites may not send this request.")


@dataclasses.dataclass(frozen=True)
class Access:
    """The tokens. Without a token, every user of this machine has full access, and other machines have none.

    Args:
        token: Grants full access.
        read_token: Grants reading, and the page.

    >>> Access().check_host("127.0.0.1")
    >>> Access(token="a long random text").check_host("0.0.0.0")
    """

    token: str | None = None
    read_token: str | None = None

    def check_host(self, host: str) -> None:
        """Check that a service on this host is protected.

        Raises:
            ValueError: other machines can reach the host, and there is no token.
        """
        if host not in _LOOPBACK and not self.token:
            raise ValueError(
                f"Other machines can reach {host}. Set ECL2O_TOKEN to a long random text, or listen at 127.0.0.1."
            )

    def find_denial(self, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
        """Return status and reason if a request is denied; None if it may pass."""
        if method not in _READ_METHODS and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return _OTHER_SITE
        if path in _PUBLIC or path.startswith("/static/"):
            return None
        if not self.token and not self.read_token:
            host = urlsplit("//" + headers.get("host", "")).hostname
            if host not in _LOOPBACK:
                return 403, "Without a token the service answers only as localhost or 127.0.0.1."
            return None
        given = _read_bearer(headers)
        if given is not None and _is_equal(given, self.token):
            return None
        if _is_equal(given, self.read_token) or self._has_cookie(headers):
            return None if method in _READ_METHODS else (403, "This token is for reading only.")
        return 401, "A token is required: Authorization: Bearer ..."

    def may_read(self, given: str) -> bool:
        """Return whether this is one of the tokens."""
        return _is_equal(given, self.read_token) or _is_equal(given, self.token)

    def _has_cookie(self, headers: Headers) -> bool:
        """Return whether the browser has signed in; it may only read."""
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return found is not None and self.may_read(found.value)


def _read_bearer(headers: Headers) -> str | None:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _is_equal(given: str | None, token: str | None) -> bool:
    """Compare in constant time."""
    return bool(given and token) and hmac.compare_digest((given or "").encode(), (token or "").encode())


_MAX_POLICY_BYTES = 64 << 20
_MAX_BODY_BYTES = 8 << 20
_BODY_SECONDS = 30.0

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


class _DeniedError(Exception):
    def __init__(self, status: int, detail: str):
        super().__init__(detail)
        self.status, self.detail = status, detail


class RequestFilter:
    """ASGI middleware that denies requests without access, reads bodies whole and adds the security headers."""

    def __init__(self, app: ASGIApp, access: Access):
        self._app, self._access, self._seconds = app, access, _BODY_SECONDS

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
            denial = self._access.find_denial(method, path, headers)
            if denial is not None:
                raise _DeniedError(*denial)
            if method in ("POST", "PUT", "PATCH", "DELETE"):
                receive = await self._read_body(headers, method, path, receive)
        except _DeniedError as denied:
            if denied.status == 401 and "text/html" in headers.get("accept", ""):
                await _send(send_with_headers, 303, b"", {"location": "/login"})
            else:
                more = {"www-authenticate": "Bearer"} if denied.status == 401 else {}
                body = json.dumps({"detail": denied.detail}).encode()
                await _send(send_with_headers, denied.status, body, {"content-type": "application/json", **more})
            return
        await self._app(scope, receive, send_with_headers)

    async def _read_body(self, headers: Headers, method: str, path: str, receive: Receive) -> Receive:
        """Read the whole body, within the limits of size and time, before the application gets it."""
        limit = _MAX_POLICY_BYTES if method == "PUT" and path.startswith("/policies/") else _MAX_BODY_BYTES
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            raise _DeniedError(413, f"The body may have at most {limit} bytes.")
        try:
            async with asyncio.timeout(self._seconds):
                body = await _receive_body(receive, limit)
        except TimeoutError:
            raise _DeniedError(408, f"The body did not arrive within {self._seconds:g} seconds.") from None
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        return replay


async def _receive_body(receive: Receive, limit: int) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _DeniedError(400, "The connection was closed.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise _DeniedError(413, f"The body may have at most {limit} bytes.")
        if not message.get("more_body"):
            return b"".join(parts)


async def _send(send: Any, status: int, body: bytes, headers: dict[str, str]) -> None:
    raw = [(name.encode(), value.encode()) for name, value in {**headers, "content-length": str(len(body))}.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
