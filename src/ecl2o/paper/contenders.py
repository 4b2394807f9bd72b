"""Training that a study needs, run side by side: two compiled programs share two cores better than one uses them.

The entries of a study before they are tested, those that both studies have, and the testing.
"""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from ecl2o.agents import MLAROBD, RHC, ROBD, AbstractAgent, Greedy, Periodic, PureML, Switch
from ecl2o.data import Contexts
from ecl2o.evaluation import DailyScore, TestDays, score_days
from ecl2o.exceptions import NotApplicableError
from ecl2o.fitting.progress import Progress, ignore_progress
from ecl2o.forecasters import RollingProfile
from ecl2o.paper.results import SkippedRow, StudyRow, TradeOffPoint
from ecl2o.policy import Contract, Policy
from ecl2o.problem import Problem
from ecl2o.running import plausible_range


class Job:
    """A named piece of work; it is given a function to report (done, total) with."""

    def __init__(self, name: str, work: Callable[[Callable[[int, int, float], None]], Any]):
        self.name, self.work = name, work


def run_jobs(jobs: Sequence[Job], progress: Progress, workers: int = 2) -> dict[str, Any]:
    """Run all jobs, at most `workers` at a time; the results by name. The first failure is raised.

    After it no other job begins; an interrupt does not wait for those that have.
    """
    lock = threading.Lock()

    def one(job: Job) -> Any:
        def report(done: int, total: int, _loss: float) -> None:
            with lock:
                progress(job.name, done, total)

        return job.work(report)

    pool, patient = ThreadPoolExecutor(workers), True
    try:
        futures = {job.name: pool.submit(one, job) for job in jobs}
        return {name: future.result() for name, future in futures.items()}
    except KeyboardInterrupt:
        patient = False
        raise
    finally:
        pool.shutdown(patient, cancel_futures=True)


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
    daily: bool = False  # memory and accounts are a day's: its policy file begins anew every day, as its tests do


@dataclasses.dataclass(frozen=True)
class TunedAgents:
    """The trust and mu of EC-L2O that did best, how they were found, and the agents."""

    trust: float
    mu: float
    how: str
    agents: Sequence[MLAROBD]


def expert_agents() -> dict[str, StudyAgent]:
    """What needs neither training nor a forecast."""
    return {
        "greedy": StudyAgent("Greedy", "Minimises what this hour costs.", {}, [Greedy()]),
        "r-obd": StudyAgent("R-OBD", "The expert: no online algorithm has a smaller worst-case ratio.", {}, [ROBD()]),
    }


def planner_agent(period: int) -> StudyAgent:
    """What a practitioner would use: a day's plan, made anew at every step."""
    what = (
        "What a practitioner would use: plans a whole day ahead at every step, on a 7-day profile by the hour plus a "
        "decaying correction."
    )
    parameters = {"window": period - 1, "truncate": False, "forecaster": "RollingProfile(days=7, decay=0.9)"}
    return StudyAgent("RHC", what, parameters, [RHC(period - 1, truncate=False)], RollingProfile(period=period))


def network_agents(
    kind: str, alone: Sequence[PureML], paper: Sequence[MLAROBD], tuned: TunedAgents
) -> dict[str, StudyAgent]:
    """The paper's rows around a network: alone, switched, calibrated afterwards, and trained through the calibrator."""
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
            "Switches between PureML-0 and R-OBD by their bills.",
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
    """EC-L2O with a trust and mu that were chosen."""
    parameters = {"trust": tuned.trust, "mu": tuned.mu, "rho_bar": 0.0, "cost_scale": "oracle", "advisor": kind}
    what = f"The same with another trust and mu, chosen {tuned.how}."
    return StudyAgent(f"EC-L2O, {word}", what, parameters, tuned.agents, daily=True)


