"""Imitation: what is realisable is found, by each way of asking, and nothing else is learnt."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import ecl2o as ec
from ecl2o.theory import decay_root
from toy_agent import StatelessAgent


class TwoWeights(ec.Trainable):
    context: Float[Array, ""]
    previous: Float[Array, ""]


class Linear(StatelessAgent):
    """Advice = a y_t + b x_{t-1}."""

    weights: TwoWeights

    def act(self, observation):
        return self.weights.context * observation.context + self.weights.previous * observation.previous_action


PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


def linear(a, b):
    return Linear(TwoWeights(jnp.asarray(a), jnp.asarray(b)))


def instances(count=40, horizon=6, seed=0):
    rng = np.random.default_rng(seed)
    return ec.Instance(rng.normal(size=(count, 1)), rng.normal(size=(count, horizon, 1)))


@pytest.mark.parametrize("rollout", ["teacher", "free", "dagger"])
def test_a_linear_learner_finds_the_weights_of_robd(rollout):
    """Isotropic R-OBD is x_t = (1 - r) y_t + r x_{t-1}."""
    loss = ec.ImitationLoss(ec.ROBD(), rollout=rollout)
    result = ec.fit(
        linear(0.9, -0.2),
        PROBLEM,
        instances(),
        loss=loss,
        key=jax.random.key(0),
        steps=600,
        batch=20,
        learning_rate=0.05,
        dtype="float64",
    )
    r = float(decay_root(1.0, 10.0))
    assert result.log.loss[-1] < 1e-6 * result.log.loss[0]
    found = result.agent.weights
    np.testing.assert_allclose([found.context, found.previous], [1 - r, r], atol=1e-4)


@eqx.filter_jit
def loss_and_gradient(loss, agent, given, oracles):
    value, slope = jax.value_and_grad(lambda a: loss(a, PROBLEM, given, oracles))(agent)
    return value, jnp.stack([slope.weights.context, slope.weights.previous])


def by_hand(rollout, shown_from, a, b, given, best):
    """The three losses and gradients for the linear learner, as loops. `shown_from(x_prev, y)` is the online expert."""
    x0, contexts, best = (np.asarray(array)[..., 0] for array in (given.x0, given.contexts, best))
    total, slope = 0.0, np.zeros(2)
    for s in range(len(x0)):
        learner = expert = x0[s]
        sensitivity = np.zeros(2)  # of the learner's own position
        for t, y in enumerate(contexts[s]):
            at = expert if rollout == "teacher" else learner
            proposal = a * y + b * at
            moved = np.array([y, at]) + (b * sensitivity if rollout == "free" else 0.0)
            asked_at = learner if rollout == "dagger" else expert
            shown = best[s, t] if shown_from is None else shown_from(asked_at, y)
            total += (proposal - shown) ** 2 / len(x0)
            slope += 2 * (proposal - shown) * moved / len(x0)
            learner, expert, sensitivity = proposal, shown, moved
    return total, slope


@pytest.mark.parametrize(
    ("rollout", "expert"),
    [("teacher", "robd"), ("free", "robd"), ("dagger", "robd"), ("teacher", "oracle"), ("free", "oracle")],
)
def test_each_way_of_asking_by_hand(rollout, expert):
    """Where the expert is asked, where the learner stands, and through what the derivative goes."""
    given = instances(count=3, horizon=4, seed=1)
    oracles = jax.vmap(lambda s: ec.oracle(PROBLEM, s))(given)
    r = float(decay_root(1.0, 10.0))
    shown_from = None if expert == "oracle" else (lambda x, y: (1 - r) * y + r * x)
    loss = ec.ImitationLoss(None if expert == "oracle" else ec.ROBD(), rollout=rollout)
    value, slope = loss_and_gradient(loss, linear(0.6, 0.5), given, oracles)
    expected, expected_slope = by_hand(rollout, shown_from, 0.6, 0.5, given, oracles.actions)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-10)


@pytest.mark.usefixtures("as_users_run_it")
def test_who_cannot_be_asked_is_refused():
    with pytest.raises(ValueError, match="rollout='dagger' needs an online expert"):
        ec.ImitationLoss(rollout="dagger")
    with pytest.raises(ValueError, match="rollout must be 'teacher', 'free' or 'dagger', got 'student'"):
        ec.ImitationLoss(ec.ROBD(), rollout="student")
