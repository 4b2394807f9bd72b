"""The agents among which `fit` chooses: every advisor with every setting, trained or not, and ready to run as a stream."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from ecl2o.agents import MLAROBD, RHC, ROBD, AbstractAgent, AbstractGuard, Guarded, Periodic, Start
from ecl2o.agents.advisors import LSTM, MLP, OnlineRidge, Scaling, SeasonalLinear
from ecl2o.agents.advisors.constant_weight import ConstantWeight
from ecl2o.data import Contexts
from ecl2o.exceptions import DataError
from ecl2o.fitting.batches import FitTask
from ecl2o.fitting.guarded_training import competitive_ridge, train_sites
from ecl2o.fitting.progress import Progress
from ecl2o.fitting.settings import TRAINING, AdvisorName, FitSettings, PromiseSpec, renewed
from ecl2o.fitting.weights import check_weights_inside, usual_weight
from ecl2o.forecasters import AbstractForecaster, RollingProfile
from ecl2o.learning import CalibratedLoss, fit_many
from ecl2o.problem import CurvedTracking, Instance, Mahalanobis, Problem
from ecl2o.problem.arrays import to_device
from ecl2o.theory import decay_root

PROFILE_DAYS = 14  # what the structured advisor remembers
FORECAST_DAYS = 7  # what the rolling profile of RHC remembers
WINDOW_DAYS = 4  # the structured advisor is trained across midnight; networks, whose memory is a day's, are not
MOST_WINDOWS = 2000
BATCH = 50
SLACK = 0.5  # of the planner that never pays more than 1.5 times what R-OBD pays
_NEGLIGIBLE = 1e-8
KEPT_DAYS = 365  # of the series, which the regression begins on

# (trust, mu) that validation chooses from, and the trusts for advice that is not trained (None: played as it is).
GRID = ((0.3, 0.0), (1.0, 0.0), (10.0, 0.0), (1.0, 0.3), (0.5, 0.6))
RIDGE_TRUSTS = (1.0, 10.0, None)
WEEK, FEWEST_WEEKS = 7, 4  # days in a week; weeks of training without which there is no weekly profile
CORRECTED = "promised-ridge, corrected"


@dataclasses.dataclass(frozen=True)
class Shape:
    """How long the memory and the training windows can be, in steps, given the number of training days."""

    profile_days: int
    history_steps: int
    window_steps: int

    @classmethod
    def of(cls, contexts: Contexts) -> "Shape":
        days, per_day = contexts.split.training_days, contexts.steps_per_day
        profile = min(max(days // 4, 1), PROFILE_DAYS)
        remembered = min(max(profile, FORECAST_DAYS), days)
        window = min(max((days - profile) // 2, 1), WINDOW_DAYS)
        return cls(profile, remembered * per_day, window * per_day)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An agent to be validated, by its name in tables, and where it comes from; `trained` if anything in it was."""

    name: str
    advisor: AdvisorName
    agent: AbstractAgent
    trained: bool = False
    trust: float | None = None
    mu: float = 0.0
    forecaster: AbstractForecaster | None = None

    def kept_steps(self, contexts: Contexts) -> int:
        """How much of the past it begins on: the regression on all it can learn from, others on what they remember."""
        if self.advisor == "ridge":
            return min(KEPT_DAYS, contexts.n_days) * contexts.steps_per_day
        return Shape.of(contexts).history_steps


def options(sites: Sequence[FitTask], progress: Progress) -> list[list[Candidate]]:
    """By site, all that are to be validated, trained where they can be, and ready to run as a stream.

    Sites of one shape have the same ones. The regression is trained for all sites in one program, what is trained by gradients
    for one after the other.
    """
    for site in sites:
        check_promise_feasible(site)
    found: list[list[Candidate]] = [[] for _ in sites]
    like = sites[0].contexts
    for advisor in sites[0].settings.advisors(like.steps_per_day, like.weighted):
        for mine, site in zip(found, sites, strict=True):
            mine += _untrained(advisor, site)
        if advisor == "ridge":
            by_site = _corrections(sites, progress)
        elif advisor in ("rhc", "r-obd"):
            by_site = [[] for _ in sites]
        else:
            by_site = [_by_gradient(advisor, site.contexts, site.problem, site.settings, progress) for site in sites]
        for mine, more in zip(found, by_site, strict=True):
            mine += more
    return found


def planner(problem: Problem, steps_per_day: int) -> RHC:
    """Model-predictive control over a day, or over less where what comes later does not matter to eight digits."""
    if not isinstance(problem.switching, Mahalanobis):
        return RHC(steps_per_day - 1, truncate=False)
    return RHC(min(steps_per_day - 1, _reach(float(_fading(problem)), steps_per_day)), truncate=False)


