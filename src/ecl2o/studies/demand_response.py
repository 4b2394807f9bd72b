"""The paper's case study (section 6): a datacenter sheds load for a grid with renewables.

Contexts are the power shortage by hour, actions the load that is shed; f = 1/2 |x - y|^2 and c = alpha/2 |x - z|^2. Training,
validation and test days, and how they are scored, are those of ALGORITHMS sections 8 and 9.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ecl2o.agents import MLAROBD, RHC, ROBD, AbstractAgent, Greedy, PureML, Renewed, Switch
from ecl2o.agents.advisors import LSTM, MLP, SeasonalLinear
from ecl2o.data import Contexts, WeatherMetadata, weather_contexts
from ecl2o.evaluation import DailyScore, TestBed, score_days, score_runs
from ecl2o.forecasters import RollingProfile
from ecl2o.learning import CalibratedLoss, Policy, StandaloneLoss, fit_many
from ecl2o.problem import Instance, Mahalanobis, Problem, SquaredTracking
from ecl2o.studies.guarded_training import competitive_ridge, play_through, train_through
from ecl2o.studies.results import Row, Study, TradeOffPoint, WorstDay
from ecl2o.studies.settings import DemandResponseSettings
from ecl2o.studies.training_jobs import Job, Progress, run_jobs, silent

HOURS = 24
HISTORY = 14 * HOURS  # what advisors and forecasters may remember
SEASONAL_WINDOW = 96  # hours; the structured advisor is trained across midnight

PAPER_TRUST, PAPER_MU, TWO_STAGE_TRUST, SWITCH_GAMMA, PROMISE = 0.5, 0.6, 0.3, 1.5, 2.5
TUNING = ((0.1, 0.0), (0.3, 0.0), (0.5, 0.0))  # (trust, mu) that validation chooses from, beside the paper's
SEASONAL_TRUSTS = (1.0, 10.0)

# What the trade-off figure varies.
KAPPAS = (0.25, 0.5, 0.75, 1.0)
GAMMAS = (1.05, 1.2, 1.5, 2.0, 3.0)
TRUSTS = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
EC_TRUSTS, EC_MUS = (0.4, 0.5), (0.0, 0.2, 0.4, 0.6, 0.8)


@dataclasses.dataclass(frozen=True)
class Setting:
    """One training of the network behind the calibrator."""

    trust: float
    mu: float
    seed: int


class DemandResponse:
    """The data of one run of the study: contexts, problem, and the days it is judged on."""

    def __init__(self, settings: DemandResponseSettings):
        self.settings = settings
        self.contexts: Contexts = weather_contexts(
            settings.weather, settings.preset, settings.base_shortage, settings.fill
        )
        self.problem = Problem(SquaredTracking(), Mahalanobis.isotropic(settings.alpha, dim=1))
        self.windows: Instance = self.contexts.training_windows()
        self.test = TestBed.of(self.problem, *self.contexts.test_days(HISTORY))
        self.validation = TestBed.of(self.problem, *self.contexts.validation_days(HISTORY))

    def network(self, seed: int) -> AbstractAgent:
        """The preset's network, untrained."""
        kind = LSTM if self.settings.preset == "authors-code" else MLP
        return kind(dim=1, context_dim=1, key=jax.random.fold_in(jax.random.key(seed), 1))

    def train_alone(self, kappas: Sequence[tuple[float, int]], report: Callable) -> list[PureML]:
        """PureML networks, one per (kappa, seed)."""
        fitted = fit_many(
            [PureML(self.network(seed)) for _, seed in kappas],
            self.problem,
            self.windows,
            losses=[StandaloneLoss(kappa) for kappa, _ in kappas],
            keys=[jax.random.key(seed) for _, seed in kappas],
            steps=self.settings.training_steps,
            progress=report,
        )
        return [result.agent for result in fitted]

    def train_calibrated(self, trainings: Sequence[Setting], report: Callable) -> dict[Setting, MLAROBD]:
        """EC-L2O networks, trained through the calibrator."""
        fitted = fit_many(
            [MLAROBD(self.network(s.seed), s.trust) for s in trainings],
            self.problem,
            self.windows,
            losses=[CalibratedLoss(mu=s.mu) for s in trainings],
            keys=[jax.random.key(s.seed) for s in trainings],
            steps=self.settings.training_steps,
            progress=report,
        )
        return {setting: result.agent for setting, result in zip(trainings, fitted, strict=True)}

    def train_seasonal(self, report: Callable) -> dict[float, list[MLAROBD]]:
        """The structured advisor, trained through the calibrator across days: agents by trust, one per seed."""
        trusts = SEASONAL_TRUSTS[-1:] if self.settings.quick else SEASONAL_TRUSTS
        grid = [(trust, seed) for trust in trusts for seed in self.settings.seed_numbers]
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
        by_trust = {trust: [] for trust in trusts}
        for (trust, _), result in zip(grid, fitted, strict=True):
            by_trust[trust].append(result.agent)
        return by_trust

    def train_guarded(self) -> Renewed:
        """The regression advisor with its correction, trained through a guard whose promise is renewed every day."""
        guard = competitive_ridge(PROMISE, HOURS)
        trained, _ = train_through(guard, self.problem, self.contexts, steps=self.settings.guarded_steps)
        return Renewed(trained, HOURS)

    def score(self, name: str, agent: AbstractAgent) -> DailyScore:
        """Test an agent; one that learns while it runs keeps its memory over midnight, and has seen all that went before."""
        if name == "guarded":
            split = self.contexts.split
            seen = (split.training_days + split.validation_days) * HOURS
            return score_runs(*play_through(agent, self.problem, self.contexts.test_days(seen)), self.test)
        return score_days(agent, self.test, RollingProfile() if name == "rhc" else None)

    def validation_cost(self, agents: Sequence[AbstractAgent]) -> float:
        """Mean normalised cost on the validation days: what hyper-parameters are chosen by."""
        return float(np.mean([score_days(agent, self.validation).average_cost for agent in agents]))


