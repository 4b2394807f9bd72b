"""The page: all streams at `/`, one stream at `/watch/{id}`, the API at `/docs`, sign-in at `/login`."""

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, select_autoescape

from ecl2o.exceptions import ServiceError
from ecl2o.service.http.api import Name, status_of
from ecl2o.service.http.middleware import Access
from ecl2o.service.policy_registry import LoadedPolicy
from ecl2o.service.service import Service

_HERE = Path(__file__).parent
_ROWS = 500  # in one page of the table
_POINTS = 256  # steps in a chart


def _describe_policy(policy: LoadedPolicy) -> list[tuple[str, str]]:
    """Return the facts about a policy, as pairs of name and value."""
    about = policy.describe()
    problem, metadata = about["problem"], about["metadata"]
    pairs = [
        ("Policy", policy.name),
        ("Agent", about["agent"]),
        ("Promise", str(policy.promise or "none")),
        ("Hitting cost", f"{problem['hitting']}, m = {problem['m']:.4g}"),
        ("Movement cost", problem["switching"] + (f", \u03b1 = {problem['alpha']:.4g}" if "alpha" in problem else "")),
        ("Actions", f"{problem['actions']}, {problem['dim']} number{'s' if problem['dim'] != 1 else ''}"),
        ("Trained weights", str(about["weights"])),
        ("Created", f"{metadata.get('created', 'unknown')}, version {metadata.get('version', 'unknown')}"),
        ("Fingerprint", about["fingerprint"][:16]),
    ]
    if metadata.get("site"):
        pairs.insert(1, ("Site", str(metadata["site"])))
    return pairs


def add_page(app: FastAPI, service: Service, access: Access) -> None:
    """Add the routes of the page to the application."""
    templates = Environment(loader=FileSystemLoader(_HERE / "templates"), autoescape=select_autoescape())

    def to_script(value: Any) -> str:
        """Return JSON for a script element."""
        return json.dumps(value, default=vars).replace("<", "\\u003c")

    def render(template: str, status: int = 200, **values: Any) -> HTMLResponse:
        return HTMLResponse(templates.get_template(template).render(**values), status)

    @app.get("/", include_in_schema=False)
    def show_streams(request: Request, after: Annotated[str, Query(max_length=128)] = ""):
        try:
            streams, usages = service.list_streams(after, _ROWS), service.summarize_policies()
        except ServiceError as error:
            return render("error.html", status_of(error), detail=str(error))
        usage_of = {usage.policy: usage for usage in usages}
        streams = [stream for stream in streams if stream.policy in usage_of]  # without those created just now
        return render(
            "streams.html",
            streams=streams,
            usage_of=usage_of,
            data=to_script([stream.last for stream in streams]),
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
        counts = {"screened": stream.screened_steps, "stuck": stream.stuck_steps}
        data = to_script({"id": id, "action": stream.action, "steps": steps} | counts)
        return render("stream.html", stream=stream, policy=policy, facts=_describe_policy(policy), data=data)

    @app.get("/docs", include_in_schema=False)
    def show_docs():
        return render("docs.html", routes=_list_routes(app.openapi()))

    @app.get("/login", include_in_schema=False)
    async def show_login(request: Request):
        return render("login.html", signed_in=access.has_session(request.scope))

    @app.post("/login", include_in_schema=False)
    async def sign_in(request: Request):
        given = parse_qs((await request.body()).decode("utf-8", "replace")).get("token", [""])[0].strip()
        access.end_session(request.scope)
        if not given:  # the form to sign out has no token
            return RedirectResponse("/login", 303)
        if not access.may_read(given):
            return render("login.html", 401, wrong=True)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(**access.start_session(request.scope))
        return answer

    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")


def _list_routes(openapi: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the routes of an OpenAPI description, as the template shows them."""
    return [
        {
            "method": method.upper(),
            "path": path,
            "summary": route.get("description", route.get("summary", "")),
            "answers": [(status, answer["description"]) for status, answer in sorted(route["responses"].items())],
        }
        for path, methods in openapi["paths"].items()
        for method, route in methods.items()
    ]
