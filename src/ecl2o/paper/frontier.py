"""What a promise costs: average cost against the ratio that is promised, by the period for which it is.

Every family is trained and tested on the same days of one series. Guarded rows are `OnlineRidge` with its correction trained
through `Competitive`, one per ratio and period, and once more for each where contexts are known to lie in an interval; the end
of their curves, where nothing is promised, is `OnlineRidge` itself. R-OBD promises the smallest ratio that any online algorithm
can; planners, networks and calibrated networks promise none.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ecl2o import theory
from ecl2o.agents import MLAROBD, RHC, ROBD, AbstractAgent, Competitive, PureML
from ecl2o.agents.advisors import LSTM, MLP, OnlineRidge, Scaling
from ecl2o.data import Contexts
from ecl2o.evaluation import DailyScore, TestDays, score_days, score_runs
from ecl2o.evaluation.comparison import worst_live_ratio
from ecl2o.exceptions import DataError
from ecl2o.fitting.guarded_training import competitive_ridge, train_guards
from ecl2o.fitting.settings import Per, Progress, PromiseSpec, check_alpha, ignore_progress, with_renewal
from ecl2o.forecasters import RollingProfile
from ecl2o.learning import CalibratedLoss, StandaloneLoss, fit_many
from ecl2o.learning.guarded_loss import record_forecasts
from ecl2o.paper.case_study import PAPER_MU, PAPER_TRUST, TWO_STAGE_TRUST, Job, run_jobs
from ecl2o.paper.demand_response import LEARNING_RATES, TUNING
from ecl2o.problem import Mahalanobis, Problem, SquaredTracking
from ecl2o.running import stream_days

FORMAT = 1
RATIOS = (1.75, 1.8, 2.0, 2.2, 2.5, 3.0, 4.0)
PROFILE_DAYS = 14  # what planners may remember

Network = Literal["LSTM", "MLP"]


@dataclasses.dataclass(frozen=True)
class FrontierSettings:
    """What is trained, and how long; `quick` trains too little for figures of networks to mean anything.

    `contexts` is the interval in which all contexts are known to lie, if it is known; then each period has a second curve.
    """

    alpha: float = 10.0
    network: Network = "LSTM"
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
    promise: float | None
    average_cost: float
    competitive_ratio: float
    p99: float
    parameters: dict[str, Any]
    per: Per | None = None
    bounded: bool = False
    live_ratio: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The row of results.json; no promise is null."""
        shown = dataclasses.asdict(self)
        return {"promised_ratio": shown.pop("promise"), **shown}


@dataclasses.dataclass(frozen=True)
class Frontier:
    """All points, and the limits that no online algorithm crosses.

    `smallest_ratio` is the least that can be promised for runs of any length; `refused` are the ratios below it that were asked
    for. `varying_ratio` is R-OBD's bound where curvature may vary, which is not so here. Average costs are in units of the mean
    daily cost of the optimum of all test days together; for weather, as in the paper, of the daily oracle. What that one costs on
    average, in the unit, is `daily_oracle`.
    """

    points: list[FrontierPoint]
    smallest_ratio: float
    varying_ratio: float
    refused: list[float]
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
        """The content of results.json."""
        return {
            "format": FORMAT,
            "study": "frontier",
            "source": self.source,
            "problem": {"m": 1.0, "alpha": self.settings.alpha, "beta": self.settings.alpha},
            "settings": dataclasses.asdict(self.settings),
            "oracle": {"average_cost": self.oracle_average_cost},
            "unit": self.unit,
            "daily_oracle": self.daily_oracle,
            "test_days": self.test_days,
            "smallest_ratio": self.smallest_ratio,
            "varying_curvature_ratio": self.varying_ratio,
            "refused_ratios": self.refused,
            "points": [point.as_json() for point in self.points],
            "seconds": self.seconds,
        }


