"""What the two case studies share: the agents of their tables, training in parallel, testing, and the run as a whole."""

import abc
import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import jax
import numpy as np
import pydantic

from ecl2o.agents import MLAROBD, RHC, ROBD, AbstractAgent, Greedy, Periodic, PureML, Switch
from ecl2o.data import Contexts
from ecl2o.evaluation import DailyScore, TestDays, score_days, score_runs
from ecl2o.exceptions import NotApplicableError
from ecl2o.fitting.settings import Progress, ignore_progress
from ecl2o.forecasters import RollingProfile
from ecl2o.offline import oracle_days
from ecl2o.paper.pareto import PAPER_MU, PAPER_TRUST, TWO_STAGE_TRUST
from ecl2o.paper.results import SkippedRow, StageTimer, StudyResults, StudyRow, TradeOffPoint, WorstDay
from ecl2o.policy import Contract, Policy
from ecl2o.problem import Problem
from ecl2o.running import plausible_range, stuck_limits


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


PositiveNumber = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]


class StudySettings(pydantic.BaseModel):
    """Settings of every study."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    full_steps: ClassVar[int] = 4000  # of training, unless the run is quick

    fill: Literal["interpolate", "previous"] | None = None
    seeds: int = pydantic.Field(default=5, ge=1, le=1000)
    seed: int = pydantic.Field(default=0, ge=0, lt=2**32)  # the first of them
    quick: bool = False  # fewer seeds, steps and settings; figures of networks mean nothing

    @property
    def seed_numbers(self) -> list[int]:
        """The seeds, counted from the first."""
        count = min(self.seeds, 2) if self.quick else self.seeds
        return list(range(self.seed, self.seed + count))

    @property
    def training_steps(self) -> int:
        """Adam steps of each network."""
        return 300 if self.quick else self.full_steps

    def as_run(self) -> dict[str, Any]:
        """Return the settings as plain values, with the number of seeds that really ran."""
        return self.model_dump() | {"seeds": len(self.seed_numbers)}


SettingsT = TypeVar("SettingsT", bound=StudySettings)
Trained = dict[str, Any]  # the results of a study's jobs, by name
TradeOffCase = tuple[str, str, AbstractAgent]  # family, setting, agent

# The paper's settings (section 6.2).
SWITCH_GAMMA = 1.5
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


def _network_agent(label: str, what: str, agents: Sequence[AbstractAgent], kind: str, **parameters: Any) -> StudyAgent:
    return StudyAgent(label, what, {**parameters, "advisor": kind}, agents, daily=True)


def _calibrated_agent(
    label: str, what: str, agents: Sequence[MLAROBD], kind: str, trust: float, mu: float
) -> StudyAgent:
    return _network_agent(label, what, agents, kind, trust=trust, mu=mu, rho_bar=0.0, cost_scale="oracle")


def network_agents(
    kind: str, alone: Sequence[PureML], paper: Sequence[MLAROBD], tuned: TunedAgents
) -> dict[str, StudyAgent]:
    """Return the paper's agents with a network: alone, switched, calibrated afterwards, trained through the calibrator."""
    switches = [Switch(agent.advisor, gamma=SWITCH_GAMMA) for agent in alone]
    two_stage = [MLAROBD(agent.advisor, TWO_STAGE_TRUST) for agent in alone]
    what_alone = f"The network alone ({kind}), trained on its own cost."
    what_switch = "Switches between PureML-0 and R-OBD by what each has paid."
    what_two_stage = "Two stages: PureML-0's advice, calibrated afterwards."
    what_paper = "The network trained through the calibrator, with the paper's parameters."
    return {
        "pure-ml": _network_agent("PureML-0", what_alone, alone, kind, kappa=0.0),
        "switch": _network_agent("Switch", what_switch, switches, kind, gamma=SWITCH_GAMMA),
        "mla-robd": _network_agent("MLA-ROBD", what_two_stage, two_stage, kind, trust=TWO_STAGE_TRUST),
        "ec-l2o": _calibrated_agent("EC-L2O", what_paper, paper, kind, PAPER_TRUST, PAPER_MU),
        "ec-l2o-tuned": tuned_agent(kind, tuned, "tuned"),
    }


def tuned_agent(kind: str, tuned: TunedAgents, word: str) -> StudyAgent:
    """Return EC-L2O with a chosen trust and mu."""
    what = f"EC-L2O with another trust and mu, {tuned.how}."
    return _calibrated_agent(f"EC-L2O, {word}", what, tuned.agents, kind, tuned.trust, tuned.mu)


