"""Right-sizing a cluster: how many racks of each kind to keep on (Lin et al. 2011 made the question famous).

The general case of the paper: actions of several numbers in a box, a hitting cost that is convex but not quadratic, movement that
couples the coordinates. Every solve is Newton's, with bounds that are active much of the time, and EC-L2O is trained through
them. Costs and units are in `right_sizing_cost`, workloads in `right_sizing_workload`; days, scores and results are those of
the demand-response study.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array, Float

from ecl2o import theory
from ecl2o.agents import MLAROBD, OBD, OGD, RHC, ROBD, AbstractAgent, Greedy, Guarded, PureML, Switch
from ecl2o.agents.advisors import MLP, Scaling
from ecl2o.agents.calibration import minimize_hitting
from ecl2o.data import Contexts, Days, Split, read_series, series_contexts
from ecl2o.evaluation import DailyScore, TestBed, rollout_days, score_days
from ecl2o.evaluation.daily import score_runs
from ecl2o.forecasters import RollingProfile
from ecl2o.learning import CalibratedLoss, Policy, StandaloneLoss, fit_many
from ecl2o.offline import oracle_days
from ecl2o.problem import Instance, Problem
from ecl2o.studies.results import Row, Study, TradeOffPoint, WorstDay
from ecl2o.studies.right_sizing_cost import Cluster
from ecl2o.studies.right_sizing_workload import synthetic_workload, workload_contexts
from ecl2o.studies.training_jobs import Job, Progress, run_jobs, silent

HISTORY_DAYS = 14  # what forecasters may remember

TWO_STAGE_TRUST, SWITCH_GAMMA, SLACK = 0.3, 1.5, 0.05
PAPER_TRUST, PAPER_MU = 0.5, 0.6
# What is chosen before the test: (trust, mu) of EC-L2O on the validation days, gamma of OBD and the step size of OGD.
TUNING = ((1.0, 0.0), (5.0, 0.0))
GAMMAS = (0.01, 0.1, 1.0)
STEP_SIZES = (0.02, 0.05, 0.1, 0.2)
# What the trade-off figure varies.
TRUSTS, SLACKS = (0.1, 0.3, 1.0, 3.0, 10.0), (0.01, 0.02, 0.05, 0.1, 0.3)


class RightSizingSettings(pydantic.BaseModel):
    """What `ecl2o reproduce --study right-sizing` does."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    workload: str | None = None  # a CSV or Parquet file of one number per step; None: the built-in one
    time_column: str | None = None
    column: str | None = None  # which number, where the file has several
    fill: Literal["interpolate", "previous"] | None = None
    peak: float = pydantic.Field(default=25.0, gt=0)  # krps, what the largest training value of a file is scaled to
    training_days: int = pydantic.Field(default=60, ge=2)
    validation_days: int = pydantic.Field(default=30, ge=1)
    seeds: int = pydantic.Field(default=5, ge=1)
    seed: int = 0  # the first of them, and the built-in workload's
    quick: bool = False  # fewer seeds, steps and settings: a look, not a result

    @property
    def seed_numbers(self) -> list[int]:
        """The seeds, counted from the first."""
        count = min(self.seeds, 2) if self.quick else self.seeds
        return list(range(self.seed, self.seed + count))

    @property
    def training_steps(self) -> int:
        """Adam steps of each network."""
        return 300 if self.quick else 3000


def read_workload(settings: RightSizingSettings) -> Contexts:
    """The built-in workload, or that of a file."""
    split = Split(settings.training_days, settings.validation_days)
    if settings.workload is None:
        return synthetic_workload(settings.seed, split=split)
    columns = None if settings.column is None else [settings.column]
    frame, metadata = read_series(settings.workload, settings.time_column, columns, settings.fill)
    return workload_contexts(series_contexts(frame, metadata, split), settings.peak)


@eqx.filter_jit
def cheapest_actions(problem: Problem, contexts: Float[Array, "n q"]) -> Float[Array, "n d"]:
    """For each context the action that minimises its hitting cost: where a run begins that has no action before it."""
    dim = problem.Q.shape[0]
    lower, upper = problem.actions.bounds(dim, contexts.dtype)
    middle = 0.5 * (lower + upper)
    return jax.vmap(lambda context: minimize_hitting(problem, context, middle)[0])(contexts)


