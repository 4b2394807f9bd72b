"""Fit a policy to a series: screen, make candidates, train, select, test, build.

The problem is f = 1/2 |x - y|^2 and c = alpha/2 |x - z|^2 in the units of the series, with one action per column and one alpha
for all columns or for each. With a weight column, such as a price, f is w/2 |x - y|^2; with `misses` the weight is
that of the side of the miss. The expert and a planner are always among the candidates, so a policy is not worse on the validation
days than what a practitioner would try first. Candidates are selected and tested as they will run: as one stream, in which online
learners keep learning.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ecl2o.agents import Greedy
from ecl2o.data import Contexts, SeriesMetadata
from ecl2o.evaluation import Certificate, DailyScore, TestDays, certify
from ecl2o.evaluation.comparison import ComparisonRow, Contender, compare, make_contender
from ecl2o.fitting.candidates import (
    MIXTURES,
    Candidate,
    count_history_steps,
    find_obstacle,
    reference_contenders,
    train_candidates,
    untrained_candidates,
)
from ecl2o.fitting.read import ScreenedSeries, describe_replaced, screen_for_fit
from ecl2o.fitting.settings import AdvisorName, FitSettings, Progress, ignore_progress
from ecl2o.fitting.tasks import (
    FitTask,
    check_same_shape,
    held_back_days,
    scale_task,
    score_together,
    series_problem,
    unscale_agent,
)
from ecl2o.policy import Contract, Policy
from ecl2o.policy.contract import FileFormat, Source
from ecl2o.problem import Problem
from ecl2o.running import stream_days

YOURS = " (yours)"  # after the name of the row that becomes the policy


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
        failed: whether its training failed (it costs no less than before), or its cost is not a number. It is not selected.
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
    failed: bool = False

    @property
    def training(self) -> str:
        """What came of its training, in words."""
        if self.failed:
            return "training failed" if self.trained else "failed"
        return "trained" if self.trained else "not trained"


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
        problem = series_problem(contexts, settings)
        task = FitTask(contexts, problem, settings.rescale(1.0))
        advisors = settings.advisors(contexts.weighted)
        found = [candidate for advisor in advisors for candidate in untrained_candidates(advisor, task)]
        series = ScreenedSeries(contexts, [], [], np.zeros(0, int))
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

    @property
    def yours(self) -> str:
        """The name of the best candidate, which becomes the policy, in tables."""
        return f"{self.candidates[self.best].name}{YOURS}"

    def contenders(self) -> dict[str, Contender]:
        """Return the best candidate, the other candidates, the references and Greedy, by name."""
        own = self.candidates[self.best]
        others = {each.name: self._contender(each) for each in self.candidates if each is not own}
        per_day = self.contexts.steps_per_day
        history = count_history_steps(self.contexts)
        references = reference_contenders(self.problem, per_day, history // per_day)
        greedy = Contender(Greedy(), None, stream_days, history)
        return {self.yours: self.contender} | others | references | {"greedy": greedy}

    def test_days(self) -> TestDays:
        """Return the test days, with the longest history that a candidate starts with."""
        steps = max(candidate.history_steps(self.contexts) for candidate in self.candidates)
        return held_back_days(self.problem, self.contexts, "test", steps)

    def _contender(self, candidate: Candidate) -> Contender:
        steps = candidate.history_steps(self.contexts)
        return make_contender(candidate.agent, self.problem, candidate.forecaster, steps)


@dataclasses.dataclass(frozen=True)
class FittedSeries:
    """A fitted policy and how it was found.

    Args:
        policy: the policy, ready to save.
        candidates: all candidates with their validation.
        chosen: the one that became the policy.
        left_out: advisors that were not tried, with the reason.
        comparison: policy, other candidates and references on the test days.
        test_days: the days of the comparison.
        screened: a sentence about readings that were replaced; None if there were none.
    """

    policy: Policy
    candidates: list[ValidatedCandidate]
    chosen: ValidatedCandidate
    left_out: dict[AdvisorName, str]
    comparison: list[ComparisonRow]
    test_days: TestDays
    screened: str | None = None

    @property
    def n_test_days(self) -> int:
        """How many days were held back."""
        return self.test_days.days.shape[0]

    @property
    def rows(self) -> dict[str, ComparisonRow]:
        """The comparison by name."""
        return {row.name: row for row in self.comparison}

    @property
    def own(self) -> ComparisonRow:
        """The row of the policy."""
        return self.rows[self.chosen.name + YOURS]

    def describe_validation(self, row: ComparisonRow) -> tuple[str, float, float]:
        """Return what came of a row's training, and its cost on the validation days with its standard error, if known."""
        if row.name in ("oracle", "daily-oracle"):
            return "", np.nan, np.nan
        found = {candidate.name: candidate for candidate in self.candidates}.get(row.name.removesuffix(YOURS))
        return (
            ("not trained", np.nan, np.nan)
            if found is None
            else (found.training, found.average_cost, found.standard_error)
        )


