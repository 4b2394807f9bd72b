"""The authors' loss is what a program of its own in NumPy says, value and gradient, and so are its learning rates."""

import functools

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import ecl2o as ec
from ecl2o.agents import trainable_mask
from ecl2o.learning import AUTHORS_RATES_IN_USE

WINDOWS, STEPS, ALPHA, TRUST = 7, 6, 10.0, 0.3
WIDTH, DEPTH = 3, 2
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=ALPHA, dim=1))


def windows() -> np.ndarray:
    """(windows, 1 + steps): the first value is where a window begins."""
    rng = np.random.default_rng(5)
    return np.abs(rng.normal(0.4, 0.3, (WINDOWS, 1))) + 0.3 * rng.normal(size=(WINDOWS, STEPS + 1)).cumsum(axis=1)


# --- the same in NumPy, in the authors' units: squares without halves --------------------------------------------------------


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def lstm_step(weights, y, x, memories):
    """Layers of gates (input, forget, output, candidate) on (input, hidden), then a linear read-out; batches are rows."""
    *layers, (readout, offset) = weights
    inputs, new = np.stack([y, x], axis=1), []
    for (W, b), (hidden, cell) in zip(layers, memories, strict=True):
        taken, kept, shown, candidate = np.split(np.concatenate([inputs, hidden], axis=1) @ W.T + b, 4, axis=1)
        cell = sigmoid(kept) * cell + sigmoid(taken) * np.tanh(candidate)
        inputs = sigmoid(shown) * np.tanh(cell)
        new.append((inputs, cell))
    return (inputs @ readout.T + offset)[:, 0], new


def bill(weights, data, trust):
    """Twice the cost of each window, advised with this trust; None: the network alone."""
    root = np.sqrt((1 + ALPHA * (trust or 0.0)) ** 2 + 4 * ALPHA)
    lambda2 = (root - 1 - ALPHA * (trust or 0.0)) / (2 * ALPHA)  # Theorem 4.1 with m = lambda1 = 1
    x, cost = data[:, 0], np.zeros(len(data))
    memories = [(np.zeros((len(data), WIDTH)),) * 2 for _ in range(DEPTH)]
    for y in data[:, 1:].T:
        advice, memories = lstm_step(weights, y, x, memories)
        played = advice
        if trust is not None:
            played = ((1 + ALPHA * lambda2) * y + ALPHA * x + ALPHA * trust * advice) / (
                1 + ALPHA * (1 + lambda2 + trust)
            )
        cost += (played - y) ** 2 + ALPHA * (played - x) ** 2
        x = played
    return cost


@functools.cache
def optimum():
    """Twice the least cost of each window, by the normal equations of its least-squares problem."""
    move = np.sqrt(ALPHA) * (np.eye(STEPS) - np.eye(STEPS, k=-1))
    A = np.vstack([np.eye(STEPS), move])
    least = []
    for first, *contexts in windows():
        b = np.r_[contexts, np.sqrt(ALPHA) * first, np.zeros(STEPS - 1)]
        x = np.linalg.solve(A.T @ A, A.T @ b)
        least.append(np.sum((A @ x - b) ** 2))
    return np.array(least)


def numpy_loss(weights, data, weight, min_cr):
    ratio = bill(weights, data, None) / optimum()
    robustness = np.mean(np.maximum(ratio - min_cr, 0) + min_cr)
    return weight * robustness + (1 - weight) * 100 * np.mean(bill(weights, data, TRUST))


def central_differences(weights, data, weight, min_cr, reach=1e-5):
    slopes = []
    for array in (array for pair in weights for array in pair):
        for place in np.ndindex(array.shape):
            ends = []
            for way in (reach, -reach):
                array[place] += way
                ends.append(numpy_loss(weights, data, weight, min_cr))
                array[place] -= way
            slopes.append((ends[0] - ends[1]) / (2 * reach))
    return np.array(slopes)


# --- ours beside it ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def setting():
    data = windows()
    advisor = ec.advisors.LSTM(1, 1, width=WIDTH, depth=DEPTH, key=jax.random.key(3))
    agent = ec.MLAROBD(advisor, trust=TRUST)
    instances = ec.Instance(data[:, :1], data[:, 1:, None])
    oracles = jax.vmap(lambda s: ec.oracle(PROBLEM, s))(instances)
    weights = [(np.array(cell.weight), np.array(cell.bias)) for cell in advisor.cells]
    weights.append((np.array(advisor.readout.weight), np.array(advisor.readout.bias)))
    mine, frozen = eqx.partition(agent, trainable_mask(agent))

    @jax.jit
    @jax.value_and_grad
    def ours(mine, weight, min_cr):
        loss = ec.AuthorsLoss(weight, min_cr)
        return loss(eqx.combine(mine, frozen), PROBLEM, instances, oracles)

    def value_and_gradient(weight, min_cr):
        value, slope = ours(mine, weight, min_cr)
        return float(value), np.asarray(ravel_pytree(slope)[0])

    return data, weights, value_and_gradient


@pytest.mark.parametrize(("weight", "min_cr"), [(0.6, 2.0), (0.25, 10.0), (0.0, 2.0)])
def test_value_and_gradient_are_those_of_the_same_loss_in_numpy(setting, weight, min_cr):
    data, weights, value_and_gradient = setting
    value, found = value_and_gradient(weight, min_cr)
    np.testing.assert_allclose(value, numpy_loss(weights, data, weight, min_cr), rtol=1e-10)
    expected = central_differences(weights, data, weight, min_cr)
    assert np.linalg.norm(expected) > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max())


def test_the_windows_of_that_test_are_on_both_sides_of_the_floor(setting):
    data, weights, *_ = setting
    ratio = bill(weights, data, None) / optimum()
    for floor in (2.0, 10.0):
        assert 0 < np.mean(ratio > floor) < 1, ratio


def test_a_ratio_below_the_floor_gives_no_gradient(setting):
    """With all of the weight on the ratio and a floor above all of them there is nothing to learn."""
    value, slope = setting[-1](1.0, 1e6)
    assert value == 1e6
    assert not slope.any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ec.AuthorsLoss(weight=1.5), "weight must .*1.5"),
        (lambda: ec.AuthorsLoss(min_cr=-1.0), "min_cr must .*-1"),
        (
            lambda: ec.AuthorsLoss(cost_scale=0.0),
            "cost_scale must be 'oracle', 'instance' or a positive number, got 0.0",
        ),
    ],
)
def test_bad_losses_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_six_stages_of_25_epochs():
    steps, rates = ec.authors_schedule(1416, batch=50)
    assert steps == 25 * 6 * 29 == rates.size  # the last batch of an epoch is not full, as in the authors' data loader
    listed = np.array([4e-4, 3e-4, 2e-4, 1e-4, 6e-5, 3e-5])
    np.testing.assert_array_equal(rates.reshape(6, -1), np.broadcast_to(listed[:, None], (6, 25 * 29)))


def test_the_published_program_sets_its_rates_one_stage_late():
    _, listed = ec.authors_schedule(100)
    _, used = ec.authors_schedule(100, rates=AUTHORS_RATES_IN_USE)
    stage = listed.size // 6
    np.testing.assert_array_equal(used[stage:], listed[:-stage])
    assert (used[:stage] == listed[0]).all()
