"""Fit a policy to a series: screen, make candidates, train, select, test, build.

The problem is f = 1/2 |x - y|^2 and c = alpha/2 |x - z|^2 in the units of the series, with one action per column and one alpha
for all columns or for each. With a weight column, such as a price, f is w/2 |x - y|^2. The expert and a planner are always among
the candidates, so a policy is not worse on the validation days than what a practitioner would try first. Candidates are selected
and tested as they will run: as one stream, in which online learners keep learning.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ecl2o.data import Contexts, SeriesMetadata
from ecl2o.evaluation import Certificate, TestDays, certify
from ecl2o.evaluation.comparison import ComparisonRow, compare
from ecl2o.fitting.candidates import MemoryLengths
from ecl2o.fitting.read import describe_replaced, screen_for_fit
from ecl2o.fitting.select import Selection, ValidatedCandidate, select_best, validate_candidates
from ecl2o.fitting.settings import AdvisorName, FitSettings, Progress, ignore_progress
from ecl2o.fitting.tasks import check_same_shape, scale_task
from ecl2o.fitting.train import train_candidates
from ecl2o.policy import Contract, Policy
from ecl2o.policy.contract import Source


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
        left_out=settings.left_out(contexts.steps_per_day, contexts.weighted),
        comparison=comparison,
        test_days=test_days,
        screened=describe_replaced(contexts.time, selection.series.replaced),
    )


def select_candidates(
    series: Sequence[Contexts], settings: Sequence[FitSettings], progress: Progress = ignore_progress
) -> list[Selection]:
    """Screen each series, train its candidates, and select one on its validation days.

    Series of one shape and one split, whose settings differ in numbers only, run as one program where possible.
    """
    check_same_shape(series)
    screened = [screen_for_fit(contexts) for contexts in series]
    tasks = [scale_task(each.contexts, own) for each, own in zip(screened, settings, strict=True)]
    candidates = train_candidates(tasks, progress)
    validations = validate_candidates(tasks, candidates, progress)
    return [select_best(*each) for each in zip(screened, settings, tasks, candidates, validations, strict=True)]


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
        history_steps=MemoryLengths.of(contexts).history_steps,
        history_until=str(contexts.time[used - 1]),
        seen_until=str(contexts.time[seen - 1]),
        source=Source(file=metadata.file, sha256=metadata.sha256),
        plausible=selection.series.plausible,
        accepted_after=contexts.steps_per_day,
    )
    test = {
        row.name: {"average_cost": row.average_cost, "competitive_ratio": row.competitive_ratio} for row in comparison
    }
    record = {
        "study": "own-series",
        "settings": dataclasses.asdict(settings) | {"steps": settings.training_steps(chosen.advisor)},
        "split": dataclasses.asdict(contexts.split),
        "validation": dataclasses.asdict(chosen),
        "test": test,
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
