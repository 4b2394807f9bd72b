"""Figures of merit on small examples, and their edge cases."""

import jax
import jax.numpy as jnp
import numpy as np

import ecl2o as ec
from ecl2o.evaluation import metrics
from ecl2o.problem.arrays import to_device

COST = jnp.asarray([3.0, 0.0, 1.0, 5.0])
BEST = jnp.asarray([2.0, 0.0, 0.0, 4.0])


def _trajectory(actions, hitting) -> ec.Trajectory:
    hitting = np.asarray(hitting)
    rest = to_device(np.zeros_like(hitting)), None, to_device(np.ones(hitting.shape, bool))
    return ec.Trajectory(to_device(np.asarray(actions)), to_device(hitting), *rest)


def test_ratios_where_the_oracle_pays_nothing():
    np.testing.assert_array_equal(metrics.cost_ratio(COST, BEST), [1.5, 1.0, np.inf, 1.25])
    assert float(metrics.competitive_ratio(COST, BEST)) == np.inf
    assert float(metrics.competitive_ratio(jnp.asarray([3.0, 0.0]), jnp.asarray([2.0, 0.0]))) == 1.5
    slopes = jax.jit(jax.grad(lambda c: jnp.sum(metrics.cost_ratio(c, BEST)[:2])))(COST)
    assert np.isfinite(slopes).all()


def test_average_cost():
    np.testing.assert_allclose(metrics.average_cost(COST), 2.25)
    np.testing.assert_allclose(metrics.average_cost(COST, BEST), 9 / 6)  # of means, not the mean of ratios


def test_tail_ratios_are_percentiles():
    ratios = np.random.default_rng(0).uniform(1, 5, 237)
    found = metrics.tail_ratios(to_device(ratios), to_device(np.ones(237)))
    np.testing.assert_allclose(found, np.percentile(ratios, [90, 95, 99, 99.5]), rtol=1e-12)


def test_tail_ratios_with_an_infinite_one():
    """One infinite ratio of eleven: percentiles up to 90 are those of the finite ones, above it they are infinite."""
    cost, best = to_device(np.arange(1.0, 12.0)), to_device(np.append(np.ones(10), 0.0))
    found = metrics.tail_ratios(cost, best, (50.0, 80.0, 90.0, 95.0, 100.0))
    np.testing.assert_array_equal(found, [6.0, 9.0, 10.0, np.inf, np.inf])


def test_tail_ratios_of_several_infinite_ones():
    found = metrics.tail_ratios(to_device(np.ones(4)), to_device(np.zeros(4)), (0.0, 50.0, 99.0))
    np.testing.assert_array_equal(found, [np.inf] * 3)


def test_prediction_error():
    best = _trajectory([[1.0, 0.0], [2.0, 0.0]], [1.5, 2.5])
    advice = jnp.asarray([[1.0, 1.0], [4.0, 0.0]])
    np.testing.assert_allclose(metrics.prediction_error(advice, best), 5.0 / 4.0)
    free = _trajectory([[1.0, 0.0], [2.0, 0.0]], [0.0, 0.0])
    assert float(metrics.prediction_error(advice, free)) == np.inf
    assert float(metrics.prediction_error(free.actions, free)) == 0.0


def test_prediction_error_of_a_set():
    best = _trajectory(np.zeros((2, 3, 1)), np.ones((2, 3)))
    np.testing.assert_allclose(metrics.prediction_error(to_device(np.ones((2, 3, 1))), best), [1.0, 1.0])


def test_regret():
    run, other = (_trajectory(np.zeros((2, 1)), hitting) for hitting in ([2.0, 3.0], [1.0, 0.5]))
    assert float(metrics.regret(run, other)) == 3.5
