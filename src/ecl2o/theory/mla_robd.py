"""MLA-ROBD, the expert calibrator with advice, and the limits of advice alone.

Theorem 4.1 of the paper (competitive ratio) and its consequences, Theorem 4.2 (L-constrained regret), corrected, and Lemma 3.2.
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
    """Return a cost ratio that some rho-accurate predictions attain (Lemma 3.2).

    The paper's 1 + (m + 2 alpha) rho / 2 moves the first action alone; its proof drops a square and a rho. Moving the whole
    path in the steepest direction gives 1 + (m + beta L) rho / 2 with L = 4 cos^2(pi / (2T + 1)), the largest eigenvalue of the
    path's switching matrix, which tends to 4 (erratum E6). It holds for every m-strongly convex f whose optimum is inside X. If
    f has the Hessian m I, it is the worst case of rho-accurate predictions.

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
    """Return b = beta theta / m, k, and S = sqrt((1 + b)^2 + 4k/m)."""
    k = effective_beta(alpha, beta, form)
    b = jnp.asarray(beta) * trust / m
    return b, k, jnp.sqrt((1 + b) ** 2 + 4 * k / m)


@compiled
def smallest_lambda1(m: Scalar, alpha: Scalar, beta: Scalar, trust: Scalar, form: Form = "tight") -> Result:
    """Return the smallest lambda1 for which the optimal lambda2 is not negative, 2 / (S + 1 - b) (erratum E4).

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
    """Return the lambda2 that minimises the bound of Theorem 4.1: (m lambda1 / 2 beta)(S + 1 - 2/lambda1 - b).

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
    """Bound MLA-ROBD's ratio at the optimal lambda2 (Theorem 4.1): 1 + (S - 1 - b)/2 + beta theta rho / 2.

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
    """Bound MLA-ROBD's ratio for any weights (Theorem 4.1).

    max((m + lambda2 beta)/(m lambda1), 1 + k lambda1/((lambda2 + lambda3) beta + m)) + lambda3 beta rho / (2 lambda1).

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
    """Return the prediction error below which some trust improves on R-OBD's bound: (1 - 1/sqrt(1 + 4k/m)) / m.

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
    """Return the trust that minimises `mla_robd_bound` for a known prediction error rho (derived for this project).

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


def path_strong_convexity(m: Scalar, alpha: Scalar, horizon: int, form: Form = "tight") -> Result:
    """Return alpha_1, the strong convexity of a path's total cost: m + 4 alpha sin^2(pi / (4T + 2)).

    Lemma D.1 of the paper claims m < alpha_1 <= m + beta/T^2, which is false (erratum E8); `form="paper"` is that claim's
    upper end with alpha = beta.

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        horizon: T.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> round(float(path_strong_convexity(0.0, 1.0, horizon=2)), 3)  # more than 1/T^2 = 0.25
    0.382
    """
    check_form(form)
    if form == "paper":
        return m + jnp.asarray(alpha) / horizon**2
    return m + 4 * jnp.asarray(alpha) * jnp.sin(jnp.pi / (4 * horizon + 2)) ** 2


