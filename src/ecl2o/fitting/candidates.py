"""The candidates that `fit` selects from: each advisor with its settings, trained where it can be, ready to run as a stream."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import numpy as np

from ecl2o.agents import MLAROBD, RHC, ROBD, AbstractAgent, Guard, Guarded, Periodic
from ecl2o.agents.advisors import LSTM, MLP, Mixture, OnlineRidge, Scaling
from ecl2o.agents.advisors.asymmetric_ridge import AsymmetricRidge
from ecl2o.agents.advisors.constant_weight import ConstantWeight
from ecl2o.agents.advisors.guard_aware_correction import CorrectionWeights, GuardAwareCorrection
from ecl2o.data import Contexts, Split
from ecl2o.evaluation import DailyScore
from ecl2o.evaluation.comparison import Contender, make_contender
from ecl2o.exceptions import DataError
from ecl2o.fitting import fourier
from ecl2o.fitting.guarded_training import corrected_guard, record_sites, train_sites
from ecl2o.fitting.settings import NETWORKS, TRAINING, AdvisorName, Progress, with_promise
from ecl2o.fitting.tasks import FitTask, check_promise_feasible, check_weights_inside, mean_training_weight
from ecl2o.forecasters import AbstractForecaster, Given, RollingProfile
from ecl2o.learning import CalibratedLoss, fit_many
from ecl2o.problem import (
    CurvedTracking,
    Problem,
    SquaredTracking,
)
from ecl2o.problem.arrays import to_device
from ecl2o.solvers.exponential_weights import ExponentialWeights
from ecl2o.theory import decay_root

FORECAST_DAYS = 7  # memory of the rolling profile that RHC plans with
SLACK = 0.5  # of the guarded planner, which pays at most 1.5 times R-OBD's cost
HISTORY_DAYS = 365  # with which the regression starts
WEEK, FEWEST_WEEKS = 7, 4  # days in a week; training weeks needed for a weekly profile
MOST_WINDOWS, BATCH = 2000, 50  # of gradient training
GRID = ((0.3, 0.0), (1.0, 0.0), (10.0, 0.0), (1.0, 0.3), (0.5, 0.6))  # (trust, mu) that validation selects from
GIVEN = "rhc, given forecasts"
REGRESSIONS, FOURIER = "ridge, mixture", "fourier, mixture"
MIXTURES = (REGRESSIONS, FOURIER)  # selected unless another candidate is clearly better (docs/choices.md)
SHARE = 0.75  # of the correction that training found: the season differs later (docs/choices.md)
_NEGLIGIBLE = 1e-8


def count_history_steps(contexts: Contexts) -> int:
    """Return how much of the past an agent starts with that does not learn from it: one to two weeks of the training days."""
    days = contexts.split.training_days
    return min(max(days // 4, FORECAST_DAYS), 2 * FORECAST_DAYS, days) * contexts.steps_per_day


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An agent to be validated.

    Args:
        name: its name in tables, without the promise that it is behind.
        advisor: the advisor it was made from.
        agent: the agent as it will run.
        trained: whether any of its weights were trained.
        trust: of the calibrator; None: there is none.
        mu: of the training loss.
        forecaster: of a planner.
        untrained: the agent before its training by gradients, which it must beat; None: it had none.
        retrain: returns the agent as trained on the training and the validation days, given its score on the latter; None: it
            stays as it is.
    """

    name: str
    advisor: AdvisorName
    agent: AbstractAgent
    trained: bool = False
    trust: float | None = None
    mu: float = 0.0
    forecaster: AbstractForecaster | None = None
    untrained: AbstractAgent | None = None
    retrain: Callable[[DailyScore], AbstractAgent] | None = None

    def history_steps(self, contexts: Contexts) -> int:
        """Return how much of the past it starts with: all it can learn from, or what it remembers."""
        if self.advisor in ("ridge", "fourier"):
            return min(HISTORY_DAYS, contexts.n_days) * contexts.steps_per_day
        return count_history_steps(contexts)


def make_planner(problem: Problem, steps_per_day: int) -> RHC:
    """Return model-predictive control over a day, or less if later steps change nothing in eight digits."""
    lookahead = steps_per_day - 1
    is_quadratic = problem.switching.is_quadratic
    decay = float(decay_root(float(problem.m), float(problem.beta))) if is_quadratic else 1.0
    if decay < 1:
        lookahead = min(lookahead, int(np.ceil(np.log(_NEGLIGIBLE) / np.log(max(decay, _NEGLIGIBLE)))))
    return RHC(lookahead, truncate=False)


