"""The folder of a fleet: a policy and a row of figures per site, from which an interrupted run resumes."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecl2o.fitting.settings import Progress, ignore_progress
from ecl2o.fleet.cluster import DEFAULT_MEMORY, Chunk, run_chunks
from ecl2o.fleet.fit_and_evaluate import (
    SiteToTest,
    check_site,
    evaluate_together,
    fit_chunks,
    make_site_chunks,
    make_test_chunks,
    start_warmup,
)
from ecl2o.fleet.sites import LoadedSite, SiteResult
from ecl2o.policy import save

if TYPE_CHECKING:
    from distributed import Client

POLICIES, TABLE, PAGE = "policies", "sites.parquet", "report.html"
FITTED, TESTED = "fitted.jsonl", "tested.jsonl"  # journals
ERRORS = "errors.log"  # tracebacks of the sites that failed in the last run


def check_output_folder(folder: Path, journal: str) -> None:
    """Raise unless the path is new, an empty folder, or a folder of an earlier run with this journal."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`out` must be a folder, but {folder} is a file; choose another one.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / journal).is_file():
        raise ValueError(f"`out` must be a new or empty folder, or one of an earlier run with {journal}; got {folder}.")


def fit_into(
    folder: Path,
    sites: Iterable[LoadedSite | SiteResult],
    client: "Client | None" = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress = ignore_progress,
    expected: int = 0,
) -> list[dict[str, Any]]:
    """Fit the sites that are missing in the folder; return a row for each site, in their order.

    A site is done if the journal has it with the same series, settings and version, and its policy exists. Chunks are made from
    all sites and repeated whole, so a resumed run ends with the same policies as an uninterrupted one.

    Args:
        folder: receives the policies, the journal and the log of errors.
        sites: the sites; an iterator is read while workers compile.
        client: client of a Dask cluster. Default: None, this process.
        memory: bytes that a process may use. Default: 4 GB.
        progress: called with (stage, done, total).
        expected: number of sites, for compiling ahead. Default: 0, unknown.
    """
    journal = Journal(folder, FITTED)
    (folder / POLICIES).mkdir(exist_ok=True)

    def is_done(site: LoadedSite) -> bool:
        return journal.has(site) and _policy_file(folder, site.name).is_file()

    checked: list[LoadedSite | SiteResult] = []
    good: list[LoadedSite] = []
    warmup = {}
    for site in map(check_site, sites):
        checked.append(site)
        if isinstance(site, LoadedSite):
            good.append(site)
            if len(good) == 1 and not is_done(site):
                warmup = start_warmup(site, expected, client, memory)
    missing = [chunk for chunk in make_site_chunks(good, memory) if not all(map(is_done, chunk.wanted))]
    return journal.complete(checked, missing, fit_chunks(missing, client, warmup), "fitting sites", progress)


def evaluate_into(
    folder: Path,
    sites: Iterable[SiteToTest | SiteResult],
    client: "Client | None" = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress = ignore_progress,
) -> list[dict[str, Any]]:
    """Test the policies whose figures the folder lacks; return a row for each site, in their order."""
    journal, read = Journal(folder, TESTED), list(sites)
    chunks = make_test_chunks([site for site in read if isinstance(site, SiteToTest)], memory)
    missing = [chunk for chunk in chunks if not all(map(journal.has, chunk.wanted))]
    results = run_chunks(evaluate_together, missing, client)
    return journal.complete(read, missing, results, "testing sites", progress)


def _policy_file(folder: Path, name: str) -> Path:
    return folder / POLICIES / f"{name}.ecl2o"


class Journal:
    """The rows of the sites that are done, one line each; an unfinished last line is dropped.

    Args:
        folder: an empty folder, or one of an earlier run with this journal; made if there is none.
        file: name of the journal in it.
    """

    def __init__(self, folder: Path, file: str):
        check_output_folder(folder, file)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path = folder, folder / file
        self.path.touch()
        whole, end, part = self.path.read_bytes().rpartition(b"\n")
        if part:  # the run was ended while it wrote
            os.truncate(self.path, len(whole) + len(end))
        self.rows: dict[str, dict[str, Any]] = {row["name"]: row for row in map(json.loads, whole.splitlines())}

    def has(self, site: LoadedSite | SiteToTest) -> bool:
        """Return whether a site is done with the same series and settings."""
        row = self.rows.get(site.name, {})
        return row.get("status") != "failed" and row.get("digest") == site.digest

    def complete(
        self,
        sites: Sequence[LoadedSite | SiteToTest | SiteResult],
        missing: Sequence[Chunk[Any]],
        results: Iterator[tuple[Chunk[Any], list[SiteResult]]],
        stage: str,
        progress: Progress,
    ) -> list[dict[str, Any]]:
        """Write the results of the missing chunks as they finish; return the rows of all sites."""
        (self.folder / ERRORS).unlink(missing_ok=True)
        failed = [site for site in sites if isinstance(site, SiteResult)]
        self._log(failed)
        total = len(sites) - len(failed)
        finished = total - sum(chunk.count for chunk in missing)
        progress(stage, finished, total)
        for chunk, found in results:
            for result in found:  # policies first, then the rows that refer to them
                if result.policy is not None:
                    save(_policy_file(self.folder, result.name), result.policy)
            self._log(found)
            self._add([result.row for result in found])
            finished += chunk.count
            progress(stage, finished, total)
        return [site.row if isinstance(site, SiteResult) else self.rows[site.name] for site in sites]

    def _add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write rows; they are on the disk when this returns."""
        with self.path.open("a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
                self.rows[row["name"]] = row
            file.flush()
            os.fsync(file.fileno())

    def _log(self, results: Sequence[SiteResult]) -> None:
        """Append the tracebacks of failed sites to the log of errors, which exists only if a site failed."""
        lines = [f"{each.name}: {each.row['reason']}\n{each.trace}\n" for each in results if each.trace]
        if lines:
            with (self.folder / ERRORS).open("a", encoding="utf-8") as file:
                file.writelines(lines)
