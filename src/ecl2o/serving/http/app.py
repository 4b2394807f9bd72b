"""The application: routes, refusals as answers, and the gate around everything."""

import contextlib
import importlib.metadata
import logging
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ecl2o.serving.durable.playing import Answer
from ecl2o.serving.durable.refused import Refused
from ecl2o.serving.durable.service import Service
from ecl2o.serving.durable.store import Store
from ecl2o.serving.http.access import Access
from ecl2o.serving.http.api import make_api
from ecl2o.serving.http.events import Events
from ecl2o.serving.http.gate import Gate
from ecl2o.serving.http.measures import Measures
from ecl2o.serving.http.page import make_page
from ecl2o.serving.http.probes import make_probes

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
