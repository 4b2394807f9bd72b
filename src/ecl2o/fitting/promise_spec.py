"""The terms of a promise: how much, for what period, with what known of the contexts; and the guard that keeps them."""

import dataclasses
import math
from typing import Literal

from ecl2o.agents import AbstractAgent, Competitive, Periodic
from ecl2o.agents.guards import AbstractGuard

Per = Literal["day", "week", "month", "run"]

# Days after which a promise begins anew; a month is 30 days, a run has no end.
DAYS: dict[Per, int | None] = {"day": 1, "week": 7, "month": 30, "run": None}


@dataclasses.dataclass(frozen=True)
class Terms:
    """cost <= ratio * optimum + allowance, in each period by itself.

    Args:
        ratio: how many times the optimum may be paid.
        per: what is billed together: each day, week or month of 30 days, or the whole run. The longer, the cheaper; a single
            day of a longer period is not bounded.
        allowance: what may be paid on top, in units of cost.
        contexts: (low, high), where all contexts are known to lie there.

    >>> Terms(2.0, "week").steps(24)
    168
    """

    ratio: float
    per: Per = "run"
    allowance: float = 0.0
    contexts: tuple[float, float] | None = None

    def __post_init__(self):
        if self.per not in DAYS:
            raise ValueError(f"per must be one of {', '.join(DAYS)}, got {self.per!r}.")
        if not math.isfinite(self.ratio):
            raise ValueError(f"the ratio that is promised must be finite, got {self.ratio}.")

    def in_units(self, factor: float) -> "Terms":
        """The same for contexts `factor` times as large, whose costs are its square times as large."""
        low_high = None if self.contexts is None else (self.contexts[0] * factor, self.contexts[1] * factor)
        return dataclasses.replace(self, allowance=self.allowance * factor**2, contexts=low_high)

    def steps(self, steps_per_day: int) -> int | None:
        """The period in steps; None where it is the whole run."""
        days = DAYS[self.per]
        return None if days is None else days * steps_per_day

    def guard(self, agent: AbstractAgent, steps_per_day: int) -> Competitive:
        """The guard that keeps them for one period."""
        return Competitive(agent, self.ratio, self.steps(steps_per_day), self.allowance, self.contexts)


def renewed(guard: AbstractGuard, period: int | None) -> AbstractAgent:
    """A guard whose promise begins anew every `period` steps; None: never."""
    return guard if period is None else Periodic(guard, period)
