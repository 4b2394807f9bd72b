"""Validate the candidates of a fit, and select the cheapest on the validation days."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ecl2o.agents import Greedy
from ecl2o.data import Contexts
from ecl2o.evaluation import DailyScore, TestDays
from ecl2o.evaluation.comparison import Contender, make_contender
from ecl2o.fitting.candidates import Candidate, reference_contenders, untrained_candidates
from ecl2o.fitting.read import ScreenedSeries
from ecl2o.fitting.settings import AdvisorName, FitSettings, Progress
from ecl2o.fitting.tasks import FitTask, series_problem, unscale_agent
from ecl2o.fitting.test_days import held_back_days, score_together
from ecl2o.fitting.train import CORRECTED
from ecl2o.problem import Problem
from ecl2o.running import stream_days


@dataclasses.dataclass(frozen=True)
class ValidatedCandidate:
    """How a candidate did on the validation days.

    Args:
        name: its name in tables.
        advisor: the advisor it was made from.
        trained: whether any of its weights were trained.
        trust: of the calibrator; None: there is none.
        mu: of the training loss.
        average_cost: in units of the optimum of all validation days.
        standard_error: of the average cost, over days.
        competitive_ratio: cost of the worst day, in units of its optimum.
        behind: how much more it costs than the best candidate.
        behind_error: standard error of `behind`, over days.
    """

    name: str
    advisor: AdvisorName
    trained: bool
    trust: float | None
    mu: float
    average_cost: float
    standard_error: float
    competitive_ratio: float
    behind: float = 0.0
    behind_error: float = 0.0


@dataclasses.dataclass(frozen=True)
class Selection:
    """All candidates of a series in its own units, how each did on the validation days, and the number of the best."""

    series: ScreenedSeries
    settings: FitSettings
    problem: Problem
    candidates: list[Candidate]
    validated: list[ValidatedCandidate]
    best: int

    @classmethod
    def untrained(cls, contexts: Contexts, settings: FitSettings) -> "list[Selection]":
        """Return each candidate that needs no training as if selected, to compile the programs of a later test."""
        problem = series_problem(contexts, settings.alpha, settings.bounds, settings.weights)
        task = FitTask(contexts, problem, settings.rescale(1.0))
        advisors = settings.advisors(contexts.steps_per_day, contexts.weighted)
        found = [candidate for advisor in advisors for candidate in untrained_candidates(advisor, task)]
        series = ScreenedSeries(contexts, [], np.zeros(0, int))
        return [cls(series, settings, problem, found, [], number) for number in range(len(found))]

    @property
    def contexts(self) -> Contexts:
        """The screened series."""
        return self.series.contexts

    @property
    def chosen(self) -> ValidatedCandidate:
        """The best candidate's validation."""
        return self.validated[self.best]

    @property
    def contender(self) -> Contender:
        """The best candidate as it runs."""
        return self._contender(self.candidates[self.best])

    def contenders(self) -> dict[str, Contender]:
        """Return the best candidate as "policy", the other candidates, the references and Greedy, by name."""
        own = self.candidates[self.best]
        others = {each.name: self._contender(each) for each in self.candidates if each is not own}
        references = reference_contenders(self.problem, self.contexts.steps_per_day)
        return {"policy": self.contender} | others | references | {"greedy": Contender(Greedy())}

    def test_days(self) -> TestDays:
        """Return the test days, with the longest history that a candidate starts with."""
        steps = max(candidate.history_steps(self.contexts) for candidate in self.candidates)
        return held_back_days(self.problem, self.contexts, "test", steps)

    def _contender(self, candidate: Candidate) -> Contender:
        steps = candidate.history_steps(self.contexts)
        return make_contender(candidate.agent, self.problem, candidate.forecaster, steps)


@dataclasses.dataclass(frozen=True)
class Validation:
    """The scores of a series' candidates on its validation days, and the mean daily cost of their optimum."""

    scores: list[DailyScore]
    unit: float


def validate_candidates(
    tasks: Sequence[FitTask], candidates: Sequence[Sequence[Candidate]], progress: Progress
) -> list[Validation]:
    """Run the candidates of every task on its validation days; the same candidate of all tasks in one program."""
    like, kinds = tasks[0].contexts, candidates[0]
    longest = max(candidate.history_steps(like) for candidate in kinds)
    days = [held_back_days(task.problem, task.contexts, "validation", longest) for task in tasks]
    found = [Validation([], float(np.mean(np.asarray(each.unit)))) for each in days]
    for kind, candidate in enumerate(kinds):
        known = [each.with_history(candidate.history_steps(like)) for each in days]
        contenders = [Contender(each[kind].agent, each[kind].forecaster, stream_days) for each in candidates]
        for mine, score in zip(found, score_together(contenders, known), strict=True):
            mine.scores.append(score)
        progress("choosing on validation days", kind + 1, len(kinds))
    return found


def select_best(
    series: ScreenedSeries,
    settings: FitSettings,
    task: FitTask,
    candidates: Sequence[Candidate],
    validation: Validation,
) -> Selection:
    """Select the cheapest candidate on the validation days, and bring all back to the units of the series.

    A correction that training did not keep equals the regression without it, and is left out.
    """
    kept = [i for i, each in enumerate(candidates) if each.trained or each.name != CORRECTED]
    contexts, promise = series.contexts, settings.promise_in_bounds
    factor = contexts.scale / task.contexts.scale
    own = [dataclasses.replace(candidates[i], agent=unscale_agent(candidates[i].agent, factor, promise)) for i in kept]
    validated = _summarize(own, [validation.scores[i] for i in kept], validation.unit)
    best = int(np.argmin([each.average_cost for each in validated]))
    problem = series_problem(contexts, settings.alpha, settings.bounds, settings.weights)
    return Selection(series, settings, problem, own, validated, best)


def _summarize(candidates: Sequence[Candidate], scores: Sequence[DailyScore], unit: float) -> list[ValidatedCandidate]:
    """Return costs and their distances from the best, with standard errors over days."""
    best = min(scores, key=lambda score: score.average_cost)
    return [
        ValidatedCandidate(
            candidate.name,
            candidate.advisor,
            candidate.trained,
            candidate.trust,
            candidate.mu,
            score.average_cost,
            _standard_error(score.cost / unit),
            score.competitive_ratio,
            float(np.mean(score.cost - best.cost) / unit),
            _standard_error((score.cost - best.cost) / unit),
        )
        for candidate, score in zip(candidates, scores, strict=True)
    ]


def _standard_error(daily: Float[np.ndarray, " n"]) -> float:
    """Return the standard error of a mean over days; infinite for one day."""
    return float(np.std(daily, ddof=1) / np.sqrt(len(daily))) if len(daily) > 1 else float("inf")
