"""The agents among which `fit` chooses: every advisor with every setting, trained and ready to run as a stream."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ecl2o.agents import MLAROBD, AbstractAgent, AbstractGuard, Periodic, Start
from ecl2o.agents.advisors import LSTM, MLP, OnlineRidge, Scaling, SeasonalLinear
from ecl2o.data import Contexts, DataError
from ecl2o.learning import CalibratedLoss, fit_many
from ecl2o.problem import Instance, Problem
from ecl2o.recipes.batches import Site
from ecl2o.recipes.guarded_training import competitive_ridge, train_through_sites
from ecl2o.recipes.progress import Progress
from ecl2o.recipes.recipe import TRAINING, Advisor, Recipe
from ecl2o.recipes.terms import Terms, renewed

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
class Trained:
    """An agent to be validated, and where it comes from."""

    advisor: Advisor
    trust: float | None
    mu: float
    agent: AbstractAgent

    def kept_steps(self, contexts: Contexts) -> int:
        """How much of the past it begins on: the regression on all it can learn from, others on what they remember."""
        if self.advisor == "ridge":
            return min(KEPT_DAYS, contexts.n_days) * contexts.steps_per_day
        return Shape.of(contexts).history_steps


def train_all(sites: Sequence[Site], progress: Progress) -> list[list[Trained]]:
    """By site, all that are to be validated, trained and ready to run as a stream; sites of one shape have the same ones.

    The regression is trained for all sites in one program, what is trained by gradients for one after the other.
    """
    found: list[list[Trained]] = [[] for _ in sites]
    for advisor in sites[0].recipe.advisors(sites[0].contexts.steps_per_day):
        if advisor == "ridge":
            by_site = _by_regression(sites, progress)
        else:
            by_site = [_by_gradient(advisor, site.contexts, site.problem, site.recipe, progress) for site in sites]
        for candidates, more in zip(found, by_site, strict=True):
            candidates += more
    return found


def _by_regression(sites: Sequence[Site], progress: Progress) -> list[list[Trained]]:
    """The regression calibrated with several trusts or played as it is; with a promise, corrected and trained through it."""
    period, recipe = sites[0].contexts.steps_per_day, sites[0].recipe
    if recipe.promise is None:
        ridge = OnlineRidge(period)
        agents = [(trust, ridge if trust is None else MLAROBD(ridge, trust)) for trust in RIDGE_TRUSTS]
        return [[Trained("ridge", trust, 0.0, agent) for trust, agent in agents] for _ in sites]
    renewal = recipe.promise.steps(period)
    for site in sites:
        refuse_infeasible(site)
    progress("training the guarded regression", 0, 1)
    steps = recipe.training_steps("ridge")
    trained = train_through_sites(
        [[competitive_ridge(site.terms, period)] for site in sites],
        [site.problem for site in sites],
        [site.contexts for site in sites],
        period=renewal,
        steps=steps,
        learning_rate=TRAINING["ridge"][1],
        checks=min(4, steps),
    )
    progress("training the guarded regression", 1, 1)
    return [[Trained("ridge", None, 0.0, renewed(guard, renewal)) for guard, _ in guards] for guards in trained]


def refuse_infeasible(site: Site) -> None:
    """Refuse a promise that nobody can keep, before anything is trained."""
    if site.recipe.promise is not None:
        period = site.contexts.steps_per_day
        guard = competitive_ridge(site.terms, period)
        _refuse_unless_fitting(renewed(guard, site.terms.steps(period)), site.problem, site.contexts)


def _refuse_unless_fitting(agent: AbstractAgent, problem: Problem, contexts: Contexts) -> None:
    """Before anything is trained."""
    agent.check(problem, Start(jnp.zeros(contexts.dim), jnp.zeros((0, contexts.dim)), contexts.steps_per_day))


def _by_gradient(
    advisor: Advisor, contexts: Contexts, problem: Problem, recipe: Recipe, progress: Progress
) -> list[Trained]:
    """One agent per point of the grid, trained through the calibrator, and through the guard if it promises each day.

    A promise for longer hardly ever cuts anything off, and is put around what was trained without it.
    """
    shape, period = Shape.of(contexts), contexts.steps_per_day
    keys = [jax.random.key(recipe.seed)] * len(GRID)
    untrained = untrained_advisor(advisor, contexts, shape, jax.random.fold_in(keys[0], 1))
    terms, daily = recipe.promise, recipe.promise is not None and recipe.promise.per == "day"
    agents: list[AbstractAgent] = [MLAROBD(untrained, trust) for trust, _ in GRID]
    _refuse_unless_fitting(promising(agents[0], terms, period), problem, contexts)
    if daily:
        agents = [promising(agent, terms, period) for agent in agents]
    seasonal = advisor == "seasonal"
    windows = windows_of(
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
        Trained(advisor, trust, mu, _streamed(advisor, result.agent, None if daily else terms, period))
        for (trust, mu), result in zip(GRID, fitted, strict=True)
    ]


def _streamed(advisor: Advisor, agent: AbstractAgent, terms: Terms | None, period: int) -> AbstractAgent:
    """The agent as it will be used: a network's memory, trained on days, is a day's; what is still to be promised is."""
    return promising(Periodic(agent, period, "history") if advisor == "lstm" else agent, terms, period)


def promising(agent: AbstractAgent, terms: Terms | None, period: int) -> AbstractAgent:
    """The agent behind a promise, if there is one."""
    return agent if terms is None else renewed(terms.guard(agent, period), terms.steps(period))


def untrained_advisor(advisor: Advisor, contexts: Contexts, shape: Shape, key) -> AbstractAgent:
    """What is trained by gradients, with weights as they begin."""
    dim = contexts.dim
    if advisor == "seasonal":
        return SeasonalLinear(dim, dim, period=contexts.steps_per_day, days=shape.profile_days)
    scaling = Scaling.of(jnp.asarray(contexts.training))
    network = MLP if advisor == "mlp" else LSTM
    return network(dim, dim, key=key, contexts=scaling, actions=scaling)


def windows_of(contexts: Contexts, steps: int, history_steps: int) -> Instance:
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


def in_units(agent: AbstractAgent, factor: float) -> AbstractAgent:
    """The agent for contexts `factor` times as large: networks and guards rescale, everything else is homogeneous."""

    def has_units(node):
        return isinstance(node, Scaling | AbstractGuard)

    def rescaled(node):
        if isinstance(node, Scaling):
            return Scaling(node.offset * factor, node.scale * factor)
        if isinstance(node, AbstractGuard):
            return eqx.tree_at(lambda guard: guard.agent, node.in_units(factor), in_units(node.agent, factor))
        return node

    return jax.tree.map(rescaled, agent, is_leaf=has_units)
