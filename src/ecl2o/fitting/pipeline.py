"""A policy for one's own series: train on its first days, choose on the next, report on the last.

Among what is chosen from is what needs no training, the expert and a planner, so that a policy is not worse than what a
practitioner would have tried first. Costs are in units of the optimum of all tested days together.

The problem is f = 1/2 |x - y|^2 and c = alpha/2 |x - z|^2 in the units of the series, one action per column, with one alpha for
all or for each; where a column holds weights, such as prices, f is w/2 |x - y|^2. Training works on a scaled copy, so that single
precision suffices whatever the units; the policy itself takes and gives the user's numbers (regression and structured advisor
are homogeneous, networks carry their scaling inside). Policies are chosen and tested as they will be used: as one stream, in
which what learns while it runs goes on learning.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ecl2o.agents import Greedy
from ecl2o.data import Contexts, Days, SeriesMetadata, Split
from ecl2o.evaluation import Certificate, DailyScore, TestDays, certify
from ecl2o.evaluation.comparison import ComparisonRow, Contender, compare, make_contender
from ecl2o.exceptions import DataError
from ecl2o.fitting.batches import FitTask, check_same_shape, score_together
from ecl2o.fitting.candidates import (
    CORRECTED,
    Candidate,
    Shape,
    in_units,
    options,
    reference_candidates,
    untrained_candidates,
)
from ecl2o.fitting.progress import Progress, ignore_progress
from ecl2o.fitting.screen import in_words, screen_series
from ecl2o.fitting.settings import AdvisorName, Alpha, FitSettings, column_alphas
from ecl2o.fitting.weights import declared_or_seen_weights
from ecl2o.policy import Contract, Policy
from ecl2o.policy.contract import Source
from ecl2o.problem import Box, CurvedTracking, Everywhere, Mahalanobis, Problem, SquaredTracking
from ecl2o.problem.arrays import strip_weak_types, to_device
from ecl2o.running import Screen, plausible_range, stream_days

FEWEST_DAYS = 91


@dataclasses.dataclass(frozen=True)
class ValidatedCandidate:
    """One agent that was tried, and how it did on the validation days. No trust: the advice meets no calibrator.

    `standard_error` is of the average cost, over days; `behind` is how much more it costs than the best, and `behind_error` the
    standard error of that, day by day.
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
class FittedSeries:
    """The policy, what was tried and what was not (and why), and how all compare on days that training and choice never saw."""

    policy: Policy
    candidates: list[ValidatedCandidate]
    chosen: ValidatedCandidate
    left_out: dict[AdvisorName, str]
    entries: list[ComparisonRow]
    bed: TestDays
    screened: str | None = None  # what was replaced in the series, in words

    @property
    def test_days(self) -> int:
        """How many days were held back."""
        return self.bed.days.shape[0]


