"""A policy for every site: sites of one shape together, each chunk a function of arrays and settings."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from ecl2o.data import Contexts
from ecl2o.evaluation import TestDays
from ecl2o.evaluation.comparison import ComparisonRow, Contender, make_row
from ecl2o.exceptions import ChunkFailedError
from ecl2o.fitting.batches import score_together
from ecl2o.fitting.candidates import check_promise_feasible, planner
from ecl2o.fitting.pipeline import Selection, reference_contenders, scale_task, select_candidates, series_problem
from ecl2o.fitting.progress import Progress, ignore_progress
from ecl2o.fitting.read import SeriesReader
from ecl2o.fitting.settings import FitSettings
from ecl2o.fleet.cluster import DEFAULT_MEMORY, Chunk, make_chunks, run_pieces, submit_to_cluster, threads
from ecl2o.fleet.sites import FailedSite, LoadedSite, find_sites, read_sites
from ecl2o.policy import Policy

if TYPE_CHECKING:
    from distributed import Client, Future

FLEET_SETTINGS = FitSettings(advisor="ridge")  # everything else is trained site by site (docs/scale.md)

# What a site takes while it is trained and tested, measured (docs/scale.md): for each step of its windows, and of its series.
_WINDOW_DAYS, _WINDOW_STEP_BYTES, _STEP_BYTES = 510, 800, 400


@dataclasses.dataclass(frozen=True)
class FittedSite:
    """A site's policy and its row of figures; without a policy, the row has the reason, and `failure` the traceback."""

    name: str
    row: dict[str, Any]
    policy: Policy | None = None
    failure: FailedSite | None = None

    @classmethod
    def failed(cls, site: FailedSite) -> "FittedSite":
        """The row of a site without a policy."""
        return cls(site.name, failed_row(site), failure=site)


def failed_row(site: FailedSite) -> dict[str, Any]:
    """The row of a site that could not be done."""
    return {"name": site.name, "status": "failed", "reason": site.reason}


def fit_sites(
    sites: str | Path | Mapping[str, Contexts],
    settings: FitSettings = FLEET_SETTINGS,
    client: "Client | None" = None,
    *,
    memory: int = DEFAULT_MEMORY,
    progress: Progress = ignore_progress,
) -> list[FittedSite]:
    """A policy for every site, in their order; a site that fails has a row that says why.

    Args:
        sites: a folder, a glob, a manifest (`find_sites`), or series by name (`data.series_contexts`).
        settings: how policies are made, but for what a manifest says.
        client: of a Dask cluster; None: this process. The policies are the same to the last bit.
        memory: bytes that a process may take.
        progress: told how far it is.
    """
    if isinstance(sites, Mapping):
        read: list[LoadedSite | FailedSite] = [LoadedSite(name, contexts, settings) for name, contexts in sites.items()]
    else:
        read = list(read_sites(find_sites(sites), settings, SeriesReader(Path())))
    checked = [check_site(site) for site in read]
    chunks = make_site_chunks([site for site in checked if isinstance(site, LoadedSite)], memory)
    found: dict[str, FittedSite] = {}
    for done, (_, outcomes) in enumerate(fit_chunks(chunks, client), start=1):
        found |= {outcome.name: outcome for outcome in outcomes}
        progress("fitting sites", done, len(chunks))
    return [FittedSite.failed(site) if isinstance(site, FailedSite) else found[site.name] for site in checked]


def check_site(site: LoadedSite | FailedSite) -> LoadedSite | FailedSite:
    """Refuse before it joins others what would be refused in training: a series that never changes, a promise nobody can keep."""
    if isinstance(site, FailedSite):
        return site
    try:
        with jax.enable_x64(True):
            check_promise_feasible(scale_task(site.contexts, site.settings))
    except ValueError as error:
        return FailedSite.of(site.name, error)
    return site


def make_site_chunks(sites: Sequence[LoadedSite], memory: int = DEFAULT_MEMORY) -> list[Chunk[LoadedSite]]:
    """The chunks of these sites; which ones they are depends on the sites and the memory, and on nothing else."""
    return make_chunks(sites, _shape, _bytes, memory)


