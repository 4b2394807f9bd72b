"""Fit a policy for every site, and test every site's policy; sites of one shape run as one program."""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from ecl2o.agents import ROBD
from ecl2o.data import Contexts
from ecl2o.evaluation import TestDays
from ecl2o.evaluation.comparison import ComparisonRow, Contender, make_contender, make_row
from ecl2o.fitting import tasks
from ecl2o.fitting.candidates import find_obstacle, make_planner, reference_contenders
from ecl2o.fitting.pipeline import Selection, build_policy, select_candidates
from ecl2o.fitting.read import SeriesReader, screen_series
from ecl2o.fitting.settings import FitSettings, Progress, ignore_progress
from ecl2o.fleet.cluster import DEFAULT_MEMORY, Chunk, make_chunks, run_chunks, submit_to_cluster, threads
from ecl2o.fleet.sites import LoadedSite, SiteResult, SiteSpec, find_sites, hash_inputs, read_sites
from ecl2o.policy import Policy, load

if TYPE_CHECKING:
    from distributed import Client, Future

FLEET_SETTINGS = FitSettings(advisor="ridge")  # other advisors are trained one site after the other (docs/scale.md)

# Measured memory of a site during training and testing (docs/scale.md): per step of its windows, and of its series.
_WINDOW_DAYS, _WINDOW_STEP_BYTES, _STEP_BYTES = 510, 800, 400
_RUN_STEP_BYTES = 1000  # per step of a series that a policy is tested on

Warmup = dict[Any, "list[Future]"]  # compilations on a cluster, by program; they run as long as this is held


def fit_sites(
    sites: str | Path | Mapping[str, Contexts],
    settings: FitSettings = FLEET_SETTINGS,
    client: "Client | None" = None,
    *,
    memory: int = DEFAULT_MEMORY,
    progress: Progress = ignore_progress,
) -> list[SiteResult]:
    """Fit a policy for every site, in their order; a failed site has a row with the reason.

    Args:
        sites: a folder, a glob, a manifest (`find_sites`), or series by name (`data.series_contexts`).
        settings: settings of the fits, except where a manifest states others. Default: the regression.
        client: client of a Dask cluster. Default: None, this process. The policies are the same to the last bit.
        memory: bytes that a process may use. Default: 4 GB.
        progress: called with (stage, done, total).

    Example:
        >>> import numpy as np, pandas as pd
        >>> from ecl2o.data import Split, frame_series, series_contexts
        >>> index = pd.date_range("2024-01-01", periods=80, freq="6h")
        >>> frame = pd.DataFrame({"demand": 10 + np.sin(np.arange(80) * np.pi / 2)}, index)
        >>> contexts = series_contexts(*frame_series(frame), Split(12, 4))
        >>> (site,) = fit_sites({"north": contexts}, FitSettings(advisor="r-obd"))
        >>> site.name, site.row["status"]
        ('north', 'fitted')
    """
    if isinstance(sites, Mapping):
        read: list[LoadedSite | SiteResult] = [LoadedSite(name, contexts, settings) for name, contexts in sites.items()]
    else:
        read = list(read_sites(find_sites(sites), settings, SeriesReader(Path())))
    checked = [check_site(site) for site in read]
    chunks = make_site_chunks([site for site in checked if isinstance(site, LoadedSite)], memory)
    found: dict[str, SiteResult] = {}
    for done, (_, results) in enumerate(fit_chunks(chunks, client), start=1):
        found |= {result.name: result for result in results}
        progress("fitting sites", done, len(chunks))
    return [site if isinstance(site, SiteResult) else found[site.name] for site in checked]


def check_site(site: LoadedSite | SiteResult) -> LoadedSite | SiteResult:
    """Turn a site that training would reject into a failed one: a constant series, an infeasible promise."""
    if isinstance(site, SiteResult):
        return site
    try:
        with jax.enable_x64(True):
            tasks.check_promise_feasible(tasks.scale_task(site.contexts, site.settings))
    except ValueError as error:
        return SiteResult.failed(site.name, error)
    return site


def make_site_chunks(sites: Sequence[LoadedSite], memory: int = DEFAULT_MEMORY) -> list[Chunk[LoadedSite]]:
    """Divide the sites into chunks; the result depends on the sites and the memory only."""
    return make_chunks(sites, _shape, _bytes, memory)


