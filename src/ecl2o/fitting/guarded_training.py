"""Training through a guard on series: the windows, the validation days, and the forecasts recorded on them.

The promise starts again in the windows as it will in use. With `checks`, a correction is kept if the validation days show,
beyond chance, that it is better than none: one learned in winter may not carry over to spring. `fit` trains without checks, and
validates the whole candidate.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ecl2o.agents import AbstractAgent, Guard
from ecl2o.agents.advisors import Mixture, OnlineRidge
from ecl2o.agents.advisors.discounted_forecast import DiscountedForecast
from ecl2o.agents.advisors.guard_aware_correction import GuardAwareCorrection
from ecl2o.data import Contexts
from ecl2o.fitting.settings import PromiseSpec
from ecl2o.fitting.tasks import check_same_shape
from ecl2o.learning import FitLog
from ecl2o.learning.guarded_loss import GuardedLoss, RecordedInstances, fit_guards, record_forecasts
from ecl2o.learning.training_loop import SolvedInstances
from ecl2o.offline import oracle_batch, oracle_days
from ecl2o.problem import Instance, Problem
from ecl2o.problem.arrays import LEAST_STEPS, AnyArray, pad_rows
from ecl2o.running.rollout import stack_trees, vmap_unless_single
from ecl2o.running.stored_jit import stored_jit

# Of all windows together. A year of hourly rows has 6,000 days of overlapping windows; evenly chosen ones suffice.
_MAX_DAYS, _MAX_STEPS = 510, 200_000


def corrected_guard(terms: PromiseSpec, advisor: OnlineRidge | Mixture, steps_per_day: int = 24) -> Guard:
    """Return `Competitive` around a corrected advisor, for one period of the promise."""
    return terms.guard(GuardAwareCorrection(advisor, steps_per_day), steps_per_day)


def competitive_ridge(terms: PromiseSpec, steps_per_day: int = 24) -> Guard:
    """Return `Competitive` around the corrected `OnlineRidge`, for one period of the promise."""
    return corrected_guard(terms, OnlineRidge(steps_per_day), steps_per_day)


def train_guards(
    guards: Sequence[Guard],
    problem: Problem,
    contexts: Contexts,
    *,
    forecasts: DiscountedForecast | None = None,
    **options: Any,
) -> list[tuple[Guard, FitLog]]:
    """Train the corrections inside several guards on one site; the options are those of `train_sites`."""
    stacked = None if forecasts is None else jax.tree.map(lambda leaf: leaf[None], forecasts)
    return train_sites([guards], [problem], [contexts], forecasts=stacked, **options)[0]


def train_sites(
    guards: Sequence[Sequence[Guard]],
    problems: Sequence[Problem],
    sites: Sequence[Contexts],
    *,
    period: int | None,
    steps: int = 200,
    learning_rate: float = 0.05,
    window_days: int | None = None,
    skipped_days: int | None = None,
    checks: int = 4,
    forecasts: DiscountedForecast | None = None,
) -> list[list[tuple[Guard, FitLog]]]:
    """Train the corrections inside guards on the training days, and decide on the validation days which to keep.

    Sites of one shape and their guards, which differ in numbers only, are trained in one program (docs/choices.md).

    Args:
        guards: By site, each around `GuardAwareCorrection` of an `OnlineRidge` or of a `Mixture`.
        problems: By site.
        sites: The series with their splits.
        period: Steps after which the promise starts again. None: never, and nothing is trained, because no window
            shows what a long run leaves of its promise.
        steps: Adam steps.
        learning_rate: Of the first step; it decays to zero.
        window_days: Length of the windows, of which one starts on each day. Default: two periods of up to a week or
            one longer period, from 5 to 30 days.
        skipped_days: First days to leave out, because the regression has seen little. Default: 14, at most a third.
        checks: How many times the validation days judge the weights. 0: never, and the last weights are kept.
        forecasts: Of the training and validation days, by site. Default: recorded here.

    Returns:
        By site, each guard with its weights, and its log.

    Raises:
        TypeError: A guard is around something else.
        ValueError: `steps` or `skipped_days` is out of range, or the sites differ in shape.
    """
    corrected = guards[0][0].agent
    if not (isinstance(corrected, GuardAwareCorrection) and isinstance(corrected.advisor, OnlineRidge | Mixture)):
        raise TypeError(
            "guards must be around GuardAwareCorrection of an OnlineRidge or a Mixture, as corrected_guard makes them; got "
            f"{type(corrected).__name__}."
        )
    if not 0 <= checks <= steps:
        raise ValueError(f"checks must be from 0 to steps, got {checks} and {steps}.")
    check_same_shape(sites)
    split, per_day = sites[0].split, sites[0].steps_per_day
    skipped = max(1, min(14, split.training_days // 3)) if skipped_days is None else skipped_days
    window = _window_days(period, per_day, split.training_days - skipped) if window_days is None else window_days
    if forecasts is None:
        known = (split.training_days + split.validation_days) * per_day
        forecasts = record_sites(corrected.advisor, problems, [contexts.values[:known] for contexts in sites])
    by_site = [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], forecasts) for i in range(len(sites))]
    recorded = list(zip(problems, sites, by_site, strict=True))
    return fit_guards(
        guards,
        problems,
        [_training_windows(*each, period, window, skipped) for each in recorded],
        [_validation_days(*each, period) for each in recorded] if checks else [],
        steps_per_day=per_day,
        steps=0 if period is None else steps,
        learning_rate=learning_rate,
        checks=checks,
    )


def record_sites(
    advisor: OnlineRidge | Mixture, problems: Sequence[Problem], values: Sequence[Float[AnyArray, "n q"]]
) -> DiscountedForecast:
    """Return the advisor's forecasts on several series of one length, by site."""
    length, padded = len(values[0]), np.stack([pad_rows(each, LEAST_STEPS) for each in values])
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:, :length], _record(advisor, stack_trees(problems), padded))


