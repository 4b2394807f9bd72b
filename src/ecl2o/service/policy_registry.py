"""The policies of a store, each loaded and compiled on first use."""

import contextlib
import dataclasses
import hashlib
import itertools
import logging
import queue
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from ecl2o.agents import AbstractAgent, Promise
from ecl2o.agents.base import child_agents
from ecl2o.exceptions import InvalidRequestError, LoadingError, NotFoundError, ServiceError, UnavailableError
from ecl2o.json_text import as_json
from ecl2o.policy.policy import Policy, describe, load
from ecl2o.policy.start_run import check_memory, infer_context_dim
from ecl2o.service import queries
from ecl2o.service.batched_stepper import MAX_STREAM_BYTES, BatchedStepper, check_equations
from ecl2o.service.store import Store

MAX_NESTING = 8  # compilation takes more than twice as long for twice as many guards inside each other
MAX_PARTS = 300
_THREADS = 2  # that compile
_MAX_WAITING = 4  # requests that wait for a compilation, of the 16 that the service answers at a time
_WAIT_SECONDS = 10.0
_Key = tuple[str, int | None]  # policy and history length; None for the policy alone
_STOP: _Key = ("", None)
_log = logging.getLogger("ecl2o.serve")


@dataclasses.dataclass(frozen=True)
class LoadedPolicy:
    """A policy under its name in the store, and the SHA-256 of its file."""

    name: str
    policy: Policy
    fingerprint: str

    @property
    def promise(self) -> Promise | None:
        return self.policy.agent.promise(self.policy.problem)

    @property
    def units(self) -> str:
        """The units of an action, if an action is of the same kind as a context; else empty."""
        units = self.policy.contract.units or []
        return ", ".join(units) if len(units) == self.policy.dim else ""

    def describe(self) -> dict[str, Any]:
        """Return the description of the policy as JSON values."""
        promise = self.promise and self.promise.to_json()
        return {
            "name": self.name,
            "promise": promise,
            "optimum_is_bound": self.policy.optimum_is_bound,
            **as_json(describe(self.policy)),
        }


def read_policy(name: str, file: bytes) -> LoadedPolicy:
    """Load a policy from the bytes of its file; no code in it is executed, and nothing is traced.

    Raises:
        InvalidRequestError: the file is not a policy, or the policy has too many parts.
    """
    with tempfile.TemporaryDirectory() as folder, _reject("the file", folder):
        path = Path(folder) / "policy"
        path.write_bytes(file)
        loaded = load(path)
    nesting, parts = _count_nesting(loaded.agent), _count_parts((loaded.agent, loaded.problem, loaded.forecaster))
    for what, count, limit in (("agents inside each other", nesting, MAX_NESTING), ("parts", parts, MAX_PARTS)):
        if count > limit:
            raise InvalidRequestError(f"The policy has {count} {what}, and at most {limit} are allowed.")
    return LoadedPolicy(name, loaded, hashlib.sha256(file).hexdigest())


def check_program(policy: LoadedPolicy) -> None:
    """Trace a policy before it is stored, in a second at most, as the number of its parts is limited.

    Raises:
        InvalidRequestError: it needs too much memory, or its program is too large to be compiled.
    """
    with _reject(policy.name):
        size = check_memory(policy.policy, policy.name, MAX_STREAM_BYTES)
    if size is not None:
        check_equations(size.equations)


