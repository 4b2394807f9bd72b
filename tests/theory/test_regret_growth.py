"""Theorem 4.2's second half: weights that fall as 1/sqrt(T) keep the regret O(G sqrt(TL)); fixed ones do not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o import theory

# X is [-1, 1]: contexts, advice and x_0 lie in it, and so does every average of them, so that it need not be enforced.
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1))
G, OMEGA, BUDGET = 1.0, 2.0, 0.5
HORIZONS = (32, 128, 512)
KNOWN = {"budget": BUDGET, "gradient_bound": G, "diameter": OMEGA}


@functools.cache
def experiment(horizon: int):
    """Contexts that go to and fro between the ends of X, and advice that asks to follow them: whoever is drawn to either
    moves at every step, for which an oracle with a small budget does not pay.
    """
    contexts = jnp.where(jnp.arange(horizon) % 2 == 0, 1.0, -1.0)[:, None]
    instance = ec.Instance(jnp.zeros(1), contexts)
    comparator = ec.constrained_oracle(PROBLEM, instance, BUDGET)

    @jax.jit
    def run(lambda2, lambda3):
        played = ec.rollout(ec.MLAROBD(ec.advisors.Fixed(contexts), lambda3, 1.0, lambda2), PROBLEM, instance)
        error = ec.metrics.constrained_prediction_error(contexts, comparator)
        return ec.metrics.regret(played, comparator), jnp.sum(played.switching), error

    return run


def bound(horizon, lambda2, lambda3, **more):
    weights = {"lambda1": 1.0, "lambda2": lambda2, "lambda3": lambda3}
    return float(
        theory.regret_bound(PROBLEM.m, PROBLEM.alpha, PROBLEM.beta, **weights, horizon=horizon, **KNOWN, **more)
    )


def scheduled(horizon):
    return float(theory.sublinear_weights(horizon=horizon, **KNOWN))


def growth(values):
    """The exponent of T over the last two horizons."""
    return np.log(values[-1] / values[-2]) / np.log(HORIZONS[-1] / HORIZONS[-2])


def test_fixed_weights_have_linear_regret():
    regrets = [float(experiment(T)(0.5, 0.5)[0]) for T in HORIZONS]
    assert growth(regrets) == pytest.approx(1.0, abs=0.05)
    assert growth([bound(T, 0.5, 0.5) for T in HORIZONS]) > 0.9


def test_scheduled_weights_have_regret_of_the_order_of_the_root():
    """Per step it vanishes, in fact and in the bound, and it stays below the bound with its constant."""
    regrets = [float(experiment(T)(scheduled(T), scheduled(T))[0]) for T in HORIZONS]
    bounds = [
        float(
            theory.sublinear_regret_bound(
                PROBLEM.m, PROBLEM.alpha, PROBLEM.beta, lambda1=1.0, horizon=T, budget=BUDGET, gradient_bound=G
            )
        )
        for T in HORIZONS
    ]
    assert growth(bounds) == pytest.approx(0.5, abs=1e-9)
    assert all(regret <= limit for regret, limit in zip(regrets, bounds, strict=True))
    assert max(regrets[-1], 0.0) / HORIZONS[-1] < 0.1 * float(experiment(HORIZONS[-1])(0.5, 0.5)[0]) / HORIZONS[-1]


@pytest.mark.parametrize("horizon", [1, 7, 100])
def test_the_constant_is_that_of_the_regret_bound(horizon):
    """Where beta omega is at least 4G, and for advice of which nothing is known."""
    weight = scheduled(horizon)
    whole = theory.sublinear_regret_bound(1.0, 2.0, 2.0, lambda1=1.0, horizon=horizon, budget=BUDGET, gradient_bound=G)
    assert bound(horizon, weight, weight) == pytest.approx(float(whole), rel=1e-12)


def test_the_papers_first_case_needs_an_algorithm_that_moves_at_most_the_budget():
    """Printed: if lambda3 < alpha/beta and it moves at most L, else a bound that does not know the advice."""
    T, lambda3 = HORIZONS[0], 0.5
    regret, movement, error = map(float, experiment(T)(0.0, lambda3))
    assert movement > BUDGET
    told = {"advice_error": error, "form": "paper"}
    unmet = bound(T, 0.0, lambda3, movement=movement, **told)
    assert unmet == bound(T, 0.0, lambda3, **told) == bound(T, 0.0, lambda3, form="paper")
    met = bound(T, 0.0, lambda3, movement=BUDGET, **told)
    base = (1.0 + 0.25) * G * np.sqrt(2 * T * BUDGET / 2.0)
    assert met == pytest.approx((base + lambda3 * error) / (1 - lambda3), rel=1e-12)
    assert unmet == pytest.approx(base + lambda3 * T * OMEGA**2, rel=1e-12)
    assert regret <= unmet


def test_the_prediction_metric_is_the_squared_distance_from_the_constrained_oracle():
    instance = ec.Instance(jnp.zeros(1), jnp.array([[1.0], [-0.5], [1.0]]))
    still = ec.constrained_oracle(PROBLEM, instance, 0.0)
    advice = jnp.array([[0.5], [-0.5], [1.0]])
    np.testing.assert_allclose(ec.metrics.constrained_prediction_error(advice, still), 1.5, rtol=1e-12)
    best = ec.oracle(PROBLEM, instance)
    relative = ec.metrics.constrained_prediction_error(advice, best) / best.cost
    np.testing.assert_allclose(ec.metrics.prediction_error(advice, best), relative, rtol=1e-12)
