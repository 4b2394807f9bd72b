"""Ctrl-C and SIGTERM: a line, temporary folders removed, exit code 130, and nothing left that computes."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

INTERRUPTED = 130  # what shells call a command that was interrupted
_UNWINDING = 2.0  # seconds in which a second signal does not disturb the cleaning up that the first began


class _Interrupt:
    """The handler of both signals: it raises KeyboardInterrupt in the main thread, and remembers that it did."""

    def __init__(self):
        self.met = False
        self._quiet_until = 0.0

    def __call__(self, number: int, frame: Any) -> None:
        if time.monotonic() < self._quiet_until:
            return
        self.met, self._quiet_until = True, time.monotonic() + _UNWINDING
        raise KeyboardInterrupt

    def look_after(self) -> None:
        """Take both signals, except where the process was started to ignore them, as in the background of a script."""
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self)
        shown, told = sys.unraisablehook, sys.excepthook

        def lost(unraisable: Any) -> None:
            """Nobody hears what is raised while garbage is collected, where JAX has a word too: it is raised again."""
            if not issubclass(unraisable.exc_type, KeyboardInterrupt):
                return shown(unraisable)
            self._quiet_until = 0.0
            again = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT])
            again.daemon = True
            return again.start()

        def printed(kind: Any, error: Any, trace: Any) -> None:
            """Modules in C print what ended their import, and raise something else."""
            if not issubclass(kind, KeyboardInterrupt):
                told(kind, error, trace)

        sys.unraisablehook, sys.excepthook = lost, printed


def ending_well(command: Callable[[], None]) -> None:
    """Run a command as the only thing that its process does.

    An interrupt may surface as another error: modules that are half imported raise ImportError. After it the process is left at
    once: threads of XLA that outlive the interpreter crash, and nobody waits for a training of which nothing is kept.
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