def _shape(site: LoadedSite) -> tuple[Any, ...]:
    """Return what the sites of a chunk have in common: everything but numbers."""
    contexts, settings = site.contexts, site.settings
    spec = settings.promise_in_bounds
    promise = None if spec is None else (spec.per, spec.contexts is None)
    task = tasks.FitTask(contexts, tasks.series_problem(contexts, settings), settings)
    plan = make_planner(task.problem, contexts.steps_per_day)
    made = settings.advisor, settings.steps, settings.seed, settings.bounds is None, promise, plan.lookahead
    solves = settings.advisor in ("auto", "fourier") and find_obstacle(task) is None  # depends on alpha and gaps
    return contexts.values.shape, contexts.steps_per_day, contexts.split, made, solves


def _bytes(site: LoadedSite) -> int:
    contexts = site.contexts
    steps = len(contexts.values) * contexts.dim * _STEP_BYTES
    trained = min(_WINDOW_DAYS, 30 * contexts.split.training_days) * contexts.steps_per_day * contexts.dim
    return steps + (trained * _WINDOW_STEP_BYTES if site.settings.promise is not None else 0)


def start_warmup(site: LoadedSite, expected: int, client: "Client | None", memory: int) -> Warmup:
    """Let idle workers compile while the driver still reads, as if all expected sites were like this one.

    Returns:
        The compilations; none with one worker or one chunk.
    """
    chunks = make_site_chunks([site] * expected, memory) if client is not None and threads(client) > 1 else []
    return _compile_on(client, chunks[0]) if client is not None and len(chunks) > 1 else {}


def _compile_on(client: "Client", chunk: Chunk[LoadedSite]) -> Warmup:
    """Let one worker compile the selection and another the tests, for the cache that they share."""
    # Name the workers: Dask may give both to the one that is ready first.
    workers = itertools.cycle(client.scheduler_info()["workers"])
    stages = (compile_selection, compile_tests)
    return {_program(chunk): [submit_to_cluster(stage, (chunk,), client, next(workers)) for stage in stages]}


def fit_chunks(
    chunks: Sequence[Chunk[LoadedSite]], client: "Client | None" = None, warmup: Warmup | None = None
) -> Iterator[tuple[Chunk[LoadedSite], list[SiteResult]]]:
    """Yield each chunk with its policies, as they finish; workers first compile what several chunks share."""
    compiling = dict(warmup or {})  # dropping a future would cancel its work
    if client is not None and threads(client) > 1:
        programs = [_program(chunk) for chunk in chunks]
        counts = collections.Counter(programs)
        for program, chunk in zip(programs, chunks, strict=True):
            if counts[program] > 1 and program not in compiling:
                compiling |= _compile_on(client, chunk)
    yield from run_chunks(fit_together, chunks, client)


def _program(chunk: Chunk[LoadedSite]) -> Any:
    """Return what chunks that run the same programs have in common."""
    return _shape(chunk.items[0]), len(chunk.items)


def compile_selection(chunk: Chunk[LoadedSite]) -> None:
    """Compile the selection of this chunk by running it; not if training takes longer than compiling."""
    if chunk.items[0].settings.advisor == "ridge":
        with jax.enable_x64(True):
            select_candidates([site.contexts for site in chunk.items], [site.settings for site in chunk.items])


def compile_tests(chunk: Chunk[LoadedSite]) -> None:
    """Compile the tests of this chunk by testing the candidates that need no training."""
    with jax.enable_x64(True):
        by_site = [Selection.untrained(site.contexts, site.settings) for site in chunk.items]
        for selections in zip(*by_site, strict=True):
            _test_together(selections)


def fit_together(sites: Sequence[LoadedSite]) -> list[SiteResult]:
    """Fit sites of one shape as one program."""
    selections = select_candidates([site.contexts for site in sites], [site.settings for site in sites])
    found = []
    for site, selection, rows in zip(sites, selections, _test_together(selections), strict=True):
        policy = build_policy(selection, rows)
        found.append(SiteResult(site.name, _make_row(site, selection, rows, policy), policy))
    return found


