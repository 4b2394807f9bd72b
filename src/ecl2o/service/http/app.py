"""The ASGI application, with health checks and error answers, and the server process."""

import contextlib
import gc
import importlib.metadata
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from ecl2o.exceptions import ServiceError
from ecl2o.json_text import shorten
from ecl2o.service.http.api import ANY_ROUTE, Events, error_body, make_api, make_step_endpoint, status_of
from ecl2o.service.http.connections import Server
from ecl2o.service.http.examples import add_examples
from ecl2o.service.http.metrics import Metrics
from ecl2o.service.http.middleware import Access, RequestFilter
from ecl2o.service.http.page import add_page
from ecl2o.service.models import StepResult
from ecl2o.service.service import Service
from ecl2o.service.store import Store

_log = logging.getLogger("ecl2o.serve")


def make_app(store: Store, access: Access | None = None, policies: dict[str, bytes] | None = None) -> FastAPI:
    """Return the service as an ASGI application. Its writer thread ends with the application's lifespan.

    Args:
        store: Keeps policies, streams and steps.
        access: The tokens. Default: none, and requests from this machine only.
        policies: Policy files to store at the start, by name.
    """
    access = access or Access()
    events = Events()

    def announce(results: list[StepResult]) -> None:
        metrics.count_steps(results)
        events.announce(results)

    service = Service(store, announce, lambda: events.is_watched)
    metrics = Metrics(service)
    service.add_policies(policies or {})
    service.warm_up(wait=False)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI):
        anyio.to_thread.current_default_thread_limiter().total_tokens = 16
        events.start()
        yield
        events.stop()
        service.close()

    app = FastAPI(
        title="ecl2o",
        version=importlib.metadata.version("ecl2o"),
        description="Online decisions with switching costs: one action per context, on disk before the answer leaves.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.service = service
    app.state.events = events
    _add_error_handlers(app, metrics)
    app.include_router(make_api(service, events, metrics))
    app.include_router(_make_probes(service, metrics))
    add_page(app, service, access)
    make_schema = app.openapi
    app.openapi = lambda: add_examples(make_schema())  # pyright: ignore[reportAttributeAccessIssue]
    app.add_middleware(RequestFilter, access=access, answer_step=make_step_endpoint(service, metrics))
    return app


class Readiness(BaseModel):
    """Whether the service is ready, and the reasons if it is not."""

    ready: bool
    reasons: list[str]


def _make_probes(service: Service, metrics: Metrics) -> APIRouter:
    """Return the routes for health, readiness and metrics."""
    probes = APIRouter(tags=["probes"])

    @probes.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Say that the process is alive."""
        return {"status": "alive"}

    @probes.get("/readyz", responses={503: {"model": Readiness}})
    def readyz(response: Response) -> Readiness:
        """Say whether the service is ready; 503 with the reasons if it is not."""
        reasons = service.list_failures()
        response.status_code = 503 if reasons else 200
        return Readiness(ready=not reasons, reasons=reasons)

    text = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

    @probes.get("/metrics", response_class=Response, responses={**text, **ANY_ROUTE})
    def get_metrics():
        """Return the metrics for Prometheus."""
        return Response(metrics.render(), media_type="text/plain; version=0.0.4")

    return probes


def _add_error_handlers(app: FastAPI, metrics: Metrics) -> None:
    """Answer every error as JSON with a `detail`, without anything about the machine."""

    def answer(status: int, body: dict[str, Any], headers: Any = None) -> JSONResponse:
        metrics.count_error(status)
        return JSONResponse(body, status, headers)

    @app.exception_handler(ServiceError)
    async def service_error(_request: Request, error: ServiceError):
        return answer(status_of(error), error_body(error))

    @app.exception_handler(RequestValidationError)
    async def validation_error(_request: Request, error: RequestValidationError):
        return answer(422, {"detail": _describe_invalid(error.errors()[:10])})

    @app.exception_handler(HTTPException)
    async def http_error(_request: Request, error: HTTPException):
        return answer(error.status_code, {"detail": str(error.detail)}, error.headers)

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception):
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return answer(500, {"detail": "Internal error; see the log of the service."})


def _describe_invalid(errors: Sequence[Any]) -> str:
    """Return what is wrong with a request and what was found there; of a union, what is wrong with the nearest type."""
    found: dict[str, Any] = {}
    for error in errors:
        if error["type"] == "json_invalid":
            return f"The body is not JSON: {error['ctx']['error']}, at character {error['loc'][-1]}."
        place, expected = _name_place(error["loc"]), error["msg"]
        if place == "body":
            expected = "Send a JSON object with the header content-type: application/json"
        expected = f"{found[place][0]}, or {expected[:1].lower()}{expected[1:]}" if place in found else expected
        is_told = error["type"] in ("missing", "value_error")  # their messages have all
        found[place] = expected.removeprefix("Value error, "), "" if is_told else f", got {shorten(error['input'], 40)}"
    nearest = [place for place in found if not any(other.startswith(f"{place}.") for other in found)]
    return "; ".join(f"{place}: {''.join(found[place])}" for place in nearest[:5])


def _name_place(parts: Sequence[str | int]) -> str:
    """Return where in a request an error is, without the types of a union that pydantic has tried, such as "list[float]"."""
    return ".".join(part[:60] for part in map(str, parts) if part not in ("float", "NewStep") and "[" not in part)


def serve(
    store: str,
    policies: dict[str, bytes],
    bound: socket.socket,
    access: Access,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until the process is stopped.

    Args:
        store: URL of the store.
        policies: Policy files to store at the start, by name.
        bound: The listening socket of `bind`.
        access: The tokens.
        on_ready: Called when the policies are stored, just before the service answers. Compiled programs are loaded after it.
    """
    access.check_host(bound.getsockname()[0])
    app = make_app(Store(store), access, policies)
    on_ready()
    gc.freeze()  # collections skip what is loaded by now, which takes 0.1 s and more each time
    Server(app, app.state.events.stop).run(sockets=[bound])
