"""The JSON routes: policies, streams, steps and events; their request and answer models; the status codes of errors."""

import asyncio
import csv
import datetime
import io
import json
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import AllowInfNan, BaseModel, BeforeValidator, Field, Strict, StrictInt, ValidationError

from ecl2o.agents import Promise
from ecl2o.exceptions import (
    ConflictError,
    InDoubtError,
    InvalidRequestError,
    LoadingError,
    NotFoundError,
    ServiceError,
    UnavailableError,
)
from ecl2o.policy.clock import parse_time
from ecl2o.service.http.metrics import Metrics
from ecl2o.service.models import (
    Hindsight,
    PolicySummary,
    PromiseBudget,
    StepRecord,
    StepRequest,
    StepResult,
    StreamRecord,
)
from ecl2o.service.service import Service

STATUS_OF_ERROR: dict[type[ServiceError], int] = {
    NotFoundError: 404,
    ConflictError: 409,
    InvalidRequestError: 422,
    InDoubtError: 503,
    UnavailableError: 503,
}
_DESCRIPTIONS = {
    400: "malformed request",
    401: "token missing or wrong",
    403: "not allowed with this token or from this site",
    404: "not found",
    408: "the body took too long",
    409: "conflict",
    413: "too large",
    422: "invalid",
    503: "unavailable; nothing was changed, unless `in_doubt` is true: then send the request again, with its step number",
}

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:-]*$"
_STEP_PATH = re.compile(r"/streams/([A-Za-z0-9][A-Za-z0-9._:-]{0,127})/steps")
Name = Annotated[str, Path(pattern=_NAME, max_length=128, description="letters, digits and . _ : - (at most 128)")]
_Number = Annotated[float, Strict(), AllowInfNan(False)]  # neither "18" nor true is a number
_Numbers = Annotated[list[_Number], Field(max_length=4096, fail_fast=True)]
_NumbersOrMissing = Annotated[list[_Number | None], Field(max_length=4096, fail_fast=True)]
_AnyNumber = Annotated[float, Strict()]
_Advice = Annotated[list[_AnyNumber | None], Field(max_length=4096, fail_fast=True)]
_Time = Annotated[  # not `Strict()`, which takes no text from JSON that is already parsed
    datetime.datetime, BeforeValidator(lambda given: parse_time(given) if isinstance(given, str) else None)
]
_After = Annotated[int, Query(ge=0, le=2**31 - 1)]
_Limit = Annotated[int, Query(ge=1, le=10_000)]
_MAX_STEPS = 20_000  # in one request
_LOADING_SECONDS = 2.0  # that a step waits for its program
_MAX_HISTORY = 200_000  # contexts
_INLINE_BYTES = 32 << 10  # of a body that is parsed in the event loop


def status_of(error: ServiceError) -> int:
    """Return the HTTP status of an error."""
    return next((STATUS_OF_ERROR[kind] for kind in type(error).__mro__ if kind in STATUS_OF_ERROR), 500)


def error_body(error: ServiceError) -> dict[str, Any]:
    """Return the JSON body of an error."""
    return {"detail": str(error), **error.details}


class ErrorBody(BaseModel, extra="allow"):
    """What was wrong and what to do."""

    detail: str


