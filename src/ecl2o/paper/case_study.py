"""What the two case studies share: the agents of their tables, training in parallel, testing, and the run as a whole."""

import abc
import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np

from ecl2o.agents import MLAROBD, RHC, ROBD, AbstractAgent, Greedy, Periodic, PureML, Switch
from ecl2o.data import Contexts
from ecl2o.evaluation import DailyScore, TestDays, score_days, score_runs
from ecl2o.exceptions import NotApplicableError
from ecl2o.fitting.settings import Progress, ignore_progress
from ecl2o.forecasters import RollingProfile
from ecl2o.offline import oracle_days
from ecl2o.paper.results import SkippedRow, StageTimer, StudyResults, StudyRow, TradeOffPoint, WorstDay, row_points
from ecl2o.paper.settings import StudySettings
from ecl2o.policy import Contract, Policy
from ecl2o.problem import Problem
from ecl2o.running import plausible_range


@dataclasses.dataclass(frozen=True)
class Job:
    """A named function, called with a function that reports (step, steps, loss)."""

    name: str
    work: Callable[[Callable[[int, int, float], None]], Any]


def run_jobs(jobs: Sequence[Job], progress: Progress, workers: int = 2) -> dict[str, Any]:
    """Run all jobs, at most `workers` at a time, and return their results by name.

    Two compiled programs share two cores better than one uses them. The first failure is raised and cancels the jobs that
    have not started; an interrupt does not wait for those that have.
    """
    lock = threading.Lock()

    def run(job: Job) -> Any:
        def report(done: int, total: int, _loss: float) -> None:
            with lock:
                progress(job.name, done, total)

        return job.work(report)

    pool, wait = ThreadPoolExecutor(workers), True
    try:
        futures = {job.name: pool.submit(run, job) for job in jobs}
        return {name: future.result() for name, future in futures.items()}
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        pool.shutdown(wait, cancel_futures=True)


SettingsT = TypeVar("SettingsT", bound=StudySettings)

# The paper's settings (section 6.2).
PAPER_TRUST, PAPER_MU, TWO_STAGE_TRUST, SWITCH_GAMMA = 0.5, 0.6, 0.3, 1.5
# (trust, weight) of the configuration that was published with the authors' code.
AUTHORS_EXAMPLE = (0.1, 0.0)


@dataclasses.dataclass(frozen=True)
class StudyAgent:
    """An agent of a study before its test, one per seed, and how the report names it."""

    label: str
    what: str  # one sentence for the report
    parameters: dict[str, Any]
    agents: Sequence[AbstractAgent]
    forecaster: RollingProfile | None = None
    daily: bool = False  # restarts every day, in its tests and in its policy file


@dataclasses.dataclass(frozen=True)
class TunedAgents:
    """The trust and mu of EC-L2O that did best, how they were found, and the agents."""

    trust: float
    mu: float
    how: str
    agents: Sequence[MLAROBD]


def expert_agents() -> dict[str, StudyAgent]:
    """Return the agents that need neither training nor a forecast."""
    return {
        "greedy": StudyAgent("Greedy", "Minimises what this hour costs.", {}, [Greedy()]),
        "r-obd": StudyAgent("R-OBD", "The expert: no online algorithm has a smaller worst-case ratio.", {}, [ROBD()]),
    }


def planner_agent(period: int) -> StudyAgent:
    """Return the planner that a practitioner would use: a new plan of one day at every step."""
    what = (
        "What a practitioner would use: a plan for the next day at every step, based on the hourly profile of the last 7 days "
        "plus a decaying correction."
    )
    parameters = {"window": period - 1, "truncate": False, "forecaster": "RollingProfile(days=7, decay=0.9)"}
    return StudyAgent("RHC", what, parameters, [RHC(period - 1, truncate=False)], RollingProfile(period=period))


