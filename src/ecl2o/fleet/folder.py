"""The folder of a fleet: a policy and a line of figures for each site, from which an interrupted run goes on."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecl2o.fitting.settings import Progress, ignore_progress
from ecl2o.fleet.cluster import DEFAULT_MEMORY
from ecl2o.fleet.evaluating import SiteToTest, evaluate_chunks, make_test_chunks, tested_row
from ecl2o.fleet.fitting import check_site, failed_row, fit_chunks, make_site_chunks, start_warmup
from ecl2o.fleet.sites import FailedSite, LoadedSite
from ecl2o.policy import save

if TYPE_CHECKING:
    from distributed import Client

POLICIES, TABLE, PAGE = "policies", "sites.parquet", "report.html"
FITTED, TESTED = "fitted.jsonl", "tested.jsonl"  # the ledgers
ERRORS = "errors.log"  # of the last run: where in the program each failed site failed


def check_output_folder(folder: Path, ledger: str) -> None:
    """Refuse a path that exists and is neither an empty folder nor one that a run with such a ledger left behind."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; choose another one with --out.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / ledger).is_file():
        raise ValueError(f"{folder} holds something that no such run has left there; choose another folder with --out.")


def fit_into(
    folder: Path,
    sites: Iterable[LoadedSite | FailedSite],
    client: "Client | None" = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress = ignore_progress,
    expected: int = 0,
) -> list[dict[str, Any]]:
    """Fit all sites that the folder does not have yet; a row for each site, in their order.

    Sites may be read while they are asked for; with `expected`, how many there will be, workers compile meanwhile.

    A site is done if the ledger has it with the same series, recipe and version, and its policy is there. Chunks are cut from
    all sites, whatever is done, and done again whole: an interrupted run ends with the policies of one that was not.
    """
    check_output_folder(folder, FITTED)
    (folder / POLICIES).mkdir(parents=True, exist_ok=True)
    ledger = Journal(folder / FITTED)

    def done(site: LoadedSite) -> bool:
        return ledger.has(site.name, site.digest) and _policy_file(folder, site.name).is_file()

    checked: list[LoadedSite | FailedSite] = []
    good: list[LoadedSite] = []
    warmup = None
    for site in map(check_site, sites):
        checked.append(site)
        if isinstance(site, LoadedSite):
            good.append(site)
            if len(good) == 1 and not done(site):
                warmup = start_warmup(site, expected, client, memory)
    _begin_log(folder, [site for site in checked if isinstance(site, FailedSite)])
    missing = [chunk for chunk in make_site_chunks(good, memory) if not all(map(done, chunk.wanted))]
    finished = len(good) - sum(chunk.count for chunk in missing)
    progress("fitting sites", finished, len(good))
    for chunk, outcomes in fit_chunks(missing, client, warmup):
        for outcome in outcomes:  # policies first, then the lines that say they are there
            if outcome.policy is not None:
                save(_policy_file(folder, outcome.name), outcome.policy)
        _log(folder, [outcome.failure for outcome in outcomes if outcome.failure is not None])
        ledger.add([outcome.row for outcome in outcomes])
        finished += chunk.count
        progress("fitting sites", finished, len(good))
    return [failed_row(site) if isinstance(site, FailedSite) else ledger.rows[site.name] for site in checked]


def evaluate_into(
    folder: Path,
    sites: Iterable[SiteToTest | FailedSite],
    client: "Client | None" = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress = ignore_progress,
) -> list[dict[str, Any]]:
    """Test the policies of all sites that the folder has no figures of yet; a row for each site, in their order."""
    check_output_folder(folder, TESTED)
    folder.mkdir(parents=True, exist_ok=True)
    read, ledger = list(sites), Journal(folder / TESTED)
    good = [site for site in read if isinstance(site, SiteToTest)]
    _begin_log(folder, [site for site in read if isinstance(site, FailedSite)])
    chunks = make_test_chunks(good, memory)
    missing = [chunk for chunk in chunks if not all(ledger.has(site.name, site.digest) for site in chunk.wanted)]
    finished = len(good) - sum(chunk.count for chunk in missing)
    progress("testing sites", finished, len(good))
    for chunk, found in evaluate_chunks(missing, client):
        _log(folder, [each for each in found if isinstance(each, FailedSite)])
        ledger.add([tested_row(each) for each in found])
        finished += chunk.count
        progress("testing sites", finished, len(good))
    return [tested_row(site) if isinstance(site, FailedSite) else ledger.rows[site.name] for site in read]


def _begin_log(folder: Path, failed: Sequence[FailedSite]) -> None:
    """A new log of errors, beginning with these; none as long as nothing fails."""
    (folder / ERRORS).unlink(missing_ok=True)
    _log(folder, failed)


def _log(folder: Path, failed: Sequence[FailedSite]) -> None:
    if failed:
        with (folder / ERRORS).open("a", encoding="utf-8") as file:
            file.writelines(f"{site.name}: {site.reason}\n{site.trace}\n" for site in failed)


def _policy_file(folder: Path, name: str) -> Path:
    return folder / POLICIES / f"{name}.ecl2o"


class Journal:
    """What a run has done so far, a line for each site; a line that was not finished is not there."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {row["name"]: row for row in self._read()}

    def _read(self) -> Sequence[dict[str, Any]]:
        if not self.path.exists():
            self.path.touch()
            return []
        whole, end, part = self.path.read_bytes().rpartition(b"\n")
        if part:  # the run was ended while it wrote
            os.truncate(self.path, len(whole) + len(end))
        return [json.loads(line) for line in whole.splitlines()]

    def has(self, name: str, digest: str) -> bool:
        """Whether a site is done, with the series and the settings that the digest stands for."""
        row = self.rows.get(name, {})
        return row.get("status") != "failed" and row.get("digest") == digest

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Lines that are on the disk when this returns."""
        with self.path.open("a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
                self.rows[row["name"]] = row
            file.flush()
            os.fsync(file.fileno())