def fit_contexts(
    contexts: Contexts, settings: FitSettings = FitSettings(), progress: Progress = ignore_progress
) -> FittedSeries:
    """Fit a policy: train on the first days, select on the next, compare on the last.

    Args:
        contexts: the series with its split, in the user's units.
        settings: alpha, advisor, promise, bounds.
        progress: called with (stage, done, total).

    Raises:
        DataError: If the series never changes, or its weights do not allow the promise.
        ValueError: If no algorithm can keep the promise.
    """
    (selection,) = select_candidates([contexts], [settings], progress)
    test_days = selection.test_days()
    comparison = compare(
        selection.contenders(), test_days, lambda done, total: progress("testing on held-back days", done, total)
    )
    return FittedSeries(
        policy=build_policy(selection, comparison),
        candidates=selection.validated,
        chosen=selection.chosen,
        left_out=settings.left_out(contexts.weighted) | _why_no_fourier(selection),
        comparison=comparison,
        test_days=test_days,
        screened=describe_replaced(contexts.time, selection.series.replaced),
    )


def _why_no_fourier(selection: Selection) -> dict[AdvisorName, str]:
    """Return why the regression on random Fourier features was not tried, if it was to be."""
    tried = {candidate.advisor for candidate in selection.candidates}
    if selection.settings.advisor != "auto" or "fourier" in tried:
        return {}
    task = FitTask(selection.contexts, selection.problem, selection.settings)
    return {"fourier": find_obstacle(task) or "not tried"}


def select_candidates(
    series: Sequence[Contexts], settings: Sequence[FitSettings], progress: Progress = ignore_progress
) -> list[Selection]:
    """Screen each series, train its candidates, and select one on its validation days.

    Series of one shape and one split, whose settings differ in numbers only, run as one program where possible.
    """
    check_same_shape(series)
    screened = [screen_for_fit(contexts, own) for contexts, own in zip(series, settings, strict=True)]
    tasks = [scale_task(each.contexts, own) for each, own in zip(screened, settings, strict=True)]
    candidates = train_candidates(tasks, progress)
    scores, before, units = _validate(tasks, candidates, progress)
    return [_select(*each) for each in zip(screened, settings, tasks, candidates, scores, before, units, strict=True)]


def _validate(
    tasks: Sequence[FitTask], candidates: Sequence[Sequence[Candidate]], progress: Progress
) -> tuple[list[list[DailyScore]], list[list[float]], list[float]]:
    """Run the candidates of every task on its validation days; the same candidate of all tasks in one program.

    Returns:
        The scores of the candidates by task, their average cost before training (infinite if there was none), and the mean daily
        cost of the optimum of each task.
    """
    like, kinds = tasks[0].contexts, candidates[0]
    longest = max(candidate.history_steps(like) for candidate in kinds)
    days = [held_back_days(task.problem, task.contexts, "validation", longest) for task in tasks]
    scores: list[list[DailyScore]] = [[] for _ in tasks]
    before: list[list[float]] = [[] for _ in tasks]
    progress("choosing on validation days", 0, len(kinds))
    for kind, candidate in enumerate(kinds):
        known = [each.with_history(candidate.history_steps(like)) for each in days]
        contenders = [Contender(each[kind].agent, each[kind].forecaster, stream_days) for each in candidates]
        for mine, score in zip(scores, score_together(contenders, known), strict=True):
            mine.append(score)
        untrained = [Contender(each[kind].untrained, None, stream_days) for each in candidates if each[kind].untrained]
        for mine, score in zip(
            before, score_together(untrained, known) if untrained else [None] * len(tasks), strict=True
        ):
            mine.append(np.inf if score is None else score.average_cost)
        progress("choosing on validation days", kind + 1, len(kinds))
    return scores, before, [each.mean_unit for each in days]


