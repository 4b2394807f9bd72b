"""How a policy for one's own series is made: what is asked for, before anything is trained."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from ecl2o.exceptions import DataError
from ecl2o.fitting.promise_spec import Terms

Advisor = Literal["ridge", "seasonal", "rhc", "r-obd", "mlp", "lstm"]
Alpha = float | Mapping[str, float]  # what moving costs: in every column, or in each by its name

# Adam steps and learning rate by advisor (docs/choices.md); of the regression only the correction inside a guard is trained,
# and of planner and expert nothing.
TRAINING: dict[Advisor, tuple[int, float]] = {
    "ridge": (200, 5e-2),
    "seasonal": (1200, 1e-2),
    "rhc": (0, 0.0),
    "r-obd": (0, 0.0),
    "mlp": (2000, 2e-2),
    "lstm": (1500, 3e-3),
}
AUTOMATIC: tuple[Advisor, ...] = ("ridge", "seasonal", "rhc", "r-obd")  # what is tried where nobody says which
UNWEIGHTED: tuple[Advisor, ...] = ("seasonal", "mlp", "lstm")  # trained where every miss weighs the same
LEAST_ALPHA, MOST_ALPHA = 1e-12, 1e12  # beyond, rounding leaves nothing of what moving costs, or of what a miss does
MOST_SEASONAL_STEPS = 96  # a day; beyond, training the structured advisor takes many times as long as the regression


@dataclasses.dataclass(frozen=True)
class Recipe:
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
    advisor: Advisor | Literal["auto"] = "auto"
    promise: Terms | None = None
    steps: int | None = None
    seed: int = 0
    bounds: tuple[float, float] | None = None
    weights: tuple[float, float] | None = None

    def __post_init__(self):
        if self.advisor not in ("auto", *TRAINING):
            raise ValueError(f"advisor must be one of auto, {', '.join(TRAINING)}, got {self.advisor!r}.")
        for alpha in self.alpha.values() if isinstance(self.alpha, Mapping) else [self.alpha]:
            refuse_bad_alpha(alpha)
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be a whole number from 0 to {2**32 - 1}, got {self.seed}.")
        if self.weights is not None and not 0 < self.weights[0] <= self.weights[1] < float("inf"):
            raise ValueError(f"weights must be (low, high), positive and finite, got {self.weights}.")

    @property
    def terms(self) -> Terms | None:
        """The promise; with bounds on actions, contexts are taken to lie within them unless something else is known."""
        if self.promise is None or self.promise.contexts is not None or self.bounds is None:
            return self.promise
        return dataclasses.replace(self.promise, contexts=self.bounds)

    def in_units(self, factor: float) -> "Recipe":
        """The same for a series whose numbers are `factor` times as large."""
        terms, bounds = self.terms, self.bounds
        return dataclasses.replace(
            self,
            promise=None if terms is None else terms.in_units(factor),
            bounds=None if bounds is None else (bounds[0] * factor, bounds[1] * factor),
        )

    def advisors(self, steps_per_day: int, weighted: bool = False) -> tuple[Advisor, ...]:
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

    def left_out(self, steps_per_day: int, weighted: bool = False) -> dict[Advisor, str]:
        """Which are not tried, and why.

        >>> Recipe().left_out(24)["lstm"]
        'takes long to train; ask for it'
        """
        tried = self.advisors(steps_per_day, weighted)
        reasons = dict.fromkeys(
            TRAINING, "takes long to train; ask for it" if self.advisor == "auto" else "not asked for"
        )
        if weighted and self.advisor == "auto":
            reasons |= dict.fromkeys(UNWEIGHTED, "knows no weights")
        return {name: reason for name, reason in reasons.items() if name not in tried}

    def training_steps(self, advisor: Advisor) -> int:
        """Adam steps; 0 where nothing is trained: planner, expert, and the regression without a promise."""
        most = TRAINING[advisor][0]
        if not most or (advisor == "ridge" and self.promise is None):
            return 0
        return most if self.steps is None else self.steps


def refuse_bad_alpha(alpha: float) -> None:
    """Refuse what is no positive number, and what makes one of the two costs vanish beside the other.

    >>> refuse_bad_alpha(1e300)
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
        refuse_bad_alpha(alpha)
        return np.full(len(columns), float(alpha))
    if set(alpha) != set(columns):
        raise DataError(
            f"alpha is given for {', '.join(sorted(alpha))}, but the columns are {', '.join(columns)}: give one for each of "
            "them, or one number for all."
        )
    for each in alpha.values():
        refuse_bad_alpha(each)
    return np.array([float(alpha[column]) for column in columns])
