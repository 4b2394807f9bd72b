"""What a promise costs: average cost against the ratio that is promised, by the period for which it is.

Every family is trained and tested on the same days of one series. Guarded rows are `OnlineRidge` with its correction trained
through `Competitive`, one per ratio and period, and once more for each where contexts are known to lie in an interval; the end
of their curves, where nothing is promised, is `OnlineRidge` itself. R-OBD promises the smallest ratio that any online algorithm
can; planners, networks and calibrated networks promise none.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from ecl2o import theory
from ecl2o.agents import MLAROBD, RHC, ROBD, AbstractAgent, Guard, PureML
from ecl2o.agents.advisors import OnlineRidge, Scaling
from ecl2o.data import Contexts
from ecl2o.evaluation import DailyScore, TestDays, score_days, score_runs
from ecl2o.evaluation.comparison import worst_live_ratio
from ecl2o.exceptions import DataError
from ecl2o.fitting.guarded_training import competitive_ridge, train_guards
from ecl2o.fitting.settings import Per, Progress, PromiseSpec, check_alpha, ignore_progress
from ecl2o.forecasters import RollingProfile
from ecl2o.learning.guarded_loss import record_forecasts
from ecl2o.paper.case_study import PAPER_MU, PAPER_TRUST, TWO_STAGE_TRUST, Job, run_jobs
from ecl2o.paper.demand_response import TUNING
from ecl2o.paper.networks import CalibratedTraining, NetworkTraining, StandaloneTraining
from ecl2o.problem import Mahalanobis, Problem, SquaredTracking
from ecl2o.running import stream_days

FORMAT = 1
RATIOS = (1.75, 1.8, 2.0, 2.2, 2.5, 3.0, 4.0)
PROFILE_DAYS = 14  # what planners may remember


@dataclasses.dataclass(frozen=True)
class FrontierSettings:
    """What is trained, and how long; `quick` trains too little for figures of networks to mean anything.

    `network` is the kind of network to train, which takes most of the time; None: none.
    `contexts` is the interval in which all contexts are known to lie, if it is known; then each period has a second curve.
    """

    alpha: float = 10.0
    network: Literal["LSTM", "MLP"] | None = None
    seed: int = 0
    quick: bool = False
    ratios: tuple[float, ...] = RATIOS
    periods: tuple[Per, ...] = ("day", "week", "month", "run")
    contexts: tuple[float, float] | None = None

    def __post_init__(self):
        check_alpha(self.alpha)

    @property
    def training_steps(self) -> int:
        """Adam steps of each network."""
        return 300 if self.quick else 4000

    @property
    def guarded_steps(self) -> int:
        """Adam steps of each correction."""
        return 40 if self.quick else 200


@dataclasses.dataclass(frozen=True)
class FrontierPoint:
    """One policy: what it promises (None: nothing), what it cost on average, and the worst and nearly worst day.

    `per` is the period of the promise, `bounded` whether it counts on contexts in an interval, `live_ratio` the largest cost over
    the period's optimum that the guard reported: never above the promise.
    """

    family: str  # the name of a row of the studies; "guarded" for every ratio and period
    label: str
    promised_ratio: float | None
    average_cost: float
    competitive_ratio: float
    p99: float
    parameters: dict[str, Any]
    per: Per | str | None = None
    bounded: bool = False
    live_ratio: float | None = None


@dataclasses.dataclass(frozen=True)
class Frontier:
    """All points, and the limits that no online algorithm crosses.

    `smallest_ratio` is the least that can be promised for runs of any length; `refused_ratios` are those below it that were asked
    for. `varying_curvature_ratio` is R-OBD's bound where curvature may vary, which is not so here. Average costs are in units of
    the mean daily cost of the optimum of all test days together; for weather, as in the paper, of the daily oracle. What that one
    costs on average, in the unit, is `daily_oracle`.
    """

    points: list[FrontierPoint]
    smallest_ratio: float
    varying_curvature_ratio: float
    refused_ratios: list[float]
    test_days: int
    oracle_average_cost: float
    settings: FrontierSettings
    source: dict[str, Any]
    seconds: float
    daily_oracle: float = 1.0

    @property
    def unit(self) -> str:
        """Whose average cost is 1."""
        return "daily oracle" if self.source["preset"] else "optimum of all test days"

    def as_json(self) -> dict[str, Any]:
        """Return the content of results.json."""
        fields = dataclasses.asdict(self)
        return {
            "format": FORMAT,
            "study": "frontier",
            "problem": {"m": 1.0, "alpha": self.settings.alpha, "beta": self.settings.alpha},
            "oracle": {"average_cost": fields.pop("oracle_average_cost")},
            "unit": self.unit,
            **fields,
        }


def run_frontier(
    contexts: Contexts, settings: FrontierSettings = FrontierSettings(), progress: Progress = ignore_progress
) -> Frontier:
    """Train every family on the training days, choose on the validation days, report on the test days."""
    started = time.perf_counter()
    if contexts.steps_per_day < 2:
        raise DataError("a frontier needs days of several steps, but this series has one row a day. Use an hourly one.")
    if (contexts.training == contexts.training[0]).all():
        raise DataError(f"the training days of {contexts.name} never change, so that there is nothing to learn.")
    used = contexts if contexts.preset else contexts.scale_to(1.0)
    setup = _Setup(used, settings, used.scale / contexts.scale)
    alpha = settings.alpha
    smallest = float(theory.smallest_feasible_ratio(alpha))
    ratios = [ratio for ratio in settings.ratios if ratio > smallest]
    jobs = [Job("guarded", lambda report: setup.train_guarded(ratios, report))]
    if settings.network is not None:
        jobs = [Job("EC-L2O", setup.train_calibrated), Job("PureML", setup.train_alone), *jobs]
    return Frontier(
        points=setup.score_points(run_jobs(jobs, progress), progress),
        smallest_ratio=smallest,
        varying_curvature_ratio=float(theory.robd_ratio(1.0, alpha, alpha)),
        refused_ratios=[ratio for ratio in settings.ratios if ratio <= smallest],
        test_days=int(setup.test.scored.sum()),
        oracle_average_cost=setup.test.mean_unit * (contexts.scale / setup.contexts.scale) ** 2,
        settings=settings,
        source=describe_source(contexts),
        seconds=time.perf_counter() - started,
        daily_oracle=float(np.mean(np.asarray(setup.test.oracle_cost)[setup.test.scored])) / setup.test.mean_unit,
    )


class _Setup:
    """The problem and the days, common to all rows; scaling contexts changes neither normalised costs nor ratios."""

    def __init__(self, contexts: Contexts, settings: FrontierSettings, unit: float):
        self.contexts, self.settings = contexts, settings
        self.period, self.dim = contexts.steps_per_day, contexts.dim
        self.problem = Problem(SquaredTracking(), Mahalanobis.isotropic(settings.alpha, dim=self.dim))
        history = min(PROFILE_DAYS, contexts.split.training_days) * self.period
        make_test_days = TestDays.with_whole_span_optimum if contexts.preset is None else TestDays.of
        scored, split = contexts.measured_days[contexts.split.training_days :], contexts.split.validation_days
        self.test = make_test_days(self.problem, *contexts.test_days(history), scored[split:])
        self.validation = TestDays.of(self.problem, *contexts.validation_days(history), scored[:split])
        self.unit = unit
        self.steps_before_test = (contexts.split.training_days + contexts.split.validation_days) * self.period

    @functools.cached_property
    def networks(self) -> NetworkTraining:
        """How networks are trained; weather is scaled as its authors had it, so only other series are standardised."""
        scaling = None if self.contexts.preset else Scaling.of(jnp.asarray(self.contexts.training))
        windows, steps = self.contexts.training_windows(), self.settings.training_steps
        kind = (self.settings.network or "").lower()
        return NetworkTraining.of_kind(kind, self.problem, windows, steps, contexts=scaling, actions=scaling)

    def train_alone(self, report: Callable) -> PureML:
        """Train PureML: the network on its own cost."""
        (trained,) = self.networks.train_alone([StandaloneTraining(0.0, self.settings.seed)], report).values()
        return trained

    def train_calibrated(self, report: Callable) -> dict[tuple[float, float], MLAROBD]:
        """Train EC-L2O networks by (trust, mu): the paper's setting, and those that validation chooses from."""
        grid = [CalibratedTraining(*pair, self.settings.seed) for pair in ((PAPER_TRUST, PAPER_MU), *TUNING)]
        return {(s.trust, s.mu): agent for s, agent in self.networks.train_calibrated(grid, report).items()}

    def train_guarded(self, ratios: Sequence[float], report: Callable) -> dict[PromiseSpec, Guard]:
        """Train a guard's correction for every promise; what `OnlineRidge` makes of the contexts is recorded once."""
        known = self.contexts.values[: self.steps_before_test]
        forecasts = record_forecasts(OnlineRidge(self.period), self.problem, known)
        boxes: list[tuple[float, float] | None] = [None]
        if self.settings.contexts is not None:
            low, high = self.settings.contexts
            boxes.append((low * self.unit, high * self.unit))
        kinds = list(itertools.product(self.settings.periods, boxes))
        trained = {}
        for done, (per, box) in enumerate(kinds, start=1):
            terms = [PromiseSpec(ratio, per, contexts=box) for ratio in ratios]
            guards, period = [competitive_ridge(each, self.period) for each in terms], terms[0].steps(self.period)
            if period is not None:  # a promise without an end is not trained
                options = {"period": period, "steps": self.settings.guarded_steps, "forecasts": forecasts}
                guards = [guard for guard, _ in train_guards(guards, self.problem, self.contexts, **options)]
            trained |= dict(zip(terms, guards, strict=True))
            report(done, len(kinds), 0.0)
        return trained

    def score_points(self, trained: dict[str, Any], progress: Progress) -> list[FrontierPoint]:
        """Score everything on the test days, what promises first."""
        guards = trained["guarded"]
        exact = float(theory.exact_robd_ratio(1.0, self.settings.alpha))
        guarded = []
        for terms, guard in guards.items():
            renewed = guard.every(terms.steps(self.period))
            guarded.append(_make_guarded_point(terms, self._score_stream(renewed)))
            progress("testing guards", len(guarded), len(guards))
        ridge, plan = OnlineRidge(self.period), RHC(self.period - 1, truncate=False)
        rows: list[tuple[str, str, AbstractAgent, dict[str, Any]]] = [
            ("r-obd", "R-OBD", ROBD(), {}),
            ("ridge", "OnlineRidge", ridge, {}),
            ("rhc", "RHC", plan, {"window": plan.window, "forecaster": "RollingProfile"}),
        ]
        if self.settings.network is not None:
            rows += self._list_networks(trained["EC-L2O"], trained["PureML"])
        points = []
        for family, label, agent, parameters in rows:
            forecaster = RollingProfile(7, period=self.period) if agent is plan else None
            found = self._score_stream(agent) if agent is ridge else score_days(agent, self.test, forecaster)
            figures = found.average_cost, found.competitive_ratio, found.tail_ratio["p99"]
            points.append(FrontierPoint(family, label, exact if family == "r-obd" else None, *figures, parameters))
            progress("testing", len(points), len(rows))
        return [points[0], *guarded, *points[1:]]

    def _list_networks(
        self, calibrated: dict[tuple[float, float], MLAROBD], alone: PureML
    ) -> list[tuple[str, str, AbstractAgent, dict[str, Any]]]:
        """Return family, label, agent and parameters of the rows with a network."""
        tuned = min(TUNING, key=lambda pair: score_days(calibrated[pair], self.validation).average_cost)
        advisor, paper = {"advisor": self.settings.network}, (PAPER_TRUST, PAPER_MU)
        return [
            ("pure-ml", "PureML-0", alone, advisor),
            ("mla-robd", "MLA-ROBD", MLAROBD(alone.advisor, TWO_STAGE_TRUST), advisor | {"trust": TWO_STAGE_TRUST}),
            ("ec-l2o", "EC-L2O", calibrated[paper], advisor | {"trust": PAPER_TRUST, "mu": PAPER_MU}),
            ("ec-l2o-tuned", "EC-L2O, tuned", calibrated[tuned], advisor | {"trust": tuned[0], "mu": tuned[1]}),
        ]

    def _score_stream(self, agent: AbstractAgent) -> DailyScore:
        """Score an agent that has seen all earlier days and runs on over midnight."""
        days = self.contexts.test_days(self.steps_before_test)
        return score_runs(*stream_days(agent, self.problem, *days), self.test)


def _make_guarded_point(terms: PromiseSpec, found: DailyScore) -> FrontierPoint:
    if not bool(np.all(found.runs.converged)):
        raise DataError("some contexts lie outside the interval in which all were said to lie, so nothing is promised.")
    bounded = terms.contexts is not None
    label = f"{terms.ratio:g} per {terms.per}" + (", bounded contexts" if bounded else "")
    figures = found.average_cost, found.competitive_ratio, found.tail_ratio["p99"]
    parameters = {"ratio": terms.ratio, "contexts": terms.contexts}
    promise = terms.per, bounded, worst_live_ratio(found)
    return FrontierPoint("guarded", label, terms.ratio, *figures, parameters, *promise)


def describe_source(contexts: Contexts) -> dict[str, Any]:
    """Return where the contexts come from, as JSON's types."""
    metadata = contexts.metadata
    return {
        "file": None if metadata is None else metadata.file,
        "sha256": None if metadata is None else metadata.sha256,
        "preset": contexts.preset,
        "base_shortage": contexts.base_shortage,
        "steps_per_day": contexts.steps_per_day,
        "columns": contexts.dim,
        "split": dataclasses.asdict(contexts.split),
    }
