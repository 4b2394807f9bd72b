"""Fresh answers for those who watch, as server-sent events. What a watcher misses is in the store."""

import asyncio
from collections.abc import AsyncIterator

from ecl2o.service.refused import Refused
from ecl2o.service.step_executor import Answer

_MOST_WATCHERS = 256
_MOST_BEHIND = 100  # groups that a slow watcher may be behind
_AT_ONCE = 500  # answers in one event
_SECONDS = 15.0  # between signs of life


class Events:
    """Hands answers from the writer's thread to everybody who watches."""

    def __init__(self):
        self._watchers: dict[asyncio.Queue[list[Answer]], str | None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()

    def begin(self) -> None:
        """Watchers wait in the running loop."""
        self._loop = asyncio.get_running_loop()

    def end(self) -> None:
        """Let all watchers go, so that the service can stop."""
        self._closing.set()
        for queue in self._watchers:
            if not queue.full():
                queue.put_nowait([])

    @property
    def is_watched(self) -> bool:
        """Whether anybody watches."""
        return bool(self._watchers)

    def announce(self, answers: list[Answer]) -> None:
        """Called by the writer after a commit, and when another service has told of one."""
        if self._loop is not None and self._watchers and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._spread, answers)

    def _spread(self, answers: list[Answer]) -> None:
        for queue, stream in self._watchers.items():
            wanted = answers if stream is None else [answer for answer in answers if answer.stream == stream]
            if wanted and not queue.full():
                queue.put_nowait(wanted)

    def watch(self, stream: str | None) -> AsyncIterator[str]:
        """Events of one stream or of all: `steps` with a list of answers, each with its stream."""
        if len(self._watchers) >= _MOST_WATCHERS:
            raise Refused(503, f"{_MOST_WATCHERS} are watching already.")
        return self._told(stream)

    async def _told(self, stream: str | None) -> AsyncIterator[str]:
        queue: asyncio.Queue[list[Answer]] = asyncio.Queue(_MOST_BEHIND)
        self._watchers[queue] = stream
        try:
            yield "retry: 1000\n\n"
            while not self._closing.is_set():
                try:
                    answers = await asyncio.wait_for(queue.get(), _SECONDS)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                for start in range(0, len(answers), _AT_ONCE):
                    some = answers[start : start + _AT_ONCE]
                    data = ",".join(f'{{"stream":"{answer.stream}",{answer.text[1:]}' for answer in some)
                    yield f"event: steps\ndata: [{data}]\n\n"
        finally:
            self._watchers.pop(queue, None)
