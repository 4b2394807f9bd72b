"""Group commit: one thread writes, and what is waiting when it begins shares one transaction and one flush to the disk."""

import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ecl2o.service.refused import Refused
from ecl2o.service.step_executor import Answer, Ask, Group, Player
from ecl2o.service.store import Store

_MOST_ASKS = 20_000  # in one transaction
_MOST_WAITING = 4 * _MOST_ASKS
_TRIES = 5
_log = logging.getLogger("ecl2o.serve")


@dataclasses.dataclass
class _Task:
    """Steps to be played, or anything else to be written; who waits hears of it after the commit."""

    asks: Sequence[Ask]
    write: Callable[[sa.Connection], Any] | None
    heard: Future


class Commits:
    """The only writer of a store in this process.

    Args:
        store: where to.
        player: who plays the steps.
        announce: told the fresh answers of a group after its commit, in the writer's thread.
        also: called within each transaction, after its steps; what it writes is committed with them.
    """

    def __init__(
        self,
        store: Store,
        player: Player,
        announce: Callable[[list[Answer]], None],
        also: Callable[[sa.Connection, Group], None] = lambda connection, group: None,
    ):
        self._store, self._player, self._announce, self._also = store, player, announce, also
        self._waiting: deque[_Task] = deque()
        self._asks_waiting = 0
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="ecl2o-commits", daemon=True)
        self._thread.start()

    def play(self, asks: Sequence[Ask]) -> "Future[list[Answer | Refused]]":
        """Play steps; done when they are on disk."""
        return self._enter(_Task(asks, None, Future()))

    def write(self, what: Callable[[sa.Connection], Any]) -> Future:
        """Write something else. It may be called again, in another transaction, if another service was in the way."""
        return self._enter(_Task((), what, Future()))

    def close(self) -> None:
        """Finish what is waiting, then stop."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _enter(self, task: _Task) -> Future:
        with self._wake:
            if self._closed:
                raise Refused(503, "the service is stopping.")
            if self._asks_waiting + len(task.asks) > _MOST_WAITING:
                raise Refused(503, "too many steps are waiting; try again in a moment.")
            self._waiting.append(task)
            self._asks_waiting += len(task.asks)
            self._wake.notify()
        return task.heard

    def _work(self) -> None:
        while not (self._closed and not self._waiting):
            if tasks := self._next():
                self._commit(tasks)

    def _next(self) -> list[_Task]:
        """All that is waiting, as far as it fits."""
        with self._wake:
            while not self._waiting and not self._closed:
                self._wake.wait()
            tasks, asks = [], 0
            while self._waiting and (not tasks or asks + len(self._waiting[0].asks) <= _MOST_ASKS):
                task = self._waiting.popleft()
                self._asks_waiting -= len(task.asks)
                if task.heard.set_running_or_notify_cancel():  # else whoever asked has gone before it began
                    tasks.append(task)
                    asks += len(task.asks)
            return tasks

    def _commit(self, tasks: list[_Task], tries: int = _TRIES) -> None:
        try:
            with self._store.writing() as connection:
                self._player.trust(self._store.openings)
                results = [_attempt(task, connection) for task in tasks]
                group = self._player.play(connection, [ask for task in tasks for ask in task.asks])
                self._also(connection, group)
        except DBAPIError:  # another service was in the way: one by one, so that only one can be hit again
            for task in tasks:
                if len(tasks) > 1 or tries > 1:
                    self._commit([task], _TRIES if len(tasks) > 1 else tries - 1)
                else:
                    task.heard.set_exception(Refused(503, "the store is busy; try again in a moment."))
            return
        except Exception as error:
            for task in tasks:
                task.heard.set_exception(error)
            return
        self._player.committed(group)
        self._tell(tasks, results, group)

    def _tell(self, tasks: list[_Task], results: list[Any], group: Group) -> None:
        fresh = [answer for answer in group.answers if isinstance(answer, Answer) and answer.fresh]
        if fresh:
            try:
                self._announce(fresh)
            except Exception:  # who watches must not keep the answers from those who asked
                _log.exception("steps were made and not announced")
        start = 0
        for task, result in zip(tasks, results, strict=True):
            stop = start + len(task.asks)
            if isinstance(result, Refused):
                task.heard.set_exception(result)
            else:
                task.heard.set_result(group.answers[start:stop] if task.write is None else result)
            start = stop


def _attempt(task: _Task, connection: sa.Connection) -> Any:
    """What a task writes, or its refusal, which it raises before it writes anything."""
    if task.write is None:
        return None
    try:
        return task.write(connection)
    except Refused as refused:
        return refused
