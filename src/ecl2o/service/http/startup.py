"""Listen, and answer health checks while the service is being imported. Imports the standard library only."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_BACKLOG = 2048
_STARTING = "The service is starting. Try again in a moment."
_ANSWERS = {"/healthz": (200, {"status": "alive"}), "/readyz": (503, {"ready": False, "reasons": [_STARTING]})}


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 finds a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(_BACKLOG)  # the address answers from now on; requests wait until the service is ready
    except OSError as error:
        raise OSError(f"Cannot listen at {host}, port {port}: {error.strerror}. Choose another port.") from None
    return bound


@contextlib.contextmanager
def answer_health_checks(bound: socket.socket) -> Iterator[Callable[[], None]]:
    """Answer /healthz, and all else with 503, until the context ends or the function that it gives is called."""
    server = ThreadingHTTPServer(("", 0), _Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = bound
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.shutdown
    finally:
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    timeout = 5.0

    def _answer(self) -> None:
        status, body = _ANSWERS.get(self.path.partition("?")[0], (503, {"detail": _STARTING}))
        text = json.dumps(body).encode()
        self.send_response_only(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, as the service itself."""
