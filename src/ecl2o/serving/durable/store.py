"""Where streams live: SQLite for one process, PostgreSQL for several. Opening it, and what may be wrong with it."""

import contextlib
import logging
import re
import threading
import time
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy import event, exc

from ecl2o.serving.durable import schema
from ecl2o.serving.durable.refused import Refused

_BUSY_SECONDS = 30
_log = logging.getLogger("ecl2o.serve")


class Store:
    """A database of streams. For several threads; a store that cannot be used says why in `trouble` and is tried again.

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
        self._opening = threading.Lock()
        self.open()

    def open(self) -> None:
        """Make the tables unless they are there, and see whether the store can be read and written."""
        with self._opening:
            if self.trouble is not None:  # connections remember what was wrong
                self.close()
            try:
                with self._writer.begin() as connection:
                    self._make_tables(connection)
                    connection.execute(sa.update(schema.about).values(probed=time.time()))
                self.trouble = None
            except exc.SQLAlchemyError as error:
                self._note(error)

    def _make_tables(self, connection: sa.Connection) -> None:
        if not self.is_sqlite:  # two services may start at once
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(8700)"))
        schema.tables.create_all(connection)
        version = connection.scalar(sa.select(schema.about.c.version))
        if version is None:
            connection.execute(sa.insert(schema.about).values(version=schema.VERSION, probed=time.time()))
        elif version != schema.VERSION:
            raise exc.InvalidRequestError(f"the store has version {version}, this service {schema.VERSION}")

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
    def _told(self) -> Iterator[None]:
        """The database's errors as refusals. A conflict between two writers is left for the caller to try again."""
        try:
            yield
        except exc.IntegrityError:
            raise
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
        self.trouble = _in_words(error)

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


def _is_conflict(error: exc.DBAPIError) -> bool:
    """Two services in each other's way: PostgreSQL's deadlocks and serialization failures."""
    return getattr(error.orig, "sqlstate", None) in ("40001", "40P01")


# What databases say, for people; nothing of the machine is repeated.
_WORDS = (
    ("disk is full|no space left|disk full|could not extend", "the disk is full"),
    ("readonly|read-only", "it is read-only"),
    ("malformed|not a database|corrupt", "the database file is damaged; restore it from a backup"),
    ("unable to open", "its file cannot be opened"),
    ("locked", "another program holds its lock"),
    ("disk i/o error", "the disk reports an error"),
    ("the store has version", "it was made by another version of ecl2o"),
    ("connection|connect|server closed|terminating", "the database does not answer"),
    ("permission|denied", "permission is denied"),
)


def _in_words(error: Exception) -> str:
    text = str(error).lower()
    return next((words for pattern, words in _WORDS if re.search(pattern, text)), "the database reports an error")
