"""The guard for contexts that are promised to lie in a band around a forecast (docs/guarantees.md, forecast bands).

With d the contexts to come, the reserve at the state x is the maximum over the band of the cost to go less L times the growth of
the optimum: a concave quadratic in d, so a small quadratic program on a box. It is convex in x. Advice that needs more than the
account leaves is moved toward the safest action, which is the best one against the contexts that are worst for it.
"""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.agents.base import AnyProblem, Observation, Start
from ecl2o.agents.guards.level_sets import AbstractLevelSet, Action, Number, Origin, Share
from ecl2o.agents.guards.references.base import AbstractReference, AbstractReferenceStep, PromiseTerms, Settlement
from ecl2o.agents.promise import Promise, Reference
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import ControlProblem
from ecl2o.problem.arrays import as_float, check_count, check_finite, check_nonnegative, concrete_value
from ecl2o.problem.control import with_memory
from ecl2o.solvers.box_qp import maximize_on_box
from ecl2o.solvers.small_dense import accurate_half_form, is_definite, solve, spd_solve
from ecl2o.theory.control import KnownFuture, Past, Stage, known_future, smallest_control_ratio

# Steps toward the border of the allowed set; about six are the rule.
_BORDER_STEPS = 16


class BandGame(eqx.Module):
    """The reserve at a state x: max over d in the band of 1/2 x'Sx + (x - goal)'N d + 1/2 d'Hd + level."""

    future: KnownFuture
    H: Float[Array, "all all"]
    goal: Float[Array, " n"]
    level: Float[Array, ""]
    low: Float[Array, " all"]
    high: Float[Array, " all"]
    sound: Bool[Array, ""]

    @classmethod
    def of(
        cls,
        future: KnownFuture,
        past: Past,
        ratio: Float[Array, ""],
        band: tuple[Float[Array, " all"], Float[Array, " all"]],
        ahead: Bool[Array, " all"],
    ) -> "BandGame":
        """Make the game after a step; `ahead` marks the numbers of d that are still to come."""
        S, N, L, m = future.S, future.N, ratio, past.centre
        identity = jnp.eye(len(S), dtype=S.dtype)
        Y = solve(identity + past.covariance @ S, past.covariance)
        shrunk = solve(identity + past.covariance @ S, m)
        H = L * N.T @ Y @ N - (L - 1) * future.Phi
        H = 0.5 * (H + H.T) - jnp.diag(jnp.where(ahead, 0.0, 1.0))  # what is past is 0, and has no effect
        sound = is_definite(jax.lax.stop_gradient(-H))
        H = jnp.where(sound, H, -jnp.eye(len(H), dtype=H.dtype))
        low, high = (jnp.where(ahead, end, 0.0) for end in band)
        return cls(future, H, L * shrunk, -0.5 * L * m @ S @ shrunk, low, high, sound)

    def safest(self, stage: Stage, state: Float[Array, " n"], context: Float[Array, " q"]) -> Float[Array, " k"]:
        """Return the action whose cost and reserve are least: the best one against the d that is worst for it."""
        x, u, d = stage.places
        S, B, through = self.future.S, stage.B, stage.B.T @ self.future.N
        drift = stage.F @ state + stage.E @ context
        shape = stage.M[u, u] + B.T @ S @ B
        shape = 0.5 * (shape + shape.T)
        pull = stage.M[u, x] @ state + stage.M[u, d] @ context + B.T @ S @ drift
        slope = self.future.N.T @ (drift - self.goal) - through.T @ spd_solve(shape, pull)
        worst, _ = maximize_on_box(self.H - through.T @ spd_solve(shape, through), slope, self.low, self.high)
        return -spd_solve(shape, pull + through @ worst)

    def reserve(self, x: Float[Array, " n"]) -> tuple[Float[Array, ""], Float[Array, " n"]]:
        """Return an upper bound on the maximum, rounding apart the maximum itself, and its slope in x."""
        slope = self.future.N.T @ (x - self.goal)
        worst, gap = maximize_on_box(*jax.lax.stop_gradient((self.H, slope, self.low, self.high)))
        value = 0.5 * x @ self.future.S @ x + slope @ worst + 0.5 * worst @ self.H @ worst + self.level
        return value + gap, self.future.S @ x + self.future.N @ worst


