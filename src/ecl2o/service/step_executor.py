"""Execute steps: one writer thread takes all waiting requests into one transaction with one flush to disk (group commit)."""

import dataclasses
import json
import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ecl2o.exceptions import ConflictError, InvalidRequestError, NotFoundError, ServiceError, UnavailableError
from ecl2o.policy.runner import explain_failed_step
from ecl2o.service import queries
from ecl2o.service.batched_stepper import BatchedStepper
from ecl2o.service.models import StepRecord, StepRequest, StepResult
from ecl2o.service.queries import StreamPosition
from ecl2o.service.store import Store

_MAX_CACHED_STATES = 100_000
_MAX_STEPS = 20_000  # in one transaction
_MAX_WAITING_STEPS = 4 * _MAX_STEPS
_ATTEMPTS = 5
_log = logging.getLogger("ecl2o.serve")


@dataclasses.dataclass
class StepBatch:
    """Requests, their results in the same order, and the states to cache after the commit.

    `written` has the key of the stream and the number of each new step; `time` is the time of these steps.
    """

    requests: Sequence[StepRequest]
    results: list[StepResult | ServiceError | None]
    time: float
    states: dict[int, bytes] = dataclasses.field(default_factory=dict)
    written: list[tuple[int, int]] = dataclasses.field(default_factory=list)


class StepExecutor:
    """Execute batches of steps. Not thread-safe: the writer thread has one executor.

    Args:
        get_stepper: Returns the compiled stepper for a policy and a history length. Raises `ServiceError` if there is none.
    """

    def __init__(self, get_stepper: Callable[[str, int], BatchedStepper]):
        self._get_stepper = get_stepper
        self._states: OrderedDict[int, bytes] = OrderedDict()  # by the stream's key
        self.latest_time = 0.0  # of a step; later steps are never earlier, even if the clock is set back

    def execute(self, connection: sa.Connection, requests: Sequence[StepRequest]) -> StepBatch:
        """Execute requests within a transaction of a store; several for one stream run in their order."""
        batch = StepBatch(requests, [None] * len(requests), max(self.latest_time, time.time()))
        pending = list(range(len(requests)))
        while pending:
            first_of_stream = {}
            for index in pending:
                first_of_stream.setdefault(requests[index].stream, index)
            self._execute_round(connection, first_of_stream, batch)
            pending = [index for index in pending if batch.results[index] is None]
        return batch

    def cache_states(self, batch: StepBatch) -> None:
        """Cache the states of a committed batch."""
        self.latest_time = max(self.latest_time, batch.time)
        for key, state in batch.states.items():
            self._states[key] = state
            self._states.move_to_end(key)
        while len(self._states) > _MAX_CACHED_STATES:
            self._states.popitem(last=False)

    def _execute_round(self, connection: sa.Connection, index_of_stream: dict[str, int], batch: StepBatch) -> None:
        """Execute one request per stream, those of one policy and history length together."""
        ids = [stream for stream in index_of_stream if stream.isprintable()]  # PostgreSQL rejects NUL
        positions = queries.lock_streams(connection, ids)
        batch.time = max([batch.time, *(position.updated for position in positions.values())])  # other services' clocks
        groups: dict[BatchedStepper, list[tuple[int, StreamPosition]]] = {}
        for stream, index in index_of_stream.items():
            request, position = batch.requests[index], positions.get(stream)
            try:
                if position is None:
                    raise NotFoundError(f"There is no stream {stream!r}. Create it first.")
                stepper = self._get_stepper(position.policy, position.history)
                _check_context(request.context, stepper)
                if _is_next(request, position):
                    groups.setdefault(stepper, []).append((index, position))
                else:
                    batch.results[index] = _repeat_answer(connection, request, position)
            except ServiceError as error:
                batch.results[index] = error
        for stepper, members in groups.items():
            self._execute_group(connection, stepper, members, batch)

    def _execute_group(
        self,
        connection: sa.Connection,
        stepper: BatchedStepper,
        members: list[tuple[int, StreamPosition]],
        batch: StepBatch,
    ) -> None:
        states = self._load_states(connection, [position for _, position in members], batch)
        for index, position in members:
            if position.key not in states:
                batch.results[index] = UnavailableError("The stream's stored state is damaged. Restore a backup.")
        members = [member for member in members if member[1].key in states]
        try:
            contexts = [batch.requests[index].context for index, _ in members]
            outcomes = stepper.step([states[position.key] for _, position in members], contexts) if members else []
        except Exception:
            _log.exception("the compiled step of a policy failed")
            for index, _ in members:  # the rest of the transaction is not affected
                batch.results[index] = UnavailableError("The policy's compiled step failed. Nothing was changed.")
            return
        made = []
        for (index, position), (state, fields, used) in zip(members, outcomes, strict=True):
            context: list[Any] = batch.requests[index].context
            if fields is None:
                batch.results[index] = InvalidRequestError(explain_failed_step(context, used, stepper.plausible))
                continue
            record = StepRecord(
                step=position.steps + 1,
                at=batch.time,
                promise=stepper.promise,
                context=context,
                screened=used is not None,
                context_used=context if used is None else used,
                **fields,
            )
            text = record.to_json()
            made.append((position, record, text, state))
            batch.states[position.key] = state
            batch.written.append((position.key, record.step))
            batch.results[index] = StepResult(position.id, position.policy, text, record)
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


