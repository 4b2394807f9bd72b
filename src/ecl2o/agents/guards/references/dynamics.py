"""References on problems with a state, delays and contexts known ahead among them (docs/guarantees.md, linear dynamics).

After an action u the state is xi' = F xi + B u + E d. The action is allowed if its cost and the reserve that xi' needs against
all later contexts are within what the account leaves. Both are quadratic in u.

A problem with a delay does not change if all contexts and actions are moved by the same amount. So its states, contexts and the
centre of the past are measured from the latest action, and no large numbers cancel.
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ecl2o.agents.base import AbstractAgent, AnyProblem, Observation, Start
from ecl2o.agents.guards.level_sets import Action, Form, Number, Origin, QuadraticSet
from ecl2o.agents.guards.references.base import (
    AbstractReference,
    AbstractReferenceStep,
    PromiseTerms,
    Settlement,
    name_reference,
)
from ecl2o.agents.guards.references.optimum import Tracking
from ecl2o.agents.promise import Promise, Reference
from ecl2o.agents.wrappers import Independent, OwnTrajectory
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import ControlProblem
from ecl2o.problem.arrays import concrete_value
from ecl2o.solvers.small_dense import accurate_half_form, spd_solve
from ecl2o.theory.control import (
    ControlReserve,
    Future,
    Past,
    Stage,
    baseline_reserve,
    control_future,
    largest_control_shape,
    smallest_control_ratio,
)


class Situation(eqx.Module):
    """A step of the dynamics: the matrices, and state and context less what they are measured from."""

    stage: Stage
    state: Float[Array, " n"]
    context: Float[Array, " q"]
    origin: Origin  # of actions
    state_origin: Float[Array, " n"]

    @classmethod
    def of(cls, problem: AnyProblem, observation: Observation) -> "Situation":
        """Take what a step is made of from an observation."""
        dynamics = problem.game
        state, size = observation.previous_action, problem.action_size(len(observation.previous_action))
        origin, moves = jnp.zeros(size, state.dtype), problem.timing.shift != 0
        position, context = problem.timing.control_state(state, size), observation.context
        state_origin = jnp.zeros_like(position)
        if moves:  # nothing changes if all contexts and actions are moved by the same amount
            origin, context = state[:size], context[:size] - state[:size]
            state_origin = jnp.tile(origin, len(position) // size)
            position = position - state_origin
        stage, state = Stage.of(dynamics.at(observation.step)), position
        return cls(stage, state, context, Origin.at(origin), state_origin)

    def point(self, away: Action) -> Float[Array, " s"]:
        """Return state, action and context in one vector."""
        return jnp.concatenate([self.state, away, self.context])

    def cost(self, away: Action) -> tuple[Number, Number]:
        """Return the cost of the step, and a bound on its error."""
        return accurate_half_form(self.stage.M, self.point(away))

    def level_set(self, reserve: ControlReserve, level: Number) -> QuadraticSet:
        """Return {u: cost of the step + reserve of the next state <= level}, an ellipsoid around its safest action."""
        stage = self.stage
        x, u, d = stage.places
        drift = stage.F @ self.state + stage.E @ self.context
        shape = stage.M[u, u] + stage.B.T @ reserve.curvature @ stage.B
        shape = 0.5 * (shape + shape.T)
        pull = stage.M[u, x] @ self.state + stage.M[u, d] @ self.context
        safest = -spd_solve(shape, pull + stage.B.T @ (reserve.curvature @ drift - reserve.slope))
        point = self.point(safest)
        left = level - 0.5 * point @ stage.M @ point - reserve.value(drift + stage.B @ safest)
        return QuadraticSet((Form(shape, safest),), left, reserve.sound)


class DynamicState(eqx.Module):
    """The past of the reference, or its trajectory, and the least that its cost can still grow by."""

    reference: Any  # Past, or OwnTrajectory
    least_ahead: Number


class DynamicStep(AbstractReferenceStep):
    """A step relative to a reference on a problem with a state."""

    situation: Situation
    reserve: ControlReserve
    after: Past | OwnTrajectory
    growth: Number
    least_ahead: Number  # before the step
    ratio: Number
    announced: Bool[Array, ""]
    found: Bool[Array, ""]
    usable: Bool[Array, ""]

    @property
    def converged(self) -> Bool[Array, "*n"]:
        return self.found

    @property
    def origin(self) -> Origin:
        return self.situation.origin

    @property
    def hold(self) -> Action:
        return self.origin.point

    def level_set(self, left: Number, origin: Origin | None = None) -> QuadraticSet:
        return self.situation.level_set(self.reserve, left + self.ratio * (self.growth - self.least_ahead))


class AbstractDynamicReference(AbstractReference):
    """What the two references share: the future, the cost, and the account. A subclass follows its past."""

    tracking = Tracking()
    every_prefix = False

    @property
    def conditions(self) -> Tracking:
        return self.tracking

    @property
    def horizon(self) -> int | None:
        """The number of steps of the run; None: a run without an end."""
        return self.tracking.horizon

    def check_dynamics(self, problem: AnyProblem, start: Start, ratios: list, several: bool) -> None:
        """Reject problems that do not fit."""
        dynamics: ControlProblem = problem.game
        if self.horizon is None and dynamics.steps is not None:
            raise NotApplicableError(
                f"the guard needs horizon={dynamics.steps}, as the matrices of the problem are for so many."
            )
        if self.horizon is not None and start.horizon != self.horizon:
            raise NotApplicableError(
                f"the guard promises for the end of horizon = {self.horizon} steps, but this run has "
                f"{'no end' if start.horizon is None else start.horizon}."
            )

    def prepare(self, problem: AnyProblem, start: Start, several: bool) -> Future:
        return jax.lax.stop_gradient(control_future(problem.game, self.horizon, self.every_prefix))

    def price(
        self, now: Situation, prepared: Future, ratio, observation: Observation, reserve_of, after, growth, state, found
    ) -> DynamicStep:
        """Return the step; `reserve_of` is a function of the future's matrices."""
        place, last = observation.place, prepared.S.shape[0] - 1
        reserve = reserve_of(*(matrix[jnp.minimum(place, last)] for matrix in (prepared.S, prepared.S0)))
        announced = jnp.ones((), bool) if self.horizon is None else place < self.horizon
        usable = jnp.isfinite(ratio * growth)
        return DynamicStep(now, reserve, after, growth, state.least_ahead, ratio, announced, found, usable)

    def common_action(
        self, problem: AnyProblem, prepared: Future, observation: Observation, least: Number, origin: Origin
    ):
        """Return the safest action of a run whose past is 1/2 |z - x|^2 in the norm of S/(L - 1), x the present state."""
        now, S = Situation.of(problem, observation), prepared.S[0]
        covariance = (least - 1) * spd_solve(S, jnp.eye(len(S), dtype=S.dtype))
        past, _ = Past(0.5 * (covariance + covariance.T), now.state).after(now.stage, now.context)
        reserve = ControlReserve.of(past, S, prepared.S0[0], least)
        return now.level_set(reserve, jnp.zeros_like(least)).lowest(), reserve.sound

    def settle(
        self, problem: AnyProblem, term: Any, state, ratio, observation: Observation, action: Action
    ) -> Settlement:
        ahead = term.reserve.least_growth
        growth, size = term.growth + ahead - term.least_ahead, len(term.situation.point(action))
        eps = jnp.finfo(growth.dtype).eps
        rounding = jax.lax.stop_gradient(8 * size * eps * (jnp.abs(growth) + ahead))
        growth, rounding = (jnp.where(term.usable, each, 0.0) for each in (growth, rounding))
        after = jax.tree.map(lambda new, old: jnp.where(term.usable, new, old), DynamicState(term.after, ahead), state)
        cost, cost_rounding = term.situation.cost(term.origin.away(action))
        return Settlement(after, growth, rounding, growth, cost, cost_rounding, cost)


