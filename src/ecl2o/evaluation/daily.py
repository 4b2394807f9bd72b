"""Score an agent day after day, relative to the oracle (docs/reproduction.md).

The unit of cost is the mean daily cost of the daily oracle in the paper's studies, and that of the optimum of all days
together for one's own series, so that 1 is the optimum. Daily ratios are to the oracle from the *same* x_0 (erratum E22).
"""

import dataclasses
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ecl2o.agents import AbstractAgent
from ecl2o.evaluation import metrics
from ecl2o.evaluation.metrics import UnconvergedCounts
from ecl2o.forecasters import AbstractForecaster
from ecl2o.offline import oracle, oracle_days
from ecl2o.offline.oracle import oracle_of_first, warn_unless_converged
from ecl2o.problem import Instance, Problem, Trajectory
from ecl2o.problem.arrays import AnyArray, concrete_value, pad_rows, strip_weak_types, to_device, to_host
from ecl2o.running import rollout_days
from ecl2o.running.rollout import split_by_day
from ecl2o.running.stored_jit import stored_jit


class TestDays(eqx.Module):
    """Consecutive days, the history before them, and the oracle's costs: the same for all agents.

    Args:
        problem: Costs and action set.
        x0: (d,), the action in force before the first day.
        days: (n, T, q), consecutive days.
        history: (H, q), the contexts before the first day, or None.
        oracle_cost: (n,), the daily oracle's cost, made by `TestDays.of`.
        scored: (n,), which days count; agents run through the others too. Default of `of`: all.
        whole_span_optimum: The optimum of all days as one run, split into days, if it is the unit of cost. Default: None,
            the daily oracle is the unit.
    """

    __test__ = False  # pytest collects classes by this prefix

    problem: Problem
    x0: Float[Array, " d"]
    days: Float[Array, "n T q"]
    history: Float[Array, "H q"] | None
    oracle_cost: Float[AnyArray, " n"]
    scored: Bool[np.ndarray, " n"]
    whole_span_optimum: Trajectory | None = None

    @classmethod
    def of(cls, problem: Problem, x0, days, history=None, scored=None) -> "TestDays":
        """Return test days with the daily oracle as the unit of cost.

        Raises:
            ValueError: A cost is not finite.
        """
        problem, x0, days = strip_weak_types(problem), to_device(x0), to_device(days)
        return cls._of_solved(problem, x0, days, history, scored, oracle_days(problem, x0, days)[0])

    @classmethod
    def _of_solved(cls, problem: Problem, x0, days, history, scored, runs: Trajectory) -> "TestDays":
        cost = concrete_value(runs.cost)
        if cost is not None and not np.isfinite(cost).all():
            raise ValueError(f"the costs are not finite (contexts of up to {np.abs(days).max():g}); use another unit.")
        past = None if history is None else to_device(history)
        return cls(problem, x0, days, past, runs.cost, np.ones(len(days), bool) if scored is None else scored)

    @classmethod
    def with_whole_span_optimum(cls, problem: Problem, x0, days, history=None, scored=None) -> "TestDays":
        """Return test days with the optimum of the whole span as the unit of cost, so that 1 is the optimum.

        >>> import jax.numpy as jnp
        >>> from ecl2o.problem import Mahalanobis, SquaredTracking
        >>> problem = Problem(SquaredTracking(), Mahalanobis.isotropic(alpha=10.0, dim=1))
        >>> test_days = TestDays.with_whole_span_optimum(
        ...     problem, jnp.zeros(1), jnp.sin(jnp.arange(12.0)).reshape(3, 4, 1)
        ... )
        >>> bool(test_days.unit.sum() < test_days.oracle_cost.sum())
        True
        """
        problem, x0, days = strip_weak_types(problem), to_device(x0), to_device(days)
        daily, whole = solve_days(problem, x0, days)
        return dataclasses.replace(cls._of_solved(problem, x0, days, history, scored, daily), whole_span_optimum=whole)

    @property
    def unit(self) -> Float[AnyArray, " n"]:
        """The cost of each day in the run whose mean daily cost is the unit."""
        return self.oracle_cost if self.whole_span_optimum is None else self.whole_span_optimum.cost

    @property
    def not_scored(self) -> int:
        """How many days do not count."""
        return int(np.sum(~self.scored))

    @property
    def mean_unit(self) -> float:
        """The unit of the average cost: the mean over the days that count."""
        return float(np.mean(np.asarray(self.unit)[self.scored]))

    def with_history(self, steps: int) -> "TestDays":
        """Return the same days with at most the last `steps` contexts of the history."""
        if self.history is None or len(self.history) <= steps:
            return self
        return dataclasses.replace(self, history=to_device(to_host(self.history)[len(self.history) - steps :]))

    def starts_of(self, runs: Trajectory) -> Float[np.ndarray, "n d"]:
        """Return the x0 of each day of a run through the days."""
        ends = self.problem.end_state(np.asarray(runs.actions), np.asarray(self.days))
        return np.concatenate([np.asarray(self.x0)[None], ends[:-1]])


