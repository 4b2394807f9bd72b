"""The tables of the store and every statement on them.

Steps are only appended. A stream's row holds the state after its last step.
"""

import functools
import hashlib
import json
import operator
import time
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from ecl2o.exceptions import ConflictError, InvalidRequestError, UnavailableError
from ecl2o.service.models import StepRecord, StepResult, StreamRecord, encode_json

VERSION = 9  # of the tables and of the layout of a state's bytes


def _encode_numbers(numbers: list[float | None]) -> str:
    """Return finite numbers as JSON, in a fifth of the time of `encode_json`."""
    return f"[{','.join('null' if number is None else float.__repr__(float(number)) for number in numbers)}]"


_SQL_TYPES: dict[Any, type[sa.types.TypeEngine]] = {int: sa.Integer, float: sa.Double, bool: sa.Boolean}
_STEP_TYPES = typing.get_type_hints(StepRecord)
_LISTS = {  # JSON text in the table
    name: _encode_numbers
    if float in {*typing.get_args(kind), *typing.get_args(typing.get_args(kind)[0])}
    else encode_json
    for name, kind in _STEP_TYPES.items()
    if typing.get_origin(kind) is list
}
_COUNTED: dict[str, Callable[[StepRecord], bool]] = {  # steps of a stream, by column
    "screened_steps": lambda record: record.screened,
    "stuck_steps": lambda record: bool(record.stuck),
}


def _step_column(name: str, kind: Any) -> sa.Column:
    """Return the column of a field of `StepRecord`."""
    optional = typing.get_origin(kind) is types.UnionType
    sql_type = _SQL_TYPES.get(typing.get_args(kind)[0] if optional else kind, sa.Text)
    return sa.Column(name, sql_type, nullable=optional, primary_key=name == "step", autoincrement=False)


tables = sa.MetaData()

