"""A time-of-use tariff: what energy costs by the hour, known in advance, and what can be promised under it.

The agents that have a name, which tables and commands can ask for without training anything, and policy files beside them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import equinox as eqx
import numpy as np
from jaxtyping import Float

from ecl2o.agents import (
    ABCS,
    AFHC,
    CHC,
    LAI,
    LCP,
    MLAROBD,
    OBD,
    OGD,
    RHC,
    RHGD,
    ROBD,
    AbstractAgent,
    Competitive,
    Greedy,
    GreedyOBD,
    Guarded,
    HittingMinimizer,
    Periodic,
    Switch,
)
from ecl2o.agents.advisors import OnlineRidge
from ecl2o.evaluation import TestDays
from ecl2o.evaluation.comparison import Contender, make_contender
from ecl2o.exceptions import NotApplicableError
from ecl2o.forecasters import AbstractForecaster, Exact, Persistence, RollingProfile, SeasonalNaive
from ecl2o.policy import load
from ecl2o.policy.start_run import check_memory
from ecl2o.problem import CurvedTracking, LinearSwitching, Mahalanobis, Problem, SquaredTracking

LOWEST, HIGHEST = 0.5, 2.0  # prices, in units of the usual one
PROMISE = 2.1  # for a day of 24 hours 1.96 is the least; for prices that may be anything between their ends it is 2.43


def time_of_use(steps_per_day: int) -> Float[np.ndarray, " n"]:
    """The price of each step of a day: 0.5 from 22 to 6, 2 from 16 to 21, 1 otherwise.

    >>> time_of_use(4).tolist()
    [0.5, 1.0, 1.0, 2.0]
    """
    hour = np.arange(steps_per_day) * 24 / steps_per_day
    return np.where((hour >= 22) | (hour < 6), LOWEST, np.where((hour >= 16) & (hour < 21), HIGHEST, 1.0))


def under_tariff(agent: AbstractAgent, steps_per_day: int) -> Competitive:
    """The agent behind a promise for each day that counts on this tariff."""
    return Competitive(agent, PROMISE, horizon=steps_per_day, weights=time_of_use(steps_per_day))


# Agents that need no training, by the names that tables and commands use: made for days of so many steps.
NAMED_AGENTS: dict[str, Callable[[int], AbstractAgent]] = {
    "greedy": lambda steps: Greedy(),
    "hitting-minimizer": lambda steps: HittingMinimizer(),
    "r-obd": lambda steps: ROBD(),
    "obd": lambda steps: OBD(),
    "g-obd": lambda steps: GreedyOBD(),
    "ogd": lambda steps: OGD(),
    "lai": lambda steps: LAI(),
    "lcp": lambda steps: LCP(heuristic=True),
    "rhc": lambda steps: RHC(steps - 1, truncate=False),
    "chc": lambda steps: CHC(steps - 1, max(steps // 4, 1), truncate=False),
    "afhc": lambda steps: AFHC(steps - 1, truncate=False),
    "rhgd": lambda steps: RHGD(steps - 1, truncate=False),
    "mla-robd-rhc": lambda steps: MLAROBD(RHC(steps - 1, truncate=False), trust=0.5),
    "switch-rhc": lambda steps: Switch(RHC(steps - 1, truncate=False)),
    "abcs-rhc": lambda steps: ABCS(RHC(steps - 1, truncate=False)),
    "guarded-rhc": lambda steps: Guarded(RHC(steps - 1, truncate=False), slack=0.5),
    "competitive-rhc": lambda steps: Competitive(RHC(steps - 1, truncate=False), ratio=2.5, horizon=steps),
    "competitive-tariff": lambda steps: under_tariff(RHC(steps - 1, truncate=False), steps),
    "ridge": lambda steps: OnlineRidge(steps),
    "competitive-ridge": lambda steps: Periodic(Competitive(OnlineRidge(steps), ratio=2.5, horizon=steps), steps),
}
# Forecasters by name, likewise.
NAMED_FORECASTERS: dict[str, Callable[[int], AbstractForecaster]] = {
    "rolling-profile": lambda steps: RollingProfile(period=steps),
    "seasonal-naive": lambda steps: SeasonalNaive(period=steps),
    "persistence": lambda steps: Persistence(),
    "exact": lambda steps: Exact(),
}
_POLICY = ".ecl2o"
_OF_SERIES = {(SquaredTracking, Mahalanobis), (CurvedTracking, Mahalanobis)}  # what the costs of a series are
_LEARN_ON = ("ridge", "competitive-ridge")  # what they have learned is not forgotten at midnight


def named_contender(name: str, bed: TestDays, forecaster: AbstractForecaster | None = None) -> Contender:
    """An agent by name for the days of a bed; it asks a rolling profile unless another forecaster is given."""
    if name not in NAMED_AGENTS:
        raise ValueError(f"no agent is called {name!r}; there are {', '.join(NAMED_AGENTS)}.")
    steps = bed.days.shape[1]
    agent = NAMED_AGENTS[name](steps)
    if name in _LEARN_ON:
        return make_contender(agent, bed.problem)
    return Contender(agent, RollingProfile(period=steps) if forecaster is None else forecaster)


def is_policy(name: str) -> bool:
    """Whether a name is meant to be that of a policy file."""
    return name.endswith(_POLICY) or Path(name).is_file()


def make_contenders(names: Sequence[str], bed: TestDays, forecaster: str) -> dict[str, Contender | NotApplicableError]:
    """Agents and policy files by name for the days of a bed; planners ask the named forecaster, policies their own.

    In the place of a policy whose bill is of another kind stands why it cannot be compared.
    """
    asked = NAMED_FORECASTERS[forecaster](bed.days.shape[1])
    entries: dict[str, Contender | NotApplicableError] = {}
    for name in names:
        if is_policy(name):
            try:
                entries[Path(name).name] = policy_contender(name, bed)
            except NotApplicableError as reason:
                entries[Path(name).name] = reason
        else:
            entries[name] = named_contender(name, bed, asked)
    return entries


def policy_contender(path: str | Path, bed: TestDays) -> Contender:
    """A policy file for the days of a bed, whose problem and length of day must be those that it was made for."""
    policy = load(path)
    check_memory(policy, str(path))
    if not _can_be_alike(policy.problem, bed.problem):
        raise NotApplicableError(
            f"it was made for costs of another kind; its own are: {_in_words(policy.problem)}, and here: "
            f"{_in_words(bed.problem)}. ecl2o evaluate tests it by its own."
        )
    made_for = policy.contract.steps_per_day
    if made_for is not None and made_for != bed.days.shape[1]:
        raise ValueError(f"{path} was made for days of {made_for} steps, but the days here have {bed.days.shape[1]}.")
    if not eqx.tree_equal(policy.problem, bed.problem, rtol=1e-6):
        raise ValueError(
            f"{path} was made for another problem than this one (other costs, bounds, weights or alpha); its own is: "
            f"{_in_words(policy.problem)}, and this one: {_in_words(bed.problem)}. Give alpha, bounds and weights as they were "
            "when it was fitted."
        )
    return make_contender(policy.agent, policy.problem, policy.forecaster)


def _can_be_alike(problem: Problem, other: Problem) -> bool:
    """Whether options could make one of these problems the other: their costs are of one kind, or both those of a series."""
    one, another = ((type(each.hitting), type(each.switching)) for each in (problem, other))
    return one == another or {one, another} <= _OF_SERIES


def _in_words(problem: Problem) -> str:
    hitting, movement = problem.hitting, problem.switching
    weights = ""
    if isinstance(hitting, CurvedTracking) and hitting.maximum is not None:
        weights = f", weights from {float(hitting.minimum):g} to {float(hitting.maximum):g}"
    parts = [type(part).__name__ for part in (problem.hitting, problem.switching, problem.actions)]
    constants = f"m = {float(problem.m):g}"
    if isinstance(movement, Mahalanobis):
        constants += f", alpha = {float(movement.alpha):g}, beta = {float(movement.beta):g}"
    if isinstance(movement, LinearSwitching):
        constants += f", rate = {float(movement.rate):g}"
    dim = movement.Q.shape[0] if isinstance(movement, Mahalanobis) else 1
    low, high = problem.actions.bounds(dim, float) if problem.is_bounded else (None, None)
    limits = "" if low is None else f", bounds from {low} to {high}"
    return f"{', '.join(parts)}, {constants}{weights}{limits}"
