"""The maximal guard relative to the optimum, for constant quadratics (ALGORITHMS section 10; proof in docs/guarantees.md)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.agents.guards.allowance import ratio_of_bills
from ecl2o.planning.modes import Modes
from ecl2o.problem import AbstractQuadraticCost, Problem
from ecl2o.problem.arrays import as_float, known, refuse_unless_finite
from ecl2o.theory import (
    is_feasible_ratio,
    limit_value,
    next_stiffness,
    smallest_feasible_ratio,
    value_table,
)

# Steps for which the unbounded game's values are tabulated before their limit takes over. The limit is valid at any step
# (values rise to it); the past settles like r^(2t), so that it is exact to 1e-9 from here on for beta/m up to 150.
_SETTLING_STEPS = 128


class CompetitiveState(eqx.Module):
    """The wrapped agent's state, the game's constants, the work function, and the bill.

    The work function of the prefix, the least cost of a path that ends in z, is 1/2 sum_i p_i (z - centre)_i^2 + optimum in
    modes; `stiffness` is what is left of p after a move, the k of ALGORITHMS section 10.
    """

    inner: State
    modes: Modes
    values: Float[Array, "n d"]
    stiffness: Float[Array, " d"]
    centre: Float[Array, " d"]
    optimum: Float[Array, ""]
    cost: Float[Array, ""]


class Competitive(AbstractAgent):
    """Play an agent's actions as far as this promise allows: cost <= ratio * the optimum of the contexts so far, at every step.

    It holds for any agent (NaN and infinite actions included) and any contexts, and it is maximal: an action that is not allowed
    can be punished by some continuation of contexts whatever is played afterwards (without a horizon, and from step 128 on, to
    1e-9 for beta/m up to 150; beyond that it is stricter than it need be). An allowed action is played as it is; another one is
    pulled toward the safest action x_m until it is allowed.

    For f = 1/2 (x - y)' A (x - y) with a constant A and no bounds; for anything else use `Guarded`. `horizon` = T promises for
    runs of at most T steps, `None` for runs of any length, which allows less. A ratio that no online algorithm can promise is
    refused with the smallest possible one. State and promise begin anew with each `init`.

    `Info.details`: `cost` so far, `optimum` so far (exactly the oracle's cost of the prefix), `live_ratio`, and whether the
    guard was `active`.
    """

    agent: AbstractAgent
    ratio: Float[Array, ""] = eqx.field(converter=as_float, default=2.5)
    horizon: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        refuse_unless_finite("ratio", self.ratio)
        if self.horizon is None:
            return
        if isinstance(self.horizon, bool) or not isinstance(self.horizon, int) or self.horizon < 1:
            raise ValueError(f"horizon must be at least 1, or None where it is not known, got {self.horizon!r}.")

    @property
    def lookahead(self) -> int:
        return self.agent.lookahead

    def init(self, problem: Problem, start: Start) -> CompetitiveState:
        self.refuse_if_infeasible(problem, start.dim)
        if self.horizon is not None and start.horizon is not None and start.horizon > self.horizon:
            raise ValueError(
                f"Competitive promises for runs of at most horizon = {self.horizon} steps, but this one has "
                f"{start.horizon}; use horizon=None for runs of any length."
            )
        modes = Modes.of(problem, start.dim)
        zero = jnp.zeros((), start.x0.dtype)
        return CompetitiveState(
            inner=self.agent.init(problem, start),
            modes=modes,
            values=_values(modes.a, self.ratio, self.horizon),
            stiffness=modes.a,
            centre=start.x0,
            optimum=zero,
            cost=zero,
        )

    def refuse_if_infeasible(self, problem: Problem, dim: int) -> None:
        """Refuse problems that this guard is not for, and, where the numbers are known, a ratio that cannot be promised."""
        hitting = problem.hitting
        quadratic = isinstance(hitting, AbstractQuadraticCost) and hitting.constant_curvature
        if not (quadratic and problem.is_unbounded_quadratic):
            raise ValueError(
                "Competitive is for quadratic hitting costs of constant curvature, without bounds on actions; got "
                f"{type(hitting).__name__} on {type(problem.actions).__name__}. Guarded takes any costs and any box."
            )
        assert isinstance(hitting, AbstractQuadraticCost)
        if any(known(leaf) is None for leaf in jax.tree.leaves((self.ratio, problem))):
            return
        with jax.ensure_compile_time_eval():  # inside a jit too, where the numbers are constants
            A, Q = (np.asarray(matrix, np.float64) for matrix in (hitting.curvature(None, dim), problem.Q))
        a = np.linalg.svd(np.linalg.solve(*np.linalg.cholesky([A, 2 * Q])), compute_uv=False) ** 2
        ratio = np.asarray(known(self.ratio), np.float64)
        if not is_feasible_ratio(a, ratio, self.horizon).all():
            smallest = smallest_feasible_ratio(a, self.horizon).max()
            many, must = ("any number of", "exceed") if self.horizon is None else (self.horizon, "be at least")
            raise ValueError(
                f"ratio = {ratio:g} cannot be promised over {many} steps: it must {must} {smallest:.8g}, "
                "the smallest competitive ratio that any online algorithm has on this problem."
            )

    def step(self, problem: Problem, state: CompetitiveState, observation: Observation):
        inner_state, advice, inner = self.agent.step(problem, state.inner, observation)
        previous, context = observation.previous_action, observation.context
        modes, k = state.modes, state.stiffness
        value = state.values[jnp.minimum(observation.step, state.values.shape[0] - 1)]

        # The work function takes in the context.
        away = modes.to_modes @ (_centre(problem, context, previous.shape[0]) - state.centre)  # y - m before
        g = 1 / (1 + k)
        centre = state.centre + modes.from_modes @ (g * away)
        optimum = state.optimum + 0.5 * jnp.sum(k * g * away**2)

        # The safest action, relative to the new centre, and what it leaves of the promise.
        to_context = k * g * away
        to_previous = modes.to_modes @ (previous - state.centre) - g * away
        weight = 1 + modes.a + value
        safest = (to_context + modes.a * to_previous) / weight
        ahead = (safest - to_context) ** 2 + modes.a * (safest - to_previous) ** 2 + value * safest**2
        left = self.ratio * optimum - state.cost - 0.5 * jnp.sum(ahead)
        action, active = _pull(advice, centre + modes.from_modes @ safest, modes.to_modes, weight, 2 * left)

        cost = state.cost + problem.hitting(action, context) + problem.switching(action, previous)
        after = CompetitiveState(inner_state, modes, state.values, next_stiffness(k, modes.a), centre, optimum, cost)
        details = {"cost": cost, "optimum": optimum, "live_ratio": ratio_of_bills(cost, optimum), "active": active}
        return after, action, Info(inner.converged, advice, details, inner)


def refuse_infeasible_promises(agent: AbstractAgent, problem: Problem, dim: int) -> None:
    """`Competitive.refuse_if_infeasible` for every such guard inside an agent; at the edge, where numbers are known."""

    def is_guard(node):
        return isinstance(node, Competitive)

    for node in jax.tree.leaves(agent, is_leaf=is_guard):
        if is_guard(node):
            node.refuse_if_infeasible(problem, dim)
            refuse_infeasible_promises(node.agent, problem, dim)


def _centre(problem: Problem, context: Float[Array, " q"], dim: int) -> Float[Array, " d"]:
    assert isinstance(problem.hitting, AbstractQuadraticCost)
    return problem.hitting.centre(context, dim)


def _values(a: Float[Array, " d"], ratio: Float[Array, ""], horizon: int | None) -> Float[Array, "n d"]:
    """v_1, v_2, ..., one row per step; where the horizon is not known the last row is the limit and serves from there on."""
    if horizon is None:
        return value_table(a, ratio, _SETTLING_STEPS, limit_value(a, ratio))[1:]
    return value_table(a, ratio, horizon)[1:]


def _pull(advice, safest, to_modes, weight, radius_squared):
    """The advice, pulled toward the safest action until sum_i weight_i (x - safest)_i^2 <= radius^2; and whether it was."""

    def squared_distance(point):
        return jnp.sum(weight * (to_modes @ (point - safest)) ** 2)

    usable = jnp.isfinite(squared_distance(advice))
    advice = jnp.where(usable, advice, safest)
    distance = squared_distance(advice)
    allowed = distance <= radius_squared
    pulled = ~allowed & (radius_squared > 0)
    share = jnp.sqrt(jnp.where(pulled, radius_squared, 1.0) / jnp.where(pulled, distance, 1.0))
    inward = jnp.where(pulled, safest + share * (advice - safest), safest)
    return jnp.where(allowed, advice, inward), ~(allowed & usable)