def run(settings: DemandResponseSettings, progress: Progress = silent) -> Study:
    """Train, test and collect everything the report shows."""
    started = time.perf_counter()
    seconds: dict[str, float] = {}

    def lap(name: str) -> None:
        seconds[name] = time.perf_counter() - started - sum(seconds.values())

    progress("weather", 0, 1)
    study = DemandResponse(settings)
    progress("weather", 1, 1)
    lap("weather")
    trained = run_jobs(_jobs(study), progress)
    lap("training")
    rows, chosen = _rows(study, trained, progress)
    trade_off = _trade_off(study, trained, rows, progress)
    lap("testing")
    weather = study.contexts.metadata
    assert isinstance(weather, WeatherMetadata)
    return Study(
        study="demand-response",
        title="Sustainable datacenter demand response",
        preset=settings.preset,
        contexts=study.contexts,
        constants={"m": 1.0, "alpha": settings.alpha, "beta": settings.alpha},
        seeds=settings.seed_numbers,
        oracle_average_cost=float(np.mean(study.test.oracle_cost)),
        test_days=study.test.days.shape[0],
        rows=rows,
        trade_off=trade_off,
        worst_day=_worst_day(study, rows, "ec-l2o"),
        policies=_policies(study, chosen),
        settings=settings.model_dump(),
        weather={**_plain(dataclasses.asdict(weather)), "base_shortage": study.contexts.base_shortage},
        seconds=seconds,
    )


