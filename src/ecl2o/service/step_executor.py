"""Execute steps: one writer thread takes all waiting requests into one transaction with one flush to disk (group commit)."""

import contextlib
import dataclasses
import datetime
import json
import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ecl2o.exceptions import (
    ConflictError,
    InDoubtError,
    InvalidRequestError,
    NotFoundError,
    ServiceError,
    UnavailableError,
)
from ecl2o.policy.advice import attach_advice
from ecl2o.policy.clock import StepClock, parse_time
from ecl2o.policy.runner import explain_failed_step
from ecl2o.service import queries
from ecl2o.service.batched_stepper import BatchedStepper
from ecl2o.service.models import StepRecord, StepRequest, StepResult
from ecl2o.service.queries import StreamPosition
from ecl2o.service.store import SILENT, Store, make_error

_MAX_CACHED_STATES = 100_000
_MAX_STEPS = 20_000  # in one transaction
_MAX_WAITING_STEPS = 4 * _MAX_STEPS
_MAX_FILLED = 1000  # missed steps before one; they hold up all streams
_RETRY_SECONDS = 0.002, 0.2  # pause before the first retry after a conflict, doubled up to the second
_LOCKED_SECONDS = 8.0  # until a request fails because another program or service holds a lock
_log = logging.getLogger("ecl2o.serve")


@dataclasses.dataclass
class StepBatch:
    """Requests, their results in the same order, and the states to cache after the commit.

    A request without a result was not executed: another program or service has locked its stream. `written` has the key of the
    stream, the number and the result of each new step; `time` is the time of these steps.
    """

    requests: Sequence[StepRequest]
    results: list[StepResult | ServiceError | None]
    time: float
    states: dict[int, bytes] = dataclasses.field(default_factory=dict)
    written: list[tuple[int, int, StepResult]] = dataclasses.field(default_factory=list)


class _Member(NamedTuple):
    """A request of a group: its number in the batch, its stream, and what is executed for it now."""

    number: int
    position: StreamPosition
    request: StepRequest


