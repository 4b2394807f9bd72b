"""An agent that knows one weight, where weights change."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents.advisors.constant_weight import ConstantWeight
from matrices import spd

T, USUAL = 48, 1.3


def _setting(dim: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    switching = ec.Mahalanobis(spd(dim, 3, 0.5, 5.0))
    contexts = np.concatenate([rng.normal(size=(T, dim)), rng.uniform(0.5, 2.0, size=(T, 1))], axis=1)
    return ec.Problem(ec.CurvedTracking(0.5, 2.0), switching), rng.normal(size=dim), contexts


@pytest.mark.parametrize("dim", [1, 3])
def test_at_the_usual_weight_it_is_the_agent_itself(dim):
    problem, x0, contexts = _setting(dim)
    contexts[:, -1] = USUAL
    constant = ec.Problem(ec.SquaredTracking(USUAL), problem.switching)
    inside = ec.advisors.OnlineRidge(period=6, maturity=6)
    weighted = ec.rollout(ConstantWeight(inside, USUAL), problem, ec.Instance(x0, contexts, contexts))
    plain = ec.rollout(inside, constant, ec.Instance(x0, contexts[:, :-1], contexts[:, :-1]))
    np.testing.assert_allclose(weighted.actions, plain.actions, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(weighted.cost, plain.cost, rtol=1e-12)


@pytest.mark.parametrize("dim", [1, 3])
def test_a_planner_inside_is_as_exact_as_one_who_knows_the_weights(dim):
    """One weight is unusual, the first, and the rest of a long horizon is known: the oracle's first action."""
    problem, x0, contexts = _setting(dim)
    for weight in (0.5, 1.0, 2.0):
        contexts[:, -1] = USUAL
        contexts[0, -1] = weight
        contexts[1:, :-1] = contexts[1, :-1]  # settled at the end, so that nothing depends on where the horizon is
        best = ec.oracle(problem, ec.Instance(x0, contexts))
        played = ec.rollout(ConstantWeight(ec.RHC(T - 1), USUAL), problem, ec.Instance(x0, contexts))
        np.testing.assert_allclose(played.actions[0], best.actions[0], rtol=1e-8, atol=1e-9)


def test_heavier_steps_are_followed_more_closely():
    problem, x0, contexts = _setting(1)
    agent, at = ConstantWeight(ec.ROBD(), USUAL), []
    for weight in (0.5, 1.0, USUAL, 2.0):
        contexts[0, -1] = weight
        at.append(float(abs(ec.rollout(agent, problem, ec.Instance(x0, contexts)).actions[0, 0] - contexts[0, 0])))
    assert at == sorted(at, reverse=True)
    assert at[0] > 1.1 * at[-1]


def test_refusals():
    problem, x0, contexts = _setting(1)
    with pytest.raises(ValueError, match="usual must be positive"):
        ConstantWeight(ec.ROBD(), 0.0)
    constant = dataclasses.replace(problem, hitting=ec.SquaredTracking())
    with pytest.raises(ec.NotApplicableError, match="ConstantWeight is for CurvedTracking"):
        ec.rollout(ConstantWeight(ec.ROBD()), constant, ec.Instance(x0, jnp.asarray(contexts[:, :1])))