class BandState(eqx.Module):
    """The past, the band by step, and what is reserved."""

    past: Past
    low: Float[Array, " all"]
    high: Float[Array, " all"]
    reserve: Number


class BandSet(AbstractLevelSet):
    """The actions whose cost and reserve are at most the level."""

    game: BandGame
    stage: Stage
    state: Float[Array, " n"]
    context: Float[Array, " q"]
    level: Number

    @property
    def sound(self) -> Bool[Array, ""]:
        return self.game.sound

    def lowest(self) -> Action:
        return self.game.safest(self.stage, self.state, self.context)

    def spare(self, away: Action) -> Number:
        return -self.excess(away, jnp.zeros_like(away))[0]

    def excess(self, action: Action, way: Action) -> tuple[Number, Number]:
        """Return what an action costs and reserves above the level, and the slope of that along a way."""
        _, u, _ = self.stage.places
        point = jnp.concatenate([self.state, action, self.context])
        reserve, slope = self.game.reserve(self.stage.joint @ point)
        rise = (self.stage.M[u] @ point + self.stage.B.T @ slope) @ way
        return 0.5 * point @ self.stage.M @ point + reserve - self.level, rise

    def largest_share(self, safest: Action, advice: Action, rounding: Action | None, is_lowest: bool) -> Share:
        given = self, safest, advice - safest
        fixed = jax.lax.stop_gradient(given)

        def excess(share, given):
            level_set, safest, way = given
            return level_set.excess(safest + share * way, way)

        least, at_advice = (excess(jnp.full_like(self.level, share), fixed)[0] for share in (0.0, 1.0))
        fits = at_advice <= 0
        share = jnp.where(fits, 1.0, _find_border(lambda share: excess(share, fixed)[0], least, at_advice))
        # On the border the share moves so that the excess stays: the implicit function theorem.
        over, rise = excess(share, given)
        rise = jax.lax.stop_gradient(rise)
        moves = rise > 0
        return fits, share - jnp.where(moves, over - jax.lax.stop_gradient(over), 0.0) / jnp.where(moves, rise, 1.0)


class BandStep(AbstractReferenceStep):
    """A step relative to the optimum of contexts in a band."""

    game: BandGame
    stage: Stage
    state: Float[Array, " n"]
    context: Float[Array, " q"]
    past: Past
    band: tuple[Float[Array, " all"], Float[Array, " all"]]
    growth: Number
    reserve: Number  # before the step
    ratio: Number
    usable: Bool[Array, ""]
    announced: Bool[Array, ""]

    @property
    def origin(self) -> Origin:
        return Origin.at(jnp.zeros_like(self.stage.B[0]))

    @property
    def hold(self) -> Action | None:
        return self.level_set(jnp.zeros_like(self.growth)).lowest()  # of a context of zeros

    def level_set(self, left: Number, origin: Origin | None = None) -> BandSet:
        level = left + self.reserve + self.ratio * self.growth
        return BandSet(self.game, self.stage, self.state, self.context, level)


