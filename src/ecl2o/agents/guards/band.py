"""The guard for contexts that are promised to lie in a band around a forecast (docs/guarantees.md, forecast bands).

With d the contexts to come, the reserve at the state x is the maximum over the band of the cost to go less L times the growth of
the optimum: a concave quadratic in d, so a small quadratic program on a box. It is convex in x. Advice that needs more than the
account leaves is moved toward the safest action, which is the best one against the contexts that are worst for it.
"""

import dataclasses

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.agents.base import AbstractAgent, AnyProblem, Info, Observation, Start, State
from ecl2o.agents.guards.base import AbstractGuard, Account
from ecl2o.agents.promise import Promise, Reference
from ecl2o.exceptions import NotApplicableError
from ecl2o.problem import ControlProblem
from ecl2o.problem.arrays import (
    as_float,
    check_count,
    check_finite,
    check_nonnegative,
    concrete_value,
    cost_ratio,
)
from ecl2o.problem.control import with_memory
from ecl2o.solvers.box_qp import maximize_on_box
from ecl2o.solvers.small_dense import accurate_half_form, is_definite, solve, spd_solve
from ecl2o.theory.control import KnownFuture, Past, Stage, all_stages, known_future, smallest_control_ratio

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
    """The wrapped agent's state, the past, the future by step, the band by step, the reserve, the optimum and the account."""

    inner: State
    past: Past
    future: KnownFuture
    low: Float[Array, " all"]
    high: Float[Array, " all"]
    reserve: Float[Array, ""]
    optimum: Float[Array, ""]
    account: Account


