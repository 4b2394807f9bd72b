"""What a standalone ML optimizer cannot do better than.

MLA-ROBD, the expert calibrator with advice: Theorem 4.1 of the paper and what follows from it.
"""

import jax.numpy as jnp

from ecl2o.theory.forms import Form, Result, Scalar, check_form, compiled, effective_beta


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


def _root(m: Scalar, alpha: Scalar, beta: Scalar, trust: Scalar, form: Form) -> tuple[Result, Result, Result]:
    """b = beta theta / m, k, and S = sqrt((1 + b)^2 + 4k/m)."""
    k = effective_beta(alpha, beta, form)
    b = jnp.asarray(beta) * trust / m
    return b, k, jnp.sqrt((1 + b) ** 2 + 4 * k / m)


@compiled
def smallest_lambda1(m: Scalar, alpha: Scalar, beta: Scalar, trust: Scalar, form: Form = "tight") -> Result:
    """The smallest lambda1 for which the optimal lambda2 is not negative, 2 / (S + 1 - b) (erratum E4).

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        trust: theta = lambda3/lambda1, not negative.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> round(float(smallest_lambda1(1.0, 10.0, 10.0, 0.0)), 6)  # 2 / (1 + S0)
    0.270156
    """
    b, k, S = _root(m, alpha, beta, trust, form)
    # S - b = (1 + 2b + 4k/m) / (S + b), without cancellation for large b.
    return 2 / (1 + (1 + 2 * b + 4 * k / m) / (S + b))


@compiled
def optimal_lambda2(
    m: Scalar, alpha: Scalar, beta: Scalar, trust: Scalar, lambda1: Scalar = 1.0, form: Form = "tight"
) -> Result:
    """lambda2 that minimises the bound of Theorem 4.1: (m lambda1 / 2 beta)(S + 1 - 2/lambda1 - b).

    Evaluated without cancellation, and zero where lambda1 is below `smallest_lambda1` (the optimum is then at the
    boundary, and the bound is `mla_robd_bound_at`, not `mla_robd_bound`).

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        trust: theta = lambda3/lambda1, not negative.
        lambda1: the weight of the previous action, in (0, 1]. Default: 1.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> [round(float(optimal_lambda2(1.0, 10.0, 10.0, trust)), 6) for trust in (0.0, 0.1, 0.3, 0.5)]
    [0.270156, 0.231662, 0.174166, 0.13589]
    """
    b, k, S = _root(m, alpha, beta, trust, form)
    lambda1 = jnp.asarray(lambda1)
    # S - 1 - b = (4k/m) / (S + 1 + b);  S + 1 - 2/lambda1 - b = (S - 1 - b) + 2 (1 - 1/lambda1).
    bracket = (4 * k / m) / (S + 1 + b) - 2 * (1 - lambda1) / lambda1
    return jnp.maximum(m * lambda1 / (2 * jnp.asarray(beta)) * bracket, 0.0)


@compiled
def mla_robd_bound(m: Scalar, alpha: Scalar, beta: Scalar, trust: Scalar, rho: Scalar, form: Form = "tight") -> Result:
    """Theorem 4.1 at the optimal lambda2: 1 + (S - 1 - b)/2 + beta theta rho / 2, for rho-accurate advice.

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        trust: theta = lambda3/lambda1, not negative.
        rho: the prediction error of the advice, sum |advice - x*|^2 / cost*.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> round(float(mla_robd_bound(1.0, 10.0, 10.0, trust=0.3, rho=0.0)), 5)
    2.74166
    """
    b, k, S = _root(m, alpha, beta, trust, form)
    return 1 + (2 * k / m) / (S + 1 + b) + jnp.asarray(beta) * trust * rho / 2


@compiled
def mla_robd_bound_at(
    m: Scalar,
    alpha: Scalar,
    beta: Scalar,
    lambda1: Scalar,
    lambda2: Scalar,
    lambda3: Scalar,
    rho: Scalar,
    form: Form = "tight",
) -> Result:
    """Theorem 4.1 for any weights: max((m + lambda2 beta)/(m lambda1), 1 + k lambda1/((lambda2 + lambda3) beta + m))
    + lambda3 beta rho / (2 lambda1), for 0 < lambda1 <= 1.

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        lambda1: the weight of the previous action, in (0, 1].
        lambda2: the weight of the hitting cost's minimiser.
        lambda3: the weight of the advice.
        rho: the prediction error of the advice, sum |advice - x*|^2 / cost*.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> round(float(mla_robd_bound_at(1.0, 10.0, 10.0, 1.0, 0.174166, 0.3, 0.0)), 4)
    2.7417
    """
    k = effective_beta(alpha, beta, form)
    lambda1, beta = jnp.asarray(lambda1), jnp.asarray(beta)
    hitting = (m + lambda2 * beta) / (m * lambda1)
    switching = 1 + k * lambda1 / ((jnp.asarray(lambda2) + lambda3) * beta + m)
    return jnp.maximum(hitting, switching) + lambda3 * beta * rho / (2 * lambda1)


@compiled
def useful_prediction_error(m: Scalar, alpha: Scalar, beta: Scalar, form: Form = "tight") -> Result:
    """The prediction error below which some trust lowers the bound below R-OBD's: (1 - 1/sqrt(1 + 4k/m)) / m.

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> round(float(useful_prediction_error(1.0, 10.0, 10.0)), 4)
    0.8438
    """
    k = effective_beta(alpha, beta, form)
    return (1 - 1 / jnp.sqrt(1 + 4 * k / m)) / m


@compiled
def optimal_trust(m: Scalar, alpha: Scalar, beta: Scalar, rho: Scalar, form: Form = "tight") -> Result:
    """The trust that minimises `mla_robd_bound` for a known prediction error rho (derived for this project).

    With q = 1 - m rho: (m/beta) max(0, q sqrt((4k/m) / (1 - q^2)) - 1) for 0 < m rho < 1, zero for worse advice, and
    infinite for perfect advice.

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        rho: the prediction error of the advice, sum |advice - x*|^2 / cost*.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> round(float(optimal_trust(1.0, 10.0, 10.0, rho=0.2)), 4)
    0.7433
    """
    k = effective_beta(alpha, beta, form)
    error = m * jnp.asarray(rho)
    q = 1 - error
    inside = (error > 0) & (error < 1)
    safe = jnp.where(inside, q, 0.0)
    trust = m / jnp.asarray(beta) * jnp.maximum(safe * jnp.sqrt((4 * k / m) / (1 - safe**2)) - 1, 0.0)
    return jnp.where(inside, trust, jnp.where(error <= 0, jnp.inf, 0.0))
