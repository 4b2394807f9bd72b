"""The tables of a store. Steps are only ever appended; a stream's row holds the state that follows from its last one.

What is read from the tables and written to them, one function for each question. Nothing is decided here.
"""

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

VERSION = 3  # of these tables, and of how a state is laid out in its bytes

tables = sa.MetaData()

about = sa.Table(
    "ecl2o_store", tables, sa.Column("version", sa.Integer, primary_key=True), sa.Column("probed", sa.Double)
)

room = sa.Table(
    "ecl2o_room", tables, sa.Column("key", sa.Integer, primary_key=True), sa.Column("bytes", sa.LargeBinary)
)  # empty but for the moment in which it is seen whether there is room

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
    sa.Column("name", sa.String(128), nullable=False, unique=True),
    sa.Column("policy", sa.String(128), sa.ForeignKey("policies.name"), nullable=False, index=True),
    sa.Column("x0", sa.Text, nullable=False),
    sa.Column("asked", sa.String(64), nullable=False),  # hash of the request that made it; compared if it comes again
    sa.Column("seen", sa.Integer, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("steps", sa.Integer, nullable=False),
    sa.Column("state", sa.LargeBinary, nullable=False),
    sa.Column("touched", sa.Double, nullable=False),  # the time of its last step, or of its making
    sa.Column("last", sa.Text),  # the last step as JSON, with its context and its time
    sa.Column("live_ratio", sa.Double),
    sa.Column("promise_left", sa.Double),
    sqlite_autoincrement=True,  # a key is never used again, so that what is remembered of a deleted stream fits no new one
)