def run_frontier(
    contexts: Contexts, settings: FrontierSettings = FrontierSettings(), progress: Progress = ignore_progress
) -> Frontier:
    """Train every family on the training days, choose on the validation days, report on the test days."""
    started = time.perf_counter()
    if contexts.steps_per_day < 2:
        raise DataError(
            "the frontier is between days of several steps, but this series has one row a day. Use an hourly series."
        )
    if (contexts.training == contexts.training[0]).all():
        raise DataError(f"the training days of {contexts.name} never change, so that there is nothing to learn.")
    used = contexts if contexts.preset else contexts.scale_to(1.0)
    setup = _Setup(used, settings, used.scale / contexts.scale)
    smallest = float(theory.smallest_feasible_ratio(settings.alpha))
    ratios = [ratio for ratio in settings.ratios if ratio > smallest]
    jobs = [
        Job("EC-L2O", setup.train_calibrated),
        Job("PureML", setup.train_alone),
        Job("guarded", lambda report: setup.train_guarded(ratios, report)),
    ]
    trained = run_jobs(jobs, progress)
    points = setup.points(trained, progress)
    alpha = settings.alpha
    return Frontier(
        points=points,
        smallest_ratio=smallest,
        varying_ratio=float(theory.robd_ratio(1.0, alpha, alpha)),
        refused=[ratio for ratio in settings.ratios if ratio <= smallest],
        test_days=setup.test.days.shape[0],
        oracle_average_cost=float(np.mean(setup.test.unit)) * (contexts.scale / setup.contexts.scale) ** 2,
        settings=settings,
        source=describe_source(contexts),
        seconds=time.perf_counter() - started,
        daily_oracle=float(np.mean(setup.test.oracle_cost) / np.mean(setup.test.unit)),
    )