class StepExecutor:
    """Execute batches of steps. Not thread-safe: the writer thread has one executor.

    Args:
        get_stepper: Returns the compiled stepper for a policy, its fingerprint and a history length, or raises `ServiceError`.
    """

    def __init__(self, get_stepper: Callable[[str, str, int], BatchedStepper]):
        self._get_stepper = get_stepper
        self._states: OrderedDict[int, bytes] = OrderedDict()  # by the stream's key
        self.latest_time = 0.0  # of a step; later steps are never earlier, even if the clock is set back

    def execute(self, connection: sa.Connection, requests: Sequence[StepRequest]) -> StepBatch:
        """Execute requests within a transaction of a store; several for one stream run in their order."""
        batch = StepBatch(requests, [None] * len(requests), max(self.latest_time, time.time()))
        pending, locked = list(range(len(requests))), set()
        while pending:
            first_of_stream = {}
            for index in pending:
                first_of_stream.setdefault(requests[index].stream, index)
            locked |= self._execute_round(connection, first_of_stream, batch)
            pending = [i for i in pending if batch.results[i] is None and requests[i].stream not in locked]
        return batch

    def cache_states(self, batch: StepBatch) -> None:
        """Cache the states of a committed batch."""
        self.latest_time = max(self.latest_time, batch.time)
        for key, state in batch.states.items():
            self._states[key] = state
            self._states.move_to_end(key)
        while len(self._states) > _MAX_CACHED_STATES:
            self._states.popitem(last=False)

    def _execute_round(self, connection: sa.Connection, index_of_stream: dict[str, int], batch: StepBatch) -> set[str]:
        """Execute one request per stream, those of one policy and history length together; return the locked streams."""
        ids = [stream for stream in index_of_stream if stream.isprintable()]  # PostgreSQL rejects NUL
        positions, locked = queries.lock_streams(connection, ids)
        batch.time = max([batch.time, *(position.updated for position in positions.values())])  # other services' clocks
        groups: dict[BatchedStepper, list[_Member]] = {}
        for stream, index in index_of_stream.items():
            request, position = batch.requests[index], positions.get(stream)
            if stream in locked:
                continue
            try:
                if position is None:
                    raise NotFoundError(f"There is no stream {stream!r}. Create it first.")
                stepper = self._get_stepper(position.policy, position.fingerprint, position.history)
                request = _join_advice(request, stepper)
                if _is_next(request, position, stepper.clock):
                    request = _fill_missed_step(connection, request, position, stepper)
                    request = request._replace(time=_find_time(request, position, stepper.clock))
                    groups.setdefault(stepper, []).append(_Member(index, position, request))
                else:
                    batch.results[index] = _repeat_answer(connection, request, position, stepper.clock)
            except ServiceError as error:
                batch.results[index] = error
            except (ValueError, OverflowError) as error:  # at the ends of the calendar
                batch.results[index] = InvalidRequestError(f"The time cannot be used: {error}")
        for stepper, members in groups.items():
            self._execute_group(connection, stepper, members, batch)
        return locked

    def _execute_group(
        self,
        connection: sa.Connection,
        stepper: BatchedStepper,
        members: list[_Member],
        batch: StepBatch,
    ) -> None:
        states = self._load_states(connection, [member.position for member in members], batch)
        for index, position, _ in members:
            if position.key not in states:
                batch.results[index] = UnavailableError("The stream's stored state is damaged. Restore a backup.")
        members = [member for member in members if member.position.key in states]
        for index, position, request in members:
            try:
                if request.time is not None and position.steps == 0 and position.start is None:
                    states[position.key] = _restart(connection, stepper, position, states[position.key], request.time)
            except (ValueError, OverflowError) as error:
                batch.results[index] = InvalidRequestError(f"The stream cannot start at {request.time}: {error}")
        members = [member for member in members if batch.results[member.number] is None]
        try:
            contexts = [member.request.context for member in members]
            ordered = [states[member.position.key] for member in members]
            outcomes = stepper.step(ordered, contexts) if members else []
        except Exception:
            _log.exception("the compiled step of a policy failed")
            for index, _, _ in members:  # the rest of the transaction is not affected
                batch.results[index] = UnavailableError("The policy's compiled step failed. Nothing was changed.")
            return
        made = []
        for (index, position, request), (state, fields, used) in zip(members, outcomes, strict=True):
            context: list[Any] = request.context
            if fields is None:
                batch.results[index] = InvalidRequestError(explain_failed_step(context, used, stepper.plausible))
                continue
            later = stepper.clock.in_force_from(request.time)
            record = StepRecord(
                step=position.steps + 1,
                at=batch.time,
                promise=stepper.promise,
                context=context,
                screened=used is not None,
                context_used=context if used is None else used,
                time=None if request.time is None else request.time.isoformat(),
                filled=request.filled,
                in_force_from=None if later is None else later.isoformat(),
                **fields,
            )
            text = record.to_json()
            made.append((position, record, text, state))
            batch.states[position.key] = state
            result = StepResult(position.id, position.policy, text, record)
            if not request.filled:  # the request itself is executed in a later round
                batch.results[index] = result
            batch.written.append((position.key, record.step, result))
        if made:
            queries.append_steps(connection, made)

    def _load_states(
        self, connection: sa.Connection, positions: list[StreamPosition], batch: StepBatch
    ) -> dict[int, bytes]:
        """Return states by the stream's key, from the cache or the database, without those that differ from their hash."""
        expected = {position.key: position.state_hash for position in positions}
        cached = {key: batch.states.get(key) or self._states.get(key, b"") for key in expected}
        found = {key: state for key, state in cached.items() if queries.hash_state(state) == expected[key]}
        loaded = queries.load_states(connection, [key for key in expected if key not in found])
        return found | {key: state for key, state in loaded.items() if queries.hash_state(state) == expected[key]}


def _join_advice(request: StepRequest, stepper: BatchedStepper) -> StepRequest:
    """Return the request with its advice as the last numbers of the context."""
    try:
        sizes = stepper.context_dim, stepper.advice_dim
        context = attach_advice(request.context, request.advice, *sizes, stepper.columns)
    except ValueError as error:
        raise InvalidRequestError(f"{error}"[:1].upper() + f"{error}"[1:]) from None
    _check_context(context, stepper)
    return request._replace(context=context, advice=None)