def reference_candidates(problem: Problem, steps_per_day: int) -> list[Candidate]:
    """Return what every policy is compared with: the expert, a planner, and the planner guarded by the expert."""
    plan, forecaster = make_planner(problem, steps_per_day), RollingProfile(FORECAST_DAYS, period=steps_per_day)
    found = [Candidate("r-obd", "r-obd", ROBD()), Candidate("rhc", "rhc", plan, forecaster=forecaster)]
    ramped = problem.actions.ramp is not None
    if not problem.timing.shift and not ramped:
        found.append(Candidate("guarded-rhc", "rhc", Guarded(plan, slack=SLACK), forecaster=forecaster))
    return found


def reference_contenders(
    problem: Problem, steps_per_day: int, history_days: int = FORECAST_DAYS
) -> dict[str, Contender]:
    """Return the `reference_candidates` by name, as they run on test days."""
    return {
        candidate.name: make_contender(candidate.agent, problem, candidate.forecaster, history_days * steps_per_day)
        for candidate in reference_candidates(problem, steps_per_day)
    }


def untrained_candidates(advisor: AdvisorName, task: FitTask) -> list[Candidate]:
    """Return the candidates of an advisor that need no training; none if it is trained by gradients."""
    if advisor == "ridge":
        return _weighted_regression(task) if task.contexts.weighted else _regression(task)
    promise, period = task.settings.promise, task.contexts.steps_per_day
    found = [candidate for candidate in reference_candidates(task.problem, period) if candidate.advisor == advisor]
    if advisor == "rhc" and any(task.contexts.leads):
        given = Given(task.contexts.leads, RollingProfile(FORECAST_DAYS, period=period))
        found.append(Candidate(GIVEN, advisor, make_planner(task.problem, period), forecaster=given))
    if promise is None:
        return found
    return [  # the promise makes another guard superfluous
        dataclasses.replace(each, agent=with_promise(each.agent, promise, period))
        for each in found
        if each.agent.promise(task.problem) is None
    ]


def _regression(task: FitTask) -> list[Candidate]:
    """Return the regression, and with enough weeks the mixture of regressions, behind the promise if there is one.

    Members of the mixture are not candidates of their own: selecting one on the validation days costs more than mixing them
    (docs/choices.md).
    """
    period, leads = task.contexts.steps_per_day, task.contexts.leads
    shift = task.settings.shift
    ridge = functools.partial(OnlineRidge, period, ahead=max(shift, 0))
    has_weeks = task.contexts.split.training_days >= FEWEST_WEEKS * WEEK
    kinds: dict[str, AbstractAgent] = {"ridge": ridge()}
    if task.problem.hitting.is_two_sided:
        ridge = functools.partial(ridge, covariates=leads)
        kinds = {"ridge": AsymmetricRidge(ridge())}
        if has_weeks:
            kinds["ridge, weekly"] = AsymmetricRidge(ridge(week=WEEK))
    else:
        if has_weeks:
            kinds[REGRESSIONS] = Mixture.of_regressions(period, WEEK, leads, max(shift, 0))
        elif leads:
            kinds["ridge, covariates"] = ridge(covariates=leads)
    return [
        Candidate(
            name,
            "ridge",
            _promised(agent, task) if name in MIXTURES else with_promise(agent, task.settings.promise, period),
        )
        for name, agent in kinds.items()
    ]


def _is_correctable(task: FitTask) -> bool:
    """Whether its mixture is corrected: for a promise per period, equal weights of misses, and no delay."""
    promise = task.settings.promise
    is_renewed = promise is not None and promise.is_plain and promise.steps(task.contexts.steps_per_day) is not None
    return is_renewed and not task.settings.shift and isinstance(task.problem.hitting, SquaredTracking)


def _promised(advisor: AbstractAgent, task: FitTask) -> AbstractAgent:
    """Return a mixture behind the promise, with a correction of 0 if one is trained: both are one program then."""
    period = task.contexts.steps_per_day
    advisor = GuardAwareCorrection(advisor, period) if _is_correctable(task) else advisor
    return with_promise(advisor, task.settings.promise, period)


def _weighted_regression(task: FitTask) -> list[Candidate]:
    """Return the regression for weighted misses: the present weight is exact, later ones are the training mean."""
    contexts, promise, hitting = task.contexts, task.settings.promise, task.problem.hitting
    assert isinstance(hitting, CurvedTracking)
    assert hitting.maximum is not None
    ends, period = (float(hitting.minimum), float(hitting.maximum)), contexts.steps_per_day
    if promise is not None:
        check_weights_inside(contexts, ends)
    kinds = {"ridge": OnlineRidge(period)}
    if contexts.covariates:
        kinds["ridge, covariates"] = OnlineRidge(period, covariates=contexts.leads)
    usual = mean_training_weight(contexts, ends)
    return [
        Candidate(name, "ridge", with_promise(ConstantWeight(regression, usual), promise, period))
        for name, regression in kinds.items()
    ]


