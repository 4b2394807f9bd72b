"""The guard relative to the optimum, maximal for quadratic problems (docs/guarantees.md, the revelation theorem).

An action x costs f_t(x) + c(x, x_{t-1}) and must reserve the value W(x) of the game against all future contexts. It is allowed
if the sum is within the level that the account leaves. Everything is measured from the centre m of the work function, so that
no large numbers cancel.

Where contexts may lie anywhere, W(x) = 1/2 |x - m|^2_V and the allowed set is an ellipsoid. Where they are known to lie in a box,
and all matrices are diagonal, W(x) is a sum over coordinates of max over n in [low, high] of s/2 (x - n)^2 - L h/2 (n - m)^2.
Costs that are not quadratic, but have curvature within known bounds, are in `lower_model`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.agents.guards.base import AbstractGuard, Account, accurate_cost
from ecl2o.agents.guards.control import ControlGuardState
from ecl2o.agents.guards.limited import count_movement, ramp_of, round_inside, spacing_of
from ecl2o.agents.guards.lower_model import (
    AsymmetricLines,
    ConvexLine,
    ModelLines,
    advance_model,
    move_along_segment,
    spare_at_share,
)
from ecl2o.agents.guards.shifted import book_shifted, check_shifted, restart_shifted, step_shifted
from ecl2o.agents.promise import Promise, Reference
from ecl2o.exceptions import NotApplicableError
from ecl2o.planning.work_function import WorkFunction, is_resolved, quadratic_terms
from ecl2o.problem import (
    AbstractQuadraticCost,
    AsymmetricTracking,
    CurvedTracking,
    Limited,
    Mahalanobis,
    Problem,
    ShiftedProblem,
    Total,
)
from ecl2o.problem.arrays import (
    AnyArray,
    as_float,
    as_optional_float,
    cast_floats,
    check_finite,
    check_nonnegative,
    check_positive,
    concrete_value,
    safe_sqrt,
    times_identity,
    to_device,
    to_host,
)
from ecl2o.solvers.ellipsoid import pull_into_ellipsoid
from ecl2o.solvers.small_dense import half_quadratic_form, multiply, spd_solve
from ecl2o.theory import (
    future_stiffness,
    largest_share,
    limit_stiffness,
    promise_value,
    recurring_stiffness,
    smallest_feasible_ratio,
)
from ecl2o.theory.promises import largest_reserve_shape


class GameStep(eqx.Module):
    """A step of the game: matrices of the costs, of the past and of the future, the two points less m, and the level.

    `grain` is by how much rounding may move an action. Advice that is moved stays by so much inside of what is allowed.
    """

    A: Float[Array, "d d"]
    G: Float[Array, "d d"]
    P: Float[Array, "d d"]
    S: Float[Array, "d d"]
    ratio: Float[Array, ""]
    context: Float[Array, " d"]
    previous: Float[Array, " d"]
    level: Float[Array, ""]
    grain: Float[Array, " d"]


Ends = tuple[Float[Array, " d"], Float[Array, " d"]]  # the least and the greatest action that can be reached
Spare = Callable[[Float[Array, " d"]], Float[Array, ""]]  # by how much an action stays below the level


class Choice(eqx.Module):
    """The safest action, the advice moved inside, whether it was moved, and whether (L - 1) P > S, as all this requires."""

    safest: Float[Array, " d"]
    action: Float[Array, " d"]
    active: Bool[Array, ""]
    sound: Bool[Array, ""]


def sound_value(
    P: Float[Array, "d d"], S: Float[Array, "d d"], ratio: Float[Array, ""]
) -> tuple[Float[Array, "d d"], Bool[Array, ""]]:
    """Return V and whether (L - 1) P > S; zero if not."""
    V = promise_value(P, S, ratio)
    # Where (L - 1) P - S is not definite, V is negative if d = 1, and NaN elsewhere: there is no Cholesky factor.
    sound = jnp.isfinite(V).all() & (V.shape[0] > 1 or (V >= 0).all())
    return jnp.where(sound, V, 0.0), sound


def choose_anywhere(step: GameStep, advice: Float[Array, " d"]) -> tuple[Choice, Spare]:
    """Move advice into the ellipsoid around x_m = (A + G + V)^-1 (A y + G x_{t-1} + V m): contexts may lie anywhere."""
    V, sound = sound_value(step.P, step.S, step.ratio)
    shape = step.A + step.G + V
    safest = spd_solve(shape, multiply(step.A, step.context) + multiply(step.G, step.previous))
    cost = half_quadratic_form(step.A, safest - step.context) + half_quadratic_form(step.G, safest - step.previous)
    left = step.level - cost - half_quadratic_form(V, safest)
    action, active = pull_into_ellipsoid(advice, safest, shape, left, half_quadratic_form(jnp.abs(shape), step.grain))
    choice = Choice(safest, action, active, sound)
    return choice, lambda x: left - half_quadratic_form(shape, x - safest)


def _less_grain(height: Float[Array, ""], of_grain: Float[Array, ""]) -> Float[Array, ""]:
    """Return the height from which a step of height `of_grain` leads at most to `height`: roots of heights add up."""
    return jnp.maximum(safe_sqrt(height) - jnp.sqrt(of_grain), 0.0) ** 2


class Lines(eqx.Module):
    """A step of the game coordinate by coordinate, contexts in a box; `low` and `high` are less m too."""

    a: Float[Array, " d"]
    g: Float[Array, " d"]
    s: Float[Array, " d"]
    gain: Float[Array, " d"]  # n - m = -gain (x - m), the worst future without a box
    weight: Float[Array, " d"]  # L h, h = (1/p + 1/s)^-1
    value: Float[Array, " d"]  # v, the value's curvature without a box
    context: Float[Array, " d"]
    previous: Float[Array, " d"]
    low: Float[Array, " d"]
    high: Float[Array, " d"]

    @classmethod
    def of(cls, step: GameStep, low: Float[Array, " d"], high: Float[Array, " d"]) -> "Lines":
        """Make the coordinates of a step whose matrices are diagonal."""
        a, g, p, s = (jnp.diagonal(matrix) for matrix in (step.A, step.G, step.P, step.S))
        outweighs = (step.ratio - 1) * p - s
        gain, weight = (p + s) / outweighs, step.ratio * p * s / (p + s)
        return cls(a, g, s, gain, weight, step.ratio * s * p / outweighs, step.context, step.previous, low, high)

    @property
    def least_curvature(self) -> Float[Array, " d"]:
        """Return a lower bound on the second derivatives of cost plus reserve."""
        return self.a + self.g + self.s

    @property
    def shape(self) -> Float[Array, " d"]:
        """Return an upper bound on them."""
        return self.a + self.g + self.value

    def worst(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return the context n in the box that makes x most expensive."""
        return jnp.clip(-self.gain * x, self.low, self.high)

    def cost(self, x: Float[Array, " d"], n: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return what x costs and must reserve against n, by coordinate."""
        moved = self.a * (x - self.context) ** 2 + self.g * (x - self.previous) ** 2
        return 0.5 * (moved + self.s * (x - n) ** 2 - self.weight * n**2)

    def safest(self) -> Float[Array, " d"]:
        """Return where the cost is least: against the n, clipped, that is worst for the least cost without the box."""
        pull = self.a * self.context + self.g * self.previous
        free = pull / (self.a + self.g + self.value)
        return (pull + self.s * self.worst(free)) / (self.a + self.g + self.s)

    def clip(
        self, level: Float[Array, ""], safest: Float[Array, " 1"], advice: Float[Array, " 1"]
    ) -> Float[Array, " 1"]:
        """Clip to the interval where no n in the box has a cost above the level.

        Its ends belong to n = low, to n = high, or to the n that is worst at the very end, if that one lies inside the box.
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
        # Where rounding leaves nothing between the ends, only the safest action is allowed.
        return jnp.clip(advice, jnp.minimum(left, safest), jnp.maximum(right, safest))


def choose_within(
    step: GameStep,
    low: Float[Array, " d"],
    high: Float[Array, " d"],
    advice: Float[Array, " d"],
    reach: Ends | None = None,
) -> tuple[Choice, Spare]:
    """Move advice into the allowed set, convex around x_m, an interval if d = 1: contexts lie between `low` and `high`."""
    return choose_on_lines(Lines.of(step, low, high), step.level, step.grain, advice, reach)


def choose_on_lines(
    lines: Lines | AsymmetricLines | ConvexLine,
    level: Float[Array, ""],
    grain: Float[Array, " d"],
    advice: Float[Array, " d"],
    reach: Ends | None = None,
) -> tuple[Choice, Spare]:
    """Move advice into the set where the sum over coordinates of cost plus reserve is at most the level.

    If a ramp ends before the safest action, the nearest one that can be `reach`ed is allowed too, and safest.
    """
    lowest, value = lines.safest(), lines.value
    safest = lowest if reach is None else jnp.clip(lowest, *reach)
    usable = jnp.isfinite(jnp.sum((advice - safest) ** 2))
    wish = jnp.where(usable, advice, safest)
    fits = spare_at_share(jnp.ones(()), (lines, level, safest, wish - safest)) >= 0
    least = jnp.sum(lines.cost(lowest, lines.worst(lowest)))
    of_grain = 0.5 * jnp.sum(jnp.maximum(lines.shape, lines.least_curvature) * grain**2)
    inner = least + _less_grain(level - least, of_grain)
    moved = lines.clip(inner, safest, wish) if len(safest) == 1 else move_along_segment(lines, inner, safest, wish)
    sound = (jnp.isfinite(value) & (value >= 0)).all()
    choice = Choice(safest, jnp.where(fits, wish, moved), ~(fits & usable), sound)
    return choice, lambda x: level - jnp.sum(lines.cost(x, lines.worst(x)))


class CompetitiveState(eqx.Module):
    """The wrapped agent's state, the past, the future's stiffness by step, the ratio that is played, and the account.

    `real_work` is the past where movement costs what it does, if the promise counts more (`Competitive.count`).
    """

    inner: State
    work: WorkFunction
    future: Float[Array, "n d d"]
    ratio: Float[Array, ""]
    box: tuple[Float[Array, " d"], Float[Array, " d"]] | None
    account: Account
    real_work: WorkFunction | None = None


def as_bounds(contexts: Any) -> tuple[Array, Array] | None:
    """Convert (low, high) to arrays, but pass None through."""
    return None if contexts is None else (as_float(contexts[0]), as_float(contexts[1]))


class Competitive(AbstractGuard):
    """The guard that keeps cost <= ratio * optimum + allowance at every step, whatever the agent proposes.

    The optimum is that of the contexts so far. The promise holds for any agent (NaN and infinite actions included). An allowed
    action is played as it is; another one is pulled toward the safest action x_m until it is allowed.

    For quadratic hitting costs, constant ones and `CurvedTracking` with a `maximum`, the guard is maximal: an action that is not
    allowed can be punished by some continuation of contexts, whatever is played afterwards. For `AsymmetricTracking` with a
    diagonal Q, and on a line for any other cost whose curvature has bounds, such as a `ConvexCost` with `smoothness`, it carries
    a lower bound on the optimum: the promise is relative to the true optimum, but some actions may be changed needlessly.

    A ratio that cannot be promised is rejected; the message gives the smallest possible one. Bounds on actions are kept where
    all matrices are diagonal and contexts are known to lie within the bounds; elsewhere use `Guarded`.

    On a `ShiftedProblem` with constant quadratic costs and without bounds it is the guard of `CompetitiveControl`. With a delay,
    the promise holds at every step; with contexts known ahead, at the end of the horizon.

    The promise is lost (`kept` turns false, the safest action is played, and steps count as not converged) where its conditions
    are not met: a context outside `contexts`, or not finite; a weight outside of its range, or other than announced; more steps
    than `horizon`; a context so far away that its cost is not finite; a ratio or an allowance that turns out to be impossible
    inside a compiled program; rounding that could exceed the tolerance (docs/guarantees.md).

    Args:
        agent: the agent whose actions are played as far as the promise allows.
        ratio: above 1, and above the smallest ratio of any online algorithm on the problem. Default: 2.5.
        horizon: the longest run, in steps. Default: None, runs of any length, which allows less.
        allowance: cost allowed on top of ratio * optimum, 0 or more, in units of cost. Default: 0.
        contexts: (low, high), bounds within which contexts are known to lie, which allows more if costs are quadratic.
            Diagonal A and Q only. Default: None, contexts lie anywhere.
        weights: with `CurvedTracking`, the curvature of each step where it is known in advance, as a tariff is: one for each
            step of the horizon, or a recurring pattern without a horizon. Default: None, not known.

    Raises:
        ValueError: if a number is out of its range.
        NotApplicableError: at the start of a run, if the costs have no known curvature or the ratio cannot be promised.

    `Info.details`: `cost` and `optimum` so far (exactly the oracle's cost of the prefix; `optimum_at_least` instead where a lower
    bound is carried), their quotient `live_ratio` (then at least the true one), what is `left` of the promise, whether
    the guard was `active`, whether the promise is `kept`, and for how many steps it was (`kept_steps`).

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> run = ec.rollout(Competitive(ec.advisors.Fixed([[1e6]]), ratio=2.0), problem, ec.Instance([0.0], [[1.0]]))
    >>> bool(run.info.details["live_ratio"][-1] <= 2.0 * (1 + 1e-4))
    True
    """

    takes_shift: ClassVar[bool] = True

    agent: AbstractAgent
    ratio: Float[Array, ""] = eqx.field(converter=as_float, default=2.5)
    horizon: int | None = eqx.field(static=True, default=None)
    allowance: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)
    contexts: tuple[Float[Array, "*d"], Float[Array, "*d"]] | None = eqx.field(converter=as_bounds, default=None)
    weights: Float[Array, " n"] | None = eqx.field(converter=as_optional_float, default=None)

    def __check_init__(self):
        check_finite("ratio", self.ratio)
        check_finite("allowance", self.allowance)
        check_nonnegative("allowance", self.allowance)
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

    def promise(self, problem: Problem) -> Promise:
        if isinstance(problem, ShiftedProblem):
            terms = {"allowance": float(self.allowance), "period": self.horizon, "at_end": problem.shift < 0}
            return Promise(float(self.ratio), allowance_per_step=book_shifted(self, problem), **terms)
        contexts = None
        if self.contexts is not None:
            low, high = np.broadcast_arrays(*(np.atleast_1d(np.asarray(bound, float)) for bound in self.contexts))
            contexts = tuple(zip(low.tolist(), high.tolist(), strict=True))
        promise = Promise(float(self.ratio), Reference.OPTIMUM, None, float(self.allowance), self.horizon, contexts)
        if not isinstance(problem.actions, Limited):
            return promise
        return self.promise_within_limits(
            problem, promise, lambda lo, hi, G: largest_reserve_shape(lo, hi, G, self.ratio, self.horizon)
        )

    def promise_within_limits(self, problem: Problem, promise: Promise, shape: Callable[..., Array]) -> Promise:
        """Return what ramp and spacing leave of a promise (docs/guarantees.md).

        Args:
            problem: with `Limited` actions.
            promise: that without limits.
            shape: returns the greatest curvature of cost plus reserve from the least and greatest curvature and G.
        """
        dim = problem.Q.shape[0]
        counted, real = self.count(problem, dim)
        least, greatest, G = self.curvatures(counted, dim)
        spacing, ramp, booked = spacing_of(problem), ramp_of(problem), 0.0
        if spacing is not None:
            units = np.broadcast_to(np.asarray(spacing, float), dim)
            booked = float(np.sum(np.diag(np.asarray(shape(least, greatest, G))) * units**2) / 8)
        if ramp is None or real == 1:
            return dataclasses.replace(promise, allowance_per_step=booked)
        extra_weight = np.diag(np.asarray(G - 2 * problem.Q))
        moved = float(np.sum(extra_weight * np.broadcast_to(np.asarray(ramp, float), dim) ** 2) / 2)
        ratio, other = promise.ratio / float(real), (promise.ratio, promise.ratio * moved + booked)
        return dataclasses.replace(promise, ratio=ratio, allowance_per_step=booked, alternative=other)

    def count(self, problem: Problem, dim: int) -> tuple[Problem, Float[AnyArray, ""]]:
        """Return the problem as the promise counts it: where a ramp is narrow, movement costs more; and the real share of it."""
        if ramp_of(problem) is None or self.contexts is None:
            return problem, np.ones(())
        greatest = self.curvatures(problem, dim)[1]
        return count_movement(problem, jnp.max(greatest, axis=0) if greatest.ndim == 3 else greatest, *self.contexts)

    def rescale(self, factor: float) -> "Competitive":
        scaled = None if self.contexts is None else tuple(bound * factor for bound in self.contexts)
        return dataclasses.replace(self, allowance=to_host(self.allowance) * factor**2, contexts=scaled)

    def with_terms(self, allowance: float, contexts: tuple[float, float] | None) -> "Competitive":
        return dataclasses.replace(self, allowance=allowance, contexts=contexts)

    def with_action_bounds(self, low: float, high: float) -> "Competitive":
        counted_on = (-np.inf, np.inf) if self.contexts is None else map(np.asarray, self.contexts)
        return dataclasses.replace(self, contexts=tuple(np.clip(end, low, high) for end in counted_on))

    def check(self, problem: Problem, start: Start) -> None:
        """Reject problems that do not fit and, where numbers are concrete, ratios that cannot be promised."""
        super().check(problem, start)
        if isinstance(problem, ShiftedProblem):
            check_shifted(self, problem, start)
            return
        self.check_problem(problem, start)
        if start.horizon is None and self.horizon is not None:
            raise NotApplicableError(
                f"Competitive promises for at most horizon = {self.horizon} steps, but this run has no end; use "
                f"horizon=None, or Periodic(guard, {self.horizon}) for a promise that restarts."
            )
        if not any(concrete_value(leaf) is None for leaf in jax.tree.leaves((self.ratio, self.weights, problem))):
            self._check_ratio(problem, start.dim)

    def check_problem(self, problem: Problem, start: Start) -> None:
        """Reject problems that do not fit; concrete bounds and matrices must fit too."""
        hitting, movement, dim, is_bounded = problem.hitting, problem.switching, start.dim, problem.relaxed.is_bounded
        instead = "Guarded takes any costs and any box."
        if not isinstance(movement, Mahalanobis):
            raise NotApplicableError(f"Competitive needs quadratic movement, got {type(movement).__name__}. {instead}")
        if isinstance(problem.actions, Total):
            raise NotApplicableError(
                "a promise relative to the optimum is not proved for actions that share a total; use Guarded(agent, expert), "
                "or, without bounds, state the problem in one number less (docs/guarantees.md)."
            )
        if self.weights is not None and not isinstance(hitting, CurvedTracking):
            raise NotApplicableError(f"weights are for CurvedTracking, got {type(hitting).__name__}.")
        if self.weights is None and hitting.curvature_bounds(dim)[1] is None:
            given = {"CurvedTracking": "a maximum, or weights", "ConvexCost": "smoothness"}
            needed = given.get(type(hitting).__name__, "curvature_bounds")
            raise NotApplicableError(
                f"Competitive needs the largest curvature: give {type(hitting).__name__} {needed}. {instead}"
            )
        general = not isinstance(hitting, AbstractQuadraticCost | AsymmetricTracking)
        if general and (dim > 1 or is_bounded or self.contexts is not None):
            raise NotApplicableError(
                f"Competitive takes {type(hitting).__name__} on a line, without bounds and without contexts=. {instead}"
            )
        if is_bounded and self.contexts is None:
            limited = "are bounded" if ramp_of(problem) is None else "have a ramp limit"
            raise NotApplicableError(f"Competitive needs contexts=(low, high) where actions {limited}. {instead}")
        if self.needs_diagonal(problem, dim):
            is_diagonal = concrete_value(are_diagonal(list(self.curvatures(problem, dim)[1:])))
            if is_diagonal is not None and not is_diagonal:
                wants = (
                    "contexts=(low, high)"
                    if self.contexts is not None
                    else "a spacing"
                    if spacing_of(problem) is not None
                    else type(hitting).__name__
                )
                raise NotApplicableError(f"{wants} needs diagonal matrices A and Q. {instead}")
        if self.contexts is not None and is_bounded:
            lower, upper, low, high = map(to_host, (*problem.actions.bounds(dim, start.x0.dtype), *self.contexts))
            if concrete_value(((low < lower) | (high > upper)).any()):
                raise NotApplicableError(
                    f"contexts from {low} to {high} leave the action bounds from {lower} to {upper}. {instead}"
                )
        if self.horizon is not None and start.horizon is not None and start.horizon > self.horizon:
            raise NotApplicableError(
                f"Competitive promises for at most horizon = {self.horizon} steps, but this run has {start.horizon}; "
                "use horizon=None for runs of any length."
            )

    def needs_diagonal(self, problem: Problem, dim: int) -> bool:
        separate = isinstance(problem.hitting, AsymmetricTracking) or spacing_of(problem) is not None
        return self.contexts is not None or (dim > 1 and separate)

    def _counted_steps(self, problem: Problem) -> int | None:
        """Return for how many steps the smallest ratio is: a ramp and costs that are not quadratic need that of any number."""
        ramped = ramp_of(problem) is not None and not isinstance(problem.hitting, AbstractQuadraticCost)
        return None if ramped else self.horizon

    def _check_ratio(self, problem: Problem, dim: int) -> None:
        with jax.enable_x64(True), jax.core.eval_context():  # the numbers are constants inside a jit too
            counted, real = self.count(cast_floats(problem, np.float64), dim)
            least, greatest, G = cast_floats(self.curvatures(counted, dim), np.float64)
            steps = self._counted_steps(problem)
            if least.shape == (1, 1):  # nothing to compile
                smallest = smallest_feasible_ratio(
                    to_host(G), steps, weights=(float(to_host(least)[0, 0]), float(to_host(greatest)[0, 0]))
                )
            else:
                smallest = 1 + np.asarray(largest_share(least, greatest, G, steps))
            ratio = np.asarray(concrete_value(self.ratio), np.float64)
        if not (ratio > np.maximum(smallest, 1.0)).all():
            many = "any number of" if self.horizon is None else self.horizon
            ramp = "" if real == 1 else f" and a ramp that needs {1 / float(real):.3g} times this and more"
            raise NotApplicableError(
                f"`ratio` = {np.min(ratio):g} cannot be promised over {many} steps: it must exceed {smallest:.8g}, "
                f"the smallest ratio that can be guaranteed for costs of these curvatures{ramp}."
            )

    def curvatures(self, problem: Problem, dim: int) -> tuple[Array, Array, Array]:
        """Return the least and the greatest curvature, of all steps or by step, and G = 2Q."""
        G = to_device(2 * to_host(problem.Q))
        if self.weights is not None:
            announced = times_identity(self.weights, dim)
            return announced, announced, G
        least, greatest = problem.hitting.curvature_bounds(dim)
        assert greatest is not None
        return least, greatest, G

    def init(self, problem: Problem, start: Start) -> CompetitiveState | ControlGuardState:
        if isinstance(problem, ShiftedProblem):
            return restart_shifted(self, problem, start, self.agent.init(problem, start))
        self.check_problem(problem, start)
        return self._state(problem, start, self.agent.init(problem, start))

    def restart(self, problem: Problem, state: CompetitiveState | ControlGuardState, start: Start):
        if isinstance(problem, ShiftedProblem):
            return restart_shifted(self, problem, start, state.inner)
        return self._state(problem, start, state.inner)

    def _state(self, problem: Problem, start: Start, inner: State) -> CompetitiveState:
        x0, dtype = start.x0, start.x0.dtype
        G, real_work = 2 * problem.Q, None
        if ramp_of(problem) is not None and isinstance(problem.hitting, AbstractQuadraticCost):
            real_work = WorkFunction.from_start(x0, G)
        problem = self.count(problem, start.dim)[0]
        least, greatest, G = cast_floats(self.curvatures(problem, start.dim), dtype)
        if self.horizon is not None:
            future = future_stiffness(greatest, G, self.horizon)
        elif self.weights is not None:
            future = recurring_stiffness(greatest, G)[1]
        else:
            future = limit_stiffness(greatest, G)[None]
        smallest = 1 + jax.lax.stop_gradient(largest_share(least, greatest, G, self._counted_steps(problem)))
        feasible = (self.ratio > smallest) & (self.ratio > 1) & jnp.isfinite(self.ratio)
        feasible &= jnp.isfinite(self.allowance) & (self.allowance >= 0)
        if self.needs_diagonal(problem, start.dim):
            feasible &= are_diagonal([greatest, G])
        elif start.dim > 1:  # between diagonal matrices nothing cancels
            feasible &= jax.lax.stop_gradient(is_resolved(least, greatest, G))
        box = None
        if self.contexts is not None:
            low, high = (jnp.broadcast_to(bound, x0.shape).astype(dtype) for bound in self.contexts)
            lower, upper = problem.actions.bounds(start.dim, dtype)
            feasible &= ((lower <= low) & (high <= upper)).all()
            if ramp_of(problem) is not None:
                feasible &= ((low <= x0) & (x0 <= high)).all()
            # With x_0 inside, m never leaves the box: the value is not negative, and does not fall if a later weight grows.
            box = jnp.minimum(low, x0), jnp.maximum(high, x0)
        ratio = jnp.where(feasible, self.ratio, jnp.maximum(1.05 * smallest, 2.0))
        account = Account.open(self.allowance, feasible, dtype, spacing_of(problem) is not None)
        work = WorkFunction.from_start(x0, G)
        return CompetitiveState(inner, work, future, ratio, box, account, real_work)

    def step(self, problem: Problem, state: CompetitiveState | ControlGuardState, observation: Observation):
        inner_state, advice, inner = self.agent.step(problem, state.inner, observation)
        if isinstance(problem, ShiftedProblem):
            assert isinstance(state, ControlGuardState)
            return step_shifted(self, problem, state, observation, inner_state, advice, inner)
        assert isinstance(state, CompetitiveState)
        previous, step = observation.previous_action, observation.place
        dim, real_problem, limits = previous.shape[0], problem, problem.actions
        problem, real = self.count(problem, dim)
        G = 2 * problem.Q
        finite = jnp.isfinite(problem.drop_covariates(observation.context)).all()
        context = jnp.where(finite, observation.context, 0.0)
        last = state.future.shape[0] - 1
        place = step % (last + 1) if self.horizon is None else jnp.minimum(step, last)
        S, projected, reach = state.future[place], problem.relaxed.actions.project(advice), None
        if ramp_of(problem) is not None:
            assert isinstance(limits, Limited)
            assert state.box is not None
            low, high = (jnp.clip(end, *state.box) for end in limits.reachable(previous))
            reach, projected = (low, high), jnp.clip(advice, low, high)
        if isinstance(problem.hitting, AbstractQuadraticCost):
            A, target = quadratic_terms(problem, context, dim)
            origin = prefix = state.work.with_context(A, target)
            lines, largest_growth = None, prefix.growth
        else:
            A, origin, prefix = problem.hitting.curvature_bounds(dim)[0], state.work, None
            target = context[: len(context) - problem.covariates]
            lines = self._model_lines(problem, state, context, previous, S)
            largest_growth = problem.hitting(origin.centre, context)
        sound = finite & jnp.isfinite(state.ratio * largest_growth)
        kept = state.account.kept & sound & self.is_as_announced(problem, context, A, target, place, step)

        centre, level, wish = origin.centre, state.account.left, origin.from_centre(projected)
        grain = jax.lax.stop_gradient(jnp.finfo(centre.dtype).eps * jnp.abs(centre))
        reach = None if reach is None else (origin.from_centre(reach[0]), origin.from_centre(reach[1]))
        if lines is not None:
            choice, spare = choose_on_lines(lines, level, grain, wish, reach)
        else:
            assert prefix is not None
            level = level + state.ratio * jnp.where(sound, prefix.growth, 0.0)
            near, before = origin.from_centre(target), origin.from_centre(previous)
            here = GameStep(A, G, prefix.P, S, state.ratio, near, before, level, grain)
            if state.box is None:
                choice, spare = choose_anywhere(here, wish)
            else:
                low, high = map(prefix.from_centre, state.box)
                choice, spare = choose_within(here, low, high, wish, reach)
        kept &= choice.sound
        action = centre + (origin.rest + jnp.where(kept, choice.action, choice.safest))
        # An allowed action is played to the last bit.
        active, booked = choice.active, jnp.zeros((), centre.dtype)
        action = jnp.where(kept & ~active, projected, problem.relaxed.actions.project(action))
        if isinstance(limits, Limited) and limits.spacing is not None:
            moved, safest = (centre + (origin.rest + point) for point in (choice.action, choice.safest))
            action, active, booked = round_inside(
                limits, previous, projected, moved, safest, kept, lambda x: spare(origin.from_centre(x))
            )
        action = real_problem.limit(previous, jnp.where(sound, action, previous))
        if prefix is None:
            assert lines is not None
            prefix = advance_model(lines, state.work, origin.from_centre(action))
        growth = jnp.where(sound, prefix.growth, 0.0)

        cost, rounding = accurate_cost(problem, action, context, previous)
        cost, rounding = (jnp.where(sound, v, 0.0) for v in (cost, rounding + self.ratio * prefix.rounding))
        reported, real_work = None, state.real_work
        if reach is not None:
            paid, gained = accurate_cost(real_problem, action, context, previous)[0], real * growth
            if real_work is not None:
                real_prefix = real_work.with_context(A, target)
                gained, real_work = real_prefix.growth, real_prefix.after_move(2 * real_problem.Q)
            reported = jnp.where(sound, paid, 0.0), jnp.where(sound, gained, 0.0)
        account = state.account.update(self.ratio, growth, cost, rounding, kept, reported, booked)
        work, real_work = jax.tree.map(
            lambda new, old: jnp.where(sound, new, old),
            (prefix.after_move(G), real_work),
            (state.work, state.real_work),
        )
        after = CompetitiveState(inner_state, work, state.future, state.ratio, state.box, account, real_work)
        reference = "optimum" if lines is None and not isinstance(limits, Limited) else "optimum_at_least"
        details = account.details(reference, "live_ratio", active | ~account.kept)
        return after, action, Info(inner.converged & account.kept, advice, details, inner)

    def _model_lines(
        self, problem: Problem, state: CompetitiveState, context, previous, S
    ) -> AsymmetricLines | ConvexLine:
        """Return the step of the game for a cost that is not quadratic."""
        hitting, work = problem.hitting, state.work
        least, greatest = hitting.curvature_bounds(previous.shape[0])
        game = ModelLines.of(least, 2 * problem.Q, S, state.ratio, work, previous)
        if isinstance(hitting, AsymmetricTracking):
            return AsymmetricLines(game, hitting, work.from_centre(hitting.centre(context)))
        assert greatest is not None
        return ConvexLine(game, hitting, context, jnp.diagonal(greatest), work.centre, work.rest)

    def is_as_announced(self, problem: Problem, context, A, target, place, step) -> Bool[Array, ""]:
        """Return whether step, weight and context meet the conditions of the promise."""
        announced = jnp.ones((), bool)
        if isinstance(problem.hitting, CurvedTracking):
            announced &= problem.hitting.is_in_range(context)
        if self.horizon is not None:
            announced &= step < self.horizon
        if self.weights is not None:
            weight, rounding = self.weights[place], 64 * jnp.finfo(A.dtype).eps
            announced &= jnp.abs(A[0, 0] - weight) <= rounding * weight
        if self.contexts is not None:
            low, high = self.contexts
            announced &= ((low <= target) & (target <= high)).all()
        return announced


@jax.jit
def are_diagonal(matrices: list[Float[Array, "... d d"]]) -> Bool[Array, ""]:
    """Return whether all off-diagonal entries are zero."""
    return jnp.array([(each * (1 - np.eye(each.shape[-1], dtype=each.dtype)) == 0).all() for each in matrices]).all()
