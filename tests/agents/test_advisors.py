"""Networks and structured advisors against plain NumPy, with their scalings, memory and refusals."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import trainable_mask
from ecl2o.agents.advisors.networks import apply_affine, update_cell


def tracking(dim: int) -> ec.Problem:
    return ec.Problem(ec.ConvexCost(lambda x, y: jnp.sum(x**2), 2.0), ec.Mahalanobis.isotropic(alpha=2.0, dim=dim))


def instance_of(dim: int, context_dim: int, steps: int = 6, history: int = 0, seed: int = 0) -> ec.Instance:
    rng = np.random.default_rng(seed)
    past = rng.normal(size=(history, context_dim)) if history else None
    return ec.Instance(rng.normal(size=dim), rng.normal(size=(steps, context_dim)), past)


def actions_of(agent, instance) -> np.ndarray:
    return np.asarray(ec.rollout(agent, tracking(instance.dim), instance).actions)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def numpy_mlp(network, context, previous, _memory):
    inward = [(v - np.asarray(s.offset)) / np.asarray(s.scale) for v, s in _scaled(network, context, previous)]
    hidden = np.concatenate(inward)
    for i, layer in enumerate(network.layers):
        hidden = np.asarray(layer.weight) @ hidden + np.asarray(layer.bias)
        hidden = np.maximum(hidden, 0) if i + 1 < len(network.layers) else hidden
    return hidden * np.asarray(network.actions.scale) + np.asarray(network.actions.offset)


def _scaled(network, context, previous):
    return (context, network.contexts), (previous, network.actions)


def numpy_lstm(network, context, previous, memory):
    """Gates in our order: input, forget, output, candidate. `memory` is a list of [h, c] that is changed in place."""
    hidden = np.concatenate(
        [(v - np.asarray(s.offset)) / np.asarray(s.scale) for v, s in _scaled(network, context, previous)]
    )
    for layer, held in zip(network.cells, memory, strict=True):
        h, c = held
        w = len(h)
        weight, bias = np.asarray(layer.weight), np.asarray(layer.bias)
        gates = weight[:, : len(hidden)] @ hidden + weight[:, len(hidden) :] @ h + bias
        i, f, o, g = gates[:w], gates[w : 2 * w], gates[2 * w : 3 * w], gates[3 * w :]
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        held[:] = [h, c]
        hidden = h
    out = np.asarray(network.readout.weight) @ hidden + np.asarray(network.readout.bias)
    return out * np.asarray(network.actions.scale) + np.asarray(network.actions.offset)


SCALINGS = {
    "plain": {},
    "scaled": {
        "contexts": ec.advisors.Scaling([1.0, -2.0, 0.5], [3.0, 0.2, 1.0]),
        "actions": ec.advisors.Scaling([4.0, 1.0], [0.5, 10.0]),
    },
}


@pytest.mark.parametrize("scalings", SCALINGS)
@pytest.mark.parametrize("kind", ["MLP", "LSTM"])
def test_networks_are_what_numpy_says(kind, scalings):
    """Context first, then the previous action; any d and q; memory is carried from step to step and starts at zero."""
    network = getattr(ec.advisors, kind)(2, 3, width=4, depth=3, key=jax.random.key(1), **SCALINGS[scalings])
    instance = instance_of(2, 3)
    memory = [[np.zeros(4), np.zeros(4)] for _ in range(3)]
    reference = {"MLP": numpy_mlp, "LSTM": numpy_lstm}
    previous, expected = np.asarray(instance.x0), []
    for context in np.asarray(instance.contexts):
        previous = reference[kind](network, context, previous, memory)
        expected.append(previous)
    np.testing.assert_allclose(actions_of(network, instance), expected, rtol=1e-10, atol=1e-12)


def test_the_derivative_of_the_lstm_cell_that_is_written_out():
    """Against automatic differentiation of the same formula, in gates and cell."""

    def plain(gates, cell):
        i, f, o, g = jnp.split(gates, 4)
        new = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(new), new

    rng = np.random.default_rng(0)
    gates, cell = jnp.asarray(2 * rng.normal(size=12)), jnp.asarray(rng.normal(size=3))
    ours, theirs = (jax.jit(jax.jacrev(f, argnums=(0, 1)))(gates, cell) for f in (update_cell, plain))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), ours, theirs)


@pytest.mark.parametrize("mode", [jax.jacrev, jax.jacfwd])
def test_the_derivative_of_an_affine_map_that_is_written_out(mode):
    """Against automatic differentiation of W x + b, forward and backward, with the instances on the last axis."""

    def plain(weight, bias, x):
        return weight @ x + bias

    rng = np.random.default_rng(1)
    given = [jnp.asarray(rng.normal(size=size)) for size in ((4, 3), (4,), (3, 5))]
    ours, theirs = (
        jax.jit(mode(jax.vmap(f, in_axes=(None, None, -1), out_axes=-1), argnums=(0, 1, 2)))(*given)
        for f in (apply_affine, plain)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), ours, theirs)


@pytest.mark.parametrize("kind", ["MLP", "LSTM"])
def test_scalings_take_up_the_unit(kind):
    """The same weights on data in another unit and with another zero propose the same actions, in that unit."""
    make = functools.partial(getattr(ec.advisors, kind), 1, 1, key=jax.random.key(2))
    instance = instance_of(1, 1)
    moved = ec.Instance(instance.x0 * 1000 + 5, instance.contexts * 1000 + 5)
    unit = ec.advisors.Scaling(5.0, 1000.0)
    expected = actions_of(make(), instance) * 1000 + 5
    np.testing.assert_allclose(actions_of(make(contexts=unit, actions=unit), moved), expected, rtol=1e-9)


def test_scaling_of_samples():
    samples = np.random.default_rng(0).normal(3.0, 2.0, size=(50, 3))
    samples[:, 1] = 7.0
    scaling = ec.advisors.Scaling.of(jnp.asarray(samples))
    inside = np.asarray(jax.vmap(scaling.standardize)(jnp.asarray(samples)))
    np.testing.assert_allclose(inside.mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(inside.std(0), [1.0, 0.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(jax.vmap(scaling.restore)(jnp.asarray(inside)), samples, rtol=1e-12)
    with pytest.raises(ValueError, match="scale must be positive"):
        ec.advisors.Scaling(0.0, 0.0)


def test_only_weights_are_trainable():
    """Scalings, trust and lambda1 are arrays too, and are not weights."""
    agent = ec.MLAROBD(ec.advisors.LSTM(2, 1, width=3, depth=2, key=jax.random.key(0)), trust=0.3)
    weights = eqx.filter(agent, trainable_mask(agent))
    sizes = [leaf.size for leaf in jax.tree.leaves(weights)]
    assert sum(sizes) == (12 * (3 + 3) + 12) + (12 * (3 + 3) + 12) + (2 * 3 + 2)
    assert weights.trust is None
    assert weights.advisor.contexts.scale is None


@pytest.mark.parametrize("kind", ["MLP", "LSTM", "SeasonalLinear"])
def test_other_dimensions_are_refused(kind):
    keys = {} if kind == "SeasonalLinear" else {"key": jax.random.key(0)}
    network = getattr(ec.advisors, kind)(2, 3, **keys)
    with pytest.raises(ValueError, match=rf"{kind} was made for 5 numbers .* actions of 2, .* has 3 \+ 1 and 1"):
        ec.rollout(network, tracking(1), instance_of(1, 3))
    with pytest.raises(ValueError, match=rf"{kind} was made for 5 numbers .* actions of 2, .* has 2 \+ 2 and 2"):
        ec.rollout(network, tracking(2), instance_of(2, 2))
    with pytest.raises(ValueError, match="dim must be a positive whole number, got 0"):
        getattr(ec.advisors, kind)(0, 1, **keys)
    if kind != "SeasonalLinear":
        with pytest.raises(ValueError, match=r"width must be a positive whole number, got -2"):
            getattr(ec.advisors, kind)(1, 1, width=-2, **keys)


# --- SeasonalLinear -------------------------------------------------------------------------------------------------

PERIOD, DAYS, RECENT, AHEAD = 4, 2, 3, 5


def numpy_features(seen: np.ndarray, now: int, previous: np.ndarray) -> np.ndarray:
    """By plain reading of the docstring. `seen` are all contexts in order of time, `now` is the present one's place."""
    y = seen[now]
    recent = [seen[now - lag] if now - lag >= 0 else y for lag in range(1, RECENT)]
    profile = []
    for ahead in range(AHEAD + 1):
        same_hour = [now + ahead % PERIOD - PERIOD * k for k in range(1, DAYS + 1)]
        known = [seen[place] for place in same_hour if place >= 0]
        profile.append(np.mean(known, axis=0) if known else y)
    return np.concatenate([previous, y, *recent, *profile])