steps = sa.Table(
    "steps",
    tables,
    sa.Column("stream", sa.Integer, sa.ForeignKey("streams.key", ondelete="CASCADE"), primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False),  # seconds since 1970; steps are ordered by their number, never by this
    sa.Column("context", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("hitting", sa.Double, nullable=False),
    sa.Column("switching", sa.Double, nullable=False),
    sa.Column("cost", sa.Double, nullable=False),
    sa.Column("optimum", sa.Double),
    sa.Column("expert", sa.Double),
    sa.Column("live_ratio", sa.Double),
    sa.Column("promise_left", sa.Double),
    sa.Column("guard_active", sa.Boolean),
    sa.Column("used", sa.Text),  # the context that stood in for one that was not believed
    sa.Column("unconverged", sa.Boolean),  # null in steps of older services, which did not write it
    sqlite_with_rowid=False,
)


_AT_ONCE = 500  # names in one query


class Place(NamedTuple):
    """Where a stream stands."""

    key: int
    name: str
    policy: str
    seen: int
    steps: int
    touched: float


_PLACE = (streams.c.key, streams.c.name, streams.c.policy, streams.c.seen, streams.c.steps, streams.c.touched)
_STEP = [column for column in steps.c if column.name != "stream"]
_ADVANCE = (
    sa.update(streams)
    .where(streams.c.key == sa.bindparam("at_key"), streams.c.steps == sa.bindparam("after"))
    .values({name: sa.bindparam(name) for name in ("steps", "state", "touched", "last", "live_ratio", "promise_left")})
)


_APPEND = sa.insert(steps).values({column.name: sa.bindparam(column.name) for column in steps.c})


def _execute_many(connection: sa.Connection, statement: sa.Executable, given: list[dict[str, Any]]) -> sa.CursorResult:
    """The statement for each of these, handed to the driver as it is: numbers, text and bytes need no conversion."""
    text, order = _compiled(statement, connection.dialect)
    values = given if order is None else [tuple(one[name] for name in order) for one in given]
    return connection.exec_driver_sql(text, values)


@functools.lru_cache(maxsize=8)
def _compiled(statement: Any, dialect: sa.Dialect) -> tuple[str, tuple[str, ...] | None]:
    """A statement's text, and the order of its parameters where they have no names."""
    compiled = statement.compile(dialect=dialect)
    return str(compiled), None if compiled.positiontup is None else tuple(compiled.positiontup)


def lock(connection: sa.Connection, names: Sequence[str]) -> dict[str, Place]:
    """Where these streams stand; their rows are held until the transaction ends, in one order for everybody."""
    found = {}
    ordered = sorted(names)
    for start in range(0, len(ordered), _AT_ONCE):
        some = ordered[start : start + _AT_ONCE]
        query = sa.select(*_PLACE).where(streams.c.name.in_(some)).order_by(streams.c.name).with_for_update()
        found.update((row[1], Place(*row)) for row in connection.execute(query))
    return found


def states(connection: sa.Connection, keys: Sequence[int]) -> dict[int, bytes]:
    """The states of these streams."""
    found = {}
    for start in range(0, len(keys), _AT_ONCE):
        query = sa.select(streams.c.key, streams.c.state).where(streams.c.key.in_(keys[start : start + _AT_ONCE]))
        found.update((key, bytes(state)) for key, state in connection.execute(query))
    return found


def append(connection: sa.Connection, made: list[dict[str, Any]], moved: list[dict[str, Any]]) -> None:
    """Steps, and what follows from them. A stream that is no longer where it was breaks the transaction."""
    _execute_many(connection, _APPEND, made)
    changed = _execute_many(connection, _ADVANCE, moved)
    if changed.rowcount not in (-1, len(moved)):
        raise IntegrityError("a stream has moved on", None, RuntimeError("conflict"))


def last_text(connection: sa.Connection, key: int) -> str:
    """The last step of a stream that has one, as it was answered."""
    return connection.scalars(sa.select(streams.c.last).where(streams.c.key == key)).one() or ""


class Latest(NamedTuple):
    """A stream's last step, as it was answered, and its number."""

    name: str
    policy: str
    steps: int
    last: str


def latest(connection: sa.Connection, keys: Sequence[int]) -> dict[int, Latest]:
    """The last steps of those of these streams that have any."""
    columns = (streams.c.key, streams.c.name, streams.c.policy, streams.c.steps, streams.c.last)
    found = {}
    for start in range(0, len(keys), _AT_ONCE):
        query = sa.select(*columns).where(streams.c.key.in_(keys[start : start + _AT_ONCE]), streams.c.steps > 0)
        found.update((row[0], Latest(*row[1:])) for row in connection.execute(query))
    return found


def stream(connection: sa.Connection, name: str) -> dict[str, Any] | None:
    """All about a stream but its state."""
    columns = [column for column in streams.c if column.name != "state"]
    row = connection.execute(sa.select(*columns).where(streams.c.name == name)).first()
    return None if row is None else _read(row)


def all_streams(connection: sa.Connection, after: str, limit: int) -> list[dict[str, Any]]:
    """Streams in the order of their names, those after this one."""
    columns = [c for c in streams.c if c.name not in ("state", "asked")]
    query = sa.select(*columns).where(streams.c.name > after).order_by(streams.c.name).limit(limit)
    return [_read(row) for row in connection.execute(query)]


def _read(row: sa.Row) -> dict[str, Any]:
    found = dict(row._mapping)
    for name in ("x0", "last"):
        if found.get(name) is not None:
            found[name] = json.loads(found[name])
    return found


def played(connection: sa.Connection, key: int, after: int, limit: int) -> list[dict[str, Any]]:
    """Steps of a stream with numbers above `after`, in order."""
    query = sa.select(*_STEP).where(steps.c.stream == key, steps.c.step > after).order_by(steps.c.step).limit(limit)
    return list(_steps(connection.execute(query)))


def _steps(rows: Iterable[sa.Row]) -> Iterator[dict[str, Any]]:
    for row in rows:
        found = dict(row._mapping)
        found["context"], found["action"] = json.loads(found["context"]), json.loads(found["action"])
        found["used"] = None if found["used"] is None else json.loads(found["used"])
        yield found


def policy_names(connection: sa.Connection) -> list[str]:
    """The name of every policy."""
    return list(connection.scalars(sa.select(policies.c.name).order_by(policies.c.name)))


def policy_file(connection: sa.Connection, name: str) -> tuple[str, bytes] | None:
    """A policy's fingerprint, taken when it was brought, and its file."""
    row = connection.execute(sa.select(policies.c.fingerprint, policies.c.file).where(policies.c.name == name)).first()
    return None if row is None else (row[0], bytes(row[1]))


def mend_policy(connection: sa.Connection, name: str, file: bytes) -> None:
    """A policy's file once more, in the place of a copy that is damaged."""
    connection.execute(sa.update(policies).where(policies.c.name == name).values(file=file))


def lengths_of_histories(connection: sa.Connection) -> list[tuple[str, int]]:
    """The pairs of policy and length of history that streams have."""
    rows = connection.execute(sa.select(streams.c.policy, streams.c.seen).distinct())
    return [(policy, seen) for policy, seen in rows]


def standing(connection: sa.Connection) -> list[tuple[str, int, int, float | None, float | None]]:
    """By policy: streams, steps, the highest live ratio, and the least that a promise has left."""
    query = sa.select(
        streams.c.policy,
        sa.func.count(),
        sa.func.coalesce(sa.func.sum(streams.c.steps), 0),
        sa.func.max(streams.c.live_ratio),
        sa.func.min(streams.c.promise_left),
    ).group_by(streams.c.policy)
    return [(row[0], int(row[1]), int(row[2]), row[3], row[4]) for row in connection.execute(query)]


def latest_time(connection: sa.Connection) -> float | None:
    """When anything was last stored; None in an empty store."""
    return connection.scalar(sa.select(sa.func.max(streams.c.touched)))


def add_policy(connection: sa.Connection, name: str, fingerprint: str, file: bytes, at: float) -> None:
    """A policy that is not there yet."""
    connection.execute(sa.insert(policies).values(name=name, fingerprint=fingerprint, file=file, created=at))


def add_stream(connection: sa.Connection, row: dict[str, Any]) -> None:
    """A stream that is not there yet."""
    connection.execute(sa.insert(streams).values(row))


def remove_stream(connection: sa.Connection, name: str) -> bool:
    """A stream and its steps, gone; whether it was there."""
    key = connection.scalar(sa.select(streams.c.key).where(streams.c.name == name).with_for_update())
    if key is None:
        return False
    connection.execute(sa.delete(steps).where(steps.c.stream == key))
    connection.execute(sa.delete(streams).where(streams.c.key == key))
    return True
