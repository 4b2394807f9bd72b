"""A run whose answers go out line by line: parse, step, save, print. If printing fails, the step is undone on disk too."""

import contextlib
import dataclasses
import datetime
import functools
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import pydantic

from ecl2o.act.lines import ParsedLine
from ecl2o.agents import Advised, Promise
from ecl2o.exceptions import NotAnsweredError
from ecl2o.policy import policy_file
from ecl2o.policy.advice import describe_change, find_promise
from ecl2o.policy.clock import StepClock
from ecl2o.policy.contract import describe_shift, describe_validation_error
from ecl2o.policy.policy import Policy
from ecl2o.policy.runner import Runner, read_state


@contextlib.contextmanager
def lock_state(state: Path) -> Iterator[None]:
    """Hold a state file for one process, and remove what a killed process left beside it.

    Raises:
        ValueError: Another process holds it, or its lock is a symbolic link, which is not followed.
    """
    import filelock

    lock = filelock.FileLock(state.with_name(f".{state.name}.lock"), timeout=0)
    try:
        held = lock.acquire()
    except filelock.Timeout:
        raise ValueError(
            f"{state} is locked: another process holds {lock.lock_file}. Stop that process, or give another `state`."
        ) from None
    except OSError:
        if not os.path.islink(lock.lock_file):
            raise
        raise ValueError(f"{lock.lock_file} is a symbolic link; remove it, or give another `state`.") from None
    with held:
        policy_file.remove_unfinished(state)
        yield


class AnswerJson(TypedDict):
    """The fields of an answer in JSON; optional ones are left out where they say nothing."""

    step: int
    action: list[float]
    cost: float
    live_ratio: NotRequired[float]
    live_ratio_at_most: NotRequired[float]
    promises_left: NotRequired[list[float]]
    change: NotRequired[str]
    advice_cost: NotRequired[float]
    shadow_action: NotRequired[list[float]]
    shadow_cost: NotRequired[float]
    shadow_left: NotRequired[float]
    screened: NotRequired[bool]
    context_used: NotRequired[list[float | None]]
    imputed: NotRequired[list[str]]
    stuck: NotRequired[list[str]]
    filled: NotRequired[int]
    unconverged: NotRequired[bool]
    in_force_after: NotRequired[int]
    in_force_from: NotRequired[str]


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to one line.

    Args:
        step: The number of answers so far, this one included.
        action: The action (d,).
        cost: The cost of the run so far, with the steps that were filled in.
        find_figures: Computes the figures that the agent reports, by name. Called for JSON only.
        change: What was changed in the advice and why; None if it was played, or the policy takes none.
        context_used: The context that replaced a missing or an implausible one; None if the given one was used.
        imputed: The covariates that were missing or implausible.
        is_followed_replaced: Whether another number of the context was.
        stuck: The columns whose reading has not changed for longer than is plausible.
        filled: Missed steps before this one, played on the last plausible context.
        unconverged: Whether a solve did not converge.
        is_bound: Whether the ratio is to a lower bound on the optimum, and so at least the true one. Default: false.
        promises_optimum: Whether there is a ratio to the optimum. Default: false.
        in_force_after: Steps from the context to the step in which the action is in force; see the contract. Default: 0.
        in_force_from: The time of that step, if it is known. Default: None.
    """

    step: int
    action: list[float]
    cost: float
    find_figures: Callable[[], dict[str, np.ndarray]]
    change: str | None
    context_used: list[float | None] | None
    imputed: list[str]
    is_followed_replaced: bool
    stuck: list[str]
    filled: int
    unconverged: bool
    is_bound: bool = False
    promises_optimum: bool = False
    in_force_after: int = 0
    in_force_from: datetime.datetime | None = None

    def as_json(self) -> AnswerJson:
        """Return the answer as JSON's types."""
        answer = AnswerJson(step=self.step, action=self.action, cost=self.cost)
        figures = self.find_figures()
        if "ratio" in figures and self.promises_optimum:
            answer["live_ratio_at_most" if self.is_bound else "live_ratio"] = float(figures["ratio"][0])
        if "left" in figures:
            answer["promises_left"] = figures["left"].tolist()
        if self.change is not None:
            answer["change"] = self.change
        if "shadow_action" in figures:
            answer["shadow_action"] = figures["shadow_action"].tolist()
        for name in ("advice_cost", "shadow_cost", "shadow_left"):
            if name in figures and np.isfinite(figures[name]):  # of absurd advice the cost is not
                answer[name] = float(figures[name])
        if self.context_used is not None:
            answer["screened"], answer["context_used"] = True, self.context_used
        if self.imputed:
            answer["imputed"] = self.imputed
        if self.stuck:
            answer["stuck"] = self.stuck
        if self.filled:
            answer["filled"] = self.filled
        if self.unconverged:
            answer["unconverged"] = True
        if self.in_force_after:
            answer["in_force_after"] = self.in_force_after
        if self.in_force_from is not None:
            answer["in_force_from"] = self.in_force_from.isoformat()
        return answer


