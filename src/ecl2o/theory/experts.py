"""Competitive ratios of the experts without predictions, and of switching between two agents."""

import jax
import jax.numpy as jnp
import numpy as np

from ecl2o.problem.arrays import to_device, to_host
from ecl2o.theory.forms import Form, Result, Scalar, compiled, effective_beta


@compiled
def robd_ratio(m: Scalar, alpha: Scalar, beta: Scalar, form: Form = "tight") -> Result:
    """Return R-OBD's competitive ratio, (1 + sqrt(1 + 4k/m)) / 2 with k = beta (tight) or beta^2/alpha (the paper).

    Theorem 4.1 of the paper at trust 0; the tight form is the lower bound of every online algorithm too (Goel, Lin, Sun
    and Wierman 2019; errata E1 and E2).

    Args:
        m: the strong convexity of the hitting cost.
        alpha: twice the smallest eigenvalue of Q.
        beta: twice the largest eigenvalue of Q.
        form: "tight", or "paper" as printed there. Default: "tight".

    >>> round(float(robd_ratio(1.0, 10.0, 10.0)), 5)
    3.70156
    """
    return (1 + jnp.sqrt(1 + 4 * effective_beta(alpha, beta, form) / m)) / 2


def decay_root(m: Scalar, beta: Scalar) -> Result:
    """Return r in (0, 1) with r + 1/r = 2 + m/beta, the decay of the past's influence under constant curvature m.

    Args:
        m: the strong convexity of the hitting cost.
        beta: twice the largest eigenvalue of Q.

    >>> round(float(decay_root(1.0, 10.0)), 6)
    0.729844
    """
    if isinstance(m, jax.Array) or isinstance(beta, jax.Array):
        return _decay_root(m, beta)
    return to_device(1 - 2 / (1 + np.sqrt(1 + 4 * np.asarray(beta) / m)))  # plain numbers: nothing to compile


@compiled
def _decay_root(m: Scalar, beta: Scalar) -> Result:
    return 1 - 2 / (1 + jnp.sqrt(1 + 4 * jnp.asarray(beta) / m))


def exact_robd_ratio(m: Scalar, beta: Scalar) -> Result:
    """Return R-OBD's exact ratio 1 + r where the Hessian is constantly m I and Q isotropic, for T >= 2 (erratum E21).

    Args:
        m: the strong convexity of the hitting cost.
        beta: twice the largest eigenvalue of Q.

    >>> round(float(exact_robd_ratio(1.0, 10.0)), 6)
    1.729844
    """
    return to_device(1 + to_host(decay_root(m, beta)))


@compiled
def greedy_ratio(m: Scalar, beta: Scalar) -> Result:
    """Return 1 + beta/m, a competitive ratio of Greedy (R with lambda = (1, 0, 0)); derived for this project.

    Args:
        m: the strong convexity of the hitting cost.
        beta: twice the largest eigenvalue of Q.

    >>> float(greedy_ratio(1.0, 10.0))
    11.0
    """
    return 1 + jnp.asarray(beta) / m


@compiled
def hitting_minimizer_ratio(m: Scalar, beta: Scalar) -> Result:
    """Return 1 + 4 beta/m, a competitive ratio of following the hitting cost's minimiser (Zhang et al. 2021).

    Args:
        m: the strong convexity of the hitting cost.
        beta: twice the largest eigenvalue of Q.

    >>> float(hitting_minimizer_ratio(1.0, 10.0))
    41.0
    """
    return 1 + 4 * jnp.asarray(beta) / m


@compiled
def switch_bound(m: Scalar, beta: Scalar, gamma: Scalar) -> Result:
    """Return K with cost(Switch) <= K min(cost of ML, cost of the expert), for squared movement.

    K = gamma^2/(gamma - 1) (2 gamma + 4 (1 + gamma) beta/m), derived for this project.

    Args:
        m: the strong convexity of the hitting cost.
        beta: twice the largest eigenvalue of Q.
        gamma: The factor of `Switch`, more than 1.

    >>> float(switch_bound(1.0, 10.0, gamma=1.5))
    463.5
    """
    gamma = jnp.asarray(gamma)
    return gamma**2 / (gamma - 1) * (2 * gamma + 4 * (1 + gamma) * jnp.asarray(beta) / m)
