"""Advice as regression: where learning the policy is least squares.

In coordinates where A = I and 2Q = diag(a), and with rho the decay root of a, the action x_t = rho x_{t-1} + (1 - rho) zhat_t
costs the optimum of the whole horizon plus 1/2 sum |zhat_t - z_t|^2, up to end effects, where

    z_t = (1 - rho) sum_{j >= 0} rho^j y_{t+j}

is the discounted mean of the present and the coming contexts. So an advisor has to predict z, and nothing else.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ecl2o.agents.advisors.outlook import Outlook
from ecl2o.agents.advisors.ridge_features import Profiles, RidgeFeatures
from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.planning.modes import Modes
from ecl2o.problem import AbstractQuadraticCost, Problem
from ecl2o.problem.arrays import as_float, refuse_unless_finite, refuse_unless_positive
from ecl2o.solvers import RecursiveLeastSquares
from ecl2o.theory import decay_root

_SHORTEST = 24  # steps at least, unless told otherwise, until a row is learned from
_OUTLYING = 5.0  # root mean squares of the residuals, beyond which a row counts less


class Range(eqx.Module):
    """Where contexts have been: an interval that shrinks by half in two half-lives of the profile, and takes in what comes."""

    low: Float[Array, ""]
    high: Float[Array, ""]

    def plausible(self, now: Float[Array, ""]) -> Float[Array, ""]:
        """The context, or the nearest one that is at most the interval's width outside of it."""
        width = self.high - self.low
        return jnp.where(width > 0, jnp.clip(now, self.low - width, self.high + width), now)

    def then(self, now: Float[Array, ""], shrinking: Float[Array, ""]) -> "Range":
        """With one more context."""
        inward = jnp.where(self.high > self.low, 0.5 * shrinking * (self.high - self.low), 0.0)
        return Range(jnp.minimum(self.low + inward, now), jnp.maximum(self.high - inward, now))


class LineState(eqx.Module):
    """What has been seen and learned of one coordinate.

    `sums[i]` is the sum of the last i + 1 contexts. `profiles` know all of them, `late_profiles` only what came before the row
    that matures next. `power` are mean squares of the features by kind, fixed when the first row matures.
    """

    sums: Float[Array, " n"]
    profiles: Profiles
    late_profiles: Profiles
    range: Range
    power: Float[Array, " kinds"]
    regression: RecursiveLeastSquares
    residual_power: Float[Array, ""]


class OnlineRidgeState(eqx.Module):
    """How many contexts have been seen, and what each mode knows of them."""

    modes: Modes
    seen: Int[Array, ""]
    lines: LineState