def _check_context(context: list[float | None], stepper: BatchedStepper) -> None:
    if not all(entry is None or math.isfinite(entry) for entry in context):
        raise InvalidRequestError("The context must be finite numbers.")
    measured = context[: stepper.context_dim - stepper.advice_dim]
    if None in measured and stepper.plausible is None:
        places = [i for i, entry in enumerate(measured) if entry is None]
        names = ", ".join(stepper.columns[i] if stepper.columns else str(i + 1) for i in places)
        raise InvalidRequestError(
            f"The context has a missing number ({names}), and the policy has no plausible range to replace it: send a number, "
            "or make the policy with plausible ranges."
        )


def _count_after_last(request: StepRequest, position: StreamPosition, clock: StepClock) -> int | None:
    """Return how many steps after the last one the request's time is, both counted from the start; None if unknown."""
    first, last = position.start or position.last_time, position.last_time
    if request.time is None or first is None or clock.step_minutes is None:
        return None
    start = parse_time(first)
    before = -1 if last is None else clock.count_steps(start, parse_time(last))
    return clock.count_steps(start, request.time) - before


def _find_time(request: StepRequest, position: StreamPosition, clock: StepClock) -> datetime.datetime | None:
    """Return the time of a step: as sent, else one step after the last, or the stream's start."""
    if request.time is not None:
        return request.time
    if position.last_time is None:
        return None if position.start is None else parse_time(position.start)
    return None if clock.step_minutes is None else clock.next_time(parse_time(position.last_time))


def _fill_missed_step(
    connection: sa.Connection, request: StepRequest, position: StreamPosition, stepper: BatchedStepper
) -> StepRequest:
    """Return the request, or, if steps before its time were missed, what fills in the first of them.

    Raises:
        InvalidRequestError: too many were missed.
    """
    filled = stepper.clock.count_filled((_count_after_last(request, position, stepper.clock) or 1) - 1)
    if not filled:
        return request
    if filled > _MAX_FILLED:
        raise InvalidRequestError(
            f"{filled} steps were missed before {request.time}, and at most {_MAX_FILLED} are filled in. Create another stream."
        )
    context: list[float | None] = [None] * stepper.context_dim
    if stepper.plausible is None:
        if not position.steps:
            return request
        context = json.loads(queries.load_last_answer(connection, position.key))["context_used"]
        context[stepper.context_dim - stepper.advice_dim :] = [None] * stepper.advice_dim
    time = _find_time(request._replace(time=None), position, stepper.clock)
    return StepRequest(request.stream, context, None, time, filled=True)


def _restart(
    connection: sa.Connection,
    stepper: BatchedStepper,
    position: StreamPosition,
    state: bytes,
    time: datetime.datetime,
) -> bytes:
    """Return the state of a stream whose first step shows when it starts; a history that was given ends one step before."""
    if "h" in position.given:
        queries.restart_stream(connection, position.key, json.loads(position.x0), None)
        return stepper.move(state, stepper.clock.find_place(time))
    state, x0, notice = stepper.restart(json.loads(position.x0) if "x" in position.given else None, time)
    queries.restart_stream(connection, position.key, x0, notice)
    return state


def _is_next(request: StepRequest, position: StreamPosition, clock: StepClock) -> bool:
    """Return whether the request is for a next step; False if it repeats the last one. A time counts more than a number."""
    last, number = position.steps, request.step
    after = _count_after_last(request, position, clock)
    if after is not None and after < 1:
        if after < 0 or not last:
            raise ConflictError(f"{request.time} is before {position.last_time or position.start}, the last step.")
        return False
    if after is not None:  # steps that are filled in take numbers that the client does not know
        return True
    if number not in (None, last, last + 1) or number == 0:
        error = f"Step {number} does not follow the last step, {last}. Send step {last + 1}."
        raise ConflictError(error, last_step=last, next_step=last + 1)
    return number != last