def train_candidates(tasks: Sequence[FitTask], progress: Progress) -> list[list[Candidate]]:
    """Return all candidates of each task, trained where they can be.

    Tasks of one shape have the same candidates in the same order. The regression is trained for all tasks in one program,
    networks for one task after the other.

    Raises:
        ValueError: If a promise cannot be kept by any algorithm.
    """
    for task in tasks:
        check_promise_feasible(task)
    found: list[list[Candidate]] = [[] for _ in tasks]
    for advisor in tasks[0].settings.advisors(tasks[0].contexts.weighted):
        if advisor == "fourier":
            trained = [_solve_fourier(task, progress) for task in tasks]
        elif advisor in NETWORKS:
            trained = [_train_networks(advisor, task, progress) for task in tasks]
        else:
            trained = [[] for _ in tasks]
        for mine, task, more in zip(found, tasks, trained, strict=True):
            mine += [*untrained_candidates(advisor, task), *more]
    if any(each.name == FOURIER for each in found[0]):  # which contains the other mixture
        found = [[each for each in mine if each.name != REGRESSIONS] for mine in found]
    if _is_correctable(tasks[0]) and any(each.name in MIXTURES for each in found[0]):
        found = _add_corrections(tasks, found, progress)
    return found


def _add_corrections(
    tasks: Sequence[FitTask], found: Sequence[list[Candidate]], progress: Progress
) -> list[list[Candidate]]:
    """Add each task's mixture with a correction that is trained through the guard.

    The correction is trained on forecasts of the regressions, which learn as they run. The Fourier regression predicts the
    days that it was solved on too well.
    """
    like, promise = tasks[0].contexts, tasks[0].settings.promise
    assert promise is not None
    period, split = like.steps_per_day, like.split
    known = split.training_days + split.validation_days
    online = Mixture.of_regressions(period, WEEK, like.leads)
    problems = [task.problem for task in tasks]
    guards = [[corrected_guard(task.settings.promise, online, period)] for task in tasks if task.settings.promise]
    progress("training the correction", 0, 2)
    forecasts = record_sites(online, problems, [task.contexts.values[: known * period] for task in tasks])
    trained: list[list[CorrectionWeights]] = []
    for number, days in enumerate((split, Split(known, 0)), 1):
        together = train_sites(
            guards,
            problems,
            [dataclasses.replace(task.contexts, split=days) for task in tasks],
            period=promise.steps(period),
            steps=tasks[0].settings.training_steps("ridge"),
            learning_rate=TRAINING["ridge"][1],
            checks=0,
            forecasts=forecasts,
        )
        trained.append([_shrink(guard) for ((guard, _),) in together])
        progress("training the correction", number, 2)
    return [
        [*mine, _correct(next(each for each in mine if each.name in MIXTURES), *weights)]
        for mine, weights in zip(found, zip(*trained, strict=True), strict=True)
    ]


def _shrink(guard: Guard) -> CorrectionWeights:
    assert isinstance(guard.agent, GuardAwareCorrection)
    return CorrectionWeights(SHARE * guard.agent.weights.weight)


def _correct(base: Candidate, early: CorrectionWeights, late: CorrectionWeights) -> Candidate:
    """Return a candidate with corrections: the early one is validated, the late one runs."""

    def put(weights: CorrectionWeights, agent: AbstractAgent) -> AbstractAgent:
        return eqx.tree_at(lambda guard: guard.agent.weights, agent, weights)

    def retrain(score: DailyScore) -> AbstractAgent:
        return put(late, base.agent if base.retrain is None else base.retrain(score))

    name = f"{base.name}, corrected"
    return dataclasses.replace(base, name=name, agent=put(early, base.agent), trained=True, retrain=retrain)


def find_obstacle(task: FitTask) -> str | None:
    """Return why `fit` cannot solve the Fourier regression of a series; None if it can."""
    if not isinstance(task.problem.hitting, SquaredTracking) or task.contexts.action_dim != 1:
        return "it follows one column, with misses that weigh the same"
    if task.settings.shift:
        return "it supports neither a delay nor contexts known ahead"
    return fourier.find_obstacle(task.contexts, _discount(task))


def _discount(task: FitTask) -> float:
    return float(decay_root(float(task.problem.m), float(task.problem.beta)))


