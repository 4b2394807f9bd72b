"""The whole trade-off as one job: a grid of settings and seeds, trained under `vmap` in pieces, scored on the same days.

A piece is a function of arrays and settings that returns plain records, so it can run in a thread here, in another process or
on another machine. Which settings share a piece does not depend on where it runs, and so neither do the figures.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o import theory
from ecl2o.agents import MLAROBD, ROBD, AbstractAgent, Competitive, Switch
from ecl2o.agents.advisors import OnlineRidge
from ecl2o.data import Contexts, augment_windows
from ecl2o.evaluation import DailyScore, TestDays, metrics, score_agents, score_runs
from ecl2o.exceptions import ChunkFailedError
from ecl2o.fitting.settings import Progress, check_alpha, ignore_progress
from ecl2o.fleet.cluster import run_pieces
from ecl2o.learning.fit import TrainingProgress
from ecl2o.learning.losses import CostScale
from ecl2o.offline import oracle
from ecl2o.paper.case_study import Job, run_jobs
from ecl2o.paper.frontier import describe_source
from ecl2o.paper.networks import AuthorsTraining, CalibratedTraining, NetworkTraining, StandaloneTraining
from ecl2o.paper.pareto import (
    RATIO,
    THIRD,
    TWO_STAGE_TRUST,
    SweepRecord,
    average_over_seeds,
    summarize_headline,
    summarize_sweep,
)
from ecl2o.paper.sweep_grid import Grid, Network, Protocol, Schedule, Setting
from ecl2o.problem import Instance, Mahalanobis, Problem, SquaredTracking, Trajectory
from ecl2o.running import rollout_batch, rollout_days, stream_days

if TYPE_CHECKING:
    from distributed import Client


FORMAT = 2
MOST_RUNS = 25  # trained together: what more remember fits no cache, and a piece is what a lost worker must do again
_SCALES: dict[str, CostScale] = {"raw": 1.0, "oracle": "oracle", "window": "instance", "authors": 200.0}
_RUNS: dict[Protocol, Callable[..., tuple[Trajectory, Float[Array, "n d"]]]] = {
    "daily": rollout_days,
    "streamed": stream_days,
}
_EASY_DAYS = 3  # the test days of the smallest optimum, whose ratios are recorded one by one
_SHARES = {"zero": 0.0, "half": 0.5, "mean": 1.0}

Case = tuple[Setting, int]  # a setting and a seed


class SweepData(eqx.Module):
    """The days of a sweep as arrays: windows to train on, validation days to choose by, test days to report.

    `easy_days` are the numbers and names of the test days with the smallest optimum.
    """

    problem: Problem
    windows: Instance
    validation: TestDays
    test: TestDays
    seen_before_validation: Float[Array, "n q"]
    seen_before_test: Float[Array, "k q"]
    steps: int = eqx.field(static=True, default=4000)  # Adam's, for each network
    protocols: tuple[Protocol, ...] = eqx.field(static=True, default=("daily",))
    base_shortage: float | None = eqx.field(static=True, default=None)  # W
    easy_days: tuple[tuple[int, str], ...] = eqx.field(static=True, default=())

    @classmethod
    def of(
        cls,
        contexts: Contexts,
        alpha: float = 10.0,
        steps: int = 4000,
        protocols: tuple[Protocol, ...] = ("daily",),
        augment: Sequence[str] = (),
    ) -> "SweepData":
        """Return the study's own problem and split of days; `augment` as in `augment_windows`."""
        check_alpha(alpha)
        problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha, dim=contexts.dim))
        known = contexts.split.training_days * contexts.steps_per_day
        validation = contexts.validation_days(known)
        test = contexts.test_days(known + contexts.split.validation_days * contexts.steps_per_day)
        scored = TestDays.of(problem, test.x0, test.days)
        dates = contexts.test_time()[:: contexts.steps_per_day]
        easy = np.argsort(np.asarray(scored.oracle_cost), kind="stable")[:_EASY_DAYS]
        return cls(
            problem,
            augment_windows(contexts.training_windows(), augment),
            TestDays.of(problem, validation.x0, validation.days),
            scored,
            jnp.asarray(validation.history),
            jnp.asarray(test.history),
            steps,
            protocols,
            contexts.base_shortage,
            tuple((int(day), f"{dates[day]:%m-%d}") for day in easy),
        )

    def training(self, network: Network) -> NetworkTraining:
        """Return how networks are trained."""
        return NetworkTraining.of_kind(network, self.problem, self.windows, self.steps)


