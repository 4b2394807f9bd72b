"""Training: what changes and what does not, one program for all settings, and refusals that name what is wrong."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ecl2o as ec
from ecl2o.agents import trainable_mask
from ecl2o.learning import AbstractLoss
from ecl2o.problem.arrays import to_device

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


def instances(count=12, seed=0, horizon=4):
    rng = np.random.default_rng(seed)
    return ec.Instance(rng.uniform(size=(count, 1)), rng.uniform(size=(count, horizon, 1)))


def agent(trust=0.3, seed=0, kind="MLP"):
    scaling = ec.advisors.Scaling(0.5, 0.25)
    network = getattr(ec.advisors, kind)(1, 1, width=4, depth=2, key=jax.random.key(seed), actions=scaling)
    return ec.MLAROBD(network, trust=trust)


def far_off():
    """An advisor whose actions explode."""
    average = ec.PureML(ec.advisors.SeasonalLinear(1, 1, period=2, days=1))
    return eqx.tree_at(lambda a: a.advisor.weights.weight, average, replace_fn=lambda w: w + 2.0)


fit = functools.partial(ec.fit, problem=PROBLEM, steps=30, batch=5, dtype="float64")
fit_many = functools.partial(ec.fit_many, problem=PROBLEM, steps=30, batch=5, dtype="float64")


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_equal(one, other):
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


# --- what changes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_only_weights_change_and_every_precision_is_restored(dtype):
    """Trust, lambda1 and scalings come back bit for bit, whatever precision training had; weights all moved."""
    before = agent(trust=0.1)  # 0.1 is another number in single precision
    after = fit(before, instances=instances(), key=jax.random.key(0), dtype=dtype).agent
    old, new = (eqx.partition(tree, trainable_mask(tree)) for tree in (before, after))
    assert_equal(old[1], new[1])
    for a, b in zip(leaves(old[0]), leaves(new[0]), strict=True):
        assert a.dtype == b.dtype == np.float64
        assert not np.array_equal(a, b)
    assert jax.tree.structure(before) == jax.tree.structure(after)


@pytest.mark.optimised
def test_training_lowers_the_loss_and_is_logged():
    setting = {"instances": instances(), "key": jax.random.key(0), "steps": 150, "learning_rate": 0.05}
    log = fit(far_off(), loss=ec.StandaloneLoss(), **setting).log
    assert log.loss.shape == (150,)
    assert log.loss[-1] < 0.1 * log.loss[0]
    oracles = jax.device_get(jax.vmap(lambda s: ec.oracle(PROBLEM, s))(instances()))
    np.testing.assert_allclose(log.cost_factor, 1 / np.mean(oracles.cost), rtol=1e-12)
    assert log.validation_steps.size == 0
    assert log.best_step == 150
    assert log.loss_evaluations == 450
    assert log.gradient_report == {}


def test_the_same_key_gives_the_same_result_and_another_does_not():
    one, again, other = (fit(agent(), instances=instances(), key=jax.random.key(k)) for k in (3, 3, 4))
    assert_equal(one.agent, again.agent)
    np.testing.assert_array_equal(one.log.loss, again.log.loss)
    assert not np.array_equal(one.log.loss, other.log.loss)


def test_a_step_is_adams():
    """Two steps by hand: bias-corrected moments, the rate of each step, batches as drawn (here the whole set)."""
    data, loss = instances(count=3), ec.StandaloneLoss(cost_scale=1.0)
    oracles = jax.vmap(lambda s: ec.oracle(PROBLEM, s))(data)
    weights, frozen = eqx.partition(agent(), trainable_mask(agent()))
    slope = jax.jit(jax.grad(lambda w: loss(eqx.combine(w, frozen), PROBLEM, data, oracles)))
    weights = jax.device_get(weights)
    m = v = jax.tree.map(np.zeros_like, weights)
    for step, rate in enumerate((0.1, 0.02), start=1):
        g = jax.device_get(slope(weights))
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, v, g)
        move = jax.tree.map(lambda m, v, s=step: m / (1 - 0.9**s) / (np.sqrt(v / (1 - 0.999**s)) + 1e-8), m, v)
        weights = jax.tree.map(lambda w, u, rate=rate: w - rate * u, weights, move)
    rates = np.array([0.1, 0.02])
    result = fit(agent(), instances=data, loss=loss, key=jax.random.key(0), steps=2, batch=3, schedule=rates)
    for a, b in zip(leaves(result.agent), leaves(eqx.combine(weights, frozen)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_every_instance_is_seen_once_an_epoch():
    """Batches of 4 out of 12, by the log of a loss that says which instances it saw; in another order each epoch."""
    data = ec.Instance(np.zeros((12, 1)), 8.0 ** np.arange(12)[:, None, None] * np.ones((12, 1, 1)))
    log = fit(agent(), instances=data, loss=Seen(cost_scale=1.0), key=jax.random.key(0), steps=15, batch=4).log
    epochs = log.loss.reshape(5, 3)
    assert (epochs.sum(1) == (8**12 - 1) / 7).all()
    assert len(np.unique(epochs[:, 0])) > 1


class Seen(AbstractLoss):
    """The sum of the first contexts of a batch, and a gradient of zero."""

    def __call__(self, agent, problem, instances, oracles):
        return jnp.sum(instances.contexts[:, 0, 0]) + 0.0 * agent.advisor.layers[0].bias.sum()


# --- one program ----------------------------------------------------------------------------------------------------


TRACES = []


class Counted(AbstractLoss):
    """EC-L2O's loss, and a note of each time it is traced."""

    inner: ec.CalibratedLoss

    def __call__(self, agent, problem, instances, oracles):
        TRACES.append(1)
        return self.inner(agent, problem, instances, oracles)