class CompetitiveBand(AbstractGuard):
    """The guard that keeps cost <= ratio * optimum at the end of a period, while contexts stay in a band around a forecast.

    At the first step of a period the forecaster predicts the contexts of the others, or the context has the ends of a band in its
    covariates (`columns`). The promise is for contexts within `half_width` of that forecast or band. The guard allows every
    action with which the promise can still be kept, so the narrower the band, the less it changes. A context outside ends the
    promise: `kept` turns false, and the safest action is played.

    For quadratic costs with a constant curvature and quadratic movement, and for a `ControlProblem`; without bounds on actions.
    Each step solves a few quadratic programs of as many variables as contexts remain.

    Args:
        agent: the agent whose actions are played as far as the promise allows.
        half_width: how far contexts may be from their forecast: one number, one for each number of a context (q,), or one for
            each step after the first as well (T - 1, q). 0 or more.
        ratio: above the smallest ratio of any online algorithm without a band. Default: 2.5.
        horizon: T, the steps of the period. Default: 24.
        allowance: cost allowed on top of ratio * optimum, 0 or more. Default: 0.
        columns: the places in a context of the low ends of the band 1, ..., T - 1 steps ahead, and of the high ends; for actions
            of one number. Default: None, the band is around the forecaster's predictions.

    Raises:
        ValueError: if a number is out of its range.
        NotApplicableError: at the start of a run, if the problem does not fit or the ratio cannot be promised.

    `Info.details`: as `Competitive` has, but `optimum_at_least`, the least optimum that the period can still have.

    >>> import ecl2o as ec
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    >>> guard = CompetitiveBand(ec.advisors.Fixed([[1e6], [1e6]]), half_width=0.5, ratio=2.0, horizon=2)
    >>> print(guard.promise(problem))
    the cost is at most 2 times the optimum at the end of every 2 steps while contexts stay in the band around their forecasts
    >>> day = ec.Instance([0.0], [[1.0], [3.0]])
    >>> bool(ec.rollout(guard, problem, day).cost <= 2.0 * ec.oracle(problem, day).cost * (1 + 1e-4))
    True
    """

    agent: AbstractAgent
    half_width: Float[Array, "*T q"] | Float[Array, ""] = eqx.field(converter=as_float)
    ratio: Float[Array, ""] = eqx.field(converter=as_float, default=2.5)
    horizon: int = eqx.field(static=True, default=24)
    allowance: Float[Array, ""] = eqx.field(converter=as_float, default=0.0)
    columns: tuple[tuple[int, ...], tuple[int, ...]] | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        for name in ("half_width", "allowance", "ratio"):
            check_finite(name, getattr(self, name))
            check_nonnegative(name, getattr(self, name))
        check_count("horizon", self.horizon)
        for places in self.columns or ():
            if len(places) != self.horizon - 1:
                raise ValueError(f"columns must have {self.horizon - 1} low and high ends, got {len(places)}.")

    @property
    def lookahead(self) -> int:
        return max(self.agent.lookahead, self.horizon - 1) if self.columns is None else self.agent.lookahead

    def promise(self, problem: AnyProblem) -> Promise:
        return Promise(
            float(self.ratio), Reference.OPTIMUM, None, float(self.allowance), self.horizon, at_end=True, in_band=True
        )

    def rescale(self, factor: float) -> "CompetitiveBand":
        return dataclasses.replace(self, allowance=self.allowance * factor**2, half_width=self.half_width * factor)

    def check(self, problem: AnyProblem, start: Start) -> None:
        super().check(problem, start)
        if problem.is_bounded:
            raise NotApplicableError("CompetitiveBand promises for actions without bounds; the problem has some.")
        if not _followed(problem).is_linear_quadratic:
            raise NotApplicableError(
                "CompetitiveBand needs quadratic costs of a constant curvature, whose contexts are the centres; Guarded "
                "takes any costs."
            )
        if start.horizon != self.horizon:
            raise NotApplicableError(
                f"CompetitiveBand promises for the end of horizon = {self.horizon} steps, but this run has "
                f"{'no end' if start.horizon is None else start.horizon}; Periodic(guard, {self.horizon}) restarts it."
            )
        if self.columns is not None and problem.action_size(start.dim) != 1:
            raise NotApplicableError(
                "columns have the band of one number that is followed; use half_width for several."
            )
        ratio = concrete_value(self.ratio)
        if ratio is not None and not any(concrete_value(leaf) is None for leaf in jax.tree.leaves(problem)):
            with jax.core.eval_context():
                dynamics = problem if isinstance(problem, ControlProblem) else with_memory(_followed(problem), (1.0,))
                smallest = smallest_control_ratio(dynamics, self.horizon)
            if not ratio > smallest:
                raise NotApplicableError(
                    f"`ratio` = {ratio:g} cannot be promised: it must exceed {smallest:.8g}, the smallest competitive "
                    "ratio that any online algorithm has without a band."
                )

    def init(self, problem: AnyProblem, start: Start) -> BandState:
        return self._state(problem, start, self.agent.init(problem, start))

    def restart(self, problem: AnyProblem, state: BandState, start: Start) -> BandState:
        return self._state(problem, start, state.inner)

    def _state(self, problem: AnyProblem, start: Start, inner: State) -> BandState:
        x0, dtype = start.x0, start.x0.dtype
        if isinstance(problem, ControlProblem):
            stages = all_stages(problem, self.horizon)
        else:
            one = _stage(problem, 0, start.dim)
            stages = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.horizon, *leaf.shape)), one)
        future = jax.lax.stop_gradient(known_future(stages))
        past = Past(jnp.zeros((start.dim,) * 2, dtype), x0)
        feasible = jnp.isfinite(self.ratio) & (self.ratio > 1) & (self.half_width >= 0).all()
        feasible &= jnp.isfinite(self.allowance) & (self.allowance >= 0)
        zero, places = jnp.zeros((), dtype), jnp.zeros(future.N.shape[-1], dtype)
        account = Account.open(self.allowance, feasible, dtype)
        return BandState(inner, past, future, places, places, zero, zero, account)

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

    def step(self, problem: AnyProblem, state: BandState, observation: Observation):
        inner_state, advice, inner = self.agent.step(
            problem, state.inner, observation.with_lookahead(self.agent.lookahead)
        )
        position, place, L = observation.previous_action, observation.place, self.ratio.astype(advice.dtype)
        stage = _stage(problem, observation.step, len(position))
        q = stage.E.shape[-1]
        finite = jnp.isfinite(observation.context[:q]).all()
        context = jnp.where(finite, observation.context[:q], 0.0)
        low, high = self._band(state, observation, q)
        here = (jax.lax.dynamic_slice_in_dim(end, jnp.minimum(place, self.horizon - 1) * q, q) for end in (low, high))
        below, above = here
        in_band = (observation.step == 0) | ((below <= context) & (context <= above)).all()

        past, growth = state.past.after(stage, context)
        future = jax.tree.map(lambda leaf: leaf[jnp.minimum(place, self.horizon - 1)], state.future)
        ahead = jnp.repeat(jnp.arange(self.horizon), q) > place
        game = BandGame.of(future, past, L, (low, high), ahead)
        sound = finite & in_band & game.sound & (place < self.horizon) & jnp.isfinite(L * growth)
        kept = state.account.kept & sound
        level = state.account.left + state.reserve + L * growth
        safest = game.safest(stage, position, context)
        action, active = _move_inside(game, stage, position, context, level, safest, advice)
        action = jnp.where(kept, action, safest)

        point = jnp.concatenate([position, action, context])
        cost, rounding = accurate_half_form(stage.M, point)
        after, _ = game.reserve(stage.joint @ point)
        optimum = state.optimum + growth
        eps = jnp.finfo(cost.dtype).eps
        size = L * (jnp.abs(growth) + jnp.abs(after / L)) + jnp.abs(state.reserve)
        rounding += jax.lax.stop_gradient(8 * len(point) * eps * size)
        growth = (
            growth - (after - state.reserve) / L
        )  # so that what is left of the account is what the invariant leaves
        account = state.account.update(L, growth, cost, rounding, kept)
        carried = BandState(inner_state, past, state.future, low, high, after, optimum, account)
        least = jnp.maximum(optimum, account.reference)
        details = account.details("optimum_at_least", "live_ratio", active | ~account.kept)
        details |= {"optimum_at_least": least, "live_ratio": cost_ratio(account.cost, least)}
        return carried, action, Info(inner.converged & account.kept, advice, details, inner)


