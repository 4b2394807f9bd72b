"""Group commit: one writer thread; all waiting requests share one transaction and one flush to disk."""

import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ecl2o.exceptions import ServiceError, UnavailableError
from ecl2o.service.models import StepRequest, StepResult
from ecl2o.service.step_executor import StepBatch, StepExecutor
from ecl2o.service.store import Store

_MAX_STEPS = 20_000  # in one transaction
_MAX_WAITING_STEPS = 4 * _MAX_STEPS
_ATTEMPTS = 5
_log = logging.getLogger("ecl2o.serve")


@dataclasses.dataclass
class _Task:
    """Steps to execute, or another write. The future is resolved after the commit."""

    requests: Sequence[StepRequest]
    write: Callable[[sa.Connection], Any] | None
    future: Future


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
        before_commit: Callable[[sa.Connection, StepBatch], None] = lambda connection, batch: None,
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
        return self._submit(_Task(requests, None, Future()))

    def submit_write(self, write: Callable[[sa.Connection], Any]) -> Future:
        """Queue another write. After a conflict with another service it is called again, in a new transaction."""
        return self._submit(_Task((), write, Future()))

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
            while not self._waiting and not self._closed:
                self._wake.wait()
            tasks, steps = [], 0
            while self._waiting and (not tasks or steps + len(self._waiting[0].requests) <= _MAX_STEPS):
                task = self._waiting.popleft()
                self._steps_waiting -= len(task.requests)
                if task.future.set_running_or_notify_cancel():  # False: the client has gone
                    tasks.append(task)
                    steps += len(task.requests)
            return tasks

    def _commit(self, tasks: list[_Task], attempts: int = _ATTEMPTS) -> None:
        try:
            with self._store.begin_write() as connection:
                self._executor.drop_stale_states(self._store.open_count)
                written = [_write(task, connection) for task in tasks]
                batch = self._executor.execute(connection, [request for task in tasks for request in task.requests])
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
        self._announce_new(batch)
        start = 0
        for task, result in zip(tasks, written, strict=True):
            stop = start + len(task.requests)
            if isinstance(result, ServiceError):
                task.future.set_exception(result)
            else:
                task.future.set_result(batch.results[start:stop] if task.write is None else result)
            start = stop

    def _announce_new(self, batch: StepBatch) -> None:
        new = [result for result in batch.results if isinstance(result, StepResult) and result.record is not None]
        if new:
            try:
                self._announce(new)
            except Exception:  # clients get their answers all the same
                _log.exception("announcing committed steps failed")


def _write(task: _Task, connection: sa.Connection) -> Any:
    """Return what a task's write returns, or its error, which it raises before it writes anything."""
    if task.write is None:
        return None
    try:
        return task.write(connection)
    except ServiceError as error:
        return error
