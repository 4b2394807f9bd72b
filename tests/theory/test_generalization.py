"""Theorem 5.1 without its O(.): for any weights, any reference and any two finite sets of days."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ecl2o import theory
from ecl2o.evaluation import solve_transport

DAYS, WIDTH, RHO_BAR = 6, 2, 0.4


def figures(weights, days):
    """(cost, prediction loss) of each day: both of slope at most 1 in the day, both non-negative."""
    distance = np.linalg.norm(days - weights, axis=1)
    return distance, np.maximum(distance - RHO_BAR, 0)


def draw(seed):
    rng = np.random.default_rng(seed)
    training = rng.normal(size=(DAYS, WIDTH))
    elsewhere = rng.normal(rng.normal(size=WIDTH) * rng.choice([0.0, 3.0]), 1.0, (DAYS, WIDTH))
    use = training if seed % 3 == 0 else elsewhere
    return training, use, *rng.normal(scale=2.0, size=(2, WIDTH))


def terms(seed, mu):
    """(average cost in use, terms of its bound) of trained and reference weights, any of them."""
    training, use, trained, reference = draw(seed)

    def loss(weights, days):
        cost, prediction = figures(weights, days)
        return mu * prediction + (1 - mu) * cost

    moved = solve_transport(training, use)
    slopes = [moved.slope(loss(weights, training), loss(weights, use)) for weights in (trained, reference)]
    cost, prediction = figures(reference, use)
    return figures(trained, use)[0].mean(), {
        "reference_cost": cost.mean(),
        "reference_prediction_loss": prediction.mean(),
        "mu": mu,
        "training_error": loss(trained, training).mean() - loss(reference, training).mean(),
        "shift_effect": theory.shift_effect(moved.distance, *slopes),
    }


@given(seed=st.integers(0, 10**6), mu=st.floats(0.0, 0.95))
def test_the_average_cost_is_below_its_bound(seed, mu):
    average, known = terms(seed, mu)
    assert average <= float(theory.average_cost_bound(**known)) * (1 + 1e-9) + 1e-9


def test_every_term_is_needed():
    """Left out, it makes the bound false on some of these sets."""
    cases = [terms(seed, 0.5) for seed in range(200)]
    for left_out in ("reference_cost", "reference_prediction_loss", "training_error", "shift_effect"):
        broken = [average > float(theory.average_cost_bound(**known | {left_out: 0.0})) for average, known in cases]
        assert any(broken), left_out


def test_without_shift_the_trained_weights_are_as_good_as_their_training():
    """The same days and mu = 0: the bound is the cost itself."""
    training, _, trained, reference = draw(3)
    cost, other = (figures(weights, training)[0].mean() for weights in (trained, reference))
    bound = theory.average_cost_bound(
        reference_cost=other, reference_prediction_loss=9.0, mu=0.0, training_error=cost - other, shift_effect=0.0
    )
    np.testing.assert_allclose(bound, cost, rtol=1e-12)