def _move(past: Past, by: Float[Array, " n"]) -> Past:
    return Past(past.covariance, past.centre + by)


class DynamicOptimum(AbstractDynamicReference):
    """The offline optimum on a problem with a state.

    Args:
        tracking: the conditions of the promise; none but a horizon is possible.
        every_prefix: whether the promise is for every step instead of the end.
    """

    kind: ClassVar[str] = "dynamic optimum"

    tracking: Tracking = Tracking()
    every_prefix: bool = eqx.field(static=True, default=False)

    def describe(self, problem: AnyProblem, terms: PromiseTerms, least: float | None) -> Promise:
        period = terms.period if terms.period is not None else self.horizon
        ratio, rounded = float(terms.ratio), 0.0
        if problem.actions.spacing is not None:
            numbers = float(terms.ratio) if least is None else least, self.horizon
            shape = largest_control_shape(problem.game, *numbers, every_prefix=self.every_prefix)
            units = np.broadcast_to(np.asarray(problem.actions.spacing, float), len(shape))
            rounded = float(units @ np.abs(shape) @ units) / 8
        return Promise(
            ratio,
            Reference.OPTIMUM,
            None,
            float(terms.allowance),
            period,
            at_end=not self.every_prefix,
            rolling=terms.rolling,
            allowance_per_step=rounded,
        )

    def check(self, problem: AnyProblem, start: Start, ratios: list[Float[Array, ""]], several: bool) -> None:
        self.check_dynamics(problem, start, ratios, several)
        if any(concrete_value(leaf) is None for leaf in jax.tree.leaves((ratios, problem))):
            return
        with jax.core.eval_context():
            smallest = smallest_control_ratio(problem.game, self.horizon, every_prefix=self.every_prefix)
        lowest = min(float(np.min(np.asarray(concrete_value(ratio)))) for ratio in ratios)
        if not lowest > smallest:
            raise NotApplicableError(
                f"`ratio` = {lowest:g} cannot be promised: it must exceed {smallest:.8g}, the smallest competitive "
                "ratio that any online algorithm has."
            )

    def feasible(
        self, problem: AnyProblem, prepared: Future, start: Start, ratios: Float[Array, " promises"], several: bool
    ):
        return (jnp.isfinite(ratios) & (ratios > 1)).all(), jnp.full((), 2.0, start.x0.dtype)

    def init(self, problem: AnyProblem, prepared, start: Start) -> DynamicState:
        return self.restart(problem, prepared, None, start.x0)

    def restart(self, problem: AnyProblem, prepared, state, position: Float[Array, " n"]) -> DynamicState:
        centre = problem.timing.control_state(position, problem.action_size(len(position)))
        zero = jnp.zeros((), centre.dtype)
        return DynamicState(Past(jnp.zeros((len(centre),) * 2, centre.dtype), centre), zero)

    def observe(self, problem: AnyProblem, prepared: Future, state: DynamicState, ratio, observation: Observation):
        now = Situation.of(problem, observation)
        past, growth = _move(state.reference, -now.state_origin).after(now.stage, now.context)

        def reserve(S, S0):
            return ControlReserve.of(past, S, S0, ratio)

        after = _move(past, now.state_origin)
        return self.price(now, prepared, ratio, observation, reserve, after, growth, state, jnp.ones((), bool))


