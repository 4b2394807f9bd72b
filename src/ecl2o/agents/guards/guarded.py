"""Guards relative to an expert: for any agent and any costs, the cost stays within a factor of the expert's.

The construction is that of RCL (Li, Yang, Wierman and Ren 2023), specialised to contexts that arrive on time. Where the curvature
of the hitting cost is bounded, it reserves less: what the future can still cost (proofs: docs/guarantees.md). `ClippedAdvice`
bounds advice for MLA-ROBD step by step, without an account.

Both allow {x in X: f(x, y) + w1 c(x, x_prev) + reserve(x) <= budget} at a step. Other advice is moved to the nearest point
where the set is an ellipsoid (quadratic costs without bounds; with bounds if d = 1), else along the segment to the fallback.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.agents.calibrator import ROBD, has_closed_form
from ecl2o.agents.guards.base import AbstractGuard, Account, accurate_cost, name_reference
from ecl2o.agents.guards.limited import ramp_of, round_inside
from ecl2o.agents.promise import Promise, Reference
from ecl2o.agents.wrappers import Independent, OwnTrajectory, PureML
from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.work_function import quadratic_terms
from ecl2o.problem import AbstractQuadraticCost, Limited, LinearSwitching, Mahalanobis, Problem, Total
from ecl2o.problem.arrays import (
    as_float,
    as_optional_float,
    check_finite,
    check_nonnegative,
    check_positive,
    concrete_value,
    to_host,
)
from ecl2o.solvers.bisection import bisect_root
from ecl2o.solvers.bounded_newton import minimize
from ecl2o.solvers.ellipsoid import project_on_ellipsoid
from ecl2o.solvers.small_dense import half_quadratic_form, multiply, spd_solve
from ecl2o.theory import future_stiffness, limit_stiffness


class Reserve(eqx.Module):
    """1/2 |x - centre|^2 in the norm of `matrix`, kept back at the action x."""

    centre: Float[Array, " d"]
    matrix: Float[Array, "d d"]


class Allowance(eqx.Module):
    """The set of allowed actions; `fallback` is one of them, up to rounding. The default reserve is w2 c(x, fallback)."""

    context: Float[Array, " q"]
    previous: Float[Array, " d"]
    fallback: Float[Array, " d"]
    previous_weight: Float[Array, ""]
    fallback_weight: Float[Array, ""]
    budget: Float[Array, ""]
    reserve: Reserve | None = None

    def weighted_cost(self, problem: Problem, action: Float[Array, " d"]) -> Float[Array, ""]:
        """Return f(x, y) + w1 c(x, x_prev) + the reserve."""
        cost = problem.hitting(action, self.context) + self.previous_weight * problem.switching(action, self.previous)
        if self.reserve is None:
            return cost + self.fallback_weight * problem.switching(action, self.fallback)
        return cost + half_quadratic_form(self.reserve.matrix, action - self.reserve.centre)


def move_inside(
    problem: Problem, allowance: Allowance, advice: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
    """Return the advice, projected on X, or an allowed action instead, and whether it was changed.

    Advice that is not a number, infinite, or so far away that its distance is, gives the fallback.
    """
    usable = jnp.isfinite(jnp.sum((advice - allowance.fallback) ** 2))
    advice = problem.actions.project(jnp.where(usable, advice, allowance.fallback))
    allowed = allowance.weighted_cost(problem, advice) <= allowance.budget
    move = _nearest if has_closed_form(problem, advice.shape[0]) else _along_segment
    moved = jnp.where(
        usable, _remove_rounding(problem, allowance, move(problem, allowance, advice)), allowance.fallback
    )
    return jnp.where(allowed & usable, advice, moved), ~(allowed & usable)


def _nearest(problem: Problem, allowance: Allowance, advice: Float[Array, " d"]) -> Float[Array, " d"]:
    """Return the nearest point of the ellipsoid; with d = 1, clipping it to the bounds is exact.

    Expanded around the fallback z, where the weighted cost has the gradient p = A (z - v) + 2 w1 Q (z - x_prev) + R (z - centre)
    and the Hessian H = A + 2 w1 Q + R, R the reserve's matrix: the ellipsoid's centre is z - H^{-1} p, and the level above it
    budget - cost(z) + 1/2 p' H^{-1} p. No large numbers cancel, however large the weights are.
    """
    hitting, z, dim = problem.hitting, allowance.fallback, advice.shape[0]
    assert isinstance(hitting, AbstractQuadraticCost)
    reserve = allowance.reserve or Reserve(z, 2 * allowance.fallback_weight * problem.Q)
    shape = hitting.curvature(allowance.context, dim) + 2 * allowance.previous_weight * problem.Q + reserve.matrix
    slope = hitting.gradient(z, allowance.context) + reserve.matrix @ (z - reserve.centre)
    slope = slope + 2 * allowance.previous_weight * problem.Q @ (z - allowance.previous)
    step = spd_solve(shape, slope)
    level = allowance.budget - allowance.weighted_cost(problem, z) + 0.5 * slope @ step
    return problem.actions.project(project_on_ellipsoid(advice, z - step, shape, level))


def _along_segment(problem: Problem, allowance: Allowance, advice: Float[Array, " d"]) -> Float[Array, " d"]:
    """Return the last allowed point on the segment from the fallback to the advice.

    The weighted cost is m-strongly convex and not negative, so an allowed share s of the way d obeys m s^2 |d|^2 <= 8 budget
    (compare the two ends with the middle), which brackets the root however far the advice is.
    """
    way = advice - allowance.fallback
    distance = jnp.sum(way**2)
    reach = 8 * jnp.maximum(allowance.budget, 0.0) / (problem.m * jnp.where(distance > 0, distance, 1.0))
    longest = jax.lax.stop_gradient(jnp.minimum(jnp.sqrt(jnp.where(distance > 0, reach, 1.0)), 1.0))
    share = bisect_root(_spare, jnp.zeros_like(longest), longest, (problem, allowance, way))
    return problem.actions.project(allowance.fallback + share * way)


def _spare(share, parameters):
    """Return what is left of the budget at this share of the way from the fallback."""
    problem, allowance, way = parameters
    return allowance.budget - allowance.weighted_cost(problem, allowance.fallback + share * way)


def _remove_rounding(problem: Problem, allowance: Allowance, action: Float[Array, " d"]) -> Float[Array, " d"]:
    """Pull an action that rounding left just outside toward the fallback, by as little as convexity shows to suffice.

    What is left may exceed the budget by 4e-11 of it in double precision. Where the set is so small that rounding the
    action itself leads further out, a point well inside is played, or else the fallback.
    """
    fallback, budget = allowance.fallback, allowance.budget
    at_fallback = allowance.weighted_cost(problem, fallback)
    reached = allowance.weighted_cost(problem, action)
    rise = reached - at_fallback
    share = jnp.where(rise > 0, (budget - at_fallback) / jnp.where(rise > 0, rise, 1.0), 0.0)
    share = jax.lax.stop_gradient(jnp.clip(share, 0.0, 1.0))
    pulled = jnp.where(~(reached <= budget), fallback + share * (action - fallback), action)
    eps = jnp.finfo(action.dtype).eps
    shorter = fallback + (1 - eps ** (1 / 3)) * (pulled - fallback)

    def fits(x):
        return allowance.weighted_cost(problem, x) <= budget + eps ** (2 / 3) * jnp.abs(budget)

    return jnp.where(fits(pulled), pulled, jnp.where(fits(shorter), shorter, fallback))


class GuardedState(eqx.Module):
    """The wrapped agent's state, the expert's trajectory, the future's stiffness by steps that remain, and the account."""

    inner: State
    expert: OwnTrajectory
    future: Float[Array, "n d d"] | None
    account: Account


