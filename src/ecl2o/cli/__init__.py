"""The command line: what a process does before and after a command. The commands are in `commands`, a file each.

Nothing but the standard library is imported before an interrupt is looked after, so that it is a line and not a traceback from
the first moment on.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ecl2o.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    """The console script."""
    from ecl2o.cli.interrupts import run_interruptible

    run_interruptible(_run)


def _run() -> None:
    import warnings

    from ecl2o.cli.commands import app

    warnings.formatwarning = lambda message, *_: f"ecl2o: {' '.join(str(message).split())}\n"
    app()


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ecl2o.cli.commands import app

    return app
