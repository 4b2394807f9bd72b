"""What other services on the same PostgreSQL play: each tells of its steps in the transaction that makes them (NOTIFY).

A notice has keys and numbers only; the steps themselves are read from the store, and only if somebody watches.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator

import sqlalchemy as sa
from sqlalchemy import exc

from ecl2o.service import queries
from ecl2o.service.refused import Refused
from ecl2o.service.step_executor import Answer, Group, answer_text
from ecl2o.service.store import Store

_CHANNEL = "ecl2o_steps"
MOST_BYTES = 7900  # PostgreSQL takes less than 8000 in a notice
_LOOK_UP = 0.5  # seconds between looks at whether to stop
_AGAIN = 2.0  # seconds before a lost connection is tried again
_log = logging.getLogger("ecl2o.serve")


class Neighbours:
    """Tells others of this service's steps, and hears of theirs in a thread of its own.

    Args:
        store: a PostgreSQL.
        wanted: whether anybody watches now.
        announce: told of the others' answers, none of them fresh.
    """

    def __init__(self, store: Store, wanted: Callable[[], bool], announce: Callable[[list[Answer]], None]):
        self._store, self._wanted, self._announce = store, wanted, announce
        self._own = uuid.uuid4().hex
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ecl2o-neighbours", daemon=True)
        self._thread.start()

    def tell(self, connection: sa.Connection, group: Group) -> None:
        """Tell of the steps of a transaction; nobody hears of it unless it is committed."""
        for part in parts(f"{key}.{step}" for key, step in group.made):
            notice = sa.func.pg_notify(_CHANNEL, f"{self._own} {part}")
            connection.execute(sa.select(notice))

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closed.is_set():
            try:
                with self._store.listening(_CHANNEL) as notices:
                    while not self._closed.is_set():
                        for notice in notices(_LOOK_UP):
                            self._heard(notice)
            except (exc.SQLAlchemyError, Refused):
                self._closed.wait(_AGAIN)
            except Exception:
                _log.exception("the steps of other services are not heard")
                self._closed.wait(_AGAIN)

    def _heard(self, notice: str) -> None:
        own, _, part = notice.partition(" ")
        if own == self._own or not self._wanted():
            return
        made = [(int(key), int(step)) for key, _, step in (pair.partition(".") for pair in part.split(","))]
        with self._store.reading() as connection:
            self._announce(_answers(connection, made))


def parts(pairs: Iterable[str]) -> Iterator[str]:
    """Joined by commas, as many as fit in a notice."""
    part, size = [], 0
    for pair in pairs:
        if size + len(pair) + 1 > MOST_BYTES - 33:
            yield ",".join(part)
            part, size = [], 0
        part.append(pair)
        size += len(pair) + 1
    if part:
        yield ",".join(part)


def _answers(connection: sa.Connection, made: list[tuple[int, int]]) -> list[Answer]:
    """These steps as they were answered; a stream that is gone has none."""
    found = queries.latest(connection, [key for key, _ in made])
    answers = []
    for key, step in made:
        if key not in found:
            continue
        latest = found[key]
        text = latest.last if latest.steps == step else _earlier(connection, key, step, latest.last)
        if text is not None:
            answers.append(Answer(latest.name, latest.policy, text, False, False))
    return answers


def _earlier(connection: sa.Connection, key: int, step: int, last: str) -> str | None:
    """A step that is not the last one any more."""
    found = queries.played(connection, key, step - 1, 1)
    return answer_text(found[0], last) if found else None