def _repeat_answer(
    connection: sa.Connection, request: StepRequest, position: StreamPosition, clock: StepClock
) -> StepResult:
    """Return the answer to the last step again, if the context is the same, or it is autumn's repeated hour."""
    text = queries.load_last_answer(connection, position.key)
    answered = json.loads(text)["context"]
    if answered != request.context and (request.time is None or not clock.is_repeated(request.time)):
        error = f"Step {position.steps} was already answered for another context and cannot be changed."
        details = {"context_answered": answered, "context_sent": request.context}
        raise ConflictError(error, last_step=position.steps, **details)
    return StepResult(position.id, position.policy, text)


@dataclasses.dataclass(eq=False)
class _Task:
    """Steps to execute, or another write. The future is resolved after the commit.

    `give_up` is set at the first conflict with another service: until then the task is retried, alone if it was rolled back.
    """

    future: Future
    requests: Sequence[StepRequest] = ()
    write: Callable[[sa.Connection], Any] | None = None
    results: list[StepResult | ServiceError | None] = dataclasses.field(init=False)
    give_up: float = math.inf  # on the monotonic clock
    is_alone: bool = False

    def __post_init__(self):
        self.results = [None] * len(self.requests)

    def resolve(self, result: Any) -> None:
        """Answer, unless the task was answered while the writer was stuck."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(result) if isinstance(result, Exception) else self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Answer the steps that have no result with an error; the others are stored."""
        is_partial = isinstance(error, ServiceError) and any(result is not None for result in self.results)
        self.resolve([result or error for result in self.results] if is_partial else error)