@dataclasses.dataclass(frozen=True)
class Training:
    """One training of the network behind the calibrator."""

    trust: float
    mu: float
    seed: int


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
        self.test = TestBed.of(self.problem, starts[-2], days.days, days.history)
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

    @property
    def forecaster(self) -> RollingProfile:
        """What RHC is told about the future."""
        return RollingProfile(period=self.hours)

    def network(self, seed: int) -> MLP:
        """The paper's network on (workload, racks), untrained."""
        contexts, actions = self.network_scale
        key = jax.random.fold_in(jax.random.key(seed), 1)
        return MLP(self.dim, 1, key=key, contexts=contexts, actions=actions)

    def train_alone(self, report: Callable) -> list[PureML]:
        """PureML networks, one per seed."""
        seeds = self.settings.seed_numbers
        return self._fit([PureML(self.network(seed)) for seed in seeds], [StandaloneLoss()] * len(seeds), seeds, report)

    def train_calibrated(self, trainings: Sequence[Training], report: Callable) -> dict[Training, MLAROBD]:
        """EC-L2O networks, trained through Newton's solves."""
        agents = [MLAROBD(self.network(t.seed), t.trust) for t in trainings]
        fitted = self._fit(agents, [CalibratedLoss(mu=t.mu) for t in trainings], [t.seed for t in trainings], report)
        return dict(zip(trainings, fitted, strict=True))

    def _fit(self, agents, losses, seeds, report: Callable) -> list:
        fitted = fit_many(
            agents,
            self.problem,
            self.windows,
            losses=losses,
            keys=[jax.random.key(seed) for seed in seeds],
            steps=self.settings.training_steps,
            progress=report,
        )
        return [result.agent for result in fitted]

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


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A row before it is tested: one agent per seed."""

    label: str
    what: str
    parameters: dict[str, Any]
    agents: Sequence[AbstractAgent]
    forecaster: RollingProfile | None = None


def run(settings: RightSizingSettings, progress: Progress = silent) -> Study:
    """Train, test and collect everything the report shows."""
    started = time.perf_counter()
    seconds: dict[str, float] = {}

    def lap(name: str) -> None:
        seconds[name] = time.perf_counter() - started - sum(seconds.values())

    progress("workload", 0, 1)
    study = RightSizing(settings)
    progress("workload", 1, 1)
    lap("workload")
    found = run_jobs(_trainings(study), progress)
    lap("training")
    entries = _entries(study, found)
    rows = _tested(study, entries, progress)
    trade_off = _trade_off(study, entries, rows, progress)
    lap("testing")
    constants = {name: float(getattr(study.problem, name)) for name in ("m", "alpha", "beta")}
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
        worst_day=_worst_day(study, rows, "ec-l2o"),
        policies=_policies(study, entries),
        settings=settings.model_dump(),
        weather=_source(study),
        seconds=seconds,
        extra={
            "cluster": study.cluster.as_dict(),
            "solves": {name: _solves(study, row) for name, row in rows.items()},
            "promises": _promises(constants, rows),
        },
    )


def _trainings(study: RightSizing) -> list[Job]:
    """Everything that is trained or chosen on the validation days, the longest first."""
    seeds = study.settings.seed_numbers
    pairs = ((PAPER_TRUST, PAPER_MU), *(TUNING[:1] if study.settings.quick else TUNING))
    trainings = [Training(trust, mu, seed) for trust, mu in pairs for seed in seeds]

    def tuned(report: Callable) -> tuple[float, float]:
        obd = study.cheapest({gamma: [OBD(gamma)] for gamma in GAMMAS}, study.tuning)
        report(1, 2, 0.0)
        ogd = study.cheapest({eta: [OGD(eta=eta)] for eta in STEP_SIZES}, study.tuning)
        report(2, 2, 0.0)
        return obd, ogd

    return [
        Job("EC-L2O", lambda report: study.train_calibrated(trainings, report)),
        Job("OBD and OGD", tuned),
        Job("PureML", study.train_alone),
    ]


def _entries(study: RightSizing, found: dict[str, Any]) -> dict[str, _Entry]:
    """The table's rows in order, without the oracle."""
    seeds = study.settings.seed_numbers
    gamma, eta = found["OBD and OGD"]
    by_pair: dict[tuple[float, float], list[MLAROBD]] = {}
    for training, agent in found["EC-L2O"].items():
        by_pair.setdefault((training.trust, training.mu), []).append(agent)
    paper = by_pair.pop((PAPER_TRUST, PAPER_MU))
    best = next(iter(by_pair)) if len(by_pair) == 1 else study.cheapest(by_pair, study.validation)
    how = "chosen on the validation days" if len(by_pair) > 1 else "not chosen, since this is a quick run"
    tuned, alone = by_pair[best], found["PureML"]
    assert len(paper) == len(alone) == len(seeds)
    rhc = RHC(study.hours - 1, truncate=False)
    return {
        "greedy": _Entry("Greedy", "Minimises what this hour costs.", {}, [Greedy()]),
        "r-obd": _Entry("R-OBD", "The expert: no online algorithm has a smaller worst-case ratio.", {}, [ROBD()]),
        "obd": _Entry(
            "OBD",
            "Moves until movement costs gamma times what the hour costs; gamma chosen on the days before the test.",
            {"gamma": gamma},
            [OBD(gamma)],
        ),
        "ogd": _Entry(
            "OGD",
            "Steps down the gradient of the hour's cost; the step size chosen on the days before the test.",
            {"eta": eta, "mode": "revealed", "steps": "constant"},
            [OGD(eta=eta)],
        ),
        "rhc": _Entry(
            "RHC",
            "What a practitioner would use: plans 24 hours ahead every hour, on a 7-day hourly profile plus a decaying "
            "correction.",
            {"window": study.hours - 1, "truncate": False, "forecaster": "RollingProfile(days=7, decay=0.9)"},
            [rhc],
            study.forecaster,
        ),
        "pure-ml": _Entry(
            "PureML-0", "The network alone, trained on its own cost.", {"kappa": 0.0, "advisor": "MLP"}, alone
        ),
        "switch": _Entry(
            "Switch",
            "Switches between PureML-0 and R-OBD by their bills.",
            {"gamma": SWITCH_GAMMA, "advisor": "MLP"},
            [Switch(agent.advisor, gamma=SWITCH_GAMMA) for agent in alone],
        ),
        "mla-robd": _Entry(
            "MLA-ROBD",
            "Two stages: PureML-0's advice, calibrated afterwards.",
            {"trust": TWO_STAGE_TRUST, "advisor": "MLP"},
            [MLAROBD(agent.advisor, TWO_STAGE_TRUST) for agent in alone],
        ),
        "ec-l2o": _Entry(
            "EC-L2O",
            "The network trained through the calibrator, with the paper's parameters.",
            {"trust": PAPER_TRUST, "mu": PAPER_MU, "rho_bar": 0.0, "cost_scale": "oracle", "advisor": "MLP"},
            paper,
        ),
        "ec-l2o-tuned": _Entry(
            "EC-L2O, tuned",
            f"The same with another trust and mu, {how}.",
            {"trust": best[0], "mu": best[1], "cost_scale": "oracle", "advisor": "MLP"},
            tuned,
        ),
        "guarded": _Entry(
            f"Guarded, {SLACK:g}",
            f"The tuned agent inside a guard: each day at most {1 + SLACK:g} times what R-OBD pays, whatever happens.",
            {"slack": SLACK, "expert": "ROBD", "trust": best[0], "mu": best[1], "advisor": "MLP"},
            [Guarded(agent, slack=SLACK) for agent in tuned],
        ),
    }


