"""Agents and forecasters by name, as `ecl2o compare` and `cite` take them, and policy files as contenders."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from ecl2o import agents
from ecl2o.agents import RHC, AbstractAgent, Competitive, Guard
from ecl2o.agents.advisors import Mixture, OnlineRidge
from ecl2o.evaluation import TestDays
from ecl2o.evaluation.comparison import Contender, make_contender
from ecl2o.exceptions import NotApplicableError
from ecl2o.fitting.pipeline import YOURS
from ecl2o.forecasters import AbstractForecaster, Exact, Given, Persistence, RollingProfile, SeasonalNaive
from ecl2o.policy import Policy, load
from ecl2o.policy.start_run import check_memory
from ecl2o.problem import (
    AsymmetricTracking,
    CurvedTracking,
    Mahalanobis,
    Problem,
    SquaredTracking,
)

LOWEST, HIGHEST = 0.5, 2.0  # prices of the tariff, in units of the usual price
PROMISE = 2.1  # under the tariff 1.96 is the least for 24 hours; for arbitrary prices in the range it is 2.43


def time_of_use(steps_per_day: int) -> Float[np.ndarray, " n"]:
    """Return the price of each step of a day under a time-of-use tariff: 0.5 from 22 to 6, 2 from 16 to 21, 1 otherwise.

    >>> time_of_use(4).tolist()
    [0.5, 1.0, 1.0, 2.0]
    """
    hour = np.arange(steps_per_day) * 24 / steps_per_day
    return np.where((hour >= 22) | (hour < 6), LOWEST, np.where((hour >= 16) & (hour < 21), HIGHEST, 1.0))


def under_tariff(agent: AbstractAgent, steps_per_day: int) -> Guard:
    """Return the agent with a daily promise that assumes the tariff."""
    return Competitive(agent, PROMISE, horizon=steps_per_day, weights=time_of_use(steps_per_day))


# Agents that need no training, made for a number of steps per day.
NAMED_AGENTS: dict[str, Callable[[int], AbstractAgent]] = {
    "greedy": lambda steps: agents.Greedy(),
    "hitting-minimizer": lambda steps: agents.HittingMinimizer(),
    "r-obd": lambda steps: agents.ROBD(),
    "obd": lambda steps: agents.OBD(),
    "g-obd": lambda steps: agents.GreedyOBD(),
    "ogd": lambda steps: agents.OGD(),
    "lai": lambda steps: agents.LAI(),
    "lcp": lambda steps: agents.LCP(heuristic=True),
    "rhc": lambda steps: RHC(steps - 1, truncate=False),
    "chc": lambda steps: agents.CHC(steps - 1, max(steps // 4, 1), truncate=False),
    "afhc": lambda steps: agents.AFHC(steps - 1, truncate=False),
    "rhgd": lambda steps: agents.RHGD(steps - 1, truncate=False),
    "mla-robd-rhc": lambda steps: agents.MLAROBD(RHC(steps - 1, truncate=False), trust=0.5),
    "switch-rhc": lambda steps: agents.Switch(RHC(steps - 1, truncate=False)),
    "abcs-rhc": lambda steps: agents.ABCS(RHC(steps - 1, truncate=False)),
    "guarded-rhc": lambda steps: agents.Guarded(RHC(steps - 1, truncate=False), slack=0.5),
    "competitive-rhc": lambda steps: Competitive(RHC(steps - 1, truncate=False), ratio=2.5, horizon=steps),
    "competitive-tariff": lambda steps: under_tariff(RHC(steps - 1, truncate=False), steps),
    "ridge": lambda steps: OnlineRidge(steps),
    "mixture": lambda steps: Mixture.of_regressions(steps),
    "competitive-ridge": lambda steps: Competitive(OnlineRidge(steps), 2.5, period=steps),
}
# Forecasters, made for a number of steps per day and the leads of covariates.
NAMED_FORECASTERS: dict[str, Callable[[int, Sequence[int | None]], AbstractForecaster]] = {
    "rolling-profile": lambda steps, leads: RollingProfile(period=steps),
    "seasonal-naive": lambda steps, leads: SeasonalNaive(period=steps),
    "persistence": lambda steps, leads: Persistence(),
    "exact": lambda steps, leads: Exact(),
    "given": lambda steps, leads: Given(tuple(leads), RollingProfile(period=steps)),
}
_POLICY = ".ecl2o"
# Costs of a series.
_OF_SERIES = {(kind, Mahalanobis) for kind in (SquaredTracking, CurvedTracking, AsymmetricTracking)}
_LEARN_ON = ("ridge", "mixture", "competitive-ridge")  # they keep what they learned over midnight


def named_contender(name: str, test_days: TestDays, forecaster: AbstractForecaster | None = None) -> Contender:
    """Return a named agent as a contender; planners use a rolling profile by default."""
    if name not in NAMED_AGENTS:
        raise ValueError(f"no agent is called {name!r}; there are {', '.join(NAMED_AGENTS)}.")
    steps = test_days.days.shape[1]
    agent = NAMED_AGENTS[name](steps)
    if name in _LEARN_ON:
        return make_contender(agent, test_days.problem)
    return Contender(agent, RollingProfile(period=steps) if forecaster is None else forecaster)


def is_policy(name: str) -> bool:
    """Return whether a name is that of a policy file."""
    return name.endswith(_POLICY) or Path(name).is_file()


def make_contenders(
    names: Sequence[str], test_days: TestDays, forecaster: str, leads: Sequence[int | None] = ()
) -> dict[str, Contender | NotApplicableError]:
    """Return agents and policy files by name; a policy for another kind of cost is replaced by the reason.

    Args:
        names: names of agents, and policy files.
        test_days: the days to compare on.
        forecaster: name of the planners' forecaster; policies bring their own.
        leads: of the covariates, for the forecaster "given" (`Contexts.leads`).
    """
    made = NAMED_FORECASTERS[forecaster](test_days.days.shape[1], leads)
    contenders: dict[str, Contender | NotApplicableError] = {}
    for name in names:
        if is_policy(name):
            try:
                contenders[Path(name).name] = policy_contender(name, test_days)
            except NotApplicableError as reason:
                contenders[Path(name).name] = reason
        else:
            contenders[name] = named_contender(name, test_days, made)
    return contenders


def row_name(policy: Policy, path: Path) -> str:
    """Return the name of a policy in a table: that of the row in its fit, or of its file if it was not made by `fit`."""
    fitted = policy.metadata.get("validation")
    return f"{fitted['name']}{YOURS}" if isinstance(fitted, dict) and "name" in fitted else path.name


def policy_contender(path: str | Path, test_days: TestDays) -> Contender:
    """Return a policy file as a contender.

    Raises:
        NotApplicableError: If the policy is for another kind of cost.
        ValueError: If its day has another number of steps, or its problem has other numbers.
    """
    policy = load(path)
    here = test_days.problem
    if not _same_kind(policy.problem, here):
        raise NotApplicableError(
            f"it was fitted for another kind of cost: {_describe(policy.problem)}; here: {_describe(here)}. Test it by its own "
            "cost with ecl2o evaluate."
        )
    steps, own_steps = test_days.days.shape[1], policy.contract.steps_per_day
    if own_steps is not None and own_steps != steps:
        raise ValueError(f"{path} was fitted for days of {own_steps} steps, but the days here have {steps}.")
    if not eqx.tree_equal(policy.problem, here, rtol=1e-6):
        raise ValueError(
            f"{path} was fitted for a problem with other numbers: {_describe(policy.problem)}; here: {_describe(here)}. Use the "
            "alpha, bounds and weights that it was fitted with."
        )
    check_memory(policy, str(path))  # traces its program: last
    return make_contender(policy.agent, policy.problem, policy.forecaster)


def _same_kind(problem: Problem, other: Problem) -> bool:
    """Return whether the costs are of one kind, or both those of a series."""
    if problem.timing != other.timing:
        return False
    one, another = ((type(each.hitting), type(each.switching)) for each in (problem, other))
    return one == another or {one, another} <= _OF_SERIES


def _describe(problem: Problem) -> str:
    hitting: Any = problem.hitting
    movement: Any = problem.switching
    parts = [type(part).__name__ for part in (hitting, movement, problem.actions)]
    parts += [str(problem.timing), f"m = {float(problem.m):g}"]
    if movement.is_quadratic:
        parts += [f"alpha = {float(movement.alpha):g}", f"beta = {float(movement.beta):g}"]
    if movement.is_distance:
        parts += [f"rate = {float(movement.rate):g}"]
    if hitting.is_quadratic and not hitting.constant_curvature and hitting.maximum is not None:
        parts += [f"weights from {float(hitting.minimum):g} to {float(hitting.maximum):g}"]
    if hitting.is_two_sided:
        parts += [f"short {float(hitting.short):g}, long {float(hitting.long):g}"]
    if problem.is_bounded:
        low, high = problem.actions.bounds(movement.Q.shape[0] if movement.is_quadratic else 1, float)
        parts += [f"bounds from {low} to {high}"]
    return ", ".join(parts)
