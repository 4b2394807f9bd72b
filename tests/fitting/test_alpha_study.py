"""What alpha means: a rate of exchange between squared misses and squared moves."""

import itertools

import numpy as np
import pytest

from ecl2o.exceptions import DataError
from ecl2o.fitting.alpha_study import TrackingStats, alpha_from_prices, study_alphas

SERIES = 40 + np.cumsum(np.random.default_rng(0).normal(size=(120, 1)), axis=0)


def test_the_slope_of_the_curve_in_hindsight_is_minus_alpha():
    """The envelope theorem: between two alphas, squared misses rise by something between them for each square not moved."""
    rows = study_alphas(SERIES, np.geomspace(0.5, 50.0, 9).tolist()).rows
    for low, high in itertools.pairwise(rows):
        rise = high.hindsight.squared_miss - low.hindsight.squared_miss
        saved = low.hindsight.squared_move - high.hindsight.squared_move
        assert low.alpha <= rise / saved <= high.alpha


def test_nobody_beats_hindsight_and_the_units_are_those_of_the_series():
    rows, thousandfold = study_alphas(SERIES, [10.0, 1.0]).rows, study_alphas(1000 * SERIES, [1.0, 10.0]).rows
    assert [row.alpha for row in rows] == [1.0, 10.0]
    for row, large in zip(rows, thousandfold, strict=True):
        bills = [f.squared_miss + row.alpha * f.squared_move for f in (row.hindsight, row.expert)]
        assert bills[0] < bills[1]
        for one, other in ((row.hindsight, large.hindsight), (row.expert, large.expert)):
            assert other.miss == pytest.approx(1000 * one.miss, rel=1e-9)
            assert other.largest_move == pytest.approx(1000 * one.largest_move, rel=1e-9)


def test_distances_of_several_columns_are_euclidean():
    found = TrackingStats.of(np.zeros(2), np.array([[3.0, 4.0], [3.0, 4.0]]), np.array([[3.0, 4.0], [8.0, 16.0]]))
    assert found == TrackingStats(miss=6.5, move=2.5, largest_move=5.0, squared_miss=169.0, squared_move=25.0)


def test_prices_and_refusals():
    assert alpha_from_prices(miss_price=20.0, ramp_price=50.0) == 2.5
    with pytest.raises(ValueError, match="miss_price must be positive"):
        alpha_from_prices(0.0, 1.0)
    with pytest.raises(ValueError, match="alpha must lie between 1e-12"):
        study_alphas(SERIES, [1.0, -1.0])
    with pytest.raises(DataError, match="never changes"):
        study_alphas(np.ones((10, 1)))