def _tested(study: RightSizing, entries: dict[str, _Entry], progress: Progress) -> dict[str, Row]:
    """Every row on the test days; two at a time, since compiling takes longer than running."""
    what = "Knows the whole day in advance; every cost in this table is divided by its average."
    rows = {"oracle": Row("oracle", "Oracle", what, {}, [study.oracle_score()])}
    alike: dict[Any, list[str]] = {}  # rows that run the same compiled program, one after the other
    for name, entry in entries.items():
        alike.setdefault(jax.tree.structure(entry.agents[0]), []).append(name)
    done = []

    def test(names: list[str]) -> dict[str, list[DailyScore]]:
        scores = {}
        for name in names:
            entry = entries[name]
            scores[name] = [score_days(agent, study.test, entry.forecaster) for agent in entry.agents]
            done.append(name)
            progress("testing", len(done), len(entries))
        return scores

    jobs = [Job(names[0], lambda _report, names=names: test(names)) for names in alike.values()]
    scores = {name: found for group in run_jobs(jobs, silent).values() for name, found in group.items()}
    for name, entry in entries.items():
        learned = "advisor" in entry.parameters
        rows[name] = Row(name, entry.label, entry.what, entry.parameters, scores[name], learned)
    return rows


def _trade_off(
    study: RightSizing, entries: dict[str, _Entry], rows: dict[str, Row], progress: Progress
) -> list[TradeOffPoint]:
    """Average cost against ratio over trust and slack (first seed), beside the rows as they are."""
    advisor, tuned = entries["pure-ml"].agents[0], entries["ec-l2o-tuned"].agents[0]
    assert isinstance(advisor, PureML)
    cases: list[tuple[str, str, AbstractAgent]] = [
        ("mla-robd", f"trust {trust:g}", MLAROBD(advisor.advisor, trust)) for trust in TRUSTS
    ]
    cases += [("guarded", f"slack {slack:g}", Guarded(tuned, slack=slack)) for slack in SLACKS]
    points = []
    for done, (family, setting, agent) in enumerate(cases, start=1):
        score = score_days(agent, study.test)
        points.append(TradeOffPoint(family, setting, score.average_cost, score.competitive_ratio))
        progress("trade-off", done, len(cases))
    for name in ("r-obd", "rhc", "pure-ml", "switch", "ec-l2o", "ec-l2o-tuned"):
        score = rows[name].scores[0]
        points.append(TradeOffPoint(name, "", score.average_cost, score.competitive_ratio))
    return points


