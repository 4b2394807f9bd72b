"""Switching between two agents when moving is billed by squared distance."""

import jax.numpy as jnp

from ecl2o.theory.forms import Result, Scalar, compiled


@compiled
def switch_bound(m: Scalar, beta: Scalar, gamma: Scalar) -> Result:
    """K with cost(Switch) <= K min(cost of ML, cost of the expert), derived for squared costs for this project:
    gamma^2/(gamma - 1) (2 gamma + 4 (1 + gamma) beta/m).

    Args:
        m: the strong convexity of the hitting cost.
        beta: twice the largest eigenvalue of Q.
        gamma: that of `Switch`, more than 1.

    >>> float(switch_bound(1.0, 10.0, gamma=1.5))
    463.5
    """
    gamma = jnp.asarray(gamma)
    return gamma**2 / (gamma - 1) * (2 * gamma + 4 * (1 + gamma) * jnp.asarray(beta) / m)
