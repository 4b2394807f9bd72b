"""The folder that a run leaves behind: complete or not there at all."""

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ecl2o.json_text import json_text
from ecl2o.plots import style
from ecl2o.plots.style import REPORT_FORMATS

RESULTS, PAGE, CONFIG, FIGURES, POLICIES = "results.json", "report.html", "config.toml", "figures", "policies"
TABLE = "sweep.parquet"
_SUFFIXES = {FIGURES: {f".{kind}" for kind in REPORT_FORMATS}, POLICIES: {".ecl2o"}}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what only writing, or reading, can fail by


@contextlib.contextmanager
def atomic_folder(path: Path, option: str = "--out") -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` when the block ends well, and vanishes when it does not.

    Raises `ValueError`, before and after the block, if the folder holds anything but a report of ours.
    `option` is what chooses the path.
    """
    path = Path(os.path.abspath(path))
    check_replaceable(path, option)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as spare:
        fresh, old = Path(spare, "new"), Path(spare, "old")
        fresh.mkdir()
        with name_path_in_errors(path):
            yield fresh
        check_replaceable(path, option)
        if path.exists():
            path.rename(old)
        try:
            fresh.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise


@contextlib.contextmanager
def name_path_in_errors(path: Path) -> Iterator[None]:
    """Say what was being written, where the system does not: on a full disk it names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def check_replaceable(path: Path, option: str = "--out") -> None:
    """Refuse a path that exists and is neither an empty folder nor a report of ours and nothing else."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ValueError(f"{path} is not a folder; choose another one with {option}.")
    foreign = _find_foreign(path) if path.exists() else None
    if foreign is not None:
        found = foreign.relative_to(path)
        raise ValueError(f"{path} holds {found}, not of a report, and is not overwritten; choose another {option}.")


def _find_foreign(folder: Path) -> Path | None:
    """Return something in a folder that this program did not put there."""
    for entry in sorted(folder.iterdir()):
        if entry.name in (RESULTS, PAGE, CONFIG, TABLE) and entry.is_file() and not entry.is_symlink():
            continue
        if entry.name not in _SUFFIXES or not entry.is_dir() or entry.is_symlink():
            return entry
        for inner in sorted(entry.iterdir()):
            if inner.suffix not in _SUFFIXES[entry.name] or not inner.is_file():
                return inner
    results = folder / RESULTS
    return None if not any(folder.iterdir()) or _is_ours(results) else results


def _is_ours(results: Path) -> bool:
    try:
        found = json.loads(results.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "format" in found and "study" in found


def write_results(folder: Path, results: dict[str, Any], figures: dict[str, Figure]) -> None:
    """Write figures by name, in every format, and results.json into an empty folder."""
    (folder / FIGURES).mkdir()
    for name, figure in figures.items():
        for kind in REPORT_FORMATS:
            style.save_figure(figure, folder / FIGURES / f"{name}.{kind}")
    write_text(folder / RESULTS, json_text(results) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 with Unix line ends on every system."""
    path.write_text(text, encoding="utf-8", newline="\n")