@compiled
def regret_bound(
    m: Scalar,
    alpha: Scalar,
    beta: Scalar,
    *,
    lambda1: Scalar,
    lambda2: Scalar,
    lambda3: Scalar,
    horizon: Scalar,
    budget: Scalar,
    gradient_bound: Scalar,
    diameter: Scalar,
    advice_error: Scalar = jnp.inf,
    movement: Scalar = jnp.inf,
    form: Form = "tight",
) -> Result:
    """Bound cost - cost(L-constrained oracle) of MLA-ROBD for lambda1 >= 1 - m/(4 beta) and advice in X (Theorem 4.2).

    Tight (erratum E10; the printed bound is violated by an explicit instance):
    (lambda1 + m/2beta) min(4G, beta omega) sqrt(2TL/alpha) + lambda2 beta T omega^2/2 + lambda3 (beta/2) min(L_rho, T omega^2).

    Paper (Theorem 4.2): alpha/(alpha - lambda3 beta) times [(lambda1 + m/2beta) G sqrt(2TL/alpha) + lambda2 beta T omega^2/2
    + lambda3 beta L_rho/2] if lambda3 < alpha/beta *and* the algorithm moves at most L; otherwise
    (lambda1 + m/2beta) G sqrt(2TL/alpha) + (lambda2 + lambda3) beta T omega^2 / 2.

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        lambda1: the weight of the previous action, in (0, 1].
        lambda2: the weight of the hitting cost's minimiser.
        lambda3: the weight of the advice.
        horizon: T.
        budget: L, the greatest total switching cost of the oracle.
        gradient_bound: G, at least |Qx| on X.
        diameter: omega, of X.
        advice_error: L_rho, see `metrics.constrained_prediction_error`. Default: unknown, infinite.
        movement: The algorithm's total switching cost. Default: unknown, infinite.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> values = dict(lambda1=1.0, lambda2=0.0, lambda3=0.0, horizon=16, budget=2.0, gradient_bound=0.5, diameter=2.0)
    >>> tight, paper = (float(regret_bound(0.001, 1.0, 1.0, form=form, **values)) for form in ("tight", "paper"))
    >>> round(tight / paper, 6)
    4.0
    """
    check_form(form)
    beta, budget = jnp.asarray(beta), jnp.asarray(budget)
    reach = jnp.sqrt(2 * horizon * budget / alpha)
    anchored = lambda1 + m / (2 * beta)
    toward_minimizer = lambda2 * beta * horizon * jnp.asarray(diameter) ** 2 / 2
    furthest = horizon * jnp.asarray(diameter) ** 2
    if form == "tight":
        slope = jnp.minimum(4 * jnp.asarray(gradient_bound), beta * diameter)
        toward_advice = lambda3 * beta / 2 * jnp.minimum(advice_error, furthest)
        return anchored * slope * reach + toward_minimizer + toward_advice
    base = anchored * gradient_bound * reach + toward_minimizer
    trusted = (jnp.asarray(lambda3) < alpha / beta) & (jnp.asarray(movement) <= budget)
    margin = jnp.where(trusted, alpha - lambda3 * beta, alpha)
    small = alpha / margin * (base + jnp.where(lambda3 > 0, lambda3 * beta * advice_error / 2, 0.0))
    large = base + lambda3 * beta * furthest / 2
    return jnp.where(trusted, small, large)


@compiled
def sublinear_weights(
    *, horizon: Scalar, budget: Scalar, gradient_bound: Scalar, diameter: Scalar, share: Scalar = 1.0
) -> Result:
    """Return share (G/omega^2) sqrt(L/T), a lambda2 or lambda3 under which regret is O(G sqrt(TL)).

    The second half of Theorem 4.2 asks for (eta2 + eta3) (omega^2/G) sqrt(T/L) to stay bounded; here each is `share` for every T.

    Args:
        horizon: T.
        budget: L, what the oracle may pay for moving.
        gradient_bound: G, at least |Qx| on X.
        diameter: omega, of X.
        share: The factor. Default: 1.

    >>> weights = [
    ...     float(sublinear_weights(horizon=T, budget=1.0, gradient_bound=2.0, diameter=2.0)) for T in (100, 400)
    ... ]
    >>> [round(weight, 6) for weight in weights]
    [0.05, 0.025]
    """
    return share * jnp.asarray(gradient_bound) / jnp.asarray(diameter) ** 2 * jnp.sqrt(jnp.asarray(budget) / horizon)


@compiled
def sublinear_regret_bound(
    m: Scalar,
    alpha: Scalar,
    beta: Scalar,
    *,
    lambda1: Scalar,
    horizon: Scalar,
    budget: Scalar,
    gradient_bound: Scalar,
    share2: Scalar = 1.0,
    share3: Scalar = 1.0,
) -> Result:
    """Bound regret by C G sqrt(TL) under `sublinear_weights` of these shares (second half of Theorem 4.2).

    C = 4 (lambda1 + m/2beta) sqrt(2/alpha) + (share2 + share3) beta/2. It is `regret_bound` for any X and any advice in X.

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        lambda1: the weight of the previous action, in (0, 1].
        horizon: T.
        budget: L, what the oracle may pay for moving.
        gradient_bound: G, at least |Qx| on X.
        share2: The share of lambda2. Default: 1.
        share3: The share of lambda3. Default: 1.

    >>> bounds = [
    ...     float(sublinear_regret_bound(1.0, 4.0, 4.0, lambda1=1.0, horizon=T, budget=1.0, gradient_bound=2.0))
    ...     for T in (100, 400)
    ... ]
    >>> round(bounds[1] / bounds[0], 6)
    2.0
    """
    beta = jnp.asarray(beta)
    constant = 4 * (lambda1 + m / (2 * beta)) * jnp.sqrt(2 / jnp.asarray(alpha)) + (share2 + share3) * beta / 2
    return constant * gradient_bound * jnp.sqrt(jnp.asarray(horizon) * budget)
