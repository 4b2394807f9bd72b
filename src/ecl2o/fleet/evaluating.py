"""Every site's policy on its series: policies of one structure together."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from ecl2o import __version__
from ecl2o.agents import ROBD
from ecl2o.data import Contexts
from ecl2o.evaluation.comparison import Contender, make_contender
from ecl2o.exceptions import ChunkFailedError
from ecl2o.fitting.progress import Progress, ignore_progress
from ecl2o.fitting.read import SeriesReader
from ecl2o.fitting.screen import screen_series
from ecl2o.fitting.test_days import count_seen_days, policy_test_days
from ecl2o.fleet.cluster import DEFAULT_MEMORY, Chunk, make_chunks, run_pieces
from ecl2o.fleet.fitting import failed_row, figures, score_by_structure
from ecl2o.fleet.sites import FailedSite, SiteSpec, find_sites
from ecl2o.policy import Policy, load

if TYPE_CHECKING:
    from distributed import Client

_STEP_BYTES = 1000  # of a run
Tested = dict[str, Any] | FailedSite  # a row of figures, or why there is none


@dataclasses.dataclass(frozen=True)
class SiteToTest:
    """A site's policy, and the series it is tested on, as the policy's screen lets it through.

    That is the last `days` of it, None: all but what the policy begins on.
    """

    name: str
    policy: Policy
    contexts: Contexts
    days: int | None
    screened: int = 0  # readings that were not plausible, and replaced

    @property
    def digest(self) -> str:
        """A hash of all that its figures depend on."""
        told = (
            self.policy.fingerprint,
            self.days,
            self.contexts.steps_per_day,
            self.contexts.values.shape,
            __version__,
        )
        return hashlib.sha256(self.contexts.values.tobytes() + repr(told).encode()).hexdigest()


def evaluate_sites(
    sites: str | Path,
    policies: Mapping[str, Policy] | str | Path,
    client: "Client | None" = None,
    *,
    days: int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress = ignore_progress,
) -> list[dict[str, Any]]:
    """A row for every site, in their order: its policy on its series, or why there is none.

    Args:
        sites: a folder, a glob or a manifest (`find_sites`).
        policies: by the names of sites, or the folder that holds them, NAME.ecl2o.
        client: of a Dask cluster; None: this process.
        days: only the last so many days. Default: all.
        memory: bytes that a process may take.
        progress: told how far it is.
    """
    read = list(read_to_test(find_sites(sites), policies, SeriesReader(Path()), days))
    chunks = make_test_chunks([site for site in read if isinstance(site, SiteToTest)], memory)
    rows: dict[str, dict[str, Any]] = {}
    for done, (_, found) in enumerate(evaluate_chunks(chunks, client), start=1):
        for row in map(tested_row, found):
            rows[row["name"]] = row
        progress("testing sites", done, len(chunks))
    return [failed_row(site) if isinstance(site, FailedSite) else rows[site.name] for site in read]


def make_test_chunks(sites: Sequence[SiteToTest], memory: int = DEFAULT_MEMORY) -> list[Chunk[SiteToTest]]:
    """The chunks of these sites, of policies of one structure."""
    return make_chunks(sites, _shape, _bytes, memory)


def evaluate_chunks(
    chunks: Sequence[Chunk[SiteToTest]], client: "Client | None" = None
) -> Iterator[tuple[Chunk[SiteToTest], Sequence[Tested]]]:
    """Each chunk with its rows, or why there are none, as they are done."""
    for place, found in run_pieces(evaluate_chunk, [(chunk,) for chunk in chunks], client):
        chunk = chunks[place]
        if isinstance(found, ChunkFailedError):
            found = [FailedSite(site.name, f"the cluster could not do it: {found}") for site in chunk.wanted]
        yield chunk, found


def read_to_test(
    orders: Sequence[SiteSpec], policies: Mapping[str, Policy] | str | Path, reading: SeriesReader, days: int | None
) -> Iterator[SiteToTest | FailedSite]:
    """Each site with its policy and its series, or why it cannot be tested."""
    for order in orders:
        try:
            order.check_name()
            with jax.enable_x64(True):
                if isinstance(policies, Mapping):
                    if order.name not in policies:
                        raise ValueError(f"{order.name} has no policy.")
                    policy = policies[order.name]
                else:
                    policy = load(Path(policies) / f"{order.name}.ecl2o")
            contexts = order.reading(reading).made_for(policy).whole()
            with jax.enable_x64(True):
                contexts, replaced = screen_series(contexts, policy.contract.screen)
            if days is not None and days > contexts.n_days - 1:
                raise ValueError(
                    f"there are {contexts.n_days} whole days, and {days} cannot be tested with one before them."
                )
            yield SiteToTest(order.name, policy, contexts, days, len(replaced))
        except (ValueError, OSError) as error:
            yield FailedSite.of(order.name, error)


def evaluate_chunk(chunk: Chunk[SiteToTest]) -> Sequence[Tested]:
    """Test policies of one structure as one program; where that fails, one after the other."""
    with jax.enable_x64(True):
        try:
            return [*_tested(chunk.items)[: chunk.count]]
        except Exception as error:
            if len(chunk.items) == 1:
                return [FailedSite.of(chunk.items[0].name, error)]
            return [evaluate_chunk(Chunk((site,), 1))[0] for site in chunk.wanted]


def _tested(sites: Sequence[SiteToTest]) -> list[dict[str, Any]]:
    found = [policy_test_days(site.policy, site.contexts, site.days) for site in sites]
    beds = [bed for bed, _ in found]
    entries = [make_contender(site.policy.agent, site.policy.problem, site.policy.forecaster) for site in sites]
    own = score_by_structure(entries, beds)
    expert = score_by_structure([Contender(ROBD())] * len(sites), beds)
    rows = []
    for site, (bed, first), entry, beside in zip(sites, found, own, expert, strict=True):
        worst = site.contexts.time[(first + entry.worst_day) * site.contexts.steps_per_day]
        rows.append(
            {
                "name": site.name,
                "status": "tested",
                "reason": None,
                "days": bed.days.shape[0],
                "screened": site.screened,
                "days_seen": count_seen_days(site.policy, site.contexts, first),
                **figures(entry),
                "worst_day_starts": str(worst),
                "r_obd_cost": beside.average_cost,
                "r_obd_ratio": beside.competitive_ratio,
                "policy": site.policy.fingerprint,
                "digest": site.digest,
            }
        )
    return rows


def tested_row(found: Tested) -> dict[str, Any]:
    """A row, also of a site that could not be tested."""
    return failed_row(found) if isinstance(found, FailedSite) else found


def _shape(site: SiteToTest) -> tuple[Any, ...]:
    leaves, structure = jax.tree.flatten((site.policy.agent, site.policy.problem, site.policy.forecaster))
    contract, history = site.policy.contract, site.policy.history
    kept = contract.history_steps, None if history is None else len(history)
    return (
        structure,
        tuple(leaf.shape for leaf in leaves),
        site.contexts.values.shape,
        kept,
        site.contexts.steps_per_day,
    )


def _bytes(site: SiteToTest) -> int:
    return site.contexts.values.size * _STEP_BYTES
