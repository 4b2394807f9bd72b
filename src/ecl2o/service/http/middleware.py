"""What every request passes: access by tokens, protection against other sites' pages, limits on bodies, security headers."""

import asyncio
import dataclasses
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PUBLIC = ("/healthz", "/readyz", "/login")
_READ_METHODS = ("GET", "HEAD", "OPTIONS")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s\[\]:/?#@\\]+))(?::\d{1,5})?", re.IGNORECASE | re.ASCII)
_MIN_TOKEN = 16  # characters, where other machines can try tokens
_SESSION_SECONDS = 30 * 86_400
_MAX_SESSIONS = 1000


@dataclasses.dataclass(frozen=True)
class Access:
    """The tokens. Without a token, every user of this machine has full access, and other machines have none.

    Args:
        token: Grants full access.
        read_token: Grants reading, and the page.

    Raises:
        ValueError: a token cannot be sent in an HTTP header.

    >>> Access().check_host("127.0.0.1")
    >>> Access(token="a long random text").check_host("0.0.0.0")
    """

    token: str | None = dataclasses.field(default=None, repr=False)
    read_token: str | None = dataclasses.field(default=None, repr=False)
    _sessions: dict[bytes, float] = dataclasses.field(default_factory=dict, init=False, repr=False)  # hash: expiry

    def __post_init__(self):
        for name, token in self._list_tokens():
            if not (token.isascii() and token.isprintable() and token == token.strip()):
                raise ValueError(f"{name} must be printable ASCII without outer spaces. {_MAKE_TOKEN}")

    def _list_tokens(self) -> list[tuple[str, str]]:
        return [
            (f"ECL2O_{name.upper()}", getattr(self, name)) for name in ("token", "read_token") if getattr(self, name)
        ]

    def check_host(self, host: str) -> None:
        """Check that a service on this host is protected.

        Raises:
            ValueError: other machines can reach the host, and there is no token, or a short one.
        """
        if host in _LOOPBACK:
            return
        if not self.token:
            raise ValueError(f"Other machines can reach {host}. Listen at 127.0.0.1, or set ECL2O_TOKEN. {_MAKE_TOKEN}")
        for name, token in self._list_tokens():
            if len(token) < _MIN_TOKEN:
                found = f"{name} has {len(token)} characters, fewer than {_MIN_TOKEN}"
                raise ValueError(f"Other machines can reach {host}, and {found}. {_MAKE_TOKEN}")

    def check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raise an `HTTPException` if a request is denied."""
        reads, path = scope["method"] in _READ_METHODS, scope["path"]
        if not reads and headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            raise HTTPException(403, "Pages of other sites may not send this request.")
        if path in _PUBLIC or path.startswith("/static/"):
            return
        host = _HOST.fullmatch(headers.get(b"host", b"").decode("latin-1"))
        if host is None or sum(name == b"host" for name, _ in scope["headers"]) != 1:
            raise HTTPException(400, "One Host header is required, with a name or an address.")
        if not self.token and not self.read_token:
            if (host[1] or host[2]).lower() not in _LOOPBACK:
                raise HTTPException(403, "Without a token the service answers only as localhost or 127.0.0.1.")
            return
        kind, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        given = token.strip() if kind.lower() == "bearer" else ""
        if _is_equal(given, self.token):
            return
        if not _is_equal(given, self.read_token) and not self.has_session(scope):
            needed = "A token is required: Authorization: Bearer ..."
            raise HTTPException(401, needed, {"www-authenticate": "Bearer"})
        if not reads:
            raise HTTPException(403, "This token is for reading only.")

    def may_read(self, given: str) -> bool:
        """Return whether this is one of the tokens."""
        return _is_equal(given, self.read_token) or _is_equal(given, self.token)

    def start_session(self, scope: Scope) -> dict[str, Any]:
        """Start a session, which grants reading; return its cookie, as arguments of `set_cookie`."""
        while len(self._sessions) >= _MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]  # the oldest
        session = secrets.token_urlsafe(32)
        self._sessions[_hash(session)] = time.time() + _SESSION_SECONDS
        is_secure = Request(scope).headers.get("x-forwarded-proto") == "https"  # a proxy with TLS
        more = {"httponly": True, "samesite": "strict", "max_age": _SESSION_SECONDS, "secure": is_secure}
        return {"key": name_cookie(scope), "value": session, **more}

    def has_session(self, scope: Scope) -> bool:
        """Return whether a request has the cookie of a session that has not expired."""
        session = Request(scope).cookies.get(name_cookie(scope), "")
        return self._sessions.get(_hash(session), 0.0) > time.time()

    def end_session(self, scope: Scope) -> None:
        """End the session of a request."""
        self._sessions.pop(_hash(Request(scope).cookies.get(name_cookie(scope), "")), None)


_MAKE_TOKEN = "One can be made by: openssl rand -hex 32"


def name_cookie(scope: Scope) -> str:
    """Return the name of the session's cookie: browsers send a cookie to every port of a host."""
    return f"ecl2o_session_{(scope.get('server') or ('', 0))[1]}"


