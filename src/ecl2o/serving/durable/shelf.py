"""The policies of a store: each read when it is first asked for, with the programs of its streams; or why it cannot be read."""

import hashlib
import logging
import threading
import time
from typing import Any

import sqlalchemy as sa

from ecl2o.serving.durable import offers, rows
from ecl2o.serving.durable.lanes import Lanes
from ecl2o.serving.durable.offers import Offer
from ecl2o.serving.durable.playing import Course
from ecl2o.serving.durable.refused import Refused
from ecl2o.serving.durable.store import Store
from ecl2o.serving.runs import context_dim_of

_MOST_LENGTHS = 16  # different lengths of histories for one policy: each is a program
_log = logging.getLogger("ecl2o.serve")


class Shelf:
    """For several threads. What could not be read is tried again whenever it is asked for."""

    def __init__(self, store: Store):
        self._store = store
        self._offers: dict[str, Offer] = {}
        self._unreadable: dict[str, str] = {}
        self._courses: dict[tuple[str, int], Course] = {}
        self._failed: dict[tuple[str, int], str] = {}
        self._preparing = threading.RLock()

    def names(self) -> list[str]:
        """All policies in the store."""
        with self._store.reading() as connection:
            return rows.policy_names(connection)

    def keep(self, connection: sa.Connection, name: str, file: bytes) -> bool:
        """Keep a policy under a name; True if it is new. What a name stands for never changes.

        The file that the name stands for, brought again, takes the place of a stored copy that is damaged.
        """
        fingerprint = hashlib.sha256(file).hexdigest()
        known = rows.policy_file(connection, name)
        if known is None:
            rows.add_policy(connection, name, fingerprint, file, time.time())
        elif known[0] != fingerprint:
            raise Refused(409, f"{name!r} is another policy already, and streams rely on it; choose another name.")
        elif known[1] != file:
            rows.mend_policy(connection, name, file)
        return known is None

    def kept(self, offered: Offer) -> None:
        """A policy has been kept."""
        self._offers[offered.name] = offered
        self._unreadable.pop(offered.name, None)

    def offer(self, name: str) -> Offer:
        """The policy of that name."""
        if name in self._offers:
            return self._offers[name]
        with self._preparing:
            with self._store.reading() as connection:
                known = rows.policy_file(connection, name)
            if known is None:
                self._unreadable.pop(name, None)
                raise Refused(404, f"there is no policy {name!r}; bring it with PUT /policies/{name}.")
            fingerprint, file = known
            try:
                if hashlib.sha256(file).hexdigest() != fingerprint:
                    raise Refused(422, f"its copy in the store is damaged; bring the file again, PUT /policies/{name}.")
                self.kept(offers.read(name, file))
            except Refused as refused:
                self._unreadable[name] = refused.detail
                raise Refused(503, f"the policy {name!r} can no longer be read: {refused.detail}") from None
            return self._offers[name]

    def course(self, name: str, seen: int) -> Course:
        """The program of a policy's streams with histories of this length; made when it is first asked for."""
        found = self._courses.get((name, seen))
        if found is not None:
            return found
        offered = self.offer(name)
        if offered.dim is None:
            raise Refused(422, f"the policy {name!r} does not say how many numbers an action has.")
        try:
            course = self.prepared(offered, offered.dim, seen, None)
        except Refused:
            raise
        except Exception:
            _log.exception("the program of %r cannot be made", name)
            self._failed[name, seen] = "its program cannot be made; the log says why"
            raise Refused(503, f"the program of the policy {name!r} cannot be made; nothing was changed.") from None
        self._failed.pop((name, seen), None)
        return course

    def prepared(self, offered: Offer, dim: int, seen: int, history: Any) -> Course:
        """The program for streams whose actions have `dim` numbers and whose contexts are like those of `history`."""
        with self._preparing:
            found = self._courses.get((offered.name, seen))
            if found is not None:
                return found
            if sum(name == offered.name for name, _ in self._courses) >= _MOST_LENGTHS:
                raise Refused(
                    422, f"streams of {offered.name!r} have {_MOST_LENGTHS} lengths of histories; use one of them."
                )
            context_dim = offered.policy.contract.context_dim or context_dim_of(offered.policy.problem, dim, history)
            promise = offered.promise
            lanes = Lanes(offered.policy, dim, context_dim, seen)
            course = Course(lanes, context_dim, None if promise is None else promise["ratio"])
            self._courses[offered.name, seen] = course
            return course

    def trouble(self) -> list[str]:
        """Which policies cannot be used and why, after another try to read them."""
        for name in list(self._unreadable):
            try:
                self.offer(name)
            except Refused:  # noted where it was raised
                continue
        unusable = [*self._unreadable.items(), *((name, why) for (name, _), why in self._failed.items())]
        return [f"policy {name!r}: {why}" for name, why in unusable]