def _describe_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of errors."""
    return {status: {"model": ErrorBody, "description": _DESCRIPTIONS[status]} for status in statuses}


ANY_ROUTE = _describe_errors(400, 401, 403, 408, 413, 422, 503)


class JsonRequest(Request):
    """A request whose body is parsed in a thread if it is large, so that other requests are answered meanwhile."""

    async def json(self) -> Any:
        body = await self.body()
        if len(body) <= _INLINE_BYTES:
            return json.loads(body)
        # The parser, in C, lets other threads run only where it calls Python: at numbers. The rest is limited.
        if body.count(b"[") > _MAX_HISTORY + _MAX_STEPS or body.count(b'"') > 15 * _MAX_STEPS:
            raise HTTPException(422, f"At most {_MAX_STEPS} streams and {_MAX_HISTORY} contexts in one request.")
        hooks: dict[str, Any] = {"parse_float": lambda text: float(text), "parse_int": lambda text: int(text)}
        return await asyncio.to_thread(json.loads, body, **hooks)


class JsonRoute(APIRoute):
    """A route whose request is a `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json


class NewStream(BaseModel, extra="forbid"):
    """A stream to create."""

    policy: str = Field(pattern=_NAME, max_length=128, description="Name of a policy.")
    x0: _Numbers | None = Field(None, description="Action in force. Default: the cheapest for the last context.")
    history: Annotated[list[_Numbers], Field(max_length=_MAX_HISTORY, fail_fast=True)] | None = Field(
        None, description="Contexts before the first step, the last one a step before it. Default: the policy's own."
    )
    start: _Time | None = Field(
        None, description="Time of the first step. Default: that of the first step sent, or one step after the history."
    )


_WITH_ADVICE = {"step": 1, "context": [12.5], "advice": [14.0]}  # of a policy made by `ecl2o guard`


class NewStep(BaseModel, extra="forbid", json_schema_extra={"examples": [_WITH_ADVICE]}):
    """A context, and the number of the step or its time, each of which makes the request safe to repeat."""

    context: _Number | _NumbersOrMissing | None = Field(description="Numbers; null for a missing number.")
    baseline: _Number | Annotated[list[_Number], Field(min_length=1, max_length=1)] | None = Field(
        None, description="The baseline's action, for a policy with a promise relative to a baseline."
    )
    advice: _AnyNumber | _Advice | None = Field(
        None, description="The action that your own policy proposes, for a guard; null for a missing number."
    )
    step: Annotated[StrictInt, Field(ge=1, le=2**31 - 1)] | None = Field(None, description="Default: the next.")
    time: _Time | None = Field(
        None, description="Time of the context, such as 2024-01-31T06:00. Steps missed before it are filled in."
    )


class StepResults(BaseModel):
    """Answers and errors by stream; an error has `status`, `detail` and further fields."""

    answered: dict[str, StepRecord]
    refused: dict[str, dict[str, Any]]


class StreamPage(BaseModel):
    """Streams in the order of their ids; `next` is the value of `after` for the next page."""

    streams: list[StreamRecord]
    next: str | None


class ActionInForce(BaseModel):
    """The action in force, and the number of the step that chose it; 0 for x0."""

    step: int
    action: list[float]


class PolicyDescription(BaseModel, extra="allow"):
    """A policy: agent, promise, problem, contract, metadata and fingerprint."""

    name: str
    agent: str
    promise: Promise | None


class StoredPolicy(BaseModel):
    """A policy in the store, and whether this request added it."""

    name: str
    new: bool


_MAX_WATCHERS = 256
_MAX_BATCHES_BEHIND = 100  # of a slow watcher; it misses further batches
_RESULTS_PER_EVENT = 500
_KEEP_ALIVE_SECONDS = 15.0


class Events:
    """Pass new results from the writer thread to watchers, as server-sent events. Missed events are in the store."""

    def __init__(self):
        self._watchers: dict[asyncio.Queue[list[StepResult]], str | None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()

    def start(self) -> None:
        """Serve watchers in the running event loop."""
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """End all event streams, so that the server can stop."""
        self._closing.set()
        for queue in self._watchers:
            if not queue.full():
                queue.put_nowait([])

    @property
    def is_watched(self) -> bool:
        """Whether anybody watches."""
        return bool(self._watchers)

    def announce(self, results: list[StepResult]) -> None:
        """Send results to the watchers; called from any thread."""
        if self._loop is not None and self._watchers and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._distribute, results)

    def _distribute(self, results: list[StepResult]) -> None:
        for queue, stream in self._watchers.items():
            wanted = results if stream is None else [result for result in results if result.stream == stream]
            if wanted and not queue.full():
                queue.put_nowait(wanted)

    def watch(self, stream: str | None) -> AsyncIterator[str]:
        """Return events of one stream or of all: `steps`, a list of records with their streams."""
        if len(self._watchers) >= _MAX_WATCHERS:
            raise UnavailableError(f"The limit of {_MAX_WATCHERS} watchers is reached.")
        return self._generate(stream)

    async def _generate(self, stream: str | None) -> AsyncIterator[str]:
        queue: asyncio.Queue[list[StepResult]] = asyncio.Queue(_MAX_BATCHES_BEHIND)
        self._watchers[queue] = stream
        try:
            yield "retry: 1000\n\n"
            while not self._closing.is_set():
                try:
                    results = await asyncio.wait_for(queue.get(), _KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    yield ": keep-alive\n\n"
                    continue
                for start in range(0, len(results), _RESULTS_PER_EVENT):
                    some = results[start : start + _RESULTS_PER_EVENT]
                    data = ",".join(f'{{"stream":"{result.stream}",{result.json[1:]}' for result in some)
                    yield f"event: steps\ndata: [{data}]\n\n"
        finally:
            self._watchers.pop(queue, None)


def make_api(service: Service, events: Events, metrics: Metrics) -> APIRouter:
    """Return the JSON routes."""
    api = APIRouter(responses=ANY_ROUTE, route_class=JsonRoute)
    missing, conflict = _describe_errors(404), _describe_errors(409)
    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    upload = {"requestBody": {"required": True, "content": binary}}
    as_csv = {200: {"model": list[StepRecord], "content": {"text/csv": {"schema": {"type": "string"}}}}}
    as_events = {
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "description": "steps as they happen",
    }

    @api.put(
        "/policies/{name}", tags=["policies"], responses={201: {"model": StoredPolicy}} | conflict, openapi_extra=upload
    )
    async def put_policy(name: Name, request: Request, response: Response) -> StoredPolicy:
        """Upload a policy file of at most 64 MiB. A name always means the same file; another file is a conflict (409)."""
        new = await asyncio.to_thread(service.put_policy, name, await request.body())
        response.status_code = 201 if new else 200
        return StoredPolicy(name=name, new=new)

    @api.get("/policies", tags=["policies"])
    def get_policies() -> list[PolicySummary]:
        """List all policies."""
        return service.list_policies()

    @api.get("/policies/{name}", tags=["policies"], response_model=PolicyDescription, responses=missing)
    def get_policy(name: Name):
        """Describe a policy: its agent, its promise, its problem."""
        return service.get_policy(name).describe()

    @api.put("/streams/{id}", tags=["streams"], responses={201: {"model": StreamRecord}} | conflict)
    def put_stream(id: Name, body: NewStream, response: Response) -> StreamRecord:
        """Create a stream (201). The same request again finds it (200); a different one is a conflict (409)."""
        stream, new = service.create_stream(id, body.policy, body.x0, body.history, body.start)
        response.status_code = 201 if new else 200
        return stream

    @api.get("/streams", tags=["streams"])
    def get_streams(after: Annotated[str, Query(max_length=128)] = "", limit: _Limit = 1000) -> StreamPage:
        """List streams in the order of their ids, from the one after `after` on."""
        found = service.list_streams(after, limit)
        return StreamPage(streams=found, next=found[-1].id if len(found) == limit else None)

    @api.get("/streams/{id}", tags=["streams"], responses=missing)
    def get_stream(id: Name) -> StreamRecord:
        """Describe a stream and its last step."""
        return service.get_stream(id)

    @api.delete("/streams/{id}", tags=["streams"], status_code=204, responses=missing)
    def delete_stream(id: Name):
        """Delete a stream and all its steps."""
        service.delete_stream(id)

    @api.get("/streams/{id}/action", tags=["streams"], responses=missing)
    def get_action(id: Name) -> ActionInForce:
        """Return the action in force. Polling it executes no step."""
        stream = service.get_stream(id)
        return ActionInForce(step=stream.steps, action=stream.action)

    @api.get("/streams/{id}/hindsight", tags=["streams"], responses=missing)
    def get_hindsight(id: Name) -> Hindsight:
        """Return the optimal actions for the latest contexts, up to 256, from step `first` on."""
        return service.compute_hindsight(id)

    @api.post("/streams/{id}/steps", tags=["steps"], response_model=StepRecord, responses=missing | conflict)
    async def post_step(id: Name, body: NewStep):
        """Send a context, get an action. The step is on disk before the answer leaves.

        Repeating the last step with its number or its time and the same context gives the same answer. Another context, a
        number that does not follow, or an earlier time is a conflict (409).
        """
        return Response(await _execute_step(service, metrics, id, body), media_type="application/json")

    @api.post("/steps", tags=["steps"], response_model=StepResults)
    async def post_steps(body: dict[str, _Number | _NumbersOrMissing | NewStep | None]):
        """Send contexts for many streams by id, each a context or {"step": 7, "time": "2024-01-31T06:00", "context": [1.5]}.

        All steps share one transaction. Each stream gets its own answer or error.
        """
        if len(body) > _MAX_STEPS:
            raise InvalidRequestError(f"At most {_MAX_STEPS} streams in one request, got {len(body)}.")
        with metrics.latency.time():
            requests = [_make_request(stream, step) for stream, step in body.items()]
            results = await _execute(service, requests)
        return Response(_join_results(requests, results, metrics), media_type="application/json")

    @api.get("/streams/{id}/steps", tags=["steps"], response_model=list[StepRecord], responses=as_csv | missing)
    def get_steps(id: Name, request: Request, after: _After = 0, limit: _Limit = 1000):
        """List the steps after number `after`, as JSON, or as CSV if the Accept header asks for text/csv."""
        steps = service.list_steps(id, after, limit)
        if "text/csv" in request.headers.get("accept", ""):
            return Response(_format_csv(steps), media_type="text/csv")
        return Response(f"[{','.join(step.to_json() for step in steps)}]", media_type="application/json")

    @api.get("/events", tags=["steps"], responses={200: as_events}, response_class=Response)
    async def get_events(stream: Annotated[str | None, Query(max_length=128)] = None):
        """Watch steps of one stream or of all, as server-sent events named `steps`.

        On PostgreSQL, steps of other services on the same database are included.
        """
        return StreamingResponse(events.watch(stream), media_type="text/event-stream")

    return api


async def _execute_step(service: Service, metrics: Metrics, stream: str, step: NewStep) -> str:
    with metrics.latency.time():
        (result,) = await _execute(service, [_make_request(stream, step)])
    if isinstance(result, ServiceError):
        raise result
    return result.json


def make_step_endpoint(service: Service, metrics: Metrics) -> Callable[[str, bytes], Awaitable[Response | None]]:
    """Return `POST /streams/{id}/steps` without FastAPI, whose routing and parsing take most of a step's time.

    The function takes path and body. It gives None for another path and for an invalid body: FastAPI explains it.
    """

    async def answer(path: str, body: bytes) -> Response | None:
        found = _STEP_PATH.fullmatch(path)
        if found is None or len(body) > _INLINE_BYTES:
            return None
        try:
            step = NewStep.model_validate_json(body)
        except ValidationError:
            return None
        try:
            return Response(await _execute_step(service, metrics, found[1], step), media_type="application/json")
        except ServiceError as error:
            metrics.count_error(status_of(error))
            return JSONResponse(error_body(error), status_of(error))

    return answer


def _make_request(stream: str, step: "NewStep | float | list[float | None] | None") -> StepRequest:
    if not isinstance(step, NewStep):
        step = NewStep.model_construct(context=step)
    context: list[float | None] = [*step.context] if isinstance(step.context, list) else [step.context]
    advice: list[float | None] | None = None
    if step.baseline is not None:
        context.append(step.baseline[0] if isinstance(step.baseline, list) else step.baseline)
        advice = []  # the baseline is not the advice
    if step.advice is not None:
        given = step.advice if isinstance(step.advice, list) else [step.advice]
        advice = [number if number is not None and math.isfinite(number) else None for number in given]
    return StepRequest(stream, context, step.step, step.time, advice=advice)


async def _execute(service: Service, requests: list[StepRequest]) -> list[StepResult | ServiceError]:
    """Execute steps. Those whose programs are not loaded wait for a moment, and are then executed or refused."""
    results = await asyncio.wrap_future(service.submit_steps(requests))
    loading = {index: result.ready for index, result in enumerate(results) if isinstance(result, LoadingError)}
    if not loading:
        return results
    until = time.monotonic() + _LOADING_SECONDS
    while not all(ready.done() for ready in loading.values()) and time.monotonic() < until:
        await asyncio.sleep(0.02)
    failures = {i: ready.exception() for i, ready in loading.items() if ready.done() and not ready.cancelled()}
    for index, failure in failures.items():
        if isinstance(failure, ServiceError):
            results[index] = failure
    again = [index for index, failure in failures.items() if failure is None]
    if again:
        executed = await asyncio.wrap_future(service.submit_steps([requests[index] for index in again]))
        for index, result in zip(again, executed, strict=True):
            results[index] = result
    return results


def _join_results(requests: list[StepRequest], results: Iterable[StepResult | ServiceError], metrics: Metrics) -> str:
    """Return all results as one JSON text; single results are JSON already."""
    answered, refused = [], []
    for request, result in zip(requests, results, strict=True):
        if isinstance(result, StepResult):
            answered.append(f"{json.dumps(request.stream)}:{result.json}")
        else:
            metrics.count_error(status_of(result))
            body = {"status": status_of(result), **error_body(result)}
            refused.append(f"{json.dumps(request.stream)}:{json.dumps(body)}")
    return f'{{"answered":{{{",".join(answered)}}},"refused":{{{",".join(refused)}}}}}'


def _format_csv(steps: list[StepRecord]) -> str:
    """Return a line for each step; each number of a context or an action has its own column."""
    text = io.StringIO()
    writer = csv.writer(text)
    for index, step in enumerate(steps):
        flat: dict[str, Any] = {}
        for name, value in vars(step).items():
            entries = (
                {f"{name}_{k}": entry for k, entry in enumerate(value)} if isinstance(value, list) else {name: value}
            )
            for key, entry in entries.items():
                parts = vars(entry) if isinstance(entry, PromiseBudget) else {}
                flat |= {f"{key}_{part}": number for part, number in parts.items()} or {key: entry}
        if index == 0:
            writer.writerow(flat)
        writer.writerow(flat.values())
    return text.getvalue()
