"""The formulas: golden values, identities between them, and limits. That they hold is tested in tests/properties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecl2o import theory
from ecl2o.problem.arrays import to_device

POSITIVE = st.floats(0.05, 50.0)

# Compiled once: hypothesis calls them many times.
bound = jax.jit(theory.mla_robd_bound, static_argnames="form")
bound_at = jax.jit(theory.mla_robd_bound_at, static_argnames="form")
lambda2 = jax.jit(theory.optimal_lambda2, static_argnames="form")
smallest_lambda1 = jax.jit(theory.smallest_lambda1, static_argnames="form")
optimal_trust = jax.jit(theory.optimal_trust)
useful_error = jax.jit(theory.useful_prediction_error)
decay_root = jax.jit(theory.decay_root)
robd_ratio = jax.jit(theory.robd_ratio)


def test_golden_lambda2():
    trust = jnp.array([0.0, 0.1, 0.3, 0.5])
    expected = [0.270156, 0.231662, 0.174166, 0.135890]
    np.testing.assert_allclose(theory.optimal_lambda2(1.0, 10.0, 10.0, trust), expected, atol=5e-7)


def test_constants_of_the_case_study():
    np.testing.assert_allclose(theory.robd_ratio(1.0, 10.0, 10.0), 3.70156, atol=5e-6)
    np.testing.assert_allclose(theory.exact_robd_ratio(1.0, 10.0), 1.729844, atol=5e-7)
    np.testing.assert_allclose(theory.mla_robd_bound(1.0, 10.0, 10.0, 0.3, 2.0), 2.74166 + 3.0, atol=5e-6)
    np.testing.assert_allclose(theory.mla_robd_bound(1.0, 10.0, 10.0, 0.5, 2.0), 2.35890 + 5.0, atol=5e-6)
    np.testing.assert_allclose(theory.useful_prediction_error(1.0, 10.0, 10.0), 0.8438, atol=5e-5)


@given(m=POSITIVE, beta=POSITIVE)
def test_decay_root_solves_its_equation(m, beta):
    r = float(decay_root(m, beta))
    assert 0 < r < 1
    np.testing.assert_allclose(r + 1 / r, 2 + m / beta, rtol=1e-9)
    # An online algorithm cannot beat the lower bound of every algorithm, and lambda1's smallest value is 1/CR0 at trust 0.
    np.testing.assert_allclose(smallest_lambda1(m, beta, beta, 0.0), 1 / float(robd_ratio(m, beta, beta)), rtol=1e-9)


@given(m=POSITIVE, alpha=POSITIVE, stretch=st.floats(1.0, 20.0), trust=st.floats(0.0, 5.0), slack=st.floats(0.0, 1.0))
@pytest.mark.parametrize("form", ["tight", "paper"])
def test_lambda2_is_the_best_one(form, m, alpha, stretch, trust, slack):
    """The bound at any lambda2 is least at `optimal_lambda2`, where it equals `mla_robd_bound`, for admissible lambda1."""
    beta, rho = alpha * stretch, 0.7
    smallest = float(smallest_lambda1(m, alpha, beta, trust, form=form))
    lambda1 = smallest + slack * max(1 - smallest, 0.0)
    best = float(lambda2(m, alpha, beta, trust, lambda1, form=form))
    others = np.concatenate([[best], best * np.linspace(0, 3, 31), np.logspace(-3, 2, 20)])
    bounds = np.asarray(bound_at(m, alpha, beta, lambda1, others, trust * lambda1, rho, form=form))
    assert bounds.min() >= bounds[0] * (1 - 1e-9)
    np.testing.assert_allclose(bounds[0], bound(m, alpha, beta, trust, rho, form=form), rtol=1e-8)


def test_lambda2_below_the_smallest_lambda1_is_zero():
    smallest = float(theory.smallest_lambda1(1.0, 10.0, 10.0, 0.5))
    assert float(theory.optimal_lambda2(1.0, 10.0, 10.0, 0.5, lambda1=smallest)) == pytest.approx(0.0, abs=1e-12)
    assert float(theory.optimal_lambda2(1.0, 10.0, 10.0, 0.5, lambda1=0.9 * smallest)) == 0.0


def test_no_cancellation_for_large_trust():
    """For b -> infinity: lambda2 -> k/(beta (1 + b)) and the bound -> 1 + k/(m (1 + b))."""
    trust = 1e9
    b = 10.0 * trust
    np.testing.assert_allclose(theory.optimal_lambda2(1.0, 10.0, 10.0, trust), 1 / (1 + b), rtol=1e-8)
    np.testing.assert_allclose(theory.mla_robd_bound(1.0, 10.0, 10.0, trust, 0.0) - 1, 10.0 / (1 + b), rtol=1e-5)
    np.testing.assert_allclose(theory.smallest_lambda1(1.0, 10.0, 10.0, trust), 1.0, rtol=1e-8)


def test_tight_is_never_above_paper():
    beta = to_device(np.linspace(2.0, 50.0, 20))
    tight, paper = (np.asarray(theory.robd_ratio(1.0, 2.0, beta, form=f)) for f in ("tight", "paper"))
    assert (tight >= 1).all()
    assert (tight <= paper).all()
    assert (np.asarray(theory.robd_ratio(1.0, 2.0, beta)) == tight).all()  # what is given by default
    np.testing.assert_allclose(theory.robd_ratio(1.0, 2.0, 2.0), theory.robd_ratio(1.0, 2.0, 2.0, form="paper"))


@pytest.mark.parametrize("form", ["tight", "paper"])
def test_what_is_built_on_a_bound_has_its_form(form):
    """Where Q is not isotropic, the two differ."""
    constants, expert = (1.0, 2.0, 10.0), float(theory.robd_ratio(1.0, 2.0, 10.0, form=form))
    np.testing.assert_allclose(theory.guarded_ratio(*constants, slack=0.5, form=form), 1.5 * expert)
    np.testing.assert_allclose(
        theory.clipped_prediction_error(*constants, delta=0.5, form=form), 4 * (1.5 * expert + 1)
    )
    np.testing.assert_allclose(
        theory.tail_ratio_bound(*constants, 0.3, 0.7, form=form), theory.mla_robd_bound(*constants, 0.3, 0.7, form=form)
    )
    useful = float(theory.useful_prediction_error(*constants, form=form))
    below, above = (float(theory.optimal_trust(*constants, rho, form=form)) for rho in (0.999 * useful, 1.001 * useful))
    assert below > 0
    assert above == 0


@given(m=st.floats(0.1, 5.0), beta=st.floats(0.5, 40.0), error=st.floats(0.02, 1.3))
def test_optimal_trust_minimises_the_bound(m, beta, error):
    rho = error / m
    trust = float(optimal_trust(m, beta, beta, rho))
    at_best = float(bound(m, beta, beta, trust, rho))
    around = trust * (1 + np.array([-1e-3, 1e-3]))
    grid = np.concatenate([[0.0], np.logspace(-4, 4, 400), around])
    assert at_best <= np.asarray(bound(m, beta, beta, grid, rho)).min() * (1 + 1e-12)
    useful = float(useful_error(m, beta, beta))
    if abs(rho - useful) > 1e-9:
        assert (trust > 0) == (rho < useful)


def test_optimal_trust_at_the_ends():
    assert float(theory.optimal_trust(1.0, 10.0, 10.0, 0.0)) == np.inf
    assert float(theory.optimal_trust(1.0, 10.0, 10.0, 3.0)) == 0.0
    assert np.isfinite(jax.grad(lambda rho: theory.optimal_trust(1.0, 10.0, 10.0, rho))(0.2))


@pytest.mark.parametrize("T", [1, 2, 5, 30])
def test_eigenvalues_of_the_movement_of_a_path(T):
    """D'D, D = I - shift: its extreme eigenvalues are those in `pure_ml_lower_bound` (E6) and `path_strong_convexity` (E8)."""
    D = np.eye(T) - np.eye(T, k=-1)
    eigenvalues = np.linalg.eigvalsh(D.T @ D)
    np.testing.assert_allclose(theory.path_strong_convexity(0.3, 7.0, T), 0.3 + 7.0 * eigenvalues[0], rtol=1e-10)
    for alpha in (7.0, 0.2):
        slope = 2 * (float(theory.pure_ml_lower_bound(0.3, alpha, 1.0, horizon=T, beta=7.0)) - 1) - 0.3
        np.testing.assert_allclose(slope, 7.0 * eigenvalues[-1], rtol=1e-10)