def _followed(problem: AnyProblem) -> AnyProblem:
    return problem if isinstance(problem, ControlProblem) else problem.without_covariates


def _stage(problem: AnyProblem, step, dim: int) -> Stage:
    if isinstance(problem, ControlProblem):
        return Stage.of(problem.at(step))
    return Stage.of_tracking(problem.hitting.curvature(None, dim), 2 * problem.Q)


def _move_inside(
    game: BandGame,
    stage: Stage,
    state: Float[Array, " n"],
    context: Float[Array, " q"],
    level: Float[Array, ""],
    safest: Float[Array, " k"],
    advice: Float[Array, " k"],
) -> tuple[Float[Array, " k"], Bool[Array, ""]]:
    """Return the advice if cost and reserve are within the level, else the last point toward it where they are; and which."""
    usable = jnp.isfinite(jnp.sum((advice - safest) ** 2))
    way = jnp.where(usable, advice, safest) - safest

    given = game, stage, state, context, level, safest, way
    fixed = jax.lax.stop_gradient(given)
    least, at_advice = (_excess(jnp.full_like(level, share), fixed)[0] for share in (0.0, 1.0))
    allowed = usable & (at_advice <= 0)
    share = jnp.where(allowed, 1.0, _find_border(lambda share: _excess(share, fixed)[0], least, at_advice))
    # On the border the share moves so that the excess stays: the implicit function theorem.
    over, rise = _excess(share, given)
    rise = jax.lax.stop_gradient(rise)
    share = share - jnp.where(rise > 0, over - jax.lax.stop_gradient(over), 0.0) / jnp.where(rise > 0, rise, 1.0)
    return jnp.where(allowed, advice, safest + share * way), ~allowed


def _excess(share: Float[Array, ""], given) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return what the action at a share of the way costs and reserves above the level, and the slope of that."""
    game, stage, state, context, level, safest, way = given
    _, u, _ = stage.places
    point = jnp.concatenate([state, safest + share * way, context])
    reserve, slope = game.reserve(stage.joint @ point)
    rise = (stage.M[u] @ point + stage.B.T @ slope) @ way
    return 0.5 * point @ stage.M @ point + reserve - level, rise


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