@stored_jit
def _record(advisor: AbstractAgent, problems: Problem, values: Float[AnyArray, "sites n q"]) -> DiscountedForecast:
    return vmap_unless_single(lambda problem, contexts: record_forecasts(advisor, problem, contexts))(problems, values)


def _window_days(period: int | None, steps_per_day: int, most: int) -> int:
    """Return the length of the windows: long enough to show what one period leaves for the next."""
    days = 30 if period is None else period // steps_per_day
    return max(1, min(max(5, 2 * days if days <= 7 else days), 30, most))


def _training_windows(
    problem: Problem, contexts: Contexts, forecasts: DiscountedForecast, period: int | None, days: int, skipped: int
) -> RecordedInstances:
    """Return windows of whole days inside the training days, starting on each day but the skipped ones, or on some."""
    per_day, last = contexts.steps_per_day, contexts.split.training_days - days
    if not 1 <= skipped <= last:
        raise ValueError(
            f"skipped_days must be from 1 to {last} to leave a window of {days} of the {contexts.split.training_days} "
            f"training days, got {skipped}."
        )
    starts = np.arange(skipped, last + 1) * per_day
    count = min(len(starts), max(1, min(_MAX_DAYS // days, _MAX_STEPS // (days * per_day))))  # the same for all sites
    starts = contexts.measured_starts(starts, days * per_day)
    starts = starts[np.linspace(0, len(starts) - 1, count).astype(int)]
    windows = contexts.training_windows(days * per_day, starts=starts)
    recorded = jax.tree.map(lambda leaf: leaf[starts[:, None] + np.arange(days * per_day)], forecasts)
    return RecordedInstances(
        GuardedLoss(forecasts=recorded, period=period), SolvedInstances(windows, oracle_batch(problem, windows))
    )


def _validation_days(
    problem: Problem, contexts: Contexts, forecasts: DiscountedForecast, period: int | None
) -> RecordedInstances:
    """Return the validation days as one instance, with the oracles of its days."""
    x0, days, _ = contexts.validation_days()
    n, T, q = days.shape
    start = contexts.split.training_days * T
    recorded = jax.tree.map(lambda leaf: leaf[None, start : start + n * T], forecasts)
    whole = Instance(x0[None], days.reshape(1, n * T, q))
    scored = contexts.measured_days[contexts.split.training_days :][:n]
    solved = SolvedInstances(whole, oracle_days(problem, x0, days)[0])
    return RecordedInstances(GuardedLoss(forecasts=recorded, period=period), solved, scored)
