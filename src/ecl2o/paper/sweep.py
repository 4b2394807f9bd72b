"""The whole trade-off as one job: a grid of settings and seeds, trained under `vmap` in tasks, scored on the same days.

A task is a function of arrays and settings that returns plain records, so it can run in a thread here, in another process or
on another machine: `run_sweep` takes what executes tasks. Which settings share a task does not depend on the executor, and so
neither do the figures.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o import theory
from ecl2o.agents import MLAROBD, ROBD, AbstractAgent, Competitive, Periodic, Switch
from ecl2o.agents.advisors import LSTM, MLP, OnlineRidge
from ecl2o.data import Contexts
from ecl2o.evaluation import DailyScore, TestDays, metrics, score_agents, score_runs
from ecl2o.exceptions import ChunkFailedError
from ecl2o.fitting.settings import Progress, check_alpha, ignore_progress
from ecl2o.fleet.cluster import run_pieces
from ecl2o.learning.losses import CostScale
from ecl2o.offline import oracle
from ecl2o.paper.case_study import Job, run_jobs
from ecl2o.paper.frontier import describe_source
from ecl2o.paper.networks import (
    CalibratedTraining,
    NetworkTraining,
    StandaloneTraining,
    TrainingProgress,
    untrained_key,
)
from ecl2o.paper.pareto import SweepRecord, average_over_seeds, summarize_sweep
from ecl2o.paper.sweep_grid import Grid, Network, Setting
from ecl2o.problem import Instance, Mahalanobis, Problem, SquaredTracking
from ecl2o.running import rollout_batch, stream_days

if TYPE_CHECKING:
    from distributed import Client


MOST_RUNS = 25  # trained together: what more remember fits no cache, and a piece is what a lost worker must do again
LEARNING_RATES = {"lstm": 3e-3, "mlp": 2e-2}  # chosen on Riverside's validation month, docs/choices.md
TWO_STAGE_TRUST = 0.3
_KINDS = {"lstm": LSTM, "mlp": MLP}
_SCALES: dict[str, CostScale] = {"raw": 1.0, "oracle": "oracle", "window": "instance"}
_SHARES = {"zero": 0.0, "half": 0.5, "mean": 1.0}

Case = tuple[Setting, int]  # a setting and a seed


class SweepData(eqx.Module):
    """The days of a sweep as arrays: windows to train on, validation days to choose by, test days to report."""

    problem: Problem
    windows: Instance
    validation: TestDays
    test: TestDays
    seen_before_validation: Float[Array, "n q"]
    seen_before_test: Float[Array, "k q"]
    steps: int = eqx.field(static=True, default=4000)  # Adam's, for each network

    @classmethod
    def of(cls, contexts: Contexts, alpha: float = 10.0, steps: int = 4000) -> "SweepData":
        """The study's own problem and split of days."""
        check_alpha(alpha)
        problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha, dim=contexts.dim))
        known = contexts.split.training_days * contexts.steps_per_day
        validation, test = (
            contexts.validation_days(known),
            contexts.test_days(known + contexts.split.validation_days * contexts.steps_per_day),
        )
        return cls(
            problem,
            contexts.training_windows(),
            TestDays.of(problem, validation.x0, validation.days),
            TestDays.of(problem, test.x0, test.days),
            jnp.asarray(validation.history),
            jnp.asarray(test.history),
            steps,
        )

    def training(self, network: Network) -> NetworkTraining:
        """How networks are trained."""
        dim, context_dim = self.windows.x0.shape[-1], self.windows.contexts.shape[-1]

        def untrained(seed: int) -> AbstractAgent:
            return _KINDS[network](dim, context_dim, key=untrained_key(seed))

        return NetworkTraining(untrained, self.problem, self.windows, self.steps, LEARNING_RATES[network])


@dataclasses.dataclass(frozen=True)
class SweepTask:
    """A named piece of work: `work(*arguments, report)`, a function of a module, so that it can be sent anywhere."""

    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __call__(self, report: TrainingProgress = lambda step, steps, loss: None) -> Any:
        return self.work(*self.arguments, report)


# Executes pieces, in any order, and gives back what they found, in theirs.
Execute = Callable[[Sequence[SweepTask], Progress], list[Any]]


def run_in_threads(pieces: Sequence[SweepTask], progress: Progress) -> list[Any]:
    """Two at a time, in this process."""
    found = run_jobs([Job(piece.name, piece) for piece in pieces], progress)
    return [found[piece.name] for piece in pieces]


