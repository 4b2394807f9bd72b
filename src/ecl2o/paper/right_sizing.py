"""Workloads for the right-sizing study: a built-in synthetic one, and anybody's own series.

Right-sizing a cluster: how many racks of each kind to keep on (Lin et al. 2011 made the question famous).

The general case of the paper: actions of several numbers in a box, a hitting cost that is convex but not quadratic, movement that
couples the coordinates. Every solve is Newton's, with bounds that are active much of the time, and EC-L2O is trained through
them. Costs and units are in `problem.cluster_cost` and `right_sizing_cost`, workloads in `right_sizing_workload`; days, scores
and results are those of the demand-response study.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from ecl2o import theory
from ecl2o.agents import MLAROBD, OBD, OGD, ROBD, AbstractAgent, Competitive, Guarded, PureML
from ecl2o.agents.advisors import MLP, Scaling
from ecl2o.agents.calibrator import find_hitting_minimizer
from ecl2o.data import Contexts, Days, Split, read_series, series_contexts
from ecl2o.evaluation import DailyScore, TestDays, score_days, score_runs
from ecl2o.exceptions import DataError
from ecl2o.fitting.progress import Progress, ignore_progress
from ecl2o.offline import oracle_days
from ecl2o.paper.contenders import (
    PAPER_MU,
    PAPER_TRUST,
    Job,
    StudyAgent,
    TunedAgents,
    expert_agents,
    make_policies,
    network_agents,
    oracle_row,
    planner_agent,
    run_jobs,
    score_study,
    score_trade_off,
)
from ecl2o.paper.networks import CalibratedTraining, NetworkTraining, StandaloneTraining, untrained_key
from ecl2o.paper.results import StageTimer, Study, StudyRow, TradeOffPoint, WorstDay, row_points
from ecl2o.paper.right_sizing_cost import Cluster
from ecl2o.paper.settings import RIGHT_SIZING, RightSizingSettings
from ecl2o.problem import Instance, Problem
from ecl2o.running import rollout_days

_HOURS = 24
_WEEKEND = 0.7
_FIRST_HOUR = pd.Timestamp("2025-01-06")  # a Monday
# What changes in the middle of the test days: more users, who are awake later, and more bursts.
_REGIME_LEVEL, _REGIME_SHIFT, _REGIME_BURSTS = 1.2, 4, 2.0


def make_synthetic_workload(
    seed: int = 0, days: int = 150, mean: float = 10.0, regime_day: int | None = 120, split: Split = Split()
) -> Contexts:
    """Hourly requests in krps with everything that makes right-sizing hard, the same for the same seed.

    A daily shape with a main and a second peak, quiet weekends, a level that drifts (autoregressive in the logarithm), and
    bursts: about one every two days, 30 to 120 % of the level, that fade within hours. From `regime_day` on, 30 days into
    the test part unless given otherwise, the level is higher, the day is shifted and bursts are more frequent, which no
    training day has shown; None: never.

    >>> make_synthetic_workload().values.shape
    (3600, 1)
    """
    if not mean > 0:
        raise ValueError(f"mean must be positive, got {mean}.")
    random = np.random.default_rng(seed)
    hour = np.arange(days * _HOURS)
    changed = np.zeros(hour.size, bool) if regime_day is None else hour >= regime_day * _HOURS
    shape = _daily_shape(hour - _REGIME_SHIFT * changed) * np.where((hour // _HOURS) % 7 >= 5, _WEEKEND, 1.0)
    level = np.exp(_autoregressive(random, hour.size, memory=0.98, deviation=0.12))
    noise = np.exp(_autoregressive(random, hour.size, memory=0.5, deviation=0.05))
    bursts = 1 + _bursts(random, changed)
    workload = mean * shape * level * noise * bursts * np.where(changed, _REGIME_LEVEL, 1.0)
    return Contexts(workload[:, None], pd.date_range(_FIRST_HOUR, periods=hour.size, freq="h"), split=split)


def _daily_shape(hour: np.ndarray) -> np.ndarray:
    """Low at night, a peak in the afternoon and a smaller one in the evening; mean 1."""
    angle = 2 * np.pi * hour / _HOURS
    return 1 - 0.55 * np.cos(angle - 0.6) - 0.2 * np.cos(2 * angle - 0.5)


def _autoregressive(random: np.random.Generator, size: int, memory: float, deviation: float) -> np.ndarray:
    """A stationary first-order process."""
    shocks = random.normal(0.0, deviation * np.sqrt(1 - memory**2), size)
    shocks[0] = random.normal(0.0, deviation)
    values = np.empty(size)
    last = 0.0
    for t, shock in enumerate(shocks):
        last = values[t] = memory * last + shock
    return values


def _bursts(random: np.random.Generator, changed: np.ndarray) -> np.ndarray:
    """Sudden rises, as shares of the level, each fading by a factor of 0.6 an hour."""
    starts = random.random(changed.size) < np.where(changed, _REGIME_BURSTS, 1.0) / (2 * _HOURS)
    heights = np.where(starts, random.uniform(0.3, 1.2, changed.size), 0.0)
    rise = np.empty(changed.size)
    last = 0.0
    for t, height in enumerate(heights):
        last = rise[t] = 0.6 * last + height
    return rise


def scale_workload(contexts: Contexts, peak: float) -> Contexts:
    """A series of one non-negative number per step, in any unit, scaled so that the largest training value is `peak` krps."""
    if contexts.dim != 1:
        raise DataError(f"a workload is one number per step, but the series has {contexts.dim} columns; name one.")
    if (contexts.values < 0).any():
        where = int(np.argmax(contexts.values[:, 0] < 0))
        raise DataError(
            f"a workload must not be negative, but it is {contexts.values[where, 0]:g} at {contexts.time[where]}."
        )
    return contexts.scale_to(peak)


HISTORY_DAYS = 14  # what forecasters may remember

SLACK = 0.05
PROMISE = 2.5
# What is chosen before the test: (trust, mu) of EC-L2O on the validation days, gamma of OBD and the step size of OGD.
TUNING = ((1.0, 0.0), (5.0, 0.0))
GAMMAS = (0.01, 0.1, 1.0)
STEP_SIZES = (0.02, 0.05, 0.1, 0.2)
# What the trade-off figure varies.
TRUSTS, SLACKS = (0.1, 0.3, 1.0, 3.0, 10.0), (0.01, 0.02, 0.05, 0.1, 0.3)


def read_workload(settings: RightSizingSettings) -> Contexts:
    """The built-in workload, or that of a file."""
    split = Split(settings.training_days, settings.validation_days)
    if settings.workload is None:
        return make_synthetic_workload(settings.seed, split=split)
    columns = None if settings.column is None else [settings.column]
    frame, metadata = read_series(settings.workload, settings.time_column, columns, settings.fill)
    return scale_workload(series_contexts(frame, metadata, split), settings.peak)


@eqx.filter_jit
def cheapest_actions(problem: Problem, contexts: Float[Array, "n q"]) -> Float[Array, "n d"]:
    """For each context the action that minimises its hitting cost."""
    return jax.vmap(lambda context: find_hitting_minimizer(problem, context))(contexts)


class RightSizing:
    """The data of one run of the study: workload, problem, and the days it is judged on."""

    def __init__(self, settings: RightSizingSettings, cluster: Cluster = Cluster()):
        self.settings, self.cluster = settings, cluster
        self.contexts = read_workload(settings)
        self.problem = cluster.problem()
        self.hours = self.contexts.steps_per_day
        windows = self.contexts.training_windows()
        self.history_steps = min(HISTORY_DAYS, settings.training_days) * self.hours
        days, validation = (of(self.history_steps) for of in (self.contexts.test_days, self.contexts.validation_days))
        before = np.concatenate([windows.x0, days.x0[None], validation.x0[None]])
        starts = cheapest_actions(self.problem, jnp.asarray(before))
        self.windows = Instance(starts[:-2], windows.contexts)
        self.test = TestDays.of(self.problem, starts[-2], days.days, days.history)
        self.validation = Days(np.asarray(starts[-1]), validation.days, validation.history)
        self.tuning = self._days_before_test(len(days.days))
        self.network_scale = Scaling.of(jnp.asarray(self.contexts.training)), Scaling.of(starts)

    def _days_before_test(self, most: int) -> Days:
        """The last days before the test, for what is not trained: as many as are tested, so that programs are shared."""
        contexts = self.contexts
        end = (contexts.split.training_days + contexts.split.validation_days) * self.hours
        count = min(most, (end - self.history_steps) // self.hours)
        start = end - count * self.hours
        days = contexts.values[start:end].reshape(count, self.hours, contexts.dim)
        return Days(np.asarray(self.test.x0), days, contexts.values[start - self.history_steps : start])

    @property
    def dim(self) -> int:
        """The number of kinds."""
        return len(self.cluster.kinds)

    @functools.cached_property
    def networks(self) -> NetworkTraining:
        """How the paper's network on (workload, racks) is trained, through Newton's solves."""
        contexts, actions = self.network_scale

        def untrained(seed: int) -> MLP:
            return MLP(self.dim, 1, key=untrained_key(seed), contexts=contexts, actions=actions)

        return NetworkTraining(untrained, self.problem, self.windows, self.settings.training_steps)

    def cheapest(self, candidates: Mapping[Any, Sequence[AbstractAgent]], days: Days) -> Any:
        """Which setting costs least on these days, on average over its agents."""

        def cost(setting: Any) -> float:
            x0, contexts, history = (jnp.asarray(part) for part in days)
            runs = [rollout_days(a, self.problem, x0, contexts, history)[0] for a in candidates[setting]]
            return float(np.mean([run.cost.mean() for run in runs]))

        return min(candidates, key=cost)

    def oracle_score(self) -> DailyScore:
        """The daily oracle beside itself."""
        return score_runs(*oracle_days(self.problem, self.test.x0, self.test.days), self.test)

    def bound_active(self, score: DailyScore) -> float:
        """The share of steps on which some kind is all on or all off."""
        lower, upper = self.problem.actions.bounds(self.dim, score.runs.actions.dtype)
        actions = score.runs.actions
        return float(jnp.mean(jnp.any((actions <= lower) | (actions >= upper), axis=-1)))


def run(settings: RightSizingSettings, progress: Progress = ignore_progress) -> Study:
    """Train, test and collect everything the report shows."""
    timer = StageTimer()
    progress("workload", 0, 1)
    study = RightSizing(settings)
    progress("workload", 1, 1)
    timer.record("workload")
    found = run_jobs(_trainings(study), progress)
    timer.record("training")
    entries = _entries(study, found)
    scored, skipped = score_study(
        entries, lambda name, agent: score_days(agent, study.test, entries[name].forecaster), progress
    )
    rows = {"oracle": oracle_row(study.oracle_score()), **scored}
    shown = ("r-obd", "rhc", "pure-ml", "switch", "ec-l2o", "ec-l2o-tuned")
    trade_off = _trade_off(study, entries, progress) + row_points(rows, shown)
    timer.record("testing")
    constants = {name: float(getattr(study.problem, name)) for name in ("m", "alpha", "beta")}
    about = {
        "study": "right-sizing",
        "cluster": study.cluster.as_dict(),
        "context_scale": study.contexts.scale,
        "training_steps": settings.training_steps,
        "seed": settings.seed,
    }
    return Study(
        study="right-sizing",
        title="Right-sizing a heterogeneous cluster",
        preset=None,
        contexts=study.contexts,
        constants=constants,
        seeds=settings.seed_numbers,
        oracle_average_cost=float(np.mean(study.test.oracle_cost)),
        test_days=study.test.days.shape[0],
        rows=rows,
        trade_off=trade_off,
        worst_day=WorstDay.of("ec-l2o", rows, study.contexts, study.test),
        policies=make_policies({name: entries[name] for name in scored}, study.problem, study.contexts, about),
        settings=settings.as_run(),
        weather=_source(study),
        seconds=timer.seconds,
        extra={
            "cluster": study.cluster.as_dict(),
            "solves": {name: _solves(study, row) for name, row in rows.items()},
            "promises": _promises(constants, rows),
        },
        skipped=skipped,
        problem=RIGHT_SIZING.format(**constants),
    )


def _trainings(study: RightSizing) -> list[Job]:
    """Everything that is trained or chosen on the validation days, the longest first."""
    seeds = study.settings.seed_numbers
    pairs = ((PAPER_TRUST, PAPER_MU), *(TUNING[:1] if study.settings.quick else TUNING))
    calibrated = [CalibratedTraining(trust, mu, seed) for trust, mu in pairs for seed in seeds]
    alone = [StandaloneTraining(0.0, seed) for seed in seeds]

    def tuned(report: Callable) -> tuple[float, float]:
        obd = study.cheapest({gamma: [OBD(gamma)] for gamma in GAMMAS}, study.tuning)
        report(1, 2, 0.0)
        ogd = study.cheapest({eta: [OGD(eta=eta)] for eta in STEP_SIZES}, study.tuning)
        report(2, 2, 0.0)
        return obd, ogd

    return [
        Job("EC-L2O", lambda report: study.networks.train_calibrated(calibrated, report)),
        Job("OBD and OGD", tuned),
        Job("PureML", lambda report: study.networks.train_alone(alone, report)),
    ]


def _entries(study: RightSizing, found: dict[str, Any]) -> dict[str, StudyAgent]:
    """The table's rows in order, without the oracle."""
    gamma, eta = found["OBD and OGD"]
    by_pair: dict[tuple[float, float], list[MLAROBD]] = {}
    for setting, agent in found["EC-L2O"].items():
        by_pair.setdefault((setting.trust, setting.mu), []).append(agent)
    paper = by_pair.pop((PAPER_TRUST, PAPER_MU))
    best = next(iter(by_pair)) if len(by_pair) == 1 else study.cheapest(by_pair, study.validation)
    how = "chosen on the validation days" if len(by_pair) > 1 else "not chosen, since this is a quick run"
    tuned = TunedAgents(best[0], best[1], how, by_pair[best])
    return {
        **expert_agents(),
        "obd": StudyAgent(
            "OBD",
            "Moves until movement costs gamma times what the hour costs; gamma chosen on the days before the test.",
            {"gamma": gamma},
            [OBD(gamma)],
        ),
        "ogd": StudyAgent(
            "OGD",
            "Steps down the gradient of the hour's cost; the step size chosen on the days before the test.",
            {"eta": eta, "mode": "revealed", "steps": "constant"},
            [OGD(eta=eta)],
        ),
        "rhc": planner_agent(study.hours),
        **network_agents("MLP", list(found["PureML"].values()), paper, tuned),
        "guarded": StudyAgent(
            f"Guarded, {SLACK:g}",
            f"The tuned agent inside a guard: each day at most {1 + SLACK:g} times what R-OBD pays, whatever happens.",
            {"slack": SLACK, "expert": "ROBD", "trust": tuned.trust, "mu": tuned.mu, "advisor": "MLP"},
            [Guarded(agent, slack=SLACK) for agent in tuned.agents],
            daily=True,
        ),
        "competitive": StudyAgent(
            f"Competitive, {PROMISE:g}",
            f"R-OBD inside a guard: each day at most {PROMISE:g} times the optimum of the day, whatever happens.",
            {"ratio": PROMISE, "horizon": study.hours},
            [Competitive(ROBD(), PROMISE, horizon=study.hours)],
            daily=True,
        ),
    }


