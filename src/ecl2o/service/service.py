"""What may be asked of the service: policies, streams and their steps, whatever the way the question came."""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np
import sqlalchemy as sa

from ecl2o.offline import oracle
from ecl2o.problem import Instance
from ecl2o.service import policy_registry, queries
from ecl2o.service.group_commit import Commits
from ecl2o.service.pg_notify import Neighbours
from ecl2o.service.policy_registry import Offer, Shelf
from ecl2o.service.refused import Refused
from ecl2o.service.step_executor import Answer, Ask, Player, answer
from ecl2o.service.store import Store

_CLOCK_SECONDS = 5.0  # a clock this far behind the store has been set back
_WINDOWS = (256, 128, 64, 32, 16, 8, 4, 2, 1)  # lengths of hindsight: each is a program


class Service:
    """Many streams in one store. For several threads; works in 64 bits, and refuses to start where JAX does not.

    Args:
        store: where everything is kept.
        announce: told of fresh answers after they are on disk; and, on PostgreSQL, of those of other services, which are not
            fresh, while somebody watches.
        watched: whether anybody watches; None: nobody ever does.
    """

    def __init__(
        self,
        store: Store,
        announce: Callable[[list[Answer]], None] = lambda answers: None,
        watched: Callable[[], bool] | None = None,
    ):
        if not jax.config.read("jax_enable_x64"):
            raise ValueError("promises are made in 64 bits: call jax.config.update('jax_enable_x64', True) first.")
        self.store = store
        self._shelf = Shelf(store)
        self._player = Player(self._shelf.course)
        self._neighbours = None if store.is_sqlite else Neighbours(store, watched or (lambda: False), announce)
        tell = (lambda connection, group: None) if self._neighbours is None else self._neighbours.tell
        self._commits = Commits(store, self._player, announce, tell)
        self._to_bring: dict[str, bytes] = {}

    def warm(self) -> None:
        """Read every policy and prepare the program of every stream, so that the first step need not wait."""
        try:
            with self.store.reading() as connection:
                names = queries.policy_names(connection)
                lengths = queries.lengths_of_histories(connection)
                self._player.latest = queries.latest_time(connection) or 0.0
        except Refused:
            return
        for name in names:
            self._try(lambda name=name: self.offer(name))
        for name, seen in lengths:
            self._try(lambda name=name, seen=seen: self._shelf.course(name, seen))

    @staticmethod
    def _try(work: Callable[[], Any]) -> None:
        with contextlib.suppress(Refused):  # `unready` says it
            work()

    def close(self) -> None:
        """Finish what is waiting and let go of the store."""
        self._commits.close()
        if self._neighbours is not None:
            self._neighbours.close()
        self.store.close()

    # Policies

    def bring(self, files: dict[str, bytes]) -> None:
        """Keep policies by their names; as soon as the store can be used, if it cannot be now."""
        for name, file in files.items():
            try:
                self.put_policy(name, file)
                self._to_bring.pop(name, None)
            except Refused as refused:
                if refused.status != 503:
                    raise ValueError(f"{name}: {refused.detail}") from None
                self._to_bring[name] = file

    def put_policy(self, name: str, file: bytes) -> bool:
        """Keep a policy under a name; True if it is new. What a name stands for never changes."""
        offered = policy_registry.read(name, file)
        new = self._commits.write(lambda connection: self._shelf.keep(connection, name, file)).result()
        self._shelf.kept(offered)
        return new

    def offer(self, name: str) -> Offer:
        """The policy of that name."""
        return self._shelf.offer(name)

    def policies(self) -> list[dict[str, Any]]:
        """Every policy in a few words; `trouble` where one cannot be read."""
        told = []
        for name in self._shelf.names():
            try:
                offered = self.offer(name)
                about = offered.about()
                told.append({"name": name, "agent": about["agent"], "promise": offered.promise, "trouble": None})
            except Refused as refused:
                told.append({"name": name, "agent": None, "promise": None, "trouble": refused.detail})
        return told

    # Streams

    def put_stream(
        self, name: str, policy: str, x0: list[float] | None, history: list[list[float]] | None
    ) -> tuple[dict[str, Any], bool]:
        """Make a stream, or find the one that the same request made; and whether it is new."""
        asked = hashlib.sha256(json.dumps([policy, x0, history]).encode()).hexdigest()
        existing = self._same_stream(name, asked)
        if existing is not None:
            return existing, False
        try:
            if policy in self._to_bring:
                self.put_policy(policy, self._to_bring[policy])
            offered = self.offer(policy)
        except Refused as refused:
            raise Refused(422 if refused.status == 404 else refused.status, refused.detail) from None
        first, past = offered.start(x0, history)
        try:
            course = self._shelf.prepared(offered, len(first), 0 if past is None else len(past), past)
            state = course.lanes.begin(first, np.zeros((0, course.context_dim)) if past is None else past)
        except (ValueError, TypeError) as error:
            raise Refused(422, str(error)) from None
        now = max(time.time(), self._player.latest)
        row = {
            "name": name,
            "policy": policy,
            "x0": json.dumps(first.tolist()),
            "asked": asked,
            "seen": 0 if past is None else len(past),
            "created": now,
            "touched": now,
            "steps": 0,
            "state": state,
        }

        def write(connection: sa.Connection) -> tuple[dict[str, Any], bool]:
            known = queries.stream(connection, name)
            if known is None:
                queries.add_stream(connection, row)
                return row | {"x0": first.tolist(), "last": None}, True
            _check_same(known, asked)
            return known, False

        made, new = self._commits.write(write).result()
        return _shown(made), new

    def _same_stream(self, name: str, asked: str) -> dict[str, Any] | None:
        with self.store.reading() as connection:
            known = queries.stream(connection, name)
        if known is None:
            return None
        _check_same(known, asked)
        return _shown(known)

    def stream(self, name: str) -> dict[str, Any]:
        """Where a stream stands."""
        with self.store.reading() as connection:
            return _shown(_found(connection, name))

    def streams(self, after: str = "", limit: int = 1000) -> list[dict[str, Any]]:
        """Where streams stand, by their names."""
        with self.store.reading() as connection:
            return [_shown(row) for row in queries.all_streams(connection, after, limit)]

    def delete_stream(self, name: str) -> None:
        """Remove a stream and its steps."""
        if not self._commits.write(lambda connection: queries.remove_stream(connection, name)).result():
            raise Refused(404, f"there is no stream {name!r}.")

    # Steps

    def play(self, asks: Sequence[Ask]) -> "Future[list[Answer | Refused]]":
        """Play steps: each answered or refused by itself, done when they are on disk."""
        return self._commits.play(asks)

    def steps(self, name: str, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """The steps of a stream that follow the one with number `after`."""
        with self.store.reading() as connection:
            row = _found(connection, name)
            found = queries.played(connection, row["key"], after, limit)
        promise = None if row["last"] is None else row["last"]["promise"]
        return [answer(step, promise) for step in found]

    def hindsight(self, name: str) -> dict[str, Any]:
        """The cheapest actions for the latest contexts, had they been known; from the action played before them.

        For the last 256 steps, or, where there are fewer, the largest power of two of them.
        """
        with self.store.reading() as connection:
            row = _found(connection, name)
            window = next((size for size in _WINDOWS if size <= row["steps"]), 0)
            found = queries.played(connection, row["key"], max(row["steps"] - window - 1, 0), window + 1)
        if not window:
            return {"first": 1, "actions": []}
        start = row["x0"] if len(found) == window else found[0]["action"]
        latest = found[-window:]
        instance = Instance(
            np.asarray(start, float), np.asarray([step["used"] or step["context"] for step in latest], float)
        )
        try:
            best = oracle(self.offer(row["policy"]).policy.problem, instance)
        except (ValueError, TypeError):
            return {"first": latest[0]["step"], "actions": []}
        return {"first": latest[0]["step"], "actions": np.asarray(best.actions).tolist()}

    # How it is

    def unready(self) -> list[str]:
        """Why the service should not be asked now; nothing if it may be."""
        if self.store.trouble is not None:
            self.store.open()
        if self.store.trouble is not None:
            return [f"the store cannot be used: {self.store.trouble}"]
        reasons = []
        try:
            self.bring(self._to_bring.copy())
            reasons += self._shelf.trouble()
        except ValueError as error:
            reasons.append(str(error))
        except Refused as refused:
            return [refused.detail]
        behind = self._player.latest - time.time()
        if behind > _CLOCK_SECONDS:
            reasons.append(
                f"the clock is {behind:.0f} s behind the last step in the store; steps are answered all the same"
            )
        return reasons

    def standing(self) -> list[dict[str, Any]]:
        """By policy: streams, steps, the highest live ratio, the least that is left of a promise, the promise, actions' units."""
        with self.store.reading() as connection:
            found = queries.standing(connection)
        told = []
        for name, streams, steps, ratio, left in found:
            try:
                promise, units = self.offer(name).promise, self.offer(name).units
            except Refused:  # `unready` says it; the figures are there all the same
                promise, units = None, ""
            told.append(
                {
                    "policy": name,
                    "streams": streams,
                    "steps": steps,
                    "live_ratio": ratio,
                    "left": left,
                    "promise": promise,
                    "units": units,
                }
            )
        return told


def _found(connection: sa.Connection, name: str) -> dict[str, Any]:
    row = queries.stream(connection, name)
    if row is None:
        raise Refused(404, f"there is no stream {name!r}.")
    return row


def _check_same(known: dict[str, Any], asked: str) -> None:
    if known["asked"] != asked:
        raise Refused(409, f"the stream {known['name']!r} was made with another policy, x0 or history.")


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A stream as people see it: the action in force is x0 before the first step."""
    last = row["last"]
    return {
        "id": row["name"],
        "policy": row["policy"],
        "x0": row["x0"],
        "history": row["seen"],
        "created": row["created"],
        "steps": row["steps"],
        "action": row["x0"] if last is None else last["action"],
        "last": last,
    }