def default_split(n_days: int) -> Split:
    """Two thirds of the days for training, a sixth for validation, the rest for testing.

    Less than 91 days is too little to do that unasked: the split is then the library's own, which says what is missing.

    >>> default_split(365)
    Split(training_days=243, validation_days=60)
    """
    return Split() if n_days < FEWEST_DAYS else Split(2 * n_days // 3, n_days // 6)


def tracking_problem(
    dim: int,
    alpha: float | Float[np.ndarray, " d"],
    bounds: tuple[float, float] | None = None,
    weights: tuple[float, float] | None = None,
) -> Problem:
    """Follow every column, within bounds if there are any, and pay alpha/2 times the squared movement, each its own.

    With (low, high) of weights, each context ends with the weight of a miss.
    """
    actions = Everywhere() if bounds is None else Box(*bounds)
    hitting = SquaredTracking() if weights is None else CurvedTracking(*weights)
    return strip_weak_types(Problem(hitting, Mahalanobis(np.diag(np.broadcast_to(alpha, (dim,))) / 2), actions))


def series_problem(
    contexts: Contexts,
    alpha: Alpha,
    bounds: tuple[float, float] | None = None,
    weights: tuple[float, float] | None = None,
) -> Problem:
    """The same for a series, whose columns may have alphas by name, and one of which may hold weights."""
    assert isinstance(contexts.metadata, SeriesMetadata)
    alphas = column_alphas(alpha, contexts.metadata.followed)
    return tracking_problem(contexts.action_dim, alphas, bounds, declared_or_seen_weights(contexts, weights))


@dataclasses.dataclass(frozen=True)
class Selection:
    """What the validation days of a series choose: all that was tried, in the series' units, and how each did there."""

    contexts: Contexts
    settings: FitSettings
    problem: Problem
    options: list[Candidate]
    candidates: list[ValidatedCandidate]
    best: int
    plausible: list[tuple[float, float]]
    screened: str | None  # what was replaced in the series, in words

    @classmethod
    def untrained(cls, contexts: Contexts, settings: FitSettings) -> "list[Selection]":
        """Each of what needs no training as if it were chosen, untried: they run the programs of the choice to come."""
        problem = series_problem(contexts, settings.alpha, settings.bounds, settings.weights)
        found = untrained_candidates(FitTask(contexts, problem, settings.in_units(1.0)))
        return [cls(contexts, settings, problem, found, [], number, [], None) for number in range(len(found))]

    @property
    def chosen(self) -> ValidatedCandidate:
        """What did best."""
        return self.candidates[self.best]

    @property
    def entry(self) -> Contender:
        """The chosen agent as it will be used."""
        return self._entry(self.options[self.best])

    def test_bed(self) -> TestDays:
        """The days that training and choice never saw, with as much before them as anybody begins on."""
        longest = max(option.kept_steps(self.contexts) for option in self.options)
        steps = _history_steps(longest, self.contexts, test=True)
        return _bed(self.problem, self.contexts.test_days(steps))

    def _entry(self, option: Candidate) -> Contender:
        """An option as it will be used, on as much of the past as it begins on."""
        return make_contender(option.agent, self.problem, option.forecaster, option.kept_steps(self.contexts))

    def entries(self) -> dict[str, Contender]:
        """The choice, all that it was chosen from, and what needs no training whether or not it was asked for."""
        own = self.options[self.best]
        others = {option.name: self._entry(option) for option in self.options if option is not own}
        asked = {"policy": self.entry} | others
        return asked | reference_contenders(self.problem, self.contexts.steps_per_day) | {"greedy": Contender(Greedy())}

    def policy(self, rows: list[ComparisonRow]) -> Policy:
        """As it is used, with how it did on the test days."""
        policy = _policy(self.options[self.best], self.problem, self.contexts, self.settings, self.chosen, rows)
        contract = {"plausible": self.plausible, "accepted_after": self.contexts.steps_per_day}
        return dataclasses.replace(policy, contract=policy.contract.model_copy(update=contract))


def fit_contexts(
    contexts: Contexts, settings: FitSettings = FitSettings(), progress: Progress = ignore_progress
) -> FittedSeries:
    """Train all candidates, choose one on the validation days, and compare all on the test days.

    Readings that the bulk of the training days makes implausible are replaced, as they will be when the policy runs.
    """
    (choice,) = select_candidates([contexts], [settings], progress)
    test = choice.test_bed()
    rows = compare(choice.entries(), test, lambda done, total: progress("testing on held-back days", done, total))
    left_out = settings.left_out(contexts.steps_per_day, contexts.weighted)
    return FittedSeries(choice.policy(rows), choice.candidates, choice.chosen, left_out, rows, test, choice.screened)


def select_candidates(
    series: Sequence[Contexts], all_settings: Sequence[FitSettings], progress: Progress = ignore_progress
) -> list[Selection]:
    """Train all candidates of each series and choose one on its validation days; what can run as one program does.

    The series have one shape and one split, and their recipes differ in numbers only.
    """
    check_same_shape(series)
    ranges = [plausible_range(contexts.training) for contexts in series]
    screened = [
        screen_series(contexts, Screen.of(plausible, contexts.steps_per_day))
        for contexts, plausible in zip(series, ranges, strict=True)
    ]
    series = [contexts for contexts, _ in screened]
    said = [in_words(contexts.time, rows) for contexts, rows in screened]
    sites = [scale_task(*each) for each in zip(series, all_settings, strict=True)]
    tried = options(sites, progress)
    longest = max(option.kept_steps(sites[0].contexts) for option in tried[0])
    steps = _history_steps(longest, sites[0].contexts, test=False)
    beds = [_bed(site.problem, site.contexts.validation_days(steps)) for site in sites]
    scores: list[list[DailyScore]] = [[] for _ in sites]
    for kind, option in enumerate(tried[0]):
        known = [bed.with_history(option.kept_steps(sites[0].contexts)) for bed in beds]
        entries = [Contender(each[kind].agent, each[kind].forecaster, stream_days) for each in tried]
        for mine, score in zip(scores, score_together(entries, known), strict=True):
            mine.append(score)
        progress("choosing on validation days", kind + 1, len(tried[0]))
    found = zip(series, all_settings, sites, beds, tried, scores, ranges, said, strict=True)
    return [_choice(*each) for each in found]


def _bed(problem: Problem, known: Days) -> TestDays:
    """Days to be judged on; they begin where the last context was, or as near to it as the bounds allow."""
    return TestDays.with_whole_span_optimum(
        problem, problem.actions.project(to_device(known.x0)), known.days, known.history
    )


def _choice(
    contexts: Contexts,
    settings: FitSettings,
    site: FitTask,
    bed: TestDays,
    tried: Sequence[Candidate],
    scores: Sequence[DailyScore],
    plausible: list[tuple[float, float]],
    screened: str | None,
) -> Selection:
    """The cheapest on the validation days; a correction that training did not keep is not counted twice."""
    kept = [i for i, option in enumerate(tried) if option.trained or option.name != CORRECTED]
    factor = contexts.scale / site.contexts.scale
    found = [dataclasses.replace(tried[i], agent=in_units(tried[i].agent, factor, settings.terms)) for i in kept]
    candidates = _candidates(found, [scores[i] for i in kept], float(np.mean(np.asarray(bed.unit))))
    best = int(np.argmin([candidate.average_cost for candidate in candidates]))
    problem = series_problem(contexts, settings.alpha, settings.bounds, settings.weights)
    return Selection(contexts, settings, problem, found, candidates, best, plausible, screened)


def scale_task(contexts: Contexts, settings: FitSettings) -> FitTask:
    """A series and its recipe as training takes them: in units in which the training days, which must change, reach 1."""
    _refuse_constant(contexts)
    scaled = contexts.scale_to(1.0)
    own = settings.in_units(scaled.scale / contexts.scale)
    return FitTask(scaled, series_problem(contexts, settings.alpha, own.bounds, own.weights), own)


def reference_contenders(problem: Problem, steps_per_day: int) -> dict[str, Contender]:
    """What a policy must be compared with, trained on nothing: the expert, and what a practitioner would use instead."""
    return {
        option.name: make_contender(option.agent, problem, option.forecaster)
        for option in reference_candidates(problem, steps_per_day)
    }


def bad_day(policy: Policy, contexts: Contexts, seed: int = 0) -> Certificate:
    """The worst day that a search finds, over contexts within the range of the series, from x0 = 0 and without a history.

    Its ratio is one that the policy can be driven to, not a bound.
    """
    low, high = (jnp.asarray(extreme(contexts.values, axis=0)) for extreme in (np.min, np.max))
    return certify(policy.agent, policy.problem, contexts.steps_per_day, contexts=(low, high), key=jax.random.key(seed))


def _refuse_constant(contexts: Contexts) -> None:
    training = contexts.training[:, : contexts.action_dim]
    if (training == training[0]).all():
        raise DataError(
            f"the training days of {contexts.name} never change (every context is {training[0].tolist()}), so that there is "
            "nothing to learn."
        )


def _history_steps(steps: int, contexts: Contexts, *, test: bool) -> int:
    """So many steps of history, or as many as there are before the test days, or else the validation days."""
    split = contexts.split
    days = split.training_days + (split.validation_days if test else 0)
    return min(steps, days * contexts.steps_per_day)


def _candidates(options: Sequence[Candidate], scores: Sequence[DailyScore], unit: float) -> list[ValidatedCandidate]:
    """How each did on the validation days, and beside the best, day by day."""
    best = min(scores, key=lambda score: score.average_cost)
    return [
        ValidatedCandidate(
            option.name,
            option.advisor,
            option.trained,
            option.trust,
            option.mu,
            score.average_cost,
            _standard_error(score.cost / unit),
            score.competitive_ratio,
            float(np.mean(score.cost - best.cost) / unit),
            _standard_error((score.cost - best.cost) / unit),
        )
        for option, score in zip(options, scores, strict=True)
    ]


def _standard_error(daily: Float[np.ndarray, " n"]) -> float:
    """Of the mean over days; infinite where there is one day."""
    return float(np.std(daily, ddof=1) / np.sqrt(len(daily))) if len(daily) > 1 else float("inf")


def _policy(
    option: Candidate,
    problem: Problem,
    contexts: Contexts,
    settings: FitSettings,
    chosen: ValidatedCandidate,
    rows: list[ComparisonRow],
) -> Policy:
    """The policy with what evaluate, act and the next engineer need to know, and the latest contexts to begin with."""
    series = contexts.metadata
    assert isinstance(series, SeriesMetadata)
    used = contexts.n_days * contexts.steps_per_day
    seen = (contexts.split.training_days + contexts.split.validation_days) * contexts.steps_per_day
    contract = Contract(
        columns=list(series.columns),
        step_minutes=float(series.step_minutes),
        steps_per_day=contexts.steps_per_day,
        day_start_minutes=series.day_start_minutes,
        period_name="day" if settings.promise is None else settings.promise.per,
        action_bounds=None if settings.bounds is None else [settings.bounds] * contexts.action_dim,
        weight_column=series.weight_column,
        history_steps=Shape.of(contexts).history_steps,
        history_until=str(contexts.time[used - 1]),
        seen_until=str(contexts.time[seen - 1]),
        source=Source(file=series.file, sha256=series.sha256),
    )
    metadata = {
        "study": "own-series",
        "settings": dataclasses.asdict(settings) | {"steps": settings.training_steps(chosen.advisor)},
        "split": dataclasses.asdict(contexts.split),
        "validation": dataclasses.asdict(chosen),
        "test": {
            row.name: {"average_cost": row.average_cost, "competitive_ratio": row.competitive_ratio} for row in rows
        },
    }
    history = contexts.values[used - option.kept_steps(contexts) : used]
    return Policy(option.agent, problem, option.forecaster, metadata=metadata, contract=contract, history=history)
