"""What all commands share: options, where things are printed, progress bars, and how failures end.

Results go to standard output, everything else to standard error, so that a pipe carries results only. Exit codes: 0 done, 1 it
could not be done (one line says why), 2 the command was not understood, 130 interrupted.
"""

import contextlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.console import Console

    from ecl2o.recipes.progress import Progress

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on standard output.")]
Seed = Annotated[
    int, typer.Option("--seed", min=0, metavar="S", help="The same seed gives the same figures on the same machine.")
]
UnusedSeed = Annotated[
    int, typer.Option("--seed", min=0, metavar="S", help="Accepted as by every command; nothing here is random.")
]

WIDTH = 100  # columns of tables where the terminal's width is not known


class Program(TyperGroup):
    """The one place where failures become a line on standard error and an exit code; `--debug` shows where they arose."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Bad input is a ValueError everywhere in the library (`DataError` and `PolicyFileError` are), a file that cannot be read
        or written an OSError. Anything else is a bug and ends in a traceback.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of our output has left: the command line framework ends quietly
        except KeyboardInterrupt:
            print("ecl2o: interrupted.", file=sys.stderr)
            raise typer.Exit(130) from None
        except (ValueError, OSError) as error:
            if ctx.params.get("debug"):
                raise
            print(f"ecl2o: {one_line(error)}", file=sys.stderr)
            raise typer.Exit(1) from None


def refuse_unless_writable(path: Path, option: str) -> None:
    """Before the work, not after it: the folder must exist and take a new file."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise typer.BadParameter(f"the folder {folder} does not exist.", param_hint=option)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise typer.BadParameter(f"{folder} takes no file: {error.strerror}.", param_hint=option) from None


def one_line(error: BaseException) -> str:
    """What went wrong, without line breaks.

    >>> one_line(
    ...     ValueError('''rho must not be negative,
    ... got -1.''')
    ... )
    'rho must not be negative, got -1.'
    >>> one_line(FileNotFoundError(2, "No such file or directory", "days.csv"))
    'days.csv: No such file or directory'
    """
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def results() -> "Console":
    """Where results are printed."""
    return _console(stderr=False)


def messages() -> "Console":
    """Where everything else is printed."""
    return _console(stderr=True)


def _console(stderr: bool) -> "Console":
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=WIDTH)


def print_json(value: Any) -> None:
    """A result for programs."""
    typer.echo(json.dumps(as_json(value), indent=2, ensure_ascii=False, allow_nan=False))


def as_json(value: Any) -> Any:
    """JSON's own types: arrays become lists, and what JSON cannot hold the strings "inf", "-inf" and "nan".

    >>> as_json({"ratio": math.inf, "costs": (1, 2.5)})
    {'ratio': 'inf', 'costs': [1, 2.5]}
    """
    if isinstance(value, dict):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return as_json(value.tolist())  # NumPy's and JAX's


@contextlib.contextmanager
def progress_bars(shown: bool = True) -> "Iterator[Progress]":
    """One bar per stage with the time left, on standard error; where that is not a terminal, a line per finished stage.

    >>> with progress_bars(shown=False) as progress:
    ...     progress("training", 1, 2)
    """
    console = messages()
    if not shown:
        yield lambda stage, done, total: None
    elif not console.is_terminal:
        yield _lines(time.monotonic())
    else:
        from rich import progress as bars

        columns = (
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=30),
            bars.TaskProgressColumn(),
            bars.TimeElapsedColumn(),
            bars.TextColumn("left"),
            bars.TimeRemainingColumn(),
        )
        with bars.Progress(*columns, console=console) as display:
            tasks: dict[str, bars.TaskID] = {}

            def show(stage: str, done: int, total: int) -> None:
                if stage not in tasks:
                    tasks[stage] = display.add_task(stage, total=total)
                display.update(tasks[stage], completed=done, total=total)

            yield show


def _lines(started: float) -> "Progress":
    finished: set[str] = set()

    def show(stage: str, done: int, total: int) -> None:
        if done >= total and stage not in finished:
            finished.add(stage)
            print(f"{stage}: done after {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)

    return show