def authors_agents(
    kind: str, alone: Sequence[PureML], paper: Sequence[MLAROBD], example: Sequence[MLAROBD]
) -> dict[str, StudyAgent]:
    """Return the networks at the authors' learning rates: alone, in two stages, and EC-L2O with the authors' loss.

    EC-L2O has the paper's trust and mu, and those of the published configuration.
    """

    def make(word: str, what: str, agents: Sequence[MLAROBD], trust: float, weight: float) -> StudyAgent:
        parameters = {"trust": trust, "weight": weight, "min_cr": 2.0, "loss": "AuthorsLoss"}
        return _network_agent(f"EC-L2O, authors' {word}", what, agents, kind, **parameters)

    what_code = "EC-L2O trained with the loss and learning rates of the authors' code, which differ from the paper's."
    what_example = "EC-L2O with the authors' loss and the trust and weight of their published configuration."
    two_stage = [MLAROBD(agent.advisor, TWO_STAGE_TRUST) for agent in alone]
    what_alone, what_two = (
        "PureML-0 at the authors' learning rates.",
        "Two stages: the advice of the row above, calibrated.",
    )
    return {
        "pure-ml-code": _network_agent("PureML-0, authors' rates", what_alone, alone, kind, kappa=0.0),
        "mla-robd-code": _network_agent("MLA-ROBD, authors' rates", what_two, two_stage, kind, trust=TWO_STAGE_TRUST),
        "ec-l2o-code": make("loss", what_code, paper, PAPER_TRUST, PAPER_MU),
        "ec-l2o-example": make("example", what_example, example, *AUTHORS_EXAMPLE),
    }


def score_study(
    agents: dict[str, StudyAgent], score: Callable[[str, AbstractAgent], DailyScore], progress: Progress
) -> tuple[dict[str, StudyRow], dict[str, SkippedRow]]:
    """Score every agent on the test days, two at a time; agents that do not apply to the problem are skipped with the reason."""
    alike: dict[Any, list[str]] = {}  # rows that run the same compiled program, one after the other
    for name, spec in agents.items():
        alike.setdefault(jax.tree.structure(spec.agents[0]), []).append(name)
    scores: dict[str, list[DailyScore] | NotApplicableError] = {}

    def test(names: list[str]) -> None:
        for name in names:
            try:
                scores[name] = [score(name, agent) for agent in agents[name].agents]
            except NotApplicableError as reason:
                scores[name] = reason
            progress("testing", len(scores), len(agents))

    run_jobs([Job(names[0], lambda _report, names=names: test(names)) for names in alike.values()], ignore_progress)
    rows, skipped = {}, {}
    for name, spec in agents.items():
        found = scores[name]
        if isinstance(found, NotApplicableError):
            skipped[name] = SkippedRow(spec.label, spec.what, str(found))
        else:
            rows[name] = StudyRow(name, spec.label, spec.what, spec.parameters, found)
    return rows, skipped


def make_policies(
    agents: dict[str, StudyAgent], problem: Problem, contexts: Contexts, about: dict[str, Any]
) -> dict[str, Policy]:
    """Return a policy for each agent: the first seed's, to run as a stream of days.

    The plausible range comes from the training days, as for a policy of `fit`.
    """
    period = contexts.steps_per_day
    screen = {"plausible": plausible_range(contexts.training), "stuck_after": stuck_limits(contexts.training)}
    contract = Contract(steps_per_day=period, context_dim=contexts.dim, accepted_after=period, **screen)

    def make(name: str, spec: StudyAgent) -> Policy:
        agent = Periodic(spec.agents[0], period) if spec.daily else spec.agents[0]
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
    def make_agents(self, trained: Trained) -> dict[str, StudyAgent]:
        """Return the agents of the table in order, without the oracle, from the results of the jobs."""

    @abc.abstractmethod
    def make_trade_off_cases(self, trained: Trained, agents: dict[str, StudyAgent]) -> list[TradeOffCase]:
        """Return the cases of the trade-off figure, all of the first seed."""

    @abc.abstractmethod
    def measure(self, trained: Trained, agents: dict[str, StudyAgent], rows: dict[str, StudyRow]) -> dict[str, Any]:
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
    what = "Knows each day in advance. Average costs are in units of its average."
    rows = {"oracle": StudyRow("oracle", "Oracle", what, {}, [oracle_score]), **scored}
    cases, trade_off = study.make_trade_off_cases(trained, agents), []
    for family, setting, agent in cases:
        trade_off.append(TradeOffPoint.of(family, setting, score_days(agent, study.test)))
        progress("trade-off", len(trade_off), len(cases))
    trade_off += [TradeOffPoint.of(name, "", rows[name].scores[0]) for name in study.trade_off_rows]
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
