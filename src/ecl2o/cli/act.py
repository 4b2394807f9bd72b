"""`ecl2o act`: a policy in a pipe, one context per line in, one action per line out."""

import atexit
import contextlib
import datetime
import functools
import gc
import io
import json as json_library
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ecl2o import json_text
from ecl2o.cli import options, output
from ecl2o.cli.jax_setup import set_up_steps
from ecl2o.cli.options import option

if TYPE_CHECKING:
    from ecl2o.act import ActSession, Answer, LineReader
    from ecl2o.fitting.read import SeriesReader
    from ecl2o.policy import Policy

Lines = Iterator[tuple[int, str]]  # with their numbers


@options.expand_options("covariate", "forecast", "weight_column", "period", "day_start")
def act(
    policy: options.PolicyFile,
    *,
    state: Path | None = option("The state file, saved before each answer; the run continues from it if it exists."),
    x0: str | None = option(
        "The action before the first one, numbers with commas. (default: cheapest for the last context)"
    ),
    history: Path | None = option(
        "A series file that ends just before the first context. (default: end of the training file)"
    ),
    start_time: datetime.datetime | None = option(
        "The time of the first context, if lines have none. (default: one step after the history)"
    ),
    skip_bad: bool = option("Report and skip lines without an answer.", "--skip-bad", default=False),
    from_beginning: bool = option(
        "The input starts with the run's first context: skip answered lines.", "--from-beginning", default=False
    ),
    bounds: str | None = options.BOUNDS,
    reading: options.ReadingOptions,
    json: output.Json = False,
) -> None:
    r"""Read contexts from standard input and write an action for each to standard output, line by line.

    A line is numbers with commas (the first line may name the columns), or JSON: [1.5, 2], {"demand": 1.5} or {"context": [1.5]}.
    The answer to JSON has the step, the action, the cost so far and, if the policy computes it, live_ratio. A JSON line may have
    a "step" (1, 2, ...): the last step is then answered again, not played twice, and any other order is an error.

    A line may start with its time, or name it: "time", or as in your file. The hour of the day then comes from the clock,
    missed steps are filled in, and a step that was answered is answered again. A promise for each day, week or month is
    renewed by the same clock, so its first period may be short. The last plausible reading replaces a missing (empty, null,
    ?) or implausible one, with a notice; a covariate is imputed by its profile of the day. A reading that has not changed for
    longer than training suggests is used, with a notice.

    With --state a killed process continues where it stopped: every answer that you have read is in the state. Only one process
    at a time can use a state.
    """
    lines, limits = _read_lines(), options.parse_interval(bounds, "--bounds")
    if sys.stdout is None:
        raise ValueError("standard output is closed; open it to receive the answers.")
    from ecl2o.cli.interrupts import use_default_sigterm

    if state is not None:
        output.check_writable(state, "--state")
    use_default_sigterm()
    gc.disable()  # collecting while loading, and at exit, takes half the time of a single answer
    atexit.register(gc.freeze)
    set_up_steps()
    from ecl2o.act import LineReader, lock_state
    from ecl2o.exceptions import MemoryLimitError, NotApplicableError
    from ecl2o.policy import load
    from ecl2o.policy.policy import with_action_limits

    with contextlib.nullcontext() if state is None else lock_state(state):
        loaded = load(policy) if limits is None else with_action_limits(load(policy), *limits)
        try:
            reader = None if history is None else reading.make_reader(history)
            session = _start_session(loaded, state, x0, reader, start_time)
        except (NotApplicableError, MemoryLimitError) as error:
            raise ValueError(f"{policy} cannot be run here: {error}") from None
        gc.enable()
        contract = loaded.contract
        named = reading.time_column or contract.file_format.time_column
        known = contract.covariates, contract.file_format.day_first, len(contract.advice)
        line_reader = LineReader(contract.columns, session.context_dim, named, *known)
        _answer_lines(session, line_reader, lines, skip_bad, from_beginning, json)


def _answer_lines(
    session: "ActSession", reader: "LineReader", lines: Lines, skip_bad: bool, from_beginning: bool, json: bool
) -> None:
    to_skip = session.steps if from_beginning else 0
    failures = screened = stuck = 0
    for number, text in lines:
        try:
            line = reader.read(text)
            if line is None:
                continue
            if from_beginning and (session.is_answered(line) if line.time is not None else to_skip > 0):
                to_skip -= 1
                continue
            answer = session.answer(line, functools.partial(_write, as_json=line.as_json or json))
            screened += answer.context_used is not None
            stuck += bool(answer.stuck)
            _warn(number, answer, session)
        except (ValueError, FloatingPointError) as error:
            failures += 1
            if not skip_bad:
                raise ValueError(f"line {number}: {error}") from None
            _print_notice(f"line {number} skipped: {output.one_line(error)}")
    if screened:
        _print_notice(f"readings that were missing or implausible: {screened}.")
    if stuck:
        _print_notice(f"readings of a meter that may be stuck: {stuck}.")
    if failures:
        _print_notice(f"lines skipped: {failures}.")


def _write(answer: "Answer", as_json: bool) -> None:
    """Print an answer and flush it; if that fails, discard further output, also what the interpreter flushes at exit."""
    line = json_library.dumps(json_text.as_json(answer.as_json())) if as_json else ",".join(map(repr, answer.action))
    try:
        print(line, flush=True)
    except (OSError, ValueError) as error:
        from ecl2o.exceptions import NotAnsweredError

        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise NotAnsweredError(f"standard output is not writable ({reason}).") from None


def _warn(number: int, answer: "Answer", session: "ActSession") -> None:
    """Print what a plain answer does not say."""
    if answer.imputed:
        names = ", ".join(answer.imputed)
        _print_notice(f"line {number}: {names} missing or implausible; imputed by the profile of the day.")
    if answer.is_followed_replaced and answer.context_used is not None:
        used = ", ".join(f"{entry:g}" for entry in answer.context_used[: session.measured])
        _print_notice(f"line {number} is missing or implausible; replaced by {used}, the last plausible reading.")
    if answer.stuck:
        names = ", ".join(answer.stuck)
        _print_notice(
            f"line {number}: {names} has not changed for longer than training suggests; the meter may be stuck."
        )
    if answer.unconverged:
        lost = "a context left its band, or the promise was lost" if session.promises_band else "the promise was lost"
        _print_notice(f"line {number}: no guarantee for this action: a solve failed, or {lost}.")


def _start_session(
    policy: "Policy",
    state: Path | None,
    x0_text: str | None,
    reader: "SeriesReader | None",
    start_time: datetime.datetime | None,
) -> "ActSession":
    from ecl2o.act import ActSession

    x0 = None if x0_text is None else options.parse_numbers(x0_text, "--x0")
    if state is not None and state.exists():
        return ActSession(policy, state, notify=_print_notice)
    if x0 is not None and policy.dim is not None and len(x0) != policy.dim:
        raise options.usage_error("--x0", f"the policy's actions have {policy.dim} numbers, got {len(x0)}.")
    past, until = (None, None) if reader is None else reader.for_policy(policy).read_history()
    return ActSession(policy, state, x0, past, until, _print_notice, start_time)


def _print_notice(message: str) -> None:
    print(f"ecl2o: {output.name_options(message)}", file=sys.stderr, flush=True)


def _read_lines() -> Lines:
    """Yield numbered lines as they arrive."""
    if sys.stdin is None:
        raise ValueError("standard input is closed; open it to send contexts.")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    return enumerate(iter(sys.stdin.readline, ""), start=1)
