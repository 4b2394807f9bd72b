"""The optimum of quadratic costs as a reference: maximal guards (docs/guarantees.md, the revelation theorem).

An action x costs f_t(x) + c(x, x_{t-1}) and must reserve the value W(x) of the game against all future contexts. Everything is
measured from the centre m of the work function, so that no large numbers cancel.

Where contexts may lie anywhere, W(x) = 1/2 |x - m|^2_V. Where they are known to lie in a box, and all matrices are diagonal,
W(x) is a sum over coordinates of max over n in [low, high] of s/2 (x - n)^2 - L h/2 (n - m)^2.
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ecl2o.agents.base import AnyProblem, Observation, Start
from ecl2o.agents.guards.account import accurate_cost
from ecl2o.agents.guards.level_sets import Action, Form, Number, Origin, QuadraticSet
from ecl2o.agents.guards.limits import count_movement
from ecl2o.agents.guards.needs import are_diagonal
from ecl2o.agents.guards.references.base import (
    AbstractReference,
    AbstractReferenceStep,
    PromiseTerms,
    Settlement,
)
from ecl2o.agents.guards.references.lines import AbstractLines, LineSet
from ecl2o.agents.promise import Promise, Reference
from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.work_function import Prefix, WorkFunction, is_resolved, quadratic_terms
from ecl2o.problem import Problem
from ecl2o.problem.arrays import (
    AnyArray,
    as_float,
    as_optional_float,
    cast_floats,
    check_finite,
    check_positive,
    concrete_value,
    safe_sqrt,
    times_identity,
    to_device,
    to_host,
)
from ecl2o.solvers.small_dense import largest_ratio, multiply, parallel_sum, spd_solve
from ecl2o.theory import (
    future_stiffness,
    joint_share,
    largest_share,
    limit_stiffness,
    promise_value,
    recurring_stiffness,
    smallest_feasible_ratio,
    smallest_joint_ratio,
)
from ecl2o.theory.promises import largest_joint_shape, largest_reserve_shape

Bounds = tuple[Float[Array, "*low"], Float[Array, "*high"]]
Matrix = Float[Array, "d d"]


def as_bounds(contexts: Any) -> Bounds | None:
    """Convert (low, high) to arrays, but pass None through."""
    return None if contexts is None else (as_float(contexts[0]), as_float(contexts[1]))


class Tracking(eqx.Module):
    """What references of tracking problems share: the conditions, the curvatures, and what limits on actions leave.

    Args:
        horizon: the longest run, in steps; None: runs of any length.
        contexts: (low, high) within which contexts are known to lie; None: anywhere.
        weights: the curvature of each step, where it is announced; None: it is not.
    """

    horizon: int | None = eqx.field(static=True, default=None)
    contexts: Bounds | None = eqx.field(converter=as_bounds, default=None)
    weights: Float[Array, " n"] | None = eqx.field(converter=as_optional_float, default=None)

    def __check_init__(self):
        if self.horizon is not None and (type(self.horizon) is not int or self.horizon < 1):
            raise ValueError(f"horizon must be at least 1, or None where it is not known, got {self.horizon!r}.")
        if self.contexts is not None:
            low, high = (concrete_value(bound) for bound in self.contexts)
            if low is not None and high is not None and not (low <= high).all():
                raise ValueError(f"contexts must be (low, high) with low <= high, got {low} and {high}.")
        if self.weights is not None:
            check_positive("weights", self.weights)
            check_finite("weights", self.weights)
            if self.horizon is not None and self.weights.shape != (self.horizon,):
                raise ValueError(f"weights must be one for each of {self.horizon} steps, got {self.weights.shape}.")

    def curvatures(self, problem: Problem, dim: int) -> tuple[Array, Array, Array]:
        """Return the least and the greatest curvature, of all steps or by step, and G = 2Q."""
        G = to_device(2 * to_host(problem.Q))
        if self.weights is not None:
            announced = times_identity(self.weights, dim)
            return announced, announced, G
        least, greatest = problem.hitting.curvature_bounds(dim)
        assert greatest is not None
        return least, greatest, G

    def count(self, problem: Problem, dim: int) -> tuple[Problem, Float[AnyArray, ""]]:
        """Return the problem as the promise counts it: where a ramp is narrow, movement costs more; and the real share of it."""
        if problem.actions.ramp is None or self.contexts is None:
            return problem, np.ones(())
        greatest = self.curvatures(problem, dim)[1]
        return count_movement(problem, jnp.max(greatest, axis=0) if greatest.ndim == 3 else greatest, *self.contexts)

    def needs_diagonal(self, problem: Problem, dim: int) -> bool:
        """Return whether coordinates are priced one by one."""
        separate = not problem.hitting.is_quadratic or problem.actions.spacing is not None
        return self.contexts is not None or (dim > 1 and separate)

    def counted_steps(self, problem: Problem) -> int | None:
        """Return for how many steps the smallest ratio is: a ramp and costs that are not quadratic need that of any number."""
        ramped = problem.actions.ramp is not None and not problem.hitting.is_quadratic
        return None if ramped else self.horizon

    def matrices(self, problem: Problem, dim: int, dtype: Any) -> tuple[Array, Array, Array]:
        """Return the curvatures as the promise counts them."""
        return cast_floats(self.curvatures(self.count(problem, dim)[0], dim), dtype)

    def stiffness(self, problem: Problem, start: Start, several: bool) -> Float[Array, "n d d"]:
        """Return S after each step, or what recurs."""
        _, greatest, G = self.matrices(problem, start.dim, start.x0.dtype)
        if self.horizon is not None and not several:
            return future_stiffness(greatest, G, self.horizon)
        if self.weights is not None:
            return recurring_stiffness(greatest, G)[1]
        return limit_stiffness(greatest, G)[None]

    def feasible(
        self, problem: Problem, S: Float[Array, "n d d"], start: Start, ratios: Float[Array, " promises"], several: bool
    ) -> tuple[Bool[Array, ""], Number]:
        """Return whether the ratios can be promised, checked under tracing too, and a ratio that always can."""
        dim, dtype = start.dim, start.x0.dtype
        least, greatest, G = self.matrices(problem, dim, dtype)
        if several:
            possible = jax.lax.stop_gradient(joint_share(jnp.min(ratios), S[0], least, G) < 1)
            instead = 2 + 2 * largest_ratio(S[0], least)
        else:
            smallest = 1 + jax.lax.stop_gradient(largest_share(least, greatest, G, self.counted_steps(problem)))
            possible, instead = (ratios > smallest).all() & (ratios > 1).all(), jnp.maximum(1.05 * smallest, 2.0)
        if self.needs_diagonal(problem, dim):
            possible &= are_diagonal([greatest, G])
        if dim > 1 and (several or not self.needs_diagonal(problem, dim)):  # between diagonal matrices nothing cancels
            possible &= jax.lax.stop_gradient(is_resolved(least, greatest, G))
        if self.contexts is not None:
            low, high = (jnp.broadcast_to(bound, start.x0.shape).astype(dtype) for bound in self.contexts)
            lower, upper = problem.actions.bounds(dim, dtype)
            possible &= ((lower <= low) & (high <= upper)).all()
            if problem.actions.ramp is not None:
                possible &= ((low <= start.x0) & (start.x0 <= high)).all()
        return possible, instead

    def is_announced(self, problem: Problem, observation: Observation, A, target) -> Bool[Array, ""]:
        """Return whether step, weight and context meet the conditions of the promise."""
        announced = problem.hitting.is_in_range(observation.context)
        if self.horizon is not None:
            announced &= observation.step < self.horizon
        if self.weights is not None:
            weight, rounding = self.weights[self.place(observation, len(self.weights))], 64 * jnp.finfo(A.dtype).eps
            announced &= jnp.abs(A[0, 0] - weight) <= rounding * weight
        if self.contexts is not None:
            low, high = self.contexts
            announced &= ((low <= target) & (target <= high)).all()
        return announced

    def place(self, observation: Observation, length: int) -> Any:
        """Return the place of a step in numbers that are given by step: they end with the horizon, or recur."""
        return observation.place % length if self.horizon is None else jnp.minimum(observation.place, length - 1)

    def describe_contexts(self) -> tuple[tuple[float, float], ...] | None:
        """Return the range of contexts, a pair for each number or one for all."""
        if self.contexts is None:
            return None
        low, high = np.broadcast_arrays(*(np.atleast_1d(np.asarray(bound, float)) for bound in self.contexts))
        return tuple(zip(low.tolist(), high.tolist(), strict=True))

    def within_limits(self, problem: Problem, promise: Promise, least: float | None) -> Promise:
        """Return what ramp and spacing leave of a promise (docs/guarantees.md).

        Args:
            problem: the problem.
            promise: that without limits.
            least: the least ratio of several promises; None for one alone.
        """
        spacing, ramp = problem.actions.spacing, problem.actions.ramp
        if spacing is None and ramp is None:
            return promise
        dim, rounded = problem.Q.shape[0], 0.0
        counted, real = self.count(problem, dim)
        lo, hi, G = self.curvatures(counted, dim)
        if spacing is not None:
            if least is None:
                shape = largest_reserve_shape(lo, hi, G, promise.ratio, self.horizon)
            else:
                shape = largest_joint_shape(lo, hi, G, least)
            units = np.broadcast_to(np.asarray(spacing, float), dim)
            rounded = float(np.sum(np.diag(np.asarray(shape)) * units**2) / 8)
        if ramp is None or real == 1:
            return dataclasses.replace(promise, allowance_per_step=rounded)
        extra_weight = np.diag(np.asarray(G - 2 * problem.Q))
        moved = float(np.sum(extra_weight * np.broadcast_to(np.asarray(ramp, float), dim) ** 2) / 2)
        ratio, other = promise.ratio / float(real), (promise.ratio, promise.ratio * moved + rounded)
        return dataclasses.replace(promise, ratio=ratio, allowance_per_step=rounded, alternative=other)

    def check(self, problem: Problem, start: Start, ratios: list[Float[Array, ""]], several: bool, alone: bool) -> None:
        """Reject problems that do not fit and, where numbers are concrete, ratios that cannot be promised.

        Args:
            problem: the problem.
            start: the start of the run.
            ratios: of all promises.
            several: whether there are several promises.
            alone: whether all promises are relative to the optimum.
        """
        if self.horizon is not None and start.horizon is not None and start.horizon > self.horizon:
            raise NotApplicableError(
                f"Competitive promises for at most horizon = {self.horizon} steps, but this run has {start.horizon}; "
                "use horizon=None for runs of any length."
            )
        if start.horizon is None and self.horizon is not None:
            raise NotApplicableError(
                f"Competitive promises for at most horizon = {self.horizon} steps, but this run has no end; use "
                f"horizon=None, or period={self.horizon} for a promise that restarts."
            )
        if any(concrete_value(leaf) is None for leaf in jax.tree.leaves((ratios, self.weights, problem))):
            return
        with jax.enable_x64(True), jax.core.eval_context():  # the numbers are constants inside a jit too
            counted, real = self.count(cast_floats(problem, np.float64), start.dim)
            matrices = cast_floats(self.curvatures(counted, start.dim), np.float64)
            lowest = min(float(np.min(np.asarray(concrete_value(ratio), np.float64))) for ratio in ratios)
            smallest = smallest_joint_ratio(*matrices) if several else self._smallest_ratio(problem, *matrices)
        if several and not alone and np.asarray(real) < 1:
            raise NotApplicableError(
                "beside a baseline, a ramp must leave the whole promise: give a wider ramp, a narrower range of contexts, or "
                "promises relative to the optimum only."
            )
        if several and not lowest > smallest:
            raise NotApplicableError(
                f"promises are kept together if every ratio exceeds {smallest:.8g}, also relative to a baseline, and the least "
                f"is {lowest:g}: raise it, or make that promise alone. Alone, one relative to a baseline takes any ratio above 1."
            )
        if not lowest > max(smallest, 1.0):
            many = "any number of" if self.horizon is None else self.horizon
            ramp = "" if real == 1 else f" and a ramp that needs {1 / float(real):.3g} times this and more"
            raise NotApplicableError(
                f"`ratio` = {lowest:g} cannot be promised over {many} steps: it must exceed {smallest:.8g}, "
                f"the smallest ratio that can be guaranteed for costs of these curvatures{ramp}."
            )

    def _smallest_ratio(self, problem: Problem, least, greatest, G) -> float:
        steps = self.counted_steps(problem)
        if least.shape == (1, 1):  # nothing to compile
            weights = float(to_host(least)[0, 0]), float(to_host(greatest)[0, 0])
            return float(smallest_feasible_ratio(to_host(G), steps, weights=weights))
        return float(1 + np.asarray(largest_share(least, greatest, G, steps)))

    def rescale(self, factor: float) -> "Tracking":
        """Return it for contexts `factor` times as large."""
        scaled = None if self.contexts is None else tuple(bound * factor for bound in self.contexts)
        return dataclasses.replace(self, contexts=scaled)

    def within(self, low: float, high: float) -> "Tracking":
        """Return it for actions between `low` and `high`: contexts are required there."""
        counted_on = (-np.inf, np.inf) if self.contexts is None else map(np.asarray, self.contexts)
        return dataclasses.replace(self, contexts=tuple(np.clip(end, low, high) for end in counted_on))


def sound_value(P: Matrix, S: Matrix, ratio: Number) -> tuple[Matrix, Bool[Array, ""]]:
    """Return V and whether (L - 1) P > S; zero if not."""
    V = promise_value(P, S, ratio)
    # Where (L - 1) P - S is not definite, V is negative if d = 1, and NaN elsewhere: there is no Cholesky factor.
    sound = jnp.isfinite(V).all() & (V.shape[0] > 1 or (V >= 0).all())
    return jnp.where(sound, V, 0.0), sound


class PastState(eqx.Module):
    """The past of a tracking problem, and the box of contexts with x_0.

    `real_work` is the past where movement costs what it does, if the promise counts more (`Tracking.count`).
    """

    work: WorkFunction
    box: Bounds | None
    real_work: WorkFunction | None


class OptimumStep(AbstractReferenceStep):
    """A step relative to the optimum: the costs' matrices, the past with the context, and the reserve's matrix V."""

    A: Matrix
    G: Matrix
    S: Matrix
    V: Matrix
    target: Action
    previous: Action
    prefix: Prefix
    box: Bounds | None
    ratio: Number
    exists: Bool[Array, ""]
    usable: Bool[Array, ""]
    announced: Bool[Array, ""]
    growth: Number

    @property
    def origin(self) -> Origin:
        return Origin(self.prefix.centre, self.prefix.rest)

    def level_set(self, left: Number, origin: Origin | None = None) -> "QuadraticSet | LineSet":
        own, level = self.origin, left + self.ratio * self.growth
        seen = own if origin is None else origin
        target, previous = seen.away(self.target), seen.away(self.previous)
        if self.box is not None and origin is None:
            low, high = map(own.away, self.box)
            return LineSet(BoxLines.of(self, target, previous, low, high), level)
        centre = None if origin is None else -own.away(origin.point)
        return QuadraticSet((Form(self.A, target), Form(self.G, previous), Form(self.V, centre)), level, self.exists)


class BoxLines(AbstractLines):
    """A step of the game coordinate by coordinate, contexts in a box; points are less m."""

    a: Float[Array, " d"]
    g: Float[Array, " d"]
    s: Float[Array, " d"]
    gain: Float[Array, " d"]  # n - m = -gain (x - m), the worst future without a box
    weight: Float[Array, " d"]  # L h, h = (1/p + 1/s)^-1
    free_value: Float[Array, " d"]  # v, the value's curvature without a box
    context: Float[Array, " d"]
    previous: Float[Array, " d"]
    low: Float[Array, " d"]
    high: Float[Array, " d"]

    @classmethod
    def of(cls, term: Any, target: Action, previous: Action, low: Action, high: Action) -> "BoxLines":
        """Make the coordinates of a step whose matrices are diagonal."""
        a, g, p, s = (jnp.diagonal(matrix) for matrix in (term.A, term.G, term.prefix.P, term.S))
        outweighs = (term.ratio - 1) * p - s
        gain, weight = (p + s) / outweighs, term.ratio * p * s / (p + s)
        return cls(a, g, s, gain, weight, term.ratio * s * p / outweighs, target, previous, low, high)

    @property
    def value(self) -> Float[Array, " d"]:
        return self.free_value

    @property
    def least_curvature(self) -> Float[Array, " d"]:
        return self.a + self.g + self.s

    @property
    def shape(self) -> Float[Array, " d"]:
        return self.a + self.g + self.free_value

    def worst(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the context n in the box that makes x most expensive."""
        return jnp.clip(-self.gain * x, self.low, self.high)

    def cost(self, x: Float[Array, " d"], worst: Float[Array, " d"]) -> Float[Array, " d"]:
        moved = self.a * (x - self.context) ** 2 + self.g * (x - self.previous) ** 2
        return 0.5 * (moved + self.s * (x - worst) ** 2 - self.weight * worst**2)

    def lowest(self) -> Float[Array, " d"]:
        """Return where the cost is least: against the n, clipped, that is worst for the least cost without the box."""
        pull = self.a * self.context + self.g * self.previous
        free = pull / (self.a + self.g + self.free_value)
        return (pull + self.s * self.worst(free)) / (self.a + self.g + self.s)

    def ends(self, level: Number, safest: Float[Array, " 1"]) -> tuple[Float[Array, " 1"], Float[Array, " 1"]]:
        """Return the ends of the interval where no n in the box has a cost above the level.

        They belong to n = low, to n = high, or to the n that is worst at the very end, if that one lies inside the box.
        """
        pull = self.a * self.context + self.g * self.previous

        def ends(n):
            centre = (pull + self.s * n) / self.least_curvature
            reach = safe_sqrt(2 * (level - self.cost(centre, n)) / self.least_curvature)
            return centre - reach, centre + reach

        free = pull / self.shape
        reach = safe_sqrt(2 * (level - self.cost(free, -self.gain * free)) / self.shape)

        def inside(x):
            n = -self.gain * x
            return (self.low <= n) & (n <= self.high)

        (left_low, right_low), (left_high, right_high) = ends(self.low), ends(self.high)
        left, right = jnp.maximum(left_low, left_high), jnp.minimum(right_low, right_high)
        left = jnp.where(inside(free - reach), jnp.maximum(left, free - reach), left)
        right = jnp.where(inside(free + reach), jnp.minimum(right, free + reach), right)
        return left, right


