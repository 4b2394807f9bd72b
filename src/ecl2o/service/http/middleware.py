"""What every request passes: access by tokens, protection against other sites' pages, limits on bodies, security headers."""

import asyncio
import dataclasses
import hmac
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "ecl2o_read"
_PUBLIC = ("/healthz", "/readyz", "/login")
_READ_METHODS = ("GET", "HEAD", "OPTIONS")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


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

    def check(self, request: Request) -> None:
        """Raise an `HTTPException` if a request is denied."""
        reads, path, headers = request.method in _READ_METHODS, request.scope["path"], request.headers
        if not reads and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise HTTPException(403, "Pages of other sites may not send this request.")
        if path in _PUBLIC or path.startswith("/static/"):
            return
        if not self.token and not self.read_token:
            if urlsplit("//" + headers.get("host", "")).hostname not in _LOOPBACK:
                raise HTTPException(403, "Without a token the service answers only as localhost or 127.0.0.1.")
            return
        kind, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if kind.lower() == "bearer" else ""
        if _is_equal(given, self.token):
            return
        if not _is_equal(given, self.read_token) and not self.may_read(request.cookies.get(COOKIE, "")):
            needed = "A token is required: Authorization: Bearer ..."
            raise HTTPException(401, needed, {"www-authenticate": "Bearer"})
        if not reads:
            raise HTTPException(403, "This token is for reading only.")

    def may_read(self, given: str) -> bool:
        """Return whether this is one of the tokens."""
        return _is_equal(given, self.read_token) or _is_equal(given, self.token)


def _is_equal(given: str, token: str | None) -> bool:
    """Compare in constant time; an empty text equals no token."""
    return bool(given and token) and hmac.compare_digest(given.encode(), str(token).encode())


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

        request, app = Request(scope, receive), self._app
        try:
            self._access.check(request)
            if request.method in ("POST", "PUT", "PATCH", "DELETE"):
                receive = await self._read_body(request)
        except HTTPException as denied:
            if denied.status_code == 401 and "text/html" in request.headers.get("accept", ""):
                app = RedirectResponse("/login", 303)
            else:
                app = JSONResponse({"detail": denied.detail}, denied.status_code, denied.headers)
        await app(scope, receive, send_with_headers)

    async def _read_body(self, request: Request) -> Receive:
        """Read the whole body, within the limits of size and time, before the application gets it."""
        is_policy = request.method == "PUT" and request.scope["path"].startswith("/policies/")
        limit = _MAX_POLICY_BYTES if is_policy else _MAX_BODY_BYTES
        too_large = HTTPException(413, f"The body may have at most {limit} bytes.")
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > limit:
                        raise too_large
        except TimeoutError:
            raise HTTPException(408, f"The body did not arrive within {self._seconds:g} seconds.") from None
        except ClientDisconnect:
            raise HTTPException(400, "The connection was closed.") from None
        messages: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await request.receive()

        return replay