class GroupCommit:
    """The only writer of a store in this process. Thread-safe.

    Args:
        store: Receives the writes.
        executor: Executes the steps.
        announce: Called in the writer thread with the new results of a batch, after its commit.
        before_commit: Called within each transaction after its steps; its writes are committed with them.
    """

    def __init__(
        self,
        store: Store,
        executor: StepExecutor,
        announce: Callable[[list[StepResult]], None],
        before_commit: Callable[[sa.Connection, StepBatch], None] | None,
    ):
        self._store, self._executor, self._announce, self._before_commit = store, executor, announce, before_commit
        self._waiting: deque[_Task] = deque()
        self._steps_waiting = 0
        self._running: list[_Task] = []
        self._deferred: list[_Task] = []  # after a conflict with another service
        self._doubts: dict[tuple[int, int], StepResult] = {}  # not confirmed, by stream's key and number of the step
        self._pause = 0.0
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ecl2o-group-commit", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name="ecl2o-watchdog", daemon=True).start()

    def submit_steps(self, requests: Sequence[StepRequest]) -> "Future[list[StepResult | ServiceError]]":
        """Queue steps; the future is done when they are on disk."""
        return self._submit(_Task(Future(), requests))

    def submit_write(self, write: Callable[[sa.Connection], Any]) -> Future:
        """Queue another write. After a conflict with another service it is called again, in a new transaction."""
        return self._submit(_Task(Future(), write=write))

    def close(self) -> None:
        """Finish the queue, then stop; leave a writer behind that is stuck."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        while self._thread.is_alive() and not self._store.is_stuck:
            self._thread.join(0.5)

    def _submit(self, task: _Task) -> Future:
        with self._wake:
            if self._closed:
                raise UnavailableError("The service is stopping.")
            if self._store.is_stuck:
                raise make_error(SILENT)
            if self._steps_waiting + len(task.requests) > _MAX_WAITING_STEPS:
                raise UnavailableError("Too many steps are waiting. Try again in a moment.")
            self._waiting.append(task)
            self._steps_waiting += len(task.requests)
            self._wake.notify()
        return task.future

    def _run(self) -> None:
        while not (self._closed and not self._waiting and not self._deferred):
            tasks = self._take_tasks()
            together = [task for task in tasks if not task.is_alone]
            if together or (self._doubts and not tasks):
                self._commit(together)
            for task in tasks:
                if task.is_alone:
                    self._commit([task])
            self._running = []

    def _watch(self) -> None:
        """Answer all requests while the writer is stuck, such as on a disk that hangs."""
        while self._thread.is_alive():
            self._thread.join(0.5)
            if self._store.is_stuck:
                with self._wake:
                    waiting = [*self._waiting, *self._deferred]
                    self._waiting.clear()
                    self._deferred.clear()
                    self._steps_waiting = 0
                for task in waiting:
                    task.fail(make_error(SILENT))
                for task in self._running:
                    task.fail(make_error(SILENT, InDoubtError))

    def _take_tasks(self) -> list[_Task]:
        """Wait for tasks, and take all that fit into one transaction, with those that wait for a lock."""
        with self._wake:
            is_retry = bool(self._deferred or self._doubts)
            shortest, longest = _RETRY_SECONDS if self._deferred else (1.0, 1.0)
            self._pause = max(shortest, min(2 * self._pause, longest)) if is_retry else 0.0
            self._wake.wait_for(
                lambda: self._waiting or (self._closed and not self._deferred), self._pause if is_retry else None
            )
            tasks, self._deferred, steps = self._deferred, [], 0
            while self._waiting and (steps == 0 or steps + len(self._waiting[0].requests) <= _MAX_STEPS):
                task = self._waiting.popleft()
                self._steps_waiting -= len(task.requests)
                if task.future.set_running_or_notify_cancel():  # False: the client has gone
                    tasks.append(task)
                    steps += len(task.requests)
            self._running = tasks
            return tasks

    def _commit(self, tasks: list[_Task]) -> None:
        pending = [(task, index) for task in tasks for index, result in enumerate(task.results) if result is None]
        batch = StepBatch([], [], 0.0)
        try:
            with self._store.begin_write() as connection:
                stored, doubts = self._look_up_doubts(connection)
                written = [_write(task, connection) for task in tasks]
                batch = self._executor.execute(connection, [task.requests[index] for task, index in pending])
                if self._before_commit is not None:
                    self._before_commit(connection, batch)
        except DBAPIError:  # a conflict with another service: retry one by one, so that it can hit only one task again
            for task in tasks:
                task.is_alone = True
                self._defer(task) if len(tasks) == 1 else self._commit([task])
            return
        except Exception as error:
            if isinstance(error, InDoubtError):
                self._doubts |= {(key, step): result for key, step, result in batch.written}
            for task in tasks:
                task.fail(error)
            return
        self._doubts = doubts
        self._executor.cache_states(batch)
        new = stored + [result for _, _, result in batch.written]
        try:
            if new:
                self._announce(new)
        except Exception:  # clients get their answers all the same
            _log.exception("announcing committed steps failed")
        for (task, index), result in zip(pending, batch.results, strict=True):
            task.results[index] = result
        for task, result in zip(tasks, written, strict=True):
            if None in task.results:
                self._defer(task)
            else:
                task.resolve(result if task.write is not None else task.results)

    def _defer(self, task: _Task) -> None:
        """Retry a task in another transaction, as long as it may wait for others."""
        task.give_up = min(task.give_up, time.monotonic() + _LOCKED_SECONDS)
        if time.monotonic() < task.give_up:
            with self._wake:
                self._deferred.append(task)
        else:
            task.fail(UnavailableError("Another service holds a lock. Nothing was changed. Try again later."))

    def _look_up_doubts(self, connection: sa.Connection) -> tuple[list[StepResult], dict[tuple[int, int], StepResult]]:
        """Return the steps in doubt that are stored, and those whose commit may still come, as their streams are locked."""
        if not self._doubts:
            return [], {}
        _, locked = queries.lock_streams(connection, {result.stream for result in self._doubts.values()})
        stored = {(result.stream, result.json) for result in queries.load_results(connection, list(self._doubts))}
        is_stored = {key: (result.stream, result.json) in stored for key, result in self._doubts.items()}
        open_doubts = {k: doubt for k, doubt in self._doubts.items() if doubt.stream in locked and not is_stored[k]}
        return [result for key, result in self._doubts.items() if is_stored[key]], open_doubts


def _write(task: _Task, connection: sa.Connection) -> Any:
    """Return what a task's write returns, or its error, which it raises before it writes anything."""
    try:
        return None if task.write is None else task.write(connection)
    except ServiceError as error:
        return error
