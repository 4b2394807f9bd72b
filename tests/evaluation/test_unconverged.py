"""Unreliable figures are marked: in warnings, in scores and rows, and in every table."""

import dataclasses
import html

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.cli.comparison_table import print_comparison
from ecl2o.evaluation import TestDays, UnconvergedCounts
from ecl2o.evaluation.comparison import ComparisonRow, Contender, compare
from ecl2o.offline import oracle_days
from ecl2o.paper.report import results_table
from ecl2o.paper.results import find_best_row, format_cells, table_notes
from ecl2o.problem import LinearSwitching
from paper.fake_study import fake_study

DAYS, STEPS = 3, 4


def _kink(x, y):
    """Not twice differentiable where it is least."""
    return jnp.sum(jnp.abs(x - y) + 0.05 * (x - y) ** 2)


KINKED = ec.Problem(ec.ConvexCost(_kink, strong_convexity=0.1), ec.Mahalanobis.isotropic(alpha=1.0, dim=1))
CONTEXTS = np.random.default_rng(0).normal(size=(DAYS, STEPS, 1)) * 3


@pytest.fixture(scope="module")
def kinked_days() -> TestDays:
    with pytest.warns(RuntimeWarning, match="the oracle did not converge on"):
        return TestDays.of(KINKED, jnp.zeros(1), CONTEXTS)


def test_the_oracle_warns_where_it_is_none():
    instance = ec.Instance(np.zeros(1), CONTEXTS[0])
    with pytest.warns(RuntimeWarning, match=f"did not converge on {STEPS} of {STEPS} steps"):
        best = ec.oracle(KINKED, instance)
    assert not best.converged.any()
    with pytest.warns(RuntimeWarning, match="did not converge on"):
        ec.constrained_oracle(KINKED, instance, budget=0.5)


def test_nothing_is_said_while_tracing_or_where_all_is_well(recwarn):
    instance = ec.Instance(np.zeros(1), CONTEXTS[0])
    jax.jit(lambda s: ec.oracle(KINKED, s).cost)(instance)
    smooth = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=1), ec.Box(-1.0, 1.0))
    assert ec.oracle(smooth, instance).converged.all()
    oracle_days(smooth, np.zeros(1), CONTEXTS)
    assert not [warning for warning in recwarn if warning.category is RuntimeWarning]


@pytest.mark.filterwarnings("ignore:the oracle did not converge:RuntimeWarning")
def test_rows_count_what_did_not_converge_and_tables_mark_it(kinked_days, capsys):
    rows = compare({"greedy": Contender(ec.Greedy())}, kinked_days)
    steps = DAYS * STEPS
    unit, greedy = (row.unconverged for row in rows)
    assert unit.of == greedy.of == steps
    assert 0 < unit.steps == unit.oracle <= steps
    assert greedy.oracle > 0  # from its own x0, not the test days'
    runs, starts = ec.rollout_days(ec.Greedy(), KINKED, kinked_days.x0, kinked_days.days)
    assert greedy.steps == int((~runs.converged).sum())
    own = [ec.oracle(KINKED, ec.Instance(x0, day)).converged for x0, day in zip(starts, kinked_days.days, strict=True)]
    assert greedy.oracle == int((~jnp.stack(own)).sum())
    assert rows[1].as_json()["unconverged"] == {"steps": greedy.steps, "oracle": greedy.oracle, "of": steps}
    print_comparison(rows, "kinked", KINKED)
    shown = capsys.readouterr().out
    assert "greedy †" in shown
    assert "oracle †" in shown
    assert f"† greedy: {greedy}" in shown


def test_rows_that_converged_are_not_marked(capsys):
    figures = {"p90": 1.0, "p95": 1.0, "p99": 1.0, "p99.5": 1.0}
    print_comparison(
        [ComparisonRow("it", 1.0, 1.0, figures, 0, 1.0, unconverged=UnconvergedCounts(of=24))], "all well", KINKED
    )
    assert "†" not in capsys.readouterr().out


def test_reports_and_results_mark_them_too():
    study = fake_study()
    assert not any("†" in note for note in table_notes(study))
    assert "†" not in results_table(study)
    name = find_best_row(study, "average_cost").name
    broken = [
        eqx.tree_at(lambda s: s.unconverged, score, UnconvergedCounts(2, 1, 24)) for score in study.rows[name].scores
    ]
    study = dataclasses.replace(study, rows=study.rows | {name: dataclasses.replace(study.rows[name], scores=broken)})
    row, seeds = study.rows[name], len(broken)
    assert format_cells(row)[0] == f"{row.label} †"
    note = f"† {row.label}: {2 * seeds} of {24 * seeds} steps, and {seeds} of the oracle's, did not converge: "
    assert sum(text.startswith(note) for text in table_notes(study)) == 1
    assert note in html.unescape(results_table(study))
    assert study.as_json()["algorithms"][name]["unconverged"] == {"steps": 2 * seeds, "oracle": seeds, "of": 24 * seeds}
    assert find_best_row(study, "average_cost").name != name  # unreliable figures are never the best


def test_lcp_is_scored_on_its_own_problem():
    """Movement by distance has no beta; LCP is 3-competitive there, day by day."""
    problem = ec.Problem(ec.SquaredTracking(), LinearSwitching(rate=1.0))
    test_days = TestDays.of(problem, jnp.zeros(1), CONTEXTS)
    rows = compare({"lcp": Contender(ec.LCP())}, test_days)
    assert [row.name for row in rows] == ["oracle", "lcp"]
    assert 1 - 1e-9 <= rows[1].competitive_ratio <= 3 * (1 + 1e-9)
    assert rows[1].average_cost > 0
    assert not rows[1].unconverged
    still = TestDays.of(problem, jnp.full(1, 0.3), np.full((DAYS, STEPS, 1), 0.3))
    assert compare({"lcp": Contender(ec.LCP())}, still)[1].competitive_ratio == 1.0
