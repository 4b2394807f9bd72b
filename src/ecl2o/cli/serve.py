"""`ecl2o serve`: policies as an HTTP service. `ecl2o demo`: the service with a policy on the built-in weather."""

import os
from pathlib import Path
from typing import Annotated

import typer


def serve(
    policies: Annotated[
        list[Path] | None, typer.Argument(help="Policy files. A policy's name is its file name without the ending.")
    ] = None,
    store: Annotated[
        str, typer.Option(help="Database of streams: sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE.")
    ] = "sqlite:///streams.db",
    host: Annotated[
        str, typer.Option(help="Address to listen at. Any but loopback requires ECL2O_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 finds a free one.")] = 8700,
) -> None:
    """Serve policies over HTTP. Steps survive crashes: each is on disk before its answer leaves.

    The page at / shows all streams. Bearer tokens: ECL2O_TOKEN for full access, ECL2O_READ_TOKEN for reading. See
    docs/service.md.
    """
    from ecl2o.cli.interrupts import use_default_sigterm
    from ecl2o.cli.jax_setup import use_double_precision, use_synchronous_dispatch
    from ecl2o.cli.options import need_serve

    use_default_sigterm()
    need_serve()
    use_synchronous_dispatch()
    use_double_precision()
    from ecl2o.service.http import Access
    from ecl2o.service.http import serve as run
    from ecl2o.service.http.app import bind

    access = Access(os.environ.get("ECL2O_TOKEN") or None, os.environ.get("ECL2O_READ_TOKEN") or None)
    access.check_host(host)
    files = {path.stem: path.read_bytes() for path in policies or []}
    if len(files) != len(policies or []):
        raise typer.BadParameter("Two policy files have the same name.", param_hint="POLICIES")
    bound = bind(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"

    def on_ready() -> None:
        served = "1 policy" if len(files) == 1 else f"{len(files)} policies"
        typer.echo(f"ecl2o: serving {served} at {address} from {_hide_password(store)}.", err=True)

    run(store, files, bound, access, on_ready)


def _hide_password(store: str) -> str:
    import sqlalchemy as sa

    return sa.make_url(store).render_as_string(hide_password=True)


def demo(
    speed: Annotated[float, typer.Option(min=0.1, max=200.0, help="Hours of weather per second.")] = 4.0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 finds a free one.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Stop after this many steps. (default: a year)")] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Replay the built-in weather through the service, with a live page.

    All files are in a temporary folder, which is removed at the end.
    """
    from ecl2o.cli.jax_setup import use_double_precision, use_synchronous_dispatch
    from ecl2o.cli.options import need_serve

    need_serve()
    use_synchronous_dispatch()
    use_double_precision()
    from ecl2o.service.demo import run_demo

    def on_ready(url: str) -> None:
        typer.echo(f"ecl2o: the page is at {url} . Press Ctrl-C to stop.")
        if open_page:
            typer.launch(url)

    typer.echo("ecl2o: preparing the weather and a policy (a few seconds).", err=True)
    run_demo(on_ready, speed, port, steps)