def _trade_off(study: RightSizing, entries: dict[str, StudyAgent], progress: Progress) -> list[TradeOffPoint]:
    """Average cost against ratio over trust and slack (first seed)."""
    advisor, tuned = entries["pure-ml"].agents[0], entries["ec-l2o-tuned"].agents[0]
    assert isinstance(advisor, PureML)
    cases: list[tuple[str, str, AbstractAgent]] = [
        ("mla-robd", f"trust {trust:g}", MLAROBD(advisor.advisor, trust)) for trust in TRUSTS
    ]
    cases += [("guarded", f"slack {slack:g}", Guarded(tuned, slack=slack)) for slack in SLACKS]
    return score_trade_off(cases, study.test, progress)


def _solves(study: RightSizing, row: StudyRow) -> dict[str, float]:
    """How often bounds were active and how often a solve did not converge, over all steps and seeds."""
    return {
        "bound_active": float(np.mean([study.bound_active(score) for score in row.scores])),
        "unconverged": float(row.unconverged.steps / row.unconverged.of),
    }


def _promises(constants: dict[str, float], rows: dict[str, StudyRow]) -> dict[str, dict[str, float]]:
    """What was promised for every day, and the largest that occurred."""
    guarded = max(float(jnp.max(score.runs.details["expert_ratio"][:, -1])) for score in rows["guarded"].scores)
    return {
        "r-obd": {
            "bound": float(theory.robd_ratio(constants["m"], constants["alpha"], constants["beta"])),
            "largest": rows["r-obd"].scores[0].competitive_ratio,
        },
        "guarded": {"bound": 1 + SLACK, "largest": guarded},
    }


def _source(study: RightSizing) -> dict[str, Any]:
    """Where the workload comes from."""
    metadata = study.contexts.metadata
    if metadata is None:
        return {"file": "built-in synthetic workload", "seed": study.settings.seed}
    return {"file": metadata.file, "sha256": metadata.sha256, "scale": study.contexts.scale}