def run_sweep(
    data: SweepData, grid: Grid = Grid(), client: "Client | None" = None, progress: Progress = ignore_progress
) -> list[SweepRecord]:
    """Return one record for each setting and seed of the grid, the same to the last bit wherever pieces run.

    First PureML, whose networks advise the two-stage rows and whose mean error is what rho_bar is measured in; then the rest.

    Args:
        data: The days of a study, `SweepData.of(contexts)`.
        grid: What is tried.
        client: Of a Dask cluster; None: two threads of this process.
        progress: Called with stage, done and total.
    """
    alone: dict[Network, list[Job]] = {
        network: _make_jobs(data, train_alone, network, tuple(grid.alone(network)), grid, grid.schedule)
        for network in grid.networks
    }
    found = iter(_execute([job for jobs in alone.values() for job in jobs], client, progress))
    records: list[SweepRecord] = []
    later = [Job("guarded and R-OBD", functools.partial(score_experts, data, tuple(grid.guarded())))]
    for network, jobs in alone.items():
        advisors: dict[int, AbstractAgent] = {}
        for group, trained in itertools.islice(found, len(jobs)):
            records += group
            advisors |= trained
        two_stage = functools.partial(score_two_stage, data, tuple(grid.two_stage(network)), advisors)
        later.append(Job(f"{network}, two stages", two_stage))
        # The unit of rho_bar: the mean prediction error of the two-stage rule on the training windows.
        rules = [MLAROBD(advisor, TWO_STAGE_TRUST) for advisor in advisors.values()]
        error = float(np.mean([measure_two_stage_error(rule, data.problem, data.windows) for rule in rules]))
        train = train_calibrated if grid.schedule == "cosine" else train_authors
        later += _make_jobs(data, train, network, tuple(grid.calibrated(network)), grid, error)
    return records + [record for group in _execute(later, client, progress) for record in group]


def _execute(jobs: Sequence[Job], client: "Client | None", progress: Progress) -> list[Any]:
    """Run jobs here or on a cluster, in any order, and return what they found, in theirs."""
    if client is None:
        return list(run_jobs(jobs, progress).values())
    found: list[Any] = [None] * len(jobs)
    for done, (place, result) in enumerate(run_pieces(_run_silently, [(job,) for job in jobs], client), start=1):
        if isinstance(result, ChunkFailedError):
            raise ValueError(f"{jobs[place].name} could not be done by the cluster: {result}")
        found[place] = result
        progress("pieces of the sweep", done, len(jobs))
    return found


def _run_silently(job: Job) -> Any:
    return job.work(lambda step, steps, loss: None)


