"""What a standalone ML optimizer cannot do better than."""

import jax.numpy as jnp

from ecl2o.theory.forms import Form, Result, Scalar, check_form


def pure_ml_lower_bound(
    m: Scalar,
    alpha: Scalar,
    rho: Scalar,
    horizon: int | None = None,
    form: Form = "tight",
    beta: Scalar | None = None,
) -> Result:
    """A ratio that some rho-accurate predictions really have (Lemma 3.2); `beta=None`: Q is isotropic, beta = alpha.

    The paper's 1 + (m + 2 alpha) rho / 2 moves the first action alone; its proof drops a square and a rho. Moving the whole
    path in the steepest direction gives 1 + (m + beta L) rho / 2 with L = 4 cos^2(pi / (2T + 1)), the largest eigenvalue of the
    path's switching matrix, which tends to 4 (erratum E6); `horizon=None` is that limit. It holds for every m-strongly convex
    f where the optimum is inside X, and where f has the Hessian m I no rho-accurate predictions are worse.

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        rho: the prediction error of the advice, sum |advice - x*|^2 / cost*.
        horizon: T. Default: the limit of long runs.
        form: "tight", or "paper" as printed there. Default: "tight".
        beta: twice the largest eigenvalue of Q. Default: alpha.

    >>> float(pure_ml_lower_bound(1.0, 10.0, rho=1.0, form="paper"))
    11.5
    >>> float(pure_ml_lower_bound(1.0, 10.0, rho=1.0))
    21.5
    >>> float(pure_ml_lower_bound(1.0, 1.0, rho=1.0, beta=10.0))
    21.5
    """
    check_form(form)
    if form == "paper":
        return 1 + (m + 2 * jnp.asarray(alpha)) * jnp.asarray(rho) / 2
    largest = 4.0 if horizon is None else 4 * jnp.cos(jnp.pi / (2 * horizon + 1)) ** 2
    return 1 + (m + jnp.asarray(alpha if beta is None else beta) * largest) * jnp.asarray(rho) / 2
