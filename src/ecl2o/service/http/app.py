"""The routes for those who run the service: is it alive, may it be asked, what does it measure.

The application: routes, refusals as answers, and the gate around everything.

The process: one application on one port.
"""

import contextlib
import importlib.metadata
import logging
import socket
from collections.abc import Callable
from typing import Any

import anyio.to_thread
import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ecl2o.service.http import models
from ecl2o.service.http.api import make_api
from ecl2o.service.http.events import Events
from ecl2o.service.http.metrics import Measures
from ecl2o.service.http.middleware import Access, Gate
from ecl2o.service.http.models import refusals
from ecl2o.service.http.page import make_page
from ecl2o.service.refused import Refused
from ecl2o.service.service import Service
from ecl2o.service.step_executor import Answer
from ecl2o.service.store import Store


def make_probes(service: Service, measures: Measures) -> APIRouter:
    """Health, readiness and Prometheus' figures."""
    probes = APIRouter(tags=["probes"])

    @probes.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process is alive."""
        return {"status": "alive"}

    @probes.get("/readyz", response_model=models.Ready, responses={503: {"model": models.Ready}})
    def readyz(response: Response):
        """The service may be asked; 503 with the reasons if not."""
        reasons = service.unready()
        response.status_code = 503 if reasons else 200
        return {"ready": not reasons, "reasons": reasons}

    @probes.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **refusals()},
    )
    def metrics():
        """For Prometheus."""
        return Response(measures.text(), media_type="text/plain; version=0.0.4")

    return probes


_log = logging.getLogger("ecl2o.serve")


def make_app(store: Store, access: Access | None = None, policies: dict[str, bytes] | None = None) -> FastAPI:
    """The service as an ASGI application. It has one writer's thread, which ends with the application's lifespan.

    Args:
        store: where everything is kept.
        access: the tokens; none: for this machine only.
        policies: files to bring in at once, by name.
    """
    access = access or Access()
    events = Events()
    told: list[Measures] = []

    def announce(answers: list[Answer]) -> None:
        told[0].count([answer for answer in answers if answer.fresh])
        events.announce(answers)

    service = Service(store, announce, lambda: events.is_watched)
    measures = Measures(service)
    told.append(measures)
    service.bring(policies or {})
    service.warm()

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI):
        anyio.to_thread.current_default_thread_limiter().total_tokens = 16
        events.begin()
        yield
        events.end()
        service.close()

    app = FastAPI(
        title="ecl2o",
        version=importlib.metadata.version("ecl2o"),
        description="Online decisions when changing one's mind is costly: one answer per context, on disk before it leaves.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    app.state.events = events
    _answer_refusals(app, measures)
    app.include_router(make_api(service, events, measures))
    app.include_router(make_probes(service, measures))
    make_page(app, service, access)
    app.add_middleware(Gate, access=access)
    return app


def _answer_refusals(app: FastAPI, measures: Measures) -> None:
    """Every refusal is JSON with a detail; none says anything about the machine."""

    def refusal(status: int, body: dict[str, Any], headers: Any = None) -> JSONResponse:
        measures.refused(status)
        return JSONResponse(body, status, headers)

    @app.exception_handler(Refused)
    async def refused(_request: Request, error: Refused):
        return refusal(error.status, error.as_json())

    @app.exception_handler(RequestValidationError)
    async def unsound(_request: Request, error: RequestValidationError):
        found = [f"{'.'.join(str(part)[:60] for part in entry['loc'])}: {entry['msg']}" for entry in error.errors()[:5]]
        return refusal(422, {"detail": "; ".join(found)})

    @app.exception_handler(HTTPException)
    async def not_served(_request: Request, error: HTTPException):
        return refusal(error.status_code, {"detail": str(error.detail)}, error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception):
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return refusal(500, {"detail": "the service failed at this; its log says why."})


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
