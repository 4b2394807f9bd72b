"""Mixture and its exponential weights: the regret bound against hostile sequences, the definition, batches, files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import Observation, Start
from ecl2o.agents.advisors import Mixture, OnlineRidge
from ecl2o.agents.advisors.discounted_forecast import DiscountedForecast, Replayed
from ecl2o.fitting.tasks import unscale_agent
from ecl2o.problem.arrays import to_device
from ecl2o.solvers.exponential_weights import ExponentialWeights
from ecl2o.theory import decay_root

PERIOD, MATURITY, MEMORY = 4, 6, 3.0
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
RHO = float(decay_root(1.0, 10.0))


def regressions():
    small = OnlineRidge(PERIOD, lags=2, harmonics=1, maturity=MATURITY)
    rich = OnlineRidge(PERIOD, lags=2, harmonics=1, maturity=MATURITY, week=2, rich=True, memory=5.0)
    return Mixture([small, rich, ec.ROBD()], PERIOD, MEMORY, MATURITY)


def demand(steps, seed=0, dim=1):
    rng = np.random.default_rng(seed)
    shape = 0.5 + 0.3 * np.sin(2 * np.pi * np.arange(steps) / PERIOD)[:, None]
    return shape + 0.2 * rng.normal(size=(steps, dim))


def hostile(steps, count, seed):
    """Predictions and targets: leaders that turn wrong, a target that avoids the leader, sudden large errors."""
    rng = np.random.default_rng(seed)
    predictions = rng.uniform(-1, 1, (steps, count))
    kind = seed % 4
    if kind == 0:  # two members that are right in turn
        predictions[:, :2] = [[1.0, -1.0]]
        return predictions, np.where(np.arange(steps) % 2 == 0, 1.0, -1.0)
    if kind == 1:  # the best member changes in the middle
        targets = rng.uniform(-1, 1, steps)
        predictions[: steps // 2, 0], predictions[steps // 2 :, 1] = targets[: steps // 2], targets[steps // 2 :]
        return predictions, targets
    if kind == 2:  # errors grow by a factor of a million
        return predictions * 10.0 ** (6 * np.arange(steps)[:, None] / steps), np.zeros(steps)
    return predictions, None  # the target is as far from the mixture as it can be


@jax.jit
def add(state, losses, own, keep):
    after = state.with_losses(losses, own, keep)
    return after, after.weights, after.regret_bound


def weigh(predictions, targets, keep, delay):
    """Losses (steps, n), own losses, regret bounds: weights at t use the losses until t - delay."""
    steps, count = predictions.shape

    state = ExponentialWeights.empty(count, float)
    weights, waiting, found = np.asarray(state.weights), [], []
    for t in range(steps):
        own = weights @ predictions[t]
        target = targets[t] if targets is not None else (-1.0 if own > 0 else 1.0)
        waiting.append(((predictions[t] - target) ** 2, (own - target) ** 2))
        if len(waiting) >= delay:
            losses, own_loss = waiting.pop(0)
            state, weights, bound = add(state, losses, own_loss, keep)
            weights = np.asarray(weights)
            found.append((losses, own_loss, float(bound)))
    losses, own, bounds = zip(*found, strict=True)
    return np.stack(losses), np.array(own), np.array(bounds)


@pytest.mark.parametrize("delay", [1, 7])
@pytest.mark.parametrize("keep", [1.0, 0.97])
@pytest.mark.parametrize("seed", range(4))
def test_the_regret_is_below_its_bound_on_hostile_sequences(seed, keep, delay):
    """At every step, discounted, to the best of five; without a delay also below the bound that is known before the run."""
    predictions, targets = hostile(300, 5, seed)
    losses, own, bounds = weigh(predictions, targets, keep, delay)
    total, mine, worst = np.zeros(5), 0.0, 0.0
    for t, bound in enumerate(bounds):
        total, mine, worst = keep * total + losses[t], keep * mine + own[t], max(worst, float(losses[t].max()))
        scale = 1e-9 * (1 + mine)
        assert mine - total.min() <= bound + scale
        if delay == 1:
            assert bound <= worst * (6 * np.log(5) + 4) + scale


@pytest.mark.parametrize("seed", range(4))
def test_a_combining_mixture_is_below_its_bound_to_the_best_weighted_mean(seed):
    """At every step after the first ones, the best fixed weights found by least squares on the simplex: two members, a grid."""
    rng = np.random.default_rng(seed)
    contexts = demand(200, seed)
    noise = rng.normal(size=200)
    predictions = contexts + np.stack([noise, -noise + 0.3 * rng.normal(size=200)], axis=1)
    members = [Replayed(DiscountedForecast(to_device(p[:, None]), jnp.zeros((200, 3, 1)))) for p in predictions.T]
    mixture = Mixture(members, PERIOD, 1e6, MATURITY, combines=True)
    run = ec.rollout(mixture, PROBLEM, ec.Instance([0.2], contexts))
    own, bound = (
        np.asarray(run.details["discounted_forecast"].mean[:, 0]),
        np.asarray(run.details["regret_bound"][:, 0]),
    )
    y, low, high = contexts[:, 0], *(f.accumulate(contexts[:, 0]) for f in (np.minimum, np.maximum))
    clipped = np.clip(predictions, low[:, None], high[:, None])
    judged, ends = np.arange(200 - MATURITY + 1), np.arange(MATURITY - 1, 200)
    z = (
        np.array([(1 - RHO) * RHO ** np.arange(MATURITY) @ y[s : s + MATURITY] for s in judged])
        + RHO**MATURITY * own[ends]
    )
    shares = np.linspace(0, 1, 101)
    errors = clipped[judged, 0, None] * shares + clipped[judged, 1, None] * (1 - shares) - z[:, None]
    best = np.min(np.cumsum(errors**2, axis=0), axis=1)
    regret = np.cumsum((own[judged] - z) ** 2) - best
    assert (regret <= bound[ends] + 1e-9).all()
    alone = min(np.sum((clipped[judged] - z[:, None]) ** 2, axis=0))
    assert np.sum((own[judged] - z) ** 2) < 0.8 * alone


def test_a_single_leader_is_found():
    """Among four noisy members one that is right: the mixture's loss in the second half is hardly above its own."""
    rng = np.random.default_rng(5)
    targets = rng.normal(size=400)
    predictions = targets[:, None] + rng.normal(size=(400, 5)) * np.array([0.1, 1, 1, 1, 1])
    losses, own, _ = weigh(predictions, targets, 1.0, 3)
    assert own[200:].mean() < 1.05 * losses[200:, 0].mean()


