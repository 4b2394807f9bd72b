"""Minimise a smooth strongly convex function on a box by projected Newton steps, differentiably.

The method is Bertsekas' two-metric projection (1982): coordinates that sit at a bound and are pushed against it are held,
Newton's direction is taken in the others, and the step is shortened along the projection arc until the function falls.
It converges from anywhere for strongly convex functions, where Newton with clipped iterates may cycle, and is quadratic
once the active bounds are found. Without bounds it is Newton's method with a line search.

The derivative of the minimiser with respect to every parameter, bounds included, comes from the implicit function
theorem: free coordinates obey H_FF dx_F = -d(gradient_F) - H_FA dx_A, held ones follow their bound. The iterations are
never differentiated.

Two shapes share the iteration: one point with a dense Hessian (`minimize`), and a path of T points whose Hessian is
block tridiagonal (`minimize_sequence`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ecl2o.solvers import block_tridiagonal
from ecl2o.solvers.small_dense import solve_free

_MAX_STEPS = 100
_SHORTEST_STEP = 2.0**-40
_SUFFICIENT_DECREASE = 0.1

# objective(x, parameters) -> scalar
Objective = Callable[[Any, Any], Float[Array, ""]]
# curvature(x, parameters) -> (diagonal blocks (T, d, d), blocks below the diagonal (T-1, d, d))
Curvature = Callable[[Any, Any], tuple[Float[Array, "T d d"], Float[Array, "T-1 d d"]]]


class BoundedMinimum(eqx.Module):
    """A minimiser x, whether the solve converged, and the Newton steps it took."""

    x: Float[Array, "..."]
    converged: Bool[Array, ""]
    steps: Int[Array, ""]


def _held_at_bound(x, gradient, lower, upper, slack):
    """Return which coordinates are within `slack` of a bound and have a gradient that pushes against it."""
    return ((x <= lower + slack) & (gradient > 0)) | ((x >= upper - slack) & (gradient < 0))


def _residual(x, gradient, scale, lower, upper):
    """Return x - P(x - D^{-1} gradient), D the Hessian's diagonal: zero exactly at the minimum, in the units of x."""
    return x - jnp.clip(x - gradient / scale, lower, upper)


def _projected_newton(value, expansion_of, start, lower, upper):
    """Iterate. `expansion_of(x)` returns value, gradient, the Hessian's diagonal and a solver (right, free) -> direction.

    All that the loops carry starts as a function of `start`: under `jax.vmap` a constant would make JAX trace them twice.
    """
    dtype = start.dtype
    eps = jnp.finfo(dtype).eps
    tolerance = eps**0.75

    def size(x):
        return jnp.max(jnp.abs(x))

    def advance(carry):
        x, steps, _, _ = carry
        f, g, scale, newton = expansion_of(x)
        residual = _residual(x, g, scale, lower, upper)
        finite = jnp.isfinite(f) & jnp.isfinite(size(residual))
        done = finite & (size(residual) <= tolerance * (1 + size(x)))
        held = _held_at_bound(x, g, lower, upper, slack=jnp.minimum(size(residual), 1e-3 * (1 + size(x))))
        held = held | (lower == upper)

        # A coordinate at its bound whose gradient leads inward may still be sent outward by the others: hold it too,
        # and ask again. Some descent direction always remains, since g' H^{-1} g > 0.
        def hold_blocked(search):
            free, _, _ = search
            direction = newton(g, free)
            blocked = free & (((x <= lower) & (direction > 0)) | ((x >= upper) & (direction < 0)))
            return free & ~blocked, direction, blocked.any()

        search = (~held, residual, finite)
        _, direction, _ = jax.lax.while_loop(lambda search: search[2], hold_blocked, search)
        direction = jnp.where(held, residual, direction)
        blur = 8 * eps * jnp.abs(f)  # the rounding error of f

        def point(step):
            return jnp.clip(x - step * direction, lower, upper)

        def halve(search):
            step = search[0] / 2
            trial = point(step)
            f_trial, g_trial = jax.value_and_grad(value)(trial)
            descent = jnp.sum(g * (x - trial))
            falls = f_trial <= f - _SUFFICIENT_DECREASE * jnp.maximum(descent, 0.0) + blur
            # Close to the minimum the difference of two values may be nothing but rounding (cosh(u) - 1 for a small u)
            # while gradients are still exact. A slope that has not turned round says that a convex function fell.
            still_falling = (descent > 0) & (jnp.sum(g_trial * (x - trial)) >= -1e-3 * descent)
            shrinks = size(_residual(trial, g_trial, scale, lower, upper)) <= 0.5 * size(residual)
            return step, f_trial, ~(falls | (still_falling & shrinks)) & (step > _SHORTEST_STEP)

        step, f_trial, _ = jax.lax.while_loop(lambda search: search[2], halve, (2 * finite.astype(dtype), f, finite))
        trial = point(step)
        # The arc bends where bounds are met, and may have to be cut short before the first of them. Going straight until
        # then falls too, and settles one more bound: without it ill-conditioned problems take hundreds of steps.
        to_bound = jnp.where(direction > 0, x - lower, jnp.where(direction < 0, upper - x, jnp.inf))
        straight = point(jnp.min(jnp.minimum(to_bound / jnp.where(direction == 0, 1.0, jnp.abs(direction)), 1.0)))
        trial = jnp.where(value(straight) < f_trial - blur, straight, trial)
        return jnp.where(done, x, trial), steps + ~done, done, finite

    def unfinished(carry):
        _, steps, done, finite = carry
        return ~done & finite & (steps < _MAX_STEPS)

    never = size(start) < 0  # false
    carry = (jnp.clip(start, lower, upper), never.astype(int), never, ~never)
    x, steps, done, _ = jax.lax.while_loop(unfinished, advance, carry)
    return BoundedMinimum(x, done, steps)


