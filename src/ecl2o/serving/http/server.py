"""The process: one application on one port."""

import socket
from collections.abc import Callable

import uvicorn

from ecl2o.serving.durable.store import Store
from ecl2o.serving.http.access import Access
from ecl2o.serving.http.app import make_app

_MOST_CONNECTIONS = 2000
_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A socket that nobody else has; port 0 finds a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(_BACKLOG)  # the address answers from now on; requests wait until the service is ready
    except OSError as error:
        raise OSError(f"cannot listen at {host} port {port}: {error.strerror}. Choose another --port.") from None
    return bound


def serve(
    store: str,
    policies: dict[str, bytes],
    bound: socket.socket,
    access: Access,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Run until the process is told to stop.

    Args:
        store: the store's address.
        policies: files to bring in, by name.
        bound: where to listen.
        access: the tokens.
        ready: called once everything is prepared.
    """
    access.check_host(bound.getsockname()[0])
    app = make_app(Store(store), access, policies)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=3,
        limit_concurrency=_MOST_CONNECTIONS,
        lifespan="on",
    )
    ready()
    uvicorn.Server(config).run(sockets=[bound])