def test_equal_members_are_as_good_as_one():
    one = OnlineRidge(PERIOD, lags=2, harmonics=1, maturity=MATURITY)
    contexts = demand(60)
    instance = ec.Instance([0.2], contexts)
    np.testing.assert_allclose(
        ec.rollout(Mixture([one, one, one], PERIOD, MEMORY, MATURITY), PROBLEM, instance).actions,
        ec.rollout(one, PROBLEM, instance).actions,
        atol=1e-12,
    )


def slow_mixture(y, predictions):
    """zhat from the definition."""
    steps, count = predictions.shape
    keep, losses, gap, zhat, held = 0.5 ** (1 / (MEMORY * PERIOD)), np.zeros(count), 0.0, np.empty(steps), []
    largest = 0.0
    discounts = RHO ** np.arange(MATURITY + 1)

    def exponents(losses):
        above = losses - losses.min()
        total = gap + 1e-3 * largest
        return -np.log(count) / total * above if total > 0 else 0 * above

    def softmin(losses):
        return losses.min() - (gap + 1e-3 * largest) / np.log(count) * np.log(np.exp(exponents(losses)).sum())

    for t in range(steps):
        clipped = np.clip(predictions[t], y[: t + 1].min(), y[: t + 1].max())
        raw = np.exp(exponents(losses))
        zhat[t] = raw / raw.sum() @ clipped
        held.append(clipped)
        s = t - MATURITY + 1
        if s >= 0:
            z = (1 - RHO) * discounts[:-1] @ y[s : t + 1] + discounts[-1] * zhat[t]
            before, new = keep * losses, (held[s] - z) ** 2
            mix = softmin(before + new) - softmin(before)
            losses, gap = before + new, keep * gap + max((zhat[s] - z) ** 2 - mix, 0.0)
            largest = max(largest, new.max())
    return zhat


