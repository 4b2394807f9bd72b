"""The agents that have a name: what tables and commands can ask for without training anything."""

from collections.abc import Callable

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
from ecl2o.forecasters import AbstractForecaster, RollingProfile
from ecl2o.recipes.tariff import under_tariff

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
