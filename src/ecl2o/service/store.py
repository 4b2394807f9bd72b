"""The database of streams: SQLite for one process, PostgreSQL for several. Transactions, and what can go wrong with them."""

import contextlib
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

from ecl2o.exceptions import InvalidRequestError, UnavailableError
from ecl2o.service import queries

_LOCK_TIMEOUT = 30  # seconds
_PROBE_BYTES = 1 << 18  # that must fit before a store counts as usable: a few bytes fit even on a full disk
_log = logging.getLogger("ecl2o.serve")


class Store:
    """A database of streams. Thread-safe.

    A store that cannot be used says why in `failure` and is opened again on the next use.

    Args:
        url: As in SQLAlchemy, "sqlite:///streams.db" or "postgresql+psycopg://user@host/database".

    Raises:
        ValueError: the URL is not that of a SQLite file or of a PostgreSQL database.

    >>> import tempfile
    >>> from ecl2o.service import Store
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(f"sqlite:///{folder}/streams.db")
    ...     store.close()
    >>> print(store.failure)
    None
    """

    def __init__(self, url: str):
        try:
            parsed = sa.make_url(url)
        except exc.ArgumentError:
            raise ValueError(f"A store is sqlite:///FILE or postgresql+psycopg://..., got {url!r:.80}.") from None
        backend = parsed.get_backend_name()
        if backend not in ("sqlite", "postgresql"):
            raise ValueError(f"A store is on sqlite or postgresql, got {backend}.")
        self.is_sqlite = backend == "sqlite"
        self.url = parsed
        if self.is_sqlite:
            if parsed.database in (None, "", ":memory:"):
                raise ValueError("A store in memory would lose every step. Name a file: sqlite:///streams.db.")
            self._reader = _make_sqlite_engine(parsed, "BEGIN")
            self._writer = _make_sqlite_engine(parsed, "BEGIN IMMEDIATE")
        else:
            parsed = parsed.set(drivername="postgresql+psycopg")
            self._reader = self._writer = sa.create_engine(
                parsed, pool_pre_ping=True, pool_size=8, connect_args={"connect_timeout": 5}
            )
        self.failure: str | None = "not opened yet"
        self._opening = threading.Lock()
        self.open()

    def open(self) -> None:
        """Create missing tables, and check that the store can be read and written; set `failure` if not."""
        with self._opening:
            if self.failure not in (None, _FULL):  # old connections keep the error, or a file that was replaced
                self.close()
            try:
                if self.is_sqlite and self.failure == _DAMAGED:
                    self._check_integrity()
                if self.is_sqlite and self.failure == _FULL:
                    self._truncate_log()
                with self._writer.begin() as connection:
                    self._create_tables(connection)
                    connection.execute(sa.update(queries.store_info).values(probed=time.time()))
                self._check_free_space()
                self.failure = None
            except exc.SQLAlchemyError as error:
                self._record_failure(error)

    def _check_integrity(self) -> None:
        """Read the whole file: opening it does not reveal damage in the middle."""
        with self._reader.begin() as connection:
            found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if found != "ok":
            raise exc.DatabaseError("PRAGMA quick_check", None, RuntimeError(f"malformed: {found}"))

    def _truncate_log(self) -> None:
        """Move the write-ahead log into the file as far as it fits: a log that cannot grow is reused from its start."""
        connection = self._writer.raw_connection()
        try:
            connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise exc.OperationalError("PRAGMA wal_checkpoint", None, error) from None
        finally:
            connection.close()

    def _check_free_space(self) -> None:
        """Write more than a step needs, and delete it."""
        with self._writer.begin() as connection:
            connection.execute(sa.delete(queries.space_probe))
            connection.execute(sa.insert(queries.space_probe).values(bytes=os.urandom(_PROBE_BYTES)))
        with self._writer.begin() as connection:
            connection.execute(sa.delete(queries.space_probe))

    def _create_tables(self, connection: sa.Connection) -> None:
        if not self.is_sqlite:  # two services may start at once
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(8700)"))
        queries.tables.create_all(connection)
        version = connection.scalar(sa.select(queries.store_info.c.version))
        if version is None:
            connection.execute(sa.insert(queries.store_info).values(version=queries.VERSION, probed=time.time()))
        elif version != queries.VERSION:
            raise exc.InvalidRequestError(f"the store has version {version}, this service {queries.VERSION}")

    @contextlib.contextmanager
    def begin_write(self) -> Iterator[sa.Connection]:
        """Open a transaction that is on disk when the block ends; raise `UnavailableError` if the store cannot be used."""
        if self.failure is not None:
            self.open()
            self._check_usable()
        with self._translate_errors(), self._writer.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def begin_read(self) -> Iterator[sa.Connection]:
        """Open a transaction with a consistent view; raise `UnavailableError` if the store cannot be used."""
        with self._translate_errors(), self._reader.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def listen(self, channel: str) -> Iterator[Callable[[float], Iterator[str]]]:
        """Listen to a channel of PostgreSQL; give a function that waits some seconds and yields the payloads."""
        with self._reader.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"LISTEN {channel}")
            driver: Any = connection.connection.driver_connection

            def receive(seconds: float) -> Iterator[str]:
                try:
                    for notification in driver.notifies(timeout=seconds):
                        yield notification.payload
                except driver.OperationalError as error:
                    raise exc.OperationalError("LISTEN", None, error) from None

            try:
                yield receive
            finally:
                connection.invalidate()  # it still listens

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise database errors as `ServiceError`, except conflicts between two writers, which the caller retries."""
        try:
            yield
        except exc.IntegrityError:
            raise
        except exc.DataError:  # such as PostgreSQL on text with a NUL: the request is at fault
            raise InvalidRequestError("The database does not accept such a value.") from None
        except (exc.DBAPIError, exc.TimeoutError) as error:
            if getattr(getattr(error, "orig", None), "sqlstate", None) in ("40001", "40P01"):  # serialization, deadlock
                raise
            self._record_failure(error)
            self._check_usable()

    def _record_failure(self, error: exc.SQLAlchemyError) -> None:
        _log.error("the store cannot be used: %s", error)
        self.failure = describe_database_error(error)
        folder = Path(str(self.url.database).removeprefix("file:")).parent
        if self.failure == _CANNOT_OPEN and folder.is_dir() and not os.access(folder, os.W_OK):
            self.failure = _READ_ONLY  # SQLite only says that the file cannot be opened

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise UnavailableError(f"The store cannot be used: {self.failure}. Nothing was changed. Try again later.")

    def close(self) -> None:
        """Close all connections."""
        self._writer.dispose()
        self._reader.dispose()


def _make_sqlite_engine(url: sa.URL, begin: str) -> sa.Engine:
    """Return an engine whose transactions begin with this statement and are flushed to disk at their commit."""
    engine = sa.create_engine(url, connect_args={"timeout": _LOCK_TIMEOUT, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def configure(connection, _record):
        connection.isolation_level = None  # the driver starts no transactions of its own
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            with contextlib.suppress(Exception):  # a damaged or read-only store fails at its first transaction
                connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def start(connection):
        connection.exec_driver_sql(begin)

    return engine


_FULL = "the disk is full"
_DAMAGED = "the database file is damaged; restore it from a backup"
_READ_ONLY = "it is read-only"
_CANNOT_OPEN = "its file cannot be opened"
_DESCRIPTIONS = (
    ("disk is full|no space left|disk full|could not extend", _FULL),
    ("readonly|read-only", _READ_ONLY),
    ("malformed|not a database|corrupt|invalid page", _DAMAGED),
    ("unable to open", _CANNOT_OPEN),
    ("locked", "another program holds its lock"),
    ("disk i/o error", "the disk reports an error"),
    ("the store has version", "it was made by another version of ecl2o"),
    ("connection|connect|server closed|terminating", "the database does not answer"),
    ("permission|denied", "permission is denied"),
)


def describe_database_error(error: Exception) -> str:
    """Return what is wrong with the database, without addresses and secrets."""
    text = str(error).lower()
    found = (description for pattern, description in _DESCRIPTIONS if re.search(pattern, text))
    return next(found, "the database reports an error")
