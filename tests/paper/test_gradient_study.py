"""The gradient study's arithmetic, table and figure on made-up figures, and its problems on the real weather."""

import sys
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

from ecl2o.running import rollout_batch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import gradient_study


def made_up() -> gradient_study.ProblemResults:
    errors = {
        name: gradient_study.GradientError(
            0.5, 1.25, {"value_error": 0.1, "jacobian_error": 0.3} if "surrogate" in name else {}
        )
        for name in gradient_study.METHODS
    }
    costs = {name: gradient_study.CostReached(100, 0.01, (1.1, 1.2, 1.3)) for name in gradient_study.METHODS}
    return gradient_study.ProblemResults(errors, costs, 1.7)


def test_errors_are_means_over_batches():
    true = np.array([[3.0, 0.0], [0.0, 2.0]])
    found = np.array([[3.0, 3.0], [0.0, 4.0]])  # at 45 degrees and as long again; in line and twice as long
    error = gradient_study.compare_gradients(found, true, {})
    np.testing.assert_allclose(error.cosine, (np.sqrt(0.5) + 1) / 2)
    np.testing.assert_allclose(error.relative, 1.0)


def test_the_table_has_a_row_per_method():
    text = gradient_study.format_tables({"bounds": made_up()})
    assert "**bounds** (R-OBD: 1.700)" in text
    assert "| zero-order, 16 | 32 | 0.500 | 1.2 |  | 100 | 0.01 | 1.200 ± 0.082 |" in text
    assert text.count("\n| ") == 1 + len(gradient_study.METHODS)
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {9}


def test_the_figure_is_drawn(tmp_path):
    gradient_study.draw({"no bounds": made_up(), "bounds": made_up()}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_the_networks_start_with_advice_inside_the_bounds():
    """Otherwise clipping leaves no gradient, and the comparison would be between methods that cannot move."""
    setting = gradient_study.ProblemCase.of(gradient_study.make_problems()["bounds"])
    few = jax.tree.map(lambda leaf: leaf[:50], setting.training)
    for seed in range(gradient_study.Effort().seeds):
        advice = np.asarray(eqx.filter_jit(rollout_batch)(setting.agent(seed), setting.problem, few).advice)
        assert np.mean((advice > 0) & (advice < gradient_study.LARGEST_ACTION)) > 0.5
