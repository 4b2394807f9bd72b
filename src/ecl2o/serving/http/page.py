"""The page: all streams at `/`, one stream at `/watch/{id}`, the API's description at `/docs`, and the door at `/login`."""

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, select_autoescape

from ecl2o.serving.durable.refused import Refused
from ecl2o.serving.durable.service import Service
from ecl2o.serving.http.access import COOKIE, Access
from ecl2o.serving.http.models import Name
from ecl2o.serving.http.words import about_policy, figure, promise_text, row_of

_HERE = Path(__file__).parent
_ROWS = 500  # in one page of the table
_POINTS = 256  # steps in a chart


def make_page(app: FastAPI, service: Service, access: Access) -> None:
    """Add the page's routes."""
    templates = Environment(loader=FileSystemLoader(_HERE / "templates"), autoescape=select_autoescape())
    templates.filters |= {"figure": figure, "promise": promise_text}

    def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(templates.get_template(template).render(**values), status)

    @app.get("/", include_in_schema=False)
    def all_streams(request: Request, after: Annotated[str, Query(max_length=128)] = ""):
        try:
            found, standing = service.streams(after, _ROWS), service.standing()
        except Refused as refused:
            return page("trouble.html", refused.status, detail=refused.detail)
        promises = {entry["policy"]: entry["promise"] for entry in standing}
        units = {entry["policy"]: entry["units"] for entry in standing}
        return page(
            "streams.html",
            rows=[
                row_of(stream, promises.get(stream["policy"])) | {"units": units.get(stream["policy"], "")}
                for stream in found
            ],
            after=after,
            next=found[-1]["id"] if len(found) == _ROWS else None,
            total=sum(entry["streams"] for entry in standing),
            steps=sum(entry["steps"] for entry in standing),
            reasons=service.unready(),
            address=request.url.netloc,
        )

    @app.get("/watch/{id}", include_in_schema=False)
    def one_stream(id: Name):
        try:
            stream = service.stream(id)
            offered = service.offer(stream["policy"])
            steps = service.steps(id, max(stream["steps"] - _POINTS, 0), _POINTS)
        except Refused as refused:
            return page("trouble.html", refused.status, detail=refused.detail)
        data = {"id": id, "x0": stream["x0"], "promise": offered.promise, "steps": steps}
        return page(
            "stream.html",
            stream=stream,
            row=row_of(stream, offered.promise),
            promise=offered.promise,
            units=offered.units,
            about=about_policy(offered),
            data=json.dumps(data).replace("<", "\\u003c"),
        )

    @app.get("/docs", include_in_schema=False)
    def docs():
        return page("docs.html", routes=_described(app.openapi()))

    @app.get("/login", include_in_schema=False)
    def login():
        return page("login.html", wrong=False)

    @app.post("/login", include_in_schema=False)
    async def enter(request: Request):
        given = parse_qs((await request.body()).decode("utf-8", "replace")).get("token", [""])[0]
        if not access.may_look(given):
            return page("login.html", 401, wrong=True)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, given, httponly=True, samesite="strict", max_age=30 * 86_400)
        return answer

    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")


def _described(openapi: dict[str, Any]) -> list[dict[str, Any]]:
    """The routes of the OpenAPI description, for people."""
    return [
        {
            "method": method.upper(),
            "path": path,
            "summary": route.get("description", route.get("summary", "")),
            "answers": [(status, answer["description"]) for status, answer in route["responses"].items()],
        }
        for path, methods in openapi["paths"].items()
        for method, route in methods.items()
    ]
