"""The service from Python: retries that are harmless, because every step carries its number."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from ecl2o.service.refused import Refused

_PAUSE = 0.05  # seconds before the first retry; then twice as long each time
_LONGEST_PAUSE = 0.5


class Client:
    """A connection to `ecl2o serve`. For one thread.

    A request that got no answer, or a 503, is sent again with the same step number until `patience` has passed, so that a
    service which was killed in between plays no step twice. Refusals are raised as `Refused`.

    Args:
        url: "http://127.0.0.1:8700".
        token: what ECL2O_TOKEN is at the service; None if it has none.
        timeout: seconds to wait for one answer.
        patience: seconds after which a request that has no answer fails.
    """

    def __init__(self, url: str, token: str | None = None, timeout: float = 30.0, patience: float = 120.0):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout)
        self._patience = patience
        self._next: dict[str, int] = {}

    def put_policy(self, name: str, file: str | Path | bytes) -> dict[str, Any]:
        """Bring a policy file under a name."""
        data = file if isinstance(file, bytes) else Path(file).read_bytes()
        return self._ask("PUT", f"/policies/{name}", content=data)

    def put_stream(
        self,
        stream: str,
        policy: str,
        x0: Sequence[float] | None = None,
        history: Sequence[Sequence[float]] | None = None,
    ) -> dict[str, Any]:
        """Make a stream, or find the one that the same request made."""
        asked = {"policy": policy, "x0": None if x0 is None else [float(entry) for entry in x0]}
        past = None if history is None else [[float(entry) for entry in context] for context in history]
        found = self._ask("PUT", f"/streams/{stream}", json=asked | {"history": past})
        self._next[stream] = found["steps"] + 1
        return found

    def step(self, stream: str, context: Sequence[float | None]) -> dict[str, Any]:
        """See a context, get an action and how the stream stands. One client per stream: numbers are counted here."""
        number = self._number(stream)
        asked = {"step": number, "context": _numbers(context)}
        answer = self._ask("POST", f"/streams/{stream}/steps", json=asked)
        self._next[stream] = number + 1
        return answer

    def steps(self, contexts: Mapping[str, Sequence[float | None]]) -> dict[str, dict[str, Any]]:
        """A context for each of many streams in one call. Refusals of single streams are raised after all others are noted."""
        numbers = {stream: self._number(stream) for stream in contexts}
        asked = {s: {"step": numbers[s], "context": _numbers(c)} for s, c in contexts.items()}
        found = self._ask("POST", "/steps", json=asked)
        for stream in found["answered"]:
            self._next[stream] = numbers[stream] + 1
        for stream, why in found["refused"].items():
            raise Refused(why["status"], f"{stream}: {why['detail']}", answered=found["answered"])
        return found["answered"]

    def action(self, stream: str) -> list[float]:
        """The action in force."""
        return self._ask("GET", f"/streams/{stream}/action")["action"]

    def stream(self, stream: str) -> dict[str, Any]:
        """Where a stream stands."""
        return self._ask("GET", f"/streams/{stream}")

    def played(self, stream: str, after: int = 0) -> list[dict[str, Any]]:
        """The steps of a stream with numbers above `after`."""
        found: list[dict[str, Any]] = []
        while some := self._ask("GET", f"/streams/{stream}/steps", params={"after": after, "limit": 10_000}):
            found += some
            after = some[-1]["step"]
        return found

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _number(self, stream: str) -> int:
        if stream not in self._next:
            self._next[stream] = self.stream(stream)["steps"] + 1
        return self._next[stream]

    def _ask(self, method: str, path: str, **request: Any) -> Any:
        """Send until there is an answer."""
        until, pause = time.monotonic() + self._patience, _PAUSE
        while True:
            try:
                answer = self._http.request(method, path, **request)
                if answer.status_code != 503:
                    return _read(answer)
            except httpx.TransportError:
                answer = None
            if time.monotonic() + pause > until:
                if answer is not None:
                    return _read(answer)
                raise TimeoutError(f"{self._http.base_url} has not answered for {self._patience:g} s.")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _read(answer: httpx.Response) -> Any:
    if answer.is_success:
        return answer.json() if answer.content else None
    try:
        body = dict(answer.json())
    except ValueError:
        body = {}
    raise Refused(answer.status_code, str(body.pop("detail", answer.reason_phrase)), **body)


def _numbers(context: Sequence[float | None]) -> list[float | None]:
    """What JSON knows: null for a number that is missing."""
    return [None if entry is None or not math.isfinite(entry) else float(entry) for entry in context]
