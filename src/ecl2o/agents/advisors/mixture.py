"""An online mixture of advisors that predict the discounted mean of the coming contexts."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ecl2o.agents.advisors.discounted_forecast import (
    DiscountedForecast,
    check_maturity,
    default_maturity,
    discounted_mean,
)
from ecl2o.agents.advisors.features import ContextRange
from ecl2o.agents.advisors.online_ridge import OnlineRidge
from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, State
from ecl2o.planning.decoupling import Modes
from ecl2o.problem import Problem
from ecl2o.problem.arrays import as_float, check_count, check_positive
from ecl2o.solvers.exponential_weights import ExponentialWeights
from ecl2o.theory import decay_root

_ROUNDING = 100.0  # units in the last place of a prediction


class MixtureLine(eqx.Module):
    """The memory of one coordinate: sums of the last contexts, the range, weights, and predictions that wait for their targets.

    `members` are predictions of the members, `own` those of the mixture, the oldest first.
    """

    sums: Float[Array, "*d m"]
    range: ContextRange
    weights: ExponentialWeights
    members: Float[Array, "*d m n"]
    own: Float[Array, "*d m"]


class MixtureState(eqx.Module):
    """The members' states, the modes, how many contexts have been seen, and the memory of each mode."""

    members: tuple[State, ...]
    modes: Modes
    seen: Int[Array, ""]
    lines: MixtureLine


