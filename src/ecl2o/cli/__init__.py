"""The command line; imports the rest lazily."""

import typer

app = typer.Typer(
    help="Online decisions when changing one's mind is costly: learn them, run them, know how bad they can get.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    """Options of the whole program."""
    if version:
        from ecl2o import __version__

        typer.echo(f"ecl2o {__version__}")
        raise typer.Exit()


def main() -> None:
    """The console script."""
    app()