def network_agents(
    kind: str, alone: Sequence[PureML], paper: Sequence[MLAROBD], tuned: TunedAgents
) -> dict[str, StudyAgent]:
    """Return the paper's agents with a network: alone, switched, calibrated afterwards, trained through the calibrator."""
    return {
        "pure-ml": StudyAgent(
            "PureML-0",
            f"The network alone ({kind}), trained on its own cost.",
            {"kappa": 0.0, "advisor": kind},
            alone,
            daily=True,
        ),
        "switch": StudyAgent(
            "Switch",
            "Switches between PureML-0 and R-OBD by what each has paid.",
            {"gamma": SWITCH_GAMMA, "advisor": kind},
            [Switch(agent.advisor, gamma=SWITCH_GAMMA) for agent in alone],
            daily=True,
        ),
        "mla-robd": StudyAgent(
            "MLA-ROBD",
            "Two stages: PureML-0's advice, calibrated afterwards.",
            {"trust": TWO_STAGE_TRUST, "advisor": kind},
            [MLAROBD(agent.advisor, TWO_STAGE_TRUST) for agent in alone],
            daily=True,
        ),
        "ec-l2o": StudyAgent(
            "EC-L2O",
            "The network trained through the calibrator, with the paper's parameters.",
            {"trust": PAPER_TRUST, "mu": PAPER_MU, "rho_bar": 0.0, "cost_scale": "oracle", "advisor": kind},
            paper,
            daily=True,
        ),
        "ec-l2o-tuned": tuned_agent(kind, tuned, "tuned"),
    }


def tuned_agent(kind: str, tuned: TunedAgents, word: str) -> StudyAgent:
    """Return EC-L2O with a chosen trust and mu."""
    parameters = {"trust": tuned.trust, "mu": tuned.mu, "rho_bar": 0.0, "cost_scale": "oracle", "advisor": kind}
    what = f"EC-L2O with another trust and mu, {tuned.how}."
    return StudyAgent(f"EC-L2O, {word}", what, parameters, tuned.agents, daily=True)


def authors_agents(kind: str, paper: Sequence[MLAROBD], example: Sequence[MLAROBD]) -> dict[str, StudyAgent]:
    """Return EC-L2O as the authors' code trains it, with the paper's trust and mu and with the published configuration's."""

    def parameters(trust: float, weight: float) -> dict[str, Any]:
        return {"trust": trust, "weight": weight, "min_cr": 2.0, "loss": "AuthorsLoss", "advisor": kind}

    return {
        "ec-l2o-code": StudyAgent(
            "EC-L2O, authors' loss",
            "EC-L2O trained with the loss and learning rates of the authors' code, which differ from the paper's.",
            parameters(PAPER_TRUST, PAPER_MU),
            paper,
            daily=True,
        ),
        "ec-l2o-example": StudyAgent(
            "EC-L2O, authors' example",
            "EC-L2O with the authors' loss and the trust and weight of their published configuration.",
            parameters(*AUTHORS_EXAMPLE),
            example,
            daily=True,
        ),
    }


def oracle_row(score: DailyScore) -> StudyRow:
    """Return the first row: the daily oracle."""
    what = "Knows each day in advance. Average costs are in units of its average."
    return StudyRow("oracle", "Oracle", what, {}, [score])


def score_study(
    agents: dict[str, StudyAgent], score: Callable[[str, AbstractAgent], DailyScore], progress: Progress
) -> tuple[dict[str, StudyRow], dict[str, SkippedRow]]:
    """Score every agent on the test days, two at a time; agents that do not apply to the problem are skipped with the reason."""
    alike: dict[Any, list[str]] = {}  # rows that run the same compiled program, one after the other
    for name, spec in agents.items():
        alike.setdefault(jax.tree.structure(spec.agents[0]), []).append(name)
    done = []

    def test(names: list[str]) -> dict[str, list[DailyScore] | NotApplicableError]:
        scores: dict[str, list[DailyScore] | NotApplicableError] = {}
        for name in names:
            try:
                scores[name] = [score(name, agent) for agent in agents[name].agents]
            except NotApplicableError as reason:
                scores[name] = reason
            done.append(name)
            progress("testing", len(done), len(agents))
        return scores

    jobs = [Job(names[0], lambda _report, names=names: test(names)) for names in alike.values()]
    scores = {name: found for group in run_jobs(jobs, ignore_progress).values() for name, found in group.items()}
    rows, skipped = {}, {}
    for name, spec in agents.items():
        found = scores[name]
        if isinstance(found, NotApplicableError):
            skipped[name] = SkippedRow(spec.label, spec.what, str(found))
        else:
            learned = "advisor" in spec.parameters
            rows[name] = StudyRow(name, spec.label, spec.what, spec.parameters, found, learned)
    return rows, skipped


def score_trade_off(
    cases: Sequence[tuple[str, str, AbstractAgent]], test: TestDays, progress: Progress
) -> list[TradeOffPoint]:
    """Score cases (family, setting, agent) on the plane of average cost and ratio."""
    points = []
    for family, setting, agent in cases:
        score = score_days(agent, test)
        points.append(TradeOffPoint(family, setting, score.average_cost, score.competitive_ratio))
        progress("trade-off", len(points), len(cases))
    return points