def _implicit_jvp(objective, minimum, primals, tangents, solve_free, hessian_product):
    """Return the minimum and its tangent: held coordinates follow their bound, free ones keep the gradient at zero."""
    _, parameters, lower, upper = primals
    _, parameters_dot, lower_dot, upper_dot = tangents
    x, gradient = minimum.x, jax.grad(objective)
    g, g_dot = jax.jvp(lambda p: gradient(x, p), (parameters,), (parameters_dot,))
    at_lower, at_upper = (x <= lower) & (g >= 0), (x >= upper) & (g <= 0)
    held = at_lower | at_upper
    bound_dot = jnp.where(at_lower, lower_dot, jnp.where(at_upper, upper_dot, 0.0))
    right = jnp.where(held, 0.0, -g_dot - hessian_product(bound_dot))
    x_dot = bound_dot + solve_free(right, ~held)
    nothing = jnp.zeros(minimum.converged.shape, jax.dtypes.float0)  # a boolean and a count have no tangent
    return minimum, jax.tree.unflatten(jax.tree.structure(minimum), (x_dot, nothing, nothing))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def minimize(
    objective: Objective,
    start: Float[Array, " d"],
    parameters: PyTree,
    lower: Float[Array, " d"],
    upper: Float[Array, " d"],
) -> BoundedMinimum:
    """Minimise objective(x, parameters) over lower <= x <= upper.

    Args:
        objective: Maps x (d,) and the parameters to a number; convex in x.
        start: (d,), the first iterate.
        parameters: Any tree; derivatives with respect to it are exact.
        lower: (d,), may be -inf.
        upper: (d,), may be inf.

    >>> def bowl(x, centre):
    ...     return jnp.sum(jnp.cosh(x - centre))
    >>> found = minimize(bowl, jnp.zeros(2), jnp.array([3.0, -5.0]), jnp.zeros(2), jnp.ones(2) * 9)
    >>> [round(float(v), 3) for v in found.x], bool(found.converged)
    ([3.0, 0.0], True)
    """
    return _minimize(objective, start, parameters, lower, upper)


# Jitted by itself, so that JAX traces the loop once: not again for the derivative or the next rollout.
@partial(jax.jit, static_argnums=0)
def _minimize(objective, start, parameters, lower, upper):
    def slope(x):
        f, g = jax.value_and_grad(objective)(x, parameters)
        return g, (f, g)

    def expansion_of(x):
        hessian, (f, g) = jax.jacfwd(slope, has_aux=True)(x)
        return f, g, jnp.diagonal(hessian), partial(solve_free, hessian)

    return _projected_newton(lambda x: objective(x, parameters), expansion_of, start, lower, upper)


@minimize.defjvp
def _minimize_jvp(objective, primals, tangents):
    minimum = minimize(objective, *primals)
    hessian = jax.jacfwd(jax.grad(objective))(minimum.x, primals[1])
    return _implicit_jvp(objective, minimum, primals, tangents, partial(solve_free, hessian), lambda v: hessian @ v)


def _path_free_solve(diagonal, lower_blocks, right: Float[Array, "T d"], free: Bool[Array, "T d"]):
    """Solve on the free coordinates of a path, zero elsewhere; the reduced matrix is block tridiagonal too."""
    eye = jnp.eye(right.shape[-1], dtype=right.dtype)
    diagonal = jnp.where(free[:, :, None] & free[:, None, :], diagonal, eye)
    lower_blocks = jnp.where(free[1:, :, None] & free[:-1, None, :], lower_blocks, 0.0)
    return block_tridiagonal.solve(block_tridiagonal.factor(diagonal, lower_blocks), jnp.where(free, right, 0.0))


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def minimize_sequence(
    objective: Objective,
    curvature: Curvature,
    start: Float[Array, "T d"],
    parameters: PyTree,
    lower: Float[Array, "T d"],
    upper: Float[Array, "T d"],
) -> BoundedMinimum:
    """Minimise as `minimize` does over a path x (T, d), whose Hessian is block tridiagonal.

    `curvature(x, parameters)` returns its diagonal blocks (T, d, d) and those below them (T - 1, d, d).
    """
    return _minimize_sequence(objective, curvature, start, parameters, lower, upper)


@partial(jax.jit, static_argnums=(0, 1))
def _minimize_sequence(objective, curvature, start, parameters, lower, upper):
    def expansion_of(x):
        diagonal, below = curvature(x, parameters)
        solver = partial(_path_free_solve, diagonal, below)
        return *jax.value_and_grad(objective)(x, parameters), jnp.diagonal(diagonal, axis1=1, axis2=2), solver

    return _projected_newton(lambda x: objective(x, parameters), expansion_of, start, lower, upper)


@minimize_sequence.defjvp
def _minimize_sequence_jvp(objective, curvature, primals, tangents):
    minimum = minimize_sequence(objective, curvature, *primals)
    blocks = curvature(minimum.x, primals[1])
    solve_free, product = partial(_path_free_solve, *blocks), partial(block_tridiagonal.matvec, *blocks)
    return _implicit_jvp(objective, minimum, primals, tangents, solve_free, product)