def _reach(fading: float, most: int) -> int:
    """After how many steps less than a negligible part is left; at most so many, as where rounding leaves nothing to fade.

    >>> _reach(0.2, 24), _reach(0.0, 24), _reach(1.0, 24)
    (12, 1, 24)
    """
    if fading <= _NEGLIGIBLE:
        return 1
    return most if fading >= 1 else min(most, int(np.ceil(np.log(_NEGLIGIBLE) / np.log(fading))))


@eqx.filter_jit
def _fading(problem: Problem) -> Float[Array, ""]:
    """What each step leaves of the influence of the one before."""
    return decay_root(problem.m, problem.beta)


def profile(steps_per_day: int) -> RollingProfile:
    """What the planner asks: the mean of the last days by the hour, and the present error, which fades."""
    return RollingProfile(FORECAST_DAYS, period=steps_per_day)


def reference_candidates(problem: Problem, steps_per_day: int) -> list[Candidate]:
    """What a policy must be compared with, trained on nothing: the expert, a planner, the planner beside the expert."""
    plan, asked = planner(problem, steps_per_day), profile(steps_per_day)
    return [
        Candidate("r-obd", "r-obd", ROBD()),
        Candidate("rhc", "rhc", plan, forecaster=asked),
        Candidate("guarded-rhc", "rhc", Guarded(plan, slack=SLACK), forecaster=asked),
    ]


def untrained_candidates(site: FitTask) -> list[Candidate]:
    """Those of a site's options that need no training."""
    advisors = site.settings.advisors(site.contexts.steps_per_day, site.contexts.weighted)
    return [option for advisor in advisors for option in _untrained(advisor, site)]


def _untrained(advisor: AdvisorName, site: FitTask) -> list[Candidate]:
    """What an advisor is good for without training; nothing where gradients train it."""
    if advisor == "ridge":
        return _weighted_regression(site) if site.contexts.weighted else _regression(site)
    terms, period = site.settings.promise, site.contexts.steps_per_day
    found = [option for option in reference_candidates(site.problem, period) if option.advisor == advisor]
    if terms is None:
        return found
    return [  # behind the promise, which makes another guard superfluous
        dataclasses.replace(option, name=f"promised-{option.name}", agent=with_promise(option.agent, terms, period))
        for option in found
        if not isinstance(option.agent, AbstractGuard)
    ]


def _regression(site: FitTask) -> list[Candidate]:
    """The regression calibrated with several trusts or played as it is, with a promise only so.

    Played as it is, also with a weekly profile, where there are weeks enough to learn one from.
    """
    terms, period = site.settings.promise, site.contexts.steps_per_day
    name = "ridge" if terms is None else "promised-ridge"
    if terms is None:
        found = _calibrated(OnlineRidge(period))
    else:
        found = [Candidate(name, "ridge", renewed(competitive_ridge(terms, period), terms.steps(period)))]
    if site.contexts.split.training_days >= FEWEST_WEEKS * WEEK:
        weekly = OnlineRidge(period, week=WEEK)
        found.append(Candidate(f"{name}, weekly", "ridge", with_promise(weekly, terms, period)))
    return found


def _corrections(sites: Sequence[FitTask], progress: Progress) -> list[list[Candidate]]:
    """The promised regression with a correction that is trained through the promise, where that is renewed and misses have no
    weights; it is none where the validation days are not clear about it.
    """
    period, settings = sites[0].contexts.steps_per_day, sites[0].settings
    renewal = None if settings.promise is None else settings.promise.steps(period)
    if renewal is None or sites[0].contexts.weighted:
        return [[] for _ in sites]
    steps = settings.training_steps("ridge")
    progress("training the guarded regression", 0, 1)
    trained = train_sites(
        [[competitive_ridge(site.terms, period)] for site in sites],
        [site.problem for site in sites],
        [site.contexts for site in sites],
        period=renewal,
        steps=steps,
        learning_rate=TRAINING["ridge"][1],
        checks=min(4, steps),
    )
    progress("training the guarded regression", 1, 1)
    return [
        [Candidate(CORRECTED, "ridge", renewed(corrected, renewal), trained=log.best_step > 0)]
        for ((corrected, log),) in trained
    ]


def _calibrated(regression: AbstractAgent) -> list[Candidate]:
    """The regression with several trusts, and as it is."""
    return [
        Candidate("ridge", "ridge", regression)
        if trust is None
        else Candidate(f"ridge, trust {trust:g}", "ridge", MLAROBD(regression, trust), trust=trust)
        for trust in RIDGE_TRUSTS
    ]


