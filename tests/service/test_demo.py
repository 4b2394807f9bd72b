"""What the demonstration serves."""

import numpy as np

from ecl2o.data import weather_contexts
from ecl2o.service.demo import policies


def test_bad_readings_are_screened_and_the_year_is_believed():
    weather = weather_contexts()
    for policy in policies(weather).values():
        screen = policy.contract.screen
        assert screen is not None
        assert not np.asarray(screen.through(weather.values)[1]).any()
        spoiled = weather.values[:48].copy()
        spoiled[30] *= 1000.0
        spoiled[30] += 1000.0
        assert np.asarray(screen.through(spoiled)[1]).nonzero()[0].tolist() == [30]
