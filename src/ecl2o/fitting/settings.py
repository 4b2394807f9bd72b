"""What a fit is asked to do: its settings, the promise, and the callback that reports progress."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from ecl2o.agents import AbstractAgent, Competitive, CompetitiveBand, Guard, Guarded, Promise, Promises, Reference
from ecl2o.agents.advisors import FromContext, HoldStill
from ecl2o.agents.guards.references.base import name_reference
from ecl2o.exceptions import DataError

Progress = Callable[[str, int, int], None]  # progress(stage, done, total)
Per = Literal["day", "week", "month", "run"]
AdvisorName = Literal["ridge", "fourier", "rhc", "r-obd", "mlp", "lstm"]
Alpha = float | Mapping[str, float]  # one for all columns, or one per column name
Interval = tuple[float, float]  # (low, high)

# Days after which a promise starts over; a month is 30 days, a run has no end.
DAYS: dict[str, int | None] = {"day": 1, "week": 7, "month": 30, "run": None}
# Adam steps and learning rate by advisor (docs/choices.md). Of the regression only the correction inside a guard is trained;
# the planner and the expert are not trained, the Fourier regression not by gradients.
TRAINING: dict[AdvisorName, tuple[int, float]] = {
    "ridge": (100, 5e-2),
    "fourier": (0, 0.0),
    "rhc": (0, 0.0),
    "r-obd": (0, 0.0),
    "mlp": (2000, 2e-2),
    "lstm": (1500, 3e-3),
}
AUTOMATIC: tuple[AdvisorName, ...] = ("ridge", "fourier", "rhc", "r-obd")  # tried by advisor="auto"
NETWORKS: tuple[AdvisorName, ...] = ("mlp", "lstm")  # trained for equal weights, and actions that take effect at once
LEAST_ALPHA, MOST_ALPHA = 1e-12, 1e12  # beyond, one of the two costs is lost in rounding


def ignore_progress(stage: str, done: int, total: int) -> None:
    """Report nothing: the default of every `progress` argument."""


@dataclasses.dataclass(frozen=True)
class Band:
    """A band that contexts are promised to lie in: numbers of the context at the start of a period.

    Args:
        low: the places in a context of its low ends 1, 2, ... steps ahead.
        high: those of its high ends; the same places for a forecast.
        half_width: by how much it is wider at both ends.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    half_width: float = 0.0

    @classmethod
    def of(
        cls,
        leads: Sequence[int | None],
        first: int,
        names: Sequence[str],
        ends: Sequence[Sequence[str]],
        half_width: float,
        T: int,
    ) -> "Band":
        """Find the places of columns that are named for each step of a period of T steps after the first.

        Args:
            leads: the steps ahead of each covariate.
            first: the place of the first covariate in a context.
            names: the names of the covariates.
            ends: the names of the columns of the low and of the high ends.
            half_width: as in `Band`.
            T: the steps of a period.

        Raises:
            DataError: There is no column for a step.
        """
        places = []
        for columns in ends:
            found = {leads[names.index(name)]: first + names.index(name) for name in columns}
            missing = [step for step in range(1, T) if step not in found]
            if missing:
                raise DataError(
                    f"a band needs a column for each of the {T - 1} steps after the first of a period; {columns[0]}.. has none "
                    f"for {len(missing)} of them, the first {missing[0]} steps ahead."
                )
            places.append(tuple(found[step] for step in range(1, T)))
        return cls(places[0], places[1], half_width)