class Mixture(AbstractAgent):
    """Advice x = rho x_{t-1} + (1 - rho) zhat_t, with zhat the weighted mean of what several advisors predict.

    A member predicts z, the discounted mean of the coming contexts (see `OnlineRidge`), as `OnlineRidge` does, or by its advice:
    then its zhat is (x - rho x_{t-1}) / (1 - rho). Predictions are clipped to the range of the contexts so far. In each mode of
    (A, Q) the weights are exponential in the squared errors of the targets that have matured, with a half-life of `memory`.
    Derivatives of actions treat the weights as constants.

    On every sequence of contexts and predictions, the mixture's discounted sum of squared errors exceeds that of the best member
    by at most `Info.details["regret_bound"]`, one number per mode. It is computed from the run, since targets mature late. If
    they matured at once, it would be at most B^2 (6 log n + 4) for n members whose errors are at most B (`ExponentialWeights`).

    With `combines`, weights are exponential in 2 e e_i, the product of the mixture's error and each member's. As
    e^2 - (u'e)^2 <= 2 e (e - u'e) for all weights u, the bound then holds relative to the best fixed weighted mean of the
    members, which may be better than each of them; it is larger, and of the order of the root of the number of steps.

    Args:
        members: the advisors, at least one.
        period: steps in a period, usually a day. Default: 24.
        memory: half-life of squared errors, in periods. Default: 30.
        maturity: steps after which a prediction is judged; the present zhat replaces what is not known. Default: a period, at
            least 24.
        ahead: how many steps after its context the action is in force, as the members know too. Default: 0.
        combines: whether it competes with the best weighted mean of its members. Default: False, with the best member.
        scores_history: whether predictions of the history count. Default: True; False is for members that were trained on it.
        weights: of each mode, (d, n), with which a run starts: `Info.details["weights"]` of the last step of an earlier run,
            whose errors the bound then counts too. Default: equal weights.

    >>> mixture = Mixture([OnlineRidge(), OnlineRidge(week=7, rich=True, memory=60.0)])
    >>> len(mixture.members), mixture.maturity
    (2, 24)
    """

    members: tuple[AbstractAgent, ...]
    memory: Float[Array, ""]
    period: int = eqx.field(static=True)
    maturity: int = eqx.field(static=True)
    ahead: int = eqx.field(static=True, default=0)
    combines: bool = eqx.field(static=True, default=False)
    scores_history: bool = eqx.field(static=True, default=True)
    weights: ExponentialWeights | None = None

    def __init__(
        self,
        members,
        period: int = 24,
        memory: float = 30.0,
        maturity: int | None = None,
        ahead: int = 0,
        combines: bool = False,
        scores_history: bool = True,
        weights: ExponentialWeights | None = None,
    ):
        self.members = tuple(members)
        self.period, self.memory, self.ahead = period, as_float(memory), ahead
        self.maturity = default_maturity(period, ahead) if maturity is None else maturity
        self.combines, self.scores_history, self.weights = combines, scores_history, weights

    def __check_init__(self):
        check_count("period", self.period)
        check_maturity(self.maturity, self.ahead)
        check_positive("memory", self.memory)
        if not self.members:
            raise ValueError("Mixture needs at least one member.")
        if self.weights is not None and self.weights.losses.shape[1:] != (len(self.members),):
            shape = self.weights.losses.shape
            raise ValueError(f"weights must be of shape (d, n) for n = {len(self.members)} members, got {shape}.")

    @classmethod
    def of_regressions(
        cls, period: int = 24, week: int = 7, covariates: tuple[int | None, ...] = (), ahead: int = 0
    ) -> "Mixture":
        """Return the mixture that `ecl2o fit` tries (docs/choices.md): a small regression, and weekly ones that forget.

        Args:
            period: steps in a period. Default: 24.
            week: periods in a week. Default: 7.
            covariates: as in `OnlineRidge`; two more members see them. Default: none.
            ahead: as in `OnlineRidge`. Default: 0.

        >>> [member.features.count for member in Mixture.of_regressions().members]
        [36, 42, 50]
        """
        ridge = functools.partial(OnlineRidge, period, ahead=ahead)
        members = [ridge(), ridge(week=week, memory=30.0), ridge(week=week, rich=True, memory=60.0)]
        if covariates:
            members.append(ridge(covariates=covariates))
            members.append(ridge(week=week, rich=True, memory=60.0, covariates=covariates))
        return cls(members, period, ahead=ahead)

    def init(self, problem: Problem, start: Start) -> MixtureState:
        modes, dtype, count = Modes.from_problem(problem, start.dim), start.x0.dtype, len(self.members)
        empty = MixtureLine(
            sums=jnp.zeros((self.maturity,), dtype),
            range=ContextRange.empty(dtype),
            weights=ExponentialWeights.empty(count, dtype),
            members=jnp.zeros((self.maturity, count), dtype),
            own=jnp.zeros((self.maturity,), dtype),
        )
        lines = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (start.dim, *leaf.shape)), empty)
        if self.weights is not None:
            first = jax.tree.map(lambda leaf, like: jnp.asarray(leaf, like.dtype), self.weights, lines.weights)
            lines = dataclasses.replace(lines, weights=first)
        scores = self.scores_history and self.lookahead == 0  # forecasts of the past are not known
        known = dataclasses.replace(start, history=start.history[:0], unseen=None) if scores else start
        members = tuple(member.init(problem, known) for member in self.members)
        state = MixtureState(members, modes, jnp.zeros((), int), lines)

        def live(carry: tuple[MixtureState, Array], context: Float[Array, " q"]):
            state, action, _ = self.step(problem, carry[0], Observation(context, carry[1], carry[0].seen))
            return state, action

        def widen(seen_range: ContextRange, context: Float[Array, " q"]) -> ContextRange:
            return jax.vmap(ContextRange.include)(seen_range, self._observe(problem, modes, context))

        if scores:
            return start.fold_history(live, (state, start.x0))[0]
        seen_range = start.fold_history(widen, lines.range)
        return dataclasses.replace(state, lines=dataclasses.replace(lines, range=seen_range))

    def _observe(self, problem: Problem, modes: Modes, context: Float[Array, " q"]) -> Float[Array, " d"]:
        """Return what is followed, in modes."""
        return modes.to_modes @ problem.hitting.centre(context, modes.a.shape[0])

    def step(self, problem: Problem, state: MixtureState, observation: Observation):
        modes, previous, rho = state.modes, observation.previous_action, decay_root(1.0, state.modes.a)
        now = self._observe(problem, modes, observation.context)
        states, forecasts, converged = [], [], []
        for member, inner in zip(self.members, state.members, strict=True):
            inner, advice, info = member.step(problem, inner, observation.with_lookahead(member.lookahead))
            states.append(inner)
            forecasts.append(info.details.get("discounted_forecast") or _implied(modes, rho, previous, advice))
            converged.append(info.converged)
        predictions = jnp.stack([modes.to_modes @ each.mean for each in forecasts], axis=1)
        advance = jax.vmap(self._advance, in_axes=(0, None, 0, 0, 0))
        lines, predicted = advance(state.lines, state.seen, now, predictions, rho)
        forecast = DiscountedForecast(modes.from_modes @ predicted, forecasts[0].signals)
        details = {
            "discounted_forecast": forecast,
            "regret_bound": lines.weights.regret_bound,
            "weights": lines.weights,
        }
        after = MixtureState(tuple(states), modes, state.seen + 1, lines)
        return after, forecast.advice(modes, previous), Info(jnp.all(jnp.stack(converged)), details=details)

    def _advance(self, line: MixtureLine, step, now, predictions: Float[Array, " n"], rho: Float[Array, ""]):
        """Advance one coordinate: weigh the predictions, and judge those whose target has matured."""
        seen_range = line.range.include(now)
        predictions = seen_range.clip(predictions)
        known = jax.lax.stop_gradient(line.weights)  # derivatives of a softmin at a large rate overflow
        predicted = jnp.sum(known.weights * predictions)
        sums = jnp.concatenate([now[None], line.sums[:-1] + now])
        members, own = (
            jnp.concatenate([old[1:], new[None]]) for old, new in ((line.members, predictions), (line.own, predicted))
        )
        target = discounted_mean(sums[: self.maturity - self.ahead], rho, predicted)
        error, own_error = jax.lax.stop_gradient((members[0] - target, own[0] - target))
        keep = jax.lax.stop_gradient(jnp.asarray(0.5, now.dtype) ** (1 / (self.memory * self.period)))
        largest = jax.lax.stop_gradient(jnp.maximum(jnp.abs(seen_range.low), jnp.abs(seen_range.high)))
        floor = (_ROUNDING * jnp.finfo(now.dtype).eps * largest) ** 2  # so that rounding does not decide between equals
        losses, own_loss = error**2, own_error**2
        if self.combines:
            losses, own_loss = 2 * error * own_error, 2 * own_error * own_error
            least = jnp.minimum(jnp.min(losses), own_loss)
            losses, own_loss = losses - least, own_loss - least
        judged = known.with_losses(losses + floor, own_loss + floor, keep)
        matured = step >= self.maturity - 1
        weights = jax.tree.map(lambda new, old: jnp.where(matured, new, old), judged, known)
        return MixtureLine(sums, seen_range, weights, members, own), predicted


def _implied(modes: Modes, rho: Float[Array, " d"], previous: Float[Array, " d"], advice: Float[Array, " d"]):
    """Return the forecast that advice implies: the zhat with which rho x_{t-1} + (1 - rho) zhat is the advice."""
    mean = previous + modes.from_modes @ ((modes.to_modes @ (advice - previous)) / (1 - rho))
    return DiscountedForecast.of_mean(mean)
