"""What a standalone ML optimizer cannot do better than."""

import jax.numpy as jnp

from ecl2o.theory.forms import Form, Result, Scalar, check_form


def pure_ml_lower_bound(
    m: Scalar, alpha: Scalar, rho: Scalar, horizon: int | None = None, form: Form = "tight"
) -> Result:
    """A ratio that some rho-accurate predictions really have (Lemma 3.2).

    The paper's 1 + (m + 2 alpha) rho / 2 is the slope at T = 2, rounded down; its proof drops a square and a rho. For a
    Hessian m I and Q = alpha/2 I the worst direction gives 1 + (m + alpha L) rho / 2 with L = 4 cos^2(pi / (2T + 1)), the
    largest eigenvalue of the path's switching matrix, which tends to 4 (erratum E6); `horizon=None` is that limit.

    >>> float(pure_ml_lower_bound(1.0, 10.0, rho=1.0, form="paper"))
    11.5
    >>> float(pure_ml_lower_bound(1.0, 10.0, rho=1.0))
    21.5
    """
    check_form(form)
    if form == "paper":
        largest: Scalar = 2.0
    elif horizon is None:
        largest = 4.0
    else:
        largest = 4 * jnp.cos(jnp.pi / (2 * horizon + 1)) ** 2
    return 1 + (m + jnp.asarray(alpha) * largest) * jnp.asarray(rho) / 2