@dataclasses.dataclass(frozen=True)
class PromiseSpec:
    """A promise to be made: cost <= ratio * optimum + allowance, in each period; or relative to a baseline.

    Args:
        ratio: bound on the cost, in units of the optimum or of the baseline's cost.
        per: period that the bound applies to: each "day", "week" or "month" of 30 days, the whole "run", or every window of up to
            so many hours, "48h". Longer periods cost less on average, but do not bound the single days in them.
        allowance: cost allowed on top in each period.
        contexts: (low, high) if all contexts are known to lie there; the promise then allows more.
        baseline: place in a context of the baseline's action, or "still" for holding the action in force; None: the promise is
            relative to the optimum.
        baseline_scale: factor of the baseline's actions, which are not scaled with the contexts.
        also: further promises to be made beside this one.
        band: the band that contexts stay in, as far as the promise holds; for one promise relative to the optimum, for periods.

    >>> PromiseSpec(2.0, "week").steps(24)
    168
    """

    ratio: float
    per: Per | str = "run"
    allowance: float = 0.0
    contexts: tuple[float, float] | None = None
    baseline: int | Literal["still"] | None = None
    baseline_scale: float = 1.0
    also: "tuple[PromiseSpec, ...]" = ()
    band: Band | None = None

    def __post_init__(self):
        if self.band is not None and not (self._is_alone and self.contexts is None and DAYS.get(self.per) is not None):
            raise ValueError(
                "a band is for one promise relative to the optimum, for each day, week or month, without a range of contexts."
            )
        if self.per not in DAYS and self.window_hours is None:
            raise ValueError(f"per must be one of {', '.join(DAYS)}, or hours such as 48h, got {self.per!r}.")
        if not math.isfinite(self.ratio):
            raise ValueError(f"the promised ratio must be finite, got {self.ratio}.")

    def rescale(self, factor: float) -> "PromiseSpec":
        """Return the promise for contexts `factor` times as large; costs grow with the square."""
        contexts = None if self.contexts is None else (self.contexts[0] * factor, self.contexts[1] * factor)
        scaled = {"allowance": self.allowance * factor**2, "baseline_scale": self.baseline_scale * factor}
        band = None if self.band is None else dataclasses.replace(self.band, half_width=self.band.half_width * factor)
        also = tuple(each.rescale(factor) for each in self.also)
        return dataclasses.replace(self, contexts=contexts, also=also, band=band, **scaled)

    @property
    def window_hours(self) -> int | None:
        """The hours of the longest window; None if the promise is for periods."""
        found = re.fullmatch(r"([1-9]\d{0,3})h", self.per)
        return None if found is None else int(found[1])

    @property
    def is_plain(self) -> bool:
        """Whether it is one promise relative to the optimum, for periods: the correction is trained through its guard."""
        return self._is_alone and self.band is None

    @property
    def _is_alone(self) -> bool:
        return self.baseline is None and not self.also and self.window_hours is None

    def steps(self, steps_per_day: int) -> int | None:
        """Return the period, or the longest window, in steps; None for the whole run."""
        if self.window_hours is not None:
            return max(round(self.window_hours * steps_per_day / 24), 1)
        days = DAYS[self.per]
        return None if days is None else days * steps_per_day

    def renewal(self, steps_per_day: int) -> int | None:
        """Return after how many steps its guard is restarted; None if that keeps its own accounts of periods."""
        return None if self.also or self.window_hours is not None else self.steps(steps_per_day)

    def guard(self, agent: AbstractAgent, steps_per_day: int) -> Guard:
        """Return the agent inside the guard of a plain promise, for one period."""
        return Competitive(agent, self.ratio, self.steps(steps_per_day), self.allowance, self.contexts)

    def any_guard(self, agent: AbstractAgent, steps_per_day: int) -> Guard:
        """Return the agent inside a guard that keeps the promises, for one `renewal`."""
        if self.is_plain:
            return self.guard(agent, steps_per_day)
        if (band := self.band) is not None:
            T, columns = self.steps(steps_per_day), (band.low, band.high)
            assert T is not None
            return CompetitiveBand(agent, band.half_width, self.ratio, T, self.allowance, columns)
        specs = (self, *self.also)
        baseline = next((each.reference for each in specs if each.baseline is not None), None)
        if baseline is not None and not self.also:
            return Guarded(agent, baseline, self.ratio - 1, allowance=self.allowance)
        return Promises(agent, [each.describe(steps_per_day) for each in specs], baseline, self.contexts)

    @property
    def reference(self) -> AbstractAgent | None:
        """The agent that the promise is relative to; None for the optimum."""
        if self.baseline is None:
            return None
        return HoldStill() if self.baseline == "still" else FromContext(self.baseline, self.baseline_scale)

    def describe(self, steps_per_day: int) -> Promise:
        """Return the promise, without its conditions."""
        name = None if self.reference is None else name_reference(self.reference)
        reference = (Reference.OPTIMUM, None) if name is None else (Reference.EXPERT, name)
        rolling = self.window_hours is not None
        return Promise(self.ratio, *reference, self.allowance, self.steps(steps_per_day), rolling=rolling)


