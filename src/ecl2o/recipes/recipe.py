"""How a policy for one's own series is made: what is asked for, before anything is trained."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from ecl2o.data import DataError
from ecl2o.recipes.terms import Terms

Advisor = Literal["ridge", "seasonal", "mlp", "lstm"]
Alpha = float | Mapping[str, float]  # what moving costs: in every column, or in each by its name

# Adam steps and learning rate by advisor (docs/choices.md); of the regression only the correction inside a guard is trained.
TRAINING: dict[Advisor, tuple[int, float]] = {
    "ridge": (200, 5e-2),
    "seasonal": (1200, 1e-2),
    "mlp": (2000, 2e-2),
    "lstm": (1500, 3e-3),
}
AUTOMATIC: tuple[Advisor, ...] = ("ridge", "seasonal")  # what is tried where nobody says which
MOST_SEASONAL_STEPS = 96  # a day; beyond, training the structured advisor takes many times as long as the regression


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a policy is made.

    Args:
        alpha: what moving costs, in every column or in each by its name.
        advisor: what learns; auto: the regression or the structured one, whichever validates better.
        promise: what is promised of the bill, in the units of the series; None: nothing.
        steps: Adam steps; None: as many as the advisor needs.
        seed: of whatever is drawn.
        bounds: (low, high) of actions, in the units of the series; a promise then counts on contexts within them.
    """

    alpha: Alpha = 10.0
    advisor: Advisor | Literal["auto"] = "auto"
    promise: Terms | None = None
    steps: int | None = None
    seed: int = 0
    bounds: tuple[float, float] | None = None

    def __post_init__(self):
        if self.advisor not in ("auto", *TRAINING):
            raise ValueError(f"advisor must be one of auto, {', '.join(TRAINING)}, got {self.advisor!r}.")
        for alpha in self.alpha.values() if isinstance(self.alpha, Mapping) else [self.alpha]:
            if not (np.isfinite(alpha) and alpha > 0):
                raise ValueError(f"alpha must be positive and finite, got {alpha}.")

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

    @property
    def untrained(self) -> tuple[Advisor, ...]:
        """Those that are not trained by gradients: the regression, but for the correction that a promise asks for."""
        return ("ridge",) if self.promise is None else ()

    def advisors(self, steps_per_day: int) -> tuple[Advisor, ...]:
        """Which are tried; the structured advisor only where days are short enough, unless it is asked for."""
        if self.advisor != "auto":
            return (self.advisor,)
        return AUTOMATIC if steps_per_day <= MOST_SEASONAL_STEPS else AUTOMATIC[:1]

    def training_steps(self, advisor: Advisor) -> int:
        """Adam steps."""
        if advisor in self.untrained:
            return 0
        return TRAINING[advisor][0] if self.steps is None else self.steps


def column_alphas(alpha: Alpha, columns: Sequence[str]) -> Float[np.ndarray, " d"]:
    """What moving costs in each of these columns. Names must be those of the columns, all of them.

    >>> column_alphas({"demand": 10.0, "price": 3.0}, ["price", "demand"]).tolist()
    [3.0, 10.0]
    """
    if not isinstance(alpha, Mapping):
        return np.full(len(columns), float(alpha))
    if set(alpha) != set(columns):
        raise DataError(
            f"alpha is given for {', '.join(sorted(alpha))}, but the columns are {', '.join(columns)}: give one for each of "
            "them, or one number for all."
        )
    return np.array([float(alpha[column]) for column in columns])
