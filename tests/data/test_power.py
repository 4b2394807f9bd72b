"""Power models: known figures, and the shape of the formulas."""

import numpy as np
import pytest

from ecl2o.data import AUTHORS_SOLAR, AUTHORS_WIND, PAPER_SOLAR, PAPER_WIND, solar_power, wind_power


def test_wind_is_a_cube_in_watts():
    speed = np.array([0.0, 1.0, 3.0])
    assert wind_power(PAPER_WIND, speed) == pytest.approx([0, 92_250, 27 * 92_250])
    assert wind_power(AUTHORS_WIND, speed) == pytest.approx(wind_power(PAPER_WIND, speed) / 100)


def test_solar_of_the_paper_is_halved_and_clipped_and_of_the_code_is_not():
    ghi, temperature = np.array([1000.0, 1000.0, 1000.0]), np.array([25.0, 5.0, 47.0])
    assert solar_power(PAPER_SOLAR, ghi, temperature) == pytest.approx([5e5, 1e6, 0])
    assert solar_power(AUTHORS_SOLAR, ghi, temperature) == pytest.approx([1e4, 2e4, -1e3])