def _shape(site: LoadedSite) -> tuple[Any, ...]:
    """What sites of one chunk share: all but numbers."""
    contexts, settings = site.contexts, site.settings
    terms = settings.terms
    asked = None if terms is None else (terms.per, terms.contexts is None)
    plan = planner(series_problem(contexts, settings.alpha, settings.bounds, settings.weights), contexts.steps_per_day)
    made = settings.advisor, settings.steps, settings.seed, settings.bounds is None, asked, plan.lookahead
    return contexts.values.shape, contexts.steps_per_day, contexts.split, made


def _bytes(site: LoadedSite) -> int:
    contexts = site.contexts
    steps = len(contexts.values) * contexts.dim * _STEP_BYTES
    trained = min(_WINDOW_DAYS, 30 * contexts.split.training_days) * contexts.steps_per_day * contexts.dim
    return steps + (trained * _WINDOW_STEP_BYTES if site.settings.promise is not None else 0)


@dataclasses.dataclass(frozen=True)
class CompileWarmup:
    """What a cluster has begun to compile, for the chunks of one shape; it goes on as long as this is held."""

    key: Any
    work: "tuple[Future, ...]" = dataclasses.field(repr=False)

    @classmethod
    def of(cls, chunk: Chunk[LoadedSite], client: "Client") -> "CompileWarmup":
        """One worker compiles what chooses policies, another what tests them, for the cache that they share."""
        # Named, since Dask may give both to the worker that is ready first.
        workers = itertools.cycle(client.scheduler_info()["workers"])
        stages = (compile_selection, compile_tests)
        return cls(
            _program(chunk), tuple(submit_to_cluster(stage, (chunk,), client, next(workers)) for stage in stages)
        )


def start_warmup(site: LoadedSite, expected: int, client: "Client | None", memory: int) -> CompileWarmup | None:
    """Let workers compile while the driver still reads, as if all sites that are expected were like this one.

    Where they are not, nothing is lost but time of workers that had nothing to do. None where there is one worker, or one chunk.
    """
    if client is None or threads(client) < 2:
        return None
    chunks = make_site_chunks([site] * expected, memory)
    return CompileWarmup.of(chunks[0], client) if len(chunks) > 1 else None


def fit_chunks(
    chunks: Sequence[Chunk[LoadedSite]], client: "Client | None" = None, warmup: CompileWarmup | None = None
) -> Iterator[tuple[Chunk[LoadedSite], list[FittedSite]]]:
    """Each chunk with its policies, as they are done; workers first compile what several chunks share."""
    known = set() if warmup is None else {warmup.key}
    several = _first_of_several(chunks) if client is not None and threads(client) > 1 else []
    _held = [
        CompileWarmup.of(chunk, client) for chunk in several if client is not None and _program(chunk) not in known
    ]
    for place, found in run_pieces(fit_chunk, [(chunk,) for chunk in chunks], client):
        chunk = chunks[place]
        if isinstance(found, ChunkFailedError):
            found = [
                FittedSite.failed(FailedSite(site.name, f"the cluster could not do it: {found}"))
                for site in chunk.wanted
            ]
        yield chunk, found


def _program(chunk: Chunk[LoadedSite]) -> Any:
    """What chunks that run the same programs have in common."""
    return _shape(chunk.items[0]), len(chunk.items)


def _first_of_several(chunks: Sequence[Chunk[LoadedSite]]) -> list[Chunk[LoadedSite]]:
    """The chunks that are the first of their shape, and not the only one."""
    alike: dict[Any, list[Chunk[LoadedSite]]] = {}
    for chunk in chunks:
        alike.setdefault(_program(chunk), []).append(chunk)
    return [same[0] for same in alike.values() if len(same) > 1]


def compile_selection(chunk: Chunk[LoadedSite]) -> None:
    """Compile what chooses this chunk's policies, by choosing them; unless it must be trained, which takes longer than that."""
    if chunk.items[0].settings.advisor == "ridge":
        with jax.enable_x64(True):
            select_candidates([site.contexts for site in chunk.items], [site.settings for site in chunk.items])


def compile_tests(chunk: Chunk[LoadedSite]) -> None:
    """Compile what will test this chunk's policies, by testing what needs no training, for the cache that workers share."""
    with jax.enable_x64(True):
        by_site = [Selection.untrained(site.contexts, site.settings) for site in chunk.items]
        for choices in zip(*by_site, strict=True):
            _tested(choices)


