"""A policy for one's own series: train on its first days, choose on the next, report on the last.

The problem is f = 1/2 |x - y|^2 and c = alpha/2 |x - z|^2 in the units of the series, one action per column, with one alpha for
all or for each. Training works on a scaled copy, so that single precision suffices whatever the units; the policy itself takes
and gives the user's numbers (regression and structured advisor are homogeneous, networks carry their scaling inside). Policies
are chosen and tested as they will be used: as one stream, in which what learns while it runs goes on learning.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ecl2o.agents import RHC, ROBD, AbstractAgent
from ecl2o.data import Contexts, DataError, SeriesMetadata, Split
from ecl2o.evaluation import Bed, Certificate, certify
from ecl2o.evaluation.comparison import Entry, ScoredEntry, compare, streamed
from ecl2o.forecasters import RollingProfile
from ecl2o.problem import Box, Everywhere, Mahalanobis, Problem, SquaredTracking
from ecl2o.recipes.batches import Site, refuse_unless_alike, score_each
from ecl2o.recipes.believed import believed, in_words
from ecl2o.recipes.candidates import FORECAST_DAYS, Shape, Trained, in_units, train_all
from ecl2o.recipes.progress import Progress, silent
from ecl2o.recipes.recipe import Advisor, Alpha, Recipe, column_alphas
from ecl2o.running import Screen, plausible_range, stream_days
from ecl2o.serving import Contract, Policy
from ecl2o.serving.contract import Source

FEWEST_DAYS = 91


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One setting that was tried, and how it did on the validation days. No trust: the advice meets no calibrator."""

    advisor: Advisor
    trust: float | None
    mu: float
    average_cost: float
    competitive_ratio: float


@dataclasses.dataclass(frozen=True)
class FittedSeries:
    """The policy, what was tried, and how it compares on days that training and choice never saw."""

    policy: Policy
    candidates: list[Candidate]
    chosen: Candidate
    entries: list[ScoredEntry]
    test_days: int
    screened: str | None = None  # what was replaced in the series, in words


