"""The two trainings that the paper argues against: what they estimate, and how far it is from the true gradient."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import ecl2o as ec
from ecl2o.agents import trainable_mask
from ecl2o.agents.advisors.networks import Affine
from ecl2o.learning import gradients
from ecl2o.learning.gradients import Surrogate
from ecl2o.learning.losses import fix_scale
from ecl2o.problem.arrays import to_device
from matrices import spd


def problem_of(dim, actions=None):
    hitting = ec.SquaredTracking() if dim == 1 else ec.Quadratic(spd(dim, 1, 1.0, 3.0))
    return ec.Problem(hitting, ec.Mahalanobis(spd(dim, 2, 1.0, 2.0)), ec.Everywhere() if actions is None else actions)


def instances_of(dim, count=8, horizon=4):
    rng = np.random.default_rng(dim)
    return ec.Instance(rng.uniform(0, 0.5, (count, dim)), rng.uniform(0, 1, (count, horizon, dim)))


def agent_of(dim, kind="MLP", trust=0.5, seed=0):
    return ec.MLAROBD(getattr(ec.advisors, kind)(dim, dim, width=3, depth=1, key=jax.random.key(seed)), trust=trust)


@eqx.filter_jit
def values_and_slopes(gradient, loss, batch, weights, frozen, keys):
    def one(key):
        value, slope = gradient.value_and_grad(lambda agent: loss(agent, *batch), weights, frozen, key)
        return value, ravel_pytree(slope)[0]

    return jax.lax.map(one, keys)


class GradientCase:
    """An agent, cut in two, and its loss on a fixed batch."""

    def __init__(self, problem, agent, loss=None):
        self.problem, self.agent, self.instances = problem, agent, instances_of(agent_dim(problem))
        self.oracles = jax.jit(jax.vmap(lambda s: ec.oracle(problem, s)))(self.instances)
        self._loss = fix_scale(ec.CalibratedLoss(mu=0.3) if loss is None else loss, self.oracles)
        self.weights, self.frozen = eqx.partition(agent, trainable_mask(agent))

    def prepared(self, gradient, key=0):
        return gradient.prepare_for(self.agent, self.problem, self.instances, self.oracles, jax.random.key(key))

    def slopes(self, gradient, keys):
        """(losses, flat gradients), a row per key."""
        batch = self.problem, self.instances, self.oracles
        return jax.device_get(values_and_slopes(gradient, self._loss, batch, self.weights, self.frozen, keys))

    def slope(self, gradient):
        values, slopes = self.slopes(gradient, jax.random.split(jax.random.key(0), 1))
        return values[0], slopes[0]


def agent_dim(problem):
    return problem.Q.shape[0]


@functools.cache
def line():
    setting = GradientCase(problem_of(1), agent_of(1))
    return setting, setting.slope(ec.Backpropagation())


# --- zero order -----------------------------------------------------------------------------------------------------


@functools.cache
def by_zero_order(directions, draws):
    """(losses, flat gradients) of the case on a line, a row per draw."""
    return line()[0].slopes(ec.ZeroOrder(directions), jax.random.split(jax.random.key(directions), draws))


def test_more_directions_come_closer_and_as_close_as_theory_says():
    """Of a linear function, E |estimate|^2 = |g|^2 (1 + (n + 1)/q); the loss is nearly linear over such short moves."""
    _, (_, true) = line()
    cosines = []
    for directions, draws in ((1, 400), (8, 100), (64, 300)):
        _, found = by_zero_order(directions, draws)
        cosines.append(np.mean(found @ true / np.linalg.norm(found, axis=1) / np.linalg.norm(true)))
        blown_up = np.mean(np.sum(found**2, axis=1)) / np.sum(true**2)
        np.testing.assert_allclose(blown_up, 1 + (true.size + 1) / directions, rtol=0.25)
    assert 0 < cosines[0] < cosines[1] < cosines[2]
    assert cosines[2] > 0.85


def test_the_mean_over_many_draws_is_the_true_gradient():
    _, (loss, true) = line()
    values, found = by_zero_order(64, 300)
    expected_error = np.sqrt((true.size + 1) / (64 * 300))  # relative, of a mean over independent directions
    assert np.linalg.norm(found.mean(0) - true) < 2 * expected_error * np.linalg.norm(true)
    np.testing.assert_allclose(values, loss, rtol=1e-3)  # the smoothed loss is logged


def test_moves_are_measured_by_the_size_of_the_weights():
    """On a quadratic loss the antithetic estimate has no bias, and is the same for every reach up to rounding."""
    setting, _ = line()

    def bowl(agent):
        return jnp.sum(ravel_pytree(eqx.filter(agent, trainable_mask(agent)))[0] ** 2)

    @eqx.filter_jit
    def estimate(gradient, weights):
        value, slope = gradient.value_and_grad(bowl, weights, setting.frozen, jax.random.key(0))
        return value, ravel_pytree(slope)[0]

    (_, small), (value, large) = (estimate(ec.ZeroOrder(4, sigma=s), setting.weights) for s in (1e-4, 0.5))
    np.testing.assert_allclose(small, large, rtol=1e-8)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(setting.weights)])
    draws = np.asarray(jax.random.normal(jax.random.key(0), (4, flat.size), flat.dtype))
    expected = np.sum(flat**2) + np.mean(flat**2) * 0.25 * np.mean(np.sum(draws**2, axis=1))
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    nothing = jax.tree.map(lambda leaf: to_device(np.zeros_like(leaf)), setting.weights)
    assert np.isfinite(estimate(ec.ZeroOrder(4), nothing)[1]).all()


# --- a stand-in for the calibrator ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "kind", "straight_through"), [(1, "MLP", False), (3, "LSTM", True)])
def test_a_linear_surrogate_is_exact_where_the_calibrator_is_linear(dim, kind, straight_through):
    setting = GradientCase(problem_of(dim), agent_of(dim, kind))
    surrogate = setting.prepared(ec.SurrogateCalibrator("linear", straight_through, samples=1000))
    true, found = setting.slope(ec.Backpropagation()), setting.slope(surrogate)
    np.testing.assert_allclose(found[0], true[0], rtol=1e-10)
    assert np.linalg.norm(found[1] - true[1]) < 1e-8 * np.linalg.norm(true[1])
    assert surrogate.report()["jacobian_error"] < 1e-10
    assert surrogate.report()["value_error"] < 1e-10


def test_with_active_bounds_it_is_not_and_says_so():
    """Straight through, the loss stays the true one whatever the surrogate; played as it is, it does not."""
    setting = GradientCase(problem_of(1, ec.Box(0.0, 0.5)), agent_of(1))
    value, true = setting.slope(ec.Backpropagation())
    through = setting.prepared(ec.SurrogateCalibrator("linear", samples=500))
    whole = setting.prepared(ec.SurrogateCalibrator("linear", straight_through=False, samples=500))
    assert setting.slope(through)[0] == pytest.approx(value, rel=1e-14)
    assert abs(setting.slope(whole)[0] - value) > 1e-3 * value
    for surrogate in (through, whole):
        assert surrogate.report()["jacobian_error"] > 0.1
        assert np.linalg.norm(setting.slope(surrogate)[1] - true) > 1e-3 * np.linalg.norm(true)


def test_triples_are_drawn_around_the_oracle_of_the_same_step():
    """Previous action and advice each by its own draw, one standard deviation of the coordinate wide, and within bounds."""
    place = np.arange(20.0).reshape(5, 4)
    best, steps = np.stack([place, 100 * place], axis=-1), to_device(np.zeros((5, 4)))
    oracles = ec.Trajectory(to_device(best), steps, steps, None, to_device(np.ones((5, 4), bool)))
    instances = ec.Instance(np.zeros((5, 2)), np.stack([place, -place], axis=-1))
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=2), ec.Box(-np.inf, 1000.0))

    def rule(context, previous, advice):
        return advice

    drawn = gradients._examples(rule, problem, instances, oracles, 5000, jax.random.key(0))
    triples, actions = jax.device_get(drawn)
    context, previous, advice = np.split(triples, 3, axis=1)
    np.testing.assert_array_equal(actions, advice)
    np.testing.assert_array_equal(context[:, 0], -context[:, 1])
    assert set(context[:, 0]) == set(place.ravel())
    away = (np.stack([previous, advice])[..., 0] - context[:, 0]) / place.std()
    np.testing.assert_allclose(np.cov(away), np.eye(2), atol=0.05)
    assert max(previous[:, 1].max(), advice[:, 1].max()) == 1000


def test_a_surrogate_that_is_played_stays_within_bounds():
    plain = ec.advisors.Scaling()
    far = Surrogate((Affine(to_device(np.zeros((1, 3))), to_device(np.array([9.0]))),), plain, plain)
    through = gradients.ThroughSurrogate(ec.MLAROBD(ec.HittingMinimizer()), far, straight_through=False)
    run = ec.rollout(through, problem_of(1, ec.Box(0.0, 0.5)), ec.Instance([0.2], np.ones((3, 1))))
    assert run.actions.tolist() == [[0.5]] * 3


def test_errors_are_those_on_triples_it_has_not_seen():
    """A map with as many numbers as there are triples to fit makes no error on them, bounds or not."""
    setting = GradientCase(problem_of(1, ec.Box(0.3, 0.5)), agent_of(1))
    surrogate = setting.prepared(ec.SurrogateCalibrator("linear", samples=4))
    assert surrogate.report()["value_error"] > 0.1


def test_a_network_as_surrogate_reports_the_error_of_its_jacobians():
    """Close, not exact; the slopes further off than the values; better with more training."""
    setting, (_, true) = line()
    short, long = (setting.prepared(ec.SurrogateCalibrator("mlp", samples=1000, width=16, steps=n)) for n in (30, 1000))
    report = long.report()
    assert 1e-6 < report["jacobian_error"] < 0.1
    assert report["value_error"] < report["jacobian_error"] < short.report()["jacobian_error"]
    away = np.linalg.norm(setting.slope(long)[1] - true) / np.linalg.norm(true)
    assert 1e-8 < away < 0.2


def test_errors_of_a_surrogate_are_measured_rightly():
    """Of a linear rule with a surrogate that is off by known amounts: the slope in the context does not count."""
    true = np.array([[0.2, 0.5, 0.3]])  # context, previous action, advice
    wrong = true + np.array([[9.0, 0.06, -0.08]])
    plain = ec.advisors.Scaling()
    surrogate = Surrogate((Affine(to_device(wrong), to_device(np.zeros(1))),), plain, plain)
    triples = np.random.default_rng(0).normal(size=(50, 3))

    def rule(context, previous, advice):
        return jnp.asarray(true) @ jnp.concatenate([context, previous, advice])

    fitted = gradients.measure_surrogate(surrogate, rule, to_device(triples), 1)
    np.testing.assert_allclose(fitted.jacobian_error, 0.1 / np.hypot(0.5, 0.3), rtol=1e-12)
    actions, off = triples @ true[0], triples @ (wrong - true)[0]
    np.testing.assert_allclose(fitted.value_error, np.sqrt(np.mean(off**2)) / actions.std(), rtol=1e-12)


# --- inside fit -----------------------------------------------------------------------------------------------------

GRADIENTS = {
    "zero order": (ec.ZeroOrder(directions=4), 8, set()),
    "surrogate": (
        ec.SurrogateCalibrator("mlp", samples=1000, width=16, steps=30),
        3,
        {"value_error", "jacobian_error"},
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_many_fits_are_single_fits_and_the_true_agent_comes_out(name):
    gradient, evaluations, reported = GRADIENTS[name]
    problem, data = problem_of(1), instances_of(1)
    agents = [agent_of(1, trust=trust, seed=seed) for seed, trust in enumerate((0.3, 1.0))]
    keys = [jax.random.key(seed) for seed in (5, 6)]
    common = {"steps": 12, "batch": 4, "gradient": gradient, "dtype": "float64"}
    together = ec.fit_many(agents, problem, data, losses=ec.CalibratedLoss(mu=0.2), keys=keys, **common)
    for before, key, result in zip(agents, keys, together, strict=True):
        assert jax.tree.structure(result.agent) == jax.tree.structure(before)
        assert not np.array_equal(result.agent.advisor.layers[0].weight, before.advisor.layers[0].weight)
        assert result.log.loss_evaluations == 12 * evaluations
        assert set(result.log.gradient_report) == reported
        alone = ec.fit(before, problem, data, loss=ec.CalibratedLoss(mu=0.2), key=key, **common)
        for a, b in zip(jax.tree.leaves(result.agent), jax.tree.leaves(alone.agent), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)
        assert result.log.gradient_report == pytest.approx(alone.log.gradient_report, rel=1e-6)


def test_each_step_draws_anew():
    """With a rate too small to move anything and the whole set in each batch, only the draws differ from step to step."""
    result = ec.fit(
        agent_of(1),
        problem_of(1),
        instances_of(1),
        key=jax.random.key(0),
        steps=105,
        batch=8,
        learning_rate=1e-300,
        gradient=ec.ZeroOrder(2, sigma=0.1),
        dtype="float64",
    )
    assert len(np.unique(result.log.loss)) == 105  # in the second chunk too


def test_each_run_fits_a_surrogate_of_its_own():
    gradient, _, _ = GRADIENTS["surrogate"]
    keys, common = [jax.random.key(seed) for seed in (5, 6)], {"steps": 12, "batch": 4, "dtype": "float64"}
    one, other = ec.fit_many(
        [agent_of(1)] * 2,
        problem_of(1),
        instances_of(1),
        losses=ec.CalibratedLoss(mu=0.2),
        keys=keys,
        gradient=gradient,
        **common,
    )
    assert one.log.gradient_report != other.log.gradient_report


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ec.ZeroOrder(directions=0), "directions must be a positive whole number, got 0"),
        (lambda: ec.ZeroOrder(sigma=-1.0), "sigma must be positive, got -1"),
        (lambda: ec.SurrogateCalibrator("tree"), "kind must be 'linear' or 'mlp', got 'tree'"),
        (lambda: ec.SurrogateCalibrator(samples=0), "samples must be a positive whole number, got 0"),
    ],
)
@pytest.mark.usefixtures("as_users_run_it")
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_surrogate_needs_a_calibrator():
    alone = ec.PureML(agent_of(1).advisor)
    with pytest.raises(TypeError, match=r"MLAROBD.* PureML"):
        ec.fit(alone, problem_of(1), instances_of(1), key=jax.random.key(0), gradient=ec.SurrogateCalibrator())
