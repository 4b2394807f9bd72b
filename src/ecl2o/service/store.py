"""The database of streams: SQLite for one process, PostgreSQL for several. Transactions, and what can go wrong with them."""

import contextlib
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy import event, exc

from ecl2o.exceptions import InDoubtError, InvalidRequestError, ServiceError, UnavailableError
from ecl2o.policy.policy_file import flush_folder
from ecl2o.service import queries

_SILENCE_SECONDS = 4.0  # of the database, until an operation fails
_STUCK_SECONDS = 7.0  # until the writer counts as stuck: it may connect again after a failed operation
_POSTGRESQL_SETTINGS = {  # milliseconds; a frozen peer or a silent network must not stop this service, nor this one others
    "lock_timeout": 1000,
    "statement_timeout": 4000,
    "idle_in_transaction_session_timeout": 6000,
}
_CONNECT_ARGUMENTS = {
    "connect_timeout": 2,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
}  # seconds
_CONNECT_ARGUMENTS |= {"tcp_user_timeout": 4000}  # milliseconds
_CONFLICTS = re.compile("40001|40P01|55P03")  # SQLSTATE of a serialization failure, a deadlock, a lock that others hold
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
        self._path = str(parsed.database).removeprefix("file:")
        if self.is_sqlite:
            if parsed.database in (None, "", ":memory:"):
                raise ValueError("A store in memory would lose every step. Name a file: sqlite:///streams.db.")
            self._reader = _make_sqlite_engine(parsed, "BEGIN", writes=False)
            self._writer = _make_sqlite_engine(parsed, "BEGIN IMMEDIATE", writes=True)
        else:
            parsed = parsed.set(drivername="postgresql+psycopg")
            self._reader = _make_postgresql_engine(parsed, pool_size=8)
            self._writer = _make_postgresql_engine(parsed, pool_size=1)
        self.failure: str | None = _NOT_OPENED
        self._writing = False
        self._last_operation = 0.0  # of the writer on the database, on the monotonic clock
        event.listen(self._writer, "before_cursor_execute", self._note_operation)
        self._files: _SqliteFiles | None = None  # while the store is open
        self._opening = threading.Lock()
        self.open()

    def open(self) -> None:
        """Create missing tables, and check that the store can be read and written; set `failure` if not.

        Return after a second if another thread is at it: it may have to wait for the database.
        """
        if not self._opening.acquire(timeout=1.0):
            return
        try:
            if change := self._find_change():
                self._set_failure(change, change)
                return
            if self.failure not in (None, _FULL, *_CHANGES):
                self.close()  # old connections keep the error, or a file that was replaced
            if self.is_sqlite and self.failure == _DAMAGED:
                self._check_integrity()
            if self.is_sqlite:
                self._truncate_log()
            with self._writer.begin() as connection:
                self._create_tables(connection)
                connection.execute(sa.update(queries.store_info).values(probed=time.time()))
            self._check_free_space()
            self._flush_folder()
            self.failure = None
        except exc.SQLAlchemyError as error:
            self._record_failure(error)
        finally:
            if self._files is not None and self.failure not in _CHANGES:
                self._files.note_own_writes()
            elif self.is_sqlite and self.failure is None:
                self._files = _SqliteFiles(self._path)
            self._opening.release()

    def check(self) -> None:
        """Open the store after a failure; else set `failure` if it does not answer or another program changed its files."""
        if self.failure is not None:
            self.open()
        else:
            with contextlib.suppress(ServiceError), self.begin_read() as connection:
                connection.execute(sa.select(queries.store_info.c.version))

    def _find_change(self) -> str | None:
        """Return what another program did to the open files; None after other failures, which a new file may end."""
        if self._files is None or self.failure not in (None, _FULL, *_CHANGES):
            return None
        return self._files.find_change(with_time=True)

    def _check_integrity(self) -> None:
        """Read the whole file: opening it does not reveal damage in the middle."""
        with self._reader.begin() as connection:
            found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
        if found != "ok":
            raise exc.DatabaseError("PRAGMA quick_check", None, RuntimeError(f"malformed: {found}"))

    def _truncate_log(self) -> None:
        """Move the write-ahead log into the file, and start it again; at the start only if no other program uses it.

        On a full disk it cannot grow. After a failed flush, also of an earlier process, it may have frames that are in memory
        only, although all later flushes succeed: recovery after a power loss would end before them.
        """
        name = str(self.url.database)
        try:
            if self.failure == _NOT_OPENED:
                with contextlib.closing(sqlite3.connect(name, timeout=0, uri=name.startswith("file:"))) as connection:
                    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                return
            with contextlib.closing(self._writer.raw_connection()) as connection:
                busy, *_ = connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                if busy:
                    raise sqlite3.OperationalError("the write-ahead log is locked")
        except sqlite3.Error as error:
            if self.failure != _NOT_OPENED or "locked" not in str(error):
                raise exc.OperationalError("PRAGMA wal_checkpoint", None, error) from None

    def _check_free_space(self) -> None:
        """Write more than a step needs, and delete it."""
        with self._writer.begin() as connection:
            connection.execute(sa.delete(queries.space_probe))
            connection.execute(sa.insert(queries.space_probe).values(bytes=os.urandom(_PROBE_BYTES)))
        with self._writer.begin() as connection:
            connection.execute(sa.delete(queries.space_probe))

    def _flush_folder(self) -> None:
        """Flush the names of SQLite's files to disk: SQLite does so too, but goes on if it fails."""
        try:
            if self.is_sqlite:
                flush_folder(Path(self._path).parent)
        except OSError as error:
            raise exc.OperationalError(
                "flush folder", None, sqlite3.OperationalError(f"disk I/O error: {error}")
            ) from None

    def _create_tables(self, connection: sa.Connection) -> None:
        if not self.is_sqlite:  # two services may start at once
            connection.execute(sa.text("SET LOCAL lock_timeout = 3000"))
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(8700)"))
        queries.tables.create_all(connection)
        version = connection.scalar(sa.select(queries.store_info.c.version))
        if version is None:
            connection.execute(sa.insert(queries.store_info).values(version=queries.VERSION, probed=time.time()))
        elif version != queries.VERSION:
            raise exc.InvalidRequestError(f"the store has version {version}, this service {queries.VERSION}")

    @contextlib.contextmanager
    def begin_write(self) -> Iterator[sa.Connection]:
        """Open a transaction that is on disk when the block ends.

        Raises:
            InDoubtError: the commit was not confirmed.
            UnavailableError: the store cannot be used; nothing was changed.
        """
        self._note_operation()
        self._writing = True
        try:
            if self.failure is not None:
                self.open()
                self._check_usable()
            files = self._files
            with self._translate_errors(), self._writer.connect() as connection, connection.begin() as transaction:
                yield connection
                self._check_files(files, with_time=True)
                self._note_operation()
                try:
                    transaction.commit()
                except exc.DBAPIError as error:
                    if _is_conflict(error):
                        raise
                    self._record_failure(error)
                    self._check_usable(InDoubtError)
            self._check_files(files, InDoubtError)
            if files is not None:
                files.note_own_writes()
        finally:
            self._writing = False

    @contextlib.contextmanager
    def begin_read(self) -> Iterator[sa.Connection]:
        """Open a transaction with a consistent view; raise `UnavailableError` if the store cannot be used."""
        if self.is_sqlite and self.is_stuck:  # on a disk that hangs, a thread would wait for ever
            raise make_error(SILENT)
        if self.failure not in (None, *_READABLE):  # the store may never have been opened
            self.open()
        if self.failure in _CHANGES:
            self._check_usable()
        self._check_files(self._files if self.failure is None else None)
        with self._translate_errors(), self._reader.begin() as connection:
            yield connection

    @property
    def is_stuck(self) -> bool:
        """Whether the writer waits for the database for longer than all limits allow, such as on a disk that hangs."""
        return self._writing and time.monotonic() - self._last_operation > _STUCK_SECONDS

    def _note_operation(self, *_: Any) -> None:
        self._last_operation = time.monotonic()

    def _check_files(
        self, files: "_SqliteFiles | None", kind: type[UnavailableError] = UnavailableError, with_time: bool = False
    ) -> None:
        """Raise an error of this kind if another program changed these files."""
        if files is not None and (change := files.find_change(with_time)):
            self._set_failure(change, change)
            self._check_usable(kind)

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
        except exc.DataError:  # such as PostgreSQL on text with a NUL: the request is at fault
            raise InvalidRequestError("The database does not accept such a value.") from None
        except (exc.DBAPIError, exc.TimeoutError) as error:
            if _is_conflict(error):
                raise
            self._record_failure(error)
            self._check_usable()

    def _record_failure(self, error: exc.SQLAlchemyError) -> None:
        failure, folder = describe_database_error(error), Path(self._path).parent
        if failure == _CANNOT_OPEN and folder.is_dir() and not os.access(folder, os.W_OK):
            failure = _READ_ONLY  # SQLite only says that the file cannot be opened
        self._set_failure(failure, error)

    def _set_failure(self, failure: str, cause: object) -> None:
        if failure != self.failure:  # log it once, not at each attempt
            _log.error("the store cannot be used: %s", cause)
        self.failure = failure

    def _check_usable(self, kind: type[UnavailableError] = UnavailableError) -> None:
        if self.failure is not None:
            raise make_error(self.failure, kind)

    def close(self) -> None:
        """Close all connections."""
        self._files = None
        self._writer.dispose()
        self._reader.dispose()


