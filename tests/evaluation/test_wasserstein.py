"""The distance between sets of days is the Wasserstein distance: identities, a referee on the line, and its dual."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from ecl2o.evaluation import solve_transport

SIZES = st.sampled_from([(5, 5), (4, 7), (9, 3)])
SEEDS = st.integers(0, 10**6)


def sets(seed, sizes, width=3):
    rng = np.random.default_rng(seed)
    return [rng.normal(rng.normal(), 1.0, (count, width)) for count in sizes]


@given(seed=SEEDS, sizes=SIZES)
def test_on_the_line_it_is_what_scipy_says(seed, sizes):
    one, other = sets(seed, sizes, width=1)
    expected = scipy.stats.wasserstein_distance(one[:, 0], other[:, 0])
    np.testing.assert_allclose(solve_transport(one, other).distance, expected, rtol=1e-9)


@settings(max_examples=20)
@given(seed=SEEDS, sizes=SIZES)
def test_a_plan_moves_all_of_one_set_to_all_of_the_other(seed, sizes):
    one, other = sets(seed, sizes)
    found = solve_transport(one, other)
    np.testing.assert_allclose(found.plan.sum(axis=1), 1 / len(one), atol=1e-12)
    np.testing.assert_allclose(found.plan.sum(axis=0), 1 / len(other), atol=1e-12)
    np.testing.assert_allclose(solve_transport(other, one).distance, found.distance, rtol=1e-9)


@settings(max_examples=20)
@given(seed=SEEDS, sizes=SIZES)
def test_no_function_of_slope_one_tells_the_sets_further_apart(seed, sizes):
    """Kantorovich's dual, on distances from any point; along the plan the slope of such a function is at most 1."""
    one, other = sets(seed, sizes)
    found = solve_transport(one, other)
    for centre in np.random.default_rng(seed + 1).normal(size=(20, 3)):
        values, others = (np.linalg.norm(days - centre, axis=1) for days in (one, other))
        assert abs(others.mean() - values.mean()) <= found.distance + 1e-12
        assert found.slope(values, others) <= 1 + 1e-12


@settings(max_examples=20)
@given(seed=SEEDS, sizes=SIZES)
def test_means_differ_by_at_most_slope_times_distance_whatever_the_figure(seed, sizes):
    one, other = sets(seed, sizes)
    rng, found = np.random.default_rng(seed), solve_transport(one, other)
    values, others = 10 * rng.normal(size=sizes[0]), 10 * rng.normal(size=sizes[1])
    assert abs(others.mean() - values.mean()) <= found.slope(values, others) * found.distance * (1 + 1e-9)


@pytest.mark.parametrize("repeated", [1, 2])
def test_known_distances(repeated):
    """None from itself, even counted twice; the length of a translation; what a dilation moves on average."""
    rng = np.random.default_rng(0)
    days = rng.normal(size=(8, 24))
    again = np.repeat(days, repeated, axis=0)
    assert solve_transport(days, again).distance == pytest.approx(0.0, abs=1e-9)
    assert solve_transport(days, again + 0.1).distance == pytest.approx(0.1 * np.sqrt(24), rel=1e-9)
    assert solve_transport(days, 1.3 * again).distance <= 0.3 * np.linalg.norm(days, axis=1).mean() * (1 + 1e-9)


def test_the_slope_is_the_steepest_along_the_plan_and_not_between_any_days():
    found = solve_transport(np.array([[0.0], [10.0]]), np.array([[1.0], [11.0]]))
    assert found.slope(np.array([0.0, 100.0]), np.array([1.0, 103.0])) == 3.0