def authors_agents(kind: str, paper: Sequence[MLAROBD], example: Sequence[MLAROBD]) -> dict[str, StudyAgent]:
    """EC-L2O as the authors' code trains it: with the paper's trust and mu, and with those of the published configuration."""

    def parameters(trust: float, weight: float) -> dict[str, Any]:
        return {"trust": trust, "weight": weight, "min_cr": 2.0, "loss": "AuthorsLoss", "advisor": kind}

    return {
        "ec-l2o-code": StudyAgent(
            "EC-L2O, authors' loss",
            "The same trained with the loss and the learning rates of the authors' code, which are not the paper's.",
            parameters(PAPER_TRUST, PAPER_MU),
            paper,
            daily=True,
        ),
        "ec-l2o-example": StudyAgent(
            "EC-L2O, authors' example",
            "The same with the trust and the weight of the configuration that was published with the code.",
            parameters(*AUTHORS_EXAMPLE),
            example,
            daily=True,
        ),
    }


def oracle_row(score: DailyScore) -> StudyRow:
    """The daily oracle, which comes first."""
    what = "Knows the whole day in advance; every cost in this table is divided by its average."
    return StudyRow("oracle", "Oracle", what, {}, [score])


def score_study(
    entries: dict[str, StudyAgent], score: Callable[[str, AbstractAgent], DailyScore], progress: Progress
) -> tuple[dict[str, StudyRow], dict[str, SkippedRow]]:
    """Every entry on the test days, and those whose agent does not apply. Two at a time: compiling takes longer than running."""
    alike: dict[Any, list[str]] = {}  # rows that run the same compiled program, one after the other
    for name, entry in entries.items():
        alike.setdefault(jax.tree.structure(entry.agents[0]), []).append(name)
    done = []

    def test(names: list[str]) -> dict[str, list[DailyScore] | NotApplicableError]:
        scores: dict[str, list[DailyScore] | NotApplicableError] = {}
        for name in names:
            try:
                scores[name] = [score(name, agent) for agent in entries[name].agents]
            except NotApplicableError as reason:
                scores[name] = reason
            done.append(name)
            progress("testing", len(done), len(entries))
        return scores

    jobs = [Job(names[0], lambda _report, names=names: test(names)) for names in alike.values()]
    scores = {name: found for group in run_jobs(jobs, ignore_progress).values() for name, found in group.items()}
    rows, skipped = {}, {}
    for name, entry in entries.items():
        found = scores[name]
        if isinstance(found, NotApplicableError):
            skipped[name] = SkippedRow(entry.label, entry.what, str(found))
        else:
            learned = "advisor" in entry.parameters
            rows[name] = StudyRow(name, entry.label, entry.what, entry.parameters, found, learned)
    return rows, skipped


def score_trade_off(
    cases: Sequence[tuple[str, str, AbstractAgent]], bed: TestDays, progress: Progress
) -> list[TradeOffPoint]:
    """Settings (family, setting, agent) on the plane of average cost and ratio."""
    points = []
    for family, setting, agent in cases:
        score = score_days(agent, bed)
        points.append(TradeOffPoint(family, setting, score.average_cost, score.competitive_ratio))
        progress("trade-off", len(points), len(cases))
    return points


def make_policies(
    entries: dict[str, StudyAgent], problem: Problem, contexts: Contexts, about: dict[str, Any]
) -> dict[str, Policy]:
    """The content of a policy file for each entry: the first seed's agent, to be run as a stream of days.

    What is plausible is what the training days make so, as for a policy of `fit`.
    """
    period = contexts.steps_per_day

    def streamed(entry: StudyAgent) -> AbstractAgent:
        return Periodic(entry.agents[0], period, "history") if entry.daily else entry.agents[0]

    plausible = plausible_range(contexts.training)
    contract = Contract(steps_per_day=period, context_dim=contexts.dim, plausible=plausible, accepted_after=period)
    return {
        name: Policy(streamed(entry), problem, entry.forecaster, {**about, "row": name}, contract)
        for name, entry in entries.items()
    }
