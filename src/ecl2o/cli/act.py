"""`ecl2o act`: a policy in production, one context per line in, one action per line out."""

import atexit
import contextlib
import gc
import json as json_library
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ecl2o import json_text
from ecl2o.cli import options, output

if TYPE_CHECKING:
    from ecl2o.act import ActSession, Answer
    from ecl2o.fitting.read import SeriesReader
    from ecl2o.policy import Policy


def act(
    policy: options.PolicyFile,
    state: Annotated[
        Path | None,
        typer.Option(help="Keep the state here, saved before each answer; if the file exists, go on from it."),
    ] = None,
    x0: Annotated[
        str | None,
        typer.Option(
            help="The action in force before the first one, numbers with commas. (default: the cheapest for the last context)"
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(help="A series that ends just before the first context. (default: the end of the training file)"),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Report a line that cannot be read and go on, without an answer to it.")
    ] = False,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning", help="The input starts with the run's first context: pass over answered ones."
        ),
    ] = False,
    bounds: options.Limits = None,
    column: options.Columns = None,
    time_column: options.TimeColumn = None,
    fill: options.Fill = None,
    json: output.Json = False,
    seed: output.UnusedSeed = 0,
) -> None:
    r"""Read contexts from standard input, write actions to standard output, line by line, each answered at once.

    A line is numbers with commas (the first may name the columns), or JSON: [1.5, 2], {"demand": 1.5} or {"context": [1.5]}.
    JSON is answered with step, action, cost so far and, where the policy knows it, live_ratio. A JSON line may carry "step"
    (1, 2, ...): the last one answered is then answered again, not played twice, and any other order is refused.

    A line may begin with its time, or name it "time": hours of the day then come from the clock, a missed step is filled in, and
    a step that was answered is answered again. A reading that is missing (empty, null) or implausible is answered with the last
    plausible one, and that is said.

    With --state a killed process goes on where it was: an answer that you have read is always in the state. One process at a
    time holds a state.
    """
    lines, limits = _lines(), None if bounds is None else options.parse_interval(bounds, "--bounds")
    if sys.stdout is None:
        raise ValueError("standard output is closed, so that nobody can be answered.")
    from ecl2o.cli.interrupts import leave_termination_to_the_system
    from ecl2o.cli.jax_setup import keep_compiled_programs, use_double_precision, use_synchronous_dispatch

    if state is not None:
        if state.exists() and not state.is_file():
            raise typer.BadParameter(
                f"{state} is no regular file; name one, or one that does not exist yet.", param_hint="--state"
            )
        output.refuse_unless_writable(state, "--state")
    leave_termination_to_the_system()
    _look_for_garbage_later()
    keep_compiled_programs()
    use_synchronous_dispatch()
    use_double_precision()
    from ecl2o.act import lock_state
    from ecl2o.exceptions import MemoryLimitError, NotApplicableError
    from ecl2o.policy import load
    from ecl2o.policy.policy import with_action_limits

    with contextlib.nullcontext() if state is None else lock_state(state):
        loaded = load(policy) if limits is None else with_action_limits(load(policy), *limits)
        try:
            run = _run(
                loaded, state, _numbers_of(x0), history and options.make_reader(history, column, time_column, fill)
            )
        except (NotApplicableError, MemoryLimitError) as error:
            raise ValueError(f"{policy} cannot be run here: {error}") from None
        gc.enable()
        _answer_all(run, loaded, lines, skip_bad, from_beginning, json)


def _look_for_garbage_later() -> None:
    """Not until everything is loaded, and not when the process ends: that takes a quarter of the time of a single answer."""
    gc.disable()
    atexit.register(gc.freeze)


def _answer_all(
    run: "ActSession",
    policy: "Policy",
    lines: Iterator[tuple[int, str]],
    skip_bad: bool,
    from_beginning: bool,
    json: bool,
) -> None:
    from ecl2o.act import LineReader

    reader = LineReader(policy.contract.columns, run.context_dim)
    to_pass = run.steps if from_beginning else 0
    failures = screened = 0
    for number, line in lines:
        try:
            asked = reader.read(line)
            if asked is None:
                continue
            if from_beginning and (run.is_answered(asked) if asked.time is not None else to_pass > 0):
                to_pass -= 1
                continue
            told: list[Answer] = []
            run.answer(asked, lambda answer, told=told, asked=asked: told.append(_write(answer, asked.as_json or json)))
            screened += told[0].context_used is not None
            _warn(number, told[0])
        except (ValueError, FloatingPointError) as error:
            failures += 1
            if not skip_bad:
                raise ValueError(f"line {number}: {error}") from None
            _say(f"line {number} skipped: {output.one_line(error)}")
    if screened:
        _say(f"readings that were missing or implausible: {screened}.")
    if failures:
        _say(f"lines skipped: {failures}.")


def _write(answer: "Answer", as_json: bool) -> "Answer":
    """One line, out of our hands when this returns."""
    line = json_library.dumps(json_text.as_json(answer.as_json())) if as_json else ",".join(map(repr, answer.action))
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        _give_up_output(error)
    return answer


def _give_up_output(error: Exception) -> NoReturn:
    """Nothing more is written, not even when the interpreter ends and flushes what is left."""
    from ecl2o.exceptions import NotAnsweredError

    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    raise NotAnsweredError(f"standard output cannot be written ({words}).") from None


def _warn(number: int, answer: "Answer") -> None:
    """What the answer itself does not say where it is numbers only."""
    if answer.context_used is not None:
        used = ", ".join(f"{entry:g}" for entry in answer.context_used)
        _say(f"line {number} is missing or implausible; answered as if it were {used}, the last plausible one.")
    if answer.unconverged:
        _say(
            f"line {number}: a solve did not converge, or a promise holds no longer; nothing is guaranteed of this action."
        )


def _run(policy: "Policy", state: Path | None, x0: list[float] | None, reading: "SeriesReader | None") -> "ActSession":
    """A run where the last one was, or a new one."""
    from ecl2o.act import ActSession

    if state is not None and state.exists():
        return ActSession(policy, state, notify=_say)
    dim = policy.dim
    if x0 is not None and dim is not None and len(x0) != dim:
        raise typer.BadParameter(f"the policy's actions have {dim} numbers, got {len(x0)}.", param_hint="--x0")
    past, until = (None, None) if reading is None else reading.made_for(policy).past()
    if x0 is None and past is None and policy.history is None:
        raise ValueError("where does the run start? Give --x0 (the action in force) or --history (a series).")
    return ActSession(policy, state, x0, past, until, _say)


def _say(words: str) -> None:
    print(f"ecl2o: {words}", file=sys.stderr, flush=True)


def _lines() -> Iterator[tuple[int, str]]:
    """Numbered lines as they arrive."""
    stream = sys.stdin
    if stream is None:
        raise ValueError("standard input is closed; contexts are read from it.")
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(encoding="utf-8", errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    return enumerate(iter(stream.readline, ""), start=1)


def _numbers_of(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(cell) for cell in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"numbers with commas are expected, got {text!r}.", param_hint="--x0") from None
