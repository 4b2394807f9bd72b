"""What all commands share: options, where things are printed, progress bars, and how failures end.

Results go to standard output, everything else to standard error, so that a pipe carries results only. Exit codes: 0 done, 1 it
could not be done (one line says why), 2 the command was not understood, 130 interrupted by Ctrl-C or SIGTERM.
"""

import contextlib
import errno
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ecl2o.cli.interrupts import INTERRUPTED
from ecl2o.json_text import json_text

if TYPE_CHECKING:
    from rich.console import Console

    from ecl2o.fitting.progress import Progress

MOST_SEEDS, LARGEST_SEED = 1000, 2**32 - 1  # how many may be trained with, and what a random key is made of

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on standard output.")]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        min=0,
        max=LARGEST_SEED,
        metavar="S",
        help="The same seed gives the same figures on the same machine.",
    ),
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
        or written an OSError, a training or a run that leaves the numbers a FloatingPointError. Anything else is a bug and ends
        in a traceback.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of our output has left: the command line framework ends quietly
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None  # which `interrupts` tells
        except (ValueError, OSError, FloatingPointError) as error:
            if ctx.params.get("debug"):
                raise
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            options = {} if command is None else {p.name: p.opts[0] for p in command.params if p.opts[0][:2] == "--"}
            print(f"ecl2o: {in_options(one_line(error), options)}", file=sys.stderr)
            raise typer.Exit(1) from None


def in_options(message: str, options: dict[str, str]) -> str:
    """A message of the library, which speaks of Python's arguments, in the options of the command that met it.

    >>> in_options(
    ...     "ask for it with fill='previous', or time_column", {"fill": "--fill", "time_column": "--time-column"}
    ... )
    'ask for it with --fill previous, or --time-column'
    """
    for name, option in options.items():
        message = re.sub(rf"\b{name}='(\w+)'", rf"{option} \1", message)
        if "_" in name:
            message = re.sub(rf"(?<![\w'-]){name}(?![\w'])", option, message)
    return message


def refuse_unless_writable(path: Path, option: str) -> None:
    """Before the work, not after it: the folder must exist and take a new file, and what is there now must be a file."""
    if path.exists() and not path.is_file():
        raise typer.BadParameter(f"{path} is not a file, and is not overwritten.", param_hint=option)
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
    >>> one_line(OSError(28, "No space left on device")).endswith(": No space left on device")
    True
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or _unnamed(error)}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _unnamed(error: OSError) -> str:
    """What was used, where the system does not say: files of ours say so themselves."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"standard output, or the temporary folder {tempfile.gettempdir()}" if full else "the system says"


def results() -> "Console":
    """Where results are printed."""
    return _console(stderr=False)


def messages() -> "Console":
    """Where everything else is printed."""
    return _console(stderr=True)


def _console(stderr: bool) -> "Console":
    from rich.console import Console

    console = Console(
        stderr=stderr, highlight=False, markup=False
    )  # brackets in names of files and columns are brackets
    if not console.is_terminal:
        console.width = WIDTH
    return console


def in_paragraphs(apps: Iterable[typer.Typer]) -> None:
    """Let the help of commands wrap where the terminal does, not where their docstrings do."""
    for command in (command for app in apps for command in app.registered_commands):
        command.help = paragraphs(getdoc(command.callback) or "")


def paragraphs(text: str) -> str:
    r"""Each paragraph as one line.

    >>> paragraphs("What is\nmeant.\n\nAnd\nmore.")
    'What is meant.\n\nAnd more.'
    """
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def print_json(value: Any) -> None:
    """A result for programs."""
    typer.echo(json_text(value))


@contextlib.contextmanager
def progress_bars(shown: bool = True) -> "Iterator[Progress]":
    """One bar per stage with the time left, on standard error; where that is not a terminal, a line every ten seconds.

    >>> with progress_bars(shown=False) as progress:
    ...     progress("training", 1, 2)
    """
    console = messages()
    if not shown:
        yield lambda stage, done, total: None
    elif not console.is_terminal:
        with _lines(lambda line: print(line, file=sys.stderr, flush=True)) as lines:
            yield lines
    else:
        from rich import progress as bars

        columns = (
            bars.TextColumn("{task.description}", markup=False),
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


@contextlib.contextmanager
def _lines(tell: Callable[[str], None], every: float = 10.0) -> Iterator["Progress"]:
    """A line for every finished stage, and one every so many seconds, whether or not there is news."""
    progress, over = _Stages(time.monotonic()), threading.Event()

    def show(stage: str, done: int, total: int) -> None:
        line = progress.after(stage, done, total, time.monotonic())
        if line is not None:
            tell(line)

    def remind() -> None:
        while not over.wait(every):
            line = progress.line(time.monotonic())
            if line is not None:
                tell(line)

    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield show
    finally:
        over.set()
        reminder.join()


class _Stages:
    """How far work is, in words.

    >>> stages = _Stages(now=0.0)
    >>> stages.after("training", 1, 10, now=4.0)
    >>> stages.line(now=5.0)
    'training: 10 % after 5 s'
    >>> stages.after("training", 3, 10, now=15.0)
    >>> stages.line(now=20.0)
    'training: 30 % after 20 s, about 34 s left'
    >>> stages.line(now=60.0)  # slower than what went before: no guess is better than 0 s
    'training: 30 % after 60 s'
    >>> stages.after("training", 10, 10, now=30.0)
    'training: done after 30 s'
    """

    def __init__(self, now: float):
        self._started = now
        self._begun: dict[str, tuple[float, int]] = {}  # when each stage was first heard of, and how far it was
        self._finished: set[str] = set()
        self._present: tuple[str, int, int, float] | None = None

    def after(self, stage: str, done: int, total: int, now: float) -> str | None:
        """Note what was done; a line where that ends a stage."""
        self._begun.setdefault(stage, (now, done))
        self._present = None if done >= total else (stage, done, total, now)
        if done < total or stage in self._finished:
            return None
        self._finished.add(stage)
        return f"{stage}: done after {now - self._started:.0f} s"

    def line(self, now: float) -> str | None:
        """Where the work stands; None between stages."""
        if self._present is None:
            return None
        stage, done, total, told = self._present
        since, before = self._begun[stage]
        rest = (told - since) / (done - before) * (total - done) - (now - told) if done > before else 0.0
        left = f", about {rest:.0f} s left" if rest >= 1.0 else ""
        return f"{stage}: {100 * done / total:.0f} % after {now - self._started:.0f} s{left}"