def _make_jobs(
    data: SweepData, work: Callable, network: Network, settings: tuple[Setting, ...], grid: Grid, *more: Any
) -> list[Job]:
    """Cut the cases of some settings into pieces of nearly the same size."""
    cases: list[Case] = list(itertools.product(settings, grid.seeds))
    count = -(-len(cases) // MOST_RUNS)
    if count == 1 and len(cases) > 8:
        count = 2  # two at a time
    parts = [tuple(cases[start::count]) for start in range(count)]
    family = settings[0].family if settings else ""
    return [
        Job(f"{network}, {family} {number} of {count}", functools.partial(work, data, network, part, *more))
        for number, part in enumerate(parts, start=1)
    ]


def train_alone(
    data: SweepData, network: Network, cases: tuple[Case, ...], schedule: Schedule, report: TrainingProgress
) -> tuple[list[SweepRecord], dict[int, AbstractAgent]]:
    """Train and score PureML: return the records, and the advisors of kappa = 0 by seed."""
    keys = [StandaloneTraining(_require(setting.kappa), seed) for setting, seed in cases]
    agents = data.training(network).train_alone(keys, report, schedule)
    advisors = {key.seed: agents[key].advisor for key in keys if key.kappa == 0}
    return _score_records(data, cases, [agents[key] for key in keys]), advisors


def train_calibrated(
    data: SweepData, network: Network, cases: tuple[Case, ...], error: float, report: TrainingProgress
) -> list[SweepRecord]:
    """Train and score EC-L2O."""
    keys = []
    for setting, seed in cases:
        rho_bar = _SHARES[setting.rho_bar or "zero"] * error
        scale = _SCALES[setting.cost_scale or "oracle"]
        keys.append(CalibratedTraining(_require(setting.trust), _require(setting.mu), seed, rho_bar, scale))
    agents = data.training(network).train_calibrated(keys, report)
    records = _score_records(data, cases, [agents[key] for key in keys])
    for record, key in zip(records, keys * len(data.protocols), strict=True):
        record.figures["rho_bar"] = key.rho_bar
    return records


def train_authors(
    data: SweepData, network: Network, cases: tuple[Case, ...], error: float, report: TrainingProgress
) -> list[SweepRecord]:
    """Train EC-L2O with the authors' loss, whose weight is the setting's mu, at their learning rates, and score it."""
    keys = [AuthorsTraining(_require(setting.trust), _require(setting.mu), seed) for setting, seed in cases]
    agents = data.training(network).train_authors(keys, report)
    return _score_records(data, cases, [agents[key] for key in keys])


def score_two_stage(
    data: SweepData, settings: tuple[Setting, ...], advisors: dict[int, AbstractAgent], report: TrainingProgress
) -> list[SweepRecord]:
    """Score MLA-ROBD and Switch on advisors that were trained alone."""
    trusts = [(setting, seed) for setting in settings if setting.family == "mla-robd" for seed in advisors]
    gammas = [(setting, seed) for setting in settings if setting.family == "switch" for seed in advisors]
    calibrated = [MLAROBD(advisors[seed], _require(setting.trust)) for setting, seed in trusts]
    switches = [Switch(advisors[seed], gamma=_require(setting.gamma)) for setting, seed in gammas]
    return _score_records(data, trusts, calibrated) + _score_records(data, gammas, switches)


def score_experts(data: SweepData, settings: tuple[Setting, ...], report: TrainingProgress) -> list[SweepRecord]:
    """Score R-OBD, and the regression behind promises; ratios that cannot be promised are left out."""
    records = _score_records(data, [(Setting("r-obd"), 0)], [ROBD()])
    per_day = data.test.days.shape[1]
    for period, group in itertools.groupby(settings, key=lambda setting: setting.period or 0):
        horizon = period * per_day or None
        smallest = float(theory.smallest_feasible_ratio(float(data.problem.beta / data.problem.m), horizon))
        for setting in group:
            ratio = _require(setting.ratio)
            if ratio > smallest:
                guard = Competitive(OnlineRidge(per_day), ratio, period=horizon)
                # A promise for more than a day does not survive a restart at midnight.
                protocols: list[Protocol] = [name for name in data.protocols if period == 1 or name == "streamed"]
                records += [_score_learner(data, setting, guard, protocol) for protocol in protocols]
    return records


def _score_learner(data: SweepData, setting: Setting, agent: AbstractAgent, protocol: Protocol) -> SweepRecord:
    """Return the record of an agent that has seen all earlier days."""

    def score(days: TestDays, past: Float[Array, "n q"]) -> DailyScore:
        return score_runs(*_RUNS[protocol](agent, data.problem, days.x0, days.days, past), days)

    validation = score(data.validation, data.seen_before_validation)
    return _make_record(data, setting, 0, protocol, validation, score(data.test, data.seen_before_test))


def _score_records(data: SweepData, cases: Sequence[Case], agents: Sequence[AbstractAgent]) -> list[SweepRecord]:
    if not cases:
        return []
    records = []
    for protocol in data.protocols:
        scored = (score_agents(agents, days, _RUNS[protocol]) for days in (data.validation, data.test))
        for (setting, seed), *scores in zip(cases, *scored, strict=True):
            records.append(_make_record(data, setting, seed, protocol, *scores))
    return records


def _make_record(
    data: SweepData, setting: Setting, seed: int, protocol: Protocol, validation: DailyScore, test: DailyScore
) -> SweepRecord:
    figures = {
        "validation_cost": validation.average_cost,
        "validation_ratio": validation.competitive_ratio,
        "test_cost": test.average_cost,
        RATIO: test.competitive_ratio,
        THIRD: test.third_worst_ratio,
        **{f"test_{name}": value for name, value in test.tail_ratio.items()},
        **{f"{RATIO}_{name}": float(test.ratio[day]) for day, name in data.easy_days},
    }
    if test.prediction_error is not None:
        figures["test_prediction_error"] = test.prediction_error
    scored = dataclasses.replace(setting, base_shortage=data.base_shortage, protocol=protocol)
    return SweepRecord(scored, seed, figures)


@eqx.filter_jit
def measure_two_stage_error(agent: MLAROBD, problem: Problem, windows: Instance) -> Float[Array, ""]:
    """Return the mean over windows of rho along the calibrated roll-out, without windows whose optimum is free."""
    best = jax.vmap(lambda window: oracle(problem, window))(windows)
    played = rollout_batch(agent, problem, windows)
    assert played.advice is not None
    errors = metrics.prediction_error(played.advice, best)
    return jnp.mean(errors, where=jnp.isfinite(errors))


def _require(value: float | None) -> float:
    assert value is not None
    return value


def summarize_results(
    records: Sequence[SweepRecord], grid: Grid, contexts: Contexts, alpha: float, steps: int
) -> dict[str, Any]:
    """Return where the contexts come from, what was tried, the main comparison, the fronts, and what validation chooses.

    Fronts and choices are of the first P_s and protocol.
    """
    bound = float(theory.robd_ratio(1.0, alpha, alpha))
    first = records[0].setting.base_shortage, records[0].setting.protocol
    own = [record for record in records if (record.setting.base_shortage, record.setting.protocol) == first]
    return {
        "format": FORMAT,
        "study": "sweep",
        "source": describe_source(contexts),
        "problem": {"m": 1.0, "alpha": alpha, "beta": alpha},
        "grid": dataclasses.asdict(grid),
        "training_steps": steps,
        "headline": summarize_headline(records, bound),
        **summarize_sweep(average_over_seeds(own), grid.networks, bound),
    }
