"""The days of a series to test on, and the history before them; the unit of cost is the optimum of all of them."""

import jax.numpy as jnp

from ecl2o.data import Contexts
from ecl2o.evaluation import TestDays
from ecl2o.exceptions import DataError
from ecl2o.fitting.pipeline import series_problem
from ecl2o.fitting.settings import Alpha
from ecl2o.fitting.weights import weight_range
from ecl2o.policy import Policy
from ecl2o.policy.start_run import choose_x0
from ecl2o.problem import AbstractQuadraticCost, Mahalanobis
from ecl2o.problem.arrays import to_device

HISTORY_DAYS = 14
MOST_HISTORY_DAYS = 365  # what agents that learn while they run may begin on
_FEWEST_HISTORY_DAYS = 7


def series_test_days(
    contexts: Contexts,
    alpha: Alpha,
    weights: tuple[float, float] | None = None,
    bounds: tuple[float, float] | None = None,
    days: int | None = None,
) -> TestDays:
    """The series as days, the first ones as history; weights, if it has any, are billed between these ends, or as they are.

    Of the days only the last so many, if that is said; what comes before them is history, up to a year.

    With bounds actions stay within them, and begin as near to the last context before as they allow.
    """
    if contexts.weighted and weights is None:
        weights = weight_range(contexts.values[:, -1])
    per_day = contexts.steps_per_day
    first = min(HISTORY_DAYS, contexts.n_days // 2)
    if days is not None:
        first = max(first, contexts.n_days - days)
    history = contexts.values[max(first - MOST_HISTORY_DAYS, 0) * per_day : first * per_day]
    problem = series_problem(contexts, alpha, bounds, weights)
    x0 = problem.actions.project(to_device(history[-1, : contexts.action_dim]))
    return TestDays.with_whole_span_optimum(problem, x0, _days(contexts)[first:], history)


def last_days(bed: TestDays, days: int | None) -> TestDays:
    """The same bed with its last days only; what comes before them is history."""
    if days is None or days >= bed.days.shape[0]:
        return bed
    before, kept = bed.days[:-days], bed.days[-days:]
    past = before.reshape(-1, before.shape[-1])
    hitting, dim = bed.problem.hitting, bed.x0.shape[0]
    quadratic = isinstance(hitting, AbstractQuadraticCost)
    x0 = bed.problem.actions.project(hitting.centre(past[-1], dim)) if quadratic else bed.x0
    if bed.history is not None:
        past = jnp.concatenate([bed.history, past])[-MOST_HISTORY_DAYS * bed.days.shape[1] :]
    make = TestDays.of if bed.whole_span_optimum is None else TestDays.with_whole_span_optimum
    return make(bed.problem, x0, kept, None if bed.history is None else past)


def policy_test_days(policy: Policy, contexts: Contexts, days: int | None) -> tuple[TestDays, int]:
    """The days to test a policy on with what came before them, and the number of the first."""
    per_day = contexts.steps_per_day
    remembered = policy.contract.history_steps
    wanted = _FEWEST_HISTORY_DAYS if remembered is None else -(-remembered // per_day)
    first = min(max(wanted, 1), contexts.n_days - 1)
    if days is not None:
        if days > contexts.n_days - 1:
            raise DataError(
                f"--days must be at most {contexts.n_days - 1}, got {days}: the file has {contexts.n_days} whole days, and a "
                "test needs one before it to start from."
            )
        first = contexts.n_days - days
    kept = 0 if policy.history is None else len(policy.history) // per_day
    longest = max(wanted, kept, _FEWEST_HISTORY_DAYS)
    history = contexts.values[max(first - longest, 0) * per_day : first * per_day]
    make = (
        TestDays.with_whole_span_optimum if isinstance(policy.problem.switching, Mahalanobis) else TestDays.of
    )  # else a long span takes too long
    return make(policy.problem, choose_x0(policy, history[-1]), _days(contexts)[first:], history), first


def count_seen_days(policy: Policy, contexts: Contexts, first: int) -> int:
    """How many of the days from the `first` on training or choice used, by the clock, if it is the policy's own file."""
    source, until, metadata = policy.contract.source, policy.contract.seen_until, contexts.metadata
    if source is None or until is None or metadata is None or source.sha256 != metadata.sha256:
        return 0
    per_day = contexts.steps_per_day
    begins = contexts.time[first * per_day : contexts.n_days * per_day : per_day]
    return sum(str(time) <= until for time in begins)


def _days(contexts: Contexts):
    """The whole days, (n, T, q)."""
    used = contexts.n_days * contexts.steps_per_day
    return contexts.values[:used].reshape(contexts.n_days, contexts.steps_per_day, contexts.dim)
