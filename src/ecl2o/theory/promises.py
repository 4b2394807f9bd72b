"""Which promises can be kept: the revelation theorem and its corollaries (proofs: docs/guarantees.md).

The setting: f_t(x) = 1/2 |x - y_t|^2 in the norm of A_t, and movement 1/2 |x - z|^2 in the norm of G = 2Q, |u|^2_M = u'Mu.

*The past.* The least cost of a path through the contexts so far that ends in z is 1/2 |z - m_t|^2_{P_t} + r_t, where r_t is the
optimum of the prefix. K_0 = G, P_t = A_t + K_{t-1}, K_t = (P_t^-1 + G^-1)^-1.

*The future.* From x, through contexts that all lie in n, the least cost is 1/2 |x - n|^2_{S_t}. S_T = 0,
S_{t-1} = ((S_t + A_t)^-1 + G^-1)^-1.

*The theorem.* cost <= L * optimum can be kept from t on, for all contexts, if (L - 1) P_s > S_s for every s from t on; it cannot
if some (L - 1) P_s - S_s has a negative direction. The reserve needed is 1/2 |x_t - m_t|^2_{V_t} with
V_t = L S_t ((L - 1) I - P_t^-1 S_t)^-1.

*Promises relative to an expert* are those of `Guarded` and `ClippedAdvice`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.solvers.small_dense import (
    largest_ratio,
    multiply,
    parallel_sum,
    riccati_fixed_point,
    sandwich_solve,
    spd_solve,
)
from ecl2o.theory.experts import robd_ratio
from ecl2o.theory.forms import Form, Result, Scalar, compiled

Matrix = Float[Array, "d d"]
Matrices = Float[Array, "T d d"]


def past_stiffness(A: Matrix | Matrices, G: Matrix, horizon: int, before: Matrix | None = None) -> Matrices:
    """Return P_1..P_T, the stiffness of the past; for a constant A they decrease to A + `limit_stiffness(A, G)`.

    Args:
        A: curvature of the hitting cost, (d, d), or one for each step, (T, d, d).
        G: curvature of the movement, 2Q.
        horizon: T.
        before: K_0, (d, d). Default: G, one move from x_0.

    >>> [round(float(p), 4) for p in past_stiffness(jnp.eye(1), 10 * jnp.eye(1), 3).ravel()]
    [11.0, 6.2381, 4.8416]
    """

    def advance(K, A_t):
        P = A_t + K
        return parallel_sum(P, G), P

    first = jnp.broadcast_to(G, G.shape) if before is None else before
    return jax.lax.scan(advance, first, jnp.broadcast_to(A, (horizon, *A.shape[-2:])))[1]


def future_stiffness(A: Matrix | Matrices, G: Matrix, horizon: int, after: Matrix | None = None) -> Matrices:
    """Return S_1..S_T, the stiffness of the future after each step.

    Args:
        A: curvature of the hitting cost, (d, d), or one for each step, (T, d, d); the first is not used.
        G: curvature of the movement, 2Q.
        horizon: T.
        after: S_T, (d, d). Default: zero.

    >>> [round(float(s), 4) for s in future_stiffness(jnp.eye(1), 10 * jnp.eye(1), 3).ravel()]
    [1.6031, 0.9091, 0.0]
    """

    def retreat(S, A_t):
        return parallel_sum(S + A_t, G), S

    last = jnp.zeros_like(G) if after is None else after
    return jax.lax.scan(retreat, last, jnp.broadcast_to(A, (horizon, *A.shape[-2:])), reverse=True)[1]


def limit_stiffness(A: Matrix, G: Matrix) -> Matrix:
    """Return the limit of S and K over long runs, the K with K = ((A + K)^-1 + G^-1)^-1.

    Args:
        A: (d, d), the curvature of the hitting cost.
        G: (d, d), 2 Q.

    >>> float(limit_stiffness(jnp.eye(1), 2 * jnp.eye(1))[0, 0])
    1.0
    """
    return riccati_fixed_point(A, G)


def recurring_stiffness(A: Matrices, G: Matrix) -> tuple[Matrices, Matrices]:
    """Return (P_1..P_T, S_1..S_T) of T curvatures that recur for ever, as those of a daily tariff do.

    P_t decreases to these from any start, and S is that of an infinite horizon.

    Args:
        A: (T, d, d), the curvatures of one round.
        G: (d, d), 2 Q.

    >>> P, S = recurring_stiffness(jnp.ones((3, 1, 1)), 2 * jnp.eye(1))
    >>> P.ravel().tolist(), S.ravel().tolist()
    ([2.0, 2.0, 2.0], [1.0, 1.0, 1.0])
    """
    horizon = A.shape[0]
    return past_stiffness(A, G, horizon, riccati_fixed_point(A, G)), future_stiffness(
        A, G, horizon, riccati_fixed_point(A[::-1], G)
    )


def promise_value(P: Matrix, S: Matrix, ratio: Float[Array, ""] | float) -> Matrix:
    """Return V = L S ((L - 1) I - P^-1 S)^-1 = L S ((L - 1) P - S)^-1 P, the matrix of the reserve 1/2 |x - m|^2_V.

    Meaningless unless (L - 1) P > S.

    Args:
        P: (d, d), the stiffness of the past.
        S: (d, d), the stiffness of the future.
        ratio: L, the promised ratio.

    >>> a = 10 * jnp.eye(1)
    >>> P, S = past_stiffness(jnp.eye(1), a, 24)[0], future_stiffness(jnp.eye(1), a, 24)[0]
    >>> round(float(promise_value(P, S, jnp.array(2.0))[0, 0]), 6)
    7.162107
    """
    return ratio * sandwich_solve(S, (ratio - 1) * P - S, P)


def largest_reserve_shape(
    least: Matrix | Matrices,
    greatest: Matrix | Matrices,
    G: Matrix,
    ratio: Float[Array, ""] | float,
    horizon: int | None,
) -> Matrix:
    """Return a matrix that is at least A + G + V at every step: the curvature of what an action costs and must reserve.

    V grows with S and falls with P (Loewner order), whose bounds are those of `largest_share`. On diagonal matrices.

    Args:
        least: (d, d), the least curvature of a context, or one for each step, (T, d, d).
        greatest: the greatest curvature, of the same shape.
        G: (d, d), 2 Q.
        ratio: L, above the smallest feasible one.
        horizon: T, or None for runs of any length.

    >>> one = jnp.eye(1)
    >>> float(largest_reserve_shape(one, one, 2 * one, 2.0, None)[0, 0])  # 1 + 2 + 2 * 1/(1 - 1/2)
    7.0
    """
    if least.ndim == 3:
        least, greatest = jnp.min(least, axis=0), jnp.max(greatest, axis=0)
    if horizon is None:
        return greatest + G + promise_value(least + limit_stiffness(least, G), limit_stiffness(greatest, G), ratio)
    P, S = past_stiffness(least, G, horizon), future_stiffness(greatest, G, horizon)
    return greatest + G + jnp.max(jax.vmap(lambda p, s: promise_value(p, s, ratio))(P, S), axis=0)


def largest_joint_shape(least: Matrix, greatest: Matrix, G: Matrix, ratio: Float[Array, ""] | float) -> Matrix:
    """Return a matrix that is at least A + G + V at every step, with the V of several promises of at least this ratio.

    Args:
        least: (d, d), the least curvature of a context.
        greatest: (d, d), the greatest curvature of a context.
        G: (d, d), 2 Q.
        ratio: L, the least ratio.

    >>> one = jnp.eye(1)
    >>> round(float(largest_joint_shape(one, one, 2 * one, 2.0)[0, 0]), 6)  # 1 + 2 + 2/(1 - 3/5)
    8.0
    """
    S = limit_stiffness(greatest, G)
    return greatest + G + promise_value(least + parallel_sum(S / (ratio - 1), G), S, ratio)


def worst_future(away: Float[Array, " d"], P: Matrix, S: Matrix, ratio: Float[Array, ""] | float) -> Float[Array, " d"]:
    """Return n - m, where n is the context that, repeated from now on, is worst for an action x = m + away.

    n maximises 1/2 |x - n|^2_S - L/2 |n - m|^2_H, H = (P^-1 + S^-1)^-1: n - m = -((L - 1) P - S)^-1 (P + S) (x - m).

    Args:
        away: (d,), x - m.
        P: (d, d), the stiffness of the past.
        S: (d, d), the stiffness of the future.
        ratio: L, the promised ratio.

    >>> one = jnp.eye(1)
    >>> float(worst_future(jnp.ones(1), 3 * one, one, jnp.array(2.0))[0])
    -2.0
    """
    return -spd_solve((ratio - 1) * P - S, multiply(P + S, away))


@eqx.filter_jit
def largest_share(
    past: Matrix | Matrices,
    future: Matrix | Matrices,
    G: Matrix,
    horizon: int | None,
    before_context: bool = False,
) -> Float[Array, ""]:
    """Return max over t of lambda_max(P_t^-1 S_t), one less than the smallest feasible ratio.

    Args:
        past: the least curvature of a context, which makes P; (d, d), or one for each step, (T, d, d).
        future: the greatest curvature of a context, which makes S; of the same shape.
        G: curvature of the movement, 2Q.
        horizon: T, or None for runs of any length, in which curvatures that are given by step recur.
        before_context: for actions that are due before the context is seen: the past is K_{t-1}, the future A_t + S_t.
    """
    if horizon is None and past.ndim == 3:
        P, S = recurring_stiffness(past, G)[0], recurring_stiffness(future, G)[1]
    elif horizon is None:
        P, S = (past + limit_stiffness(past, G))[None], limit_stiffness(future, G)[None]
    else:
        P, S = past_stiffness(past, G, horizon), future_stiffness(future, G, horizon)
    if before_context:
        P, S = P - past, S + future
    return jnp.max(jax.vmap(largest_ratio)(S, P))


def smallest_feasible_ratio(
    movement: Any,
    horizon: int | None = None,
    *,
    curvature: Any = 1.0,
    weights: tuple[float, float] = (1.0, 1.0),
    before_context: bool = False,
) -> np.ndarray:
    """Return the infimum of the ratios that can be promised, 1 + max_t lambda_max(P_t^-1 S_t).

    Some online algorithm attains it (docs/guarantees.md; not shown with `before_context`); `Competitive` needs a larger one.
    Computed in double precision.

    Args:
        movement: G = 2Q, (d, d); or the number(s) a = beta/m, each a problem on a line.
        horizon: for runs of at most so many steps; None, the default, for runs of any length.
        curvature: A, (d, d) or a number.
        weights: (m, M): each context's curvature lies between m A and M A and is not known in advance.
        before_context: for actions that are due before the context is seen.

    Returns:
        One number, or one for each entry of a vector `movement`.

    >>> round(float(smallest_feasible_ratio(10.0, horizon=24)), 6)
    1.728527
    >>> round(float(smallest_feasible_ratio(10.0)), 6)
    1.729844
    >>> round(float(smallest_feasible_ratio(10.0, weights=(0.5, 5.0))), 9)
    3.0
    >>> round(float(smallest_feasible_ratio(10.0, before_context=True)), 6)
    2.370156
    """
    G = np.asarray(movement, np.float64)
    low, high = weights
    if not (G.ndim == 2 or (G > 0).all()):
        raise ValueError(f"movement must be positive, got {movement}.")
    if horizon is not None and horizon < 1:
        raise ValueError(f"horizon must be at least 1, got {horizon}.")
    if not 0 < low <= high:
        raise ValueError(f"weights must be (m, M) with 0 < m <= M, got {weights}.")

    def share(A, G) -> float:
        if len(G) == 1:  # nothing to compile
            m, M, g = (float(each[0, 0]) for each in (low * A, high * A, G))
            if horizon is None:  # the limit of the stiffness
                pasts, futures = ([2 * w * g / (w + np.sqrt(w * w + 4 * w * g))] for w in (m, M))
            else:
                pasts, futures = [g], [0.0]  # K_0, K_1, ...; S_T, S_{T-1}, ...
                for _ in range(horizon - 1):
                    pasts.append((m + pasts[-1]) * g / (m + pasts[-1] + g))
                    futures.append((M + futures[-1]) * g / (M + futures[-1] + g))
            pairs = zip(pasts, reversed(futures), strict=True)
            return max((M + S) / K if before_context else S / (m + K) for K, S in pairs)
        past, future, G = jax.device_put((low * A, high * A, G))
        return float(largest_share(past, future, G, horizon, before_context))

    with jax.enable_x64(True):
        A = np.asarray(curvature, np.float64)
        if G.ndim == 2:
            return np.asarray(1 + share(A if A.ndim else A * np.eye(len(G)), G))
        return np.asarray(1 + np.reshape([share(A.reshape(1, 1), line) for line in G.reshape(-1, 1, 1)], G.shape))


def joint_share(ratio: Float[Array, ""] | float, S: Matrix, least: Matrix, G: Matrix) -> Float[Array, ""]:
    """Return what is below 1 if promises of at least this ratio can be kept together (docs/guarantees.md).

    The condition is A_lo + (sigma^-1 + G^-1)^-1 > sigma, sigma = S/(L - 1), that is S ((L - 1) S + (L - 1)^2 G)^-1 S < A_lo.

    Args:
        ratio: L, the least ratio.
        S: (d, d), the future's stiffness, `limit_stiffness` of the greatest curvature.
        least: (d, d), A_lo, the least curvature of a context.
        G: (d, d), 2 Q.

    >>> one = jnp.eye(1)
    >>> round(float(joint_share(2.0, one, one, 2 * one)), 6)  # 1/(1 + 2) of the curvature
    0.333333
    """
    more = jnp.asarray(ratio) - 1
    share = largest_ratio(sandwich_solve(S, more * S + more**2 * G, S), least)
    return jnp.where(more > 0, share, jnp.inf)


def smallest_joint_ratio(least: Matrix, greatest: Matrix, G: Matrix) -> float:
    """Return the infimum of the least ratios with which several promises can be kept together, in runs of any length.

    Where all matrices are diagonal in one basis, as those of the library's costs are, it is `smallest_feasible_ratio`.

    Args:
        least: (d, d), the least curvature of a context.
        greatest: (d, d), the greatest curvature of a context.
        G: (d, d), 2 Q.

    >>> round(smallest_joint_ratio(jnp.eye(1), 5 * jnp.eye(1), 10 * jnp.eye(1)), 4)
    2.3508
    """
    S, A, movement = map(np.asarray, (limit_stiffness(greatest, G), least, G))
    # With l = L - 1 the condition is S A^-1 S < l S + l^2 G: above the largest root of a quadratic eigenvalue problem.
    onward = np.linalg.solve(movement, np.concatenate([S @ np.linalg.solve(A, S), -S], axis=1))
    return 1 + float(np.linalg.eigvals(np.concatenate([np.eye(len(S), 2 * len(S), k=len(S)), onward])).real.max())


@compiled
def training_reservation(slack: Scalar) -> Result:
    """Return sqrt(1 + slack) - 1, a reservation of `Guarded` that always leaves some budget: for training.

    For use, the slack itself is the largest reservation that is valid for every f.

    Args:
        slack: The slack of `Guarded`, positive.

    >>> float(training_reservation(3.0))
    1.0
    """
    slack = jnp.asarray(slack)
    return slack / (jnp.sqrt(1 + slack) + 1)


@compiled
def guarded_ratio(m: Scalar, alpha: Scalar, beta: Scalar, slack: Scalar, form: Form = "tight") -> Result:
    """Return the competitive ratio of any agent inside `Guarded` around R-OBD: (1 + slack) times R-OBD's.

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        slack: The slack of `Guarded`, positive.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> round(float(guarded_ratio(1.0, 10.0, 10.0, slack=1.0)), 5)
    7.40312
    """
    return (1 + jnp.asarray(slack)) * robd_ratio(m, alpha, beta, form)


@compiled
def clipped_prediction_error(m: Scalar, alpha: Scalar, beta: Scalar, delta: Scalar, form: Form = "tight") -> Result:
    """Return the largest prediction error rho of any advice behind `ClippedAdvice` around R-OBD: (4/m)((1 + delta) CR0 + 1).

    With it Theorem 4.1 (`mla_robd_bound`) bounds MLA-ROBD with any advisor.

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        delta: The delta of `ClippedAdvice`, not negative.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> round(float(clipped_prediction_error(1.0, 10.0, 10.0, delta=0.0)), 5)
    18.80625
    """
    return 4 / jnp.asarray(m) * (guarded_ratio(m, alpha, beta, delta, form) + 1)
