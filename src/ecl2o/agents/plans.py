"""Plans over a window of contexts: the cheapest path through what is known and forecast, of which the first part is played.

A plan may end before its window does, at the horizon. Its shape stays the same: steps beyond the end are uncoupled by a
movement weight of zero, and their contexts are not read. Where costs are quadratic with constant curvature and unbounded,
the first actions of a plan are one matrix times (previous action, centres), a matrix for each length a plan may have, made
once per roll-out. Everything else is `cheapest_path` on the window, O(window) by its block-tridiagonal structure.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ecl2o.agents.base import Observation
from ecl2o.problem import AbstractQuadraticCost, Problem
from ecl2o.problem.path import Path, cheapest_path, factor_path
from ecl2o.solvers import solve

# Up to this many numbers, a matrix for each length is made; longer windows are solved at every step.
_LARGEST_TABLE = 2**22


class Planner(eqx.Module):
    """Plans of `shortest` to `steps` steps, made ready for a problem; `first` is how many actions of each are wanted."""

    gains: Float[Array, "lengths rows columns"] | None
    steps: int = eqx.field(static=True)
    first: int = eqx.field(static=True)
    shortest: int = eqx.field(static=True)


def prepare_planner(problem: Problem, dim: int, steps: int, first: int, shortest: int) -> Planner:
    """What is needed once per run."""
    hitting = problem.hitting
    size = (steps - shortest + 1) * first * (steps + 1) * dim**2
    constant = isinstance(hitting, AbstractQuadraticCost) and hitting.constant_curvature
    linear = problem.is_unbounded_quadratic and constant and size <= _LARGEST_TABLE
    gains = _gains(problem, dim, steps, first, shortest) if linear else None
    return Planner(gains, steps, first, shortest)


def _gains(problem: Problem, dim: int, steps: int, first: int, shortest: int):
    """The first rows of each length's inverse Hessian, times 2Q for the previous action and A for each centre."""
    hitting = problem.hitting
    assert isinstance(hitting, AbstractQuadraticCost)
    A = hitting.curvature(None, dim)
    units = jnp.eye(first * dim, steps * dim, dtype=A.dtype).reshape(first * dim, steps, dim)

    def of_length(length):
        factored = factor_path(problem, dim, _coupled(steps, length).astype(A.dtype))
        rows = jax.vmap(lambda unit: solve(factored, unit))(units)  # the inverse is symmetric
        previous = rows[:, :1] @ (2 * problem.Q)
        return jnp.concatenate([previous, rows @ A], axis=1).reshape(first * dim, (steps + 1) * dim)

    return jax.vmap(of_length)(jnp.arange(shortest, steps + 1))


def make_plan(
    problem: Problem,
    planner: Planner,
    previous: Float[Array, " d"],
    contexts: Float[Array, "steps q"],
    length: Int[Array, ""] | int,
) -> Path:
    """The first actions of the cheapest path from `previous` through the first `length` contexts."""
    dim, coupled = previous.shape[0], _coupled(planner.steps, length)
    contexts = jnp.where(coupled[:, None], contexts, contexts[0])  # whatever was forecast beyond the end
    hitting = problem.hitting
    if planner.gains is None:
        path = cheapest_path(problem, previous, contexts, coupled.astype(previous.dtype))
        return Path(path.actions[: planner.first], path.converged)
    assert isinstance(hitting, AbstractQuadraticCost)
    centres = jax.vmap(lambda y: hitting.centre(y, dim))(contexts)
    gain = planner.gains[length - planner.shortest]
    actions = gain @ jnp.concatenate([previous, centres.reshape(-1)])
    return Path(actions.reshape(planner.first, dim), jnp.ones((), bool))


def _coupled(steps: int, length):
    """Which steps belong to a plan of this length."""
    return jnp.arange(steps) < length


def known_contexts(observation: Observation, window: int) -> Float[Array, "steps q"]:
    """y_t and the forecasts of the contexts after it."""
    now = observation.context[None]
    if window == 0:
        return now
    forecast = observation.forecast
    if forecast is None or forecast.shape[0] < window:
        got = "none" if forecast is None else f"{forecast.shape[0]}"
        raise ValueError(f"this agent plans with forecasts of {window} future contexts, got {got}.")
    return jnp.concatenate([now, forecast[:window]])


def steps_left(observation: Observation) -> Int[Array, ""]:
    """The number of steps until the horizon, this one included."""
    if observation.remaining is None:
        raise ValueError(
            "truncate=True needs Observation.remaining at every step; use truncate=False without a horizon."
        )
    return observation.remaining + 1