def test_predictions_are_those_of_the_definition():
    """No target before it has matured, no context before its time."""
    contexts, rng = demand(80, seed=3), np.random.default_rng(8)
    predictions = contexts + rng.normal(size=(80, 4)) * np.array([0.1, 0.2, 0.4, 3.0])
    members = [Replayed(DiscountedForecast(to_device(p[:, None]), jnp.zeros((80, 3, 1)))) for p in predictions.T]
    run = ec.rollout(Mixture(members, PERIOD, MEMORY, MATURITY), PROBLEM, ec.Instance([0.2], contexts))
    mean = run.details["discounted_forecast"].mean[:, 0]
    np.testing.assert_allclose(mean, slow_mixture(contexts[:, 0], predictions), atol=1e-12)
    before = np.concatenate([[[0.2]], run.actions[:-1]])
    np.testing.assert_allclose(run.actions[:, 0], RHO * before[:, 0] + (1 - RHO) * mean, atol=1e-13)


def test_advice_implies_a_prediction():
    """R-OBD is x = rho x_{t-1} + (1 - rho) y, so that its zhat is the context."""
    contexts = demand(30)
    run = ec.rollout(Mixture([ec.ROBD()], PERIOD), PROBLEM, ec.Instance([0.2], contexts))
    np.testing.assert_allclose(run.details["discounted_forecast"].mean, contexts, atol=1e-12)


def test_a_history_is_as_good_as_having_lived_it():
    contexts, mixture = demand(60, seed=4), regressions()
    whole = ec.rollout(mixture, PROBLEM, ec.Instance(contexts[0], contexts))
    state = jax.jit(lambda past: mixture.init(PROBLEM, Start(jnp.asarray(contexts[0]), past)))(contexts[:45])
    now = Observation(jnp.asarray(contexts[45]), whole.actions[44], jnp.asarray(0))
    action = jax.jit(lambda s: mixture.step(PROBLEM, s, now)[1])(state)
    np.testing.assert_allclose(action, whole.actions[45], atol=1e-9)


def test_many_streams_are_single_ones_and_survive_a_file(tmp_path):
    policy, contexts = ec.Policy(regressions(), PROBLEM), np.stack([demand(40, seed) for seed in range(3)], axis=1)
    path = tmp_path / "mixture.ecl2o"
    ec.save(path, policy)
    loaded = ec.load(path)
    together = ec.Runner.many(loaded, np.full((3, 1), 0.2))
    actions = np.stack([together.step(each) for each in contexts])
    for i in range(3):
        alone = ec.Runner(policy, [0.2])
        expected = np.stack([alone.step(context) for context in contexts[:, i]])
        np.testing.assert_allclose(actions[:, i], expected, rtol=0, atol=1e-10)


def test_wrong_settings_are_refused():
    one = [ec.ROBD()]
    for wrong in (
        lambda: Mixture([]),
        lambda: Mixture(one, maturity=1),
        lambda: Mixture(one, memory=0.0),
        lambda: Mixture(one, period=0),
    ):
        with pytest.raises(ValueError):
            wrong()


def test_derivatives_are_finite_where_errors_vanish_in_single_precision():
    """The rate is of the order of 1 / loss: its derivatives would overflow. Weights count as constants."""
    mixture = Mixture([ec.ROBD(), ec.Greedy()], PERIOD, MEMORY, MATURITY)
    contexts = jnp.asarray(1e-12 * demand(40), jnp.float32).at[:30].set(1e-12)

    def cost(y):
        return ec.rollout(mixture, PROBLEM, ec.Instance(jnp.zeros(1, jnp.float32), y)).cost

    gradient = jax.grad(cost)(contexts)
    assert np.isfinite(gradient).all()
    assert (gradient != 0).all()


