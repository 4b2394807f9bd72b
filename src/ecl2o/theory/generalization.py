"""The average cost on days unlike the training days: Theorem 5.1 of the paper, without its O(.).

The tail of the cost ratio: Theorem 5.2 of the paper, with its constants spelled out.
"""

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
    """AVG(trained) <= AVG(reference) + mu/(1 - mu) E[l(reference)] + (training_error + shift_effect)/(1 - mu).

    The expectations are over the days of use. `training_error` is by how much the trained weights' loss on the *training* set
    exceeds that of the reference; `shift_effect` is what the paper hides in O(.): see `shift_effect`. The paper's reference
    is W*, the best weights for the days of use; the inequality holds for any, with a negative training error where the
    reference does worse in training. All in units of the loss's cost.

    Args:
        reference_cost: the reference's mean cost on the days of use.
        reference_prediction_loss: E[l] of the reference, relu(rho - rho_bar) on average.
        mu: the weight of the prediction error in the loss, in [0, 1).
        training_error: the trained weights' loss on the training set, less the reference's.
        shift_effect: see `shift_effect`.

    >>> float(
    ...     average_cost_bound(
    ...         reference_cost=1.0, reference_prediction_loss=0.5, mu=0.5, training_error=0.1, shift_effect=0.2
    ...     )
    ... )
    2.1
    """
    mu = jnp.asarray(mu)
    return reference_cost + (mu * reference_prediction_loss + training_error + shift_effect) / (1 - mu)


def shift_effect(distance: Scalar, slope: Scalar, reference_slope: Scalar) -> Result:
    """(slope + reference_slope) D: what moving from the training set to the days of use can change a difference of losses by.

    `distance` is the Wasserstein distance W1 between the two, the slopes are Lipschitz constants of the loss of a day, for the
    trained and the reference weights, in the norm that the distance is in. With the *empirical* training set in it, as here, the
    statement needs no probability and no number of samples: the term sqrt(log(1/delta)/|D|) is about how far that set
    is from the distribution that it was drawn from (erratum E13).

    Args:
        distance: W1 between the training set and the days of use.
        slope: a Lipschitz constant of the trained weights' loss.
        reference_slope: the same of the reference's.

    >>> float(shift_effect(distance=0.5, slope=1.0, reference_slope=3.0))
    2.0
    """
    return (jnp.asarray(slope) + reference_slope) * distance


def mixing_norm(horizon: int, epsilon: float | None, form: Form = "tight") -> float:
    """|Gamma| of a sequence of T errors: independent steps (`epsilon=None`, Gamma = I), or a uniformly ergodic chain with
    Gamma_ij = epsilon^relu(j - i - 1) for j >= i, as the paper quotes it.

    The paper takes the Frobenius norm; the inequality that it rests on (Paulin 2015, as we remember it) has the operator
    norm, which is 1 instead of sqrt(T) for independent steps and below 1 + 1/(1 - epsilon) for a chain of any length.

    Args:
        horizon: T.
        epsilon: how much of a step's influence is left a step later, in [0, 1); None: steps are independent.
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
    """rho_tail = rho_bar + E[l] + ((1 - mu) E[cost] + training_error + shift_effect)/mu + concentration.

    E[l], E[cost] and `training_error` are those of a reference, `shift_effect` what the paper hides in its first two O(.), all as
    in `average_cost_bound`. The concentration follows from the appendix with its constants: c |Gamma| sqrt(b3 T log(k/delta)/2)
    with b3 = `partition` (1 for a partition into single steps). One step changes l by at most c = omega^2/nu, the paper says
    twice that; and an upper tail alone, with no share of delta left for the shift, needs k = 1, the paper has 4. It needs
    nu = `smallest_oracle_cost` > 0 (erratum E14).

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
        delta: how likely the bound may fail, in (0, 1).
        partition: b3. Default: 1.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> quiet = dict(
    ...     rho_bar=0.1,
    ...     expected_prediction_loss=0.2,
    ...     expected_cost=1.0,
    ...     mu=0.5,
    ...     training_error=0.0,
    ...     shift_effect=0.0,
    ...     diameter=0.0,
    ...     smallest_oracle_cost=1.0,
    ...     horizon=24,
    ...     mixing_norm=1.0,
    ...     delta=0.05,
    ... )
    >>> round(float(tail_prediction_error(**quiet)), 6)
    1.3
    """
    check_form(form)
    mu = jnp.asarray(mu)
    average = rho_bar + expected_prediction_loss + ((1 - mu) * expected_cost + training_error + shift_effect) / mu
    paper = form == "paper"
    step_effect = (2 if paper else 1) * jnp.asarray(diameter) ** 2 / smallest_oracle_cost
    doubt = jnp.log((4 if paper else 1) / jnp.asarray(delta))
    return average + step_effect * mixing_norm * jnp.sqrt(partition * horizon * doubt / 2)


def tail_ratio_bound(
    m: Scalar, alpha: Scalar, beta: Scalar, trust: Scalar, rho_tail: Scalar, form: Form = "tight"
) -> Result:
    """With probability 1 - delta, cost/cost* is at most Theorem 4.1's bound at rho = rho_tail (Theorem 5.2).

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
