"""How a policy for one's own series is made: what is asked for, before anything is trained."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from ecl2o.agents import AbstractAgent, Competitive, Periodic
from ecl2o.agents.guards import AbstractGuard
from ecl2o.exceptions import DataError

Per = Literal["day", "week", "month", "run"]

# Days after which a promise begins anew; a month is 30 days, a run has no end.
DAYS: dict[Per, int | None] = {"day": 1, "week": 7, "month": 30, "run": None}


@dataclasses.dataclass(frozen=True)
class PromiseSpec:
    """cost <= ratio * optimum + allowance, in each period by itself.

    Args:
        ratio: how many times the optimum may be paid.
        per: what is billed together: each day, week or month of 30 days, or the whole run. The longer, the cheaper; a single
            day of a longer period is not bounded.
        allowance: what may be paid on top, in units of cost.
        contexts: (low, high), where all contexts are known to lie there.

    >>> PromiseSpec(2.0, "week").steps(24)
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

    def in_units(self, factor: float) -> "PromiseSpec":
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


AdvisorName = Literal["ridge", "seasonal", "rhc", "r-obd", "mlp", "lstm"]
Alpha = float | Mapping[str, float]  # what moving costs: in every column, or in each by its name

# Adam steps and learning rate by advisor (docs/choices.md); of the regression only the correction inside a guard is trained,
# and of planner and expert nothing.
TRAINING: dict[AdvisorName, tuple[int, float]] = {
    "ridge": (200, 5e-2),
    "seasonal": (1200, 1e-2),
    "rhc": (0, 0.0),
    "r-obd": (0, 0.0),
    "mlp": (2000, 2e-2),
    "lstm": (1500, 3e-3),
}
AUTOMATIC: tuple[AdvisorName, ...] = ("ridge", "seasonal", "rhc", "r-obd")  # what is tried where nobody says which
UNWEIGHTED: tuple[AdvisorName, ...] = ("seasonal", "mlp", "lstm")  # trained where every miss weighs the same
LEAST_ALPHA, MOST_ALPHA = 1e-12, 1e12  # beyond, rounding leaves nothing of what moving costs, or of what a miss does
MOST_SEASONAL_STEPS = 96  # a day; beyond, training the structured advisor takes many times as long as the regression


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """How a policy is made.

    Args:
        alpha: what moving costs, in every column or in each by its name.
        advisor: who advises; auto: regression, structured rule, planner or expert, whichever validates better.
        promise: what is promised of the bill, in the units of the series; None: nothing.
        steps: Adam steps; None: as many as the advisor needs.
        seed: of whatever is drawn.
        bounds: (low, high) of actions, in the units of the series; a promise then counts on contexts within them.
        weights: (low, high) of the weights of misses, where the series has a column of them; a promise counts on it. None: the
            range of the training days, a quarter wider at both ends.
    """

    alpha: Alpha = 10.0
    advisor: AdvisorName | Literal["auto"] = "auto"
    promise: PromiseSpec | None = None
    steps: int | None = None
    seed: int = 0
    bounds: tuple[float, float] | None = None
    weights: tuple[float, float] | None = None

    def __post_init__(self):
        if self.advisor not in ("auto", *TRAINING):
            raise ValueError(f"advisor must be one of auto, {', '.join(TRAINING)}, got {self.advisor!r}.")
        for alpha in self.alpha.values() if isinstance(self.alpha, Mapping) else [self.alpha]:
            check_alpha(alpha)
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be a whole number from 0 to {2**32 - 1}, got {self.seed}.")
        if self.weights is not None and not 0 < self.weights[0] <= self.weights[1] < float("inf"):
            raise ValueError(f"weights must be (low, high), positive and finite, got {self.weights}.")

    @property
    def terms(self) -> PromiseSpec | None:
        """The promise; with bounds on actions, contexts are taken to lie within them unless something else is known."""
        if self.promise is None or self.promise.contexts is not None or self.bounds is None:
            return self.promise
        return dataclasses.replace(self.promise, contexts=self.bounds)

    def in_units(self, factor: float) -> "FitSettings":
        """The same for a series whose numbers are `factor` times as large."""
        terms, bounds = self.terms, self.bounds
        return dataclasses.replace(
            self,
            promise=None if terms is None else terms.in_units(factor),
            bounds=None if bounds is None else (bounds[0] * factor, bounds[1] * factor),
        )

    def advisors(self, steps_per_day: int, weighted: bool = False) -> tuple[AdvisorName, ...]:
        """Which are tried; the structured advisor, unless it is asked for, only where days are short and nothing has weights."""
        if self.advisor != "auto":
            if weighted and self.advisor in UNWEIGHTED:
                fitting = ", ".join(name for name in TRAINING if name not in UNWEIGHTED)
                raise DataError(
                    f"the advisor {self.advisor} knows no weights; with a weight column there are {fitting}."
                )
            return (self.advisor,)
        short = steps_per_day <= MOST_SEASONAL_STEPS and not weighted
        return tuple(name for name in AUTOMATIC if name != "seasonal" or short)

    def left_out(self, steps_per_day: int, weighted: bool = False) -> dict[AdvisorName, str]:
        """Which are not tried, and why.

        >>> FitSettings().left_out(24)["lstm"]
        'takes long to train; ask for it'
        """
        tried = self.advisors(steps_per_day, weighted)
        reasons = dict.fromkeys(
            TRAINING, "takes long to train; ask for it" if self.advisor == "auto" else "not asked for"
        )
        if weighted and self.advisor == "auto":
            reasons |= dict.fromkeys(UNWEIGHTED, "knows no weights")
        return {name: reason for name, reason in reasons.items() if name not in tried}

    def training_steps(self, advisor: AdvisorName) -> int:
        """Adam steps; 0 where nothing is trained: planner, expert, and the regression without a promise."""
        most = TRAINING[advisor][0]
        if not most or (advisor == "ridge" and self.promise is None):
            return 0
        return most if self.steps is None else self.steps


def check_alpha(alpha: float) -> None:
    """Refuse what is no positive number, and what makes one of the two costs vanish beside the other.

    >>> check_alpha(1e300)
    Traceback (most recent call last):
    ...
    ValueError: alpha must lie between 1e-12 and 1e+12, beyond which one cost is lost in rounding beside the other, got 1e+300.
    """
    if not (np.isfinite(alpha) and alpha > 0):
        raise ValueError(f"alpha must be positive and finite, got {alpha}.")
    if not LEAST_ALPHA <= alpha <= MOST_ALPHA:
        raise ValueError(
            f"alpha must lie between {LEAST_ALPHA:g} and {MOST_ALPHA:g}, beyond which one cost is lost in rounding beside the "
            f"other, got {alpha:g}."
        )


def column_alphas(alpha: Alpha, columns: Sequence[str]) -> Float[np.ndarray, " d"]:
    """What moving costs in each of these columns. Names must be those of the columns, all of them.

    >>> column_alphas({"demand": 10.0, "price": 3.0}, ["price", "demand"]).tolist()
    [3.0, 10.0]
    """
    if not isinstance(alpha, Mapping):
        check_alpha(alpha)
        return np.full(len(columns), float(alpha))
    if set(alpha) != set(columns):
        raise DataError(
            f"alpha is given for {', '.join(sorted(alpha))}, but the columns are {', '.join(columns)}: give one for each of "
            "them, or one number for all."
        )
    for each in alpha.values():
        check_alpha(each)
    return np.array([float(alpha[column]) for column in columns])
