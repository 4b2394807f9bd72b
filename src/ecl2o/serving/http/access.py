"""Who may ask for what: tokens, and the rules that keep other people's web pages away from a service without any."""

import dataclasses
import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers

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
