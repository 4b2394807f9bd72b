"""The policies of the demonstration."""

import numpy as np

from ecl2o.data import weather_contexts
from ecl2o.service.demo import make_policies


def test_screening_replaces_a_bad_reading_and_nothing_else():
    weather = weather_contexts()
    for policy in make_policies(weather).values():
        screen = policy.contract.screen
        assert screen is not None
        assert not np.asarray(screen.apply(weather.values)[1]).any()
        spoiled = weather.values[:48].copy()
        spoiled[30] *= 1000.0
        spoiled[30] += 1000.0
        assert np.asarray(screen.apply(spoiled)[1]).nonzero()[0].tolist() == [30]
