"""The routes in JSON: policies, streams and steps."""

import asyncio
import csv
import io
import json
import time
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from ecl2o.service.http import models
from ecl2o.service.http.events import Events
from ecl2o.service.http.metrics import Measures
from ecl2o.service.http.models import Name, refusals
from ecl2o.service.refused import Refused
from ecl2o.service.service import Service
from ecl2o.service.step_executor import Answer, Ask

_MOST_STEPS = 20_000  # in one call
_After = Annotated[int, Query(ge=0, le=2**31 - 1)]
_Limit = Annotated[int, Query(ge=1, le=10_000)]
_FILE = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_CSV = {200: {"model": list[models.Step], "content": {"text/csv": {"schema": {"type": "string"}}}}}
_EVENTS = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "steps as they are made"}
}


def make_api(service: Service, events: Events, measures: Measures) -> APIRouter:
    """All routes that answer in JSON."""
    api = APIRouter()
    _add_policies(api, service)
    _add_streams(api, service)
    _add_steps(api, service, events, measures)
    return api


def _add_policies(api: APIRouter, service: Service) -> None:
    @api.put(
        "/policies/{name}",
        tags=["policies"],
        response_model=models.Kept,
        responses={201: {"model": models.Kept}, **refusals(409)},
        openapi_extra=_FILE,
    )
    async def put_policy(name: Name, request: Request, response: Response):
        """Bring a policy file, at most 64 MiB. What a name stands for never changes: another file is refused with 409."""
        new = await asyncio.to_thread(service.put_policy, name, await request.body())
        response.status_code = 201 if new else 200
        return {"name": name, "new": new}

    @api.get("/policies", tags=["policies"], response_model=list[models.PolicyShown], responses=refusals())
    def get_policies():
        """All policies."""
        return service.policies()

    @api.get("/policies/{name}", tags=["policies"], response_model=models.PolicyAbout, responses=refusals(404))
    def get_policy(name: Name):
        """What a policy is, its promise and period."""
        return service.offer(name).about()


def _add_streams(api: APIRouter, service: Service) -> None:
    @api.put(
        "/streams/{id}",
        tags=["streams"],
        response_model=models.StreamShown,
        responses={201: {"model": models.StreamShown}, **refusals(409)},
    )
    def put_stream(id: Name, asked: models.StreamAsked, response: Response):
        """Make a stream. The same request again finds it (200); another one under the same id is refused (409)."""
        shown, new = service.put_stream(id, asked.policy, asked.x0, asked.history)
        response.status_code = 201 if new else 200
        return shown

    @api.get("/streams", tags=["streams"], response_model=models.StreamsShown, responses=refusals())
    def get_streams(after: Annotated[str, Query(max_length=128)] = "", limit: _Limit = 1000):
        """Streams in the order of their ids, from the one after `after` on."""
        found = service.streams(after, limit)
        return {"streams": found, "next": found[-1]["id"] if len(found) == limit else None}

    @api.get("/streams/{id}", tags=["streams"], response_model=models.StreamShown, responses=refusals(404))
    def get_stream(id: Name):
        """Where a stream stands."""
        return service.stream(id)

    @api.delete("/streams/{id}", tags=["streams"], status_code=204, responses=refusals(404))
    def delete_stream(id: Name):
        """Remove a stream and all its steps, for good."""
        service.delete_stream(id)

    @api.get("/streams/{id}/action", tags=["streams"], response_model=models.Action, responses=refusals(404))
    def get_action(id: Name):
        """The action in force. Safe to poll: nothing is played."""
        stream = service.stream(id)
        return {"step": stream["steps"], "action": stream["action"]}

    @api.get("/streams/{id}/hindsight", tags=["streams"], responses=refusals(404))
    def get_hindsight(id: Name) -> dict[str, Any]:
        """The cheapest actions for the latest contexts, had they been known: of up to 256 steps, from number `first` on."""
        return service.hindsight(id)


