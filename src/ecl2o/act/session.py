"""A state file has one owner at a time.

A run whose answers go out one by one: a step counts as answered once its answer has been written.
"""

import contextlib
import dataclasses
import datetime
import math
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ecl2o.act.lines import ParsedLine, same_clock, steps_between
from ecl2o.exceptions import NotAnsweredError
from ecl2o.policy import policy_file
from ecl2o.policy.policy import Policy
from ecl2o.policy.runner import Runner, read_state


@contextlib.contextmanager
def holding(state: Path) -> Iterator[None]:
    """Hold a state file, until this ends or the process does; refused, with who holds it, where somebody else does.

    What a killed process left unfinished beside it is removed.
    """
    lock = state.with_name(f".{state.name}.lock")
    with open(lock, "a+", encoding="utf-8") as file:
        if not _locked(file.fileno()):
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise ValueError(
                f"{state} is held by {holder}. Two processes would both play; stop one, or give it its own state."
            )
        file.seek(0)
        file.truncate()
        now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {now}")
        file.flush()
        policy_file.remove_unfinished(state)
        yield


def _locked(descriptor: int) -> bool:
    """Whether the file is ours now. The system lets go of it when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such thing on Windows: there is no lock then
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_WEEK = 7


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one line is answered.

    Args:
        step: the number of answers so far, this one included.
        action: what to do.
        cost: the bill of the run so far, steps that were filled in included.
        find_live_ratio: gives cost over the optimum so far, None where the policy does not know it; a program of its own, run
            only where the ratio is told.
        context_used: the context that stood in for one that was missing or implausible; None where the given one was used.
        filled: steps that were missed before this one, and played on the last plausible context.
        unconverged: whether a solve did not converge.
    """

    step: int
    action: list[float]
    cost: float
    find_live_ratio: Callable[[], Any]
    context_used: list[float] | None = None
    filled: int = 0
    unconverged: bool = False

    def as_json(self) -> dict[str, Any]:
        """What is not worth saying is left out."""
        told: dict[str, Any] = {"step": self.step, "action": self.action, "cost": self.cost}
        live_ratio = self.find_live_ratio()
        if live_ratio is not None:
            told["live_ratio"] = float(live_ratio)
        if self.context_used is not None:
            told |= {"screened": True, "context_used": self.context_used}
        if self.filled:
            told["filled"] = self.filled
        if self.unconverged:
            told["unconverged"] = True
        return told


@dataclasses.dataclass(frozen=True)
class _Notes:
    """What a state file keeps beside the runner's own: steps filled in, the first and the last time, the last context used."""

    filled: int = 0
    first: str | None = None
    last: str | None = None
    context: list[float] | None = None

    @classmethod
    def read(cls, found: Any) -> "_Notes":
        """From a state file, where they make sense."""
        said = found if isinstance(found, dict) else {}
        known = {field.name: said[field.name] for field in dataclasses.fields(cls) if field.name in said}
        notes = cls(**known)
        try:
            for time in (notes.first, notes.last):
                _ = time is None or datetime.datetime.fromisoformat(time)
            sound = type(notes.filled) is int and (notes.context is None or all(map(math.isfinite, notes.context)))
        except (TypeError, ValueError):
            sound = False
        if not sound:
            raise ValueError("the state file has notes that cannot be understood.")
        return notes