def test_one_compilation_serves_all_settings():
    """Any number of steps, seed, trust, mu, learning rate and schedule; several chunks, and a shorter last one."""

    def counted(mu):
        return Counted(ec.CalibratedLoss(mu=mu))

    fit(agent(), instances=instances(), loss=counted(0.1), key=jax.random.key(0))
    first = len(TRACES)
    assert first >= 1
    again = functools.partial(fit, instances=instances())
    again(agent(trust=0.7), loss=counted(0.2), key=jax.random.key(1), steps=1)
    again(agent(seed=5), loss=counted(0.3), key=jax.random.key(2), steps=230, learning_rate=1e-4, schedule="constant")
    again(agent(), loss=counted(0.0), key=jax.random.key(3), schedule=optax.cosine_decay_schedule(1e-3, 30))
    assert len(TRACES) == first


def test_padding_the_last_chunk_changes_nothing():
    """A run of 130 steps is the first 130 of one that was planned longer: the rates are the same, the rest is padding."""
    rates = np.linspace(1e-2, 1e-3, 150)
    runs = [fit(agent(), instances=instances(), key=jax.random.key(0), steps=n, schedule=rates[:n]) for n in (130, 150)]
    np.testing.assert_array_equal(runs[0].log.loss, runs[1].log.loss[:130])
    assert not np.array_equal(runs[0].agent.advisor.layers[0].weight, runs[1].agent.advisor.layers[0].weight)


# --- validation -----------------------------------------------------------------------------------------------------


def test_the_best_weights_on_validation_are_kept():
    """Trained to chase one jump, checked where nothing but noise moves: later is worse, and the first check is kept."""
    jump = ec.Instance(np.zeros((5, 1)), np.ones((5, 4, 1)))
    noise = ec.Instance(np.zeros((6, 1)), np.random.default_rng(0).normal(size=(6, 4, 1)))
    start = ec.PureML(ec.advisors.SeasonalLinear(1, 1, period=2, days=1))
    train = functools.partial(
        fit, start, instances=jump, loss=ec.StandaloneLoss(), key=jax.random.key(0), steps=250, learning_rate=0.01
    )
    kept, last = train(validation=noise), train()
    assert kept.log.validation_steps.tolist() == [100, 200, 250]
    best = int(np.argmin(kept.log.validation_cost))
    assert best < 2
    assert kept.log.best_step == kept.log.validation_steps[best]
    bests = jax.vmap(lambda s: ec.oracle(PROBLEM, s).cost)(noise)

    def cost_of(result):
        runs = jax.vmap(lambda s: ec.rollout(result.agent, PROBLEM, s).cost)(noise)
        return float(runs.mean() / bests.mean())

    np.testing.assert_allclose(cost_of(kept), kept.log.validation_cost[best], rtol=1e-10)
    np.testing.assert_allclose(cost_of(last), kept.log.validation_cost[-1], rtol=1e-10)
    np.testing.assert_array_equal(kept.log.loss, last.log.loss)