def make_policies(
    agents: dict[str, StudyAgent], problem: Problem, contexts: Contexts, about: dict[str, Any]
) -> dict[str, Policy]:
    """Return a policy for each agent: the first seed's, to run as a stream of days.

    The plausible range comes from the training days, as for a policy of `fit`.
    """
    period = contexts.steps_per_day
    contract = Contract(
        steps_per_day=period,
        context_dim=contexts.dim,
        plausible=plausible_range(contexts.training),
        accepted_after=period,
    )

    def make(name: str, spec: StudyAgent) -> Policy:
        agent = Periodic(spec.agents[0], period, "history") if spec.daily else spec.agents[0]
        return Policy(agent, problem, spec.forecaster, {**about, "row": name}, contract)

    return {name: make(name, spec) for name, spec in agents.items()}


class AbstractStudy(abc.ABC):
    """The data of a case study, what is trained on it, and which agents are tested."""

    name: str
    title: str
    description: str  # what is decided; m, alpha and beta are filled in
    trade_off_rows: tuple[str, ...]  # rows that the trade-off figure shows as they are
    contexts: Contexts
    problem: Problem
    test: TestDays

    @abc.abstractmethod
    def make_jobs(self) -> list[Job]:
        """Return everything that is trained or chosen before the test, the longest job first."""

    @abc.abstractmethod
    def make_agents(self, trained: dict[str, Any]) -> dict[str, StudyAgent]:
        """Return the agents of the table in order, without the oracle, from the results of the jobs."""

    @abc.abstractmethod
    def make_trade_off_cases(
        self, trained: dict[str, Any], agents: dict[str, StudyAgent]
    ) -> list[tuple[str, str, AbstractAgent]]:
        """Return the cases (family, setting, agent) of the trade-off figure, all of the first seed."""

    @abc.abstractmethod
    def measure(
        self, trained: dict[str, Any], agents: dict[str, StudyAgent], rows: dict[str, StudyRow]
    ) -> dict[str, Any]:
        """Return what results.json has besides the table."""

    @abc.abstractmethod
    def describe_source(self) -> dict[str, Any]:
        """Return where the contexts come from."""

    def score(self, name: str, spec: StudyAgent, agent: AbstractAgent) -> DailyScore:
        """Score an agent on the test days."""
        return score_days(agent, self.test, spec.forecaster)


def run_study(
    make_study: Callable[[SettingsT], AbstractStudy], data_stage: str, settings: SettingsT, progress: Progress
) -> StudyResults:
    """Read the data, train, test, and collect everything that the report shows."""
    timer = StageTimer()
    progress(data_stage, 0, 1)
    study = make_study(settings)
    progress(data_stage, 1, 1)
    timer.record(data_stage)
    trained = run_jobs(study.make_jobs(), progress)
    timer.record("training")
    agents = study.make_agents(trained)
    oracle_score = score_runs(*oracle_days(study.problem, study.test.x0, study.test.days), study.test)
    scored, skipped = score_study(agents, lambda name, agent: study.score(name, agents[name], agent), progress)
    rows = {"oracle": oracle_row(oracle_score), **scored}
    trade_off = score_trade_off(study.make_trade_off_cases(trained, agents), study.test, progress)
    trade_off += row_points(rows, study.trade_off_rows)
    timer.record("testing")
    extra = study.measure(trained, agents, rows)
    timer.record("measurements")
    constants = {name: float(getattr(study.problem, name)) for name in ("m", "alpha", "beta")}
    about = {
        "study": study.name,
        **({} if study.contexts.preset is None else {"preset": study.contexts.preset}),
        **({"cluster": extra["cluster"]} if "cluster" in extra else {}),
        "context_scale": study.contexts.scale,
        "training_steps": settings.training_steps,
        "seed": settings.seed,
    }
    return StudyResults(
        study=study.name,
        title=study.title,
        preset=study.contexts.preset,
        contexts=study.contexts,
        constants=constants,
        seeds=settings.seed_numbers,
        oracle_average_cost=float(np.mean(study.test.oracle_cost)),
        test_days=study.test.days.shape[0],
        rows=rows,
        trade_off=trade_off,
        worst_day=WorstDay.of("ec-l2o", rows, study.contexts, study.test),
        policies=make_policies({name: agents[name] for name in scored}, study.problem, study.contexts, about),
        settings=settings.as_run(),
        weather=study.describe_source(),
        seconds=timer.seconds,
        extra=extra,
        skipped=skipped,
        problem=study.description.format(**constants),
    )
