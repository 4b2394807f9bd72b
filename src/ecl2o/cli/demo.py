"""`ecl2o demo`: the service with a fitted policy on the built-in weather, to be looked at."""

from typing import Annotated

import typer


def demo(
    speed: Annotated[float, typer.Option(min=0.1, max=200.0, help="Hours of weather in a second.")] = 4.0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 finds a free one.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Stop after this many steps. (default: go on)")] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Start the service at a free port and replay the built-in weather: see the page live within a minute of installing.

    Everything is in a temporary folder, which is removed in the end.
    """
    from ecl2o.cli.extras import need_serve
    from ecl2o.cli.numerics import use_double_precision, use_synchronous_dispatch

    need_serve()
    use_synchronous_dispatch()
    use_double_precision()
    from ecl2o.recipes.demo import Demo

    def ready(url: str) -> None:
        typer.echo(f"ecl2o: the page is at {url} . Ctrl-C ends it.")
        if open_page:
            typer.launch(url)

    typer.echo("ecl2o: preparing the weather and a policy (a few seconds).", err=True)
    Demo(speed, port, steps).run(ready)
