"""Where streams live: SQLite for one process, PostgreSQL for several. Opening it, and what may be wrong with it."""

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

from ecl2o.service import queries
from ecl2o.service.refused import Refused

_BUSY_SECONDS = 30
_ROOM = 1 << 18  # bytes that must fit before a store counts as usable: a probe of a few bytes fits on a full disk
_log = logging.getLogger("ecl2o.serve")


class Store:
    """A database of streams. For several threads; a store that cannot be used says why in `trouble` and is tried again.

    `openings` counts how often it became usable: what was known of it before may no longer be so, as after a restore.

    Args:
        url: as SQLAlchemy has it, "sqlite:///streams.db" or "postgresql+psycopg://user@host/database".
    """

    def __init__(self, url: str):
        try:
            parsed = sa.make_url(url)
        except exc.ArgumentError:
            raise ValueError(f"{url!r:.80} is not the address of a store; see `ecl2o serve --help`.") from None
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise ValueError(f"a store is sqlite or postgresql, got {parsed.get_backend_name()}.")
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self.url = parsed
        if self.is_sqlite:
            if parsed.database in (None, "", ":memory:"):
                raise ValueError("a store in memory would lose every step; name a file: sqlite:///streams.db.")
            self._reader = _sqlite(parsed, "BEGIN")
            self._writer = _sqlite(parsed, "BEGIN IMMEDIATE")
        else:
            parsed = parsed.set(drivername="postgresql+psycopg")
            self._reader = self._writer = sa.create_engine(
                parsed, pool_pre_ping=True, pool_size=8, connect_args={"connect_timeout": 5}
            )
        self.trouble: str | None = "not opened yet"
        self.openings = 0
        self._opening = threading.Lock()
        self.open()

    def open(self) -> None:
        """Make the tables unless they are there, and see whether the store can be read and written."""
        with self._opening:
            if self.trouble not in (None, _FULL):  # connections remember what was wrong, or a file that was replaced
                self.close()
            try:
                if self.is_sqlite and self.trouble == _DAMAGED:
                    self._check_sound()
                if self.is_sqlite and self.trouble == _FULL:
                    self._empty_log()
                with self._writer.begin() as connection:
                    self._make_tables(connection)
                    connection.execute(sa.update(queries.about).values(probed=time.time()))
                self._find_room()
                self.openings += self.trouble is not None
                self.trouble = None
            except exc.SQLAlchemyError as error:
                self._note(error)

    def _check_sound(self) -> None:
        """Read the whole file: damage in the middle of it is not seen by opening it."""
        with self._reader.begin() as connection:
            found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if found != "ok":
            raise exc.DatabaseError("PRAGMA quick_check", None, RuntimeError(f"malformed: {found}"))

    def _empty_log(self) -> None:
        """Move the write-ahead log into the file, as far as there is room: a log that cannot grow is used from its beginning."""
        connection = self._writer.raw_connection()
        try:
            connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise exc.OperationalError("PRAGMA wal_checkpoint", None, error) from None
        finally:
            connection.close()

    def _find_room(self) -> None:
        """Write some more than a step needs, and remove it."""
        with self._writer.begin() as connection:
            connection.execute(sa.delete(queries.room))
            connection.execute(sa.insert(queries.room).values(bytes=os.urandom(_ROOM)))
        with self._writer.begin() as connection:
            connection.execute(sa.delete(queries.room))

    def _make_tables(self, connection: sa.Connection) -> None:
        if not self.is_sqlite:  # two services may start at once
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(8700)"))
        queries.tables.create_all(connection)
        version = connection.scalar(sa.select(queries.about.c.version))
        if version is None:
            connection.execute(sa.insert(queries.about).values(version=queries.VERSION, probed=time.time()))
        elif version != queries.VERSION:
            raise exc.InvalidRequestError(f"the store has version {version}, this service {queries.VERSION}")
        _add_new_columns(connection)

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction that is on disk when this ends."""
        if self.trouble is not None:
            self.open()
        self._refuse_in_trouble()
        with self._told(), self._writer.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A consistent view."""
        with self._told(), self._reader.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def listening(self, channel: str) -> Iterator[Callable[[float], Iterator[str]]]:
        """A function that waits for so many seconds and gives the notices of this channel, of PostgreSQL."""
        with self._reader.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"LISTEN {channel}")
            driver: Any = connection.connection.driver_connection

            def notices(seconds: float) -> Iterator[str]:
                try:
                    for notice in driver.notifies(timeout=seconds):
                        yield notice.payload
                except driver.OperationalError as error:
                    raise exc.OperationalError("LISTEN", None, error) from None

            try:
                yield notices
            finally:
                connection.invalidate()  # it still listens

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """The database's errors as refusals. A conflict between two writers is left for the caller to try again."""
        try:
            yield
        except exc.IntegrityError:
            raise
        except exc.DataError:  # as PostgreSQL of a text with a zero in it: the question is at fault, not the store
            raise Refused(422, "the database does not take such a value.") from None
        except exc.DBAPIError as error:
            if _is_conflict(error):
                raise
            self._note(error)
            self._refuse_in_trouble()
        except exc.TimeoutError as error:
            self._note(error)
            self._refuse_in_trouble()

    def _note(self, error: exc.SQLAlchemyError) -> None:
        _log.error("the store cannot be used: %s", error)
        self.trouble = in_words(error)
        if self.trouble == _CLOSED and self.is_sqlite and self._is_read_only():
            self.trouble = _READ_ONLY

    def _is_read_only(self) -> bool:
        """Whether the file's folder is there and cannot be written; SQLite only says that the file cannot be opened."""
        folder = Path(str(self.url.database).removeprefix("file:")).parent
        return folder.is_dir() and not os.access(folder, os.W_OK)

    def _refuse_in_trouble(self) -> None:
        if self.trouble is not None:
            raise Refused(503, f"the store cannot be used: {self.trouble}. Nothing was changed; try again later.")

    def close(self) -> None:
        """Give the connections back."""
        self._writer.dispose()
        self._reader.dispose()


