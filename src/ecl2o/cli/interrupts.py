"""Ctrl-C and SIGTERM: one line on standard error, temporary folders removed, exit code 130."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

INTERRUPTED = 130  # the exit code of an interrupted command in shells
_UNWINDING = 2.0  # seconds for cleaning up, in which further signals are ignored
_MOMENT = 0.05


class _Interrupt:
    """The handler of both signals: raises KeyboardInterrupt in the main thread, and remembers that it did.

    During an import it waits, because C modules do not survive an interrupt there. If something swallows the exception and the
    process continues, it is raised again.
    """

    def __init__(self):
        self.raised = False
        self._quiet_until = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() < self._quiet_until:
            return
        if _is_importing(frame):
            _interrupt_after(_MOMENT)
            return
        self.raised, self._quiet_until = True, time.monotonic() + _UNWINDING
        _interrupt_after(_UNWINDING + _MOMENT)
        raise KeyboardInterrupt

    def install(self) -> None:
        """Handle both signals, unless the process was started to ignore them, as in the background of a script."""
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self)
        original = sys.unraisablehook

        def raise_again(unraisable: Any) -> None:
            """Raise once more what was lost in a garbage collection, where JAX has a callback."""
            if not issubclass(unraisable.exc_type, KeyboardInterrupt):
                return original(unraisable)
            self._quiet_until = 0.0
            return _interrupt_after(_MOMENT)

        sys.unraisablehook = raise_again


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _interrupt_after(seconds: float) -> None:
    timer = threading.Timer(seconds, os.kill, [os.getpid(), signal.SIGINT])
    timer.daemon = True
    timer.start()


def run_interruptible(command: Callable[[], None]) -> None:
    """Run a command as the only work of its process, and exit with 130 after an interrupt.

    An interrupt may surface as another error where a library catches it. After it the process exits at once: XLA's threads
    crash if they outlive the interpreter.
    """
    interrupt = _Interrupt()
    interrupt.install()
    try:
        command()
    except SystemExit as end:
        if not (interrupt.raised and end.code):
            raise
    except BaseException:
        if not interrupt.raised:
            raise
    else:
        return
    with contextlib.suppress(OSError, ValueError):
        print("ecl2o: interrupted.", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed
            stream.flush()
    os._exit(INTERRUPTED)


def use_default_sigterm() -> None:
    """Let SIGTERM end the process at once, for commands whose state is always on disk."""
    if isinstance(signal.getsignal(signal.SIGTERM), _Interrupt):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