def _select(
    series: ScreenedSeries,
    settings: FitSettings,
    task: FitTask,
    candidates: Sequence[Candidate],
    scores: Sequence[DailyScore],
    before: Sequence[float],
    unit: float,
) -> Selection:
    """Select a candidate by the validation days, and bring all back to the units of the series.

    A training has failed if it does not lower the cost of the validation days.

    Raises:
        ValueError: If no candidate is left because all trainings failed.
    """
    contexts, promise = series.contexts, settings.promise_in_bounds
    factor = contexts.scale / task.contexts.scale
    behind = "" if promise is None else f", behind a promise of {promise.ratio:g}"
    own = []
    for each, score in zip(candidates, scores, strict=True):
        agent = unscale_agent(each.agent if each.retrain is None else each.retrain(score), factor, promise)
        own.append(dataclasses.replace(each, name=each.name + behind, agent=agent, untrained=None, retrain=None))
    failed = [not score.average_cost < cost for score, cost in zip(scores, before, strict=True)]
    names = ["" if lost else each.name for each, lost in zip(candidates, failed, strict=True)]
    best = _find_best(names, [score.cost for score in scores])
    if all(failed):
        raise ValueError(
            f"all {len(own)} trainings failed: on the validation days none costs less than before. Try another "
            "`advisor`, such as advisor='auto', or more training days."
        )
    validated = []
    for candidate, score, lost in zip(own, scores, failed, strict=True):
        about = candidate.name, candidate.advisor, candidate.trained, candidate.trust, candidate.mu
        more = (score.cost - scores[best].cost) / unit
        costs = score.average_cost, _standard_error(score.cost / unit), score.competitive_ratio
        validated.append(ValidatedCandidate(*about, *costs, float(np.mean(more)), _standard_error(more), lost))
    problem = series_problem(contexts, settings)
    return Selection(series, settings, problem, own, validated, best)


def _find_best(names: Sequence[str], costs: Sequence[Float[np.ndarray, " n"]]) -> int:
    """Return the number of a mixture unless the cheapest costs less by more than a standard error of daily differences.

    Args:
        names: of the candidates; "" of those that failed.
        costs: of each day.
    """
    best = int(np.argmin([float(np.mean(cost)) if name else np.inf for name, cost in zip(names, costs, strict=True)]))
    for number, name in enumerate(names):
        more = costs[number] - costs[best]
        if name in MIXTURES and np.mean(more) <= _standard_error(more):
            return number
    return best


def _standard_error(daily: Float[np.ndarray, " n"]) -> float:
    """Return the standard error of a mean over days; infinite for one day."""
    return float(np.std(daily, ddof=1) / np.sqrt(len(daily))) if len(daily) > 1 else float("inf")


def build_policy(selection: Selection, comparison: Sequence[ComparisonRow]) -> Policy:
    """Return the selected candidate as a policy, with its contract, its figures and the latest contexts as history."""
    contexts, settings = selection.contexts, selection.settings
    candidate, chosen, metadata = selection.candidates[selection.best], selection.chosen, contexts.metadata
    assert isinstance(metadata, SeriesMetadata)
    used = contexts.n_days * contexts.steps_per_day
    seen = (contexts.split.training_days + contexts.split.validation_days) * contexts.steps_per_day
    contract = Contract(
        columns=list(metadata.columns),
        step_minutes=float(metadata.step_minutes),
        steps_per_day=contexts.steps_per_day,
        day_start_minutes=metadata.day_start_minutes,
        period_name="day" if settings.promise is None else settings.promise.per,
        action_bounds=None if settings.bounds is None else [settings.bounds] * contexts.action_dim,
        weight_column=metadata.weight_column,
        covariates=metadata.covariates,
        history_steps=count_history_steps(contexts),
        history_until=str(contexts.time[used - 1]),
        seen_until=str(contexts.time[seen - 1]),
        source=Source(file=metadata.file, sha256=metadata.sha256),
        file_format=FileFormat(**metadata.file_format),
        plausible=selection.series.plausible,
        stuck_after=selection.series.stuck_after,
        accepted_after=contexts.steps_per_day,
    )
    figures = ("average_cost", "competitive_ratio")
    record = {
        "study": "own-series",
        "settings": dataclasses.asdict(settings) | {"steps": settings.training_steps(chosen.advisor)},
        "split": dataclasses.asdict(contexts.split),
        "validation": dataclasses.asdict(chosen),
        "test": {row.name: {name: getattr(row, name) for name in figures} for row in comparison},
    }
    history = contexts.values[used - candidate.history_steps(contexts) : used]
    return Policy(
        candidate.agent, selection.problem, candidate.forecaster, metadata=record, contract=contract, history=history
    )


def search_bad_day(policy: Policy, contexts: Contexts, seed: int = 0) -> Certificate:
    """Search for a day on which the policy does badly, over contexts in the range of the series.

    The day starts at x0 = 0 without a history. Its ratio is one that the policy can be driven to, not a bound.
    """
    low, high = (jnp.asarray(extreme(contexts.values, axis=0)) for extreme in (np.min, np.max))
    return certify(policy.agent, policy.problem, contexts.steps_per_day, contexts=(low, high), key=jax.random.key(seed))