class DynamicBaseline(AbstractDynamicReference):
    """A baseline on its own trajectory of a problem with a state.

    Args:
        agent: the baseline.
        tracking: as in `DynamicOptimum`.
        every_prefix: as in `DynamicOptimum`.
    """

    kind: ClassVar[str] = "dynamic baseline"

    agent: AbstractAgent
    tracking: Tracking = Tracking()
    every_prefix: bool = eqx.field(static=True, default=False)

    @property
    def lookahead(self) -> int:
        return self.agent.lookahead

    def describe(self, problem: AnyProblem, terms: PromiseTerms, least: float | None) -> Promise:
        period = terms.period if terms.period is not None else self.horizon
        named, extra = (Reference.EXPERT, name_reference(self.agent)), float(terms.allowance)
        return Promise(float(terms.ratio), *named, extra, period, at_end=not self.every_prefix, rolling=terms.rolling)

    def check(self, problem: AnyProblem, start: Start, ratios: list[Float[Array, ""]], several: bool) -> None:
        self.check_dynamics(problem, start, ratios, several)

    def feasible(
        self, problem: AnyProblem, prepared: Future, start: Start, ratios: Float[Array, " promises"], several: bool
    ):
        return (jnp.isfinite(ratios) & (ratios > 1)).all(), jnp.full((), 2.0, start.x0.dtype)

    def init(self, problem: AnyProblem, prepared, start: Start) -> DynamicState:
        return DynamicState(Independent(self.agent).init(problem, start), jnp.zeros((), start.x0.dtype))

    def restart(self, problem: AnyProblem, prepared, state: DynamicState, position: Float[Array, " n"]) -> DynamicState:
        zero = jnp.zeros_like(state.least_ahead)
        return DynamicState(dataclasses.replace(state.reference, action=position, cost=zero), zero)

    def observe(self, problem: AnyProblem, prepared: Future, state: DynamicState, ratio, observation: Observation):
        own, _, info = Independent(self.agent).step(problem, state.reference, observation)
        now = Situation.of(problem, observation)
        size = problem.action_size(len(own.action))
        position = problem.timing.control_state(own.action, size) - now.state_origin

        def reserve(S, S0):
            return baseline_reserve(position, S, S0, ratio)

        growth = info.details["step_cost"]
        return self.price(now, prepared, ratio, observation, reserve, own, growth, state, info.converged)
