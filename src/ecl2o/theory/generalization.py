"""Costs on days unlike the training days: the average (Theorem 5.1) and the tail (Theorem 5.2), with explicit constants."""

import jax.numpy as jnp
import numpy as np

from ecl2o.theory.forms import Form, Result, Scalar, check_form, compiled
from ecl2o.theory.mla_robd import mla_robd_bound


def average_cost_bound(
    *,
    reference_cost: Scalar,
    reference_prediction_loss: Scalar,
    mu: Scalar,
    training_error: Scalar,
    shift_effect: Scalar,
) -> Result:
    """Bound the average cost of trained weights on the days of use (Theorem 5.1).

    AVG(trained) <= AVG(reference) + mu/(1 - mu) E[l(reference)] + (training_error + shift_effect)/(1 - mu), with expectations
    over the days of use. The paper's reference is W*, the best weights for these days; the inequality holds for any. All in
    units of the loss's cost.

    Args:
        reference_cost: The reference's mean cost on the days of use.
        reference_prediction_loss: E[l] of the reference, relu(rho - rho_bar) on average.
        mu: the weight of the prediction error in the loss, in [0, 1).
        training_error: the trained weights' loss on the training set, less the reference's.
        shift_effect: see `shift_effect`.

    >>> reference = dict(reference_cost=1.0, reference_prediction_loss=0.5)
    >>> float(average_cost_bound(**reference, mu=0.5, training_error=0.1, shift_effect=0.2))
    2.1
    """
    mu = jnp.asarray(mu)
    return reference_cost + (mu * reference_prediction_loss + training_error + shift_effect) / (1 - mu)


def shift_effect(distance: Scalar, slope: Scalar, reference_slope: Scalar) -> Result:
    """Return (slope + reference_slope) D, the greatest change of a difference of losses under a shift of the data.

    The shift is from the *empirical* training set to the days of use, so no probability and no number of samples enter: the
    paper's term sqrt(log(1/delta)/|D|) is the distance of that set from its distribution (erratum E13).

    Args:
        distance: The Wasserstein distance W1 between the two.
        slope: A Lipschitz constant of a day's loss of the trained weights, in the norm of the distance.
        reference_slope: the same of the reference's.

    >>> float(shift_effect(distance=0.5, slope=1.0, reference_slope=3.0))
    2.0
    """
    return (jnp.asarray(slope) + reference_slope) * distance


def mixing_norm(horizon: int, epsilon: float | None, form: Form = "tight") -> float:
    """Return |Gamma|, the mixing norm of a sequence of T errors.

    Gamma = I for independent steps, and Gamma_ij = epsilon^relu(j - i - 1), j >= i, for a uniformly ergodic chain, as the paper
    quotes it. The paper takes the Frobenius norm. The inequality that it rests on (Paulin 2015) has the operator norm: 1 instead
    of sqrt(T) for independent steps, and below 1 + 1/(1 - epsilon) for a chain of any length.

    Args:
        horizon: T.
        epsilon: The share of a step's influence that remains a step later, in [0, 1); None for independent steps.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> [round(mixing_norm(24, None, form=form), 4) for form in ("tight", "paper")]
    [1.0, 4.899]
    >>> [round(mixing_norm(24, 0.5, form=form), 4) for form in ("tight", "paper")]
    [2.9511, 7.3636]
    """
    check_form(form)
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}.")
    if epsilon is not None and not 0 <= epsilon < 1:
        raise ValueError(f"epsilon must lie in [0, 1), got {epsilon}.")
    later = np.arange(horizon)[None, :] - np.arange(horizon)[:, None]
    chain = np.zeros((horizon, horizon)) if epsilon is None else float(epsilon) ** np.maximum(later - 1, 0)
    gamma = np.where(later == 0, 1.0, np.where(later > 0, chain, 0.0))
    return float(np.linalg.norm(gamma, 2 if form == "tight" else "fro"))


@compiled
def tail_prediction_error(
    *,
    rho_bar: Scalar,
    expected_prediction_loss: Scalar,
    expected_cost: Scalar,
    mu: Scalar,
    training_error: Scalar,
    shift_effect: Scalar,
    diameter: Scalar,
    smallest_oracle_cost: Scalar,
    horizon: Scalar,
    mixing_norm: Scalar,
    delta: Scalar,
    partition: Scalar = 1.0,
    form: Form = "tight",
) -> Result:
    """Return rho_tail, a bound on the prediction error that holds with probability 1 - delta (Theorem 5.2).

    rho_tail = rho_bar + E[l] + ((1 - mu) E[cost] + training_error + shift_effect)/mu + c |Gamma| sqrt(b3 T log(k/delta)/2), with
    the reference as in `average_cost_bound`. One step changes l by at most c = omega^2/nu; the paper has twice that. An upper
    tail alone needs k = 1; the paper has 4. It needs nu > 0 (erratum E14).

    Args:
        rho_bar: the threshold of the loss.
        expected_prediction_loss: E[l] of the reference.
        expected_cost: E[cost] of the reference.
        mu: the weight of the prediction error in the loss, in (0, 1].
        training_error: the trained weights' loss on the training set, less the reference's.
        shift_effect: see `shift_effect`.
        diameter: omega, of X.
        smallest_oracle_cost: nu, positive.
        horizon: T.
        mixing_norm: |Gamma|, see `mixing_norm`.
        delta: The probability that the bound fails, in (0, 1).
        partition: b3, 1 for a partition into single steps. Default: 1.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> zero = dict.fromkeys(("training_error", "shift_effect", "diameter"), 0.0)
    >>> known = dict(rho_bar=0.1, expected_prediction_loss=0.2, expected_cost=1.0, mu=0.5, smallest_oracle_cost=1.0)
    >>> round(float(tail_prediction_error(**zero, **known, horizon=24, mixing_norm=1.0, delta=0.05)), 6)
    1.3
    """
    check_form(form)
    mu = jnp.asarray(mu)
    average = rho_bar + expected_prediction_loss + ((1 - mu) * expected_cost + training_error + shift_effect) / mu
    paper = form == "paper"
    step_effect = (2 if paper else 1) * jnp.asarray(diameter) ** 2 / smallest_oracle_cost
    log_confidence = jnp.log((4 if paper else 1) / jnp.asarray(delta))
    return average + step_effect * mixing_norm * jnp.sqrt(partition * horizon * log_confidence / 2)


def tail_ratio_bound(
    m: Scalar, alpha: Scalar, beta: Scalar, trust: Scalar, rho_tail: Scalar, form: Form = "tight"
) -> Result:
    """Bound cost/cost* with probability 1 - delta: Theorem 4.1 at rho = rho_tail (Theorem 5.2).

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        trust: theta = lambda3/lambda1, not negative.
        rho_tail: see `tail_prediction_error`.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> round(float(tail_ratio_bound(1.0, 10.0, 10.0, trust=0.5, rho_tail=1.0)), 4)
    4.8589
    """
    return mla_robd_bound(m, alpha, beta, trust, rho_tail, form)
