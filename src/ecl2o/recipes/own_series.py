"""A policy for one's own series: train on its first days, choose on the next, report on the last.

The problem is f = 1/2 |x - y|^2 and c = alpha/2 |x - z|^2 in the units of the series, one action per column. Training works on a
scaled copy, so that single precision suffices whatever the units; the policy itself takes and gives the user's numbers
(regression and structured advisor are homogeneous, networks carry their scaling inside). Policies are chosen and tested as they
will be used: as one stream, in which what learns while it runs goes on learning.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ecl2o.agents import RHC, ROBD, AbstractAgent
from ecl2o.data import Contexts, DataError, SeriesMetadata, Split
from ecl2o.evaluation import Bed, Certificate, certify, score_runs
from ecl2o.evaluation.comparison import Entry, ScoredEntry, compare, streamed
from ecl2o.forecasters import RollingProfile
from ecl2o.problem import Box, Everywhere, Mahalanobis, Problem, SquaredTracking
from ecl2o.recipes.candidates import FORECAST_DAYS, Shape, Trained, in_units, train_all
from ecl2o.recipes.progress import Progress, silent
from ecl2o.recipes.recipe import Advisor, Recipe
from ecl2o.running import stream_days
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


def default_split(n_days: int) -> Split:
    """Two thirds of the days for training, a sixth for validation, the rest for testing.

    Less than 91 days is too little to do that unasked: the split is then the library's own, which says what is missing.

    >>> default_split(365)
    Split(training_days=243, validation_days=60)
    """
    return Split() if n_days < FEWEST_DAYS else Split(2 * n_days // 3, n_days // 6)


def tracking_problem(dim: int, alpha: float, bounds: tuple[float, float] | None = None) -> Problem:
    """Follow every column, within bounds if there are any, and pay alpha/2 times the squared movement."""
    actions = Everywhere() if bounds is None else Box(*bounds)
    return Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=alpha, dim=dim), actions)


def fit_series(contexts: Contexts, recipe: Recipe = Recipe(), progress: Progress = silent) -> FittedSeries:
    """Train all candidates, choose one on the validation days, and compare it on the test days."""
    _refuse_constant(contexts)
    problem = tracking_problem(contexts.dim, recipe.alpha, recipe.bounds)
    scaled = contexts.scaled_to(1.0)
    unit = scaled.scale / contexts.scale
    scaled_recipe = recipe.in_units(unit)
    scaled_problem = tracking_problem(contexts.dim, recipe.alpha, scaled_recipe.bounds)
    trained = train_all(scaled, scaled_problem, scaled_recipe, progress)
    candidates = []
    for candidate in trained:
        candidates.append(_validated(candidate, scaled, scaled_problem))
        progress("choosing on validation days", len(candidates), len(trained))
    best = int(np.argmin([candidate.average_cost for candidate in candidates]))
    agent = in_units(trained[best].agent, 1 / unit)
    history_steps = trained[best].kept_steps(contexts)
    test = Bed.of(problem, *contexts.test_days(_history_steps(history_steps, contexts, test=True)))
    rows = compare(
        {"policy": streamed(agent, problem), **reference_entries(contexts.steps_per_day)},
        test,
        lambda done, total: progress("testing on held-back days", done, total),
    )
    policy = _policy(agent, problem, contexts, recipe, history_steps, candidates[best], rows)
    return FittedSeries(policy, candidates, candidates[best], rows, test.days.shape[0])


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


def _validated(candidate: Trained, contexts: Contexts, problem: Problem) -> Candidate:
    """How a candidate does on the validation days, as a stream."""
    steps = _history_steps(candidate.kept_steps(contexts), contexts, test=False)
    bed = Bed.of(problem, *contexts.validation_days(steps))
    score = score_runs(*stream_days(candidate.agent, problem, bed.x0, bed.days, bed.history), bed)
    return Candidate(candidate.advisor, candidate.trust, candidate.mu, score.average_cost, score.competitive_ratio)


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
