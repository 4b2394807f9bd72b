"""The agents that have a name, which tables and commands can ask for without training anything, and policy files beside them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import equinox as eqx

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
from ecl2o.evaluation import Bed
from ecl2o.evaluation.comparison import Entry, streamed
from ecl2o.forecasters import AbstractForecaster, Exact, Persistence, RollingProfile, SeasonalNaive
from ecl2o.problem import CurvedTracking, Problem
from ecl2o.recipes.tariff import under_tariff
from ecl2o.serving import load

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
_LEARN_ON = ("ridge", "competitive-ridge")  # what they have learned is not forgotten at midnight


def named_entry(name: str, bed: Bed, forecaster: AbstractForecaster | None = None) -> Entry:
    """An agent by name for the days of a bed; it asks a rolling profile unless another forecaster is given."""
    if name not in NAMED_AGENTS:
        raise ValueError(f"no agent is called {name!r}; there are {', '.join(NAMED_AGENTS)}.")
    steps = bed.days.shape[1]
    agent = NAMED_AGENTS[name](steps)
    if name in _LEARN_ON:
        return streamed(agent, bed.problem)
    return Entry(agent, RollingProfile(period=steps) if forecaster is None else forecaster)


def is_policy(name: str) -> bool:
    """Whether a name is meant to be that of a policy file."""
    return name.endswith(_POLICY) or Path(name).is_file()


def asked_entries(names: Sequence[str], bed: Bed, forecaster: str) -> dict[str, Entry]:
    """Agents and policy files by name for the days of a bed; planners ask the named forecaster, policies their own."""
    asked = NAMED_FORECASTERS[forecaster](bed.days.shape[1])
    entries = {}
    for name in names:
        if is_policy(name):
            entries[Path(name).name] = policy_entry(name, bed)
        else:
            entries[name] = named_entry(name, bed, asked)
    return entries


def policy_entry(path: str | Path, bed: Bed) -> Entry:
    """A policy file for the days of a bed, whose problem and length of day must be those that it was made for."""
    policy = load(path)
    made_for = policy.contract.steps_per_day
    if made_for is not None and made_for != bed.days.shape[1]:
        raise ValueError(f"{path} was made for days of {made_for} steps, but the days here have {bed.days.shape[1]}.")
    if not eqx.tree_equal(policy.problem, bed.problem, rtol=1e-6):
        raise ValueError(
            f"{path} was made for another problem than this one (other costs, bounds, weights or alpha); its own is: "
            f"{_in_words(policy.problem)}, and this one: {_in_words(bed.problem)}. Give alpha, bounds and weights as they were "
            "when it was fitted."
        )
    return streamed(policy.agent, policy.problem, policy.forecaster)


def _in_words(problem: Problem) -> str:
    hitting = problem.hitting
    weights = ""
    if isinstance(hitting, CurvedTracking) and hitting.maximum is not None:
        weights = f", weights from {float(hitting.minimum):g} to {float(hitting.maximum):g}"
    parts = [type(part).__name__ for part in (problem.hitting, problem.switching, problem.actions)]
    constants = f"m = {float(problem.m):g}, alpha = {float(problem.alpha):g}, beta = {float(problem.beta):g}"
    low, high = problem.actions.bounds(problem.Q.shape[0], float) if problem.is_bounded else (None, None)
    limits = "" if low is None else f", bounds from {low} to {high}"
    return f"{', '.join(parts)}, {constants}{weights}{limits}"