def _solves(study: RightSizing, row: Row) -> dict[str, float]:
    """How often bounds were active and how often a solve did not converge, over all steps and seeds."""
    return {
        "bound_active": float(np.mean([study.bound_active(score) for score in row.scores])),
        "unconverged": float(np.mean([score.unconverged for score in row.scores])),
    }


def _promises(constants: dict[str, float], rows: dict[str, Row]) -> dict[str, dict[str, float]]:
    """What was promised for every day, and the largest that occurred."""
    guarded = max(float(jnp.max(score.runs.info.details["expert_ratio"][:, -1])) for score in rows["guarded"].scores)
    return {
        "r-obd": {
            "bound": float(theory.robd_ratio(constants["m"], constants["alpha"], constants["beta"])),
            "largest": rows["r-obd"].scores[0].competitive_ratio,
        },
        "guarded": {"bound": 1 + SLACK, "largest": guarded},
    }


def _worst_day(study: RightSizing, rows: dict[str, Row], name: str) -> WorstDay:
    day = int(np.argmax(rows[name].scores[0].ratio))
    firsts = {row: rows[row].scores[0] for row in rows}
    return WorstDay(
        row=name,
        day=day,
        time=study.contexts.test_time()[day * study.hours : (day + 1) * study.hours],
        contexts=np.asarray(study.test.days[day]),
        actions={row: np.asarray(score.runs.actions[day]) for row, score in firsts.items()},
        ratios={row: float(score.ratio[day]) for row, score in firsts.items()},
    )


def _policies(study: RightSizing, entries: dict[str, _Entry]) -> dict[str, Policy]:
    """A policy file's content per row that one can run."""
    about = {
        "study": "right-sizing",
        "cluster": study.cluster.as_dict(),
        "context_scale": study.contexts.scale,
        "training_steps": study.settings.training_steps,
        "seed": study.settings.seed,
    }
    return {
        name: Policy(entry.agents[0], study.problem, entry.forecaster, {**about, "row": name})
        for name, entry in entries.items()
    }


def _source(study: RightSizing) -> dict[str, Any]:
    """Where the workload comes from."""
    metadata = study.contexts.metadata
    if metadata is None:
        return {"file": "built-in synthetic workload", "seed": study.settings.seed}
    return {"file": metadata.file, "sha256": metadata.sha256, "scale": study.contexts.scale}