def test_lemma_d1_as_printed_is_false():
    """Erratum E8: at T = 2 the strong convexity exceeds the paper's upper bound m + beta/T^2."""
    assert float(theory.path_strong_convexity(1.0, 1.0, 2)) > float(
        theory.path_strong_convexity(1.0, 1.0, 2, form="paper")
    )


def test_pure_ml_lower_bound_grows_to_its_limit():
    horizons = [2, 5, 50, 10**4]
    bounds = [float(theory.pure_ml_lower_bound(1.0, 10.0, 1.0, horizon=T)) for T in horizons]
    assert bounds == sorted(bounds)
    np.testing.assert_allclose(bounds[-1], theory.pure_ml_lower_bound(1.0, 10.0, 1.0), rtol=1e-6)
    assert bounds[0] >= float(theory.pure_ml_lower_bound(1.0, 10.0, 1.0, form="paper"))


def test_regret_bound_of_the_paper_changes_branch_at_alpha_over_beta():
    values = {"lambda1": 1.0, "lambda2": 0.2, "horizon": 10, "budget": 3.0, "gradient_bound": 2.0, "diameter": 1.5}
    values["movement"] = 3.0
    below = theory.regret_bound(1.0, 4.0, 8.0, lambda3=0.25, advice_error=6.0, form="paper", **values)
    anchored = (1.0 + 1.0 / 16.0) * 2.0 * np.sqrt(2 * 10 * 3.0 / 4.0) + 0.2 * 8.0 * 10 * 1.5**2 / 2
    np.testing.assert_allclose(below, 4.0 / (4.0 - 2.0) * (anchored + 0.25 * 8.0 * 6.0 / 2), rtol=1e-12)
    above = theory.regret_bound(1.0, 4.0, 8.0, lambda3=0.75, advice_error=6.0, form="paper", **values)
    np.testing.assert_allclose(above, anchored + 0.75 * 8.0 * 10 * 1.5**2 / 2, rtol=1e-12)
    for bound, error in ((2.0, 6.0), (20.0, np.inf)):  # the one or the other is the smaller, of slopes and of errors
        tight = theory.regret_bound(
            1.0, 4.0, 8.0, lambda3=0.75, advice_error=error, **(values | {"gradient_bound": bound})
        )
        slope = (1.0 + 1.0 / 16.0) * min(4 * bound, 8.0 * 1.5) * np.sqrt(2 * 10 * 3.0 / 4.0)
        expected = slope + 0.2 * 8.0 * 10 * 1.5**2 / 2 + 0.75 * 4.0 * min(error, 10 * 1.5**2)
        np.testing.assert_allclose(tight, expected, rtol=1e-12)


