"""Any set of agents on the same days: one entry each, with what it cost, how bad its days were, and how fast it is."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from ecl2o.agents import AbstractAgent, Info, Periodic, Promise, Reference
from ecl2o.evaluation import metrics
from ecl2o.evaluation.daily import DailyScore, TestDays, score_runs
from ecl2o.evaluation.metrics import UnconvergedCounts
from ecl2o.exceptions import NotApplicableError
from ecl2o.forecasters import AbstractForecaster
from ecl2o.offline import oracle, oracle_days
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import AnyArray, strip_weak_types
from ecl2o.running import rollout_days, stream_days

_TIMINGS = 3
_LEVELS = tuple(f"p{level:g}" for level in metrics.TAIL_PERCENTILES)
_ROUNDING = 1e-9  # what a promise may be off by, relative


class Contender(eqx.Module):
    """An agent in a comparison, the forecaster it asks, and how it goes through the days.

    `rollout_days` begins anew every day on the rolling history, `stream_days` goes on, as a policy in production does. It begins
    on the last `history_steps` contexts before the days; None: on all that are known.
    """

    agent: AbstractAgent = eqx.field(converter=strip_weak_types)
    forecaster: AbstractForecaster | None = eqx.field(converter=strip_weak_types, default=None)
    run: Callable = eqx.field(static=True, default=rollout_days)
    history_steps: int | None = eqx.field(static=True, default=None)


def make_contender(
    agent: AbstractAgent,
    problem: Problem,
    forecaster: AbstractForecaster | None = None,
    history_steps: int | None = None,
) -> Contender:
    """An agent that goes on over midnight; but a guard that promises for one day only begins anew every day."""
    promise = agent.promise(problem)
    for_one_day = not isinstance(agent, Periodic) and promise is not None and promise.period is not None
    return Contender(agent, forecaster, rollout_days if for_one_day else stream_days, history_steps)


class ComparisonRow(eqx.Module):
    """An entry with its score, in the figures that tables show: one row each.

    Args:
        name: that tables and JSON use.
        average_cost: the mean daily cost, in the bed's unit: the optimum of all days, or the daily oracle.
        competitive_ratio: of the worst day, against its optimum from the same x_0.
        tail_ratio: percentiles of the daily ratio, by name ("p99").
        worst_day: its number, from 0.
        microseconds_per_step: the time of the compiled run over its steps, best of three after warm-up.
        forecaster: the class that was asked. Default: none was.
        promise: what the agent promises. Default: nothing.
        live_ratio: the largest that the agent itself reported at any step. Default: it does not know the optimum.
        left: the smallest remaining budget of a promise, as a share of what may be spent. Default: there is no promise.
        lost_at: the first step (from 0) at which a promise no longer held, because a context lay outside what it assumes.
            Default: it held throughout.
        mean_bill: of a day, in units of cost.
        dearest_bill: of a day, in units of cost.
        allowed: what a promise allows to be paid in the dearest of its periods, in units of cost. Default: none is known.
        unconverged: steps of the agent or of its oracle that did not converge; if there are any, these figures are no result.
        not_applicable: why the agent does not apply to the problem; its figures are NaN then. Default: it applies.
    """

    name: str
    average_cost: float
    competitive_ratio: float
    tail_ratio: dict[str, float]
    worst_day: int
    microseconds_per_step: float
    forecaster: str | None = None
    promise: Promise | None = None
    live_ratio: float | None = None
    left: float | None = None
    lost_at: int | None = None
    mean_bill: float = float("nan")
    dearest_bill: float = float("nan")
    allowed: float | None = None
    unconverged: UnconvergedCounts = UnconvergedCounts()
    not_applicable: str | None = None

    @classmethod
    def left_out(cls, name: str, reason: str) -> "ComparisonRow":
        """The entry of an agent that does not apply to this problem."""
        nan = float("nan")
        return cls(name, nan, nan, dict.fromkeys(_LEVELS, nan), 0, nan, not_applicable=reason)

    @property
    def promise_kept(self) -> bool | None:
        """Whether it held at every step, and none broke it; None where there is none."""
        if self.promise is None or self.left is None:
            return None
        return self.lost_at is None and self.left >= -_ROUNDING

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and strings; None for every figure of an agent that was left out."""
        figures = {
            "average_cost": self.average_cost,
            "competitive_ratio": self.competitive_ratio,
            "tail_ratio": self.tail_ratio,
            "worst_day": self.worst_day,
            "microseconds_per_step": self.microseconds_per_step,
            "forecaster": self.forecaster,
            "promise": None if self.promise is None else self.promise.to_json(),
            "live_ratio": self.live_ratio,
            "promise_kept": self.promise_kept,
            "promise_left": self.left,
            "mean_bill": self.mean_bill,
            "dearest_bill": self.dearest_bill,
            "promise_allowed_in_dearest_period": self.allowed,
            "promise_lost_at_step": None if self.lost_at is None else self.lost_at + 1,
            "unconverged": self.unconverged.as_json(),
        }
        said = {"name": self.name, "not_applicable": self.not_applicable}
        return said | (figures if self.not_applicable is None else dict.fromkeys(figures))


