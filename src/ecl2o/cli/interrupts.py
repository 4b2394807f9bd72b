"""Ctrl-C and SIGTERM: a line, temporary folders removed, exit code 130, and nothing left that computes."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130  # what shells call a command that was interrupted
_UNWINDING = 2.0  # seconds in which a second signal does not disturb the cleaning up that the first began
_MOMENT = 0.05


class _Interrupt:
    """The handler of both signals: it raises KeyboardInterrupt in the main thread, and remembers that it did.

    While a module is imported it waits: modules in C that are interrupted on their way end the process, or are left half made.
    Where somebody swallows what it raises, and the process goes on, it is raised again.
    """

    def __init__(self):
        self.met = False
        self._quiet_until = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() < self._quiet_until:
            return
        if _is_importing(frame):
            _interrupt_after(_MOMENT)
            return
        self.met, self._quiet_until = True, time.monotonic() + _UNWINDING
        _interrupt_after(_UNWINDING + _MOMENT)
        raise KeyboardInterrupt

    def look_after(self) -> None:
        """Take both signals, except where the process was started to ignore them, as in the background of a script."""
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self)
        shown = sys.unraisablehook

        def lost(unraisable: Any) -> None:
            """Nobody hears what is raised while garbage is collected, where JAX has a word too: it is raised again."""
            if not issubclass(unraisable.exc_type, KeyboardInterrupt):
                return shown(unraisable)
            self._quiet_until = 0.0
            return _interrupt_after(_MOMENT)

        sys.unraisablehook = lost


def _is_importing(frame: FrameType | None) -> bool:
    """Whether what is interrupted is on its way through an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _interrupt_after(seconds: float) -> None:
    """An interrupt after so many seconds, if the process is still there."""
    timer = threading.Timer(seconds, os.kill, [os.getpid(), signal.SIGINT])
    timer.daemon = True
    timer.start()


def run_interruptible(command: Callable[[], None]) -> None:
    """Run a command as the only thing that its process does.

    An interrupt may surface as another error, where a library has caught it. After it the process is left at once: threads of XLA
    that outlive the interpreter crash, and nobody waits for a training of which nothing is kept.
    """
    interrupt = _Interrupt()
    interrupt.look_after()
    try:
        command()
    except SystemExit as end:
        if not (interrupt.met and end.code):
            raise
    except BaseException:
        if not interrupt.met:
            raise
    else:
        return
    _leave()


def _leave() -> NoReturn:
    with contextlib.suppress(OSError, ValueError):
        print("ecl2o: interrupted.", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or nobody reads it
            stream.flush()
    os._exit(INTERRUPTED)


def leave_termination_to_the_system() -> None:
    """For commands whose state is on disk at every moment: their supervisor expects SIGTERM to end them as any process."""
    if isinstance(signal.getsignal(signal.SIGTERM), _Interrupt):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