def with_promise(agent: AbstractAgent, promise: PromiseSpec | None, steps_per_day: int) -> AbstractAgent:
    """Return the agent inside the guard of a promise, if there is one."""
    if promise is None:
        return agent
    return promise.any_guard(agent, steps_per_day).every(promise.renewal(steps_per_day))


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """How a policy is fitted.

    Args:
        alpha: cost of moving, one for all columns or one per column name.
        advisor: the advisor to fit; "auto" tries regression, planner and expert, and validation selects.
        promise: the promise to make, in the units of the series; None: no promise.
        steps: Adam steps; None: the advisor's own number.
        seed: seed of the random numbers.
        bounds: (low, high) of actions, in the units of the series. A promise then assumes contexts within them.
        weights: (low, high) of the weights of misses, for a series with a weight column; a promise assumes them. None: the range
            of the training days, a quarter wider at both ends.
        misses: (short, long), the weights of actions below and above the context. (1, 1): 1/2 |x - y|^2 on both sides.
        plausible: (low, high) of readings, for all columns that are followed or by column name; others are replaced. None: from
            the training days.
        shift: steps from a context to the step in which its action is in force: a delay, or less than 0 where contexts are known
            so many steps ahead.
        ramp: greatest change of an action in one step, in the units of the series; None: no limit. A promise then needs a range
            of contexts, its own or the bounds.
        spacing: distance between neighbouring actions, 1 for whole numbers; None: actions are any numbers.
    """

    alpha: Alpha = 10.0
    advisor: AdvisorName | Literal["auto"] = "auto"
    promise: PromiseSpec | None = None
    steps: int | None = None
    seed: int = 0
    bounds: tuple[float, float] | None = None
    weights: tuple[float, float] | None = None
    plausible: Interval | Mapping[str, Interval] | None = None
    misses: tuple[float, float] = (1.0, 1.0)
    shift: int = 0
    ramp: float | None = None
    spacing: float | None = None

    def __post_init__(self):
        if self.advisor not in ("auto", *TRAINING):
            raise ValueError(f"advisor must be one of auto, {', '.join(TRAINING)}, got {self.advisor!r}.")
        for alpha in self.alpha.values() if isinstance(self.alpha, Mapping) else [self.alpha]:
            check_alpha(alpha)
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be a whole number from 0 to {2**32 - 1}, got {self.seed}.")
        if self.weights is not None and not 0 < self.weights[0] <= self.weights[1] < float("inf"):
            raise ValueError(f"weights must be (low, high), positive and finite, got {self.weights}.")

        for name, weight in zip(("short", "long"), self.misses, strict=True):
            if not 0 < weight < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {weight}.")
        for name in ("ramp", "spacing"):
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {limit}.")
        if self.bounds is not None and self.spacing is not None:  # the actions within the bounds
            low, high = self.bounds[0] / self.spacing, self.bounds[1] / self.spacing
            ends = math.ceil(low - 1e-9 * abs(low)) * self.spacing, math.floor(high + 1e-9 * abs(high)) * self.spacing
            object.__setattr__(self, "bounds", ends)
        promise = self.promise_in_bounds
        if self.ramp is not None and promise is not None and promise.contexts is None:
            raise ValueError(
                "a promise with a ramp needs a range that all contexts lie in: give `contexts` (LOW:HIGH) or `bounds`."
            )

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """The ramp and the spacing of actions."""
        return self.ramp, self.spacing

    @property
    def promise_in_bounds(self) -> PromiseSpec | None:
        """The promise, which assumes contexts within the bounds of actions unless it states its own range."""
        if self.promise is None or self.promise.contexts is not None or self.bounds is None:
            return self.promise
        return dataclasses.replace(self.promise, contexts=self.bounds)

    def rescale(self, factor: float) -> "FitSettings":
        """Return the settings for a series whose numbers are `factor` times as large."""
        promise, bounds, (ramp, spacing) = self.promise, self.bounds, self.limits
        scaled = dataclasses.replace(
            self,
            promise=None if promise is None else promise.rescale(factor),
            bounds=None if bounds is None else (bounds[0] * factor, bounds[1] * factor),
            ramp=None if ramp is None else ramp * factor,
            spacing=None if spacing is None else spacing * factor,
        )
        return dataclasses.replace(scaled, promise=scaled.promise_in_bounds)

    def advisors(self, weighted: bool = False) -> tuple[AdvisorName, ...]:
        """Return the advisors to try.

        Raises:
            DataError: If the requested advisor cannot use weights.
        """
        if self.advisor != "auto":
            usable = ", ".join(name for name in TRAINING if name not in NETWORKS)
            if weighted and self.advisor in NETWORKS:
                raise DataError(f"advisor {self.advisor} does not support a weight column; use one of {usable}.")
            if self.shift and self.advisor in NETWORKS:
                raise DataError(
                    f"advisor {self.advisor} supports neither a delay nor contexts known ahead; use one of {usable}."
                )
            return (self.advisor,)
        return AUTOMATIC

    def left_out(self, weighted: bool = False) -> dict[AdvisorName, str]:
        """Return the advisors that are not tried, with the reason for each.

        >>> FitSettings().left_out()["lstm"]
        'slow to train, only on request'
        """
        tried = self.advisors(weighted)
        reason = "slow to train, only on request" if self.advisor == "auto" else "not requested"
        reasons = dict.fromkeys(TRAINING, reason)
        if weighted and self.advisor == "auto":
            reasons |= dict.fromkeys(NETWORKS, "does not support weights")
        if self.shift and self.advisor == "auto":
            reasons |= dict.fromkeys(NETWORKS, "does not support a delay or contexts known ahead")
        return {name: reason for name, reason in reasons.items() if name not in tried}

    def training_steps(self, advisor: AdvisorName) -> int:
        """Return the Adam steps; 0 for planner, expert, and the regression without a promise."""
        most = TRAINING[advisor][0]
        if not most or (advisor == "ridge" and self.promise is None):
            return 0
        return most if self.steps is None else self.steps


