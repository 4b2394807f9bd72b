"""Announce steps among the services on one PostgreSQL database, by NOTIFY in the transaction that makes them.

A notification has keys and step numbers only. The steps are read from the database, and only while somebody watches.
"""

import logging
import threading
import uuid
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy import exc

from ecl2o.exceptions import ServiceError
from ecl2o.service import queries
from ecl2o.service.models import StepResult
from ecl2o.service.step_executor import StepBatch
from ecl2o.service.store import Store

STEPS_PER_PAYLOAD = 350  # of at most 22 bytes each; PostgreSQL's limit is 8000 bytes
_CHANNEL = "ecl2o_steps"
_POLL_SECONDS = 0.5  # between checks whether to stop
_RETRY_SECONDS = 2.0  # before a lost connection is opened again
_log = logging.getLogger("ecl2o.serve")


class PgNotifier:
    """Notify other services of this service's steps; while `is_watched`, `announce` theirs from a thread."""

    def __init__(self, store: Store, is_watched: Callable[[], bool], announce: Callable[[list[StepResult]], None]):
        self._store, self._is_watched, self._announce = store, is_watched, announce
        self._service_id = uuid.uuid4().hex
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ecl2o-pg-notify", daemon=True)
        self._thread.start()

    def notify(self, connection: sa.Connection, batch: StepBatch) -> None:
        """Notify others of the steps of a transaction, once it is committed."""
        for start in range(0, len(batch.written), STEPS_PER_PAYLOAD):
            pairs = ",".join(f"{key}.{step}" for key, step, _ in batch.written[start : start + STEPS_PER_PAYLOAD])
            connection.execute(sa.select(sa.func.pg_notify(_CHANNEL, f"{self._service_id} {pairs}")))

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
            except Exception as error:
                if not isinstance(error, exc.SQLAlchemyError | ServiceError):
                    _log.exception("listening to other services failed")
                self._closed.wait(_RETRY_SECONDS)

    def _handle(self, payload: str) -> None:
        sender, _, pairs = payload.partition(" ")
        if sender == self._service_id or not self._is_watched():
            return
        written = [(int(key), int(step)) for key, _, step in (pair.partition(".") for pair in pairs.split(","))]
        with self._store.begin_read() as connection:
            self._announce(queries.load_results(connection, written))