def run_sweep(
    data: SweepData, grid: Grid, progress: Progress = ignore_progress, execute: Execute = run_in_threads
) -> list[SweepRecord]:
    """One record for each setting and seed: the setting, and its figures on the validation and on the test days.

    First PureML, whose networks advise the two-stage rows and whose mean error is what rho_bar is measured in; then the rest.
    """
    alone: dict[Network, list[SweepTask]] = {
        network: _make_tasks(data, train_alone, network, tuple(grid.alone(network)), grid) for network in grid.networks
    }
    found = iter(execute([piece for pieces in alone.values() for piece in pieces], progress))
    records: list[SweepRecord] = []
    later: list[SweepTask] = [SweepTask("guarded and R-OBD", score_experts, (data, tuple(grid.guarded())))]
    for network, pieces in alone.items():
        scored = [next(found) for _ in pieces]
        records += [record for group, _ in scored for record in group]
        advisors = {seed: advisor for _, group in scored for seed, advisor in group.items()}
        later.append(
            SweepTask(f"{network}, two stages", score_two_stage, (data, tuple(grid.two_stage(network)), advisors))
        )
        error = _measure_mean_error(data, advisors)
        later += _make_tasks(data, train_calibrated, network, tuple(grid.calibrated(network)), grid, error)
    for group in execute(later, progress):
        records += group
    return records


