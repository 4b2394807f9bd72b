"""`ecl2o act`: a policy in production, one context per line in, one action per line out."""

import dataclasses
import json as json_text
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecl2o.cli import output, series

if TYPE_CHECKING:
    from ecl2o.recipes.reading import Reading
    from ecl2o.serving import Policy, Runner


def act(
    policy: series.PolicyFile,
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
        bool, typer.Option("--skip-bad", help="Report a line that cannot be used and go on, without an answer to it.")
    ] = False,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning", help="The input starts with the run's first context: pass over answered ones."
        ),
    ] = False,
    column: series.Columns = None,
    time_column: series.TimeColumn = None,
    fill: series.Fill = None,
    json: output.Json = False,
    seed: output.UnusedSeed = 0,
) -> None:
    r"""Read contexts from standard input, write actions to standard output, line by line, each answered at once.

    A line is numbers with commas (the first may name the columns), or JSON: [1.5, 2], {"demand": 1.5} or {"context": [1.5]}.
    JSON is answered with step, action, cost so far and, where the policy knows it, live_ratio. A JSON line may carry "step"
    (1, 2, ...): the last one answered is then answered again, not played twice, and any other order is refused.

    With --state a killed process goes on where it was: an answer that you have read is always in the state.
    """
    from ecl2o.cli.numerics import use_double_precision, use_synchronous_dispatch

    use_synchronous_dispatch()
    use_double_precision()
    from ecl2o.serving import load

    loaded = load(policy)
    runner = _runner(loaded, state, _numbers_of(x0), history and series.reading(history, column, time_column, fill))
    to_pass = runner.steps if from_beginning else 0
    reader = _Reader(loaded.contract.columns, runner)
    failures = 0
    for number, line in _lines():
        try:
            asked = reader.read(line)
            if asked is None:
                continue
            if to_pass:
                to_pass -= 1
                continue
            _answer(runner, asked, state, json)
        except (ValueError, FloatingPointError) as error:
            failures += 1
            if not skip_bad:
                raise ValueError(f"line {number}: {error}") from None
            print(f"ecl2o: line {number} skipped: {output.one_line(error)}", file=sys.stderr, flush=True)
    if failures:
        print(f"ecl2o: lines skipped: {failures}.", file=sys.stderr)


@dataclasses.dataclass(frozen=True)
class _Asked:
    """One line: the numbers, whether they came as JSON, and the step's number if it was said."""

    context: list[float]
    as_json: bool
    step: int | None = None


class _Reader:
    """From lines to contexts; remembers the column names if the input begins with them."""

    def __init__(self, columns: list[str] | None, runner: "Runner"):
        self._columns = columns
        self._places: list[int] | None = None
        self._first = True
        self._size = runner.context_dim

    def read(self, line: str) -> _Asked | None:
        """The context, None for lines that hold none (empty ones, and the names of columns on the first)."""
        text, first = line.strip(), self._first
        if not text:
            return None
        self._first = False
        if text[0] in "{[":
            return self._json(text)
        cells = [cell.strip() for cell in text.split(",")]
        if first and not any(_is_number(cell) for cell in cells):
            self._places = self._header(cells)
            return None
        if self._places is not None:
            if len(cells) <= max(self._places):
                raise ValueError(f"{len(cells)} cells, but the first line named more columns.")
            cells = [cells[place] for place in self._places]
        return _Asked(self._checked([_as_number(cell) for cell in cells]), as_json=False)

    def _header(self, names: list[str]) -> list[int]:
        wanted = self._columns or []
        if not wanted or not all(name in names for name in wanted):
            known = f" nor do they name the policy's columns, {', '.join(wanted)}" if wanted else ""
            raise ValueError(f"{', '.join(names)[:60]!r} are not numbers{known}.")
        return [names.index(name) for name in wanted]

    def _json(self, text: str) -> _Asked:
        try:
            value = json_text.loads(text)
        except json_text.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error}.") from None
        step = None
        if isinstance(value, dict):
            step = value.get("step")
            if step is not None and (type(step) is not int or step < 1):
                raise ValueError(f"step must be a whole number, 1 or more, got {step!r}.")
            value = self._from_names(value)
        numbers = value if isinstance(value, list) else [value]
        if not all(type(entry) in (int, float) for entry in numbers):
            raise ValueError(f"the context must be numbers, got {text[:60]}.")
        return _Asked(self._checked([float(entry) for entry in numbers]), True, step)

    def _from_names(self, value: dict[str, Any]) -> Any:
        if "context" in value:
            return value["context"]
        names = self._columns or []
        if names and all(name in value for name in names):
            return [value[name] for name in names]
        wanted = f" or {', '.join(map(repr, names))}" if names else ""
        raise ValueError(f"no 'context'{wanted} in {json_text.dumps(value)[:60]}.")

    def _checked(self, numbers: list[float]) -> list[float]:
        if len(numbers) != self._size:
            raise ValueError(f"the policy takes {self._size} numbers, got {len(numbers)}.")
        return numbers


def _answer(runner: "Runner", asked: _Asked, state: Path | None, as_json: bool) -> None:
    """Play, save, and only then say: whoever reads an answer can rely on the state."""
    if asked.step is not None and asked.step != runner.steps + 1:
        if asked.step != runner.steps:
            raise ValueError(f"step {asked.step} does not follow step {runner.steps}, the last one answered.")
    else:
        runner.step(asked.context)
        if state is not None:
            runner.save_state(state)
    action = runner.action.tolist()
    if asked.as_json or as_json:
        told = {"step": runner.steps, "action": action, "cost": float(runner.cost)}
        live = runner.live_ratio
        if live is not None:
            told["live_ratio"] = float(live)
        line = json_text.dumps(output.as_json(told))
    else:
        line = ",".join(map(repr, action))
    print(line, flush=True)


def _runner(policy: "Policy", state: Path | None, x0: list[float] | None, reading: "Reading | None") -> "Runner":
    """A runner where the last one was, or a new one."""
    from ecl2o.serving import Runner, begin

    if state is not None and state.exists():
        runner = Runner.resume(policy, state)
        print(f"ecl2o: going on after {runner.steps} contexts, from {state}.", file=sys.stderr, flush=True)
        return runner
    if state is not None:
        output.refuse_unless_writable(state, "--state")
    dim = policy.problem.Q.shape[0]
    if x0 is not None and len(x0) != dim:
        raise typer.BadParameter(f"the policy's actions have {dim} numbers, got {len(x0)}.", param_hint="--x0")
    past = None if reading is None else reading.made_for(policy).values()
    if x0 is None and past is None and policy.history is None:
        raise ValueError("where does the run start? Give --x0 (the action in force) or --history (a series).")
    if past is None and policy.history is not None:
        until = policy.contract.history_until
        print(
            f"ecl2o: starting from the policy's own history, which ends at {until}; --history gives a fresher one.",
            file=sys.stderr,
            flush=True,
        )
    return begin(policy, x0, past)


def _lines() -> Iterator[tuple[int, str]]:
    """Numbered lines as they arrive."""
    stream = sys.stdin
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    return enumerate(iter(stream.readline, ""), start=1)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _as_number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise ValueError(f"{cell[:60]!r} is not a number." if cell else "a cell is empty.") from None


def _numbers_of(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(cell) for cell in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"numbers with commas are expected, got {text!r}.", param_hint="--x0") from None
