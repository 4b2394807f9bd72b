"""The paper's case study (section 6): a datacenter sheds load for a grid with renewables.

Contexts are the power shortage by hour, actions the load that is shed; f = 1/2 |x - y|^2 and c = alpha/2 |x - z|^2. Training,
validation and test days, and how they are scored, are described in docs/reproduction.md.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
import pydantic

from ecl2o import theory
from ecl2o.agents import MLAROBD, ROBD, AbstractAgent, Guard, PureML, Switch
from ecl2o.agents.advisors import SeasonalLinear
from ecl2o.data import Contexts, WeatherMetadata, weather_contexts
from ecl2o.evaluation import DailyScore, TestDays, score_agents, score_days
from ecl2o.fitting.guarded_training import competitive_ridge, train_guards
from ecl2o.fitting.settings import LEAST_ALPHA, MOST_ALPHA, Progress, PromiseSpec, ignore_progress
from ecl2o.learning import CalibratedLoss, fit_many
from ecl2o.paper import generalization
from ecl2o.paper.case_study import (
    AUTHORS_EXAMPLE,
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
    authors_agents,
    expert_agents,
    network_agents,
    planner_agent,
    run_study,
    tuned_agent,
)
from ecl2o.paper.networks import AuthorsTraining, CalibratedTraining, NetworkTraining, StandaloneTraining
from ecl2o.paper.pareto import SweepPoint, SweepRecord, average_over_seeds, choices_json, choose_settings
from ecl2o.paper.results import StudyResults, StudyRow
from ecl2o.paper.sweep_grid import Network, Setting
from ecl2o.problem import Instance, Mahalanobis, Problem, SquaredTracking

HOURS = 24
HISTORY = 14 * HOURS  # what advisors and forecasters may remember
SEASONAL_WINDOW = 96  # hours; the structured advisor is trained across midnight

PROMISE = 2.5
# (trust, mu) that validation chooses from, beside the paper's; `ecl2o sweep` has more of them, and thresholds and scales too.
TUNING = tuple(itertools.product((0.1, 0.3, 0.5), (0.0, 0.1, 0.3)))
QUICK_TUNING = ((0.3, 0.0), (0.3, 0.3))
SEASONAL_TRUSTS = (1.0, 10.0)

# What the trade-off figure varies.
KAPPAS = (0.25, 0.5, 0.75, 1.0)
GAMMAS = (1.05, 1.2, 1.5, 2.0, 3.0)
TRUSTS = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)

# Rows whose cost is followed from the training days into days unlike them.
SHIFTED = ("r-obd", "pure-ml", "mla-robd", "ec-l2o", "ec-l2o-tuned")


DEMAND_RESPONSE = (
    "Every hour a data center sees the shortage y of its renewable supply (the context) and chooses how much load x to shed (the "
    "action), at once and not knowing the hours to come. The hour costs 1/2 (x - y)^2 for the miss and alpha/2 (x - previous x)^2"
    " for the change, with alpha = {alpha:g}: a change is {alpha:g} times worse than a miss of the same size. The miss has "
    "curvature m = {m:g}, and the change is weighed alike in every direction, beta = alpha. Figures show power; costs are in "
    "squares of the scaled contexts."
)


class DemandResponseSettings(StudySettings):
    """What `ecl2o reproduce` does. The defaults are the paper's, on the built-in weather."""

    weather: str | None = None  # a file; None: the built-in year
    preset: Literal["authors-code", "paper"] = "authors-code"
    network: Network | None = None  # None: the preset's, an LSTM in the authors' code, an MLP in the paper
    # W, or as in `weather_contexts`; None: the preset's, or "auto" for built-in weather
    base_shortage: PositiveNumber | str | None = None
    alpha: float = pydantic.Field(default=10.0, ge=LEAST_ALPHA, le=MOST_ALPHA)

    @property
    def seasonal_steps(self) -> int:
        """Adam steps of the structured advisor."""
        return 100 if self.quick else 1200

    @property
    def guarded_steps(self) -> int:
        """Adam steps of the correction inside the guard."""
        return 20 if self.quick else 200


