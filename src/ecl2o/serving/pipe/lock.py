"""A state file has one owner at a time."""

import contextlib
import datetime
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from ecl2o.serving import policy_file


@contextlib.contextmanager
def holding(state: Path) -> Iterator[None]:
    """Hold a state file, until this ends or the process does; refused, with who holds it, where somebody else does.

    What a killed process left unfinished beside it is removed.
    """
    lock = state.with_name(f".{state.name}.lock")
    with open(lock, "a+", encoding="utf-8") as file:
        if not _locked(file.fileno()):
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise ValueError(
                f"{state} is held by {holder}. Two processes would both play; stop one, or give it its own state."
            )
        file.seek(0)
        file.truncate()
        now = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {now}")
        file.flush()
        policy_file.remove_unfinished(state)
        yield


def _locked(descriptor: int) -> bool:
    """Whether the file is ours now. The system lets go of it when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such thing on Windows: there is no lock then
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