def test_of_equally_good_weights_the_first_are_kept():
    """Steps too small for single precision change nothing, so that every check finds the same cost."""
    jump = ec.Instance(np.zeros((5, 1)), np.ones((5, 4, 1)))
    start = ec.PureML(ec.advisors.SeasonalLinear(1, 1, period=2, days=1))
    log = fit(
        start,
        instances=jump,
        loss=ec.StandaloneLoss(),
        key=jax.random.key(0),
        steps=250,
        learning_rate=1e-30,
        validation=jump,
    ).log
    assert len(set(log.validation_cost.tolist())) == 1
    assert log.best_step == 100


def test_each_of_many_keeps_its_own_best():
    """As above, beside a run that starts so badly that later is better on any instances."""
    jump = ec.Instance(np.zeros((5, 1)), np.ones((5, 4, 1)))
    noise = ec.Instance(np.zeros((6, 1)), np.random.default_rng(0).normal(size=(6, 4, 1)))
    good = ec.PureML(ec.advisors.SeasonalLinear(1, 1, period=2, days=1))
    setting = {"instances": jump, "losses": ec.StandaloneLoss(), "steps": 250, "validation": noise}
    keys = [jax.random.key(0), jax.random.key(1)]
    logs = [result.log for result in fit_many([good, far_off()], keys=keys, learning_rates=0.01, **setting)]
    assert logs[0].best_step < 250
    assert logs[1].best_step == 250
    for log in logs:
        assert log.best_step == log.validation_steps[np.argmin(log.validation_cost)]


