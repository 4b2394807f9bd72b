"""The work function of quadratic problems, updated one context at a time.

W_t(z), the least cost of a path through y_1..y_t that ends in z, is 1/2 |z - m_t|^2_{P_t} + r_t. So r_t is the optimum of the
prefix, exactly, and m_t is where its path ends.
"""

import equinox as eqx
from jaxtyping import Array, Float

from ecl2o.problem import AbstractQuadraticCost, Problem
from ecl2o.solvers.positive_definite import half_quadratic_form, multiply, parallel_sum, spd_solve


class WorkFunction(eqx.Module):
    """The work function after a move, when the next context is due: 1/2 |z - centre|^2 in the norm of `stiffness`, plus r.

    `stiffness` is K_{t-1}, `centre` m_{t-1}. The optimum r is the sum of the growths that `with_context` returns.
    """

    stiffness: Float[Array, "d d"]
    centre: Float[Array, " d"]

    @classmethod
    def from_start(cls, x0: Float[Array, " d"], G: Float[Array, "d d"]) -> "WorkFunction":
        """Return the work function before the first context: K_0 = G = 2Q and m_0 = x_0."""
        return cls(G.astype(x0.dtype), x0)

    def with_context(self, A: Float[Array, "d d"], target: Float[Array, " d"]) -> "Prefix":
        """Add a hitting cost 1/2 |z - target|^2 in the norm of A.

        The growth of the optimum, 1/2 |y - m|^2 in the norm of (A^-1 + K^-1)^-1, is computed as the cost of the new centre m',
        1/2 |y - m'|^2_A + 1/2 |m' - m|^2_K: m' minimises it, so its rounding error enters only squared.
        """
        P = A + self.stiffness
        forward = spd_solve(P, multiply(A, target - self.centre))
        growth = half_quadratic_form(A, target - self.centre - forward) + half_quadratic_form(self.stiffness, forward)
        return Prefix(P, self.centre + forward, growth)


class Prefix(eqx.Module):
    """The work function just after a context: P_t, m_t, and the growth of the optimum."""

    P: Float[Array, "d d"]
    centre: Float[Array, " d"]
    growth: Float[Array, ""]

    def after_move(self, G: Float[Array, "d d"]) -> WorkFunction:
        """Return the work function after a move: K_t = (P_t^-1 + G^-1)^-1."""
        return WorkFunction(parallel_sum(self.P, G), self.centre)


def quadratic_terms(
    problem: Problem, context: Float[Array, " q"], dim: int
) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
    """Return (A_t, y_t), the hitting cost of a context as 1/2 |x - y_t|^2 in the norm of A_t."""
    assert isinstance(problem.hitting, AbstractQuadraticCost)
    return problem.hitting.curvature(context, dim), problem.hitting.centre(context, dim)