class Band(AbstractReference):
    """The optimum at the end of a period whose contexts stay in a band around a forecast.

    Args:
        half_width: how far contexts may be from their forecast.
        horizon: T, the steps of the period.
        columns: the places in a context of the ends of the band; None: it is around the forecaster's predictions.
    """

    kind: ClassVar[str] = "band"

    half_width: Float[Array, "*T q"] | Float[Array, ""] = eqx.field(converter=as_float)
    horizon: int = eqx.field(static=True, default=24)
    columns: tuple[tuple[int, ...], tuple[int, ...]] | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        check_finite("half_width", self.half_width)
        check_nonnegative("half_width", self.half_width)
        check_count("horizon", self.horizon)
        for places in self.columns or ():
            if len(places) != self.horizon - 1:
                raise ValueError(f"columns must have {self.horizon - 1} low and high ends, got {len(places)}.")

    @property
    def lookahead(self) -> int:
        return self.horizon - 1 if self.columns is None else 0

    def describe(self, problem: AnyProblem, terms: PromiseTerms, least: float | None) -> Promise:
        extra = float(terms.allowance), terms.period or self.horizon
        return Promise(float(terms.ratio), Reference.OPTIMUM, None, *extra, at_end=True, in_band=True)

    def check(self, problem: AnyProblem, start: Start, ratios: list[Float[Array, ""]], several: bool) -> None:
        if start.horizon != self.horizon:
            raise NotApplicableError(
                f"CompetitiveBand promises for the end of horizon = {self.horizon} steps, but this run has "
                f"{'no end' if start.horizon is None else start.horizon}; period={self.horizon} restarts it."
            )
        if self.columns is not None and problem.action_size(start.dim) != 1:
            raise NotApplicableError(
                "columns have the band of one number that is followed; use half_width for several."
            )
        if any(concrete_value(leaf) is None for leaf in jax.tree.leaves((ratios, problem))):
            return
        with jax.core.eval_context():
            smallest = smallest_control_ratio(_game(problem), self.horizon)
        if not (lowest := float(ratios[0])) > smallest:
            raise NotApplicableError(
                f"`ratio` = {lowest:g} cannot be promised: it must exceed {smallest:.8g}, the smallest competitive "
                "ratio that any online algorithm has without a band."
            )

    def prepare(self, problem: AnyProblem, start: Start, several: bool) -> KnownFuture:
        stages = jax.vmap(lambda step: _stage(problem, step))(jnp.arange(self.horizon))
        return jax.lax.stop_gradient(known_future(stages))

    def feasible(self, problem: AnyProblem, prepared, start: Start, ratios: Float[Array, " promises"], several: bool):
        possible = (jnp.isfinite(ratios) & (ratios > 1)).all() & (self.half_width >= 0).all()
        return possible, jnp.full((), 2.0, start.x0.dtype)

    def init(self, problem: AnyProblem, prepared: KnownFuture, start: Start) -> BandState:
        return self.restart(problem, prepared, None, start.x0)

    def restart(self, problem: AnyProblem, prepared: KnownFuture, state, position: Float[Array, " n"]) -> BandState:
        dtype = position.dtype
        past = Past(jnp.zeros((len(position),) * 2, dtype), position)
        zero, places = jnp.zeros((), dtype), jnp.zeros(prepared.N.shape[-1], dtype)
        return BandState(past, places, places, zero)

    def _band(self, state: BandState, observation: Observation, q: int):
        """Return the band of the period; at its first step, that around the forecast."""
        if self.horizon == 1:
            return state.low, state.high
        if self.columns is None:
            forecasts = [observation.known_contexts(self.horizon - 1)[1:, :q]] * 2
        else:
            forecasts = [observation.context[jnp.asarray(places)][:, None] for places in self.columns]
        later = jnp.clip(jnp.arange(self.horizon) - observation.place - 1, 0, self.horizon - 2)

        def end(forecast, sign):
            width = jnp.broadcast_to(self.half_width, forecast.shape).astype(forecast.dtype)
            # Wider by rounding, so that a context at the very end of the band is inside.
            width += 4 * jnp.finfo(width.dtype).eps * (jnp.abs(forecast) + width)
            return (forecast + sign * width)[later].reshape(-1)

        ends = (end(forecast, sign) for forecast, sign in zip(forecasts, (-1, 1), strict=True))
        first = observation.step == 0
        return tuple(jnp.where(first, new, old) for new, old in zip(ends, (state.low, state.high), strict=True))

    def observe(
        self, problem: AnyProblem, prepared: KnownFuture, state: BandState, ratio: Number, observation: Observation
    ) -> BandStep:
        position, place = observation.previous_action, observation.place
        stage = _stage(problem, observation.step)
        q = stage.E.shape[-1]
        context = observation.context[:q]
        low, high = self._band(state, observation, q)
        first = jnp.minimum(place, self.horizon - 1)
        below, above = (jax.lax.dynamic_slice_in_dim(end, first * q, q) for end in (low, high))
        in_band = (observation.step == 0) | ((below <= context) & (context <= above)).all()
        past, growth = state.past.after(stage, context)
        future = jax.tree.map(lambda leaf: leaf[first], prepared)
        ahead = jnp.repeat(jnp.arange(self.horizon), q) > place
        game = BandGame.of(future, past, ratio.astype(context.dtype), (low, high), ahead)
        usable, announced = jnp.isfinite(ratio * growth), in_band & (place < self.horizon)
        return BandStep(
            game, stage, position, context, past, (low, high), growth, state.reserve, ratio, usable, announced
        )

    def settle(
        self, problem: AnyProblem, term: Any, state: BandState, ratio, observation: Observation, action: Action
    ) -> Settlement:
        """What is reserved counts as spent: what is left of the account is what the invariant leaves."""
        point = jnp.concatenate([term.state, action, term.context])
        after, _ = term.game.reserve(term.stage.joint @ point)
        eps = jnp.finfo(after.dtype).eps
        size = jnp.abs(term.growth) + jnp.abs(after / ratio) + jnp.abs(state.reserve) / ratio
        rounding = jax.lax.stop_gradient(8 * len(point) * eps * size)
        growth = term.growth - (after - state.reserve) / ratio
        # The least optimum that the period can still have.
        gained = term.growth + (jnp.minimum(state.reserve, 0.0) - jnp.minimum(after, 0.0)) / ratio
        growth, gained = (jnp.where(term.usable, each, 0.0) for each in (growth, gained))
        low, high = term.band
        new = BandState(term.past, low, high, after)
        state = jax.tree.map(lambda new, old: jnp.where(term.usable, new, old), new, state)
        cost, cost_rounding = accurate_half_form(term.stage.M, point)
        return Settlement(state, growth, rounding, gained, cost, cost_rounding, cost)

    def rescale(self, factor: float) -> "Band":
        return dataclasses.replace(self, half_width=self.half_width * factor)


