"""A profile on fewer nodes than a period has steps: NumPy's periodic interpolation is the referee."""

import equinox as eqx
import numpy as np
import pytest

from ecl2o.agents.advisors.features import PeriodicProfile, ProfileState
from ecl2o.problem.arrays import to_device

NEVER = -7.0  # what stands where nothing was seen
_at, then = eqx.filter_jit(PeriodicProfile.at), eqx.filter_jit(PeriodicProfile.update)


def profile(means, weights) -> ProfileState:
    return ProfileState(to_device(means), to_device(weights))


def usual(season: PeriodicProfile, seen: ProfileState, phases) -> np.ndarray:
    return np.asarray(_at(season, seen, to_device(phases), to_device(np.asarray(NEVER))))


@pytest.mark.parametrize(("period", "nodes"), [(12, 4), (10, 4), (7, 7), (5, 1)])
def test_between_nodes_it_is_a_straight_line_also_over_the_end_of_the_period(period, nodes):
    rng, phases = np.random.default_rng(period), np.arange(period)
    season, means = PeriodicProfile(3.0, period, nodes), rng.normal(size=nodes)
    found = usual(season, profile(means, np.ones(nodes)), phases)
    wanted = np.interp(phases, np.arange(nodes) * period / nodes, means, period=period)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_node_that_saw_nothing_leaves_all_to_the_other_one():
    season, means = PeriodicProfile(3.0, 12, 4), np.array([1.0, 2.0, 3.0, 4.0])
    found = usual(season, profile(means, np.array([1.0, 0.0, 0.0, 1.0])), np.arange(12))
    np.testing.assert_allclose(found[:4], [1.0, 1.0, 1.0, NEVER], rtol=1e-12)
    np.testing.assert_allclose(found[6:9], [NEVER, 4.0, 4.0], rtol=1e-12)


@pytest.mark.parametrize(("period", "nodes"), [(12, 4), (10, 4), (6, 6)])
def test_a_context_counts_for_its_nodes_as_much_as_they_count_for_it(period, nodes):
    """And what was seen once is what is usual there."""
    season = PeriodicProfile(1e6, period, nodes)
    for phase in range(period):
        seen = then(season, season.empty(float), to_device(np.asarray(phase)), to_device(np.asarray(2.5)))
        assert np.sum(np.asarray(seen.weights)) == pytest.approx(1.0, rel=1e-12)
        position = phase * nodes / period
        left, share = int(position) % nodes, position % 1
        assert float(seen.weights[left]) == pytest.approx(1 - share, abs=1e-12)
        assert float(seen.weights[(left + 1) % nodes]) == pytest.approx(share, abs=1e-12)
        assert usual(season, seen, np.array([phase]))[0] == pytest.approx(2.5)