@pytest.mark.parametrize("history", [0, 1, 3, 6, 8, 13])
def test_seasonal_features_are_what_numpy_says(history):
    """With no history at all, with less than a period, with part of the memory, and with more than fits in it."""
    advisor = ec.advisors.SeasonalLinear(2, 2, period=PERIOD, days=DAYS, recent=RECENT, ahead=AHEAD)
    weight = np.random.default_rng(3).normal(size=advisor.weights.weight.shape) / 4
    advisor = eqx.tree_at(lambda a: a.weights.weight, advisor, jnp.asarray(weight))
    instance = instance_of(2, 2, steps=11, history=history)
    seen = np.concatenate([np.asarray(instance.past), np.asarray(instance.contexts)])
    previous, expected = np.asarray(instance.x0), []
    for step in range(11):
        previous = numpy_features(seen, history + step, previous) @ weight
        expected.append(previous)
    np.testing.assert_allclose(actions_of(advisor, instance), expected, rtol=1e-10)


def test_seasonal_advice_scales_with_its_input():
    advisor = ec.advisors.SeasonalLinear(1, 1, period=PERIOD, days=DAYS)
    weight = np.random.default_rng(3).normal(size=advisor.weights.weight.shape) / 4
    advisor = eqx.tree_at(lambda a: a.weights.weight, advisor, jnp.asarray(weight))
    instance = instance_of(1, 1, steps=10, history=5)
    for factor in (-2.0, 0.0, 1e6):
        scaled = jax.tree.map(lambda leaf, factor=factor: factor * leaf, instance)
        np.testing.assert_allclose(actions_of(advisor, scaled), factor * actions_of(advisor, instance), rtol=1e-10)


