"""Test every site's policy on its series; policies of one structure run as one program."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from ecl2o.agents import ROBD
from ecl2o.data import Contexts
from ecl2o.evaluation.comparison import Contender, make_contender
from ecl2o.fitting.read import SeriesReader, screen_series
from ecl2o.fitting.settings import Progress, ignore_progress
from ecl2o.fitting.tasks import count_seen_days, policy_test_days
from ecl2o.fleet.cluster import DEFAULT_MEMORY, Chunk, make_chunks, run_chunks
from ecl2o.fleet.fitting import figures, score_by_structure, structure_of
from ecl2o.fleet.sites import SiteResult, SiteSpec, find_sites, hash_inputs
from ecl2o.policy import Policy, load

if TYPE_CHECKING:
    from distributed import Client

_STEP_BYTES = 1000  # of a run


@dataclasses.dataclass(frozen=True)
class SiteToTest:
    """A site's policy and its series, of which `screened` readings were replaced.

    `days` is the number of days to test on, the last ones; None: all after the policy's history.
    """

    name: str
    policy: Policy
    contexts: Contexts
    days: int | None
    screened: int = 0

    @property
    def digest(self) -> str:
        """A hash of everything that its figures depend on."""
        return hash_inputs(self.contexts, self.policy.fingerprint, self.days)


def evaluate_sites(
    sites: str | Path,
    policies: Mapping[str, Policy] | str | Path,
    client: "Client | None" = None,
    *,
    days: int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress = ignore_progress,
) -> list[dict[str, Any]]:
    """Test the policy of every site on its series; return a row for each, in their order.

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
    found: dict[str, SiteResult] = {}
    for done, (_, results) in enumerate(run_chunks(evaluate_together, chunks, client), start=1):
        found |= {result.name: result for result in results}
        progress("testing sites", done, len(chunks))
    return [site.row if isinstance(site, SiteResult) else found[site.name].row for site in read]


def make_test_chunks(sites: Sequence[SiteToTest], memory: int = DEFAULT_MEMORY) -> list[Chunk[SiteToTest]]:
    """Divide the sites into chunks of policies of one structure."""
    return make_chunks(sites, _shape, _bytes, memory)


def read_to_test(
    specs: Sequence[SiteSpec], policies: Mapping[str, Policy] | str | Path, reader: SeriesReader, days: int | None
) -> Iterator[SiteToTest | SiteResult]:
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
            yield SiteToTest(spec.name, policy, contexts, days, len(replaced))
        except (ValueError, OSError) as error:
            yield SiteResult.failed(spec.name, error)


def evaluate_together(sites: Sequence[SiteToTest]) -> list[SiteResult]:
    """Test policies of one structure as one program."""
    found = [policy_test_days(site.policy, site.contexts, site.days) for site in sites]
    test_days = [days for days, _ in found]
    contenders = [make_contender(site.policy.agent, site.policy.problem, site.policy.forecaster) for site in sites]
    own = score_by_structure(contenders, test_days)
    expert = score_by_structure([Contender(ROBD())] * len(sites), test_days)
    results = []
    for site, (days, first), scored, reference in zip(sites, found, own, expert, strict=True):
        worst = site.contexts.time[(first + scored.worst_day) * site.contexts.steps_per_day]
        row = {
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
        results.append(SiteResult(site.name, row))
    return results


def _shape(site: SiteToTest) -> tuple[Any, ...]:
    policy, contexts = site.policy, site.contexts
    saved = None if policy.history is None else len(policy.history)
    structure = structure_of((policy.agent, policy.problem, policy.forecaster))
    return structure, contexts.values.shape, policy.contract.history_steps, saved, contexts.steps_per_day


def _bytes(site: SiteToTest) -> int:
    return site.contexts.values.size * _STEP_BYTES