class OnlineRidge(AbstractAgent):
    features: RidgeFeatures
    ridge: Float[Array, ""]
    maturity: int = eqx.field(static=True)

    def __init__(
        self,
        period: int = 24,
        half_life: float = 7.0,
        lags: int = 24,
        harmonics: int = 3,
        ridge: float = 0.01,
        week: int | None = None,
        maturity: int | None = None,
    ):
        self.features = RidgeFeatures(period, half_life, lags, harmonics, week)
        self.ridge = as_float(ridge)
        self.maturity = max(period, _SHORTEST) if maturity is None else maturity

    def __check_init__(self):
        refuse_unless_finite("ridge", self.ridge)
        refuse_unless_positive("ridge", self.ridge)

    @property
    def lookahead(self) -> int:
        return 0

    def init(self, problem: Problem, start: Start) -> OnlineRidgeState:
        modes = Modes.of(problem, start.dim)
        one = self._line(start.x0.dtype)
        lines = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (start.dim, *leaf.shape)), one)
        state = OnlineRidgeState(modes, jnp.zeros((), int), lines)
        if start.history.shape[0] == 0:
            return state
        return jax.lax.scan(lambda s, y: (self._seen(problem, s, y)[0], None), state, start.history)[0]

    def step(self, problem: Problem, state: OnlineRidgeState, observation: Observation):
        state, (predicted, signals) = self._seen(problem, state, observation.context)
        from_modes = state.modes.from_modes
        outlook = Outlook(from_modes @ predicted, jnp.einsum("de,es->sd", from_modes, signals))
        advice = outlook.advice(state.modes, observation.previous_action)
        return state, advice, Info(jnp.ones((), bool), details={"outlook": outlook})

    def _line(self, dtype) -> LineState:
        nothing = self.features.nothing(dtype)
        return LineState(
            sums=jnp.zeros((self.maturity + self.features.period,), dtype),
            profiles=nothing,
            late_profiles=nothing,
            range=Range(jnp.asarray(jnp.inf, dtype), jnp.asarray(-jnp.inf, dtype)),
            power=jnp.zeros((len(self.features.sizes),), dtype),
            regression=RecursiveLeastSquares.begun(self.features.count, self.ridge, dtype),
            residual_power=jnp.zeros((), dtype),
        )

    def _seen(self, problem: Problem, state: OnlineRidgeState, context: Float[Array, " q"]):
        """The state after one more context, and (zhat, signals) in modes."""
        assert isinstance(problem.hitting, AbstractQuadraticCost)
        modes = state.modes
        now = modes.to_modes @ problem.hitting.centre(context, modes.a.shape[0])
        lines, outlook = jax.vmap(self._advance, in_axes=(0, None, 0, 0))(
            state.lines, state.seen, now, decay_root(1.0, modes.a)
        )
        return OnlineRidgeState(modes, state.seen + 1, lines), outlook

    def _advance(self, line: LineState, step: Int[Array, ""], now: Float[Array, ""], rho: Float[Array, ""]):
        features, period = self.features, self.features.period
        late = self.maturity - 1
        now = jnp.where(step >= features.needed, line.range.plausible(now), now)
        shrinking = 1 - jnp.asarray(0.5, now.dtype) ** (1 / (2 * features.season.half_life * period))
        seen_range = line.range.then(now, shrinking)

        sums = jnp.concatenate([now[None], line.sums[:-1] + now])
        row_now = sums[late] - sums[late - 1]
        row_step = step - late
        present = features.at(sums, line.profiles, step, now)
        row = features.at(sums[late:], line.late_profiles, row_step, row_now)
        real, row_real = step >= features.needed, row_step >= features.needed

        # power
        sizes = np.array(features.sizes)
        kind = np.repeat(np.arange(len(sizes)), sizes)
        squares = jnp.stack([jnp.mean(part**2) for part in jnp.split(present, np.cumsum(sizes)[:-1])])
        count = jnp.maximum(step - features.needed + 1, 1)
        power = jnp.where(real & ~row_real, line.power + (squares - line.power) / count, line.power)
        size = jnp.sqrt(jnp.where(power > 0, power, 1.0))[kind]
        present = jnp.where(real, present / size, 0.0)
        row = jnp.where(row_real, row / size, 0.0)

        regression = line.regression
        images = regression.images(jnp.stack([present, row]))
        leverage = jnp.sum(images[0] ** 2)
        predicted = now + jnp.sum(regression.weights * present) / (1 + leverage)
        predicted = jnp.clip(predicted, seen_range.low, seen_range.high)

        # target
        age = np.arange(self.maturity)
        kernel = (1 - rho) * jnp.exp(jnp.log(rho) * (late - age))
        change = kernel - jnp.concatenate([kernel[1:], jnp.zeros((1,), kernel.dtype)])
        target = jnp.sum(change * sums[: self.maturity]) + rho * jnp.exp(jnp.log(rho) * late) * predicted - row_now
        residual = target - jnp.sum(regression.weights * row)
        rows = jnp.maximum(row_step - features.needed, 0)  # before this one
        square = residual**2
        limit = _OUTLYING**2 * line.residual_power
        outlying = (rows >= period) & (square > limit)
        counted = jnp.where(outlying, jnp.sqrt(limit / jnp.where(outlying, square, 1.0)), 1.0) * row_real
        regression = regression.with_row(row, images[1], residual, counted)
        square = jnp.where(outlying, limit, square)
        residual_power = line.residual_power + row_real*(square - line.residual_power) / jnp.minimum(rows + 1, 20*period)

        signals = features.signals(sums, line.profiles, step, now)
        after = LineState(
            sums,
            features.profiles_with(line.profiles, step, now),
            jax.tree.map(lambda new, old: jnp.where(row_step >= 0, new, old), features.profiles_with(line.late_profiles, row_step, row_now), line.late_profiles),
            seen_range,
            power,
            regression,
            residual_power,
        )
        return after, (predicted, signals)