def _make_tasks(
    data: SweepData, work: Callable, network: Network, settings: tuple[Setting, ...], grid: Grid, *more: Any
) -> list[SweepTask]:
    """The cases of some settings, cut into pieces of nearly the same size."""
    cases: list[Case] = list(itertools.product(settings, grid.seeds))
    count = -(-len(cases) // MOST_RUNS)
    if count == 1 and len(cases) > 8:
        count = 2  # two at a time
    parts = [tuple(cases[start::count]) for start in range(count)]
    family = settings[0].family if settings else ""
    return [
        SweepTask(f"{network}, {family} {number} of {count}", work, (data, network, part, *more))
        for number, part in enumerate(parts, start=1)
    ]


def train_alone(
    data: SweepData, network: Network, cases: tuple[Case, ...], report: TrainingProgress
) -> tuple[list[SweepRecord], dict[int, AbstractAgent]]:
    """PureML: the records, and the advisors of kappa = 0 by seed."""
    keys = [StandaloneTraining(_require(setting.kappa), seed) for setting, seed in cases]
    agents = data.training(network).train_alone(keys, report)
    advisors = {key.seed: agents[key].advisor for key in keys if key.kappa == 0}
    return _score_records(data, cases, [agents[key] for key in keys]), advisors


def train_calibrated(
    data: SweepData, network: Network, cases: tuple[Case, ...], error: float, report: TrainingProgress
) -> list[SweepRecord]:
    """EC-L2O."""
    keys = []
    for setting, seed in cases:
        rho_bar = _SHARES[setting.rho_bar or "zero"] * error
        scale = _SCALES[setting.cost_scale or "oracle"]
        keys.append(CalibratedTraining(_require(setting.trust), _require(setting.mu), seed, rho_bar, scale))
    agents = data.training(network).train_calibrated(keys, report)
    records = _score_records(data, cases, [agents[key] for key in keys])
    return [
        dataclasses.replace(record, figures={**record.figures, "rho_bar": key.rho_bar})
        for record, key in zip(records, keys, strict=True)
    ]


def score_two_stage(
    data: SweepData, settings: tuple[Setting, ...], advisors: dict[int, AbstractAgent], report: TrainingProgress
) -> list[SweepRecord]:
    """MLA-ROBD and Switch on advisors that were trained alone."""
    records = []
    for family in ("mla-robd", "switch"):
        cases = [(setting, seed) for setting in settings if setting.family == family for seed in advisors]
        if cases:
            records += _score_records(data, cases, [_two_stage(setting, advisors[seed]) for setting, seed in cases])
    return records


def _two_stage(setting: Setting, advisor: AbstractAgent) -> AbstractAgent:
    if setting.family == "switch":
        return Switch(advisor, gamma=_require(setting.gamma))
    return MLAROBD(advisor, _require(setting.trust))


def score_experts(data: SweepData, settings: tuple[Setting, ...], report: TrainingProgress) -> list[SweepRecord]:
    """R-OBD, and the regression behind promises; ratios that cannot be promised are left out."""
    records = _score_records(data, [(Setting("r-obd"), 0)], [ROBD()])
    per_day = data.test.days.shape[1]
    for period, group in itertools.groupby(settings, key=lambda setting: setting.period or 0):
        horizon = period * per_day or None
        smallest = float(theory.smallest_feasible_ratio(float(data.problem.beta / data.problem.m), horizon))
        for setting in group:
            ratio = _require(setting.ratio)
            if ratio > smallest:
                records.append(_score_stream(data, setting, _guard_ridge(ratio, horizon, per_day)))
    return records


def _guard_ridge(ratio: float, horizon: int | None, per_day: int) -> AbstractAgent:
    guard = Competitive(OnlineRidge(per_day), ratio, horizon=horizon)
    return guard if horizon is None else Periodic(guard, horizon)


def _score_stream(data: SweepData, setting: Setting, agent: AbstractAgent) -> SweepRecord:
    """A record of what runs on over midnight, having seen all that went before."""
    scores = [
        score_runs(*stream_days(agent, data.problem, days.x0, days.days, past), days)
        for days, past in ((data.validation, data.seen_before_validation), (data.test, data.seen_before_test))
    ]
    return _make_record(setting, 0, *scores)


def _score_records(data: SweepData, cases: Sequence[Case], agents: Sequence[AbstractAgent]) -> list[SweepRecord]:
    scored = (score_agents(agents, data.validation), score_agents(agents, data.test))
    return [_make_record(setting, seed, *scores) for (setting, seed), *scores in zip(cases, *scored, strict=True)]


def _make_record(setting: Setting, seed: int, validation: DailyScore, test: DailyScore) -> SweepRecord:
    figures = {
        "validation_cost": validation.average_cost,
        "validation_ratio": validation.competitive_ratio,
        "test_cost": test.average_cost,
        "test_ratio": test.competitive_ratio,
        **{f"test_{name}": value for name, value in test.tail_ratio.items()},
    }
    if test.prediction_error is not None:
        figures["test_prediction_error"] = test.prediction_error
    return SweepRecord(setting, seed, figures)


def _measure_mean_error(data: SweepData, advisors: dict[int, AbstractAgent]) -> float:
    """The mean prediction error of the two-stage rule on the training windows, over seeds: the unit of rho_bar."""
    return float(
        np.mean(
            [
                measure_two_stage_error(MLAROBD(a, TWO_STAGE_TRUST), data.problem, data.windows)
                for a in advisors.values()
            ]
        )
    )


@eqx.filter_jit
def measure_two_stage_error(agent: MLAROBD, problem: Problem, windows: Instance) -> Float[Array, ""]:
    """The mean over windows of rho along the calibrated roll-out; windows whose optimum is free are left out."""
    best = jax.vmap(lambda window: oracle(problem, window))(windows)
    played = rollout_batch(agent, problem, windows)
    assert played.advice is not None
    errors = metrics.prediction_error(played.advice, best)
    return jnp.mean(errors, where=jnp.isfinite(errors))


def _require(value: float | None) -> float:
    assert value is not None
    return value


FORMAT = 1


def summarize_results(
    records: Sequence[SweepRecord], grid: Grid, contexts: Contexts, alpha: float, steps: int
) -> dict[str, Any]:
    """Where the contexts come from, what was tried, the fronts, and what the validation days choose."""
    return {
        "format": FORMAT,
        "study": "sweep",
        "source": describe_source(contexts),
        "problem": {"m": 1.0, "alpha": alpha, "beta": alpha},
        "grid": dataclasses.asdict(grid),
        "training_steps": steps,
        **summarize_sweep(average_over_seeds(records), grid.networks, float(theory.robd_ratio(1.0, alpha, alpha))),
    }


def run_sweep_on(
    study: SweepData, grid: Grid = Grid(), client: "Client | None" = None, progress: Progress = ignore_progress
) -> list[SweepRecord]:
    """One record for each setting and seed of the grid, the same to the last bit on any executor.

    Args:
        study: the days of a study, `SweepData.of(contexts)`.
        grid: what is tried.
        client: of a Dask cluster; None: two threads of this process.
        progress: called with stage, done and total.
    """
    return run_sweep(study, grid, progress, run_in_threads if client is None else run_on_cluster(client))


def run_on_cluster(client: "Client") -> Execute:
    """Return a function that executes the tasks of a sweep on a Dask cluster."""

    def execute(pieces: Sequence[SweepTask], progress: Progress) -> list[Any]:
        found: list[Any] = [None] * len(pieces)
        for done, (place, result) in enumerate(run_pieces(_run, [(piece,) for piece in pieces], client), start=1):
            if isinstance(result, ChunkFailedError):
                raise ValueError(f"{pieces[place].name} could not be done by the cluster: {result}")
            found[place] = result
            progress("pieces of the sweep", done, len(pieces))
        return found

    return execute


def _run(piece: SweepTask) -> Any:
    return piece()