class AbstractTrackingReference(AbstractReference):
    """What references of tracking problems share."""

    tracking = Tracking()

    @property
    def conditions(self) -> Tracking:
        return self.tracking

    def prepare(self, problem: Problem, start: Start, several: bool) -> Any:
        return self.tracking.stiffness(problem, start, several)

    def feasible(self, problem: Problem, prepared, start: Start, ratios: Float[Array, " promises"], several: bool):
        return self.tracking.feasible(problem, prepared, start, ratios, several)

    def reachable(self, problem: Problem, previous: Action) -> Bounds | None:
        if problem.actions.ramp is None:
            return None
        ends = problem.actions.reachable(previous)
        if self.tracking.contexts is None:
            return ends
        low, high = (jnp.clip(end, *self.tracking.contexts) for end in ends)
        return low, high

    def costs(self, problem: Problem, observation: Observation, action: Action) -> tuple[Number, Number, Number]:
        """Return what the promise counts as the cost of a step, a bound on its error, and the real cost."""
        seen = action, observation.context, observation.previous_action
        cost, rounding = accurate_cost(self.tracking.count(problem, len(action))[0], *seen)
        return cost, rounding, cost if problem.actions.ramp is None else accurate_cost(problem, *seen)[0]

    def common_action(self, problem: Problem, prepared, observation: Observation, least: Number, origin: Origin):
        """Return the safest action of a run that had arrived where it stands by the least ratio: it is in all allowed sets."""
        dim, S = observation.previous_action.shape[0], prepared[0]
        counted = self.tracking.count(problem, dim)[0]
        A, target = quadratic_terms(counted, observation.context, dim)
        G, away = 2 * counted.Q, origin.away(target)
        P = A + parallel_sum(S / (least - 1), G)
        V, known = sound_value(P, S, least)
        pull = multiply(A, away)
        return spd_solve(A + G + V, pull + multiply(V, spd_solve(P, pull))), known

    def rescale(self, factor: float) -> "AbstractTrackingReference":
        return dataclasses.replace(self, tracking=self.tracking.rescale(factor))

    def with_contexts(self, contexts: Any) -> "AbstractTrackingReference":
        return dataclasses.replace(self, tracking=dataclasses.replace(self.tracking, contexts=contexts))

    def within(self, low: float, high: float) -> "AbstractTrackingReference":
        return dataclasses.replace(self, tracking=self.tracking.within(low, high))


