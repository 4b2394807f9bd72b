"""Right-sizing a cluster: how many racks of each kind to keep on (Lin et al. 2011 made the question famous).

The general case of the paper: actions of several numbers in a box, a hitting cost that is convex but not quadratic, movement
that couples the coordinates. Every solve is Newton's, with bounds that are active much of the time, and EC-L2O is trained
through them.

An action x holds the racks of each kind that are on besides a standby that always is, 0 <= x <= capacity; the context is the
workload y of the hour, in thousands of requests per second (krps). `problem.cluster_cost` derives what an hour costs.
Starting or stopping racks costs (x - z)' Q (x - z) with Q = diag(start_up) + migration s s': wear and start-up energy by kind,
and moving sessions and caches, by the square of the change in total speed. So kinds are coupled: growing two kinds at once
costs more than the sum, replacing one kind by another less.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pydantic
from jaxtyping import Array, Float

from ecl2o import theory
from ecl2o.agents import MLAROBD, OBD, OGD, ROBD, AbstractAgent, Competitive, Guarded, PureML
from ecl2o.agents.advisors import MLP, Scaling
from ecl2o.agents.calibrator import find_hitting_minimizer
from ecl2o.data import Contexts, Days, Split, read_series, series_contexts
from ecl2o.evaluation import TestDays
from ecl2o.exceptions import DataError
from ecl2o.fitting.settings import Progress, ignore_progress
from ecl2o.json_text import as_json
from ecl2o.paper.case_study import (
    PAPER_MU,
    PAPER_TRUST,
    AbstractStudy,
    Job,
    PositiveNumber,
    StudyAgent,
    StudySettings,
    TradeOffCase,
    Trained,
    TunedAgents,
    expert_agents,
    network_agents,
    planner_agent,
    run_study,
)
from ecl2o.paper.networks import CalibratedTraining, NetworkTraining, StandaloneTraining, untrained_key
from ecl2o.paper.results import StudyResults, StudyRow
from ecl2o.problem import Box, ClusterCost, ConvexCost, Instance, Mahalanobis, Problem
from ecl2o.running import rollout_days


@dataclasses.dataclass(frozen=True)
class RackKind:
    """One kind of rack; powers in kW per rack, speed in krps per rack, racks as real numbers."""

    name: str
    capacity: float  # racks that can be on besides the standby
    standby: float  # racks that are always on
    speed: float  # krps per rack at nominal speed
    idle: float  # kW per rack that is on
    dynamic: float  # kW per rack at nominal speed, besides idle
    losses: float  # kW per rack^2
    start_up: float  # $ per rack^2 started or stopped within an hour


EFFICIENT = RackKind(
    "efficient", capacity=8.0, standby=0.5, speed=1.0, idle=3.0, dynamic=3.0, losses=0.3, start_up=0.75
)
STANDARD = RackKind("standard", capacity=8.0, standby=0.5, speed=1.5, idle=6.0, dynamic=7.0, losses=0.5, start_up=1.25)
FAST = RackKind("fast", capacity=5.0, standby=0.25, speed=3.0, idle=15.0, dynamic=16.0, losses=1.5, start_up=2.5)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Kinds of racks and the prices that they are run under.

    >>> round(float(Cluster().problem().m), 6)
    0.036
    """

    kinds: tuple[RackKind, ...] = (EFFICIENT, STANDARD, FAST)
    energy_price: float = 0.12  # $ per kWh
    delay_price: float = 0.15  # $ per krps and hour at full utilisation
    overload_price: float = 10.0  # $ per krps and hour beyond the headroom
    headroom: float = 0.9  # share of the nominal speed beyond which requests are late
    softness: float = 0.5  # krps, over which lateness sets in
    migration: float = 0.4  # $ per krps^2 of change in total speed within an hour

    def __post_init__(self):
        if not self.kinds:
            raise ValueError("kinds must not be empty.")
        if not self.migration >= 0:
            raise ValueError(f"migration must not be negative, got {self.migration}.")

    def of_kinds(self, figure: str) -> np.ndarray:
        """Return one figure of every kind, e.g. `speed`."""
        return np.array([getattr(kind, figure) for kind in self.kinds])

    def problem(self) -> Problem:
        """Return the decision problem: d actions (racks), contexts of one number (krps)."""
        by_kind = {name: self.of_kinds(name) for name in ("standby", "speed", "idle", "dynamic", "losses")}
        prices = ("energy_price", "delay_price", "overload_price", "headroom", "softness")
        cost = ClusterCost(**by_kind, **{name: getattr(self, name) for name in prices})
        speed = by_kind["speed"]
        Q = np.diag(self.of_kinds("start_up")) + self.migration * np.outer(speed, speed)
        return Problem(
            ConvexCost(cost, strong_convexity=cost.strong_convexity),
            Mahalanobis(jnp.asarray(Q)),
            Box(jnp.zeros(len(speed)), jnp.asarray(self.of_kinds("capacity"))),
        )