def test_sublinear_regret_bound_is_that_of_its_weights():
    """Each weight with a share of its own."""
    game = {"horizon": 10, "budget": 3.0, "gradient_bound": 2.0}
    weights = {
        f"lambda{i}": theory.sublinear_weights(diameter=1.5, share=share, **game) for i, share in ((2, 0.5), (3, 2.0))
    }
    expected = theory.regret_bound(1.0, 4.0, 8.0, lambda1=0.9, diameter=1.5, **weights, **game)
    found = theory.sublinear_regret_bound(1.0, 4.0, 8.0, lambda1=0.9, share2=0.5, share3=2.0, **game)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_tail_bound_is_theorem_4_1_at_the_tail_error():
    np.testing.assert_allclose(
        theory.tail_ratio_bound(1.0, 4.0, 9.0, 0.4, 1.3), theory.mla_robd_bound(1.0, 4.0, 9.0, 0.4, 1.3)
    )
    terms = {
        "rho_bar": 0.1,
        "expected_prediction_loss": 0.2,
        "expected_cost": 3.0,
        "mu": 0.6,
        "training_error": 0.05,
        "shift_effect": 0.03,
        "diameter": 0.5,
        "smallest_oracle_cost": 0.4,
        "horizon": 24,
        "mixing_norm": np.sqrt(24),
        "delta": 0.1,
    }
    average = 0.1 + 0.2 + (0.4 * 3.0 + 0.05 + 0.03) / 0.6
    printed = average + 2 * 0.25 / 0.4 * np.sqrt(24) * np.sqrt(24 * np.log(40) / 2)
    np.testing.assert_allclose(theory.tail_prediction_error(form="paper", **terms), printed, rtol=1e-12)
    tight = average + 0.25 / 0.4 * np.sqrt(24) * np.sqrt(24 * np.log(10) / 2)
    np.testing.assert_allclose(theory.tail_prediction_error(**terms), tight, rtol=1e-12)
    wider = average + 2 * (tight - average)  # b3 stands under the root
    np.testing.assert_allclose(theory.tail_prediction_error(partition=4.0, **terms), wider, rtol=1e-12)