_LEAST_DAYS = 256  # to which days are padded to share programs, where the oracle is fast


def solve_days(
    problem: Problem, x0: Float[AnyArray, " d"], days: Float[AnyArray, "n T q"]
) -> tuple[Trajectory, Trajectory]:
    """Return the daily oracle, and the optimum of the whole span, split into days."""
    n, T, q = days.shape
    first = Instance(x0, to_host(days).reshape(n * T, q))
    problem.check(first)
    if not problem.is_quadratic:
        return oracle_days(problem, x0, days)[0], _by_day(problem, first, oracle(problem, first), n)[0]
    padded = pad_rows(to_host(first.contexts).reshape(n, T, q), _LEAST_DAYS)
    solved = jax.tree.map(lambda leaf: np.asarray(leaf)[:n], _solve_padded(problem, first.x0, padded, np.array(n)))
    for run in solved:
        warn_unless_converged(problem, run)
    return solved


@stored_jit
def _solve_padded(problem: Problem, x0, days, n) -> tuple[Trajectory, Trajectory]:
    N, T, q = days.shape
    whole = Instance(x0, days.reshape(N * T, q))
    best = oracle_of_first(problem, whole, n * T)
    return oracle_days(problem, x0, days)[0], split_by_day(problem, whole, best, N)[0]


_by_day = eqx.filter_jit(split_by_day)


class DailyScore(eqx.Module):
    """The score of an agent: day by day, and in the figures of tables.

    Args:
        runs: The trajectories of all N days, with a leading day axis.
        x0: (N, d), the action in force before each day.
        cost: (n,), of each day that counts.
        ratio: (n,), to the optimum of the day from the same x0.
        average_cost: The mean daily cost, over the unit of the test days.
        prediction_error: Mean squared distance of the advice from the day's oracle, over the oracle's mean cost; finite
            even if single days have an optimum of zero. None for agents without advice.
        unconverged: Steps that did not converge; figures are unreliable if there are any. Default: none.
        optimum: (n,), of each day from the same x0, 0 if it is rounding; None if unknown.
        unit_is_zero: Whether the unit of the average cost is zero, up to rounding, so that there is no ratio. Default: False.
        days: (n,), the numbers of the days that count. Default: None, all.
    """

    runs: Trajectory
    x0: Float[np.ndarray, "N d"]
    cost: Float[np.ndarray, " n"]
    ratio: Float[np.ndarray, " n"]
    average_cost: float
    prediction_error: float | None
    unconverged: UnconvergedCounts = UnconvergedCounts()
    optimum: Float[np.ndarray, " n"] | None = None
    unit_is_zero: bool = False
    days: Int[np.ndarray, " n"] | None = None

    @property
    def worst_day(self) -> int:
        """The number of the day with the worst ratio."""
        worst = int(np.argmax(self.ratio))
        return worst if self.days is None else int(self.days[worst])

    @property
    def competitive_ratio(self) -> float:
        """The worst day's ratio."""
        return float(self.ratio.max())

    @property
    def third_worst_ratio(self) -> float:
        """The ratio of the third-worst day, which two odd days do not decide; of the best, if there are fewer than three."""
        return float(np.sort(self.ratio)[-3:][0])

    @property
    def tail_ratio(self) -> dict[str, float]:
        """Percentiles of the daily ratio by name ("p99")."""
        levels, ones = metrics.TAIL_PERCENTILES, np.ones_like(self.ratio)
        values = metrics.tail_ratios(self.ratio, ones)
        return {f"p{level:g}": float(value) for level, value in zip(levels, values, strict=True)}


def score_days(
    agent: AbstractAgent,
    test_days: TestDays,
    forecaster: AbstractForecaster | None = None,
    key: PRNGKeyArray | None = None,
) -> DailyScore:
    """Run an agent through the days by `rollout_days`, and score it.

    Args:
        agent: The agent to score.
        test_days: The days.
        forecaster: As in `rollout_days`. Default: `forecasters.Exact()`, which knows the day's future.
        key: As in `rollout_days`. Default: None.
    """
    known = test_days.problem, test_days.x0, test_days.days, test_days.history
    return score_runs(*rollout_days(agent, *known, forecaster, key), test_days)