def _add_steps(api: APIRouter, service: Service, events: Events, measures: Measures) -> None:
    @api.post(
        "/streams/{id}/steps",
        tags=["steps"],
        response_model=models.Step,
        responses=refusals(404, 409),
    )
    async def post_step(id: Name, asked: models.StepAsked):
        """See a context, get an action. It is on disk before the answer leaves.

        The step just answered, sent again with its number and the same context, has the same answer; with another context, or a
        number that does not follow: 409.
        """
        began = time.perf_counter()
        answer = (await asyncio.wrap_future(service.play([Ask(id, asked.numbers, asked.step)])))[0]
        measures.latency.observe(time.perf_counter() - began)
        if isinstance(answer, Refused):
            raise answer
        return Response(answer.text, media_type="application/json")

    @api.post("/steps", tags=["steps"], response_model=models.Steps, responses=refusals())
    async def post_steps(asked: dict[str, models.Figure | models.Reading | models.StepAsked | None]):
        """Contexts for many streams, by their ids; a value is a context or {"step": 7, "context": [1.5]}.

        Each stream is answered or refused by itself, all in one transaction.
        """
        began = time.perf_counter()
        if len(asked) > _MOST_STEPS:
            raise Refused(422, f"at most {_MOST_STEPS} streams in one call, got {len(asked)}.")
        asks = [_ask(stream, what) for stream, what in asked.items()]
        answers = await asyncio.wrap_future(service.play(asks))
        measures.latency.observe(time.perf_counter() - began)
        return Response(_joined(asks, answers, measures), media_type="application/json")

    @api.get("/streams/{id}/steps", tags=["steps"], response_model=list[models.Step], responses=_CSV | refusals(404))
    def get_steps(id: Name, request: Request, after: _After = 0, limit: _Limit = 1000):
        """The steps that follow the one with number `after`; as CSV if the Accept header asks for text/csv."""
        found = service.steps(id, after, limit)
        if "text/csv" in request.headers.get("accept", ""):
            return Response(_as_csv(found), media_type="text/csv")
        return found

    @api.get("/events", tags=["steps"], responses=_EVENTS | refusals(), response_class=Response)
    async def get_events(stream: Annotated[str | None, Query(max_length=128)] = None):
        """Steps as they are made, as server-sent events named `steps`; of one stream, or of all.

        On PostgreSQL also those that other services on the same database make.
        """
        return StreamingResponse(events.watch(stream), media_type="text/event-stream")


def _ask(stream: str, what: Any) -> Ask:
    if isinstance(what, models.StepAsked):
        return Ask(stream, what.numbers, what.step)
    return Ask(stream, what if isinstance(what, list) else [what])


def _joined(asks: list[Ask], answers: Iterable[Answer | Refused], measures: Measures) -> str:
    """All answers in one text; an answer is JSON already."""
    answered, refused = [], []
    for ask, answer in zip(asks, answers, strict=True):
        if isinstance(answer, Answer):
            answered.append(f"{json.dumps(ask.stream)}:{answer.text}")
        else:
            measures.refused(answer.status)
            refused.append(f"{json.dumps(ask.stream)}:{json.dumps({'status': answer.status, **answer.as_json()})}")
    return f'{{"answered":{{{",".join(answered)}}},"refused":{{{",".join(refused)}}}}}'


def _as_csv(steps: list[dict[str, Any]]) -> str:
    """One line for each step; contexts and actions have a column for each number."""
    text = io.StringIO()
    writer = csv.writer(text)
    for number, step in enumerate(steps):
        flat: dict[str, Any] = {}
        for name, value in step.items():
            if isinstance(value, list):
                flat |= {f"{name}_{place}": entry for place, entry in enumerate(value)}
            else:
                flat[name] = value
        if number == 0:
            writer.writerow(flat)
        writer.writerow(flat.values())
    return text.getvalue()