class ActSession:
    """A policy's run, from the first line or from a state file.

    Args:
        policy: what to run.
        state: where to keep the state; None: nowhere. If the file exists, the run goes on from it.
        x0: (d,), the action in force before the first line. Default: the cheapest for the last context.
        history: (H, q), contexts before the first line. Default: the policy's own.
        history_until: the time of the last of them, as text. Default: the policy's own.
        say: told what people should know.
    """

    def __init__(
        self,
        policy: Policy,
        state: Path | None = None,
        x0: Any = None,
        history: np.ndarray | None = None,
        history_until: str | None = None,
        say: Callable[[str], None] = lambda words: None,
    ):
        self._policy, self._state, self._say = policy, state, say
        self._x0, self._history = x0, history
        self._until = history_until if history is not None else policy.contract.history_until
        self._notes = _Notes()
        if state is not None and state.exists():
            self._runner = Runner.resume(policy, state)
            self._notes = _Notes.read(read_state(state).header.get("notes"))
            say(f"going on after {self.steps} contexts, from {state}.")
        else:
            self._runner = Runner(policy, x0, history)  # now, so that the first line need not wait for it
            if history is None and policy.history is not None:
                until = policy.contract.history_until
                say(f"starting from the policy's own history, which ends at {until}; --history gives a fresher one.")

    @property
    def context_dim(self) -> int:
        """q, how many numbers a context has."""
        return self._runner.context_dim

    @property
    def steps(self) -> int:
        """How many lines have been answered."""
        return self._runner.steps - self._notes.filled

    def is_answered(self, asked: ParsedLine) -> bool:
        """Whether a line with a time is of a step that has been answered."""
        asked = self._with_known_clock(asked)
        return (
            asked.time is not None and self._notes.last is not None and self._slot(asked.time) <= self._slot_of_last()
        )

    def answer(self, asked: ParsedLine, write: Callable[[Answer], None]) -> None:
        """Play a line, or find it played, and write the answer; if that fails the run is as it was before.

        The state is on disk before the answer is written: an answer that somebody has read is always in the state.
        """
        asked = self._with_known_clock(asked)
        if self._is_repeated(asked):
            write(self._told(0))
            return
        runner = self._begun(asked.time)
        before, notes, existed = runner.state_dict(), self._notes, self._state is not None and self._state.exists()
        try:
            filled = self._fill(runner, asked.time)
            runner.step(asked.context if runner.is_screened else _finite(asked.context))
            self._note(runner, asked, filled)
            self._save(runner)
            write(self._told(filled))
        except OSError as error:
            runner.load_state_dict(before)
            self._notes = notes
            self._undo(runner, existed)
            if isinstance(error, NotAnsweredError):
                raise NotAnsweredError(f"step {self.steps + 1} was not answered: {error}") from None
            raise
        except Exception:
            runner.load_state_dict(before)
            self._notes = notes
            raise

    def _with_known_clock(self, asked: ParsedLine) -> ParsedLine:
        """Without its time, where nobody knows how far apart contexts are."""
        return asked if self._policy.contract.step_minutes is not None else dataclasses.replace(asked, time=None)

    def _is_repeated(self, asked: ParsedLine) -> bool:
        """Whether the last step is asked again; refused where it is neither that nor the next one."""
        if asked.step is not None and asked.step != self.steps + 1:
            if asked.step != self.steps or self.steps == 0:
                raise ValueError(f"step {asked.step} does not follow step {self.steps}, the last one answered.")
            return True
        if asked.time is None or self._notes.last is None:
            return False
        slot, last = self._slot(asked.time), self._slot_of_last()
        if slot < last:
            raise ValueError(f"{asked.time} comes before {self._notes.last}, the last one answered.")
        if slot == last and str(asked.time) != self._notes.last:
            self._say(f"{asked.time} is of the same step as {self._notes.last}: answered again, not played twice.")
        return slot == last

    def _slot(self, time: datetime.datetime) -> int:
        """The number of a time's step, from the first one that had a time."""
        assert self._notes.first is not None
        return steps_between(datetime.datetime.fromisoformat(self._notes.first), time, self._step_minutes)

    def _slot_of_last(self) -> int:
        assert self._notes.last is not None
        return self._slot(datetime.datetime.fromisoformat(self._notes.last))

    @property
    def _step_minutes(self) -> float:
        minutes = self._policy.contract.step_minutes
        assert minutes is not None
        return minutes

    @property
    def _week(self) -> int:
        return _WEEK * (self._policy.contract.steps_per_day or 1)

    def _begun(self, time: datetime.datetime | None) -> Runner:
        """The runner; begun anew, if the first line shows that the past does not end just before it."""
        past = self._policy.history if self._history is None else np.asarray(self._history, float)
        if self._runner.steps == 0 and time is not None and self._until is not None and past is not None and len(past):
            until_now = self._until_now(past, self._until, time)
            if len(until_now) > len(past):
                self._runner = Runner(self._policy, self._x0, until_now)
        return self._runner

    def _until_now(self, past: np.ndarray, said: str, time: datetime.datetime) -> np.ndarray:
        """A past whose last context is of the step before this time; what is missing is as it was a week (or a day) before."""
        until = datetime.datetime.fromisoformat(said)
        gap = steps_between(until, time, self._step_minutes) - 1
        usual = next((span for span in (self._week, self._week // _WEEK) if span <= len(past)), 1)
        missing = gap % usual
        if gap:
            self._say(
                f"the history ends at {until}, {abs(gap)} steps {'before' if gap > 0 else 'after'} {same_clock(time, until)} "
                f"would need it; the hours of the day are kept."
            )
        return np.concatenate([past, past[len(past) - usual :][:missing]])

    def _fill(self, runner: Runner, time: datetime.datetime | None) -> int:
        """Play the steps that were missed before this time, on the last plausible context; of whole weeks, none."""
        if time is None or self._notes.last is None:
            return 0
        missed = self._slot(time) - self._slot_of_last() - 1
        filled = missed % self._week
        if missed:
            self._say(f"steps missing between {self._notes.last} and {time}: {missed}; filled in: {filled}.")
        for _ in range(filled):
            runner.step(None if runner.is_screened else self._notes.context)
        return filled

    def _note(self, runner: Runner, asked: ParsedLine, filled: int) -> None:
        used, notes = runner.context, self._notes
        time = None if asked.time is None else str(asked.time)
        if time is None and notes.last is not None:  # a line that names no time is of the next step
            passed = datetime.timedelta(minutes=self._step_minutes)
            time = str(datetime.datetime.fromisoformat(notes.last) + passed)
        self._notes = dataclasses.replace(
            notes,
            filled=notes.filled + filled,
            first=notes.first or time,
            last=time,
            context=asked.context if used is None else used.tolist(),
        )

    def _save(self, runner: Runner) -> None:
        if self._state is not None:
            runner.save_state(self._state, dataclasses.asdict(self._notes))

    def _undo(self, runner: Runner, existed: bool) -> None:
        """The state file as it was before the step, as far as the disk allows."""
        if self._state is None:
            return
        if existed:
            self._save(runner)
        else:
            self._state.unlink(missing_ok=True)

    def _told(self, filled: int) -> Answer:
        runner = self._runner
        used = runner.context
        return Answer(
            self.steps,
            runner.action.tolist(),
            float(runner.cost),
            lambda: runner.live_ratio,
            used.tolist() if used is not None and runner.replaced else None,
            filled,
            bool(runner.is_unconverged),
        )


def _finite(context: list[float]) -> list[float]:
    if not all(map(math.isfinite, context)):
        raise ValueError(
            "a number is missing or not finite, and the policy does not say what is plausible, so that none stands in; the "
            "context must be finite."
        )
    return context