def _solve_fourier(task: FitTask, progress: Progress) -> list[Candidate]:
    """Return the mixture of the regressions and the Fourier regression; on request also the latter alone.

    Raises:
        DataError: If it was requested and cannot be used.
    """
    contexts, settings, period = task.contexts, task.settings, task.contexts.steps_per_day
    if (obstacle := find_obstacle(task)) is not None:
        if settings.advisor == "auto":
            return []
        raise DataError(f"the advisor fourier cannot be used: {obstacle}.")
    solve = functools.partial(fourier.solve_regression, contexts, _discount(task), seed=settings.seed)
    training_days, stage = contexts.split.training_days, "solving the Fourier regression"
    progress(stage, 0, 1)
    solved = solve(training_days)
    progress(stage, 1, 1)

    zero = to_device(np.zeros(1))  # equal weights are given, too: both mixtures are one program then
    equal = ExponentialWeights(
        losses=to_device(np.zeros((1, 2))), gap=zero, largest=zero, regret_bound=zero, faded=zero
    )

    def mix(member: AbstractAgent, weights: ExponentialWeights = equal) -> AbstractAgent:
        regressions = Mixture.of_regressions(period, WEEK, contexts.leads)
        mixture = Mixture([regressions, member], period, combines=True, scores_history=False, weights=weights)
        return _promised(mixture, task)

    @functools.cache
    def solve_again() -> AbstractAgent:
        return solve(training_days + contexts.split.validation_days)

    def mix_again(score: DailyScore) -> AbstractAgent:
        return mix(solve_again(), _last_weights(score))

    found = [Candidate(FOURIER, "fourier", mix(solved), trained=True, retrain=mix_again)]
    if settings.advisor == "fourier":
        alone = with_promise(solved, settings.promise, period)

        def alone_again(_: DailyScore) -> AbstractAgent:
            return with_promise(solve_again(), settings.promise, period)

        found.append(Candidate("fourier", "fourier", alone, trained=True, retrain=alone_again))
    return found


def _last_weights(score: DailyScore) -> ExponentialWeights:
    """Return the weights of a mixture, or one inside a guard, after the last step of a run: training saw none of its days."""
    info = score.runs.info
    while info is not None and "weights" not in info.details:
        info = info.inner
    assert info is not None
    return jax.tree.map(lambda leaf: to_device(np.asarray(leaf)[-1, -1]), info.details["weights"])


def _train_networks(advisor: AdvisorName, task: FitTask, progress: Progress) -> list[Candidate]:
    """Return one network per point of the grid, trained through the calibrator, and through the guard of a daily promise.

    A longer promise rarely binds, so its guard is put around what was trained without it. If the training diverges, all networks
    stay untrained, and so none can be selected.
    """
    contexts, settings = task.contexts, task.settings
    period, promise = contexts.steps_per_day, settings.promise
    keys = [jax.random.key(settings.seed)] * len(GRID)
    untrained = make_network(advisor, contexts, jax.random.fold_in(keys[0], 1))
    daily = promise is not None and promise.per == "day" and promise.is_plain
    agents: list[AbstractAgent] = [MLAROBD(untrained, trust) for trust, _ in GRID]
    if daily:
        agents = [with_promise(agent, promise, period) for agent in agents]
    windows = contexts.training_windows(most=MOST_WINDOWS)
    try:
        fitted = fit_many(
            agents,
            task.problem,
            windows,
            losses=[CalibratedLoss(mu=mu) for _, mu in GRID],
            keys=keys,
            steps=settings.training_steps(advisor),
            batch=min(BATCH, windows.x0.shape[0]),
            learning_rates=TRAINING[advisor][1],
            progress=lambda done, total, loss: progress(f"training ({advisor})", done, total),
        )
        trained = [result.agent for result in fitted]
    except FloatingPointError:
        trained = agents

    def in_use(agent: AbstractAgent) -> AbstractAgent:
        # A recurrent network was trained on days, so its memory is restarted every day.
        agent = Periodic(agent, period) if advisor == "lstm" else agent
        return agent if daily else with_promise(agent, promise, period)

    return [
        Candidate(
            f"{advisor}, trust {trust:g}, mu {mu:g}", advisor, in_use(after), True, trust, mu, untrained=in_use(before)
        )
        for (trust, mu), before, after in zip(GRID, agents, trained, strict=True)
    ]


def make_network(advisor: AdvisorName, contexts: Contexts, key) -> AbstractAgent:
    """Return a network with its initial weights."""
    scaling = Scaling.of(to_device(contexts.followed[: len(contexts.training)]))
    network, dim = MLP if advisor == "mlp" else LSTM, contexts.action_dim
    return network(dim, dim, key=key, contexts=scaling, actions=scaling)