def _sqlite(url: sa.URL, begin: str) -> sa.Engine:
    """An engine whose transactions begin with this statement, and are flushed to the disk when they end."""
    engine = sa.create_engine(url, connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def configure(connection, _record):
        connection.isolation_level = None  # the driver begins nothing by itself
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            with contextlib.suppress(
                Exception
            ):  # a store that is damaged or read-only says so at its first transaction
                connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def start(connection):
        connection.exec_driver_sql(begin)

    return engine


def _add_new_columns(connection: sa.Connection) -> None:
    """Columns of steps that the store is too old to have. They may be null, so that an older service can go on writing."""
    known = {column["name"] for column in sa.inspect(connection).get_columns(queries.steps.name)}
    for column in queries.steps.c:
        if column.name not in known:
            kind = column.type.compile(connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {queries.steps.name} ADD COLUMN {column.name} {kind}")


def _is_conflict(error: exc.DBAPIError) -> bool:
    """Two services in each other's way: PostgreSQL's deadlocks and serialization failures."""
    return getattr(error.orig, "sqlstate", None) in ("40001", "40P01")


# What databases say, for people; nothing of the machine is repeated.
_FULL = "the disk is full"
_DAMAGED = "the database file is damaged; restore it from a backup"
_READ_ONLY = "it is read-only"
_CLOSED = "its file cannot be opened"
_WORDS = (
    ("disk is full|no space left|disk full|could not extend", _FULL),
    ("readonly|read-only", _READ_ONLY),
    ("malformed|not a database|corrupt|invalid page", _DAMAGED),
    ("unable to open", _CLOSED),
    ("locked", "another program holds its lock"),
    ("disk i/o error", "the disk reports an error"),
    ("the store has version", "it was made by another version of ecl2o"),
    ("connection|connect|server closed|terminating", "the database does not answer"),
    ("permission|denied", "permission is denied"),
)


def in_words(error: Exception) -> str:
    """What is wrong with the database, without addresses or secrets."""
    text = str(error).lower()
    return next((words for pattern, words in _WORDS if re.search(pattern, text)), "the database reports an error")
