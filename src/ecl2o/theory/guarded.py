"""Promises relative to an expert: the numbers behind `Guarded` and `ClippedAdvice`. Proofs are in docs/guarantees.md."""

import jax.numpy as jnp

from ecl2o.theory.experts import robd_ratio
from ecl2o.theory.forms import Form, Result, Scalar, compiled


@compiled
def training_reservation(slack: Scalar) -> Result:
    """sqrt(1 + slack) - 1, the reservation of `Guarded` with which there is always some room: for training.

    The least conservative valid one, for use, is the slack itself.

    Args:
        slack: that of `Guarded`, positive.

    >>> float(training_reservation(3.0))
    1.0
    """
    slack = jnp.asarray(slack)
    return slack / (jnp.sqrt(1 + slack) + 1)


@compiled
def guarded_ratio(m: Scalar, alpha: Scalar, beta: Scalar, slack: Scalar, form: Form = "tight") -> Result:
    """The competitive ratio of any agent inside `Guarded` around R-OBD: (1 + slack) times R-OBD's.

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        slack: that of `Guarded`, positive.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> round(float(guarded_ratio(1.0, 10.0, 10.0, slack=1.0)), 5)
    7.40312
    """
    return (1 + jnp.asarray(slack)) * robd_ratio(m, alpha, beta, form)


@compiled
def clipped_prediction_error(m: Scalar, alpha: Scalar, beta: Scalar, delta: Scalar, form: Form = "tight") -> Result:
    """The largest prediction error rho of any advice behind `ClippedAdvice` around R-OBD: (4/m)((1 + delta) CR0 + 1).

    With it Theorem 4.1 (`mla_robd_bound`) bounds MLA-ROBD whatever the advisor.

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        delta: that of `ClippedAdvice`, not negative.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> round(float(clipped_prediction_error(1.0, 10.0, 10.0, delta=0.0)), 5)
    18.80625
    """
    return 4 / jnp.asarray(m) * (guarded_ratio(m, alpha, beta, delta, form) + 1)
