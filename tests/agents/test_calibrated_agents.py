"""The agents made of R_lambda: limits and identities between them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o import theory

D, T = 2, 7
RNG = np.random.default_rng(0)
ISOTROPIC = ec.Problem(ec.SquaredTracking(1.5), ec.Mahalanobis.isotropic(alpha=6.0, dim=D))
FACTOR = RNG.normal(size=(D, D))
SKEW = ec.Problem(ec.Quadratic(FACTOR @ FACTOR.T + np.eye(D)), ec.Mahalanobis([[1.0, 0.5], [0.5, 3.0]]))
INSTANCE = ec.Instance(RNG.normal(size=D), 3 * RNG.normal(size=(T, D)))
ADVICE = ec.advisors.Fixed(3 * RNG.normal(size=(T, D)))

run = jax.jit(lambda agent, problem: ec.rollout(agent, problem, INSTANCE).actions)


def test_follows_the_advice_when_trust_is_large():
    np.testing.assert_allclose(run(ec.MLAROBD(ADVICE, trust=1e9), SKEW), ADVICE.actions, atol=1e-7)


def test_is_the_oracle_for_perfect_advice_and_large_trust():
    best = ec.oracle(SKEW, INSTANCE).actions
    np.testing.assert_allclose(run(ec.MLAROBD(ec.advisors.Fixed(best), trust=1e9), SKEW), best, atol=1e-7)


def test_is_the_minimizer_when_lambda2_is_large():
    np.testing.assert_allclose(run(ec.MLAROBD(ADVICE, lambda2=1e10), SKEW), INSTANCE.contexts, atol=1e-7)


@pytest.mark.parametrize("trust", [0.0, 0.4])
def test_lambda1_does_not_matter_on_isotropic_quadratics(trust):
    smallest = float(theory.smallest_lambda1(1.5, 6.0, 6.0, trust))
    reference = run(ec.MLAROBD(ADVICE, trust=trust), ISOTROPIC)
    for lambda1 in np.linspace(smallest * (1 + 1e-12), 1.0, 5):
        np.testing.assert_allclose(
            run(ec.MLAROBD(ADVICE, trust=trust, lambda1=lambda1), ISOTROPIC), reference, atol=1e-10
        )
    if trust == 0.0:
        np.testing.assert_allclose(run(ec.ROBD(lambda1=smallest * (1 + 1e-12)), ISOTROPIC), reference, atol=1e-10)


def test_weights_are_those_of_theorem_4_1():
    """One step by hand: (A + 2 Lambda Q) x = A y + 2 Q (lambda1 x0 + lambda2 y + lambda3 advice)."""
    trust, lambda1 = 0.3, 0.95
    lambda2 = float(theory.optimal_lambda2(SKEW.m, SKEW.alpha, SKEW.beta, trust, lambda1))
    assert lambda2 > 0
    A, Q, y = np.asarray(SKEW.hitting.A), np.asarray(SKEW.Q), np.asarray(INSTANCE.contexts[0])
    lambda3 = trust * lambda1
    anchor = lambda1 * INSTANCE.x0 + lambda2 * y + lambda3 * ADVICE.actions[0]
    expected = np.linalg.solve(A + 2 * (lambda1 + lambda2 + lambda3) * Q, A @ y + 2 * Q @ anchor)
    np.testing.assert_allclose(run(ec.MLAROBD(ADVICE, trust=trust, lambda1=lambda1), SKEW)[0], expected, rtol=1e-10)


@pytest.mark.parametrize(("form", "weights"), [("original", (0.0, 0.0, 1.0)), ("paper", (1.0, 0.0, 1.0))])
def test_follow_prediction(form, weights):
    """The original holds on to the advice only; the paper's also to the previous action (erratum E5)."""
    A, Q = np.asarray(SKEW.hitting.A), np.asarray(SKEW.Q)
    previous = np.asarray(INSTANCE.x0)
    actions = run(ec.FollowPrediction(ADVICE, form=form), SKEW)
    for t in range(T):
        anchor = weights[0] * previous + weights[2] * np.asarray(ADVICE.actions[t])
        previous = np.linalg.solve(A + 2 * sum(weights) * Q, A @ INSTANCE.contexts[t] + 2 * Q @ anchor)
        np.testing.assert_allclose(actions[t], previous, rtol=1e-9, atol=1e-12)


def test_advice_is_clipped_to_the_action_set_and_recorded():
    boxed = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=6.0, dim=D), ec.Box(-1.0, 1.0))
    instance = ec.Instance(np.zeros(D), INSTANCE.contexts)
    trajectory = ec.rollout(ec.MLAROBD(ADVICE, trust=1e9), boxed, instance)
    np.testing.assert_array_equal(trajectory.advice, np.clip(ADVICE.actions, -1, 1))
    np.testing.assert_allclose(trajectory.actions, trajectory.advice, atol=1e-6)


def test_the_advisor_sees_the_played_action():
    """HittingMinimizer calibrated: an advisor that answers with its previous action gets the calibrated one."""
    trajectory = ec.rollout(ec.MLAROBD(ec.Greedy(), trust=0.7), SKEW, INSTANCE)
    previous = jnp.concatenate([INSTANCE.x0[None], trajectory.actions[:-1]])
    A, Q = np.asarray(SKEW.hitting.A), np.asarray(SKEW.Q)
    for t in range(T):
        greedy = np.linalg.solve(A + 2 * Q, A @ INSTANCE.contexts[t] + 2 * Q @ previous[t])
        np.testing.assert_allclose(trajectory.advice[t], greedy, rtol=1e-10)


def test_a_small_lambda1_is_warned_about():
    with pytest.warns(UserWarning, match="lambda1 = .* is below"):
        ec.ROBD(lambda1=0.1).init(ISOTROPIC, ec.Start(jnp.zeros(D), jnp.zeros((0, D))))


def test_parameters_of_agents_can_be_vmapped():
    trusts = jnp.array([0.0, 0.3, 2.0])
    many = jax.vmap(lambda trust: ec.rollout(ec.MLAROBD(ADVICE, trust=trust), SKEW, INSTANCE).actions)(trusts)
    for trust, actions in zip(trusts, many, strict=True):
        np.testing.assert_allclose(actions, run(ec.MLAROBD(ADVICE, trust=trust), SKEW), atol=1e-12)