def default_split(n_days: int) -> Split:
    """Two thirds of the days for training, a sixth for validation, the rest for testing.

    Less than 91 days is too little to do that unasked: the split is then the library's own, which says what is missing.

    >>> default_split(365)
    Split(training_days=243, validation_days=60)
    """
    return Split() if n_days < FEWEST_DAYS else Split(2 * n_days // 3, n_days // 6)


def tracking_problem(
    dim: int, alpha: float | Float[np.ndarray, " d"], bounds: tuple[float, float] | None = None
) -> Problem:
    """Follow every column, within bounds if there are any, and pay alpha/2 times the squared movement, each its own."""
    actions = Everywhere() if bounds is None else Box(*bounds)
    return Problem(SquaredTracking(), Mahalanobis(np.diag(np.broadcast_to(alpha, (dim,))) / 2), actions)


def series_problem(contexts: Contexts, alpha: Alpha, bounds: tuple[float, float] | None = None) -> Problem:
    """The same for a series, whose columns may have alphas by name."""
    assert isinstance(contexts.metadata, SeriesMetadata)
    return tracking_problem(contexts.dim, column_alphas(alpha, contexts.metadata.columns), bounds)


@dataclasses.dataclass(frozen=True)
class Choice:
    """What the validation days of a series choose: an agent in its units, all that was tried, and what the agent begins on."""

    contexts: Contexts
    recipe: Recipe
    problem: Problem
    agent: AbstractAgent
    candidates: list[Candidate]
    chosen: Candidate
    history_steps: int
    plausible: list[tuple[float, float]]
    screened: str | None  # what was replaced in the series, in words

    def test_bed(self) -> Bed:
        """The days that training and choice never saw."""
        return Bed.of(
            self.problem, *self.contexts.test_days(_history_steps(self.history_steps, self.contexts, test=True))
        )

    def policy(self, rows: list[ScoredEntry]) -> Policy:
        """As it is used, with how it did on the test days."""
        policy = _policy(self.agent, self.problem, self.contexts, self.recipe, self.history_steps, self.chosen, rows)
        contract = {"plausible": self.plausible, "accepted_after": self.contexts.steps_per_day}
        return dataclasses.replace(policy, contract=policy.contract.model_copy(update=contract))


def fit_series(contexts: Contexts, recipe: Recipe = Recipe(), progress: Progress = silent) -> FittedSeries:
    """Train all candidates, choose one on the validation days, and compare it on the test days.

    Readings that the bulk of the training days makes implausible are replaced, as they will be when the policy runs.
    """
    (choice,) = choose_each([contexts], [recipe], progress)
    test = choice.test_bed()
    rows = compare(
        {"policy": streamed(choice.agent, choice.problem), **reference_entries(contexts.steps_per_day)},
        test,
        lambda done, total: progress("testing on held-back days", done, total),
    )
    return FittedSeries(
        choice.policy(rows), choice.candidates, choice.chosen, rows, test.days.shape[0], choice.screened
    )


def choose_each(series: Sequence[Contexts], recipes: Sequence[Recipe], progress: Progress = silent) -> list[Choice]:
    """Train all candidates of each series and choose one on its validation days; what can run as one program does.

    The series have one shape and one split, and their recipes differ in numbers only.
    """
    refuse_unless_alike(series)
    ranges = [plausible_range(contexts.training) for contexts in series]
    screened = [
        believed(contexts, Screen.of(plausible, contexts.steps_per_day))
        for contexts, plausible in zip(series, ranges, strict=True)
    ]
    series = [contexts for contexts, _ in screened]
    sites = [scaled_site(*each) for each in zip(series, recipes, strict=True)]
    trained = train_all(sites, progress)
    candidates: list[list[Candidate]] = [[] for _ in sites]
    for kind in range(len(trained[0])):
        for found, candidate in zip(candidates, _validated([each[kind] for each in trained], sites), strict=True):
            found.append(candidate)
        progress("choosing on validation days", kind + 1, len(trained[0]))
    choices = []
    for contexts, recipe, site, agents, tried in zip(series, recipes, sites, trained, candidates, strict=True):
        best = int(np.argmin([candidate.average_cost for candidate in tried]))
        agent = in_units(agents[best].agent, contexts.scale / site.contexts.scale)
        problem = series_problem(contexts, recipe.alpha, recipe.bounds)
        kept = agents[best].kept_steps(contexts)
        choices.append((contexts, recipe, problem, agent, tried, tried[best], kept))
    said = [in_words(contexts, rows) for contexts, rows in screened]
    return [Choice(*choice, *more) for choice, *more in zip(choices, ranges, said, strict=True)]


def scaled_site(contexts: Contexts, recipe: Recipe) -> Site:
    """A series and its recipe as training takes them: in units in which the training days, which must change, reach 1."""
    _refuse_constant(contexts)
    scaled = contexts.scaled_to(1.0)
    own = recipe.in_units(scaled.scale / contexts.scale)
    return Site(scaled, series_problem(contexts, recipe.alpha, own.bounds), own)


def reference_entries(steps_per_day: int) -> dict[str, Entry]:
    """What a policy must be compared with: the expert, and what a practitioner would use instead."""
    plan = RHC(steps_per_day - 1, truncate=False)
    return {"r-obd": Entry(ROBD()), "rhc": Entry(plan, RollingProfile(FORECAST_DAYS, period=steps_per_day))}


def bad_day(policy: Policy, contexts: Contexts, seed: int = 0) -> Certificate:
    """The worst day that a search finds, over contexts within the range of the series, from x0 = 0 and without a history.

    Its ratio is one that the policy can be driven to, not a bound.
    """
    low, high = (jnp.asarray(extreme(contexts.values, axis=0)) for extreme in (np.min, np.max))
    return certify(policy.agent, policy.problem, contexts.steps_per_day, contexts=(low, high), key=jax.random.key(seed))


def _refuse_constant(contexts: Contexts) -> None:
    training = contexts.training
    if (training == training[0]).all():
        raise DataError(
            f"the training days never change (every context is {training[0].tolist()}), so that there is nothing to learn."
        )


def _history_steps(steps: int, contexts: Contexts, *, test: bool) -> int:
    """So many steps of history, or as many as there are before the test days, or else the validation days."""
    split = contexts.split
    days = split.training_days + (split.validation_days if test else 0)
    return min(steps, days * contexts.steps_per_day)


def _validated(candidates: Sequence[Trained], sites: Sequence[Site]) -> list[Candidate]:
    """How a candidate of each site does on its validation days, as a stream."""
    steps = _history_steps(candidates[0].kept_steps(sites[0].contexts), sites[0].contexts, test=False)
    beds = [Bed.of(site.problem, *site.contexts.validation_days(steps)) for site in sites]
    scores = score_each([Entry(candidate.agent, run=stream_days) for candidate in candidates], beds)
    return [
        Candidate(candidate.advisor, candidate.trust, candidate.mu, score.average_cost, score.competitive_ratio)
        for candidate, score in zip(candidates, scores, strict=True)
    ]


def _policy(
    agent: AbstractAgent,
    problem: Problem,
    contexts: Contexts,
    recipe: Recipe,
    history_steps: int,
    chosen: Candidate,
    rows: list[ScoredEntry],
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
        period_name="day" if recipe.promise is None else recipe.promise.per,
        action_bounds=None if recipe.bounds is None else [recipe.bounds] * contexts.dim,
        history_steps=Shape.of(contexts).history_steps,
        history_until=str(contexts.time[used - 1]),
        seen_until=str(contexts.time[seen - 1]),
        source=Source(file=series.file, sha256=series.sha256),
    )
    metadata = {
        "study": "own-series",
        "recipe": dataclasses.asdict(recipe) | {"steps": recipe.training_steps(chosen.advisor)},
        "split": dataclasses.asdict(contexts.split),
        "validation": dataclasses.asdict(chosen),
        "test": {
            row.name: {"average_cost": row.average_cost, "competitive_ratio": row.competitive_ratio} for row in rows
        },
    }
    history = contexts.values[used - history_steps : used]
    return Policy(agent, problem, metadata=metadata, contract=contract, history=history)
