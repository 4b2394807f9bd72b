"""The policies of a store, each loaded and compiled on first use."""

import contextlib
import dataclasses
import hashlib
import logging
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

from ecl2o.agents import Promise
from ecl2o.exceptions import InvalidRequestError, NotFoundError, ServiceError, UnavailableError
from ecl2o.json_text import as_json
from ecl2o.policy.policy import Policy, describe, load
from ecl2o.policy.start_run import check_memory, infer_context_dim
from ecl2o.service import queries
from ecl2o.service.batched_stepper import MAX_STREAM_BYTES, BatchedStepper
from ecl2o.service.store import Store

_log = logging.getLogger("ecl2o.serve")


@dataclasses.dataclass(frozen=True)
class LoadedPolicy:
    """A policy under its name in the store."""

    name: str
    policy: Policy

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
        return {"name": self.name, "promise": promise, **as_json(describe(self.policy))}


def read_policy(name: str, file: bytes) -> LoadedPolicy:
    """Load a policy from the bytes of its file; no code in it is executed.

    Raises:
        InvalidRequestError: the file is not a policy, or the policy needs too much memory.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about rounding to 32 bits: the service computes in 64
        path = Path(folder) / "policy"
        path.write_bytes(file)
        try:
            loaded = load(path)
            check_memory(loaded, str(path), MAX_STREAM_BYTES)
        except (ValueError, TypeError, OSError) as error:
            raise InvalidRequestError(f"Not a valid policy: {str(error).replace(str(path), 'the file')}") from None
    return LoadedPolicy(name, loaded)


class PolicyRegistry:
    """Load and compile the policies of a store. Thread-safe. Failed loads are retried on each request."""

    def __init__(self, store: Store):
        self._store = store
        self._loaded: dict[str, LoadedPolicy] = {}
        self._steppers: dict[tuple[str, int], BatchedStepper] = {}
        self._errors: dict[tuple[str, int | None], str] = {}  # by policy, and the history length if compilation failed
        self._lock = threading.RLock()

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
        if name in self._loaded:
            return self._loaded[name]
        with self._lock:
            with self._store.begin_read() as connection:
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

    def get_stepper(self, name: str, history: int) -> BatchedStepper:
        """Return the compiled stepper of a policy for streams with a history of this length."""
        found = self._steppers.get((name, history))
        if found is not None:
            return found
        loaded = self.get(name)
        policy, dim = loaded.policy, loaded.policy.dim
        if dim is None:
            raise InvalidRequestError(f"The policy {name!r} does not say how many numbers an action has.")
        try:
            stepper = self.compile(loaded, dim, infer_context_dim(policy, dim), history)
        except ServiceError:
            raise
        except Exception:
            _log.exception("the policy %r cannot be compiled", name)
            self._errors[name, history] = "It cannot be compiled; see the log of the service."
            raise UnavailableError(f"The policy {name!r} cannot be compiled. Nothing was changed.") from None
        self._errors.pop((name, history), None)
        return stepper

    def compile(self, policy: LoadedPolicy, dim: int, context_dim: int, history: int) -> BatchedStepper:
        """Return the stepper for actions (dim,), contexts (context_dim,) and a history of this length."""
        key = policy.name, history
        with self._lock:
            if key not in self._steppers:
                self._steppers[key] = BatchedStepper(policy.policy, dim, context_dim, history)
            return self._steppers[key]

    def list_errors(self) -> list[str]:
        """Return which policies cannot be used and why, after another attempt to load them."""
        for name, history in list(self._errors):
            if history is None:
                with contextlib.suppress(ServiceError):  # recorded by `get`
                    self.get(name)
        return [f"Policy {name!r}: {why}" for (name, _), why in self._errors.items()]