class DemandResponse(AbstractStudy):
    """The demand-response study on one year of weather."""

    name = "demand-response"
    title = "Sustainable datacenter demand response"
    description = DEMAND_RESPONSE
    trade_off_rows = ("rhc", "seasonal", "guarded")
    settings: DemandResponseSettings

    def __init__(self, settings: DemandResponseSettings):
        self.settings = settings
        self.choices: dict[str, SweepPoint] = {}
        source = settings.weather, settings.preset, settings.base_shortage, settings.fill
        self.contexts: Contexts = weather_contexts(*source)
        self.problem = Problem(SquaredTracking(), Mahalanobis.isotropic(settings.alpha, dim=1))
        self.windows: Instance = self.contexts.training_windows()
        self.test = TestDays.of(self.problem, *self.contexts.test_days(HISTORY))
        self.validation = TestDays.of(self.problem, *self.contexts.validation_days(HISTORY))

    @property
    def network(self) -> Network:
        """The kind of network that was asked for, or the preset's."""
        return self.settings.network or ("lstm" if self.settings.preset == "authors-code" else "mlp")

    def _training(self, instances: Instance) -> NetworkTraining:
        return NetworkTraining.of_kind(self.network, self.problem, instances, self.settings.training_steps)

    @property
    def tuning(self) -> tuple[tuple[float, float], ...]:
        """(trust, mu) of EC-L2O that are trained with every seed, the paper's first."""
        return ((PAPER_TRUST, PAPER_MU), *(QUICK_TUNING if self.settings.quick else TUNING))

    def train_references(self, report: Callable) -> dict[CalibratedTraining, MLAROBD]:
        """Train EC-L2O on the *test* days: the theorems' W*, as well as training finds it."""
        days = generalization.solve_test_days(self.problem, self.contexts)
        return self._training(days.instances).train_calibrated(self.theorem_settings, report)

    @property
    def theorem_settings(self) -> list[CalibratedTraining]:
        """Whose bounds are evaluated: the paper's parameters, and the same trust without the prediction error."""
        return [CalibratedTraining(PAPER_TRUST, mu, self.settings.seed) for mu in (PAPER_MU, 0.0)]

    def train_seasonal(self, report: Callable) -> dict[float, list[MLAROBD]]:
        """Train the structured advisor through the calibrator across days: agents by trust, one per seed."""
        trusts = SEASONAL_TRUSTS[-1:] if self.settings.quick else SEASONAL_TRUSTS
        grid = list(itertools.product(trusts, self.settings.seed_numbers))
        fitted = fit_many(
            [MLAROBD(SeasonalLinear(dim=1, context_dim=1), trust) for trust, _ in grid],
            self.problem,
            self.contexts.training_windows(SEASONAL_WINDOW, HISTORY),
            losses=CalibratedLoss(mu=0.0),
            keys=[jax.random.key(seed) for _, seed in grid],
            steps=self.settings.seasonal_steps,
            learning_rates=1e-2,
            progress=report,
        )
        agents = iter(result.agent for result in fitted)
        return {trust: list(itertools.islice(agents, len(self.settings.seed_numbers))) for trust in trusts}

    def train_guarded(self) -> Guard:
        """Train the regression advisor's correction through a guard whose promise is renewed every day."""
        guard, steps = competitive_ridge(PromiseSpec(PROMISE, "day"), HOURS), self.settings.guarded_steps
        ((trained, _),) = train_guards([guard], self.problem, self.contexts, period=HOURS, steps=steps)
        return trained.every(HOURS)

    def score(self, name: str, spec: StudyAgent, agent: AbstractAgent) -> DailyScore:
        """Score an agent; `guarded` learns while it runs, so it restarts each day on a history as long as that of the first."""
        if name != "guarded":
            return score_days(agent, self.test, spec.forecaster)
        split = self.contexts.split
        seen = (split.training_days + split.validation_days) * HOURS
        return score_days(agent, dataclasses.replace(self.test, history=self.contexts.test_days(seen).history))

    def _choose(self, calibrated: dict[CalibratedTraining, MLAROBD]) -> dict[str, SweepPoint]:
        """Choose EC-L2O's trust and mu on the validation days: by cost, and by cost and ratio."""
        tried = [s for s in calibrated if (s.trust, s.mu) in self.tuning]
        scores = score_agents([calibrated[s] for s in tried], self.validation)
        records = [
            SweepRecord(
                Setting("ec-l2o", self.network, s.trust, s.mu, "zero", "oracle"),
                s.seed,
                {"validation_cost": score.average_cost, "validation_ratio": score.competitive_ratio},
            )
            for s, score in zip(tried, scores, strict=True)
        ]
        bound = theory.robd_ratio(1.0, self.settings.alpha, self.settings.alpha)
        return choose_settings(average_over_seeds(records), self.network, float(bound))

    def make_jobs(self) -> list[Job]:
        seeds, networks = self.settings.seed_numbers, self._training(self.windows)
        kappas = () if self.settings.quick else KAPPAS
        calibrated = [CalibratedTraining(trust, mu, seed) for trust, mu in self.tuning for seed in seeds]
        calibrated += [setting for setting in self.theorem_settings if setting not in calibrated]
        half = -(-len(calibrated) // 2)
        alone = [StandaloneTraining(0.0, seed) for seed in seeds]
        alone += [StandaloneTraining(kappa, seeds[0]) for kappa in kappas]
        authors = [AuthorsTraining(trust, weight, seed) for trust, weight in self._authors_settings for seed in seeds]
        same = [StandaloneTraining(0.0, seed) for seed in seeds]
        jobs = [
            Job("EC-L2O, authors' loss", lambda report: networks.train_authors(authors, report)),
            Job("PureML, authors' rates", lambda report: networks.train_alone(same, report, "authors")),
        ]
        return [
            *(jobs if authors else ()),
            Job("EC-L2O, first half", lambda report: networks.train_calibrated(calibrated[:half], report)),
            Job("EC-L2O, second half", lambda report: networks.train_calibrated(calibrated[half:], report)),
            Job("PureML", lambda report: networks.train_alone(alone, report)),
            Job("seasonal", self.train_seasonal),
            Job("guarded", lambda report: self.train_guarded()),
            Job("EC-L2O on test days", self.train_references),
        ]

    @property
    def _authors_settings(self) -> tuple[tuple[float, float], ...]:
        """(trust, weight) that are trained with the authors' loss."""
        return ((PAPER_TRUST, PAPER_MU), AUTHORS_EXAMPLE) if self.settings.preset == "authors-code" else ()

    def make_agents(self, trained: Trained) -> dict[str, StudyAgent]:
        seeds, calibrated, kind = self.settings.seed_numbers, _calibrated(trained), self.network.upper()
        self.choices = self._choose(calibrated)
        alone: list[PureML] = [trained["PureML"][StandaloneTraining(0.0, seed)] for seed in seeds]

        def with_seeds(trust: float | None, mu: float | None) -> list[MLAROBD]:
            return [agent for s, agent in calibrated.items() if (s.trust, s.mu) == (trust, mu) and s.seed in seeds]

        def tune(point: SweepPoint, how: str) -> TunedAgents:
            trust, mu = point.setting.trust, point.setting.mu
            assert trust is not None
            assert mu is not None
            return TunedAgents(trust, mu, f"chosen by {how} on the validation month", with_seeds(trust, mu))

        cheapest, careful = self.choices.values()
        careful_agent = tuned_agent(kind, tune(careful, "cost and ratio"), "careful")
        seasonal_trust, seasonal = self._choose_best(trained["seasonal"])
        authors = [
            [trained["EC-L2O, authors' loss"][AuthorsTraining(*pair, seed)] for seed in seeds]
            for pair in self._authors_settings
        ]
        return {
            **expert_agents(),
            "rhc": planner_agent(HOURS),
            **network_agents(kind, alone, with_seeds(PAPER_TRUST, PAPER_MU), tune(cheapest, "cost")),
            **({} if careful.setting == cheapest.setting else {"ec-l2o-careful": careful_agent}),
            **(authors_agents(kind, [*trained["PureML, authors' rates"].values()], *authors) if authors else {}),
            "seasonal": StudyAgent(
                "Seasonal",
                "A linear advisor on a rolling profile, trained through the calibrator on 4-day windows.",
                {"trust": seasonal_trust, "mu": 0.0, "advisor": "SeasonalLinear"},
                seasonal,
            ),
            "guarded": StudyAgent(
                f"Guarded, {PROMISE:g}",
                f"A regression that learns while it runs, corrected and trained through a guard: at most {PROMISE:g} times the "
                "optimum of the day, whatever happens.",
                {"ratio": PROMISE, "horizon": HOURS, "advisor": "OnlineRidge"},
                [trained["guarded"]],
            ),
        }

    def _choose_best(self, candidates: dict[float, list]) -> tuple[float, list]:
        """Return the candidate with the lowest validation cost, and its agents."""

        def mean_cost(setting: float) -> float:
            return float(np.mean([score.average_cost for score in score_agents(candidates[setting], self.validation)]))

        best = min(candidates, key=mean_cost)
        return best, candidates[best]

    def make_trade_off_cases(self, trained: Trained, agents: dict[str, StudyAgent]) -> list[TradeOffCase]:
        first = self.settings.seed_numbers[0]
        advisor = trained["PureML"][StandaloneTraining(0.0, first)].advisor
        cases: list[TradeOffCase] = [("r-obd", "", ROBD())]
        cases += [("pure-ml", f"kappa {s.kappa:g}", a) for s, a in trained["PureML"].items() if s.seed == first]
        cases += [("switch", f"gamma {gamma:g}", Switch(advisor, gamma=gamma)) for gamma in GAMMAS]
        cases += [("mla-robd", f"trust {trust:g}", MLAROBD(advisor, trust)) for trust in TRUSTS]
        calibrated = [(s, a) for s, a in _calibrated(trained).items() if s.seed == first]
        return cases + [("ec-l2o", f"trust {s.trust:g}, mu {s.mu:g}", a) for s, a in calibrated]

    def measure(self, trained: Trained, agents: dict[str, StudyAgent], rows: dict[str, StudyRow]) -> dict[str, Any]:
        shifted = {name: agents[name].agents for name in SHIFTED}
        return {
            "choices": choices_json(self.choices),
            "shift": generalization.measure_shift(self.contexts, self.test, rows, shifted),
            "theorems": self._evaluate_theorems(trained),
        }

    def _evaluate_theorems(self, trained: Trained) -> list[dict[str, Any]]:
        """Evaluate Theorems 5.1 and 5.2 for EC-L2O (first seed)."""
        training = generalization.solve_training_days(self.problem, self.contexts)
        use = generalization.solve_test_days(self.problem, self.contexts)
        diameter, found = float(np.ptp(self.contexts.values)), []
        for setting in self.theorem_settings:
            agents = _calibrated(trained)[setting], trained["EC-L2O on test days"][setting]
            terms = generalization.evaluate_theorems(
                *agents, self.problem, training, use, setting.mu, setting.rho_bar, diameter
            )
            found.append({"trust": setting.trust, "mu": setting.mu, **terms})
        return found

    def describe_source(self) -> dict[str, Any]:
        assert isinstance(self.contexts.metadata, WeatherMetadata)
        return self.contexts.metadata.as_dict() | {"base_shortage": self.contexts.base_shortage}


def run(settings: DemandResponseSettings, progress: Progress = ignore_progress) -> StudyResults:
    """Run the demand-response study."""
    return run_study(DemandResponse, "weather", settings, progress)


def _calibrated(trained: Trained) -> dict[CalibratedTraining, MLAROBD]:
    return {**trained["EC-L2O, first half"], **trained["EC-L2O, second half"]}