def _jobs(study: DemandResponse) -> list[Job]:
    """Everything that is trained, the longest first."""
    seeds, quick = study.settings.seed_numbers, study.settings.quick
    first = seeds[0]
    main = [Setting(trust, mu, seed) for trust, mu in ((PAPER_TRUST, PAPER_MU), *TUNING) for seed in seeds]
    swept = [Setting(trust, mu, first) for trust in EC_TRUSTS for mu in EC_MUS]
    trainings = main + [s for s in swept if s not in main and not quick]
    half = -(-len(trainings) // 2)
    alone = [(0.0, seed) for seed in seeds] + [(kappa, first) for kappa in (() if quick else KAPPAS)]
    return [
        Job("EC-L2O, first half", lambda report: study.train_calibrated(trainings[:half], report)),
        Job("EC-L2O, second half", lambda report: study.train_calibrated(trainings[half:], report)),
        Job("PureML", lambda report: dict(zip(alone, study.train_alone(alone, report), strict=True))),
        Job("seasonal", study.train_seasonal),
        Job("guarded", lambda report: study.train_guarded()),
    ]


def _rows(study: DemandResponse, trained: dict[str, Any], progress: Progress) -> tuple[dict[str, Row], dict[str, Any]]:
    """The table, and one agent per row for the policy files."""
    seeds = study.settings.seed_numbers
    calibrated = {**trained["EC-L2O, first half"], **trained["EC-L2O, second half"]}
    alone = [trained["PureML"][0.0, seed] for seed in seeds]
    paper = [calibrated[Setting(PAPER_TRUST, PAPER_MU, seed)] for seed in seeds]
    tuned_at, tuned = _best(study, {pair: [calibrated[Setting(*pair, seed)] for seed in seeds] for pair in TUNING})
    seasonal_at, seasonal = _best(study, trained["seasonal"])
    kind = type(study.network(0)).__name__
    agents = {
        "greedy": [Greedy()],
        "r-obd": [ROBD()],
        "rhc": [RHC(HOURS - 1, truncate=False)],
        "pure-ml": alone,
        "switch": [Switch(agent.advisor, gamma=SWITCH_GAMMA) for agent in alone],
        "mla-robd": [MLAROBD(agent.advisor, TWO_STAGE_TRUST) for agent in alone],
        "ec-l2o": paper,
        "ec-l2o-tuned": tuned,
        "seasonal": seasonal,
        "guarded": [trained["guarded"]],
    }
    described = {
        "greedy": ("Greedy", "Minimises what this hour costs.", {}),
        "r-obd": ("R-OBD", "The expert: no online algorithm has a smaller worst-case ratio.", {}),
        "rhc": (
            "RHC",
            "What a practitioner would use: plans 24 hours ahead every hour, on a 7-day hourly profile plus a decaying "
            "correction.",
            {"window": HOURS - 1, "truncate": False, "forecaster": "RollingProfile(days=7, decay=0.9)"},
        ),
        "pure-ml": (
            "PureML-0",
            f"The network alone ({kind}), trained on its own cost.",
            {"kappa": 0.0, "advisor": kind},
        ),
        "switch": (
            "Switch",
            "Switches between PureML-0 and R-OBD by their bills.",
            {"gamma": SWITCH_GAMMA, "advisor": kind},
        ),
        "mla-robd": (
            "MLA-ROBD",
            "Two stages: PureML-0's advice, calibrated afterwards.",
            {"trust": TWO_STAGE_TRUST, "advisor": kind},
        ),
        "ec-l2o": (
            "EC-L2O",
            "The network trained through the calibrator, with the paper's parameters.",
            {"trust": PAPER_TRUST, "mu": PAPER_MU, "rho_bar": 0.0, "cost_scale": "oracle", "advisor": kind},
        ),
        "ec-l2o-tuned": (
            "EC-L2O, tuned",
            "The same with trust and mu chosen on the validation month.",
            {"trust": tuned_at[0], "mu": tuned_at[1], "cost_scale": "oracle", "advisor": kind},
        ),
        "seasonal": (
            "Seasonal",
            "A linear advisor on a rolling profile, trained through the calibrator on 4-day windows.",
            {"trust": seasonal_at, "mu": 0.0, "advisor": "SeasonalLinear"},
        ),
        "guarded": (
            f"Guarded, {PROMISE:g}",
            f"A regression that learns while it runs, corrected and trained through a guard: at most {PROMISE:g} times the "
            "optimum of the day, whatever happens.",
            {"ratio": PROMISE, "horizon": HOURS, "advisor": "OnlineRidge"},
        ),
    }
    rows = {"oracle": _oracle_row(study)}
    for done, (name, row_agents) in enumerate(agents.items(), start=1):
        label, what, parameters = described[name]
        scores = [study.score(name, agent) for agent in row_agents]
        rows[name] = Row(name, label, what, parameters, scores, learned=len(scores) > 1 or "advisor" in parameters)
        progress("testing", done, len(agents))
    return rows, {name: row_agents[0] for name, row_agents in agents.items()}


def _best(study: DemandResponse, candidates: dict[Any, list]) -> tuple[Any, list]:
    """The candidate with the lowest validation cost, and its agents."""
    costs = {setting: study.validation_cost(agents) for setting, agents in candidates.items()}
    best = min(costs, key=lambda setting: costs[setting])
    return best, candidates[best]


def _oracle_row(study: DemandResponse) -> Row:
    """The daily oracle beside itself."""
    bed = study.test
    score = score_days(_Clairvoyant, bed)
    what = "Knows the whole day in advance; every cost in this table is divided by its average."
    return Row("oracle", "Oracle", what, {}, [score])


_Clairvoyant = RHC(HOURS - 1)  # with exact forecasts, cut at midnight: the day's optimum


def _trade_off(study, trained, rows: dict[str, Row], progress: Progress) -> list[TradeOffPoint]:
    """Average cost against ratio over the parameters that trade one for the other (first seed)."""
    first = study.settings.seed_numbers[0]
    calibrated = {**trained["EC-L2O, first half"], **trained["EC-L2O, second half"]}
    advisor = trained["PureML"][0.0, first].advisor
    cases: list[tuple[str, str, AbstractAgent]] = [("r-obd", "", ROBD())]
    cases += [("pure-ml", f"kappa {k:g}", agent) for (k, seed), agent in trained["PureML"].items() if seed == first]
    cases += [("switch", f"gamma {gamma:g}", Switch(advisor, gamma=gamma)) for gamma in GAMMAS]
    cases += [("mla-robd", f"trust {trust:g}", MLAROBD(advisor, trust)) for trust in TRUSTS]
    cases += [("ec-l2o", f"trust {s.trust:g}, mu {s.mu:g}", a) for s, a in calibrated.items() if s.seed == first]
    points = []
    for done, (family, setting, agent) in enumerate(cases, start=1):
        score = score_days(agent, study.test)
        points.append(TradeOffPoint(family, setting, score.average_cost, score.competitive_ratio))
        progress("trade-off", done, len(cases))
    for name in ("rhc", "seasonal", "guarded"):
        score = rows[name].scores[0]
        points.append(TradeOffPoint(name, "", score.average_cost, score.competitive_ratio))
    return points


def _worst_day(study: DemandResponse, rows: dict[str, Row], name: str) -> WorstDay:
    day = int(np.argmax(rows[name].scores[0].ratio))
    hours = study.contexts.test_time()[day * HOURS : (day + 1) * HOURS]
    firsts = {row: rows[row].scores[0] for row in rows}
    return WorstDay(
        row=name,
        day=day,
        time=hours,
        contexts=np.asarray(study.test.days[day]),
        actions={row: np.asarray(score.runs.actions[day]) for row, score in firsts.items()},
        ratios={row: float(score.ratio[day]) for row, score in firsts.items()},
    )


def _policies(study: DemandResponse, chosen: dict[str, AbstractAgent]) -> dict[str, Policy]:
    """A policy file's content per row that one can run."""
    about = {
        "study": "demand-response",
        "preset": study.settings.preset,
        "context_scale": study.contexts.scale,
        "training_steps": study.settings.training_steps,
        "seed": study.settings.seed,
    }
    return {
        name: Policy(agent, study.problem, RollingProfile() if name == "rhc" else None, {**about, "row": name})
        for name, agent in chosen.items()
    }


def _plain(value: Any) -> Any:
    """JSON's types only."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
