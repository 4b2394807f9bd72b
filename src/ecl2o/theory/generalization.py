"""The average cost on days unlike the training days: Theorem 5.1 of the paper, without its O(.)."""

import jax.numpy as jnp

from ecl2o.theory.forms import Result, Scalar


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