@contextlib.contextmanager
def _reject(name: str, folder: str | None = None) -> Iterator[None]:
    """Turn errors of loading and tracing into `InvalidRequestError`, without the path of the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about rounding to 32 bits: the service computes in 64
        try:
            yield
        except (ValueError, TypeError, OSError) as error:
            text = str(error) if folder is None else str(error).replace(f"{Path(folder) / 'policy'}", name)
            raise InvalidRequestError(f"Not a valid policy: {text}") from None


def _count_nesting(agent: AbstractAgent) -> int:
    return 1 + max(map(_count_nesting, child_agents(agent)), default=0)


def _count_parts(tree: Any) -> int:
    """Return the number of modules and arrays."""
    modules = 0

    def count(node: Any) -> bool:
        nonlocal modules
        modules += isinstance(node, eqx.Module)
        return False

    return len(jax.tree.leaves(tree, is_leaf=count)) + modules


class PolicyRegistry:
    """Load and compile the policies of a store, in threads of its own. Thread-safe. Failed loads are retried on request."""

    def __init__(self, store: Store):
        self._store = store
        self._loaded: dict[str, LoadedPolicy] = {}
        self._steppers: dict[tuple[str, str, int], BatchedStepper] = {}  # by name, fingerprint and history length
        self._errors: dict[_Key, str] = {}  # by policy, and the history length if compilation failed
        self._pending: dict[_Key, Future[Any]] = {}
        self._lock = threading.Lock()  # of `_pending`
        self._may_wait = threading.BoundedSemaphore(_MAX_WAITING)
        self._first: dict[_Key, Future[Any]] = {}  # what `warm_up` loads
        self._tasks: queue.SimpleQueue[tuple[_Key, Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._closed = False
        for number in range(_THREADS):
            threading.Thread(target=self._run, name=f"ecl2o-compile-{number}", daemon=True).start()

    def add(self, policy: LoadedPolicy) -> None:
        """Register a policy whose file is stored."""
        self._loaded[policy.name] = policy
        self._errors.pop((policy.name, None), None)

    def get(self, name: str) -> LoadedPolicy:
        """Return a policy, loaded on first use.

        Raises:
            NotFoundError: there is no such policy.
            UnavailableError: its file cannot be loaded.
        """
        with self._store.begin_read() as connection:
            fingerprint = queries.find_fingerprint(connection, name)
            loaded = self._loaded.get(name)
            if loaded is not None and loaded.fingerprint == fingerprint:
                return loaded
            stored = queries.load_policy_file(connection, name)
        if stored is None:
            self._errors.pop((name, None), None)
            raise NotFoundError(f"There is no policy {name!r}. Upload it first.")
        fingerprint, file = stored
        try:
            if hashlib.sha256(file).hexdigest() != fingerprint:
                raise InvalidRequestError("Its stored copy is damaged. Upload the file again.")
            self.add(read_policy(name, file))
        except InvalidRequestError as error:
            self._errors[name, None] = str(error)
            raise UnavailableError(f"The policy {name!r} cannot be loaded. {error}") from None
        return self._loaded[name]

    def get_stepper(self, name: str, fingerprint: str, history: int) -> BatchedStepper:
        """Return the compiled stepper of a policy for streams with a history of this length; never wait for it.

        The fingerprint tells the stream's policy from one that had its name before the store was restored.

        Raises:
            LoadingError: it is not ready.
        """
        found = self._steppers.get((name, fingerprint, history))
        if found is not None:
            return found
        raise self._explain(name, self._submit((name, history), lambda: self._load_stepper(name, history)))

    def compile(self, policy: LoadedPolicy, dim: int, context_dim: int, history: int) -> BatchedStepper:
        """Return the stepper for actions (dim,), contexts (context_dim,) and a history of this length.

        Raises:
            LoadingError: it is not ready in time, or too many requests wait for theirs.
        """
        found = self._steppers.get((policy.name, policy.fingerprint, history))
        if found is not None:
            return found
        future = self._submit((policy.name, history), lambda: self._make_stepper(policy, dim, context_dim, history))
        if not self._may_wait.acquire(blocking=False):
            raise self._explain(policy.name, future)
        try:
            return future.result(_WAIT_SECONDS)
        except (TimeoutError, CancelledError):
            raise self._explain(policy.name, future) from None
        finally:
            self._may_wait.release()

    def warm_up(self, names: list[str], lengths: list[tuple[str, int]]) -> None:
        """Start to load policies, and their steppers for these history lengths."""
        without_streams = set(names) - {name for name, _ in lengths}
        tasks: dict[_Key, Callable[[], Any]] = {(name, None): partial(self.get, name) for name in without_streams}
        tasks |= {key: partial(self._load_stepper, *key) for key in lengths}
        finished, began = itertools.count(1), time.monotonic()

        def report(_future: Future[Any]) -> None:
            if next(finished) == len(tasks):
                _log.info("loaded %d policies and programs in %.1f s", len(tasks), time.monotonic() - began)

        if tasks:
            _log.info("loading %d policies and programs", len(tasks))
        self._first = {key: self._submit(key, task) for key, task in tasks.items()}
        for future in self._first.values():
            future.add_done_callback(report)

    def wait(self) -> None:
        """Wait until all that `warm_up` loads is loaded or has failed."""
        wait(self._first.values())

    def list_errors(self) -> list[str]:
        """Retry failed loads; return one sentence per policy that is not loaded, with the reason."""
        for name, history in list(self._errors):
            if history is None:
                with contextlib.suppress(ServiceError):  # recorded by `get`
                    self.get(name)
        loading = [text] if (text := self._describe_progress()) else []
        return loading + [f"Policy {name!r}: {why}" for (name, _), why in self._errors.copy().items()]

    def close(self) -> None:
        """Start no further load. One that runs is not waited for."""
        self._closed = True
        for _ in range(_THREADS):
            self._tasks.put((_STOP, Future(), lambda: None))

    def _describe_progress(self) -> str:
        done, total = sum(future.done() for future in self._first.values()), len(self._first)
        return f"The service is loading its policies and programs: {done} of {total}." if done < total else ""

    def _explain(self, name: str, future: Future[Any]) -> LoadingError:
        progress = self._describe_progress() if future in self._first.values() else ""
        return LoadingError(f"{progress or f'The policy {name!r} is being compiled.'} Try again in a moment.", future)

    def _submit(self, key: _Key, task: Callable[[], Any]) -> Future[Any]:
        """Queue a task, unless one with the same key is waiting or running; return its future."""
        with self._lock:
            if key not in self._pending:
                self._pending[key] = Future()
                self._tasks.put((key, self._pending[key], task))
            return self._pending[key]

    def _run(self) -> None:
        while True:
            key, future, task = self._tasks.get()
            if self._closed:
                future.cancel()
                if key == _STOP:
                    return
                continue
            result, failure = None, None
            try:
                result = task()
            except BaseException as error:  # handed to who waits
                failure = error
            with self._lock:
                self._pending.pop(key, None)
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)

    def _load_stepper(self, name: str, history: int) -> BatchedStepper:
        loaded = self.get(name)
        policy, dim = loaded.policy, loaded.policy.dim
        if dim is None:
            raise InvalidRequestError(f"The policy {name!r} does not say how many numbers an action has.")
        try:
            return self._make_stepper(loaded, dim, infer_context_dim(policy, dim), history)
        except ServiceError as error:
            self._errors[name, history] = str(error)
            raise
        except Exception:
            _log.exception("the policy %r cannot be compiled", name)
            self._errors[name, history] = "It cannot be compiled; see the log of the service."
            raise UnavailableError(f"The policy {name!r} cannot be compiled. Nothing was changed.") from None

    def _make_stepper(self, policy: LoadedPolicy, dim: int, context_dim: int, history: int) -> BatchedStepper:
        stepper = BatchedStepper(policy.policy, dim, context_dim, history)
        self._steppers[policy.name, policy.fingerprint, history] = stepper
        self._errors.pop((policy.name, history), None)
        return stepper
