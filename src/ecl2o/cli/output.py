"""What all commands share: common options, printing, progress bars, and errors as one line.

Results go to standard output, everything else to standard error. Exit codes: 0 success, 1 failure (one line says why), 2 wrong
usage, 3 some sites of a fleet failed, 130 interrupted by Ctrl-C or SIGTERM.
"""

import contextlib
import errno
import functools
import re
import shlex
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

    from ecl2o.fitting.settings import Progress

SOME_FAILED = 3  # the exit code if sites of a fleet failed and others did not
MOST_SEEDS = 1000  # to train with
LARGEST_SEED = 2**32 - 1  # that makes a random key

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
_SEED_HELP = "Random seed. The same seed gives the same figures on the same machine."
Seed = Annotated[int, typer.Option("--seed", min=0, max=LARGEST_SEED, metavar="S", help=_SEED_HELP)]

WIDTH = 100  # columns of tables if the output is not a terminal
_options: dict[str, str] = {}  # of the running command, by the names of arguments


class Program(TyperGroup):
    """The group of all commands: turns errors into one line on standard error and exit code 1, unless `--debug` is given."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Bad input is a ValueError, an unreadable or unwritable file an OSError, and a run without finite numbers a
        FloatingPointError. Anything else is a bug and ends in a traceback.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of the output has left: Typer exits quietly
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None  # `interrupts` prints the line
        except (ValueError, OSError, FloatingPointError) as error:
            if ctx.params.get("debug"):
                raise
            print(f"ecl2o: {name_options(one_line(error))}", file=sys.stderr)
            raise typer.Exit(1) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, and remember its options for `name_options`."""
        name, group, rest = super().resolve_command(ctx, args)
        command = group.get_command(ctx, rest[0]) if isinstance(group, TyperGroup) and rest else group  # `fleet fit`
        _options.clear()
        _options.update({} if command is None else {p.name: p.opts[0] for p in command.params if p.opts[0][:2] == "--"})
        _options.update({"ratio": "--promise"} if "promise" in _options else {})  # of guards
        return name, group, rest


def name_options(message: str, options: dict[str, str] = _options) -> str:
    """Return a message of the library with the names of arguments replaced by options.

    The library names arguments: as `name` or `name` = 2, in backticks, as name='value', or bare if the name has an
    underscore. This is the only place that translates them.

    Args:
        message: The message.
        options: Options by the names of arguments. Default: those of the running command.

    >>> options = {"fill": "--fill", "time_column": "--time-column"}
    >>> name_options("ask for it with fill='previous', `fill`, or time_column", options)
    'ask for it with --fill previous, --fill, or --time-column'
    """
    for name, option in options.items():
        message = re.sub(rf"\b{name}='([^']*)'", lambda m, o=option: f"{o} {shlex.quote(m[1])}", message)
        message = message.replace(f"`{name}` = ", f"{option} ").replace(f"`{name}`", option)
        if "_" in name:
            message = re.sub(rf"(?<![\w'-]){name}(?![\w'])", option, message)
    return message


def check_writable(path: Path, option: str) -> None:
    """Raise before the work starts if a file cannot be written, or if something else than a file is there."""
    if path.exists() and not path.is_file():
        raise typer.BadParameter(f"{path} is not a regular file; name a file, or a new one.", param_hint=option)
    folder = path.resolve().parent
    if not folder.is_dir():
        raise typer.BadParameter(f"the folder {folder} does not exist.", param_hint=option)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise typer.BadParameter(f"the folder {folder} is not writable: {error.strerror}.", param_hint=option) from None


def one_line(error: BaseException) -> str:
    """Return the message of an error without line breaks.

    >>> one_line(FileNotFoundError(2, "No such file or directory", "days.csv"))
    'days.csv: No such file or directory. Check the path.'
    >>> one_line(OSError(28, "No space left on device")).endswith(": No space left on device")
    True
    """
    if not isinstance(error, OSError) or not error.strerror:
        return " ".join(str(error).split()) or type(error).__name__
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)  # such errors often name no file
    likely = f"standard output, or the temporary folder {tempfile.gettempdir()}" if full else "the system says"
    hint = ". Check the path." if error.errno == errno.ENOENT and error.filename else ""
    return f"{error.filename or likely}: {error.strerror}{hint}"


