"""`ecl2o serve`: policies as an HTTP service. `ecl2o demo`: the service with a policy on the built-in weather."""

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from ecl2o.cli import options
from ecl2o.cli.interrupts import use_default_sigterm
from ecl2o.cli.jax_setup import set_up_steps
from ecl2o.cli.options import option

_PORT = "Port to listen on; 0 finds a free one."


def serve(
    policies: Annotated[
        list[Path] | None, typer.Argument(help="Policy files. A policy's name is its file name without the ending.")
    ] = None,
    store: str = option(
        "Database of streams: sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE.",
        default="sqlite:///streams.db",
    ),
    host: str = option("Address to listen on. Any but loopback requires ECL2O_TOKEN.", default="127.0.0.1"),
    port: int = option(_PORT, default=8700, min=0, max=65535),
) -> None:
    """Serve policies over HTTP. Steps survive crashes: each is on disk before its answer is sent.

    The page at / shows all streams. Bearer tokens: ECL2O_TOKEN for full access, ECL2O_READ_TOKEN for reading. See
    docs/service.md.
    """
    use_default_sigterm()
    _require_packages()
    from ecl2o.service.http.middleware import Access
    from ecl2o.service.http.startup import answer_health_checks, bind

    access = Access(os.environ.get("ECL2O_TOKEN") or None, os.environ.get("ECL2O_READ_TOKEN") or None)
    access.check_host(host)
    files = {path.stem: path.read_bytes() for path in policies or []}
    if len(files) != len(policies or []):
        raise options.usage_error("POLICIES", "two policy files have the same name.")
    bound = bind(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
    with answer_health_checks(bound) as stop_answering:
        set_up_steps()
        logging.basicConfig(format="ecl2o: %(message)s")
        logging.getLogger("ecl2o.serve").setLevel(logging.INFO)
        import sqlalchemy as sa

        from ecl2o.service.http import serve as run

        def on_ready() -> None:
            stop_answering()
            served = "1 policy" if len(files) == 1 else f"{len(files)} policies"
            database = sa.make_url(store).render_as_string(hide_password=True)
            typer.echo(f"ecl2o: serving {served} at {address} from {database}.", err=True)

        run(store, files, bound, access, on_ready)


def demo(
    speed: float = option("Hours of weather per second.", default=4.0, min=0.1, max=200.0),
    port: int = option(_PORT, default=0, min=0, max=65535),
    steps: int | None = option("Stop after this many steps. (default: a year)", min=1),
    open_page: bool = option("Open the page in a browser.", "--open", default=False),
) -> None:
    """Replay the built-in weather through the service, with a live page.

    All files are in a temporary folder, which is removed at the end.
    """
    _require_packages()
    set_up_steps()
    from ecl2o.service.demo import run_demo

    def on_ready(url: str) -> None:
        typer.echo(f"ecl2o: the page is at {url} . Press Ctrl-C to stop.")
        if open_page:
            typer.launch(url)

    typer.echo("ecl2o: preparing the weather and a policy (a few seconds).", err=True)
    run_demo(on_ready, speed, port, steps)


def _require_packages() -> None:
    packages = ("fastapi", "jinja2", "prometheus_client", "sqlalchemy", "uvicorn")
    options.require_extra("serve", "the service", *packages)