@pytest.mark.parametrize("T", [1, 2, 30])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 0.9])
def test_mixing_norms_are_those_of_the_matrix_and_below_its_limits(T, epsilon):
    """Gamma written out entry by entry; the operator norm is never above the Frobenius norm, nor above the sum of a row."""
    gamma = [[0.0 if j < i else epsilon ** max(j - i - 1, 0) for j in range(T)] for i in range(T)]
    np.testing.assert_allclose(theory.mixing_norm(T, epsilon, form="paper") ** 2, np.sum(np.square(gamma)), rtol=1e-12)
    tight = theory.mixing_norm(T, epsilon)
    largest = np.linalg.eigvalsh(np.transpose(gamma) @ gamma)[-1]
    np.testing.assert_allclose(tight**2, largest, rtol=1e-10)
    assert tight <= min(theory.mixing_norm(T, epsilon, form="paper"), 1 + 1 / (1 - epsilon)) * (1 + 1e-12)


@pytest.mark.parametrize(("T", "epsilon"), [(0, 0.5), (5, 1.0), (5, -0.1)])
def test_impossible_mixing_is_refused(T, epsilon):
    with pytest.raises(ValueError, match="must"):
        theory.mixing_norm(T, epsilon)


def test_the_concentration_of_independent_errors_holds():
    """McDiarmid's case, Gamma = I: on bounded independent errors the tail beyond the tight term is rarer than delta."""
    rng, T, delta, largest = np.random.default_rng(0), 12, 0.1, 0.7
    errors = rng.choice([0.0, largest], (20_000, T)).sum(axis=1)
    loss = np.maximum(errors - 3.0, 0)
    terms = {"rho_bar": 0.0, "expected_cost": 0.0, "mu": 0.5, "training_error": 0.0, "shift_effect": 0.0}
    terms |= {"diameter": np.sqrt(largest), "smallest_oracle_cost": 1.0, "horizon": T, "delta": delta}
    limit = theory.tail_prediction_error(
        expected_prediction_loss=loss.mean(), mixing_norm=theory.mixing_norm(T, None), **terms
    )
    assert 0 < np.mean(loss > float(limit)) <= delta