def check_alpha(alpha: float) -> None:
    """Raise unless alpha is in the range in which neither cost is lost in rounding.

    >>> check_alpha(1e300)
    Traceback (most recent call last):
    ...
    ValueError: alpha must lie between 1e-12 and 1e+12, got 1e+300.
    """
    if not LEAST_ALPHA <= alpha <= MOST_ALPHA:
        raise ValueError(f"alpha must lie between {LEAST_ALPHA:g} and {MOST_ALPHA:g}, got {alpha:g}.")


def column_alphas(alpha: Alpha, columns: Sequence[str]) -> Float[np.ndarray, " d"]:
    """Return alpha for each column, in their order.

    >>> column_alphas({"demand": 10.0, "price": 3.0}, ["price", "demand"]).tolist()
    [3.0, 10.0]

    Raises:
        DataError: If the names are not exactly those of the columns.
    """
    if not isinstance(alpha, Mapping):
        alpha = dict.fromkeys(columns, alpha)
    if set(alpha) != set(columns):
        raise DataError(
            f"alpha is given for {', '.join(sorted(alpha))}, but the columns are {', '.join(columns)}. Give one for each, or one "
            "number for all."
        )
    for each in alpha.values():
        check_alpha(each)
    return np.array([float(alpha[column]) for column in columns])
