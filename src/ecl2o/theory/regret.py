"""L-constrained regret of MLA-ROBD: Theorem 4.2 of the paper, corrected."""

import jax.numpy as jnp

from ecl2o.theory.forms import Form, Result, Scalar, check_form, compiled


def path_strong_convexity(m: Scalar, alpha: Scalar, horizon: int, form: Form = "tight") -> Result:
    """alpha_1, the strong convexity of the total cost of a path: m + 4 alpha sin^2(pi / (4T + 2)).

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
    """An upper bound of cost - cost(L-constrained oracle) for lambda1 >= 1 - m/(4 beta) and advice in X.

    `budget` is L, `gradient_bound` G >= |Qx| on X, `diameter` omega of X, `advice_error` L_rho, the squared distance of the
    advice from the L-constrained oracle (`metrics.constrained_prediction_error`), `movement` what the algorithm itself pays for
    moving; infinite: unknown.

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
        budget: L, what the oracle may pay for moving.
        gradient_bound: G, at least |Qx| on X.
        diameter: omega, of X.
        advice_error: L_rho. Default: not known.
        movement: what the algorithm pays for moving. Default: not known.
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
    """eta(T, L, omega, G) = share (G/omega^2) sqrt(L/T): a lambda2, or lambda3, under which regret is O(G sqrt(TL)).

    The second half of Theorem 4.2 asks for (eta2 + eta3) (omega^2/G) sqrt(T/L) to stay bounded; here each is `share` for every T.

    Args:
        horizon: T.
        budget: L, what the oracle may pay for moving.
        gradient_bound: G, at least |Qx| on X.
        diameter: omega, of X.
        share: what lambda stays proportional to. Default: 1.

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
    """C G sqrt(TL), Theorem 4.2's second half with its constant, for `sublinear_weights` of these shares:
    C = 4 (lambda1 + m/2beta) sqrt(2/alpha) + (share2 + share3) beta/2. It is `regret_bound` of any X and any advice in it.

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        lambda1: the weight of the previous action, in (0, 1].
        horizon: T.
        budget: L, what the oracle may pay for moving.
        gradient_bound: G, at least |Qx| on X.
        share2: that of lambda2. Default: 1.
        share3: that of lambda3. Default: 1.

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
