"""The calibrator R_lambda (Algorithm 1, line 5), shared by Greedy, R-OBD, MLA-ROBD and Follow the Prediction.

R_lambda(y, x_prev, advice) = argmin over x in X of f(x, y) + lambda1 c(x, x_prev) + lambda2 c(x, v) + lambda3 c(x, advice),
with v the minimiser of f(., y) over X. For f = 1/2 (x - y)' A (x - y) without active bounds it solves
(A + 2 Lambda Q) x = A y + 2 Q (lambda1 x_prev + lambda2 v + lambda3 advice), Lambda = lambda1 + lambda2 + lambda3, and its
derivatives are Eqns. gradientml and gradientprior: 2 lambda3 Z^{-1} Q and 2 lambda1 Z^{-1} Q with Z = A + 2 Lambda Q.
In one dimension bounds only clip that. Everything else is a bounded Newton solve, differentiated implicitly.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.problem import AbstractQuadraticCost, ConvexCost, Mahalanobis, Problem
from ecl2o.problem.arrays import as_optional_float
from ecl2o.solvers.bounded_newton import minimize


class Weights(eqx.Module):
    """The weights of R_lambda.

    Args:
        previous: lambda1, of the previous action. Default: None, no such term.
        minimizer: lambda2, of the minimiser of the hitting cost. Default: None, no such term.
        advice: lambda3. Default: None, no such term.
    """

    previous: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)
    minimizer: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)
    advice: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)


class Gains(eqx.Module):
    """R_lambda as a linear map: Z^{-1} A on the centre, and 2 lambda_i Z^{-1} Q = lambda_i `pull` on the other points."""

    centre: Float[Array, "d d"]
    pull: Float[Array, "d d"]


class Calibration(eqx.Module):
    """The weights of R_lambda, and R_lambda as a linear map if one map serves every step, else None."""

    weights: Weights
    gains: Gains | None

    @classmethod
    def of(cls, problem: Problem, weights: Weights, dim: int) -> "Calibration":
        """Prepare R_lambda for a problem with actions of `dim` numbers, once per run.

        Raises:
            NotApplicableError: if the movement cost is not quadratic.
        """
        _ = problem.quadratic_movement  # raises for any other: the objective would not be smooth
        constant = isinstance(problem.hitting, AbstractQuadraticCost) and problem.hitting.constant_curvature
        is_one_map = constant and has_closed_form(problem, dim)
        return cls(weights, _compute_gains(problem, weights, None, dim) if is_one_map else None)


def calibrate(
    problem: Problem,
    calibration: Calibration,
    context: Float[Array, " q"],
    previous: Float[Array, " d"],
    advice: Float[Array, " d"] | None = None,
) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
    """Compute the calibrated action R_lambda(y_t, x_{t-1}, advice).

    Args:
        problem: costs and action set.
        calibration: R_lambda, made by `Calibration.of`.
        context: (q,), y_t.
        previous: (d,), x_{t-1}.
        advice: (d,), for a calibration with a weight for it. Default: none.

    Returns:
        The action (d,), and whether the solve converged (always, in closed form).
    """
    weights, hitting, dim = calibration.weights, problem.hitting, previous.shape[0]
    minimizer, found = None, jnp.ones((), bool)
    if weights.minimizer is not None:
        minimizer, found = minimize_hitting(problem, context, previous)
    terms = ((weights.previous, previous), (weights.minimizer, minimizer), (weights.advice, advice))
    pulls = [(weight, point) for weight, point in terms if weight is not None and point is not None]
    if isinstance(hitting, AbstractQuadraticCost) and has_closed_form(problem, dim):
        gains = calibration.gains or _compute_gains(problem, weights, context, dim)
        pull = sum((weight * point for weight, point in pulls), start=jnp.zeros_like(previous))
        free = _apply(gains.centre, hitting.centre(context, dim)) + _apply(gains.pull, pull)
        return problem.actions.project(free), found
    lower, upper = problem.actions.bounds(dim, previous.dtype)
    solved = minimize(_objective, previous, (problem, pulls, context), lower, upper)
    return solved.x, found & solved.converged


def minimize_hitting(
    problem: Problem, context: Float[Array, " q"], guess: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
    """Compute v = argmin over X of f(., y), R_lambda with all weights zero, and whether the solve converged."""
    hitting, dim = problem.hitting, guess.shape[0]
    clipping_is_exact = dim == 1 or not problem.is_bounded
    if isinstance(hitting, AbstractQuadraticCost) and clipping_is_exact:
        return problem.actions.project(hitting.centre(context, dim)), jnp.ones((), bool)
    if isinstance(hitting, ConvexCost) and hitting.minimizer is not None and clipping_is_exact:
        return problem.actions.project(hitting.minimizer(context)), jnp.ones((), bool)
    lower, upper = problem.actions.bounds(dim, guess.dtype)
    solved = minimize(_hitting_only, guess, (hitting, context), lower, upper)
    return solved.x, solved.converged


def find_hitting_minimizer(problem: Problem, context: Float[Array, " q"], dim: int | None = None) -> Float[Array, " d"]:
    """Return argmin over X of f(., y), where a run starts if no action was in force. Default of dim: that of Q."""
    lower, upper = problem.actions.bounds(problem.Q.shape[0] if dim is None else dim, context.dtype)
    bounded = jnp.isfinite(lower) & jnp.isfinite(upper)
    middle = jnp.where(bounded, 0.5 * (lower + upper), jnp.clip(0.0, lower, upper))
    return minimize_hitting(problem, context, middle)[0]


def has_closed_form(problem: Problem, dim: int) -> bool:
    """Return whether a linear solve, then clipped, is exact: quadratic costs, and no bounds or d = 1."""
    quadratic = isinstance(problem.hitting, AbstractQuadraticCost) and isinstance(problem.switching, Mahalanobis)
    return quadratic and (dim == 1 or not problem.is_bounded)


def _compute_gains(problem: Problem, weights: Weights, context: Float[Array, " q"] | None, dim: int) -> Gains:
    assert isinstance(problem.hitting, AbstractQuadraticCost)
    A, Q = problem.hitting.curvature(context, dim), problem.Q
    given = [w for w in (weights.previous, weights.minimizer, weights.advice) if w is not None]
    Z = A + 2 * sum(given, start=jnp.zeros((), A.dtype)) * Q
    if dim == 1:
        return Gains(A / Z, 2 * Q / Z)
    both = jax.scipy.linalg.solve(Z, jnp.concatenate([A, 2 * Q], axis=1), assume_a="pos")
    return Gains(both[:, :dim], both[:, dim:])


def _apply(matrix: Float[Array, "d d"], vector: Float[Array, " d"]) -> Float[Array, " d"]:
    return matrix[0] * vector if vector.shape[0] == 1 else matrix @ vector


def _objective(action, parameters):
    problem, pulls, context = parameters
    distances = [weight * problem.switching(action, point) for weight, point in pulls]
    return problem.hitting(action, context) + sum(distances, start=jnp.zeros((), action.dtype))


def _hitting_only(action, parameters):
    hitting, context = parameters
    return hitting(action, context)
