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
from ecl2o.fitting.batches import score_each
from ecl2o.fitting.candidates import planner, refuse_infeasible
from ecl2o.fitting.pipeline import Choice, choose_each, reference_entries, scaled_site, series_problem
from ecl2o.fitting.progress import Progress, silent
from ecl2o.fitting.read import Reading
from ecl2o.fitting.settings import Recipe
from ecl2o.fleet.cluster import DEFAULT_MEMORY, Chunk, begun, cut, each_done, threads
from ecl2o.fleet.sites import FailedSite, ReadSite, find_sites, read_sites
from ecl2o.policy import Policy

if TYPE_CHECKING:
    from distributed import Client, Future

FLEET_RECIPE = Recipe(advisor="ridge")  # everything else is trained site by site (docs/scale.md)

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
    recipe: Recipe = FLEET_RECIPE,
    client: "Client | None" = None,
    *,
    memory: int = DEFAULT_MEMORY,
    progress: Progress = silent,
) -> list[FittedSite]:
    """A policy for every site, in their order; a site that fails has a row that says why.

    Args:
        sites: a folder, a glob, a manifest (`find_sites`), or series by name (`data.series_contexts`).
        recipe: how policies are made, but for what a manifest says.
        client: of a Dask cluster; None: this process. The policies are the same to the last bit.
        memory: bytes that a process may take.
        progress: told how far it is.
    """
    if isinstance(sites, Mapping):
        read: list[ReadSite | FailedSite] = [ReadSite(name, contexts, recipe) for name, contexts in sites.items()]
    else:
        read = list(read_sites(find_sites(sites), recipe, Reading(Path())))
    checked = [checked_site(site) for site in read]
    chunks = cut_sites([site for site in checked if isinstance(site, ReadSite)], memory)
    found: dict[str, FittedSite] = {}
    for done, (_, outcomes) in enumerate(fitted_chunks(chunks, client), start=1):
        found |= {outcome.name: outcome for outcome in outcomes}
        progress("fitting sites", done, len(chunks))
    return [FittedSite.failed(site) if isinstance(site, FailedSite) else found[site.name] for site in checked]


def checked_site(site: ReadSite | FailedSite) -> ReadSite | FailedSite:
    """Refuse before it joins others what would be refused in training: a series that never changes, a promise nobody can keep."""
    if isinstance(site, FailedSite):
        return site
    try:
        with jax.enable_x64(True):
            refuse_infeasible(scaled_site(site.contexts, site.recipe))
    except ValueError as error:
        return FailedSite.of(site.name, error)
    return site


def cut_sites(sites: Sequence[ReadSite], memory: int = DEFAULT_MEMORY) -> list[Chunk[ReadSite]]:
    """The chunks of these sites; which ones they are depends on the sites and the memory, and on nothing else."""
    return cut(sites, _shape, _bytes, memory)


def _shape(site: ReadSite) -> tuple[Any, ...]:
    """What sites of one chunk share: all but numbers."""
    contexts, recipe = site.contexts, site.recipe
    terms = recipe.terms
    asked = None if terms is None else (terms.per, terms.contexts is None)
    plan = planner(series_problem(contexts, recipe.alpha, recipe.bounds, recipe.weights), contexts.steps_per_day)
    made = recipe.advisor, recipe.steps, recipe.seed, recipe.bounds is None, asked, plan.lookahead
    return contexts.values.shape, contexts.steps_per_day, contexts.split, made


def _bytes(site: ReadSite) -> int:
    contexts = site.contexts
    steps = len(contexts.values) * contexts.dim * _STEP_BYTES
    trained = min(_WINDOW_DAYS, 30 * contexts.split.training_days) * contexts.steps_per_day * contexts.dim
    return steps + (trained * _WINDOW_STEP_BYTES if site.recipe.promise is not None else 0)


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """What a cluster has begun to compile, for the chunks of one shape; it goes on as long as this is held."""

    key: Any
    work: "tuple[Future, ...]" = dataclasses.field(repr=False)

    @classmethod
    def of(cls, chunk: Chunk[ReadSite], client: "Client") -> "Rehearsal":
        """One worker compiles what chooses policies, another what tests them, for the cache that they share."""
        # Named, since Dask may give both to the worker that is ready first.
        workers = itertools.cycle(client.scheduler_info()["workers"])
        stages = (rehearse_choice, rehearse_tests)
        return cls(_program(chunk), tuple(begun(stage, (chunk,), client, next(workers)) for stage in stages))


def rehearsal(site: ReadSite, expected: int, client: "Client | None", memory: int) -> Rehearsal | None:
    """Let workers compile while the driver still reads, as if all sites that are expected were like this one.

    Where they are not, nothing is lost but time of workers that had nothing to do. None where there is one worker, or one chunk.
    """
    if client is None or threads(client) < 2:
        return None
    chunks = cut_sites([site] * expected, memory)
    return Rehearsal.of(chunks[0], client) if len(chunks) > 1 else None


