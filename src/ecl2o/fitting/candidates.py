"""The candidates that `fit` selects from, before training: each advisor with its settings, ready to run as a stream."""

import dataclasses

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from ecl2o.agents import MLAROBD, RHC, ROBD, AbstractAgent, AbstractGuard, Guarded
from ecl2o.agents.advisors import OnlineRidge
from ecl2o.agents.advisors.constant_weight import ConstantWeight
from ecl2o.data import Contexts
from ecl2o.evaluation.comparison import Contender, make_contender
from ecl2o.fitting.guarded_training import competitive_ridge
from ecl2o.fitting.settings import AdvisorName, with_promise, with_renewal
from ecl2o.fitting.tasks import FitTask, check_weights_inside, mean_training_weight
from ecl2o.forecasters import AbstractForecaster, RollingProfile
from ecl2o.problem import CurvedTracking, Mahalanobis, Problem
from ecl2o.theory import decay_root

PROFILE_DAYS = 14  # memory of the structured advisor
FORECAST_DAYS = 7  # memory of the rolling profile that RHC plans with
WINDOW_DAYS = 4  # the structured advisor trains across midnight; networks remember one day and do not
SLACK = 0.5  # of the guarded planner, which pays at most 1.5 times R-OBD's cost
RIDGE_TRUSTS = (1.0, 10.0, None)  # of the calibrated regression; None: its advice is played as it is
HISTORY_DAYS = 365  # with which the regression starts
WEEK, FEWEST_WEEKS = 7, 4  # days in a week; training weeks needed for a weekly profile
_NEGLIGIBLE = 1e-8


@dataclasses.dataclass(frozen=True)
class MemoryLengths:
    """Lengths of memory and training windows that the training days allow."""

    profile_days: int
    history_steps: int
    window_steps: int

    @classmethod
    def of(cls, contexts: Contexts) -> "MemoryLengths":
        days, per_day = contexts.split.training_days, contexts.steps_per_day
        profile = min(max(days // 4, 1), PROFILE_DAYS)
        remembered = min(max(profile, FORECAST_DAYS), days)
        window = min(max((days - profile) // 2, 1), WINDOW_DAYS)
        return cls(profile, remembered * per_day, window * per_day)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An agent to be validated.

    Args:
        name: its name in tables.
        advisor: the advisor it was made from.
        agent: the agent as it will run.
        trained: whether any of its weights were trained.
        trust: of the calibrator; None: there is none.
        mu: of the training loss.
        forecaster: of a planner.
    """

    name: str
    advisor: AdvisorName
    agent: AbstractAgent
    trained: bool = False
    trust: float | None = None
    mu: float = 0.0
    forecaster: AbstractForecaster | None = None

    def history_steps(self, contexts: Contexts) -> int:
        """Return how much of the past it starts with: all it can learn from, or what it remembers."""
        if self.advisor == "ridge":
            return min(HISTORY_DAYS, contexts.n_days) * contexts.steps_per_day
        return MemoryLengths.of(contexts).history_steps


def make_planner(problem: Problem, steps_per_day: int) -> RHC:
    """Return model-predictive control over a day, or less if later steps change nothing in eight digits."""
    if not isinstance(problem.switching, Mahalanobis):
        return RHC(steps_per_day - 1, truncate=False)
    return RHC(min(steps_per_day - 1, _reach(float(_decay(problem)), steps_per_day)), truncate=False)


def _reach(decay: float, most: int) -> int:
    """Return the steps after which a negligible part is left, at most `most`.

    >>> _reach(0.2, 24), _reach(0.0, 24), _reach(1.0, 24)
    (12, 1, 24)
    """
    if decay <= _NEGLIGIBLE:
        return 1
    return most if decay >= 1 else min(most, int(np.ceil(np.log(_NEGLIGIBLE) / np.log(decay))))


@eqx.filter_jit
def _decay(problem: Problem) -> Float[Array, ""]:
    """Return the share of a step's influence that is left after the next one."""
    return decay_root(problem.m, problem.beta)


def reference_candidates(problem: Problem, steps_per_day: int) -> list[Candidate]:
    """Return what every policy is compared with: the expert, a planner, and the planner guarded by the expert."""
    plan, forecaster = make_planner(problem, steps_per_day), RollingProfile(FORECAST_DAYS, period=steps_per_day)
    return [
        Candidate("r-obd", "r-obd", ROBD()),
        Candidate("rhc", "rhc", plan, forecaster=forecaster),
        Candidate("guarded-rhc", "rhc", Guarded(plan, slack=SLACK), forecaster=forecaster),
    ]


def reference_contenders(problem: Problem, steps_per_day: int) -> dict[str, Contender]:
    """Return the `reference_candidates` by name, as they run on test days."""
    return {
        candidate.name: make_contender(candidate.agent, problem, candidate.forecaster)
        for candidate in reference_candidates(problem, steps_per_day)
    }


def untrained_candidates(advisor: AdvisorName, task: FitTask) -> list[Candidate]:
    """Return the candidates of an advisor that need no training; none if it is trained by gradients."""
    if advisor == "ridge":
        return _weighted_regression(task) if task.contexts.weighted else _regression(task)
    promise, period = task.settings.promise, task.contexts.steps_per_day
    found = [candidate for candidate in reference_candidates(task.problem, period) if candidate.advisor == advisor]
    if promise is None:
        return found
    return [  # the promise makes another guard superfluous
        dataclasses.replace(each, name=f"promised-{each.name}", agent=with_promise(each.agent, promise, period))
        for each in found
        if not isinstance(each.agent, AbstractGuard)
    ]


def _regression(task: FitTask) -> list[Candidate]:
    """Return the regression with several trusts, or promised; and with a weekly profile if there are enough weeks."""
    promise, period = task.settings.promise, task.contexts.steps_per_day
    name = "ridge" if promise is None else "promised-ridge"
    if promise is None:
        found = _calibrate(OnlineRidge(period))
    else:
        found = [Candidate(name, "ridge", with_renewal(competitive_ridge(promise, period), promise.steps(period)))]
    if task.contexts.split.training_days >= FEWEST_WEEKS * WEEK:
        weekly = OnlineRidge(period, week=WEEK)
        found.append(Candidate(f"{name}, weekly", "ridge", with_promise(weekly, promise, period)))
    return found


def _calibrate(regression: AbstractAgent) -> list[Candidate]:
    return [
        Candidate("ridge", "ridge", regression)
        if trust is None
        else Candidate(f"ridge, trust {trust:g}", "ridge", MLAROBD(regression, trust), trust=trust)
        for trust in RIDGE_TRUSTS
    ]


def _weighted_regression(task: FitTask) -> list[Candidate]:
    """Return the regression for weighted misses: the present weight is exact, later ones are the training mean."""
    contexts, promise, hitting = task.contexts, task.settings.promise, task.problem.hitting
    assert isinstance(hitting, CurvedTracking)
    assert hitting.maximum is not None
    ends, period = (float(hitting.minimum), float(hitting.maximum)), contexts.steps_per_day
    regression = ConstantWeight(OnlineRidge(period), mean_training_weight(contexts, ends))
    if promise is None:
        return _calibrate(regression)
    check_weights_inside(contexts, ends)
    return [Candidate("promised-ridge", "ridge", with_promise(regression, promise, period))]
