"""The registered commands. They import what they need when they run, so that `--help` answers at once.

A command has its own module, an example, `--json` and `--seed`. It prints its result with `output.results()` or
`output.print_json`, and lets ValueError and OSError through: `output.Program` turns them into one line and exit code 1.
"""

import typer

from ecl2o.cli import fleet, output
from ecl2o.cli.act import act
from ecl2o.cli.alpha import alpha
from ecl2o.cli.bounds import bounds
from ecl2o.cli.cite import cite
from ecl2o.cli.compare import compare
from ecl2o.cli.evaluate import evaluate
from ecl2o.cli.fit import fit
from ecl2o.cli.frontier import frontier
from ecl2o.cli.guard import guard
from ecl2o.cli.reproduce import reproduce
from ecl2o.cli.serve import demo, serve
from ecl2o.cli.sweep import sweep

app = typer.Typer(
    cls=output.Program,
    help="Learn online decisions with a worst-case guarantee, for when changing your mind is expensive.",
    epilog="Start with: ecl2o reproduce --quick. Exit codes: 0 success, 1 failure or broken promise, 2 wrong usage, "
    "3 some sites of a fleet failed, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command(epilog="Example: ecl2o reproduce --weather site.csv --base-shortage auto --quick --out report")(reproduce)
app.command(epilog="Example: ecl2o alpha demand.csv --miss-price 20 --ramp-price 50 --figure alpha.png")(alpha)
app.command(epilog="Example: ecl2o fit demand.csv --alpha 10 --promise 2.5 --out policy.ecl2o")(fit)
app.command(epilog="Example: ecl2o guard --alpha 10 --promise 2 --per day --out guard.ecl2o")(guard)
app.command(epilog="Example: ecl2o evaluate policy.ecl2o demand.csv --days 30")(evaluate)
app.command(epilog="Example: ecl2o act policy.ecl2o --state run.state < contexts.csv")(act)
app.command(epilog="Example: ecl2o serve policy.ecl2o --port 8700")(serve)
app.command(epilog="Example: ecl2o demo --open")(demo)
app.command(epilog="Example: ecl2o compare demand.csv --agents r-obd,rhc,policy.ecl2o")(compare)
app.command(epilog="Example: ecl2o frontier --weather site.csv --quick --out frontier")(frontier)
app.command(epilog="Example: ecl2o sweep --weather site.csv --trust 0.3,0.5 --mu 0,0.6 --seeds 3 --out sweep")(sweep)
app.command(epilog="Example: ecl2o bounds --m 1 --alpha 10 --beta 10 --trust 0.3 --rho 0.5")(bounds)
app.command(epilog="Example: ecl2o cite mla-robd")(cite)

app.add_typer(fleet.app, name="fleet")
output.join_help_lines([app, fleet.app])


@app.callback(invoke_without_command=True)
def root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Options of the whole program."""
    if version:
        from ecl2o import __version__

        typer.echo(f"ecl2o {__version__}")
        raise typer.Exit()
