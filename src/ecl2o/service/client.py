"""The client of a running service. Retries are safe, because every step carries its number."""

import datetime
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from numpy.typing import ArrayLike
from pydantic import TypeAdapter

from ecl2o.exceptions import InDoubtError, ServiceError, UnavailableError
from ecl2o.service.http.api import STATUS_OF_ERROR
from ecl2o.service.models import StepRecord, StreamRecord

_PAUSE, _MAX_PAUSE = 0.05, 0.5  # seconds before the first retry; doubled each time
_ERROR_OF_STATUS = {status: error for error, status in STATUS_OF_ERROR.items()}
_STEP, _STEPS = TypeAdapter(StepRecord), TypeAdapter(list[StepRecord])
_STEP_OF_STREAM, _STREAM = TypeAdapter(dict[str, StepRecord]), TypeAdapter(StreamRecord)


class Client:
    """A connection to `ecl2o serve`. Not thread-safe; use one client per stream, since it counts the steps.

    A request without an answer, or answered with 503, is sent again with the same step number until `patience` has passed. So
    no step is executed twice, even if the service is killed in between. Errors are raised as in Python: `NotFoundError`,
    `ConflictError`, `InvalidRequestError`, `UnavailableError`; other statuses as `ServiceError`, with `status` in its details.

    Args:
        url: Such as "http://127.0.0.1:8700".
        token: The service's ECL2O_TOKEN. Default: none.
        timeout: Seconds to wait for one answer.
        patience: Seconds after which a request without an answer raises `TimeoutError`.

    >>> from ecl2o.service import Client
    >>> with Client("http://127.0.0.1:9", patience=0.1) as client:  # nothing listens there
    ...     try:
    ...         client.step("site-1", [1.5])
    ...     except TimeoutError as error:
    ...         print(error)
    No answer from http://127.0.0.1:9 for 0.1 s.
    """

    def __init__(self, url: str, token: str | None = None, timeout: float = 30.0, patience: float = 120.0):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http = httpx2.Client(base_url=url, headers=headers, timeout=timeout)
        self._patience = patience
        self._next: dict[str, int] = {}

    def put_policy(self, name: str, file: str | Path | bytes) -> bool:
        """Upload a policy file, given as a path or as bytes; return whether it is new."""
        data = file if isinstance(file, bytes) else Path(file).read_bytes()
        return self._request("PUT", f"/policies/{name}", content=data)["new"]

    def put_stream(
        self,
        stream: str,
        policy: str,
        x0: ArrayLike | None = None,
        history: ArrayLike | None = None,
        start: datetime.datetime | None = None,
    ) -> StreamRecord:
        """Create a stream, or find the one that the same request created.

        Args:
            stream: Its id.
            policy: Name of an uploaded policy.
            x0: (d,), the action in force. Default: the cheapest action for the last context of the history.
            history: (H, q), contexts before the first step. Default: the policy's own.
            start: Time of the first step. Default: that of the first step sent, or one step after the history.
        """
        numbers = {"x0": x0, "history": history}
        body = {name: None if value is None else np.asarray(value, float).tolist() for name, value in numbers.items()}
        body |= {"policy": policy, "start": None if start is None else start.isoformat()}
        found = _STREAM.validate_python(self._request("PUT", f"/streams/{stream}", json=body))
        self._next[stream] = found.steps + 1
        return found

    def step(
        self,
        stream: str,
        context: Sequence[float | None],
        time: datetime.datetime | None = None,
        advice: Sequence[float | None] | None = None,
    ) -> StepRecord:
        """Send a context (q,), with None or NaN for missing numbers; return the step with its action.

        With a `time`, steps that were missed before it are filled in. `advice` (d,) is for policies that take it.
        """
        body: dict[str, Any] = {"step": self._next_step(stream), "context": _as_numbers(context)}
        if advice is not None:
            body["advice"] = _as_numbers(advice)
        if time is not None:
            body["time"] = time.isoformat()
        record = _STEP.validate_python(self._request("POST", f"/streams/{stream}/steps", json=body))
        self._next[stream] = record.step + 1
        return record

    def steps(
        self,
        contexts: Mapping[str, Sequence[float | None]],
        times: Mapping[str, datetime.datetime] | None = None,
    ) -> dict[str, StepRecord]:
        """Send a context for each of many streams in one request, with their times; return the steps by stream.

        Streams that are refused with 503 are sent again.

        Raises:
            ServiceError: of the first stream that failed; the steps of the others are its detail `answered`.
        """
        numbers = {stream: self._next_step(stream) for stream in contexts}
        body = {s: {"step": numbers[s], "context": _as_numbers(context)} for s, context in contexts.items()}
        for stream, time_sent in (times or {}).items():
            body[stream]["time"] = time_sent.isoformat()
        answered: dict[str, StepRecord] = {}
        until, pause = time.monotonic() + self._patience, _PAUSE
        while True:
            found = self._request("POST", "/steps", json=body)
            answered |= _STEP_OF_STREAM.validate_python(found["answered"])
            for stream in found["answered"]:
                self._next[stream] = answered[stream].step + 1
            if not found["refused"]:
                return answered
            for stream, error in found["refused"].items():
                if error["status"] != 503 or time.monotonic() + pause > until:
                    details = {"answered": answered, "in_doubt": error.get("in_doubt")}
                    raise _make_error(error["status"], f"{stream}: {error['detail']}", details)
            body = {stream: body[stream] for stream in found["refused"]}
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    def action(self, stream: str) -> list[float]:
        """Return the action in force."""
        return self._request("GET", f"/streams/{stream}/action")["action"]

    def stream(self, stream: str) -> StreamRecord:
        """Return a stream and its last step."""
        return _STREAM.validate_python(self._request("GET", f"/streams/{stream}"))

    def list_steps(self, stream: str, after: int = 0) -> list[StepRecord]:
        """Return the steps of a stream with numbers above `after`."""
        found: list[StepRecord] = []
        while some := self._request("GET", f"/streams/{stream}/steps", params={"after": after, "limit": 10_000}):
            found += _STEPS.validate_python(some)
            after = found[-1].step
        return found

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next_step(self, stream: str) -> int:
        if stream not in self._next:
            self._next[stream] = self.stream(stream).steps + 1
        return self._next[stream]

    def _request(self, method: str, path: str, **request: Any) -> Any:
        """Send a request until it is answered."""
        until, pause = time.monotonic() + self._patience, _PAUSE
        while True:
            try:
                return _read_answer(self._http.request(method, path, **request))
            except UnavailableError:
                if time.monotonic() + pause > until:
                    raise
            except httpx2.TransportError:
                if time.monotonic() + pause > until:
                    raise TimeoutError(f"No answer from {self._http.base_url} for {self._patience:g} s.") from None
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)


def _read_answer(answer: httpx2.Response) -> Any:
    if answer.is_success:
        return answer.json() if answer.content else None
    try:
        body = dict(answer.json())
    except ValueError:
        body = {}
    raise _make_error(answer.status_code, str(body.pop("detail", answer.reason_phrase)), body)


def _make_error(status: int, message: str, details: dict[str, Any]) -> ServiceError:
    kind = InDoubtError if details.pop("in_doubt", False) else _ERROR_OF_STATUS.get(status)
    return ServiceError(message, **details | {"status": status}) if kind is None else kind(message, **details)


def _as_numbers(context: Sequence[float | None]) -> list[float | None]:
    """Return a context for JSON, with None for missing numbers."""
    return [None if entry is None or not math.isfinite(entry) else float(entry) for entry in context]
