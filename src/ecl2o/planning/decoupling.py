"""Decouple a problem with constant quadratic costs into one-dimensional problems."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import Problem
from ecl2o.solvers.small_dense import one_at_a_time


class Modes(eqx.Module):
    """Coordinates u, x = S u, in which f and c are sums: S'AS = I and 2 S'QS = diag(a)."""

    a: Float[Array, " d"]
    to_modes: Float[Array, "d d"]
    from_modes: Float[Array, "d d"]

    @classmethod
    def from_problem(cls, problem: Problem, dim: int) -> "Modes":
        """Diagonalise A and 2Q together: A = L L', 2Q = C C', L^{-1} C = U diag(sqrt a) V', S = L^{-T} U.

        Singular values keep twice the digits of small a that the eigenvalues of L^{-1} 2Q L^{-T} would.
        """
        hitting = problem.hitting
        if not hitting.constant_curvature:
            raise NotApplicableError(
                f"decoupling needs a quadratic hitting cost of constant curvature, got {type(hitting).__name__}."
            )
        A, twice_Q = hitting.curvature(None, dim), 2 * problem.Q
        if dim == 1:
            root = jnp.sqrt(A)
            return cls((twice_Q / A)[0], root, 1 / root)
        return cls(*_decouple(A, twice_Q))


@one_at_a_time
def _decouple(
    A: Float[Array, "d d"], twice_Q: Float[Array, "d d"]
) -> tuple[Float[Array, " d"], Float[Array, "d d"], Float[Array, "d d"]]:
    L = jnp.linalg.cholesky(A)
    U, roots, _ = jnp.linalg.svd(jax.scipy.linalg.solve_triangular(L, jnp.linalg.cholesky(twice_Q), lower=True))
    return roots**2, U.T @ L.T, jax.scipy.linalg.solve_triangular(L, U, lower=True, trans="T")