def _weighted_regression(site: FitTask) -> list[Candidate]:
    """The regression where misses have weights: the present one as it is, later ones at the mean of the training days."""
    contexts, terms, hitting = site.contexts, site.settings.promise, site.problem.hitting
    assert isinstance(hitting, CurvedTracking)
    assert hitting.maximum is not None
    ends, period = (float(hitting.minimum), float(hitting.maximum)), contexts.steps_per_day
    regression = ConstantWeight(OnlineRidge(period), usual_weight(contexts, ends))
    if terms is None:
        return _calibrated(regression)
    check_weights_inside(contexts, ends)
    return [Candidate("promised-ridge", "ridge", with_promise(regression, terms, period))]


def check_promise_feasible(site: FitTask) -> None:
    """Refuse a promise that nobody can keep, before anything is trained."""
    contexts, period = site.contexts, site.contexts.steps_per_day
    start = Start(to_device(np.zeros(contexts.action_dim)), to_device(np.zeros((0, contexts.dim))), period)
    with_promise(ROBD(), site.settings.promise, period).check(site.problem, start)


def _by_gradient(
    advisor: AdvisorName, contexts: Contexts, problem: Problem, settings: FitSettings, progress: Progress
) -> list[Candidate]:
    """One agent per point of the grid, trained through the calibrator, and through the guard if it promises each day.

    A promise for longer hardly ever cuts anything off, and is put around what was trained without it.
    """
    shape, period = Shape.of(contexts), contexts.steps_per_day
    keys = [jax.random.key(settings.seed)] * len(GRID)
    untrained = untrained_advisor(advisor, contexts, shape, jax.random.fold_in(keys[0], 1))
    terms, daily = settings.promise, settings.promise is not None and settings.promise.per == "day"
    agents: list[AbstractAgent] = [MLAROBD(untrained, trust) for trust, _ in GRID]
    if daily:
        agents = [with_promise(agent, terms, period) for agent in agents]
    seasonal = advisor == "seasonal"
    windows = make_training_windows(
        contexts, shape.window_steps if seasonal else period, shape.profile_days * period if seasonal else 0
    )
    fitted = fit_many(
        agents,
        problem,
        windows,
        losses=[CalibratedLoss(mu=mu) for _, mu in GRID],
        keys=keys,
        steps=settings.training_steps(advisor),
        batch=min(BATCH, windows.x0.shape[0]),
        learning_rates=TRAINING[advisor][1],
        progress=lambda done, total, loss: progress(f"training ({advisor})", done, total),
    )
    return [
        Candidate(
            f"{advisor}, trust {trust:g}, mu {mu:g}",
            advisor,
            _streamed(advisor, result.agent, None if daily else terms, period),
            trained=True,
            trust=trust,
            mu=mu,
        )
        for (trust, mu), result in zip(GRID, fitted, strict=True)
    ]


def _streamed(advisor: AdvisorName, agent: AbstractAgent, terms: PromiseSpec | None, period: int) -> AbstractAgent:
    """The agent as it will be used: a network's memory, trained on days, is a day's; what is still to be promised is."""
    return with_promise(Periodic(agent, period, "history") if advisor == "lstm" else agent, terms, period)


def with_promise(agent: AbstractAgent, terms: PromiseSpec | None, period: int) -> AbstractAgent:
    """The agent behind a promise, if there is one."""
    return agent if terms is None else renewed(terms.guard(agent, period), terms.steps(period))


def untrained_advisor(advisor: AdvisorName, contexts: Contexts, shape: Shape, key) -> AbstractAgent:
    """What is trained by gradients, with weights as they begin."""
    dim = contexts.dim
    if advisor == "seasonal":
        return SeasonalLinear(dim, dim, period=contexts.steps_per_day, days=shape.profile_days)
    scaling = Scaling.of(to_device(contexts.training))
    network = MLP if advisor == "mlp" else LSTM
    return network(dim, dim, key=key, contexts=scaling, actions=scaling)


def make_training_windows(contexts: Contexts, steps: int, history_steps: int) -> Instance:
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


def in_units(agent: AbstractAgent, factor: float, terms: PromiseSpec | None = None) -> AbstractAgent:
    """The agent for contexts `factor` times as large: networks and guards rescale, everything else is homogeneous.

    With the terms in these units a promise has exactly their numbers: a product that is rounded up would lie outside the bounds.
    """

    def has_units(node):
        return isinstance(node, Scaling | AbstractGuard)

    def rescaled(node):
        if isinstance(node, Scaling):
            return Scaling(node.offset * factor, node.scale * factor)
        if isinstance(node, AbstractGuard):
            guard = node.rescale(factor)
            if terms is not None:
                guard = guard.with_terms(terms.allowance, terms.contexts)
            return dataclasses.replace(guard, agent=in_units(node.agent, factor, terms))
        return node

    return jax.tree.map(rescaled, agent, is_leaf=has_units)