class _Setup:
    """The problem and the days, common to all rows; scaling contexts changes neither normalised costs nor ratios."""

    def __init__(self, contexts: Contexts, settings: FrontierSettings, unit: float):
        self.contexts, self.settings = contexts, settings
        self.period, self.dim = contexts.steps_per_day, contexts.dim
        self.problem = Problem(SquaredTracking(), Mahalanobis.isotropic(settings.alpha, dim=self.dim))
        history = min(PROFILE_DAYS, contexts.split.training_days) * self.period
        judged = TestDays.with_whole_span_optimum if contexts.preset is None else TestDays.of
        self.test = judged(self.problem, *contexts.test_days(history))
        self.validation = TestDays.of(self.problem, *contexts.validation_days(history))
        self.key = jax.random.key(settings.seed)
        self.unit = unit

    def network(self) -> AbstractAgent:
        """An untrained network; weather comes scaled as its authors had it, so only other series are standardised."""
        kind = {"LSTM": LSTM, "MLP": MLP}[self.settings.network]
        scaling = None
        if self.contexts.preset is None:
            scaling = Scaling.of(jnp.asarray(self.contexts.training))
        key = jax.random.fold_in(self.key, 1)
        return kind(self.dim, self.dim, key=key, contexts=scaling, actions=scaling)

    def train_alone(self, report: Callable) -> PureML:
        """PureML: the network on its own cost."""
        return self._fit([PureML(self.network())], [StandaloneLoss(0.0)], report)[0]

    def train_calibrated(self, report: Callable) -> dict[tuple[float, float], MLAROBD]:
        """EC-L2O networks by (trust, mu): the paper's setting, and those that validation chooses from."""
        grid = ((PAPER_TRUST, PAPER_MU), *TUNING)
        agents = [MLAROBD(self.network(), trust) for trust, _ in grid]
        losses = [CalibratedLoss(mu=mu) for _, mu in grid]
        return dict(zip(grid, self._fit(agents, losses, report), strict=True))

    def _fit(self, agents: Sequence[Any], losses: Sequence[Any], report: Callable) -> list[Any]:
        windows = self.contexts.training_windows()
        fitted = fit_many(
            agents,
            self.problem,
            windows,
            losses=list(losses),
            keys=[self.key] * len(agents),
            steps=self.settings.training_steps,
            learning_rates=LEARNING_RATES[{"LSTM": LSTM, "MLP": MLP}[self.settings.network]],
            batch=min(50, windows.x0.shape[0]),
            progress=report,
        )
        return [result.agent for result in fitted]

    def train_guarded(self, ratios: Sequence[float], report: Callable) -> dict[PromiseSpec, Competitive]:
        """A guard for all terms, its correction trained through it; what `OnlineRidge` makes of the contexts is recorded once."""
        split = self.contexts.split
        known = self.contexts.values[: (split.training_days + split.validation_days) * self.period]
        outlook = record_forecasts(OnlineRidge(self.period), self.problem, known)
        boxes = [None] if self.settings.contexts is None else [None, self._scaled(self.settings.contexts)]
        kinds: list[tuple[Per, tuple[float, float] | None]] = [
            (per, box) for per in self.settings.periods for box in boxes
        ]
        trained = {}
        for done, (per, box) in enumerate(kinds, start=1):
            terms = [PromiseSpec(ratio, per, contexts=box) for ratio in ratios]
            guards, period = [competitive_ridge(each, self.period) for each in terms], terms[0].steps(self.period)
            if period is not None:  # a promise without an end is not trained
                options = {"period": period, "steps": self.settings.guarded_steps, "forecasts": outlook}
                guards = [guard for guard, _ in train_guards(guards, self.problem, self.contexts, **options)]
            trained |= dict(zip(terms, guards, strict=True))
            report(done, len(kinds), 0.0)
        return trained

    def _scaled(self, interval: tuple[float, float]) -> tuple[float, float]:
        """An interval of the file's units in those of the contexts that are used."""
        low, high = interval
        return low * self.unit, high * self.unit

    def points(self, trained: dict[str, Any], progress: Progress) -> list[FrontierPoint]:
        """Everything on the test days, what promises first."""
        calibrated, alone = trained["EC-L2O"], trained["PureML"]
        tuned = min(TUNING, key=lambda pair: score_days(calibrated[pair], self.validation).average_cost)
        kind, paper = self.settings.network, (PAPER_TRUST, PAPER_MU)
        exact = float(theory.exact_robd_ratio(1.0, self.settings.alpha))
        profile = RollingProfile(7, period=self.period)
        plan = RHC(self.period - 1, truncate=False)

        def days(agent: AbstractAgent, forecaster: RollingProfile | None = None) -> Callable[[], DailyScore]:
            return lambda: score_days(agent, self.test, forecaster)

        def through(agent: AbstractAgent) -> Callable[[], DailyScore]:
            split = self.contexts.split
            past = (split.training_days + split.validation_days) * self.period
            return lambda: score_runs(*stream_days(agent, self.problem, *self.contexts.test_days(past)), self.test)

        guarded = []
        for done, (terms, guard) in enumerate(trained["guarded"].items(), start=1):
            found = through(with_renewal(guard, terms.steps(self.period)))()
            guarded.append(_make_guarded_point(terms, found))
            progress("testing guards", done, len(trained["guarded"]))
        rows: list[tuple[str, str, float | None, dict[str, Any], Callable[[], DailyScore]]] = [
            ("r-obd", "R-OBD", exact, {}, days(ROBD())),
            ("ridge", "OnlineRidge", None, {}, through(OnlineRidge(self.period))),
            ("rhc", "RHC", None, {"window": plan.window, "forecaster": "RollingProfile"}, days(plan, profile)),
            ("pure-ml", "PureML-0", None, {"advisor": kind}, days(alone)),
            (
                "mla-robd",
                "MLA-ROBD",
                None,
                {"advisor": kind, "trust": TWO_STAGE_TRUST},
                days(MLAROBD(alone.advisor, TWO_STAGE_TRUST)),
            ),
            ("ec-l2o", "EC-L2O", None, _calibrated_parameters(kind, paper), days(calibrated[paper])),
            ("ec-l2o-tuned", "EC-L2O, tuned", None, _calibrated_parameters(kind, tuned), days(calibrated[tuned])),
        ]
        points = []
        for family, label, promise, parameters, score in rows:
            found = score()
            figures = found.average_cost, found.competitive_ratio, found.tail_ratio["p99"]
            points.append(FrontierPoint(family, label, promise, *figures, parameters))
            progress("testing", len(points), len(rows))
        return [points[0], *guarded, *points[1:]]


def _make_guarded_point(terms: PromiseSpec, found: DailyScore) -> FrontierPoint:
    if not bool(np.all(found.runs.converged)):
        raise DataError("some contexts lie outside the interval in which all were said to lie, so nothing is promised.")
    return FrontierPoint(
        "guarded",
        f"{terms.ratio:g} per {terms.per}" + (", bounded contexts" if terms.contexts else ""),
        terms.ratio,
        found.average_cost,
        found.competitive_ratio,
        found.tail_ratio["p99"],
        {"ratio": terms.ratio, "contexts": terms.contexts},
        terms.per,
        terms.contexts is not None,
        worst_live_ratio(found),
    )


def _calibrated_parameters(kind: str, pair: tuple[float, float]) -> dict[str, Any]:
    return {"advisor": kind, "trust": pair[0], "mu": pair[1]}


def describe_source(contexts: Contexts) -> dict[str, Any]:
    """Where the contexts come from, as JSON's types."""
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
