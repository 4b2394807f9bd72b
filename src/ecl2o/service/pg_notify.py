"""Announce steps among the services on one PostgreSQL database, by NOTIFY in the transaction that makes them.

A notification has keys and step numbers only. The steps are read from the database, and only while somebody watches.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator

import sqlalchemy as sa
from sqlalchemy import exc

from ecl2o.exceptions import ServiceError
from ecl2o.service import queries
from ecl2o.service.models import StepResult
from ecl2o.service.step_executor import StepBatch
from ecl2o.service.store import Store

MAX_PAYLOAD = 7900  # bytes; PostgreSQL's limit is 8000
_CHANNEL = "ecl2o_steps"
_POLL_SECONDS = 0.5  # between checks whether to stop
_RETRY_SECONDS = 2.0  # before a lost connection is opened again
_log = logging.getLogger("ecl2o.serve")


class PgNotifier:
    """Notify other services of this service's steps; listen to theirs in a thread.

    Args:
        store: On PostgreSQL.
        is_watched: Whether anybody watches now.
        announce: Called with the results of other services.
    """

    def __init__(self, store: Store, is_watched: Callable[[], bool], announce: Callable[[list[StepResult]], None]):
        self._store, self._is_watched, self._announce = store, is_watched, announce
        self._service_id = uuid.uuid4().hex
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ecl2o-pg-notify", daemon=True)
        self._thread.start()

    def notify(self, connection: sa.Connection, batch: StepBatch) -> None:
        """Notify others of the steps of a transaction, once it is committed."""
        for payload in join_payloads(f"{key}.{step}" for key, step in batch.written):
            connection.execute(sa.select(sa.func.pg_notify(_CHANNEL, f"{self._service_id} {payload}")))

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with self._store.listen(_CHANNEL) as receive:
                    while not self._closed.is_set():
                        for payload in receive(_POLL_SECONDS):
                            self._handle(payload)
            except (exc.SQLAlchemyError, ServiceError):
                self._closed.wait(_RETRY_SECONDS)
            except Exception:
                _log.exception("listening to other services failed")
                self._closed.wait(_RETRY_SECONDS)

    def _handle(self, payload: str) -> None:
        sender, _, pairs = payload.partition(" ")
        if sender == self._service_id or not self._is_watched():
            return
        written = [(int(key), int(step)) for key, _, step in (pair.partition(".") for pair in pairs.split(","))]
        with self._store.begin_read() as connection:
            self._announce(_load_results(connection, written))


def join_payloads(pairs: Iterable[str]) -> Iterator[str]:
    """Join pairs by commas, as many as fit in a payload."""
    part, size = [], 0
    for pair in pairs:
        if size + len(pair) + 1 > MAX_PAYLOAD - 33:  # 33: the sender's id
            yield ",".join(part)
            part, size = [], 0
        part.append(pair)
        size += len(pair) + 1
    if part:
        yield ",".join(part)


def _load_results(connection: sa.Connection, written: list[tuple[int, int]]) -> list[StepResult]:
    """Return these steps as they were answered; those of deleted streams are left out."""
    last_steps = queries.load_last_steps(connection, [key for key, _ in written])
    results = []
    for key, step in written:
        last = last_steps.get(key)
        if last is None:
            continue
        if last.step == step:
            results.append(StepResult(last.stream, last.policy, last.json))
        else:
            found = queries.load_steps(connection, key, step - 1, 1)
            results += [StepResult(last.stream, last.policy, record.to_json()) for record in found]
    return results