class _SqliteFiles:
    """The database file and its write-ahead log, which this process has open.

    SQLite does not notice when another program deletes, replaces, truncates or overwrites them. Only checkpoints write to the
    database file, and the log never shrinks, so that stat tells.
    """

    def __init__(self, path: str):
        self._paths = (path, f"{path}-wal")
        self._before = [_stat(path) for path in self._paths]

    def find_change(self, with_time: bool) -> str | None:
        """Return what another program did since the last own write; the time tells only while the writer does not commit."""
        for before, path in zip(self._before, self._paths, strict=True):
            if before is None:
                continue
            now = _stat(path)
            if now is None or not os.path.samestat(before, now):
                return _REPLACED
            is_written = with_time and path == self._paths[0] and before.st_mtime_ns != now.st_mtime_ns
            if is_written or now.st_size < before.st_size:
                return _OVERWRITTEN
        return None

    def note_own_writes(self) -> None:
        """Expect the sizes and times of now."""
        if self.find_change(with_time=False) != _REPLACED:
            self._before = [_stat(path) for path in self._paths]


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _make_sqlite_engine(url: sa.URL, begin: str, writes: bool) -> sa.Engine:
    """Return an engine whose transactions begin with this statement and are flushed to disk at their commit."""
    engine = sa.create_engine(url, connect_args={"timeout": _SILENCE_SECONDS, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def configure(connection, _record):
        connection.isolation_level = None  # the driver starts no transactions of its own
        try:
            if connection.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
                raise sqlite3.OperationalError("unable to open the write-ahead log")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA foreign_keys=ON")
        except sqlite3.Error as error:
            if writes:  # of a damaged or read-only store, some can be read
                raise exc.OperationalError("PRAGMA", None, error) from None

    @event.listens_for(engine, "begin")
    def start(connection):
        connection.exec_driver_sql(begin)

    return engine


class _Connection(psycopg.Connection[Any]):
    """A connection that fails when the server is silent: the system of a frozen server still acknowledges packets."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        if args or options:  # waits for notifications
            return super().wait(gen, *args, **options)
        try:
            return super().wait(_limit_silence(gen))
        except TimeoutError as error:
            self.pgconn.finish()
            raise psycopg.OperationalError(str(error)) from None


def _limit_silence(operation: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Pass on what psycopg waits for, and the sockets that became ready; raise `TimeoutError` after long silence."""
    last = time.monotonic()
    try:
        wanted = next(operation)
        while True:
            ready = yield wanted
            if ready:
                last = time.monotonic()
            elif time.monotonic() - last > _SILENCE_SECONDS:
                raise TimeoutError("the connection is silent")
            wanted = operation.send(ready)
    except StopIteration as done:
        return done.value


def _make_postgresql_engine(url: sa.URL, pool_size: int) -> sa.Engine:
    """Return an engine whose operations all end, also when the server or the network is silent."""
    limits = {"pool_size": pool_size, "pool_timeout": _SILENCE_SECONDS, "connect_args": _CONNECT_ARGUMENTS}
    engine = sa.create_engine(url, pool_pre_ping=True, **limits)

    @event.listens_for(engine, "do_connect")
    def connect(_dialect, _record, arguments, options):
        return _Connection.connect(*arguments, **options)

    @event.listens_for(engine, "connect")
    def configure(connection, _record):
        connection.autocommit = True
        for name, value in _POSTGRESQL_SETTINGS.items():
            connection.execute(f"SET {name} = {value}")
        connection.autocommit = False

    return engine


def _is_conflict(error: Exception) -> bool:
    """Return whether two writers are in each other's way: the transaction was rolled back, and may be tried again."""
    sqlstate = getattr(getattr(error, "orig", None), "sqlstate", None) or ""
    return isinstance(error, exc.IntegrityError) or _CONFLICTS.fullmatch(sqlstate) is not None


SILENT = "the database does not answer"
_NOT_OPENED = "it is not open yet"
_FULL = "the disk is full"
_DAMAGED = "the database file is damaged; restore it from a backup"
_READ_ONLY = "it is read-only"
_CANNOT_OPEN = "its file cannot be opened"
_REPLACED = (
    "another program deleted or replaced its file or its write-ahead log; restart the service to use the files that are there "
    "now, or put the old ones back"
)
_OVERWRITTEN = (
    "another program truncated or wrote to its file or its write-ahead log; stop the service, restore a backup and "
    "start it"
)
_CHANGES = (_REPLACED, _OVERWRITTEN)
_READABLE = (_FULL, _DAMAGED, _READ_ONLY, SILENT)  # failures that a read need not try to end
_OUTCOMES = {
    UnavailableError: "Nothing was changed. Try again later.",
    InDoubtError: "The change may have been made. Send the request again, with its step number.",
}
_DESCRIPTIONS = (
    ("disk is full|no space left|disk full|could not extend", _FULL),
    ("readonly|read-only", _READ_ONLY),
    ("malformed|not a database|corrupt|invalid page", _DAMAGED),
    ("unable to open", _CANNOT_OPEN),
    ("locked|lock timeout", "another program holds its lock"),
    ("disk i/o error", "the disk reports an error"),
    ("the store has version", "it was made by another version of ecl2o"),
    ("connection|connect|server closed|terminating|statement timeout", SILENT),
    ("permission|denied", "permission is denied"),
)


def make_error(failure: str, kind: type[UnavailableError] = UnavailableError) -> UnavailableError:
    """Return an error that says why the store cannot be used, and whether something was changed."""
    return kind(f"The store cannot be used: {failure}. {_OUTCOMES[kind]}")


def describe_database_error(error: Exception) -> str:
    """Return what is wrong with the database, without addresses and secrets."""
    text = str(getattr(error, "orig", None) or error).lower()  # without the statement
    found = (description for pattern, description in _DESCRIPTIONS if re.search(pattern, text))
    return next(found, "the database reports an error")
