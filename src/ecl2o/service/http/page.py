"""Figures and policies in the words of the page.

The page: all streams at `/`, one stream at `/watch/{id}`, the API's description at `/docs`, and the door at `/login`.
"""

import json
import math
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, select_autoescape

from ecl2o.service.http.middleware import COOKIE, Access
from ecl2o.service.http.models import Name
from ecl2o.service.policy_registry import Offer
from ecl2o.service.refused import Refused
from ecl2o.service.service import Service


def figure(value: float | int | None, digits: int = 4) -> str:
    r"""A number for people: four digits that count, thousands apart, a dash where it is not known.

    >>> figure(1234567.8), figure(0.00123456), figure(None), figure(2.5)
    ('1\u202f234\u202f568', '0.001235', '–', '2.5')
    """
    if value is None or not math.isfinite(value):
        return "\u2013"
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}".replace(",", "\u202f")
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    if decimals > 9:
        return f"{value:.{digits - 1}e}"
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def promise_text(promise: dict[str, Any] | None) -> str:
    """Return the promise as one sentence."""
    return "nothing is promised" if promise is None else f"promise: {promise['text']}"


def row_of(stream: dict[str, Any], promise: dict[str, Any] | None) -> dict[str, Any]:
    """A stream as a row of the table."""
    last = stream["last"] or {}
    cost, optimum, left = last.get("cost"), last.get("optimum"), last.get("promise_left")
    return {
        "id": stream["id"],
        "policy": stream["policy"],
        "steps": stream["steps"],
        "action": ", ".join(figure(entry) for entry in stream["action"]),
        "cost": cost,
        "optimum": optimum,
        "ratio": cost / optimum if cost is not None and optimum else None,
        "live_ratio": last.get("live_ratio"),
        "promise": None if promise is None else promise["ratio"],
        "left": left,
        "share": share_left(last.get("live_ratio"), promise),
        "active": last.get("guard_active"),
        "at": last.get("at"),
    }


def share_left(live_ratio: float | None, promise: dict[str, Any] | None) -> float | None:
    """How much of a promise is left, from 1 (cost is the reference's) to 0 (cost is at the promised ratio)."""
    if promise is None or live_ratio is None or promise["ratio"] <= 1:
        return None
    return min(max((promise["ratio"] - live_ratio) / (promise["ratio"] - 1), 0.0), 1.0)


def about_policy(offered: Offer) -> list[tuple[str, str]]:
    """What a policy is, as pairs for a list."""
    about = offered.about()
    problem, metadata = about["problem"], about["metadata"]
    pairs = [
        ("Policy", offered.name),
        ("Agent", about["agent"]),
        ("Promise", promise_text(about["promise"])),
        ("Hitting cost", f"{problem['hitting']}, m = {figure(problem['m'])}"),
        ("Movement", problem["switching"] + (f", \u03b1 = {figure(problem['alpha'])}" if "alpha" in problem else "")),
        ("Actions", f"{problem['actions']}, {problem['dim']} number{'s' if problem['dim'] != 1 else ''}"),
        ("Trained weights", str(about["weights"])),
        ("Made", f"{metadata.get('created', 'unknown')}, version {metadata.get('version', 'unknown')}"),
        ("Fingerprint", about["fingerprint"][:16]),
    ]
    if metadata.get("site"):
        pairs.insert(1, ("Site", str(metadata["site"])))
    return pairs


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