def _on_own_trajectory(expert: AbstractAgent) -> Independent:
    return Independent(PureML(expert))


class Guarded(AbstractGuard):
    """The guard that keeps cost <= (1 + slack) * cost of the expert + allowance at every step, whatever the agent proposes.

    It holds for any agent (NaN and infinite actions included), any hitting costs f >= 0, any contexts, any box and actions that
    share a `Total`, also where the total changes. The expert
    is any agent, such as the rule in use today: `advisors.FromContext` for actions that are given from outside. It runs on its
    own trajectory, its actions b_t projected on X; one that is not a number repeats the last, and the step counts as not
    converged. A step may use what the promise leaves, except a reserve:

        C_{t-1} + f(x, y_t) + c(x, x_{t-1}) + kappa/2 |x - b_t|^2_S <= (1 + slack) C^expert_t + allowance.

    For costs of bounded curvature without bounds on actions, S is the stiffness of the future. For quadratic ones the guard is
    then maximal: if an action is not allowed, some contexts and some actions of the expert break the promise. The expert's own
    action need not be allowed; without usable advice the action of least cost and reserve is played.

    Elsewhere S = 2Q, enough to follow the expert, or kappa = 1 and the distance to b_t where movement is measured by distance;
    slack may then be 0. With quadratic movement kappa = 1 + 1/reservation. At the last step of a known horizon nothing is
    reserved. An action that is not allowed is replaced by the nearest one that is (quadratic costs without bounds, or d = 1),
    else by the last one that is on the way from the safest.

    The promise is lost (`kept` turns false, the expert is followed, and steps count as not converged) where a compiled program
    turns out to have a reservation above the slack, where a context is not finite, where f < 0 and the cost exceeds it, where the
    bounds do not allow the total of a step, or where rounding could exceed the tolerance (docs/guarantees.md).

    Args:
        agent: the agent whose actions are played as far as the promise allows.
        expert: the agent whose cost is the reference, the baseline. Default: `ROBD()`.
        slack: extra cost allowed, as a share of the expert's; positive, or 0 with `LinearSwitching`. Default: 0.5.
        reservation: for quadratic movement, in (0, slack]. Default: the slack, the largest that is valid for every f. For
            training, `theory.training_reservation(slack)` keeps the allowed set from collapsing.
        allowance: cost allowed on top, 0 or more, in units of cost. Default: 0.

    Raises:
        ValueError: if slack, reservation or allowance is out of its range.
        NotApplicableError: at the start of a run with a reservation and `LinearSwitching`.

    `Info.details`: `cost` and `expert_cost` so far, their quotient `expert_ratio`, what is `left` of the promise, whether the
    guard was `active`, whether the promise is `kept`, and for how many steps it was (`kept_steps`).

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> run = ec.rollout(Guarded(ec.advisors.Fixed([[1e6]]), slack=0.25), problem, ec.Instance([0.0], [[1.0]]))
    >>> bool(run.info.details["expert_ratio"][-1] <= 1.25 * (1 + 1e-4))
    True
    """

    agent: AbstractAgent
    expert: AbstractAgent = eqx.field(default_factory=ROBD)
    slack: Float[Array, ""] = eqx.field(converter=as_float, default=0.5)
    reservation: Float[Array, ""] | None = eqx.field(converter=as_optional_float, default=None)
    allowance: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)

    def __check_init__(self):
        check_finite("slack", self.slack)
        check_nonnegative("slack", self.slack)
        check_finite("allowance", self.allowance)
        check_nonnegative("allowance", self.allowance)
        if self.reservation is None:
            return
        check_positive("reservation", self.reservation)
        reserved, slack = concrete_value(self.reservation), concrete_value(self.slack)
        if reserved is not None and slack is not None and (reserved > slack).any():
            raise ValueError(f"reservation must not exceed slack, got reservation {reserved} and slack {slack}.")

    def promise(self, problem: Problem) -> Promise:
        name, allowance = name_reference(self.expert), float(self.allowance)
        return Promise(1 + float(self.slack), Reference.EXPERT, name, allowance)

    def rescale(self, factor: float) -> "Guarded":
        return dataclasses.replace(self, allowance=to_host(self.allowance) * factor**2)

    def check(self, problem: Problem, start: Start) -> None:
        super().check(problem, start)
        self._check_movement(problem)

    def _check_movement(self, problem: Problem) -> None:
        if ramp_of(problem) is not None:
            raise NotApplicableError(
                "Guarded does not promise with a ramp limit: use Competitive or Promises with contexts=(low, high), or follow "
                "the expert without a promise."
            )
        if not isinstance(problem.switching, LinearSwitching):
            _ = problem.quadratic_movement  # the reservation is a triangle inequality
            check_positive("slack", self.slack)
        elif self.reservation is not None:
            raise NotApplicableError("reservation is for quadratic movement; a distance needs none.")

    def init(self, problem: Problem, start: Start) -> GuardedState:
        self._check_movement(problem)
        return self._state(problem, start, self.agent.init(problem, start))

    def restart(self, problem: Problem, state: GuardedState, start: Start) -> GuardedState:
        return self._state(problem, start, state.inner)

    def _state(self, problem: Problem, start: Start, inner: State) -> GuardedState:
        dtype = start.x0.dtype
        valid = jnp.isfinite(self.slack) & (self.slack >= 0)
        valid &= jnp.isfinite(self.allowance) & (self.allowance >= 0)
        if not isinstance(problem.switching, LinearSwitching):
            reserved = self.slack if self.reservation is None else self.reservation
            valid &= (reserved > 0) & (reserved <= self.slack)
        expert, future = _on_own_trajectory(self.expert).init(problem, start), None
        greatest = problem.hitting.curvature_bounds(start.dim)[1]
        if greatest is not None and isinstance(problem.switching, Mahalanobis) and not problem.is_bounded:
            greatest, G = greatest.astype(dtype), 2 * problem.Q
            ahead = future_stiffness(greatest, G, start.horizon or 1)[::-1]
            future = jnp.concatenate([ahead, limit_stiffness(greatest, G)[None]])
        return GuardedState(inner, expert, future, Account.open(self.allowance, valid, dtype))

    def step(self, problem: Problem, state: GuardedState, observation: Observation):
        previous, context = observation.previous_action, observation.context
        expert_state, expert_action, expert_info = _on_own_trajectory(self.expert).step(
            problem, state.expert, observation
        )
        seen = observation.with_lookahead(self.agent.lookahead)
        inner_state, advice, inner = self.agent.step(problem, state.inner, seen)

        growth, expert_rounding = accurate_cost(problem, expert_action, context, state.expert.action)
        kept = state.account.kept & jnp.isfinite(growth)
        if isinstance(problem.actions, Total):
            kept &= problem.actions.allows(problem.actions.known_total(), len(previous))
        level = state.account.left + (1 + self.slack) * growth
        allowance, solved = self._allowance(problem, state.future, observation, expert_action, level)
        allowed, active = move_inside(problem, allowance, advice)
        action = jnp.where(kept, allowed, expert_action)
        if isinstance(problem.actions, Limited):  # the expert's action is a multiple of the spacing too
            points = problem.actions, previous, advice, action, expert_action
            action, active, _ = round_inside(*points, kept, lambda x: level - allowance.weighted_cost(problem, x))

        cost, rounding = accurate_cost(problem, action, context, previous)
        rounding += (1 + self.slack) * expert_rounding
        account = state.account.update(1 + self.slack, growth, cost, rounding, kept)
        details = account.details("expert_cost", "expert_ratio", active | ~account.kept)
        info = Info(inner.converged & expert_info.converged & account.kept & solved, advice, details, inner)
        return GuardedState(inner_state, expert_state, state.future, account), action, info

    def _allowance(
        self, problem: Problem, future, observation: Observation, expert_action, level
    ) -> tuple[Allowance, Bool[Array, ""]]:
        """Return what is allowed, and whether its safest action was found."""
        previous, context, remaining = observation.previous_action, observation.context, observation.remaining
        one = jnp.ones((), previous.dtype)
        kappa = one
        if not isinstance(problem.switching, LinearSwitching):
            kappa = one + 1 / (self.slack if self.reservation is None else self.reservation)
        if future is None:
            kappa = kappa if remaining is None else jnp.where(remaining == 0, 0.0, kappa)
            return Allowance(context, previous, expert_action, one, kappa, level), jnp.ones((), bool)
        last = future.shape[0] - 1
        place = last if remaining is None else jnp.clip(remaining, 0, last)
        reserve = Reserve(expert_action, kappa * future[place])
        allowance = Allowance(context, previous, expert_action, one, kappa, level, reserve)
        if isinstance(problem.hitting, AbstractQuadraticCost):
            A, target = quadratic_terms(problem, context, previous.shape[0])
            pull = multiply(A, target - expert_action) + 2 * multiply(problem.Q, previous - expert_action)
            safest = expert_action + spd_solve(A + 2 * problem.Q + reserve.matrix, pull)
            found = jnp.ones((), bool)
        else:
            everywhere = problem.actions.bounds(previous.shape[0], previous.dtype)
            solved = minimize(_weighted_cost, expert_action, (problem, allowance), *everywhere)
            safest, found = solved.x, solved.converged
        return dataclasses.replace(allowance, fallback=safest), found


