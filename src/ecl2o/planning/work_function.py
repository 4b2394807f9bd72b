"""The work function of quadratic problems, updated one context at a time.

W_t(z), the least cost of a path through y_1..y_t that ends in z, is 1/2 |z - m_t|^2_{P_t} + r_t. So r_t is the optimum of the
prefix, exactly, and m_t is where its path ends.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ecl2o.problem import Problem
from ecl2o.problem.arrays import add_exactly
from ecl2o.solvers.small_dense import (
    accurate_half_form,
    accurate_product,
    eigenvalues,
    half_quadratic_form,
    multiply,
    parallel_sum,
    spd_solve,
)


class WorkFunction(eqx.Module):
    """The work function after a move, when the next context is due: 1/2 |z - centre|^2 in the norm of `stiffness`, plus r.

    `stiffness` is K_{t-1}; `centre` + `rest` is m_{t-1}, the rounded centre and what rounding removed from it. So the centre is
    the origin from which contexts and actions are measured, and their level takes no digits from their differences.
    The optimum r is the sum of the growths that `with_context` returns. `error_bound` estimates the rounding error of K: as
    quadratic forms, -error_bound <= error <= error_bound.
    """

    stiffness: Float[Array, "d d"]
    centre: Float[Array, " d"]
    rest: Float[Array, " d"]
    error_bound: Float[Array, "d d"]

    @classmethod
    def from_start(cls, x0: Float[Array, " d"], G: Float[Array, "d d"]) -> "WorkFunction":
        """Return the work function before the first context: K_0 = G = 2Q and m_0 = x_0."""
        stiffness = G.astype(x0.dtype)
        return cls(stiffness, x0, jnp.zeros_like(x0), jnp.zeros_like(stiffness))

    def from_centre(self, point: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the point less m_{t-1}."""
        return point - self.centre - self.rest

    def with_context(self, A: Float[Array, "d d"], target: Float[Array, " d"]) -> "Prefix":
        """Add a hitting cost 1/2 |z - target|^2 in the norm of A.

        The growth of the optimum, 1/2 |y - m|^2 in the norm of (A^-1 + K^-1)^-1, is computed as the cost of the new centre m',
        1/2 |y - m'|^2_A + 1/2 |m' - m|^2_K: m' minimises it, so its rounding error enters only squared.
        """
        P, away = A + self.stiffness, target - self.centre - self.rest
        forward, short = spd_solve(P, multiply(A, away)), 0.0
        if forward.shape[0] > 1:  # once more for what is missing: P may be ill-conditioned
            missing = accurate_product(A, away - forward)[0] - accurate_product(self.stiffness, forward)[0]
            more = spd_solve(P, missing)
            # By so much the first try was above the minimum, and the second one is closer: see `is_resolved`.
            forward, short = forward + more, 0.5 * jnp.abs(jnp.sum(missing * more))
        missed, missed_rounding = accurate_half_form(A, away - forward)
        moved, moved_rounding = accurate_half_form(self.stiffness, forward)
        growth, error = missed + moved, half_quadratic_form(self.error_bound, forward)
        # The estimate is of first order. Where it is not small, none of the growth is certain.
        error = jax.lax.stop_gradient(jnp.where(4 * error <= moved, error, growth) + short)
        centre, rest = add_exactly(self.centre, self.rest + forward)
        return Prefix(P, centre, rest, self.error_bound, growth, missed_rounding + moved_rounding + error)


class Prefix(eqx.Module):
    """The work function just after a context: P_t, m_t = centre + rest, the growth of the optimum and a bound on its error."""

    P: Float[Array, "d d"]
    centre: Float[Array, " d"]
    rest: Float[Array, " d"]
    error_bound: Float[Array, "d d"]
    growth: Float[Array, ""]
    rounding: Float[Array, ""]

    def from_centre(self, point: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the point less m_t."""
        return point - self.centre - self.rest

    def after_move(self, G: Float[Array, "d d"]) -> WorkFunction:
        """Return the work function after a move: K_t = (P_t^-1 + G^-1)^-1."""
        stiffness = parallel_sum(self.P, G)
        if len(G) == 1:  # numbers keep all their digits
            return WorkFunction(stiffness, self.centre, self.rest, self.error_bound)
        share = spd_solve(self.P + G, G)  # the one of `stiffness`: rounding errors of P and G enter K in the same way
        error_bound = parallel_sum(self.error_bound + _rounding_of(self.P), _rounding_of(G), share)
        return WorkFunction(stiffness, self.centre, self.rest, jax.lax.stop_gradient(error_bound))


def _rounding_of(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Return a diagonal matrix that bounds the rounding error of a symmetric one, as quadratic forms."""
    return jnp.abs(matrix).sum(axis=-1) * np.eye(len(matrix), dtype=matrix.dtype) * jnp.finfo(matrix.dtype).eps


def is_resolved(
    least: Float[Array, "*T d d"], greatest: Float[Array, "*T d d"], G: Float[Array, "d d"]
) -> Bool[Array, ""]:
    """Return whether rounding changes every P_t by about a quarter at most, in all directions: the estimates need it.

    In units of the diagonal of A + G, rounding changes P_t by d eps at most, and P_t >= A + K >= a + k: a and g are the least
    eigenvalues of A and G, and k is the K of a long run on a line that has these two.
    """
    unit = jnp.sqrt(jnp.diagonal(greatest + G, axis1=-2, axis2=-1).reshape(-1, len(G)).max(axis=0))
    scaled = ((each / unit / unit[:, None]).reshape(-1, *G.shape) for each in (least, G))
    a, g = (jax.vmap(eigenvalues)(each).min() for each in scaled)
    return a + 2 * a * g / (a + jnp.sqrt(a * (a + 4 * g))) >= 4 * len(G) * jnp.finfo(G.dtype).eps  # false for NaN


def quadratic_terms(
    problem: Problem, context: Float[Array, " q"], dim: int
) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
    """Return (A_t, y_t), the hitting cost of a context as 1/2 |x - y_t|^2 in the norm of A_t."""
    return problem.hitting.curvature(context, dim), problem.hitting.centre(context, dim)
