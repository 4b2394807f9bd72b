"""The folder that a run leaves behind: complete or not there at all."""

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w
from matplotlib.figure import Figure

from ecl2o.report import style
from ecl2o.report.figures import FORMATS, plates, save_plate
from ecl2o.report.page import page
from ecl2o.report.plain_json import json_text
from ecl2o.serving import save
from ecl2o.studies.results import Study

RESULTS, PAGE, CONFIG, FIGURES, POLICIES = "results.json", "report.html", "config.toml", "figures", "policies"
TABLE = "sweep.parquet"
_SUFFIXES = {FIGURES: {f".{kind}" for kind in FORMATS}, POLICIES: {".ecl2o"}}
_HEADER = "# Settings of this run. To repeat it: ecl2o reproduce --config {CONFIG} --out ANOTHER_FOLDER\n"


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what only writing, or reading, can fail by


@contextlib.contextmanager
def whole_folder(path: Path, option: str = "--out") -> Iterator[Path]:
    """A temporary folder that takes the place of `path` when the block ends well, and vanishes when it does not.

    A folder that holds anything but a report of ours is not replaced. This is refused before the block runs, and again after.
    `option` is what chooses the path.
    """
    path = Path(os.path.abspath(path))
    refuse_foreign(path, option)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as spare:
        fresh, old = Path(spare, "new"), Path(spare, "old")
        fresh.mkdir()
        with naming(path):
            yield fresh
        refuse_foreign(path, option)
        if path.exists():
            path.rename(old)
        try:
            fresh.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Say what was being written, where the system does not: on a full disk it names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def refuse_foreign(path: Path, option: str = "--out") -> None:
    """Refuse a path that exists and is neither an empty folder nor a report of ours and nothing else."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ValueError(f"{path} is not a folder; choose another one with {option}.")
    stranger = _stranger(path) if path.exists() else None
    if stranger is not None:
        raise ValueError(
            f"{path} holds {stranger.relative_to(path)}, which no report of ours has, and is not overwritten; choose another "
            f"folder with {option}, or move that away."
        )


def _stranger(folder: Path) -> Path | None:
    """Something in a folder that this program did not put there."""
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


def write_report(study: Study, config: dict[str, Any], folder: Path, progress: Callable[[str, int, int], None]) -> None:
    """Everything a run leaves behind, into an empty folder; `config` is what config.toml holds."""
    shown = plates(study)
    figures, policies = folder / FIGURES, folder / POLICIES
    figures.mkdir()
    policies.mkdir()
    for done, plate in enumerate(shown, start=1):
        save_plate(plate, study, figures)
        progress("report", done, len(shown) + 1)
    for name, policy in study.policies.items():
        save(policies / f"{name}.ecl2o", policy)
    settings = settings_text(config)
    _write(folder / RESULTS, json.dumps(study.as_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    _write(folder / CONFIG, _HEADER.format(CONFIG=CONFIG) + settings)
    _write(folder / PAGE, page(study, settings, {plate: figures / f"{plate.stem}.svg" for plate in shown}))
    progress("report", len(shown) + 1, len(shown) + 1)


def write_results(folder: Path, results: dict[str, Any], figures: dict[str, Figure]) -> None:
    """Figures by name, in every format, and results.json, into an empty folder."""
    (folder / FIGURES).mkdir()
    for name, figure in figures.items():
        for kind in FORMATS:
            style.save_as(figure, folder / FIGURES / f"{name}.{kind}")
    _write(folder / RESULTS, json_text(results) + "\n")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def settings_text(values: dict[str, Any]) -> str:
    """Settings as TOML; what is None is left out, as TOML has no word for it.

    >>> print(settings_text({"seeds": 5, "weather": None, "more": {"quick": True}}))
    seeds = 5
    <BLANKLINE>
    [more]
    quick = true
    <BLANKLINE>
    """
    return tomli_w.dumps(_without_none(values))


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in values.items() if value is not None}
    return {key: _without_none(value) if isinstance(value, dict) else value for key, value in kept.items()}
