"""What every agent has by default: lookahead, checks of its numbers before a run, and a mask of its weights."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ecl2o as ec
from ecl2o.agents.advisors.constant_weight import ConstantWeight

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
DAY = ec.Instance([0.0], np.sin(np.arange(6.0))[:, None])


def network():
    return ec.advisors.MLP(1, 1, width=3, depth=1, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("agent", "place", "value", "named"),
    [
        (ec.MLAROBD(ec.Greedy()), lambda a: a.trust, -0.1, "trust"),
        (ec.MLAROBD(ec.Greedy()), lambda a: a.lambda1, 0.0, "lambda1"),
        (ec.MLAROBD(ec.Greedy(), lambda2=1.0), lambda a: a.lambda2, -1.0, "lambda2"),
        (ec.ROBD(), lambda a: a.lambda1, 1.5, "lambda1"),
        (ec.Switch(ec.Greedy()), lambda a: a.gamma, 1.0, "gamma"),
        (ec.Guarded(ec.Greedy()), lambda a: a.promises[0].ratio, 0.5, "slack"),
        (ec.ClippedAdvice(ec.Greedy()), lambda a: a.delta, -0.5, "delta"),
        (ec.Competitive(ec.Greedy()), lambda a: a.promises[0].ratio, 0.5, "ratio"),
        (ec.Competitive(ec.Greedy()), lambda a: a.promises[0].allowance, -1.0, "allowance"),
        (ec.OBD(), lambda a: a.gamma, 0.0, "gamma"),
        (ec.ABCS(ec.Greedy()), lambda a: a.slow, 5.0, "slow"),
        (ec.OGD(eta=0.1), lambda a: a.eta, -0.1, "eta"),
        (ec.RHGD(1, smoothness=1.0), lambda a: a.smoothness, float("nan"), "smoothness"),
        (ec.advisors.OnlineRidge(period=4), lambda a: a.ridge, 0.0, "ridge"),
        (ec.Competitive(ec.Greedy()), lambda a: a.promises[0].ratio, float("nan"), "ratio"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ec.AbstractAgent) else None,
)
@pytest.mark.parametrize("wrap", [lambda agent: agent, ec.PureML, lambda agent: ec.Periodic(agent, 3)])
def test_numbers_out_of_range_are_rejected_before_a_run(agent, place, value, named, wrap):
    changed = eqx.tree_at(place, agent, jnp.asarray(value))
    with pytest.raises(ValueError, match=named):
        ec.rollout(wrap(changed), PROBLEM, DAY)


def test_modules_in_fields_are_checked_too():
    agent = eqx.tree_at(lambda a: a.contexts.scale, network(), jnp.zeros(()))
    with pytest.raises(ValueError, match="scale"):
        ec.rollout(ec.PureML(agent), PROBLEM, DAY)
    agent = eqx.tree_at(lambda a: a.usual, ConstantWeight(ec.ROBD()), jnp.zeros(()))
    curved = ec.Problem(ec.CurvedTracking(), PROBLEM.switching)
    with pytest.raises(ValueError, match="usual"):
        ec.rollout(agent, curved, ec.Instance([0.0], np.ones((3, 2))))


def test_a_filter_by_dtype_is_caught_and_the_mask_trains_weights_only():
    """An optimiser that is given every float takes trust below 0 here."""
    agent = ec.MLAROBD(network(), trust=0.01)

    def descend(mask):
        chosen, frozen = eqx.partition(agent, mask)
        optimizer = optax.sgd(10.0)
        gradient = jax.grad(lambda part: ec.rollout(eqx.combine(part, frozen), PROBLEM, DAY).cost)(chosen)
        change, _ = optimizer.update(gradient, optimizer.init(chosen))
        return eqx.combine(optax.apply_updates(chosen, change), frozen), gradient

    everything, gradient = descend(eqx.is_inexact_array)
    assert everything.trust < 0 or everything.lambda1 > 1 or everything.lambda1 <= 0
    with pytest.raises(ValueError, match=r"trust|lambda1"):
        ec.rollout(everything, PROBLEM, DAY)
    weights, _ = descend(ec.trainable_mask(agent))
    assert (weights.trust, weights.lambda1) == (agent.trust, agent.lambda1)
    assert not eqx.tree_equal(weights.advisor, agent.advisor)
    assert float(gradient.trust) != 0  # what a filter by dtype would have followed
    ec.rollout(weights, PROBLEM, DAY)


def test_a_wrapper_looks_as_far_ahead_as_the_agents_inside():
    assert ec.Greedy().lookahead == 0
    assert ec.PureML(ec.Guarded(ec.RHC(2), expert=ec.RHC(4), period=6)).lookahead == 4
    assert ec.Switch(ec.PureML(ec.AFHC(3))).lookahead == 3