class _Notes(pydantic.BaseModel, frozen=True):
    """What a state file has beside the runner's state.

    Args:
        filled: Steps filled in.
        first: The time of the first step.
        last: The time of the last step.
        context: The last context used, without advice.
        change: What the last step changed in the advice, and why.
    """

    filled: pydantic.StrictInt = pydantic.Field(default=0, ge=0)
    first: datetime.datetime | None = None
    last: datetime.datetime | None = None
    context: list[pydantic.FiniteFloat] | None = None
    change: str | None = None


class ActSession:
    """A policy's run over lines, from the first line or from a state file.

    Args:
        state: The state file; the run continues from it if it exists. Default: the state is not kept.
        x0: (d,), the action in force before the first line. Default: the cheapest for the last context of the history.
        history: (H, q), contexts before the first line. Default: the policy's own.
        history_until: The time of the last of them. Default: the policy's own.
        start_time: The time of the first line, if lines have none. Default: one step after the history.
        notify: Called with messages for people.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> session = ActSession(ec.Policy(ec.Greedy(), problem), x0=[0.0])
    >>> answer = session.answer(ParsedLine([3.0]), lambda answer: print(answer.step, answer.action))
    1 [1.0]
    """

    def __init__(
        self,
        policy: Policy,
        state: Path | None = None,
        x0: Any = None,
        history: np.ndarray | None = None,
        history_until: str | None = None,
        notify: Callable[[str], None] = lambda message: None,
        start_time: datetime.datetime | None = None,
    ):
        self._policy, self._state, self._notify = policy, state, notify
        self._x0, self._history = x0, policy.history if history is None else np.asarray(history, float)
        self._until = history_until if history is not None else policy.contract.history_until
        self._clock, self._start_time = StepClock(policy), start_time
        self._notes = _Notes()
        self._before: list[float] | None = None  # the action before the last one
        if state is not None and state.exists():
            self._runner = Runner.resume(policy, state)
            self._notes = self._read_notes(state)
            notify(f"continuing after {self.steps} contexts, from {state}.")
        else:
            first = self._find_first_time()
            self._runner = Runner(policy, x0, history, start_time=first)  # now, to answer the first line at once
            if history is None and policy.history is not None:
                notify(f"starting from the policy's own history, until {self._until}; `history` gives a fresher one.")
            if start_time is not None:
                self._extend_history(start_time)
            if policy.contract.shift:
                notify(describe_shift(policy.contract.shift))

    def _find_first_time(self) -> datetime.datetime | None:
        """Return the time of the first line, if it has none of its own; None if there is no clock."""
        if self._start_time is not None or self._until is None or self._clock.step_minutes is None:
            return self._start_time
        return self._clock.next_time(datetime.datetime.fromisoformat(self._until))

    def _read_notes(self, state: Path) -> _Notes:
        """Return the notes of a state file; raise if this policy's run cannot have written them."""
        try:
            notes = _Notes.model_validate(read_state(state)[0].notes)
            first, last = notes.first, notes.last
            in_order = first is None or last is None or self._clock.count_steps(first, last) >= 0
            misfits = {
                "filled": notes.filled >= max(self._runner.steps, 1),
                "first": (first is None) != (last is None),
                "last": last is not None and (self._clock.step_minutes is None or not self._runner.steps),
                "order of first and last": not in_order,
                "context": last is not None if notes.context is None else len(notes.context) != self.measured,
            }
            wrong = ", ".join(name for name, misfit in misfits.items() if misfit)
        except pydantic.ValidationError as error:
            notes, wrong = _Notes(), describe_validation_error(error)
        if wrong:
            raise ValueError(f"{state} has notes that do not fit the policy ({wrong}); delete it to start a new state.")
        return notes

    @property
    def measured(self) -> int:
        """How many numbers a context has before the advice."""
        return self.context_dim - len(self._policy.contract.advice)

    @property
    def context_dim(self) -> int:
        """q, how many numbers a context has."""
        return self._runner.context_dim

    @property
    def promises_band(self) -> bool:
        """Whether the promise holds only while contexts stay in a band."""
        promise = self._policy.contract.promise
        return promise is not None and promise.in_band

    @property
    def steps(self) -> int:
        """The number of lines answered."""
        return self._runner.steps - self._notes.filled

    def is_answered(self, line: ParsedLine) -> bool:
        """Return whether the step of a line's time has been answered."""
        after = self._steps_after_last(self._known_time(line))
        return after is not None and after <= 0

    def answer(self, line: ParsedLine, write: Callable[[Answer], None]) -> Answer:
        """Play a line, write the answer and return it; a line that was answered before is answered again, not played.

        The state is on disk before the answer is written, so that every answer that was read is in the state. If anything
        fails, session and state file are as before.

        Raises:
            ValueError: The line does not follow the last one, or its context is rejected.
            NotAnsweredError: `write` failed.
        """
        time = self._known_time(line)
        if self._is_repeated(line, time):
            answer = self._make_answer(line, 0)
            write(answer)
            return answer
        self._extend_history(time)
        runner, notes = self._runner, self._notes
        before, existed = runner.state_dict(), self._state is not None and self._state.exists()
        try:
            filled = self._fill_missed_steps(time)
            if not runner.is_screened and not all(map(math.isfinite, line.context[: self.measured])):
                names = self._policy.contract.name_numbers(~np.isfinite(line.context[: self.measured]))
                raise ValueError(
                    f"the context has a missing or infinite number ({', '.join(names)}), and the policy has no plausible range "
                    "to replace it: send a number, or make the policy with plausible ranges."
                )
            self._before = runner.action.tolist()
            runner.step(line.context)
            self._update_notes(line.context, time, filled)
            self._save()
            answer = self._make_answer(line, filled)
            write(answer)
        except Exception as error:
            runner.load_state_dict(before)
            self._notes = notes
            self._undo_save(existed, error)
            if isinstance(error, NotAnsweredError):
                raise NotAnsweredError(f"step {self.steps + 1} was not answered: {error}") from None
            raise
        return answer

    def _undo_save(self, existed: bool, cause: Exception) -> None:
        """Put the state file back, if it has a step that was not answered because of an error."""
        if self._state is None:
            return
        try:
            if self._state.exists() and not existed:
                self._state.unlink()
                policy_file.flush_folder(self._state.parent)
            elif existed and read_state(self._state)[0].steps != self._runner.steps:
                self._save()
        except (OSError, ValueError) as error:
            raise NotAnsweredError(
                f"step {self.steps + 1} was not answered ({cause}), but {self._state} may have it: the file could not be "
                f"put back ({error}). Send the step again with its number or its time."
            ) from None

    def _known_time(self, line: ParsedLine) -> datetime.datetime | None:
        """Return a line's time, if the policy knows how far apart contexts are."""
        return None if self._clock.step_minutes is None else line.time

    def _is_repeated(self, line: ParsedLine, time: datetime.datetime | None) -> bool:
        """Return whether the last step is asked for again; raise if it is neither that nor the next one."""
        if line.step is not None and line.step != self.steps + 1:
            if line.step != self.steps or self.steps == 0:
                raise ValueError(f"step {line.step} does not follow step {self.steps}, the last one answered.")
            return True
        after = self._steps_after_last(time)
        if after is not None and after < 0:
            raise ValueError(f"{time} is before {self._notes.last}, the last one answered.")
        if after == 0 and time != self._notes.last:
            self._notify(f"{time} is in the same step as {self._notes.last}: answered again, not played twice.")
        return after == 0

    def _steps_after_last(self, time: datetime.datetime | None) -> int | None:
        """Return how many steps after the last answered one a time is, both counted from the run's first; None if unknown."""
        first, last = self._notes.first, self._notes.last
        if time is None or first is None or last is None:
            return None
        return self._clock.count_steps(first, time) - self._clock.count_steps(first, last)

    def _extend_history(self, time: datetime.datetime | None) -> None:
        """Restart the run at the first line's time, on a history that ends one step before it."""
        if self._runner.steps:
            return
        if time is None:
            first = self._find_first_time() if self._start_time is None else None
            if first is not None and self._clock.cycle > 1:
                self._notify(f"without a time, the first line is taken to be of {first}, one step after the history.")
            return
        past, notice = self._history, None
        if past is not None and len(past) and self._until is not None:
            past, notice = self._clock.extend_history(past, self._until, time)
        if notice is not None:
            self._notify(notice)
        places = (self._clock.find_place(each) for each in (time, self._find_first_time()))
        if past is not self._history or len(set(places)) > 1:
            self._runner = Runner(self._policy, self._x0, past, start_time=time)

    def _fill_missed_steps(self, time: datetime.datetime | None) -> int:
        """Play the steps missed before a time on the last plausible context."""
        first = None if self._notes.last is not None or not self._runner.steps else self._find_first_time()
        if time is not None and first is not None:  # of a run that has had no times
            off = self._clock.count_steps(first, time) - self._runner.steps
            if off % self._clock.steps_per_day:
                self._notify(
                    f"the lines before had no time, and the first was taken to be of {first}: {time} is another hour of the day "
                    "than the run's. Start a new run, with times in every line."
                )
        missed = (self._steps_after_last(time) or 1) - 1
        filled = self._clock.count_filled(missed)
        if missed:
            self._notify(f"steps missing between {self._notes.last} and {time}: {missed}; filled in: {filled}.")
        for _ in range(filled):
            self._runner.step(None if self._runner.is_screened else self._notes.context)
        return filled

    def _update_notes(self, context: list[float], time: datetime.datetime | None, filled: int) -> None:
        used, notes = self._runner.context, self._notes
        if time is None and notes.last is not None:  # a line without a time is of the next step
            time = self._clock.next_time(notes.last)
        change = self._describe_change(context[self.measured :])
        context = (context if used is None else used.tolist())[: self.measured]
        filled += notes.filled
        self._notes = _Notes(filled=filled, first=notes.first or time, last=time, context=context, change=change)

    def _save(self) -> None:
        if self._state is not None:
            self._runner.save_state(self._state, self._notes.model_dump(mode="json"))

    def _make_answer(self, line: ParsedLine, filled: int) -> Answer:
        runner, contract = self._runner, self._policy.contract
        used, replaced = None, []
        if runner.context is not None and runner.replaced:
            used = [number if math.isfinite(number) else None for number in runner.context.tolist()]
            differs = np.asarray(line.context, runner.dtype) != runner.context
            replaced = contract.name_numbers(differs[: self.measured])
        action, cost, unconverged = runner.action.tolist(), float(runner.cost), runner.is_unconverged
        imputed = [name for name in replaced if name in contract.covariates]
        stuck = contract.name_numbers(runner.stuck_numbers)
        about = (
            used,
            imputed,
            len(replaced) > len(imputed),
            stuck,
            filled,
            unconverged,
            self._policy.optimum_is_bound,
            self._policy.promises_optimum,
        )
        about = *about, contract.shift, self._clock.in_force_from(self._notes.last)
        return Answer(self.steps, action, cost, lambda: runner.figures, self._notes.change, *about)

    @functools.cached_property
    def _promise(self) -> Promise | None:
        return find_promise(self._policy)

    def _describe_change(self, advice: list[float]) -> str | None:
        if not advice:
            return None
        agent, runner = self._policy.agent, self._runner
        is_shadow = isinstance(agent, Advised) and agent.shadow
        shadow = runner.figures["shadow_action"].tolist() if is_shadow else None
        known = self._policy.contract, self._before, runner.is_unconverged, shadow
        return describe_change(advice, runner.action.tolist(), self._promise, *known)