def compare(
    entries: Mapping[str, Contender | NotApplicableError],
    test_days: TestDays,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[ComparisonRow]:
    """Score every entry, in their order, tested continuously on the same days; the unit comes first.

    That is "oracle", the optimum of the whole span, with "daily-oracle" after it, or the latter alone, as "oracle", in beds whose
    unit it is.

    An agent that does not apply to the problem gets an entry that says why; so does a reason that stands in its place.

    >>> import jax.numpy as jnp
    >>> from ecl2o.agents import ROBD
    >>> from ecl2o.problem import Mahalanobis, Problem, SquaredTracking
    >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> test_days = TestDays.of(problem, jnp.zeros(1), jnp.sin(jnp.arange(12.0)).reshape(3, 4, 1))
    >>> [row.name for row in compare({"r-obd": Contender(ROBD())}, test_days)]
    ['oracle', 'r-obd']
    """
    rows = make_oracle_rows(test_days)
    for done, (name, entry) in enumerate(entries.items(), start=1):
        try:
            if isinstance(entry, NotApplicableError):
                raise entry
            rows.append(evaluate_contender(name, entry, test_days))
        except NotApplicableError as reason:
            rows.append(ComparisonRow.left_out(name, str(reason)))
        progress(done, len(entries))
    return rows


def evaluate_contender(name: str, entry: Contender, test_days: TestDays) -> ComparisonRow:
    """One entry with its score."""
    score = score_contender(entry, test_days)
    return make_row(name, entry, test_days, score, _per_step(_seconds(lambda: _run(entry, test_days)), test_days))


def score_contender(entry: Contender, test_days: TestDays) -> DailyScore:
    """How an entry does on the days of a bed."""
    return score_runs(*_run(entry, test_days), test_days)


def _run(entry: Contender, test_days: TestDays) -> tuple[Trajectory, Float[Array, "n d"]]:
    """An entry through the days of a bed, and where each of them began."""
    forecaster = entry.forecaster if entry.agent.lookahead else None
    history = test_days.history if entry.history_steps is None else test_days.with_history(entry.history_steps).history
    return entry.run(entry.agent, test_days.problem, test_days.x0, test_days.days, history, forecaster)


def make_row(
    name: str, entry: Contender, test_days: TestDays, score: DailyScore, microseconds: float = float("nan")
) -> ComparisonRow:
    """An entry with a score that it has; NaN microseconds a step where nobody took the time."""
    agent, asked = entry.agent, None
    if agent.lookahead:
        asked = "Exact" if entry.forecaster is None else type(entry.forecaster).__name__
    promise = agent.promise(test_days.problem)
    return ComparisonRow(
        **_figures(name, score, microseconds),
        forecaster=asked,
        promise=promise,
        live_ratio=worst_live_ratio(score),
        left=_least_left(score),
        lost_at=_lost_at(score),
        allowed=None if promise is None else _allowed(promise, score, test_days),
    )


def make_oracle_rows(test_days: TestDays) -> list[ComparisonRow]:
    """The unit of the table, and beside the optimum of the whole span that of each day, run continuously."""
    runs, starts = oracle_days(test_days.problem, test_days.x0, test_days.days)
    seconds = _per_step(_seconds(lambda: oracle_days(test_days.problem, test_days.x0, test_days.days)), test_days)
    name = "oracle" if test_days.whole_span_optimum is None else "daily-oracle"
    optimal = {"competitive_ratio": 1.0, "tail_ratio": dict.fromkeys(_LEVELS, 1.0), "worst_day": 0}  # without rounding
    daily = ComparisonRow(**_figures(name, score_runs(runs, starts, test_days), seconds) | optimal)
    if test_days.whole_span_optimum is None:
        return [daily]
    whole = Instance(test_days.x0, np.asarray(test_days.days).reshape(-1, test_days.days.shape[-1]))
    oracle(test_days.problem, whole)
    seconds = _per_step(_seconds(lambda: oracle(test_days.problem, whole)), test_days)
    best = test_days.whole_span_optimum
    return [ComparisonRow(**_figures("oracle", score_runs(best, test_days.starts_of(best), test_days), seconds)), daily]


def _figures(name: str, score: DailyScore, microseconds: float) -> dict[str, Any]:
    """What every row has."""
    return {
        "name": name,
        "average_cost": score.average_cost,
        "competitive_ratio": score.competitive_ratio,
        "tail_ratio": score.tail_ratio,
        "worst_day": int(np.argmax(score.ratio)),
        "microseconds_per_step": microseconds,
        "mean_bill": float(np.mean(score.cost)),
        "dearest_bill": float(np.max(score.cost)),
        "unconverged": score.unconverged,
    }


def _allowed(promise: Promise, score: DailyScore, test_days: TestDays) -> float | None:
    """The promise times the optimum of the dearest of its whole periods, from where the run stood; None for other references.

    Where the days are fewer than a period, or the promise is for the run, they are one period.
    """
    if promise.reference is not Reference.OPTIMUM:
        return None
    n, T, q = test_days.days.shape
    days = n if promise.period is None else min(max(promise.period // T, 1), n)
    if days == n and test_days.whole_span_optimum is not None:
        return promise.bound(float(np.sum(np.asarray(test_days.whole_span_optimum.cost))))
    if days == 1 and score.optimum is not None:
        best = score.optimum
    else:
        periods = n // days
        contexts = np.asarray(test_days.days)[: periods * days].reshape(periods, days * T, q)
        best = _optima(test_days.problem, score.x0[: periods * days : days], contexts)
    return promise.bound(float(np.max(best)))


@eqx.filter_jit
def _optima(problem: Problem, starts: Float[AnyArray, "n d"], contexts: Float[AnyArray, "n T q"]) -> Float[Array, " n"]:
    """What each of these stretches costs at least, from where it starts."""
    return jax.vmap(lambda x0, contexts: oracle(problem, Instance(x0, contexts)).cost)(starts, contexts)


def worst_live_ratio(score: DailyScore) -> float | None:
    """The largest ratio to the optimum so far that the agent reported of itself; a guard further in is not what was played."""
    info: Info = score.runs.info
    return float(np.max(np.asarray(info.details["live_ratio"]))) if "live_ratio" in info.details else None


def _least_left(score: DailyScore) -> float | None:
    """The least of what a promise left at any step, as a share of what might have been spent by then; None without one."""
    told = score.runs.info.details
    if "left" not in told:
        return None
    left, cost = np.asarray(told["left"]), np.asarray(told["cost"])
    allowed = left + cost
    return float(np.min(np.divide(left, allowed, out=np.where(left < 0, -np.inf, 0.0), where=allowed > 0)))


def _lost_at(score: DailyScore) -> int | None:
    """The first step at which a promise did not hold any more."""
    told = score.runs.info.details
    lost = ~np.ravel(told["kept"]) if "kept" in told else np.zeros(1, bool)
    return int(np.argmax(lost)) if lost.any() else None


def _seconds(run: Callable[[], Any]) -> float:
    """The shortest of a few runs of what has run before."""
    found = []
    for _ in range(_TIMINGS):
        started = time.perf_counter()
        jax.block_until_ready(run())
        found.append(time.perf_counter() - started)
    return min(found)


def _per_step(seconds: float, test_days: TestDays) -> float:
    return 1e6 * seconds / (test_days.days.shape[0] * test_days.days.shape[1])