store_info = sa.Table(
    "ecl2o_store", tables, sa.Column("version", sa.Integer, primary_key=True), sa.Column("probed", sa.Double)
)
space_probe = sa.Table(  # empty except while the store checks for free space
    "ecl2o_space_probe", tables, sa.Column("key", sa.Integer, primary_key=True), sa.Column("bytes", sa.LargeBinary)
)
policies = sa.Table(
    "policies",
    tables,
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("file", sa.LargeBinary, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
)
streams = sa.Table(
    "streams",
    tables,
    sa.Column("key", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(128), nullable=False, unique=True),
    sa.Column("policy", sa.String(128), sa.ForeignKey("policies.name"), nullable=False),
    sa.Column("fingerprint", sa.String(64), nullable=False),  # of the policy
    sa.Column("x0", sa.Text, nullable=False),
    sa.Column("history", sa.Integer, nullable=False),
    sa.Column("request_hash", sa.String(64), nullable=False),  # recognises a repeated request for creation
    sa.Column("given", sa.String(8), nullable=False),  # "x" if the request had an x0, "h" if it had a history
    sa.Column("start", sa.Text),  # time of the first step
    sa.Column("last_time", sa.Text),  # time of the last step
    sa.Column("notice", sa.Text),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("updated", sa.Double, nullable=False),  # time of the last step, or of creation
    sa.Column("steps", sa.Integer, nullable=False),
    *(sa.Column(name, sa.Integer, nullable=False) for name in _COUNTED),
    sa.Column("state", sa.LargeBinary, nullable=False),
    sa.Column("state_hash", sa.LargeBinary, nullable=False),  # of `hash_state`: identifies a cached state
    sa.Column("last", sa.Text),  # the last `StepRecord` as JSON
    sa.Column("live_ratio", sa.Double),
    sa.Column("promise_left", sa.Double),
    sa.Column("promise_spent", sa.Double),
    sa.Index("streams_policy_history", "policy", "history"),
    sqlite_autoincrement=True,
)
steps = sa.Table(
    "steps",
    tables,
    sa.Column("stream", sa.Integer, sa.ForeignKey("streams.key", ondelete="CASCADE"), primary_key=True),
    *(_step_column(name, kind) for name, kind in _STEP_TYPES.items()),
    sqlite_with_rowid=False,
)

_VALUES_PER_QUERY = 500
_MAX_HISTORY_LENGTHS = 16  # per policy; each length is a compilation


class StreamPosition(NamedTuple):
    """What the executor needs to know of a stream before a step."""

    key: int
    id: str
    policy: str
    fingerprint: str
    history: int
    steps: int
    updated: float
    state_hash: bytes
    given: str
    start: str | None
    last_time: str | None
    x0: str


class StoredStream(NamedTuple):
    """A stream with its key and the hash of the request that created it."""

    key: int
    request_hash: str
    record: StreamRecord


_POSITION = [streams.c[name] for name in StreamPosition._fields]
_STEP = [steps.c[name] for name in _STEP_TYPES]
_APPEND_STEP = sa.insert(steps).values({column.name: sa.bindparam(column.name) for column in steps.c})
_WATCHED = ("live_ratio", "promise_left", "promise_spent")  # of the last step, for `summarize_streams`
_ADVANCE_STREAM = (
    sa.update(streams)
    .where(streams.c.key == sa.bindparam("stream_key"), streams.c.state_hash == sa.bindparam("hash_before"))
    .where(streams.c.steps == sa.bindparam("steps_before"))
    .values(
        {
            name: sa.bindparam(name)
            for name in ("steps", "state", "state_hash", "updated", "last", "start", "last_time", *_WATCHED)
        }
    )
    .values({name: streams.c[name] + sa.bindparam(f"{name}_now", type_=sa.Integer) for name in _COUNTED})
)


def _execute_many(connection: sa.Connection, statement: sa.Executable, rows: list[dict[str, Any]]) -> sa.CursorResult:
    """Execute a statement for each row, without SQLAlchemy's conversions: numbers, text and bytes need none."""
    text, get_values = _compile(statement, connection.dialect)
    return connection.exec_driver_sql(text, rows if get_values is None else list(map(get_values, rows)))


@functools.lru_cache(maxsize=8)
def _compile(statement: Any, dialect: sa.Dialect) -> tuple[str, Callable[[dict[str, Any]], Any] | None]:
    """Return a statement's text, and a function that orders a row's values if the parameters are positional."""
    compiled = statement.compile(dialect=dialect)
    return str(compiled), compiled.positiontup and operator.itemgetter(*compiled.positiontup)


def _select_where(columns: list[sa.Column], key: sa.Column) -> sa.Select:
    """Return a query for the rows whose key is one of `values`, in the order of the key."""
    return sa.select(*columns).where(key.in_(sa.bindparam("values", expanding=True))).order_by(key)


_SELECT_IDS = _select_where([streams.c.id], streams.c.id)
_SELECT_STATES = _select_where([streams.c.key, streams.c.state], streams.c.key)
_LOCK_STREAMS = _select_where(_POSITION, streams.c.id).with_for_update(skip_locked=True)
_SELECT_RESULTS = (
    sa.select(streams.c.id, streams.c.policy, *_STEP)
    .join(steps, steps.c.stream == streams.c.key)
    .where(sa.tuple_(steps.c.stream, steps.c.step).in_(sa.bindparam("values", expanding=True)))
    .order_by(steps.c.stream, steps.c.step)
)


def _execute_in_parts(connection: sa.Connection, query: sa.Select, values: list) -> Iterator[sa.Row]:
    """Execute a query with a list of `values`, some of them at a time."""
    for start in range(0, len(values), _VALUES_PER_QUERY):
        yield from connection.execute(query, {"values": values[start : start + _VALUES_PER_QUERY]})


# Steps


def lock_streams(connection: sa.Connection, ids: Iterable[str]) -> tuple[dict[str, StreamPosition], set[str]]:
    """Lock the rows of streams until the transaction ends; return their positions, and the ids that others have locked.

    It does not wait for the others: one of them may be frozen.
    """
    wanted = sorted(ids)
    rows = _execute_in_parts(connection, _LOCK_STREAMS, wanted)
    positions = {position.id: position for position in (StreamPosition(*row) for row in rows)}
    others = [stream for stream in wanted if stream not in positions]
    return positions, {row.id for row in _execute_in_parts(connection, _SELECT_IDS, others)}


def load_states(connection: sa.Connection, keys: list[int]) -> dict[int, bytes]:
    """Return the states of locked streams by key."""
    rows = _execute_in_parts(connection, _SELECT_STATES, keys)
    return {key: bytes(state) for key, state in rows}


def hash_state(state: bytes) -> bytes:
    """Return the hash of a state's bytes; a cached state is valid while the stored hash is equal."""
    return hashlib.blake2b(state, digest_size=16).digest()


def append_steps(connection: sa.Connection, made: list[tuple[StreamPosition, StepRecord, str, bytes]]) -> None:
    """Append steps and advance their streams, which are locked.

    A step is given as the stream's position before it, its record, its record as JSON, and the state after it.
    """
    rows, advances = [], []
    for position, record, text, state in made:
        lists = {name: encode(getattr(record, name)) for name, encode in _LISTS.items()}
        rows.append({**vars(record), **lists, "stream": position.key})
        before = {"stream_key": position.key, "steps_before": position.steps, "hash_before": position.state_hash}
        after = {"steps": record.step, "state": state, "state_hash": hash_state(state), "updated": record.at}
        after |= {"start": position.start or record.time, "last_time": record.time}
        figures = {name: getattr(record, name) for name in _WATCHED}
        counts = {f"{name}_now": int(counts_step(record)) for name, counts_step in _COUNTED.items()}
        advances.append({**before, **after, **figures, **counts, "last": text})
    _execute_many(connection, _APPEND_STEP, rows)
    changed = _execute_many(connection, _ADVANCE_STREAM, advances)
    if changed.rowcount not in (-1, len(advances)):
        raise IntegrityError("a stream has advanced", None, RuntimeError("conflict"))


def load_steps(connection: sa.Connection, key: int, after: int, limit: int) -> list[StepRecord]:
    """Return up to `limit` steps of a stream with numbers above `after`, in order."""
    query = sa.select(*_STEP).where(steps.c.stream == key, steps.c.step > after).order_by(steps.c.step).limit(limit)
    return [_read_step(row) for row in connection.execute(query)]


def _read_step(row: Sequence[Any]) -> StepRecord:
    fields = dict(zip(_STEP_TYPES, row, strict=True))
    return StepRecord(**fields | {name: json.loads(fields[name]) for name in _LISTS})


def load_results(connection: sa.Connection, written: list[tuple[int, int]]) -> list[StepResult]:
    """Return steps, given by the stream's key and the number, as they were answered; without those of deleted streams."""
    rows = map(tuple, _execute_in_parts(connection, _SELECT_RESULTS, written))
    return [StepResult(stream, policy, _read_step(step).to_json()) for stream, policy, *step in rows]


def load_last_answer(connection: sa.Connection, key: int) -> str:
    """Return the last step of a stream as JSON."""
    return connection.execute(sa.select(streams.c.last).where(streams.c.key == key)).scalar_one()


# Streams

_STREAM_COLUMNS = (
    "key",
    "request_hash",
    "id",
    "policy",
    "x0",
    "history",
    "created",
    "steps",
    *_COUNTED,
    "last",
    "start",
    "notice",
)
_STREAM = [streams.c[name] for name in _STREAM_COLUMNS]


def _read_stream(row: sa.Row) -> StoredStream:
    key, request_hash, stream_id, policy, x0, history, created, steps, screened, stuck, text, began, notice = row
    first, last = json.loads(x0), text and StepRecord(**json.loads(text))
    start, action = (stream_id, policy, first, history, created), last.action if last else first
    record = StreamRecord(*start, steps, screened, stuck, action, last, began, notice)
    return StoredStream(key, request_hash, record)


def find_stream(connection: sa.Connection, stream_id: str) -> StoredStream | None:
    """Return a stream, or None if it does not exist."""
    row = connection.execute(sa.select(*_STREAM).where(streams.c.id == stream_id)).first()
    return None if row is None else _read_stream(row)


def list_streams(connection: sa.Connection, after: str, limit: int) -> list[StreamRecord]:
    """Return up to `limit` streams with ids above `after`, in order."""
    query = sa.select(*_STREAM).where(streams.c.id > after).order_by(streams.c.id).limit(limit)
    return [_read_stream(row).record for row in connection.execute(query)]


def add_stream(
    connection: sa.Connection, stream: StreamRecord, fingerprint: str, request_hash: str, state: bytes, given: str
) -> None:
    """Insert a stream without steps, of the policy with this fingerprint; `given`: whether x0 or history were ("xh").

    Raises:
        InvalidRequestError: the streams of its policy have other history lengths, as many as are allowed.
        UnavailableError: its policy is no longer in the store, which was restored.
    """
    if find_fingerprint(connection, stream.policy) != fingerprint:
        raise UnavailableError(f"The policy {stream.policy!r} has just changed. Nothing was changed. Try again.")
    _check_history_length(connection, stream.policy, stream.history)
    row = {"id": stream.id, "policy": stream.policy, "x0": encode_json(stream.x0), "history": stream.history}
    row |= {"fingerprint": fingerprint, "given": given, "start": stream.start, "notice": stream.notice}
    start = {
        "steps": 0,
        **dict.fromkeys(_COUNTED, 0),
        "state": state,
        "state_hash": hash_state(state),
        "request_hash": request_hash,
    }
    times = {"created": stream.created, "updated": stream.created}
    connection.execute(sa.insert(streams).values(**row, **start, **times))


def _check_history_length(connection: sa.Connection, policy: str, history: int) -> None:
    of_policy = streams.c.policy == policy
    if connection.scalar(sa.select(streams.c.key).where(of_policy, streams.c.history == history).limit(1)) is not None:
        return
    lock = sa.select(policies.c.name).where(policies.c.name == policy).with_for_update(key_share=True, nowait=True)
    connection.execute(lock)  # two services must not both add the last length
    lengths = sorted(connection.scalars(sa.select(streams.c.history).where(of_policy).distinct()))
    if history not in lengths and len(lengths) >= _MAX_HISTORY_LENGTHS:
        known = ", ".join(map(str, lengths))
        raise InvalidRequestError(
            f"Streams of {policy!r} may have {_MAX_HISTORY_LENGTHS} different history lengths, got another one: {history}. "
            f"Use one of {known}."
        )


def restart_stream(connection: sa.Connection, key: int, x0: list[float], notice: str | None) -> None:
    """Store where a locked stream starts, once its first step's time is known; its state is written with that step."""
    change = {"x0": encode_json(x0), "notice": notice}
    connection.execute(sa.update(streams).where(streams.c.key == key).values(**change))


def remove_stream(connection: sa.Connection, stream_id: str) -> bool:
    """Delete a stream and, by the foreign key, its steps; return whether it existed."""
    connection.execute(sa.select(streams.c.key).where(streams.c.id == stream_id).with_for_update(nowait=True))
    return connection.execute(sa.delete(streams).where(streams.c.id == stream_id)).rowcount > 0


def load_latest_time(connection: sa.Connection) -> float | None:
    """Return the time of the last write; None in an empty store."""
    return connection.scalar(sa.select(sa.func.max(streams.c.updated)))


# Policies


def list_policy_names(connection: sa.Connection) -> list[str]:
    """Return the names of all policies, in order."""
    return list(connection.scalars(sa.select(policies.c.name).order_by(policies.c.name)))


def find_fingerprint(connection: sa.Connection, name: str) -> str | None:
    """Return the SHA-256 of a policy's file at its upload; None if there is no such policy."""
    return connection.scalar(sa.select(policies.c.fingerprint).where(policies.c.name == name))


def load_policy_file(connection: sa.Connection, name: str) -> tuple[str, bytes] | None:
    """Return the SHA-256 of a policy's file at its upload, and the stored file."""
    row = connection.execute(sa.select(policies.c.fingerprint, policies.c.file).where(policies.c.name == name)).first()
    return None if row is None else (row[0], bytes(row[1]))


def store_policy_file(connection: sa.Connection, name: str, file: bytes) -> bool:
    """Store a policy under a new name and return True; store it again to replace a damaged copy.

    Raises:
        ConflictError: the name belongs to another file.
    """
    stored, fingerprint = load_policy_file(connection, name), hashlib.sha256(file).hexdigest()
    if stored is None:
        row = {"name": name, "fingerprint": fingerprint, "file": file, "created": time.time()}
        connection.execute(sa.insert(policies).values(row))
    elif stored[0] != fingerprint:
        raise ConflictError(f"{name!r} is the name of another policy, which streams may use. Choose another name.")
    elif stored[1] != file:
        connection.execute(sa.update(policies).where(policies.c.name == name).values(file=file))
    return stored is None


def list_history_lengths(connection: sa.Connection) -> list[tuple[str, int]]:
    """Return the pairs (policy, history length) that occur among the streams."""
    return [tuple(row) for row in connection.execute(sa.select(streams.c.policy, streams.c.history).distinct())]


def summarize_streams(connection: sa.Connection) -> list[tuple[Any, ...]]:
    """Return for each policy: streams, steps, highest live ratio, least left and largest spent share of a promise."""
    highest, least = sa.func.max(streams.c.live_ratio), sa.func.min(streams.c.promise_left)
    counts = streams.c.policy, sa.func.count(), sa.func.sum(streams.c.steps)
    query = sa.select(*counts, highest, least, sa.func.max(streams.c.promise_spent))
    return [tuple(row) for row in connection.execute(query.group_by(streams.c.policy))]