def _console(stderr: bool) -> "Console":
    from rich.console import Console

    # No markup: brackets in names of files and columns are brackets.
    console = Console(stderr=stderr, highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console


results = functools.partial(_console, stderr=False)  # the console on standard output
messages = functools.partial(_console, stderr=True)  # for everything else, on standard error


def join_help_lines(apps: Iterable[typer.Typer]) -> None:
    """Let the help of commands wrap at the terminal's width: each paragraph becomes one line."""
    for command in (command for app in apps for command in app.registered_commands):
        paragraphs = (getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def print_json(value: Any) -> None:
    """Print a result as JSON."""
    typer.echo(json_text(value))


@contextlib.contextmanager
def progress_bars(visible: bool = True) -> "Iterator[Progress]":
    """Show a bar per stage on standard error, or a line every ten seconds if that is not a terminal.

    >>> with progress_bars(visible=False) as progress:
    ...     progress("training", 1, 2)
    """
    console = messages()
    if not visible:
        yield lambda stage, done, total: None
    elif not console.is_terminal:
        with progress_lines(functools.partial(print, file=sys.stderr, flush=True)) as lines:
            yield lines
    else:
        from rich import progress as bars

        columns = [bars.TextColumn("{task.description}", markup=False), bars.BarColumn(bar_width=30)]
        columns += [bars.TaskProgressColumn(), bars.TimeElapsedColumn(), bars.TextColumn("left")]
        columns += [bars.TimeRemainingColumn()]
        with bars.Progress(*columns, console=console) as display:
            tasks: dict[str, bars.TaskID] = {}

            def show(stage: str, done: int, total: int) -> None:
                if stage not in tasks:
                    tasks[stage] = display.add_task(stage, total=total)
                display.update(tasks[stage], completed=done, total=total)

            yield show


@contextlib.contextmanager
def progress_lines(write: Callable[[str], None], every: float = 10.0) -> Iterator["Progress"]:
    """Write a line for every finished stage, and one every so many seconds."""
    progress, over = _Stages(time.monotonic()), threading.Event()

    def show(stage: str, done: int, total: int) -> None:
        if line := progress.after(stage, done, total, time.monotonic()):
            write(line)

    def remind() -> None:
        while not over.wait(every):
            if line := progress.line(time.monotonic()):
                write(line)

    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield show
    finally:
        over.set()
        reminder.join()


class _Stages:
    """The progress of stages, as lines of text.

    >>> stages = _Stages(now=0.0)
    >>> stages.after("training", 1, 10, now=4.0)
    >>> stages.line(now=5.0)
    'training: 10 % after 5 s'
    >>> stages.after("training", 3, 10, now=15.0)
    >>> stages.line(now=20.0)
    'training: 30 % after 20 s, about 34 s left'
    >>> stages.line(now=60.0)  # slower than what went before: no estimate
    'training: 30 % after 60 s'
    >>> stages.after("training", 10, 10, now=30.0)
    'training: done after 30 s'
    """

    def __init__(self, now: float):
        self._start = now
        self._started_at: dict[str, tuple[float, int]] = {}  # when each stage was first reported, and how far it was
        self._finished: set[str] = set()
        self._present: tuple[str, int, int, float] | None = None

    def after(self, stage: str, done: int, total: int, now: float) -> str | None:
        """Record progress; return a line if that ends a stage."""
        self._started_at.setdefault(stage, (now, done))
        self._present = None if done >= total else (stage, done, total, now)
        if done < total or stage in self._finished:
            return None
        self._finished.add(stage)
        return f"{stage}: done after {now - self._start:.0f} s"

    def line(self, now: float) -> str | None:
        """Return the line of the present stage; None between stages."""
        if self._present is None:
            return None
        stage, done, total, at = self._present
        since, before = self._started_at[stage]
        rest = (at - since) / (done - before) * (total - done) - (now - at) if done > before else 0.0
        left = f", about {rest:.0f} s left" if rest >= 1.0 else ""
        return f"{stage}: {100 * done / total:.0f} % after {now - self._start:.0f} s{left}"