# --- many at once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["MLP", "LSTM"])
def test_many_fits_are_single_fits(kind):
    """Differing in seed, trust, mu and learning rate at once."""
    rates, data = [3e-3, 1e-2, 1e-3], instances()
    agents = [agent(trust, seed, kind) for seed, trust in enumerate((0.1, 0.5, 2.0))]
    losses = [ec.CalibratedLoss(mu=mu, rho_bar=0.1) for mu in (0.0, 0.4, 0.9)]
    keys = [jax.random.key(seed) for seed in (5, 6, 7)]
    together = fit_many(agents, instances=data, losses=losses, keys=keys, learning_rates=rates)
    for i, result in enumerate(together):
        alone = fit(agents[i], instances=data, loss=losses[i], key=keys[i], learning_rate=rates[i])
        for a, b in zip(leaves(result.agent), leaves(alone.agent), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(result.log.loss, alone.log.loss, rtol=1e-8)


# --- schedules ------------------------------------------------------------------------------------------------------


def test_schedules_of_every_kind_are_the_same_rates():
    """An optax schedule, its values as an array, and the built-in names."""
    train = functools.partial(fit, agent(), instances=instances(), key=jax.random.key(0))
    n = 30
    cosine = optax.cosine_decay_schedule(3e-3, n)
    by_name, by_schedule = train(), train(schedule=cosine)
    by_array = train(schedule=jax.vmap(cosine)(jnp.arange(n)))
    for other in (by_schedule, by_array):
        np.testing.assert_allclose(by_name.log.loss, other.log.loss, rtol=1e-6)
    constant, by_optax = train(schedule="constant"), train(schedule=optax.constant_schedule(3e-3))
    np.testing.assert_allclose(constant.log.loss, by_optax.log.loss, rtol=1e-6)
    assert not np.allclose(constant.log.loss[-1], by_name.log.loss[-1], rtol=1e-6)


# --- what the caller hears ------------------------------------------------------------------------------------------


def test_oracles_that_are_known_are_not_solved_again():
    """They give the same bits; those of instances that cost twice as much are taken as they are, and others are refused."""
    data = instances()
    known = ec.offline.oracle_batch(PROBLEM, data)
    doubled, shorter = (
        jax.tree.map(lambda leaf, change=change: to_device(change(np.asarray(leaf))), known)
        for change in (lambda leaf: 2 * leaf, lambda leaf: leaf[:, :3])
    )
    train = functools.partial(fit_many, [agent()], instances=data, keys=[jax.random.key(0)])
    (own,), (given,) = train(), train(oracles=known)
    assert_equal(own, given)
    (other,) = train(oracles=doubled)
    assert other.log.cost_factor == pytest.approx(own.log.cost_factor / 2)
    with pytest.raises(ValueError, match=r"oracles must be those of the instances, \(12, 4\) steps, got \(12, 3\)"):
        train(oracles=shorter)
    failed = to_device(np.arange(48).reshape(12, 4) != 7)  # one step of one of them
    with pytest.raises(ValueError, match="the oracle did not converge on 1 instances"):
        train(oracles=eqx.tree_at(lambda run: run.converged, known, failed))


def test_progress_is_told_after_each_chunk():
    told = []
    result = fit(
        agent(),
        instances=instances(),
        key=jax.random.key(0),
        steps=230,
        progress=lambda step, steps, loss: told.append((step, steps, loss)),
    )
    assert [(step, steps) for step, steps, _ in told] == [(100, 230), (200, 230), (230, 230)]
    assert [loss for _, _, loss in told] == [result.log.loss[step - 1] for step, _, _ in told]


def test_progress_of_many_is_told_their_mean_loss():
    told = []
    many = fit_many(
        [agent(), agent(trust=2.0)],
        instances=instances(),
        keys=[jax.random.key(0)] * 2,
        progress=lambda step, steps, loss: told.append(loss),
    )
    assert told == [pytest.approx(np.mean([result.log.loss[-1] for result in many]))]


@pytest.mark.parametrize("wild", [7, 121])
def test_a_loss_that_is_not_finite_stops_training_at_its_step(wild):
    """A step of absurd length leaves weights whose loss, at the next step, is not a number any more."""
    rates = np.full(140, 1e-3)
    rates[wild - 1] = 1e200
    with pytest.raises(FloatingPointError, match=rf"the loss became \S+ at step {wild + 1}"):
        fit(agent(), instances=instances(), key=jax.random.key(0), steps=140, schedule=rates)


def test_the_run_that_failed_is_named():
    with pytest.raises(FloatingPointError, match=r"the loss of run 1 became \S+ at step 2"):
        fit_many(
            [agent(), agent()],
            instances=instances(),
            keys=[jax.random.key(0)] * 2,
            learning_rates=[1e-3, 1e200],
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps and batch must be positive, got 0 and 5"),
        ({"batch": 0}, "steps and batch must be positive, got 30 and 0"),
        ({"schedule": "linear"}, "schedule must be 'cosine', 'constant', an optax schedule or an array, got 'linear'"),
        ({"schedule": np.ones(7)}, r"one rate per step, 30 in all, got shape \(7,\)"),
        ({"learning_rate": -1.0}, "learning_rates must be positive and finite, got -1"),
        ({"learning_rate": float("nan")}, "learning_rates must be positive and finite, got nan"),
        ({"dtype": "int32"}, "dtype must be a floating-point type, got 'int32'"),
        (
            {"instances": jax.tree.map(lambda leaf: leaf[0], instances())},
            "takes a set of instances with a leading axis",
        ),
        ({"agent": ec.ROBD(), "loss": ec.StandaloneLoss()}, "ROBD has no weights to train"),
    ],
)
@pytest.mark.usefixtures("as_users_run_it")
def test_bad_settings_are_refused(change, message):
    setting = {"agent": agent(), "instances": instances(), "key": jax.random.key(0), **change}
    with pytest.raises(ValueError, match=message):
        fit(**setting)


@pytest.mark.parametrize(
    ("agents", "change", "message"),
    [
        ([], {"keys": []}, "agents must not be empty"),
        ([agent()], {"keys": []}, "keys must have one key per agent, 1 in all, got 0"),
        ([agent()], {"losses": [ec.StandaloneLoss()] * 2}, "losses must have one entry per agent, 1 in all, got 2"),
        ([agent(), ec.PureML(agent())], {}, "agents must all have the same structure"),
        ([agent()] * 2, {"losses": [ec.StandaloneLoss(), ec.TailLoss()]}, "losses must all have the same structure"),
    ],
)
def test_many_that_do_not_fit_together_are_refused(agents, change, message):
    setting = {"instances": instances(), "keys": [jax.random.key(i) for i in range(len(agents))], **change}
    with pytest.raises(ValueError, match=message):
        fit_many(agents, **setting)


def test_a_network_for_other_dimensions_is_refused():
    wide = ec.MLAROBD(ec.advisors.MLP(2, 2, key=jax.random.key(0)))
    with pytest.raises(ValueError, match="MLP was made for 4 numbers of context and previous action"):
        fit(wide, instances=instances(), key=jax.random.key(0))