def fitted_chunks(
    chunks: Sequence[Chunk[ReadSite]], client: "Client | None" = None, rehearsed: Rehearsal | None = None
) -> Iterator[tuple[Chunk[ReadSite], list[FittedSite]]]:
    """Each chunk with its policies, as they are done; workers first compile what several chunks share."""
    known = set() if rehearsed is None else {rehearsed.key}
    several = _first_of_several(chunks) if client is not None and threads(client) > 1 else []
    _held = [Rehearsal.of(chunk, client) for chunk in several if client is not None and _program(chunk) not in known]
    for place, found in each_done(fit_chunk, [(chunk,) for chunk in chunks], client):
        chunk = chunks[place]
        if isinstance(found, ChunkFailedError):
            found = [
                FittedSite.failed(FailedSite(site.name, f"the cluster could not do it: {found}"))
                for site in chunk.wanted
            ]
        yield chunk, found


def _program(chunk: Chunk[ReadSite]) -> Any:
    """What chunks that run the same programs have in common."""
    return _shape(chunk.items[0]), len(chunk.items)


def _first_of_several(chunks: Sequence[Chunk[ReadSite]]) -> list[Chunk[ReadSite]]:
    """The chunks that are the first of their shape, and not the only one."""
    alike: dict[Any, list[Chunk[ReadSite]]] = {}
    for chunk in chunks:
        alike.setdefault(_program(chunk), []).append(chunk)
    return [same[0] for same in alike.values() if len(same) > 1]


def rehearse_choice(chunk: Chunk[ReadSite]) -> None:
    """Compile what chooses this chunk's policies, by choosing them; unless it must be trained, which takes longer than that."""
    if chunk.items[0].recipe.advisor == "ridge":
        with jax.enable_x64(True):
            choose_each([site.contexts for site in chunk.items], [site.recipe for site in chunk.items])


def rehearse_tests(chunk: Chunk[ReadSite]) -> None:
    """Compile what will test this chunk's policies, by testing what needs no training, for the cache that workers share."""
    with jax.enable_x64(True):
        by_site = [Choice.untrained(site.contexts, site.recipe) for site in chunk.items]
        for choices in zip(*by_site, strict=True):
            _tested(choices)


def fit_chunk(chunk: Chunk[ReadSite]) -> list[FittedSite]:
    """Fit sites of one shape as one program; where that fails, one after the other, so that the one to blame is found."""
    with jax.enable_x64(True):
        try:
            return _fit_together(chunk.items)[: chunk.count]
        except Exception as error:
            if len(chunk.items) == 1:
                return [FittedSite.failed(FailedSite.of(chunk.items[0].name, error))]
            return [fit_chunk(Chunk((site,), 1))[0] for site in chunk.wanted]


def _fit_together(sites: Sequence[ReadSite]) -> list[FittedSite]:
    choices = choose_each([site.contexts for site in sites], [site.recipe for site in sites])
    found = []
    for site, choice, rows in zip(sites, choices, _tested(choices), strict=True):
        policy = choice.policy(rows)
        found.append(FittedSite(site.name, _row(site, choice, rows, policy), policy))
    return found


def _tested(choices: Sequence[Choice]) -> list[list[ComparisonRow]]:
    """What was chosen for each site on its test days, beside R-OBD and RHC."""
    beds = [choice.test_bed() for choice in choices]
    beside = [reference_entries(choice.problem, choice.contexts.steps_per_day) for choice in choices]
    scored = {"policy": score_alike([choice.entry for choice in choices], beds)}
    for name in ("r-obd", "rhc"):
        scored[name] = score_alike([entries[name] for entries in beside], beds)
    return [
        [dataclasses.replace(tests[place], name=name) for name, tests in scored.items()]
        for place in range(len(choices))
    ]


def score_alike(entries: Sequence[Contender], beds: Sequence[TestDays]) -> list[ComparisonRow]:
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
        scores = score_each([entries[i] for i in filled], [known[i] for i in filled])
        for i, score in zip(places, scores, strict=False):
            found[i] = make_row("policy", entries[i], beds[i], score)
    return [found[i] for i in range(len(entries))]


def _structure(tree: Any) -> tuple[Any, ...]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(getattr(leaf, "shape", ()) for leaf in leaves)


def _row(site: ReadSite, choice: Choice, rows: Sequence[ComparisonRow], policy: Policy) -> dict[str, Any]:
    contexts, recipe, chosen = site.contexts, site.recipe, choice.chosen
    own = rows[0]
    row: dict[str, Any] = {
        "name": site.name,
        "status": "fitted",
        "reason": None,
        "steps_per_day": contexts.steps_per_day,
        "days": contexts.n_days,
        "columns": contexts.dim,
        "alpha": None if isinstance(recipe.alpha, Mapping) else recipe.alpha,
        "promise": None if recipe.promise is None else recipe.promise.ratio,
        "per": None if recipe.promise is None else recipe.promise.per,
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