def test_seasonal_advisor_starts_as_a_moving_average():
    instance = instance_of(3, 3, steps=8, history=2)
    x, expected = np.asarray(instance.x0), []
    for y in np.asarray(instance.contexts):
        x = 0.7 * x + 0.3 * y
        expected.append(x)
    found = actions_of(ec.advisors.SeasonalLinear(3, 3, period=PERIOD, days=DAYS), instance)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_memory_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match="recent = 4"):
        ec.advisors.SeasonalLinear(1, 1, period=2, days=1, recent=4)
    with pytest.raises(ValueError, match="ahead = -1"):
        ec.advisors.SeasonalLinear(1, 1, ahead=-1)


def test_networks_begin_as_pytorchs_do():
    """Uniform in +-1/sqrt(fan-in); an LSTM layer's bias is the sum of two."""
    width = 400
    lstm = ec.advisors.LSTM(1, 1, width=width, depth=2, key=jax.random.key(0))
    reach = width**-0.5
    for cell in lstm.cells:
        np.testing.assert_allclose(np.std(cell.bias), reach * np.sqrt(2 / 3), rtol=0.05)
        np.testing.assert_allclose(np.std(cell.weight), reach * np.sqrt(1 / 3), rtol=0.02)
    layer = ec.advisors.MLP(1, 1, width=width, depth=2, key=jax.random.key(0)).layers[1]
    np.testing.assert_allclose([np.std(layer.weight), np.std(layer.bias)], reach * np.sqrt(1 / 3), rtol=0.1)


def test_pure_ml_plays_the_nearest_action_in_the_set():
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1), ec.Box(-1.0, 2.0))
    advice = ec.advisors.Fixed([[5.0], [0.5], [-7.0]])
    run = ec.rollout(ec.PureML(advice), problem, ec.Instance([0.0], np.zeros((3, 1))))
    np.testing.assert_array_equal(run.actions, [[2.0], [0.5], [-1.0]])
    np.testing.assert_array_equal(run.advice, run.actions)
