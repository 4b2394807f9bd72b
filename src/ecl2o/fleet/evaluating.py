"""Test every site's policy on its series; policies of one structure run as one program."""

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
from ecl2o.fitting.read import SeriesReader, screen_series
from ecl2o.fitting.settings import Progress, ignore_progress
from ecl2o.fitting.test_days import count_seen_days, policy_test_days
from ecl2o.fleet.cluster import DEFAULT_MEMORY, Chunk, make_chunks, run_pieces
from ecl2o.fleet.fitting import failed_row, figures, score_by_structure
from ecl2o.fleet.sites import FailedSite, SiteSpec, find_sites
from ecl2o.policy import Policy, load

if TYPE_CHECKING:
    from distributed import Client

_STEP_BYTES = 1000  # of a run
Tested = dict[str, Any] | FailedSite  # a row of figures, or the reason of a failure


@dataclasses.dataclass(frozen=True)
class SiteToTest:
    """A site's policy and its screened series.

    Args:
        name: name of the site.
        policy: the policy to test.
        contexts: the series, with implausible readings replaced.
        days: number of days to test on, the last ones; None: all after the policy's history.
        screened: number of readings that were replaced.
    """

    name: str
    policy: Policy
    contexts: Contexts
    days: int | None
    screened: int = 0

    @property
    def digest(self) -> str:
        """A hash of everything that its figures depend on."""
        inputs = (
            self.policy.fingerprint,
            self.days,
            self.contexts.steps_per_day,
            self.contexts.values.shape,
            __version__,
        )
        return hashlib.sha256(self.contexts.values.tobytes() + repr(inputs).encode()).hexdigest()


def evaluate_sites(
    sites: str | Path,
    policies: Mapping[str, Policy] | str | Path,
    client: "Client | None" = None,
    *,
    days: int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress = ignore_progress,
) -> list[dict[str, Any]]:
    """Test the policy of every site on its series; return a row for each, in their spec.

    Args:
        sites: a folder, a glob or a manifest (`find_sites`).
        policies: policies by the names of sites, or the folder of files NAME.ecl2o.
        client: client of a Dask cluster. Default: None, this process.
        days: number of days to test on, the last ones. Default: all.
        memory: bytes that a process may use. Default: 4 GB.
        progress: called with (stage, done, total).

    Returns:
        Figures by name; a site that failed has the status "failed" and a reason.
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
    """Divide the sites into chunks of policies of one structure."""
    return make_chunks(sites, _shape, _bytes, memory)


def evaluate_chunks(
    chunks: Sequence[Chunk[SiteToTest]], client: "Client | None" = None
) -> Iterator[tuple[Chunk[SiteToTest], Sequence[Tested]]]:
    """Yield each chunk with its rows or failures, as they finish."""
    for place, found in run_pieces(evaluate_chunk, [(chunk,) for chunk in chunks], client):
        chunk = chunks[place]
        if isinstance(found, ChunkFailedError):
            found = [FailedSite(site.name, f"the cluster failed: {found}") for site in chunk.wanted]
        yield chunk, found


def read_to_test(
    specs: Sequence[SiteSpec], policies: Mapping[str, Policy] | str | Path, reader: SeriesReader, days: int | None
) -> Iterator[SiteToTest | FailedSite]:
    """Yield each site with its policy and its series, or the reason of a failure."""
    for spec in specs:
        try:
            spec.check_name()
            with jax.enable_x64(True):
                if isinstance(policies, Mapping):
                    if spec.name not in policies:
                        raise ValueError(f"{spec.name} has no policy.")
                    policy = policies[spec.name]
                else:
                    policy = load(Path(policies) / f"{spec.name}.ecl2o")
            contexts = spec.make_reader(reader).for_policy(policy).read_days()
            with jax.enable_x64(True):
                contexts, replaced = screen_series(contexts, policy.contract.screen)
            if days is not None and days > contexts.n_days - 1:
                raise ValueError(
                    f"days must be at most {contexts.n_days - 1}, got {days}: a test starts after the first."
                )
            yield SiteToTest(spec.name, policy, contexts, days, len(replaced))
        except (ValueError, OSError) as error:
            yield FailedSite.of(spec.name, error)


def evaluate_chunk(chunk: Chunk[SiteToTest]) -> Sequence[Tested]:
    """Test policies of one structure as one program; if that fails, one by one."""
    with jax.enable_x64(True):
        try:
            return [*_test_together(chunk.items)[: chunk.count]]
        except Exception as error:
            if len(chunk.items) == 1:
                return [FailedSite.of(chunk.items[0].name, error)]
            return [evaluate_chunk(Chunk((site,), 1))[0] for site in chunk.wanted]


def _test_together(sites: Sequence[SiteToTest]) -> list[dict[str, Any]]:
    found = [policy_test_days(site.policy, site.contexts, site.days) for site in sites]
    test_days = [days for days, _ in found]
    contenders = [make_contender(site.policy.agent, site.policy.problem, site.policy.forecaster) for site in sites]
    own = score_by_structure(contenders, test_days)
    expert = score_by_structure([Contender(ROBD())] * len(sites), test_days)
    rows = []
    for site, (days, first), scored, reference in zip(sites, found, own, expert, strict=True):
        worst = site.contexts.time[(first + scored.worst_day) * site.contexts.steps_per_day]
        rows.append(
            {
                "name": site.name,
                "status": "tested",
                "reason": None,
                "days": days.days.shape[0],
                "screened": site.screened,
                "days_seen": count_seen_days(site.policy, site.contexts, first),
                **figures(scored),
                "worst_day_starts": str(worst),
                "r_obd_cost": reference.average_cost,
                "r_obd_ratio": reference.competitive_ratio,
                "policy": site.policy.fingerprint,
                "digest": site.digest,
            }
        )
    return rows


def tested_row(found: Tested) -> dict[str, Any]:
    """Return the row of a site, tested or failed."""
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