def _test_together(selections: Sequence[Selection]) -> list[list[ComparisonRow]]:
    """Return the rows of each site's policy, R-OBD and RHC on its test days."""
    test_days = [selection.test_days() for selection in selections]
    references = [reference_contenders(each.problem, each.contexts.steps_per_day) for each in selections]
    scored = {"policy": score_by_structure([selection.contender for selection in selections], test_days)}
    for name in ("r-obd", "rhc"):
        scored[name] = score_by_structure([contenders[name] for contenders in references], test_days)
    return [
        [
            dataclasses.replace(tests[i], name=selection.yours if name == "policy" else name)
            for name, tests in scored.items()
        ]
        for i, selection in enumerate(selections)
    ]


def score_by_structure(contenders: Sequence[Contender], test_days: Sequence[TestDays]) -> list[ComparisonRow]:
    """Score each contender on its days; those of one structure run as one program of constant width."""
    known = [
        days if each.history_steps is None else days.with_history(each.history_steps)
        for each, days in zip(contenders, test_days, strict=True)
    ]
    groups: dict[Any, list[int]] = {}
    for place, both in enumerate(zip(contenders, known, strict=True)):
        groups.setdefault(structure_of(both), []).append(place)
    found: dict[int, ComparisonRow] = {}
    for places in groups.values():
        filled = [*places, *[places[-1]] * (len(test_days) - len(places))]
        scores = tasks.score_together([contenders[i] for i in filled], [known[i] for i in filled])
        for i, score in zip(places, scores, strict=False):
            found[i] = make_row("policy", contenders[i], test_days[i], score)
    return [found[i] for i in range(len(contenders))]


def structure_of(tree: Any) -> tuple[Any, ...]:
    """Return the structure of a tree and the shapes of its leaves."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(getattr(leaf, "shape", ()) for leaf in leaves)


def _make_row(site: LoadedSite, selection: Selection, rows: Sequence[ComparisonRow], policy: Policy) -> dict[str, Any]:
    contexts, settings, chosen = site.contexts, site.settings, selection.chosen
    n_test = contexts.n_days - contexts.split.training_days - contexts.split.validation_days
    row: dict[str, Any] = {
        "name": site.name,
        "status": "fitted",
        "reason": None,
        "steps_per_day": contexts.steps_per_day,
        "days": contexts.n_days,
        "days_not_scored": int((~contexts.measured_days[-n_test:]).sum()),
        "columns": contexts.dim,
        "alpha": None if isinstance(settings.alpha, Mapping) else settings.alpha,
        "promise": None if settings.promise is None else settings.promise.ratio,
        "per": None if settings.promise is None else settings.promise.per,
        "advisor": chosen.advisor,
        "validation_cost": chosen.average_cost,
        **figures(rows[0]),
    }
    for reference in rows[1:]:
        label = reference.name.replace("-", "_")
        row |= {f"{label}_cost": reference.average_cost, f"{label}_ratio": reference.competitive_ratio}
    return row | {"policy": policy.fingerprint, "digest": site.digest}


def figures(scored: ComparisonRow) -> dict[str, Any]:
    """Return the figures of a policy that a site's row has; ratios are infinite where the optimum is zero."""
    ratios = {name: math.inf if ratio is None else ratio for name, ratio in scored.ratios.items()}
    return {
        **{name: ratios[name] for name in ("average_cost", "competitive_ratio", "p99")},
        "live_ratio": scored.live_ratio,
        "promise_kept": scored.promise_kept,
        "unconverged": scored.unconverged.steps + scored.unconverged.oracle,
    }


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
    return make_chunks(sites, _test_shape, lambda site: site.contexts.values.size * _RUN_STEP_BYTES, memory)


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
    found = [tasks.policy_test_days(site.policy, site.contexts, site.days) for site in sites]
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
            "days_not_scored": days.not_scored,
            "screened": site.screened,
            "days_seen": tasks.count_seen_days(site.policy, site.contexts, first),
            **figures(scored),
            "worst_day_starts": str(worst),
            "r_obd_cost": reference.average_cost,
            "r_obd_ratio": reference.competitive_ratio,
            "policy": site.policy.fingerprint,
            "digest": site.digest,
        }
        results.append(SiteResult(site.name, row))
    return results


def _test_shape(site: SiteToTest) -> tuple[Any, ...]:
    policy, contexts = site.policy, site.contexts
    saved = None if policy.history is None else len(policy.history)
    structure = structure_of((policy.agent, policy.problem, policy.forecaster))
    return structure, contexts.values.shape, policy.contract.history_steps, saved, contexts.steps_per_day