# --- workloads

_HOURS, _MEAN, _WEEKEND = 24, 10.0, 0.7  # krps on average, and the share of it at weekends
_FIRST_HOUR = pd.Timestamp("2025-01-06")  # a Monday
# What changes in the middle of the test days: more users, who are awake later, and more bursts.
_REGIME_LEVEL, _REGIME_SHIFT, _REGIME_BURSTS = 1.2, 4, 2.0


def make_synthetic_workload(
    seed: int = 0, days: int = 150, regime_day: int | None = 120, split: Split = Split()
) -> Contexts:
    """Draw hourly requests in krps with everything that makes right-sizing hard, the same for the same seed.

    A daily shape with a main and a second peak, quiet weekends, a level that drifts (autoregressive in the logarithm), and
    bursts: about one every two days, 30 to 120 % of the level, that fade within hours. From `regime_day` on, 30 days into
    the test part unless given otherwise, the level is higher, the day is shifted and bursts are more frequent, which no
    training day has shown; None: never.

    >>> make_synthetic_workload().values.shape
    (3600, 1)
    """
    random = np.random.default_rng(seed)
    hour = np.arange(days * _HOURS)
    changed = np.zeros(hour.size, bool) if regime_day is None else hour >= regime_day * _HOURS
    angle = 2 * np.pi * (hour - _REGIME_SHIFT * changed) / _HOURS
    daily = 1 - 0.55 * np.cos(angle - 0.6) - 0.2 * np.cos(2 * angle - 0.5)  # peaks in afternoon and evening
    shape = daily * np.where((hour // _HOURS) % 7 >= 5, _WEEKEND, 1.0)
    level = np.exp(_stationary(random, hour.size, memory=0.98, deviation=0.12))
    noise = np.exp(_stationary(random, hour.size, memory=0.5, deviation=0.05))
    bursts = 1 + _bursts(random, changed)
    workload = _MEAN * shape * level * noise * bursts * np.where(changed, _REGIME_LEVEL, 1.0)
    return Contexts(workload[:, None], pd.date_range(_FIRST_HOUR, periods=hour.size, freq="h"), split=split)


def autoregress(shocks: Float[np.ndarray, " n"], memory: float) -> Float[np.ndarray, " n"]:
    """Return the first-order process v_t = memory v_(t-1) + shock_t, from 0.

    >>> autoregress(np.array([1.0, 0.0, 1.0]), 0.5)
    array([1.  , 0.5 , 1.25])
    """
    return np.array(list(itertools.accumulate(shocks, lambda last, shock: memory * last + shock)))


def _stationary(random: np.random.Generator, size: int, memory: float, deviation: float) -> np.ndarray:
    shocks = random.normal(0.0, deviation * np.sqrt(1 - memory**2), size)
    shocks[0] = random.normal(0.0, deviation)
    return autoregress(shocks, memory)


def _bursts(random: np.random.Generator, changed: np.ndarray) -> np.ndarray:
    """Draw sudden rises, as shares of the level, each fading by a factor of 0.6 an hour."""
    starts = random.random(changed.size) < np.where(changed, _REGIME_BURSTS, 1.0) / (2 * _HOURS)
    return autoregress(np.where(starts, random.uniform(0.3, 1.2, changed.size), 0.0), 0.6)


def scale_workload(contexts: Contexts, peak: float) -> Contexts:
    """Scale a series of one non-negative number per step so that the largest training value is `peak` krps."""
    if contexts.dim != 1:
        raise DataError(f"a workload is one number per step, but the series has {contexts.dim} columns; name one.")
    if (contexts.values < 0).any():
        where = int(np.argmax(contexts.values[:, 0] < 0))
        value, time = contexts.values[where, 0], contexts.time[where]
        raise DataError(f"a workload must not be negative, but it is {value:g} at {time}.")
    return contexts.scale_to(peak)


RIGHT_SIZING = (
    "Every hour a cluster sees its workload y in thousands of requests per second (the context) and chooses how many racks x of "
    "each kind are on (the action), at once and not knowing the hours to come. The hour costs energy and delay, a convex function"
    " of x with curvature at least m = {m:.3g}, and starting or stopping racks costs (x - previous x)' Q (x - previous x), with "
    "curvatures between alpha = {alpha:.3g} and beta = {beta:.3g}. Costs are in dollars."
)


class RightSizingSettings(StudySettings):
    """What `ecl2o reproduce --study right-sizing` does. The first seed is also the built-in workload's."""

    full_steps: ClassVar[int] = 3000
    workload: str | None = None  # a CSV or Parquet file of one number per step; None: the built-in one
    time_column: str | None = None
    column: str | None = None  # which number, where the file has several
    peak: PositiveNumber = 25.0  # krps, what the largest training value of a file is scaled to
    training_days: int = pydantic.Field(default=60, ge=2)
    validation_days: int = pydantic.Field(default=30, ge=1)


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
    """Return the built-in workload, or that of a file."""
    split = Split(settings.training_days, settings.validation_days)
    if settings.workload is None:
        return make_synthetic_workload(settings.seed, split=split)
    columns = None if settings.column is None else [settings.column]
    frame, metadata = read_series(settings.workload, settings.time_column, columns, settings.fill)
    return scale_workload(series_contexts(frame, metadata, split), settings.peak)


@eqx.filter_jit
def cheapest_actions(problem: Problem, contexts: Float[Array, "n q"]) -> Float[Array, "n d"]:
    """Return for each context the action that minimises its hitting cost."""
    return jax.vmap(lambda context: find_hitting_minimizer(problem, context))(contexts)


class RightSizing(AbstractStudy):
    """The right-sizing study on one workload."""

    name = "right-sizing"
    title = "Right-sizing a heterogeneous cluster"
    description = RIGHT_SIZING
    trade_off_rows = ("r-obd", "rhc", "pure-ml", "switch", "ec-l2o", "ec-l2o-tuned")
    settings: RightSizingSettings

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
        self.scales = Scaling.of(jnp.asarray(self.contexts.training)), Scaling.of(starts)  # of contexts and actions

    def _days_before_test(self, most: int) -> Days:
        """Return the last days before the test for untrained rows: as many as the test has, to share programs."""
        contexts = self.contexts
        end = (contexts.split.training_days + contexts.split.validation_days) * self.hours
        count = min(most, (end - self.history_steps) // self.hours)
        start = end - count * self.hours
        days = contexts.values[start:end].reshape(count, self.hours, contexts.dim)
        return Days(np.asarray(self.test.x0), days, contexts.values[start - self.history_steps : start])

    @functools.cached_property
    def networks(self) -> NetworkTraining:
        """How the paper's network on (workload, racks) is trained, through Newton's solves."""
        contexts, actions = self.scales

        def untrained(seed: int) -> MLP:
            return MLP(len(self.cluster.kinds), 1, key=untrained_key(seed), contexts=contexts, actions=actions)

        return NetworkTraining(untrained, self.problem, self.windows, self.settings.training_steps)

    def choose_cheapest(self, candidates: Mapping[Any, Sequence[AbstractAgent]], days: Days) -> Any:
        """Return the setting that costs least on these days, on average over its agents."""

        def cost(setting: Any) -> float:
            x0, contexts, history = (jnp.asarray(part) for part in days)
            runs = [rollout_days(a, self.problem, x0, contexts, history)[0] for a in candidates[setting]]
            return float(np.mean([run.cost.mean() for run in runs]))

        return min(candidates, key=cost)

    def make_jobs(self) -> list[Job]:
        seeds = self.settings.seed_numbers
        pairs = ((PAPER_TRUST, PAPER_MU), *(TUNING[:1] if self.settings.quick else TUNING))
        calibrated = [CalibratedTraining(trust, mu, seed) for trust, mu in pairs for seed in seeds]
        alone = [StandaloneTraining(0.0, seed) for seed in seeds]

        def tuned(report: Callable) -> tuple[float, float]:
            obd = self.choose_cheapest({gamma: [OBD(gamma)] for gamma in GAMMAS}, self.tuning)
            report(1, 2, 0.0)
            ogd = self.choose_cheapest({eta: [OGD(eta=eta)] for eta in STEP_SIZES}, self.tuning)
            report(2, 2, 0.0)
            return obd, ogd

        return [
            Job("EC-L2O", lambda report: self.networks.train_calibrated(calibrated, report)),
            Job("OBD and OGD", tuned),
            Job("PureML", lambda report: self.networks.train_alone(alone, report)),
        ]

    def make_agents(self, trained: Trained) -> dict[str, StudyAgent]:
        gamma, eta = trained["OBD and OGD"]
        by_pair: dict[tuple[float, float], list[MLAROBD]] = {}
        for setting, agent in trained["EC-L2O"].items():
            by_pair.setdefault((setting.trust, setting.mu), []).append(agent)
        paper = by_pair.pop((PAPER_TRUST, PAPER_MU))
        best = next(iter(by_pair)) if len(by_pair) == 1 else self.choose_cheapest(by_pair, self.validation)
        how = "chosen on the validation days" if len(by_pair) > 1 else "not chosen, since this is a quick run"
        tuned = TunedAgents(best[0], best[1], how, by_pair[best])
        what_obd = "Moves until movement costs gamma times the hour's cost; gamma chosen on the days before the test."
        what_ogd = "Steps down the gradient of the hour's cost; the step size chosen on the days before the test."
        return {
            **expert_agents(),
            "obd": StudyAgent("OBD", what_obd, {"gamma": gamma}, [OBD(gamma)]),
            "ogd": StudyAgent("OGD", what_ogd, {"eta": eta, "mode": "revealed", "steps": "constant"}, [OGD(eta=eta)]),
            "rhc": planner_agent(self.hours),
            **network_agents("MLP", list(trained["PureML"].values()), paper, tuned),
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
                {"ratio": PROMISE, "horizon": self.hours},
                [Competitive(ROBD(), PROMISE, horizon=self.hours)],
                daily=True,
            ),
        }

    def make_trade_off_cases(self, trained: Trained, agents: dict[str, StudyAgent]) -> list[TradeOffCase]:
        advisor, tuned = agents["pure-ml"].agents[0], agents["ec-l2o-tuned"].agents[0]
        assert isinstance(advisor, PureML)
        return [
            *(("mla-robd", f"trust {trust:g}", MLAROBD(advisor.advisor, trust)) for trust in TRUSTS),
            *(("guarded", f"slack {slack:g}", Guarded(tuned, slack=slack)) for slack in SLACKS),
        ]

    def measure(self, trained: Trained, agents: dict[str, StudyAgent], rows: dict[str, StudyRow]) -> dict[str, Any]:
        expert_ratios = [score.runs.details["ratio"][:, -1, 0] for score in rows["guarded"].scores]
        bound = float(theory.robd_ratio(self.problem.m, self.problem.alpha, self.problem.beta))
        return {
            "cluster": as_json(dataclasses.asdict(self.cluster)),
            "solves": {name: self._summarize_solves(row) for name, row in rows.items()},
            "promises": {  # what was promised for every day, and the largest that occurred
                "r-obd": {"bound": bound, "largest": rows["r-obd"].scores[0].competitive_ratio},
                "guarded": {"bound": 1 + SLACK, "largest": float(jnp.max(jnp.stack(expert_ratios)))},
            },
        }

    def _summarize_solves(self, row: StudyRow) -> dict[str, float]:
        """Return the shares of steps with an active bound and of steps that did not converge, over all seeds."""
        actions = jnp.stack([score.runs.actions for score in row.scores])
        lower, upper = self.problem.actions.bounds(len(self.cluster.kinds), actions.dtype)
        return {
            "bound_active": float(jnp.mean(jnp.any((actions <= lower) | (actions >= upper), axis=-1))),
            "unconverged": float(row.unconverged.steps / row.unconverged.of),
        }

    def describe_source(self) -> dict[str, Any]:
        metadata = self.contexts.metadata
        if metadata is None:
            return {"file": "built-in synthetic workload", "seed": self.settings.seed}
        return {"file": metadata.file, "sha256": metadata.sha256, "scale": self.contexts.scale}


def run(settings: RightSizingSettings, progress: Progress = ignore_progress) -> StudyResults:
    """Run the right-sizing study."""
    return run_study(RightSizing, "workload", settings, progress)