def _check_context(context: list[float | None], stepper: BatchedStepper) -> None:
    if len(context) != stepper.context_dim:
        raise InvalidRequestError(f"The context must have {stepper.context_dim} numbers, got {len(context)}.")
    if not all(entry is None or math.isfinite(entry) for entry in context):
        raise InvalidRequestError("The context must be finite numbers.")
    if None in context and stepper.plausible is None:
        raise InvalidRequestError("A number is missing, and the policy has no plausible ranges by which to replace it.")


def _is_next(request: StepRequest, position: StreamPosition) -> bool:
    """Return whether the request is for the stream's next step; False if it repeats the last one."""
    last, number = position.steps, request.step
    if number not in (None, last, last + 1) or number == 0:
        error = f"Step {number} does not follow the last step, {last}. Send step {last + 1}."
        raise ConflictError(error, last_step=last, next_step=last + 1)
    return number != last


def _repeat_answer(connection: sa.Connection, request: StepRequest, position: StreamPosition) -> StepResult:
    """Return the answer to the last step again, if the context is the same."""
    text = queries.load_last_answer(connection, position.key)
    answered = json.loads(text)["context"]
    if answered != request.context:
        error = f"Step {request.step} was already answered for another context and cannot be changed."
        details = {"context_answered": answered, "context_sent": request.context}
        raise ConflictError(error, last_step=position.steps, **details)
    return StepResult(position.id, position.policy, text)


class _Task(NamedTuple):
    """Steps to execute, or another write. The future is resolved after the commit."""

    future: Future
    requests: Sequence[StepRequest] = ()
    write: Callable[[sa.Connection], Any] | None = None


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
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ecl2o-group-commit", daemon=True)
        self._thread.start()

    def submit_steps(self, requests: Sequence[StepRequest]) -> "Future[list[StepResult | ServiceError]]":
        """Queue steps; the future is done when they are on disk."""
        return self._submit(_Task(Future(), requests))

    def submit_write(self, write: Callable[[sa.Connection], Any]) -> Future:
        """Queue another write. After a conflict with another service it is called again, in a new transaction."""
        return self._submit(_Task(Future(), write=write))

    def close(self) -> None:
        """Finish the queue, then stop."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _submit(self, task: _Task) -> Future:
        with self._wake:
            if self._closed:
                raise UnavailableError("The service is stopping.")
            if self._steps_waiting + len(task.requests) > _MAX_WAITING_STEPS:
                raise UnavailableError("Too many steps are waiting. Try again in a moment.")
            self._waiting.append(task)
            self._steps_waiting += len(task.requests)
            self._wake.notify()
        return task.future

    def _run(self) -> None:
        while not (self._closed and not self._waiting):
            if tasks := self._take_tasks():
                self._commit(tasks)

    def _take_tasks(self) -> list[_Task]:
        """Wait for tasks, and take all that fit into one transaction."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._closed)
            tasks, steps = [], 0
            while self._waiting and (not tasks or steps + len(self._waiting[0].requests) <= _MAX_STEPS):
                task = self._waiting.popleft()
                self._steps_waiting -= len(task.requests)
                if task.future.set_running_or_notify_cancel():  # False: the client has gone
                    tasks.append(task)
                    steps += len(task.requests)
            return tasks

    def _commit(self, tasks: list[_Task], attempts: int = _ATTEMPTS) -> None:
        requests = [request for task in tasks for request in task.requests]
        try:
            with self._store.begin_write() as connection:
                written = [_write(task, connection) for task in tasks]
                batch = self._executor.execute(connection, requests)
                if self._before_commit is not None:
                    self._before_commit(connection, batch)
        except DBAPIError:  # a conflict with another service: retry one by one, so that it can hit only one task again
            for task in tasks:
                if len(tasks) > 1 or attempts > 1:
                    self._commit([task], _ATTEMPTS if len(tasks) > 1 else attempts - 1)
                else:
                    task.future.set_exception(UnavailableError("The store is busy. Try again in a moment."))
            return
        except Exception as error:
            for task in tasks:
                task.future.set_exception(error)
            return
        self._executor.cache_states(batch)
        new = [result for result in batch.results if isinstance(result, StepResult) and result.record is not None]
        try:
            if new:
                self._announce(new)
        except Exception:  # clients get their answers all the same
            _log.exception("announcing committed steps failed")
        results = iter(batch.results)
        for task, result in zip(tasks, written, strict=True):
            if isinstance(result, ServiceError):
                task.future.set_exception(result)
            else:
                task.future.set_result([next(results) for _ in task.requests] if task.write is None else result)


def _write(task: _Task, connection: sa.Connection) -> Any:
    """Return what a task's write returns, or its error, which it raises before it writes anything."""
    try:
        return None if task.write is None else task.write(connection)
    except ServiceError as error:
        return error
