"""A policy for one's own series: train on its first days, choose on the next, report on the last.

The problem is f = 1/2 |x - y|^2 and c = alpha/2 |x - z|^2 in the units of the series, one action per column. Training works on a
scaled copy, so that single precision suffices whatever the units; the policy itself takes and gives the user's numbers
(regression and structured advisor are homogeneous, networks carry their scaling inside). Policies are chosen and tested as they
will be used: as one stream, in which what learns while it runs goes on learning.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ecl2o.agents import (
    MLAROBD,
    RHC,
    ROBD,
    AbstractAgent,
    AbstractGuard,
    Periodic,
    Start,
)
from ecl2o.agents.advisors import LSTM, MLP, OnlineRidge, Scaling, SeasonalLinear
from ecl2o.data import Contexts, DataError, SeriesMetadata, Split
from ecl2o.evaluation import Certificate, TestBed, certify, score_runs
from ecl2o.evaluation.comparison import ComparisonRow, Entrant, compare, streamed
from ecl2o.forecasters import RollingProfile
from ecl2o.learning import CalibratedLoss, fit_many
from ecl2o.problem import Box, Everywhere, Instance, Mahalanobis, Problem, SquaredTracking
from ecl2o.recipes.guarded_training import competitive_ridge, train_through
from ecl2o.recipes.progress import Progress, silent
from ecl2o.recipes.recipe import TRAINING, Advisor, Recipe
from ecl2o.recipes.terms import Terms, renewed
from ecl2o.running import stream_days
from ecl2o.serving import Contract, Policy
from ecl2o.serving.contract import Source

FEWEST_DAYS = 91
PROFILE_DAYS = 14  # what the structured advisor remembers
FORECAST_DAYS = 7  # what the rolling profile of RHC remembers
WINDOW_DAYS = 4  # the structured advisor is trained across midnight; networks, whose memory is a day's, are not
MOST_WINDOWS = 2000
BATCH = 50
KEPT_DAYS = 365  # of the series, which the regression begins on

# (trust, mu) that validation chooses from, and the trusts for advice that is not trained (None: played as it is).
GRID = ((0.3, 0.0), (1.0, 0.0), (10.0, 0.0), (1.0, 0.3), (0.5, 0.6))
RIDGE_TRUSTS = (1.0, 10.0, None)


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
    rows: list[ComparisonRow]
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
    contenders = _contenders(scaled, scaled_problem, scaled_recipe, progress)
    candidates = []
    for contender in contenders:
        candidates.append(_validated(contender, scaled, scaled_problem))
        progress("choosing on validation days", len(candidates), len(contenders))
    best = int(np.argmin([candidate.average_cost for candidate in candidates]))
    agent = _in_units(contenders[best].agent, 1 / unit)
    history_steps = contenders[best].kept_steps(contexts)
    test = TestBed.of(problem, *contexts.test_days(_known(history_steps, contexts, test=True)))
    rows = compare(
        {"policy": streamed(agent, problem), **rivals(contexts.steps_per_day)},
        test,
        lambda done, total: progress("testing on held-back days", done, total),
    )
    policy = _policy(agent, problem, contexts, recipe, history_steps, candidates[best], rows)
    return FittedSeries(policy, candidates, candidates[best], rows, test.days.shape[0])


def rivals(steps_per_day: int) -> dict[str, Entrant]:
    """What a policy must be compared with: the expert, and what a practitioner would use instead."""
    plan = RHC(steps_per_day - 1, truncate=False)
    return {"r-obd": Entrant(ROBD()), "rhc": Entrant(plan, RollingProfile(FORECAST_DAYS, period=steps_per_day))}


def bad_day(policy: Policy, contexts: Contexts, seed: int = 0) -> Certificate:
    """The worst day that a search finds, over contexts within the range of the series, from x0 = 0 and without a history.

    Its ratio is one that the policy can be driven to, not a bound.
    """
    low, high = (jnp.asarray(extreme(contexts.values, axis=0)) for extreme in (np.min, np.max))
    return certify(policy.agent, policy.problem, contexts.steps_per_day, contexts=(low, high), key=jax.random.key(seed))


@dataclasses.dataclass(frozen=True)
class _Shape:
    """How long the memory and the training windows can be with so many training days, in steps."""

    profile_days: int
    history_steps: int
    window_steps: int

    @classmethod
    def of(cls, contexts: Contexts) -> "_Shape":
        days, per_day = contexts.split.training_days, contexts.steps_per_day
        profile = min(max(days // 4, 1), PROFILE_DAYS)
        remembered = min(max(profile, FORECAST_DAYS), days)
        window = min(max((days - profile) // 2, 1), WINDOW_DAYS)
        return cls(profile, remembered * per_day, window * per_day)


def _refuse_constant(contexts: Contexts) -> None:
    training = contexts.training
    if (training == training[0]).all():
        raise DataError(
            f"the training days never change (every context is {training[0].tolist()}), so that there is nothing to learn."
        )


@dataclasses.dataclass(frozen=True)
class _Contender:
    """An agent to be validated, and where it comes from."""

    advisor: Advisor
    trust: float | None
    mu: float
    agent: AbstractAgent

    def kept_steps(self, contexts: Contexts) -> int:
        """How much of the past it begins on: the regression on all it can learn from, others on what they remember."""
        if self.advisor == "ridge":
            return min(KEPT_DAYS, contexts.n_days) * contexts.steps_per_day
        return _Shape.of(contexts).history_steps


def _known(steps: int, contexts: Contexts, *, test: bool) -> int:
    """So many steps of history, or as many as there are before the test days, or else the validation days."""
    split = contexts.split
    days = split.training_days + (split.validation_days if test else 0)
    return min(steps, days * contexts.steps_per_day)


def _validated(contender: _Contender, contexts: Contexts, problem: Problem) -> Candidate:
    """How a contender does on the validation days, as a stream."""
    steps = _known(contender.kept_steps(contexts), contexts, test=False)
    bed = TestBed.of(problem, *contexts.validation_days(steps))
    score = score_runs(*stream_days(contender.agent, problem, bed.x0, bed.days, bed.history), bed)
    return Candidate(contender.advisor, contender.trust, contender.mu, score.average_cost, score.competitive_ratio)


def _contenders(contexts: Contexts, problem: Problem, recipe: Recipe, progress: Progress) -> list[_Contender]:
    """All that are to be validated, trained and ready to run as a stream."""
    found = []
    for advisor in recipe.advisors(contexts.steps_per_day):
        make = _by_regression if advisor == "ridge" else _by_gradient
        found += make(advisor, contexts, problem, recipe, progress)
    return found


def _by_regression(
    advisor: Advisor, contexts: Contexts, problem: Problem, recipe: Recipe, progress: Progress
) -> list[_Contender]:
    """The regression calibrated with several trusts or played as it is; with a promise, corrected and trained through it."""
    period = contexts.steps_per_day
    if recipe.promise is None:
        ridge = OnlineRidge(period)
        return [
            _Contender(advisor, trust, 0.0, ridge if trust is None else MLAROBD(ridge, trust)) for trust in RIDGE_TRUSTS
        ]
    terms = recipe.promise
    guard, renewal = competitive_ridge(terms, period), terms.steps(period)
    _refuse_infeasible(renewed(guard, renewal), problem, contexts)
    progress("training the guarded regression", 0, 1)
    steps = recipe.training_steps(advisor)
    rate = TRAINING[advisor][1]
    trained, _ = train_through(
        guard, problem, contexts, period=renewal, steps=steps, learning_rate=rate, checks=min(4, steps)
    )
    progress("training the guarded regression", 1, 1)
    return [_Contender(advisor, None, 0.0, renewed(trained, renewal))]


def _refuse_infeasible(agent: AbstractAgent, problem: Problem, contexts: Contexts) -> None:
    """Before anything is trained."""
    agent.check(problem, Start(jnp.zeros(contexts.dim), jnp.zeros((0, contexts.dim)), contexts.steps_per_day))


def _by_gradient(
    advisor: Advisor, contexts: Contexts, problem: Problem, recipe: Recipe, progress: Progress
) -> list[_Contender]:
    """One contender per entry of the grid, trained through the calibrator, and through the guard if it promises each day.

    A promise for longer hardly ever cuts anything off, and is put around what was trained without it.
    """
    shape, period = _Shape.of(contexts), contexts.steps_per_day
    keys = [jax.random.key(recipe.seed)] * len(GRID)
    untrained = _advisor(advisor, contexts, shape, jax.random.fold_in(keys[0], 1))
    terms, daily = recipe.promise, recipe.promise is not None and recipe.promise.per == "day"
    agents: list[AbstractAgent] = [MLAROBD(untrained, trust) for trust, _ in GRID]
    _refuse_infeasible(_promising(agents[0], terms, period), problem, contexts)
    if daily:
        agents = [_promising(agent, terms, period) for agent in agents]
    seasonal = advisor == "seasonal"
    windows = _windows(
        contexts, shape.window_steps if seasonal else period, shape.profile_days * period if seasonal else 0
    )
    fitted = fit_many(
        agents,
        problem,
        windows,
        losses=[CalibratedLoss(mu=mu) for _, mu in GRID],
        keys=keys,
        steps=recipe.training_steps(advisor),
        batch=min(BATCH, windows.x0.shape[0]),
        learning_rates=TRAINING[advisor][1],
        progress=lambda done, total, loss: progress(f"training ({advisor})", done, total),
    )
    return [
        _Contender(advisor, trust, mu, _streamed(advisor, result.agent, None if daily else terms, period))
        for (trust, mu), result in zip(GRID, fitted, strict=True)
    ]


def _streamed(advisor: Advisor, agent: AbstractAgent, terms: Terms | None, period: int) -> AbstractAgent:
    """The agent as it will be used: a network's memory, trained on days, is a day's; what is still to be promised is."""
    return _promising(Periodic(agent, period, "history") if advisor == "lstm" else agent, terms, period)


def _promising(agent: AbstractAgent, terms: Terms | None, period: int) -> AbstractAgent:
    """The agent behind a promise, if there is one."""
    return agent if terms is None else renewed(terms.guard(agent, period), terms.steps(period))


def _advisor(advisor: Advisor, contexts: Contexts, shape: _Shape, key) -> AbstractAgent:
    dim = contexts.dim
    if advisor == "seasonal":
        return SeasonalLinear(dim, dim, period=contexts.steps_per_day, days=shape.profile_days)
    scaling = Scaling.of(jnp.asarray(contexts.training))
    network = MLP if advisor == "mlp" else LSTM
    return network(dim, dim, key=key, contexts=scaling, actions=scaling)


def _windows(contexts: Contexts, steps: int, history_steps: int) -> Instance:
    """Windows of the training days with what came before them; evenly chosen where there are very many."""
    training = contexts.training
    starts = np.arange(max(1, history_steps), len(training) - steps + 1)
    if not len(starts):
        raise DataError(
            f"{contexts.split.training_days} training days are too few: a window of {steps} steps with {history_steps} "
            f"before it does not fit in {len(training)} steps. Use more training days."
        )
    if len(starts) > MOST_WINDOWS:
        starts = starts[np.linspace(0, len(starts) - 1, MOST_WINDOWS).astype(int)]
    history = training[starts[:, None] + np.arange(-history_steps, 0)] if history_steps else None
    return Instance(training[starts - 1], training[starts[:, None] + np.arange(steps)], history)


def _in_units(agent: AbstractAgent, factor: float) -> AbstractAgent:
    """The agent for contexts `factor` times as large: networks and guards rescale, everything else is homogeneous."""

    def has_units(node):
        return isinstance(node, Scaling | AbstractGuard)

    def rescaled(node):
        if isinstance(node, Scaling):
            return Scaling(node.offset * factor, node.scale * factor)
        if isinstance(node, AbstractGuard):
            return eqx.tree_at(lambda guard: guard.agent, node.in_units(factor), _in_units(node.agent, factor))
        return node

    return jax.tree.map(rescaled, agent, is_leaf=has_units)


def _policy(
    agent: AbstractAgent,
    problem: Problem,
    contexts: Contexts,
    recipe: Recipe,
    history_steps: int,
    chosen: Candidate,
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
        period_name="day" if recipe.promise is None else recipe.promise.per,
        action_bounds=None if recipe.bounds is None else [recipe.bounds] * contexts.dim,
        history_steps=_Shape.of(contexts).history_steps,
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