def fit_chunk(chunk: Chunk[LoadedSite]) -> list[FittedSite]:
    """Fit sites of one shape as one program; where that fails, one after the other, so that the one to blame is found."""
    with jax.enable_x64(True):
        try:
            return _fit_together(chunk.items)[: chunk.count]
        except Exception as error:
            if len(chunk.items) == 1:
                return [FittedSite.failed(FailedSite.of(chunk.items[0].name, error))]
            return [fit_chunk(Chunk((site,), 1))[0] for site in chunk.wanted]


def _fit_together(sites: Sequence[LoadedSite]) -> list[FittedSite]:
    choices = select_candidates([site.contexts for site in sites], [site.settings for site in sites])
    found = []
    for site, choice, rows in zip(sites, choices, _tested(choices), strict=True):
        policy = choice.policy(rows)
        found.append(FittedSite(site.name, _row(site, choice, rows, policy), policy))
    return found


def _tested(choices: Sequence[Selection]) -> list[list[ComparisonRow]]:
    """What was chosen for each site on its test days, beside R-OBD and RHC."""
    beds = [choice.test_bed() for choice in choices]
    beside = [reference_contenders(choice.problem, choice.contexts.steps_per_day) for choice in choices]
    scored = {"policy": score_by_structure([choice.entry for choice in choices], beds)}
    for name in ("r-obd", "rhc"):
        scored[name] = score_by_structure([entries[name] for entries in beside], beds)
    return [
        [dataclasses.replace(tests[place], name=name) for name, tests in scored.items()]
        for place in range(len(choices))
    ]


def score_by_structure(entries: Sequence[Contender], beds: Sequence[TestDays]) -> list[ComparisonRow]:
    """Entries with their scores, those of one structure as one program, of the same width whatever their number."""
    known = [
        bed if entry.history_steps is None else bed.with_history(entry.history_steps)
        for entry, bed in zip(entries, beds, strict=True)
    ]
    groups: dict[Any, list[int]] = {}
    for place, both in enumerate(zip(entries, known, strict=True)):
        groups.setdefault(_structure(both), []).append(place)
    found: dict[int, ComparisonRow] = {}
    for places in groups.values():
        filled = [*places, *[places[-1]] * (len(beds) - len(places))]
        scores = score_together([entries[i] for i in filled], [known[i] for i in filled])
        for i, score in zip(places, scores, strict=False):
            found[i] = make_row("policy", entries[i], beds[i], score)
    return [found[i] for i in range(len(entries))]


def _structure(tree: Any) -> tuple[Any, ...]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(getattr(leaf, "shape", ()) for leaf in leaves)


def _row(site: LoadedSite, choice: Selection, rows: Sequence[ComparisonRow], policy: Policy) -> dict[str, Any]:
    contexts, settings, chosen = site.contexts, site.settings, choice.chosen
    own = rows[0]
    row: dict[str, Any] = {
        "name": site.name,
        "status": "fitted",
        "reason": None,
        "steps_per_day": contexts.steps_per_day,
        "days": contexts.n_days,
        "columns": contexts.dim,
        "alpha": None if isinstance(settings.alpha, Mapping) else settings.alpha,
        "promise": None if settings.promise is None else settings.promise.ratio,
        "per": None if settings.promise is None else settings.promise.per,
        "advisor": chosen.advisor,
        "validation_cost": chosen.average_cost,
        **figures(own),
    }
    for reference in rows[1:]:
        label = reference.name.replace("-", "_")
        row |= {f"{label}_cost": reference.average_cost, f"{label}_ratio": reference.competitive_ratio}
    return row | {"policy": policy.fingerprint, "digest": site.digest}


def figures(entry: ComparisonRow) -> dict[str, Any]:
    """A scored policy in the figures that a row has."""
    return {
        "average_cost": entry.average_cost,
        "competitive_ratio": entry.competitive_ratio,
        "p99": entry.tail_ratio["p99"],
        "live_ratio": entry.live_ratio,
        "promise_kept": entry.promise_kept,
        "unconverged": entry.unconverged.steps + entry.unconverged.oracle,
    }
