"""Policies as the service holds them: read from the store once, with what they promise, or with why they cannot be read.

The policies of a store: each read when it is first asked for, with the programs of its streams; or why it cannot be read.
"""

import dataclasses
import hashlib
import logging
import math
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from ecl2o.policy.context_validation import check_magnitude
from ecl2o.policy.limits import check_memory
from ecl2o.policy.policy import Policy, describe, load
from ecl2o.policy.runner import infer_context_dim
from ecl2o.service import queries
from ecl2o.service.batched_stepper import MOST_BYTES, Lanes
from ecl2o.service.refused import Refused
from ecl2o.service.step_executor import Course
from ecl2o.service.store import Store


@dataclasses.dataclass(frozen=True)
class Offer:
    """A policy under its name."""

    name: str
    policy: Policy

    @property
    def promise(self) -> dict[str, Any] | None:
        """Ratio, reference, allowance and period of what is promised; None where nothing is."""
        promise = self.policy.agent.promise(self.policy.problem)
        return None if promise is None else {"text": str(promise), **promise.to_json()}

    @property
    def dim(self) -> int | None:
        """d, where the policy itself tells it."""
        return self.policy.dim

    @property
    def units(self) -> str:
        """The units of actions, where an action is of the same kind as a context; else nothing."""
        units = self.policy.contract.units or []
        return ", ".join(units) if len(units) == self.dim else ""

    def start(self, x0: list[float] | None, history: list[list[float]] | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Where a stream begins: the action in force and the contexts before, the policy's own where none are given."""
        past = self._past(history)
        if x0 is None:
            if past is None or not len(past) or past.shape[1] != self.dim:
                raise Refused(422, "where does the stream start? Give x0, the action in force.")
            x0 = past[-1].tolist()
        first = np.asarray(x0, float)
        if self.dim is not None and len(first) != self.dim:
            raise Refused(422, f"x0 must be {self.dim} numbers, the policy's actions, got {len(first)}.")
        try:
            check_magnitude("x0", first)
            if past is not None and self.policy.contract.plausible is None:
                check_magnitude("history", past)
        except ValueError as error:
            raise Refused(422, str(error)) from None
        return first, past

    def _past(self, history: list[list[float]] | None) -> np.ndarray | None:
        own = self.policy.history
        if history is None and own is None:
            return None
        try:
            past = np.asarray(own if history is None else history, float)
        except ValueError:
            raise Refused(422, "history must be contexts of equally many numbers.") from None
        if past.ndim != 2:
            raise Refused(422, "history must be a list of contexts, each a list of numbers.")
        needed = self.policy.contract.history_steps
        if needed is not None:
            keep = max(needed, 0 if own is None else len(own))
            past = past[max(len(past) - keep, 0) :]
        return past

    def about(self) -> dict[str, Any]:
        """What it is, for people."""
        return {"name": self.name, "promise": self.promise, **_finite(describe(self.policy))}


def _finite(value: Any) -> Any:
    """What JSON knows: a bound that is not there is null, not infinite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def read(name: str, file: bytes) -> Offer:
    """A policy from the bytes of its file, or a refusal that says why not; nothing in it is executed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy"
        path.write_bytes(file)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of rounding to 32 bits: the service works in 64
                loaded = load(path)
            check_memory(loaded, str(path), MOST_BYTES)
            return Offer(name, loaded)
        except (ValueError, TypeError, OSError) as error:
            raise Refused(422, f"not a sound policy: {str(error).replace(str(path), 'the file')}") from None


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
            return queries.policy_names(connection)

    def keep(self, connection: sa.Connection, name: str, file: bytes) -> bool:
        """Keep a policy under a name; True if it is new. What a name stands for never changes.

        The file that the name stands for, brought again, takes the place of a stored copy that is damaged.
        """
        fingerprint = hashlib.sha256(file).hexdigest()
        known = queries.policy_file(connection, name)
        if known is None:
            queries.add_policy(connection, name, fingerprint, file, time.time())
        elif known[0] != fingerprint:
            raise Refused(409, f"{name!r} is another policy already, and streams rely on it; choose another name.")
        elif known[1] != file:
            queries.mend_policy(connection, name, file)
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
                known = queries.policy_file(connection, name)
            if known is None:
                self._unreadable.pop(name, None)
                raise Refused(404, f"there is no policy {name!r}; bring it with PUT /policies/{name}.")
            fingerprint, file = known
            try:
                if hashlib.sha256(file).hexdigest() != fingerprint:
                    raise Refused(422, f"its copy in the store is damaged; bring the file again, PUT /policies/{name}.")
                self.kept(read(name, file))
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
            context_dim = offered.policy.contract.context_dim or infer_context_dim(offered.policy.problem, dim, history)
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
