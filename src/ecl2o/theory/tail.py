"""The tail of the cost ratio: Theorem 5.2 of the paper, with its constants spelled out."""

import jax.numpy as jnp

from ecl2o.theory.forms import Form, Result, Scalar
from ecl2o.theory.mla_robd import mla_robd_bound


def tail_prediction_error(
    *,
    rho_bar: Scalar,
    expected_prediction_loss: Scalar,
    expected_cost: Scalar,
    mu: Scalar,
    training_error: Scalar,
    generalization_gap: Scalar,
    distribution_shift: Scalar,
    diameter: Scalar,
    smallest_oracle_cost: Scalar,
    horizon: Scalar,
    mixing_norm: Scalar,
    delta: Scalar,
    partition: Scalar = 1.0,
) -> Result:
    """rho_tail: rho_bar + E[l] + (1-mu)/mu E[cost] + training_error/mu + (gap + shift) + concentration.

    The paper hides constants in O(.): `generalization_gap` and `distribution_shift` are the two terms
    O(sqrt(log(2/delta)/|D|)) and O(D(P, P')) *as numbers, constants included*, at confidence delta/2 (their rate is itself in
    doubt, erratum E13). The last term follows from the appendix with its constants:
    (2 omega^2/nu) |Gamma| sqrt(b3 T log(4/delta) / 2), b3 = `partition` (1 for a partition into single steps). It needs
    nu = `smallest_oracle_cost` > 0, and |Gamma|_F = sqrt(T) even for independent steps, so that it grows as T (erratum E14).

    >>> quiet = dict(
    ...     rho_bar=0.1,
    ...     expected_prediction_loss=0.2,
    ...     expected_cost=1.0,
    ...     mu=0.5,
    ...     training_error=0.0,
    ...     generalization_gap=0.0,
    ...     distribution_shift=0.0,
    ...     diameter=0.0,
    ...     smallest_oracle_cost=1.0,
    ...     horizon=24,
    ...     mixing_norm=1.0,
    ...     delta=0.05,
    ... )
    >>> round(float(tail_prediction_error(**quiet)), 6)
    1.3
    """
    mu = jnp.asarray(mu)
    average = rho_bar + expected_prediction_loss + (1 - mu) / mu * expected_cost + training_error / mu
    step_effect = 2 * jnp.asarray(diameter) ** 2 / smallest_oracle_cost
    concentration = step_effect * mixing_norm * jnp.sqrt(partition * horizon * jnp.log(4 / jnp.asarray(delta)) / 2)
    return average + generalization_gap + distribution_shift + concentration


def tail_ratio_bound(
    m: Scalar, alpha: Scalar, beta: Scalar, trust: Scalar, rho_tail: Scalar, form: Form = "tight"
) -> Result:
    """With probability 1 - delta, cost/cost* is at most Theorem 4.1's bound at rho = rho_tail (Theorem 5.2).

    >>> round(float(tail_ratio_bound(1.0, 10.0, 10.0, trust=0.5, rho_tail=1.0)), 4)
    4.8589
    """
    return mla_robd_bound(m, alpha, beta, trust, rho_tail, form)