def test_a_run_starts_with_the_weights_of_an_earlier_one(tmp_path):
    """Its first prediction is their mean, also from a file and in other units; it judges on from there."""
    contexts = demand(120)
    noise = np.random.default_rng(1).normal(size=(120, 2)) * [0.05, 1.0]
    forecasts = [DiscountedForecast(to_device(p[:, None]), jnp.zeros((120, 3, 1))) for p in (contexts + noise).T]

    def mixture(factor, weights=None):
        members = [Replayed(jax.tree.map(lambda leaf: factor * leaf, each)) for each in forecasts]
        return Mixture(members, PERIOD, MEMORY, MATURITY, combines=True, scores_history=False, weights=weights)

    def run(agent, factor=1.0):
        instance = ec.Instance([0.2 * factor], contexts * factor, np.array([[-9.0], [9.0]]) * factor)
        return ec.rollout(agent, PROBLEM, instance).details

    first = run(mixture(1.0))
    weights = jax.tree.map(lambda leaf: leaf[-1], first["weights"])
    shares = np.asarray(jax.vmap(lambda each: each.weights)(weights))[0]
    assert shares[0] > 0.9
    second = run(mixture(1.0, weights))
    expected = (contexts + noise)[0] @ shares
    assert float(second["discounted_forecast"].mean[0, 0]) == pytest.approx(expected, abs=1e-12)
    assert not np.allclose(second["weights"].losses[-1], weights.losses)
    larger = run(unscale_agent(mixture(1000.0, weights), 1000.0), 1000.0)["discounted_forecast"].mean
    np.testing.assert_allclose(larger, 1000 * second["discounted_forecast"].mean, rtol=1e-9)
    agent = Mixture([ec.ROBD(), ec.Greedy()], weights=weights)
    ec.save(tmp_path / "mixture.ecl2o", ec.Policy(agent, PROBLEM))
    loaded = ec.load(tmp_path / "mixture.ecl2o").agent.weights
    jax.tree.map(np.testing.assert_array_equal, loaded, weights)
    with pytest.raises(ValueError, match="3 members"):
        Mixture([ec.ROBD()] * 3, weights=weights)


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_of_a_run_with_weights_counts_the_run_that_they_are_from(seed):
    """To the best of two members over both runs, discounted, where the leader of the first is wrong in the second."""
    keep, discounts = 0.5 ** (1 / (MEMORY * PERIOD)), (1 - RHO) * RHO ** np.arange(MATURITY)
    judged, ends = np.arange(80 - MATURITY + 1), np.arange(MATURITY - 1, 80)
    weights, own_loss, losses, alone = None, 0.0, np.zeros(2), []
    for right in (0, 1):
        y = demand(80, seed + 10 * right)
        predictions = y + np.random.default_rng(seed).normal(size=(80, 2)) * np.where(np.arange(2) == right, 0.02, 0.3)
        members = [Replayed(DiscountedForecast(to_device(p[:, None]), jnp.zeros((80, 3, 1)))) for p in predictions.T]
        mixture = Mixture(members, PERIOD, MEMORY, MATURITY, scores_history=False, weights=weights)
        details = ec.rollout(mixture, PROBLEM, ec.Instance([0.2], y, np.array([[-9.0], [9.0]]))).details
        own, bound = (np.asarray(each)[:, 0] for each in (details["discounted_forecast"].mean, details["regret_bound"]))
        alone.append([])
        for s, end in zip(judged, ends, strict=True):
            z = discounts @ y[s : s + MATURITY, 0] + RHO**MATURITY * own[end]
            own_loss = keep * own_loss + (own[s] - z) ** 2
            losses = keep * losses + (predictions[s] - z) ** 2
            assert own_loss - losses.min() <= bound[end] + 1e-9
            alone[-1].append(own_loss - losses.min())
        weights = jax.tree.map(lambda leaf: leaf[-1], details["weights"])
    assert max(alone[1]) > 0.1  # the change costs something
    assert np.argmin(weights.losses) == 1
