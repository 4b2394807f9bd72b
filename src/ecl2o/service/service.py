"""The service in Python: policies, streams and their steps, without HTTP."""

import datetime
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import jax
import numpy as np
import sqlalchemy as sa

from ecl2o.exceptions import ConflictError, InvalidRequestError, NotFoundError, ServiceError, UnavailableError
from ecl2o.offline import oracle
from ecl2o.policy.clock import StepClock
from ecl2o.policy.start_run import find_start
from ecl2o.problem import Instance
from ecl2o.service import queries
from ecl2o.service.models import (
    Hindsight,
    PolicySummary,
    PolicyUsage,
    StepRecord,
    StepRequest,
    StepResult,
    StreamRecord,
)
from ecl2o.service.pg_notify import PgNotifier
from ecl2o.service.policy_registry import LoadedPolicy, PolicyRegistry, check_program, read_policy
from ecl2o.service.step_executor import GroupCommit, StepExecutor
from ecl2o.service.store import SILENT, Store

_CLOCK_TOLERANCE = 5.0  # seconds that the clock may be behind the last stored step
_HINDSIGHT_STEPS = 256


class Service:
    """Many streams in one store. Thread-safe. Requires JAX's 64-bit mode.

    Args:
        store: Keeps policies, streams and steps.
        announce: Called with new results after their commit; on PostgreSQL also with results of other services, while
            `is_watched`.
        is_watched: Whether anybody waits for the results of other services. Default: never.

    Raises:
        ValueError: JAX is in 32-bit mode.

    >>> import tempfile
    >>> import ecl2o as ec
    >>> from ecl2o.service import Service, Store
    >>> from ecl2o.service.models import StepRequest
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ec.save(f"{folder}/policy.ecl2o", ec.Policy(ec.Greedy(), problem))
    ...     service = Service(Store(f"sqlite:///{folder}/streams.db"))
    ...     service.add_policies({"greedy": open(f"{folder}/policy.ecl2o", "rb").read()})
    ...     stream, created = service.create_stream("site-1", "greedy", x0=[0.0])
    ...     results = service.submit_steps([StepRequest("site-1", [3.0])]).result()
    ...     service.close()
    >>> results[0].record.step, results[0].record.action
    (1, [1.0])
    """

    def __init__(
        self,
        store: Store,
        announce: Callable[[list[StepResult]], None] = lambda results: None,
        is_watched: Callable[[], bool] = lambda: False,
    ):
        if not jax.config.read("jax_enable_x64"):
            raise ValueError("Promises need 64 bits: call jax.config.update('jax_enable_x64', True) first.")
        self.store = store
        self._registry = PolicyRegistry(store)
        self._executor = StepExecutor(self._registry.get_stepper)
        self._notifier = None if store.is_sqlite else PgNotifier(store, is_watched, announce)
        self._commits = GroupCommit(store, self._executor, announce, self._notifier and self._notifier.notify)
        self._policies_to_add: dict[str, bytes] = {}

    def warm_up(self, wait: bool = True) -> None:
        """Load every policy and compile the step of every stream, so that first steps need not wait.

        Args:
            wait: Return when all is loaded. Else it is loaded in the background, `list_failures` says how far, and a step of a
                stream that is not loaded gets `LoadingError`.
        """
        try:
            with self.store.begin_read() as connection:
                names = queries.list_policy_names(connection)
                lengths = queries.list_history_lengths(connection)
                self._executor.latest_time = queries.load_latest_time(connection) or 0.0
        except ServiceError:
            return
        self._registry.warm_up(names, lengths)
        if wait:
            self._registry.wait()

    def close(self) -> None:
        """Finish the queue and close the store."""
        self._registry.close()
        self._commits.close()
        if self._notifier is not None:
            self._notifier.close()
        self.store.close()

    # Policies

    def add_policies(self, files: dict[str, bytes]) -> None:
        """Store policies by name; if the store is unavailable, as soon as it is available.

        Raises:
            ValueError: a file is not a valid policy, or its name belongs to another policy.
        """
        for name, file in files.items():
            try:
                self.put_policy(name, file)
                self._policies_to_add.pop(name, None)
            except UnavailableError:
                self._policies_to_add[name] = file
            except ServiceError as error:
                raise ValueError(f"{name}: {error}") from None

    def put_policy(self, name: str, file: bytes) -> bool:
        """Store a policy; return whether it is new. A name always means the same file."""
        policy = read_policy(name, file)
        with self.store.begin_read() as connection:
            stored = queries.load_policy_file(connection, name)
        if stored is None or stored[1] != file:
            check_program(policy)
        is_new = self._commits.submit_write(
            lambda connection: queries.store_policy_file(connection, name, file)
        ).result()
        self._registry.add(policy)
        return is_new

    def get_policy(self, name: str) -> LoadedPolicy:
        """Return a policy."""
        return self._registry.get(name)

    def list_policies(self) -> list[PolicySummary]:
        """Return a summary of every policy, also of those that cannot be loaded."""
        summaries = []
        with self.store.begin_read() as connection:
            names = queries.list_policy_names(connection)
        for name in names:
            try:
                policy = self.get_policy(name)
                summaries.append(PolicySummary(name, policy.describe()["agent"], policy.promise, None))
            except ServiceError as error:
                summaries.append(PolicySummary(name, None, None, str(error)))
        return summaries

    # Streams

    def create_stream(
        self,
        stream_id: str,
        policy: str,
        x0: list[float] | None = None,
        history: list[list[float]] | None = None,
        start: datetime.datetime | None = None,
    ) -> tuple[StreamRecord, bool]:
        """Create a stream, or find the one that the same request created; return it, and whether it is new.

        Args:
            stream_id: A new id.
            policy: Name of a stored policy.
            x0: (d,), the action in force. Default: the cheapest action for the last context of the history.
            history: (H, q), contexts before the first step. Default: the policy's own.
            start: Time of the first step. The policy's own history is extended to it; a given one must end one step before it.
                Default: the time of the first step, if that has one, else one step after the policy's own history.
        """
        began = None if start is None else start.isoformat()
        request_hash = hashlib.sha256(json.dumps([policy, x0, history, began]).encode()).hexdigest()
        with self.store.begin_read() as connection:
            existing = queries.find_stream(connection, stream_id)
        if existing is not None and self.store.failure is None:  # after a failed flush it may be in memory only
            return _check_same_request(existing, request_hash), False
        try:
            if policy in self._policies_to_add:
                self.put_policy(policy, self._policies_to_add[policy])
            loaded = self.get_policy(policy)
        except NotFoundError as error:
            raise InvalidRequestError(str(error)) from None
        try:
            clock, given, notice = StepClock(loaded.policy), history, None
            if start is None:
                notice = clock.describe_default_start(history is None)
            elif history is None:
                given, notice = clock.extend_own_history(start)
            first, past = find_start(loaded.policy, x0, given)
            stepper = self._registry.compile(loaded, len(first), past.shape[1], len(past))
            state = stepper.start(first, past, clock.find_place(start, history is None))
        except (ValueError, TypeError) as error:
            raise InvalidRequestError(str(error)) from None
        now, place = max(time.time(), self._executor.latest_time), first.tolist()
        created = StreamRecord(stream_id, policy, place, len(past), now, 0, 0, 0, place, None, began, notice)
        said = "x" * (x0 is not None) + "h" * (history is not None)

        def write(connection: sa.Connection) -> tuple[StreamRecord, bool]:
            existing = queries.find_stream(connection, stream_id)
            if existing is not None:
                return _check_same_request(existing, request_hash), False
            queries.add_stream(connection, created, loaded.fingerprint, request_hash, state, said)
            return created, True

        return self._commits.submit_write(write).result()

    def get_stream(self, stream_id: str) -> StreamRecord:
        """Return a stream."""
        with self.store.begin_read() as connection:
            return _find(connection, stream_id).record

    def list_streams(self, after: str = "", limit: int = 1000) -> list[StreamRecord]:
        """Return up to `limit` streams with ids above `after`, in order."""
        with self.store.begin_read() as connection:
            return queries.list_streams(connection, after, limit)

    def delete_stream(self, stream_id: str) -> None:
        """Delete a stream and its steps."""
        if not self._commits.submit_write(lambda connection: queries.remove_stream(connection, stream_id)).result():
            raise NotFoundError(f"There is no stream {stream_id!r}.")

    # Steps

    def submit_steps(self, requests: Sequence[StepRequest]) -> "Future[list[StepResult | ServiceError]]":
        """Queue steps. The future is done when they are on disk, with a result or an error for each request."""
        return self._commits.submit_steps(requests)

    def list_steps(self, stream_id: str, after: int = 0, limit: int = 1000) -> list[StepRecord]:
        """Return up to `limit` steps of a stream with numbers above `after`, in order."""
        with self.store.begin_read() as connection:
            return queries.load_steps(connection, _find(connection, stream_id).key, after, limit)

    def compute_hindsight(self, stream_id: str) -> Hindsight:
        """Return the optimal actions for the latest contexts, from the action before them.

        The latest are the last 256 steps, or, of a shorter stream, the largest power of two of them.
        """
        with self.store.begin_read() as connection:
            key, _, stream = _find(connection, stream_id)
            count = 1 << min(stream.steps, _HINDSIGHT_STEPS).bit_length() >> 1  # each number of steps is a compilation
            problem = self.get_policy(stream.policy).policy.problem
            before = max(abs(problem.timing.shift), 1)
            found = queries.load_steps(connection, key, max(stream.steps - count - before, 0), count + before)
        if not found:
            return Hindsight(1, [])
        earlier, latest = found[:-count], found[-count:]
        actions = [stream.x0] * (before - len(earlier)) + [step.action for step in earlier]
        try:
            contexts = np.nan_to_num(np.array([step.context_used for step in found], float))  # advice may be missing
            known = contexts[:-count]
            if len(known) < before and not problem.timing.shift:  # x0 alone is the state
                known = np.zeros((before, contexts.shape[1]))
            instance = Instance(problem.end_state(np.asarray(actions, float), known), contexts[-count:])
            best = oracle(problem, instance)
        except (ValueError, TypeError):
            return Hindsight(latest[0].step, [])
        return Hindsight(latest[0].step, np.asarray(best.actions).tolist())

    # Status

    def list_failures(self) -> list[str]:
        """Return why the service is not ready; empty if it is. Retries what failed before."""
        if self.store.is_stuck:
            return [f"The store cannot be used: {SILENT}."]
        self.store.check()
        if self.store.failure is not None:
            return [f"The store cannot be used: {self.store.failure}."]
        failures = []
        try:
            self.add_policies(self._policies_to_add.copy())
            failures += self._registry.list_errors()
        except ValueError as error:
            failures.append(str(error))
        except ServiceError as error:
            return [str(error)]
        behind = self._executor.latest_time - time.time()
        if behind > _CLOCK_TOLERANCE:
            failures.append(f"The clock is {behind:.0f} s behind the last stored step. Steps are still answered.")
        return failures

    def summarize_policies(self) -> list[PolicyUsage]:
        """Return the totals over the streams of each policy."""
        with self.store.begin_read() as connection:
            found = queries.summarize_streams(connection)
        usages = []
        for row in found:
            try:
                policy = self.get_policy(row[0])
                usages.append(PolicyUsage(*row, promise=policy.promise, units=policy.units))
            except ServiceError:  # reported by `list_failures`
                usages.append(PolicyUsage(*row, promise=None, units=""))
        return usages


def _find(connection: sa.Connection, stream_id: str) -> queries.StoredStream:
    found = queries.find_stream(connection, stream_id)
    if found is None:
        raise NotFoundError(f"There is no stream {stream_id!r}.")
    return found


def _check_same_request(existing: queries.StoredStream, request_hash: str) -> StreamRecord:
    if existing.request_hash != request_hash:
        raise ConflictError(f"The stream {existing.record.id!r} was created with another policy, x0, history or start.")
    return existing.record
