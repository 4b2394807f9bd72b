"""Comparison tables: the figures of `score_days`, in one row each, for every agent that needs no training."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import AbstractAgent, Info
from ecl2o.evaluation import TestDays, score_days, score_runs_batch
from ecl2o.evaluation.comparison import (
    ComparisonRow,
    Contender,
    compare,
    evaluate_contender,
    make_contender,
    make_oracle_rows,
    score_contender,
)
from ecl2o.fitting.named_agents import NAMED_AGENTS, named_contender
from ecl2o.running import rollout_days, stream_days

DAYS, STEPS = 4, 4


@pytest.fixture(scope="module")
def bed() -> TestDays:
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    contexts = np.random.default_rng(8).normal(size=((DAYS + 2) * STEPS, 1))
    history = contexts[: 2 * STEPS]
    return TestDays.of(problem, history[-1], contexts[2 * STEPS :].reshape(DAYS, STEPS, 1), history)


def test_rows_hold_the_figures_of_the_daily_scores(bed):
    wild = ec.Competitive(ec.HittingMinimizer(), ratio=1.9, horizon=STEPS)
    told = []
    rows = compare({"greedy": Contender(ec.Greedy()), "wild": Contender(wild)}, bed, lambda *done: told.append(done))
    assert [row.name for row in rows] == ["oracle", "greedy", "wild"]
    assert told == [(0, 2), (1, 2), (2, 2)]
    for row, agent in zip(rows[1:], (ec.Greedy(), wild), strict=True):
        score = score_days(agent, bed)
        assert row.average_cost == score.average_cost
        assert row.competitive_ratio == score.competitive_ratio == score.ratio[row.worst_day]
        assert row.tail_ratio == score.tail_ratio
        assert row.microseconds_per_step is None
    assert rows[1].promise_kept is None
    assert rows[1].live_ratio is None
    assert (float(rows[2].promise.ratio), rows[2].promise.period) == (1.9, STEPS)
    assert rows[2].promise_kept is True
    assert rows[2].competitive_ratio * (1 - 1e-9) <= rows[2].live_ratio <= 1.9 * (1 + 1e-9)


def test_each_contender_runs_once_unless_timed(bed):
    calls = []

    def run(*arguments):
        calls.append(arguments)
        return rollout_days(*arguments)

    contender = Contender(ec.ROBD(), run=run)
    assert evaluate_contender("r-obd", contender, bed).microseconds_per_step is None
    assert len(calls) == 1
    assert evaluate_contender("r-obd", contender, bed, timed=True).microseconds_per_step > 0
    assert len(calls) == 3
    assert all(row.microseconds_per_step > 0 for row in make_oracle_rows(bed, timed=True))


def test_the_prediction_error_is_the_distance_of_the_advice_from_the_oracles_of_the_days(bed):
    """In NumPy: the oracle is linear, (1 + 2 alpha) x_t - alpha x_{t-1} - alpha x_{t+1} = y_t but at the end."""
    agent = ec.MLAROBD(ec.Greedy(), trust=0.5)
    score = score_days(agent, bed)
    system = 21 * np.eye(STEPS) - 10 * np.eye(STEPS, k=1) - 10 * np.eye(STEPS, k=-1)
    system[-1, -1] = 11
    right = np.asarray(bed.days)[..., 0].copy()
    right[:, 0] += 10 * score.x0[:, 0]
    best = np.linalg.solve(system, right.T).T
    moves = np.diff(np.concatenate([score.x0, best], axis=1))
    costs = 0.5 * np.sum((best - np.asarray(bed.days)[..., 0]) ** 2, axis=1) + 5 * np.sum(moves**2, axis=1)
    advice = np.asarray(score.runs.advice)[..., 0]  # another one every day
    assert score.prediction_error == pytest.approx(np.mean(np.sum((advice - best) ** 2, axis=1)) / np.mean(costs))
    assert score_days(ec.Greedy(), bed).prediction_error is None
    # Two beds at once: each advice is held against the oracles of its own days.
    other = TestDays.of(bed.problem, bed.x0, bed.days[::-1], bed.history)
    runs, starts = zip(*(rollout_days(agent, b.problem, b.x0, b.days, b.history) for b in (bed, other)), strict=True)
    both = score_runs_batch(
        *jax.tree.map(lambda *leaves: np.stack(leaves), *zip(runs, starts, strict=True)), (bed, other)
    )
    expected = [score_days(agent, b).prediction_error for b in (bed, other)]
    assert [score.prediction_error for score in both] == pytest.approx(expected)
    assert expected[0] != pytest.approx(expected[1])


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_scores_do_not_depend_on_the_unit(bed, unit):
    """What counts as rounding is relative: nanowatts are not nothing."""
    small = TestDays.of(
        bed.problem, unit * bed.x0, unit * bed.days, None if bed.history is None else unit * bed.history
    )
    one, other = score_days(ec.Greedy(), bed), score_days(ec.Greedy(), small)
    np.testing.assert_allclose(other.ratio, one.ratio, rtol=1e-9)
    assert other.average_cost == pytest.approx(one.average_cost, rel=1e-9)
    assert one.competitive_ratio > 1.1


def test_bills_that_overflow_are_refused(bed):
    """Infinite over infinite is not 1."""
    with pytest.raises(ValueError, match="not finite"):
        TestDays.of(bed.problem, 1e300 * bed.x0, 1e300 * bed.days)


def test_days_that_cost_nothing_count_as_one_and_a_needless_move_as_infinite(bed):
    """On a constant series the optimum is free, up to rounding."""
    constant = TestDays.of(bed.problem, jnp.full_like(bed.x0, 0.3), jnp.full_like(bed.days, 0.3))
    still, moved = (
        score_days(ec.ROBD(), constant),
        score_days(ec.advisors.Fixed(0.3 + 1e-6 * jnp.ones((24, 1))), constant),
    )
    assert (still.average_cost, still.competitive_ratio) == (1.0, 1.0)
    assert moved.average_cost == moved.competitive_ratio == np.inf
    hardly = score_days(ec.advisors.Fixed(0.3 + 1e-9 * jnp.ones((24, 1))), constant)
    assert (hardly.average_cost, hardly.cost.max()) == (1.0, 0.0)  # next to 0.3, that is nothing


def test_rows_say_where_the_optimum_is_zero(bed):
    """On a constant series there is no ratio; if the optimum of one day is zero, only its own ratio is missing."""
    wasteful = Contender(ec.advisors.Fixed(0.31 * jnp.ones((24, 1))))
    constant = TestDays.with_whole_span_optimum(bed.problem, jnp.full_like(bed.x0, 0.3), jnp.full_like(bed.days, 0.3))
    for row in compare({"r-obd": Contender(ec.ROBD()), "wasteful": wasteful}, constant):
        figures = row.as_json()
        assert figures["no_ratio"] == "optimum is zero"
        assert figures["average_cost"] is None
        assert (figures["competitive_ratio"] is None) == (row.name != "wasteful" or row.competitive_ratio == np.inf)
        assert row.mean_cost == 0 if row.name != "wasteful" else row.mean_cost > 1e-5
    one_day = TestDays.with_whole_span_optimum(bed.problem, bed.days[0, 0], bed.days.at[0].set(bed.days[0, 0]))
    (*_, row) = compare({"wasteful": wasteful}, one_day)
    figures = row.as_json()
    assert (figures["no_ratio"], figures["competitive_ratio"]) == ("optimum is zero", None)
    assert figures["average_cost"] > 1
    (*_, row) = compare({"r-obd": Contender(ec.ROBD())}, bed)
    assert row.as_json()["no_ratio"] is None


def test_foresight_scores_as_the_oracle(bed):
    row = evaluate_contender("all-knowing", Contender(ec.RHC(STEPS - 1)), bed)
    (oracle,) = make_oracle_rows(bed)
    assert row.average_cost == pytest.approx(oracle.average_cost, rel=1e-9)
    assert row.competitive_ratio == pytest.approx(oracle.competitive_ratio, rel=1e-9)
    assert row.forecaster == "Exact"


def test_nobody_comes_below_the_optimum_of_the_whole_span(bed):
    """Not even the daily oracle, nor foresight beyond midnight."""
    wide = TestDays.with_whole_span_optimum(bed.problem, bed.x0, bed.days, bed.history)
    entries = {"r-obd": Contender(ec.ROBD()), "far-seeing": Contender(ec.RHC(2 * STEPS), run=stream_days)}
    rows = {row.name: row for row in compare(entries, wide)}
    assert list(rows) == ["oracle", "daily-oracle", "r-obd", "far-seeing"]
    assert rows["oracle"].average_cost == 1.0
    assert all(row.average_cost >= 1.0 for row in rows.values())
    daily = compare(entries, bed)[0]
    assert rows["daily-oracle"].mean_cost == pytest.approx(daily.mean_cost, rel=1e-12)
    assert rows["far-seeing"].average_cost < rows["daily-oracle"].average_cost  # which was "better than perfection"
    assert rows["oracle"].competitive_ratio > 1.0  # it sacrifices single days


def test_the_same_run_costs_the_same_wherever_its_days_are_cut(bed):
    """The unit is of the span, so that another hour of beginning changes no average."""
    wide = TestDays.with_whole_span_optimum(bed.problem, bed.x0, bed.days)
    halves = TestDays.with_whole_span_optimum(bed.problem, bed.x0, bed.days.reshape(2 * DAYS, STEPS // 2, 1))
    costs = [evaluate_contender("r-obd", Contender(ec.ROBD()), one).average_cost for one in (wide, halves)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-12)
    old = [score_days(ec.ROBD(), TestDays.of(bed.problem, bed.x0, one.days)).average_cost for one in (wide, halves)]
    assert abs(old[0] / old[1] - 1) > 0.01


def test_bills_are_in_units_of_cost(bed):
    agent = ec.Competitive(ec.ROBD(), ratio=1.9, horizon=STEPS)
    row, score = evaluate_contender("it", Contender(agent), bed), score_days(agent, bed)
    assert (row.mean_cost, row.highest_cost) == (score.cost.mean(), score.cost.max())
    assert row.allowed_cost == pytest.approx(1.9 * score.optimum.max(), rel=1e-12)
    assert row.highest_cost <= row.allowed_cost
    whole = evaluate_contender("it", Contender(ec.Competitive(ec.ROBD(), ratio=1.9), run=stream_days), bed)
    wide = TestDays.with_whole_span_optimum(bed.problem, bed.x0, bed.days)
    assert whole.allowed_cost == pytest.approx(1.9 * float(wide.unit.sum()), rel=1e-9)
    assert evaluate_contender("it", Contender(ec.Guarded(ec.ROBD())), bed).allowed_cost is None  # relative to an expert


def test_what_a_promise_for_two_days_allows_is_of_the_dearest_two_days(bed):
    guard = ec.Competitive(ec.ROBD(), ratio=1.9, allowance=0.5, period=2 * STEPS)
    entry = Contender(guard, run=stream_days)
    starts = score_contender(entry, bed).x0[::2]
    pairs = np.asarray(bed.days).reshape(2, 2 * STEPS, 1)
    optima = [float(ec.oracle(bed.problem, ec.Instance(*pair)).cost) for pair in zip(starts, pairs, strict=True)]
    assert evaluate_contender("it", entry, bed).allowed_cost == pytest.approx(1.9 * max(optima) + 0.5, rel=1e-9)


def test_only_a_guard_whose_promise_ends_begins_anew_every_day(bed):
    daily = ec.Competitive(ec.ROBD(), ratio=1.9, horizon=STEPS)
    agents = daily, daily.every(STEPS), ec.Competitive(ec.ROBD(), ratio=1.9), ec.ROBD()
    assert [make_contender(agent, bed.problem).run for agent in agents] == [rollout_days, *[stream_days] * 3]


def test_the_forecaster_matters_only_to_those_who_ask(bed):
    persistence = ec.forecasters.Persistence()
    assert evaluate_contender("r-obd", Contender(ec.ROBD(), persistence), bed).forecaster is None
    row = evaluate_contender("rhc", named_contender("rhc", bed, persistence), bed)
    assert row.forecaster == "Persistence"
    assert row.average_cost == score_days(ec.RHC(STEPS - 1, truncate=False), bed, persistence).average_cost
    assert type(named_contender("rhc", bed).forecaster).__name__ == "RollingProfile"


# Three are tested above; the guard for tariffs is for another problem, and tested there.
@pytest.mark.parametrize("name", sorted(set(NAMED_AGENTS) - {"greedy", "rhc", "r-obd", "competitive-tariff"}))
def test_every_contender_runs_and_is_not_better_than_the_day_allows(bed, name):
    score = score_days(named_contender(name, bed).agent, bed, named_contender(name, bed).forecaster)
    assert (score.ratio >= 1 - 1e-9).all()
    assert not score.unconverged


def test_a_broken_promise_is_seen():
    row = ComparisonRow("it", 1.0, 2.6, {}, 0, 1.0, promise=ec.Promise(2.5, period=24), budget_left=-1e-6)
    assert row.promise_kept is False
    assert row.as_json()["promise_kept"] is False


class _Overdrawn(AbstractAgent):
    """Has paid where nothing may be paid."""

    @property
    def lookahead(self) -> int:
        return 0

    def promise(self, problem):
        return ec.Promise(2.0)

    def init(self, problem, start):
        return None

    def step(self, problem, state, observation):
        one = jnp.ones(1)
        told = {"left": -one, "cost": one, "ratio": jnp.inf * one, "kept": jnp.ones(1, bool)}
        return state, observation.context, Info(jnp.ones((), bool), details=told)


def test_paying_where_the_optimum_is_free_breaks_a_promise(bed):
    row = evaluate_contender("it", Contender(_Overdrawn()), bed)
    assert row.budget_left == -np.inf
    assert row.promise_kept is False


def test_unknown_names_are_refused_with_the_known_ones(bed):
    with pytest.raises(ValueError, match="no agent is called 'magic'; there are greedy"):
        named_contender("magic", bed)


def test_several_columns_are_compared_too():
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=2))
    bed = TestDays.of(problem, jnp.zeros(2), np.random.default_rng(1).normal(size=(DAYS, STEPS, 2)))
    row = evaluate_contender("r-obd", named_contender("r-obd", bed), bed)
    assert 1 <= row.competitive_ratio <= 1.7299


def test_what_was_saved_runs_as_one_program_with_what_was_made(tmp_path):
    """Numbers of Python are weakly typed until they have been in a file; those of entries and beds never are."""
    made = ec.Policy(ec.Guarded(ec.ROBD(), slack=0.5), ec.Problem(ec.SquaredTracking(2.0), ec.LinearSwitching(3.0)))
    ec.save(tmp_path / "policy.ecl2o", made)
    loaded = ec.load(tmp_path / "policy.ecl2o")
    days = np.zeros((1, STEPS, 1))
    beds, entries = (
        [of(policy) for policy in (made, loaded)]
        for of in (
            lambda policy: TestDays.of(policy.problem, [0.0], days).problem,
            lambda policy: Contender(policy.agent),
        )
    )
    for one, other in (beds, entries):
        assert jax.tree.leaves(jax.tree.map(jax.typeof, one)) == jax.tree.leaves(jax.tree.map(jax.typeof, other))
        assert eqx.tree_equal(one, other)
    assert any(leaf.weak_type for leaf in jax.tree.leaves(made.agent))