def _followed(problem: AnyProblem) -> AnyProblem:
    return problem if problem.game is not None else problem.without_covariates


def _game(problem: AnyProblem) -> ControlProblem:
    """Return the dynamics whose state is the previous action, or those of the problem."""
    return problem.game or with_memory(_followed(problem), (1.0,))


def _stage(problem: AnyProblem, step) -> Stage:
    if problem.game is not None:
        return Stage.of(problem.game.at(step))
    return Stage.of_tracking(problem.hitting.curvature(None, len(problem.Q)), 2 * problem.Q)


def _find_border(excess, least: Float[Array, ""], at_advice: Float[Array, ""]) -> Float[Array, ""]:
    """Return the largest share from 0 to 1 at which a convex excess, least at 0, is at most 0; 0 if there is none.

    The square root of the excess above `least` is almost linear in the share: the Illinois method on it takes a few steps.
    """
    goal = jnp.sqrt(jnp.maximum(-least, 0.0))
    eps = jnp.finfo(goal.dtype).eps

    def height(over):
        return jnp.sqrt(jnp.maximum(over - least, 0.0)) - goal

    def is_apart(carry):
        steps, inside, outside, *_ = carry
        return (outside - inside > 8 * eps * outside) & (steps < _BORDER_STEPS) & (goal > 0) & (at_advice > 0)

    def narrow(carry):
        steps, inside, outside, over_inside, over_outside, below, above, last = carry
        share = jnp.clip((inside * above - outside * below) / (above - below), inside, outside)
        over = excess(share)
        kept = over <= 0
        # Illinois: an end that stays for a second time counts half.
        below, above = (
            jnp.where(kept, height(over), jnp.where(last == 1, 0.5 * below, below)),
            jnp.where(kept, jnp.where(last == -1, 0.5 * above, above), height(over)),
        )
        inside, over_inside = (jnp.where(kept, new, old) for new, old in ((share, inside), (over, over_inside)))
        outside, over_outside = (jnp.where(kept, old, new) for new, old in ((share, outside), (over, over_outside)))
        return steps + 1, inside, outside, over_inside, over_outside, below, above, jnp.where(kept, -1, 1)

    zero, one = jnp.zeros_like(goal), jnp.ones_like(goal)
    start = (0, zero, one, least, at_advice, -goal, height(at_advice), 0)
    _, inside, outside, over_inside, over_outside, *_ = jax.lax.while_loop(is_apart, narrow, start)
    # A convex excess is at most its chord, which is 0 here.
    rise = over_outside - over_inside
    share = inside + (outside - inside) * jnp.clip(-over_inside / jnp.where(rise > 0, rise, 1.0), 0.0, 1.0)
    return jnp.where((goal > 0) & (at_advice > 0), share, 0.0)
