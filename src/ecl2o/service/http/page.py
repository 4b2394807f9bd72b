"""The page: all streams at `/`, one stream at `/watch/{id}`, the API at `/docs`, sign-in at `/login`."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, select_autoescape

from ecl2o.agents import Promise
from ecl2o.exceptions import ServiceError
from ecl2o.service.http.api import Name, status_of
from ecl2o.service.http.middleware import COOKIE, Access
from ecl2o.service.models import PolicyUsage, StreamRecord
from ecl2o.service.policy_registry import LoadedPolicy
from ecl2o.service.service import Service

_HERE = Path(__file__).parent
_ROWS = 500  # in one page of the table
_POINTS = 256  # steps in a chart


def format_number(value: float | int | None, digits: int = 4) -> str:
    r"""Format a number with four significant digits and thousands apart, a dash if unknown; as static/format.js does.

    >>> format_number(1234567.8), format_number(0.00123456), format_number(None), format_number(2.5)
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


def share_left(live_ratio: float | None, promise: Promise | None) -> float | None:
    """Return how much of a promise is left, from 1 (cost equals the reference) to 0 (cost is at the promised ratio).

    >>> share_left(1.5, Promise(2.0))
    0.5
    """
    if promise is None or live_ratio is None or promise.ratio <= 1:
        return None
    return min(max((promise.ratio - live_ratio) / (promise.ratio - 1), 0.0), 1.0)


@dataclasses.dataclass(frozen=True)
class _Row:
    """A stream as a row of the table: its record, and what the page derives from it."""

    stream: StreamRecord
    promise: Promise | None
    units: str

    @property
    def action(self) -> str:
        return ", ".join(format_number(entry) for entry in self.stream.action)

    @property
    def ratio(self) -> float | None:
        last = self.stream.last
        return last.cost / last.optimum if last is not None and last.optimum else None

    @property
    def share(self) -> float | None:
        return None if self.stream.last is None else share_left(self.stream.last.live_ratio, self.promise)


def _describe_policy(policy: LoadedPolicy) -> list[tuple[str, str]]:
    """Return the facts about a policy, as pairs of name and value."""
    about = policy.describe()
    problem, metadata = about["problem"], about["metadata"]
    pairs = [
        ("Policy", policy.name),
        ("Agent", about["agent"]),
        ("Promise", str(policy.promise or "none")),
        ("Hitting cost", f"{problem['hitting']}, m = {format_number(problem['m'])}"),
        ("Movement cost", problem["switching"]),
        ("Actions", f"{problem['actions']}, {problem['dim']} number{'s' if problem['dim'] != 1 else ''}"),
        ("Trained weights", str(about["weights"])),
        ("Created", f"{metadata.get('created', 'unknown')}, version {metadata.get('version', 'unknown')}"),
        ("Fingerprint", about["fingerprint"][:16]),
    ]
    if "alpha" in problem:
        pairs[4] = ("Movement cost", f"{problem['switching']}, \u03b1 = {format_number(problem['alpha'])}")
    if metadata.get("site"):
        pairs.insert(1, ("Site", str(metadata["site"])))
    return pairs


def add_page(app: FastAPI, service: Service, access: Access) -> None:
    """Add the routes of the page to the application."""
    templates = Environment(loader=FileSystemLoader(_HERE / "templates"), autoescape=select_autoescape())
    templates.filters["number"] = format_number

    def render(template: str, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(templates.get_template(template).render(**values), status)

    @app.get("/", include_in_schema=False)
    def show_streams(request: Request, after: Annotated[str, Query(max_length=128)] = ""):
        try:
            streams, usages = service.list_streams(after, _ROWS), service.summarize_policies()
        except ServiceError as error:
            return render("error.html", status_of(error), detail=str(error))
        usage_of: dict[str, PolicyUsage] = {usage.policy: usage for usage in usages}
        rows = [
            _Row(stream, usage.promise if usage else None, usage.units if usage else "")
            for stream in streams
            for usage in [usage_of.get(stream.policy)]  # None for a stream that was created just now
        ]
        return render(
            "streams.html",
            rows=rows,
            after=after,
            next=streams[-1].id if len(streams) == _ROWS else None,
            total=sum(usage.streams for usage in usages),
            steps=sum(usage.steps for usage in usages),
            failures=service.list_failures(),
            address=request.url.netloc,
        )

    @app.get("/watch/{id}", include_in_schema=False)
    def show_stream(id: Name):
        try:
            stream = service.get_stream(id)
            policy = service.get_policy(stream.policy)
            steps = service.list_steps(id, max(stream.steps - _POINTS, 0), _POINTS)
        except ServiceError as error:
            return render("error.html", status_of(error), detail=str(error))
        ratio = None if policy.promise is None else policy.promise.ratio
        data = {"id": id, "promise": ratio, "steps": [vars(step) for step in steps]}
        return render(
            "stream.html",
            row=_Row(stream, policy.promise, policy.units),
            facts=_describe_policy(policy),
            data=json.dumps(data).replace("<", "\\u003c"),
        )

    @app.get("/docs", include_in_schema=False)
    def show_docs():
        return render("docs.html", routes=_list_routes(app.openapi()))

    @app.get("/login", include_in_schema=False)
    def show_login():
        return render("login.html", wrong=False)

    @app.post("/login", include_in_schema=False)
    async def sign_in(request: Request):
        given = parse_qs((await request.body()).decode("utf-8", "replace")).get("token", [""])[0]
        if not access.may_read(given):
            return render("login.html", 401, wrong=True)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, given, httponly=True, samesite="strict", max_age=30 * 86_400)
        return answer

    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")


def _list_routes(openapi: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the routes of an OpenAPI description, as the template shows them."""
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