def score_agents(
    agents: Sequence[AbstractAgent], test_days: TestDays, run: Callable = rollout_days
) -> list[DailyScore]:
    """Score agents that differ in their arrays only, all in one program.

    Args:
        agents: Agents without a lookahead.
        test_days: The days of all of them.
        run: `rollout_days`, or `stream_days` for one run through all days. Default: `rollout_days`.
    """
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *agents)
    together = jax.device_get(_all_days(stacked, test_days, run))  # on the host, where slicing is free
    apart = (jax.tree.map(lambda leaf, i=i: to_device(leaf[i]), together) for i in range(len(agents)))
    return [score_runs(runs, starts, test_days) for runs, starts in apart]


@eqx.filter_jit
def _all_days(agents: AbstractAgent, test_days: TestDays, run: Callable) -> tuple[Trajectory, Float[Array, "k n d"]]:
    known = test_days.problem, test_days.x0, test_days.days, test_days.history
    return jax.vmap(lambda agent: run(agent, *known))(agents)


def score_runs(runs: Trajectory, starts: Float[AnyArray, "n d"], test_days: TestDays) -> DailyScore:
    """Score runs that were made elsewhere.

    Args:
        runs: The run of each day; leading axis n.
        starts: (n, d), the x0 of each day.
        test_days: The n days.
    """
    n, by_day = len(starts), (test_days.days, test_days.unit, runs.cost, starts)
    if test_days.problem.is_quadratic:
        by_day = tuple(pad_rows(each, _LEAST_DAYS) for each in by_day)
    measures = _measure_stored(test_days.problem, test_days.x0, *by_day)
    return _score(runs, starts, test_days.scored, _Measures(*(np.asarray(each)[:n] for each in measures)))


def score_runs_batch(runs: Trajectory, starts: Float[AnyArray, "k n d"], sites: Sequence[TestDays]) -> list[DailyScore]:
    """Score the runs of many sites of one shape in one program.

    Args:
        runs: Leading axes k (sites) and n (days).
        starts: (k, n, d), the x0 of each day.
        sites: The days of each of the k sites.
    """
    places = [(site.problem, site.x0, site.days, site.scored, site.unit) for site in sites]
    problem, x0, days, scored, unit = jax.tree.map(lambda *leaves: np.stack(leaves), *places)
    runs, starts = jax.tree.map(np.asarray, (runs, starts))  # on the host, where slicing is free
    measures = _Measures(*map(np.asarray, _measure_each(problem, x0, days, unit, runs.cost, starts)))
    together = runs, starts, scored, measures
    return [_score(*jax.tree.map(lambda leaf, i=i: leaf[i], together)) for i in range(len(sites))]


class _Measures(eqx.Module):
    """The oracles of each day of a run, and its cost, the optimum and the unit without rounding errors."""

    best: Float[AnyArray, "*k n T d"]
    converged: Bool[AnyArray, "*k n T"]
    cost: Float[AnyArray, "*k n"]
    optimum: Float[AnyArray, "*k n"]
    unit: Float[AnyArray, "*k n"]


def _measure(problem: Problem, x0, days, unit, cost, starts) -> tuple[AnyArray, ...]:
    """Return the fields of `_Measures`, in their order."""
    best = jax.vmap(lambda x0, contexts: oracle(problem, Instance(x0, contexts)))(starts, days)
    costs = (metrics.drop_daily_rounding(each, problem, x0, days) for each in (cost, best.cost, unit))
    return best.actions, best.converged, *costs


_measure_stored = stored_jit(_measure)
_measure_each = eqx.filter_jit(jax.vmap(_measure))


def _score(
    runs: Trajectory, starts: Float[AnyArray, "N d"], scored: Bool[np.ndarray, " N"], measures: _Measures
) -> DailyScore:
    error, cost, optimum = None, np.asarray(measures.cost)[scored], np.asarray(measures.optimum)[scored]
    unit = float(np.mean(np.asarray(measures.unit)[scored]))
    if runs.advice is not None:  # in NumPy: inside `_measure`, runs with advice would need a program of their own
        missed = np.sum((np.asarray(runs.advice) - np.asarray(measures.best)) ** 2, axis=(-2, -1))
        error = float(metrics.cost_ratio(float(np.mean(missed[scored])), float(np.mean(optimum)), both_zero=0.0))
    average = float(metrics.cost_ratio(float(np.mean(cost)), unit))
    figures = cost, np.asarray(metrics.cost_ratio(cost, optimum)), average, error
    unconverged = UnconvergedCounts.count(runs.converged, measures.converged)
    return DailyScore(runs, np.asarray(starts), *figures, unconverged, optimum, unit <= 0, np.flatnonzero(scored))