class Optimum(AbstractTrackingReference):
    """The offline optimum of the contexts so far.

    Args:
        tracking: the conditions of the promise.
        every_prefix: on problems with a state, whether the promise is for every step instead of the end. Default: None, where
            contexts can make any state free.
    """

    kind: ClassVar[str] = "optimum"

    tracking: Tracking = Tracking()
    every_prefix: bool | None = eqx.field(static=True, default=None)

    @property
    def known_as(self) -> str:
        return "Competitive" if self.every_prefix is None else "CompetitiveControl"

    def on(self, problem: AnyProblem) -> AbstractReference:
        from ecl2o.agents.guards.references.dynamics import DynamicOptimum
        from ecl2o.agents.guards.references.lower_model import LowerModel

        if problem.game is not None:
            every_prefix = problem.timing.shift > 0 if self.every_prefix is None else self.every_prefix
            return DynamicOptimum(self.tracking, every_prefix)
        return self if problem.hitting.is_quadratic else LowerModel(self.tracking)

    def describe(self, problem: Problem, terms: PromiseTerms, least: float | None) -> Promise:
        return describe_optimum(self.tracking, problem, terms, least)

    def check(self, problem: Problem, start: Start, ratios: list[Float[Array, ""]], several: bool) -> None:
        self.tracking.check(problem, start, ratios, several, alone=True)

    def init(self, problem: Problem, prepared, start: Start) -> PastState:
        return start_past(self.tracking, problem, start.x0, real=True)

    def restart(self, problem: Problem, prepared, state: PastState, position: Action) -> PastState:
        return start_past(self.tracking, problem, position, real=True)

    def observe(
        self, problem: Problem, prepared, state: PastState, ratio: Number, observation: Observation
    ) -> OptimumStep:
        previous, dim = observation.previous_action, observation.previous_action.shape[0]
        counted = self.tracking.count(problem, dim)[0]
        A, target = quadratic_terms(counted, observation.context, dim)
        prefix, S = state.work.with_context(A, target), prepared[self.tracking.place(observation, len(prepared))]
        V, exists = sound_value(prefix.P, S, ratio)
        usable = jnp.isfinite(ratio * prefix.growth)
        announced = self.tracking.is_announced(problem, observation, A, target)
        G = 2 * counted.Q
        return OptimumStep(
            A, G, S, V, target, previous, prefix, state.box, ratio, exists, usable, announced, prefix.growth
        )

    def settle(
        self, problem: Problem, term: Any, state: PastState, ratio, observation: Observation, action: Action
    ) -> Settlement:
        reported, real_work = term.growth, state.real_work
        if real_work is not None:
            real = real_work.with_context(term.A, term.target)
            reported, real_work = jnp.where(term.usable, real.growth, 0.0), real.after_move(2 * problem.Q)
        after = PastState(term.prefix.after_move(term.G), state.box, real_work)
        after = jax.tree.map(lambda new, old: jnp.where(term.usable, new, old), after, state)
        rounding = jnp.where(term.usable, term.prefix.rounding, 0.0)
        return Settlement(after, term.growth, rounding, reported, *self.costs(problem, observation, action))


def describe_optimum(tracking: Tracking, problem: Problem, terms: PromiseTerms, least: float | None) -> Promise:
    """Return the promise relative to the optimum of a tracking problem."""
    period = terms.period if terms.period is not None else tracking.horizon
    promise = Promise(
        float(terms.ratio),
        Reference.OPTIMUM,
        None,
        float(terms.allowance),
        period,
        tracking.describe_contexts(),
        rolling=terms.rolling,
    )
    return tracking.within_limits(problem, promise, least)


def start_past(tracking: Tracking, problem: Problem, x0: Action, real: bool) -> PastState:
    """Return the past before the first context, from x_0."""
    counted = tracking.count(problem, len(x0))[0]
    box, real_work = None, None
    if tracking.contexts is not None:
        low, high = (jnp.broadcast_to(bound, x0.shape).astype(x0.dtype) for bound in tracking.contexts)
        # With x_0 inside, m never leaves the box: the value is not negative, and does not fall if a later weight grows.
        box = jnp.minimum(low, x0), jnp.maximum(high, x0)
    if real and problem.actions.ramp is not None:
        real_work = WorkFunction.from_start(x0, 2 * problem.Q)
    return PastState(WorkFunction.from_start(x0, 2 * counted.Q), box, real_work)