def _weighted_cost(action, parameters):
    problem, allowance = parameters
    return allowance.weighted_cost(problem, action)


class ClippedState(eqx.Module):
    """The advisor's state and the expert's trajectory; no budget is carried."""

    inner: State
    expert: OwnTrajectory


class ClippedAdvice(AbstractAgent):
    """An advisor whose advice is moved into {x: f(x, y_t) <= (1 + delta) * the expert's cost of step t}, for MLA-ROBD.

    `MLAROBD(ClippedAdvice(advisor))` has a finite ratio whatever the advisor: the prediction error of the clipped advice is at
    most `theory.clipped_prediction_error`, to which Theorem 4.1 applies. It answers the paper's open question without carrying a
    budget; `Guarded` promises more. Advice that is NaN or infinite becomes the expert's action.

    Args:
        advisor: the agent whose actions are taken as advice.
        expert: the agent whose step costs are the measure, on its own trajectory. Default: `ROBD()`.
        delta: extra hitting cost of the advice, as a share of the expert's cost; 0 or more. Default: 0.5.

    Raises:
        ValueError: if delta is negative or not finite.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> agent = ec.MLAROBD(ClippedAdvice(ec.advisors.Fixed([[1e6]])))
    >>> bool(ec.rollout(agent, problem, ec.Instance([0.0], [[1.0]])).actions[0, 0] < 2)
    True
    """

    advisor: AbstractAgent
    expert: AbstractAgent = eqx.field(default_factory=ROBD)
    delta: Float[Array, ""] = eqx.field(converter=as_float, default=0.5)

    def __check_init__(self):
        check_finite("delta", self.delta)
        check_nonnegative("delta", self.delta)

    def init(self, problem: Problem, start: Start) -> ClippedState:
        return ClippedState(self.advisor.init(problem, start), _on_own_trajectory(self.expert).init(problem, start))

    def step(self, problem: Problem, state: ClippedState, observation: Observation):
        expert_state, fallback, expert_info = _on_own_trajectory(self.expert).step(problem, state.expert, observation)
        seen = observation.with_lookahead(self.advisor.lookahead)
        inner_state, proposed, inner = self.advisor.step(problem, state.inner, seen)
        budget = (1 + self.delta) * expert_info.details["step_cost"]
        nothing = jnp.zeros_like(budget)
        allowance = Allowance(observation.context, observation.previous_action, fallback, nothing, nothing, budget)
        advice, active = move_inside(problem, allowance, proposed)
        info = Info(inner.converged & expert_info.converged, proposed, {"active": active}, inner)
        return ClippedState(inner_state, expert_state), advice, info