def _hash(session: str) -> bytes:
    return hashlib.sha256(session.encode()).digest()


def _is_equal(given: str, token: str | None) -> bool:
    """Compare in constant time; an empty text equals no token."""
    return bool(given and token) and hmac.compare_digest(given.encode(), str(token).encode())


_MAX_POLICY_BYTES = 64 << 20
_MAX_BODY_BYTES = 8 << 20
_MAX_LOGIN_BYTES = 4 << 10
_BODY_SECONDS = 30.0
_LOGIN_SECONDS = 5.0  # anybody can send it

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


_HEADER_BYTES = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]


class RequestFilter:
    """ASGI middleware that denies requests without access, reads bodies whole and adds the security headers.

    Args:
        app: Answers the other requests.
        access: The tokens.
        answer_step: Answers a POST by its path and JSON body, or gives None to leave it to the application.
    """

    def __init__(self, app: ASGIApp, access: Access, answer_step: Callable[[str, bytes], Awaitable[ASGIApp | None]]):
        self._app, self._access, self._answer_step, self._seconds = app, access, answer_step, _BODY_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal is_started
            if not is_started:
                is_started = True
                own = list(message["headers"])
                names = {name for name, _ in own}
                message["headers"] = own + [header for header in _HEADER_BYTES if header[0] not in names]
            await send(message)

        headers, app = dict(scope["headers"]), self._app
        try:
            self._access.check(scope, headers)
            if scope["method"] in ("POST", "PUT", "PATCH", "DELETE"):
                body = await self._read_body(scope, headers, receive)
                receive = _replay(body, receive)
                if scope["method"] == "POST" and headers.get(b"content-type") == b"application/json":
                    app = await self._answer_step(scope["path"], body) or app
            await app(scope, receive, send_with_headers)
        except HTTPException as denied:
            if denied.status_code == 401 and b"text/html" in headers.get(b"accept", b""):
                answer = RedirectResponse("/login", 303)
            else:
                answer = JSONResponse({"detail": denied.detail}, denied.status_code, denied.headers)
            await answer(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server stops and has waited long enough
            if not is_started:
                stopping = "The service is stopping. Send the request again; steps may have been made."
                await JSONResponse({"detail": stopping, "in_doubt": True}, 503)(scope, receive, send_with_headers)

    async def _read_body(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """Read the whole body, within the limits of size and time, before the application gets it."""
        path, limit = scope["path"], _MAX_BODY_BYTES
        if scope["method"] == "PUT" and path.startswith("/policies/"):
            limit = _MAX_POLICY_BYTES
        elif path == "/login":
            limit = _MAX_LOGIN_BYTES
        too_large = HTTPException(413, f"The body may have at most {limit} bytes.")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > limit:
            raise too_large
        parts, size, more = [], 0, True
        try:
            async with asyncio.timeout(self._seconds if path != "/login" else _LOGIN_SECONDS):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPException(400, "The connection was closed.")
                    parts.append(message.get("body", b""))
                    size, more = size + len(parts[-1]), message.get("more_body", False)
                    if size > limit:
                        raise too_large
        except TimeoutError:
            raise HTTPException(408, "The body did not arrive in time.", {"connection": "close"}) from None
        return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a function that gives the application the body, and then what the client sends."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
