"""Advice as regression: where learning the policy is least squares (ALGORITHMS section 10).

In coordinates where A = I and 2Q = diag(a), and with rho the decay root of a, the action x_t = rho x_{t-1} + (1 - rho) zhat_t
costs the optimum of the whole horizon plus 1/2 sum |zhat_t - z_t|^2, up to end effects, where

    z_t = (1 - rho) sum_{j >= 0} rho^j y_{t+j}

is the discounted mean of the present and the coming contexts. So an advisor has to predict z, and nothing else.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ecl2o.agents.advisors.outlook import Outlook
from ecl2o.agents.advisors.ridge_features import Memory, RidgeFeatures
from ecl2o.agents.base import AbstractAgent, Info, Observation, Start
from ecl2o.planning.modes import Modes
from ecl2o.problem import AbstractQuadraticCost, Problem
from ecl2o.problem.arrays import as_float, refuse_unless_count, refuse_unless_finite, refuse_unless_positive
from ecl2o.theory import decay_root

_MATURITY = 48  # steps at least, unless told otherwise, until a target counts as known


class Regression(eqx.Module):
    """Least squares so far, one per mode: sums of f f' and f (z - y), the number of rows, and the weights in use."""

    gram: Float[Array, "d k k"]
    moment: Float[Array, "d k"]
    rows: Float[Array, ""]
    weights: Float[Array, "d k"]

    @classmethod
    def empty(cls, dim: int, count: int, dtype) -> "Regression":
        """No rows and zero weights, with which the prediction is the present context."""
        zeros = jnp.zeros((dim, count), dtype)
        return cls(jnp.zeros((dim, count, count), dtype), zeros, jnp.zeros((), dtype), zeros)

    def with_rows(
        self, features: Float[Array, "n k d"], targets: Float[Array, "n d"], real: Bool[Array, " n"]
    ) -> "Regression":
        """The sums with more rows, those that are real; the weights stay."""
        counted = real.astype(features.dtype)
        features = features * counted[:, None, None]
        return Regression(
            self.gram + jnp.einsum("nid,njd->dij", features, features),
            self.moment + jnp.einsum("nid,nd->di", features, targets),
            self.rows + jnp.sum(counted),
            self.weights,
        )

    def refitted(self, ridge: Float[Array, ""], pooling: Float[Array, "k k"], least: int) -> "Regression":
        """The weights of ridge regression, once there are at least so many rows.

        Features are divided by the root mean square of their kind (`pooling` averages within kinds), so that the penalty does
        not depend on units, nor on the phase at which the clock was started.
        """
        power = jnp.diagonal(self.gram, axis1=-2, axis2=-1) @ pooling
        size = jnp.sqrt(jnp.where(power > 0, power, 1.0) / jnp.maximum(self.rows, 1.0))
        scaled = self.gram / (size[:, :, None] * size[:, None, :])
        factor = jax.scipy.linalg.cho_factor(scaled + ridge * jnp.eye(size.shape[-1], dtype=size.dtype), lower=True)
        weights = jax.scipy.linalg.cho_solve(factor, (self.moment / size)[..., None])[..., 0] / size
        usable = jnp.isfinite(weights).all(axis=-1, keepdims=True) & (self.rows >= least)
        return eqx.tree_at(lambda r: r.weights, self, jnp.where(usable, weights, 0.0))


class OnlineRidgeState(eqx.Module):
    """What has been seen, what has been learned, and the rows whose target is not known yet (in modes)."""

    modes: Modes
    memory: Memory
    regression: Regression
    waiting: Float[Array, "n k d"]
    waiting_real: Bool[Array, " n"]
    smallest: Float[Array, " d"]
    largest: Float[Array, " d"]


class OnlineRidge(AbstractAgent):
    """Advice x = rho x_{t-1} + (1 - rho) zhat_t, with zhat from a ridge regression that learns while it runs.

    z is regressed on what is known at t: recent contexts as differences (`lags` of them), a rolling profile by phase of the
    period (half-life `half_life` periods) at the `ahead` coming steps, the last period's contexts at the coming steps, and
    harmonics of the phase times the present anomaly. Lags reach a period back and `ahead` almost a period forward unless given;
    this and the other defaults are what a validation month chose (docs/choices.md). All features are differences from the
    present context, so that units and origin do not matter. A row enters the regression when its target
    has matured, `maturity` steps later (what is still missing then has weight rho^maturity, 3e-7 in the case study); weights
    are renewed every `refit_every` steps. zhat is kept within the range of contexts seen so far. Until a period's rows have
    matured, zhat is the present context, and the advice R-OBD's.

    For f = 1/2 (x - y)' A (x - y) with a constant A, any d: one regression in each mode of (A, Q). It has nothing to train by
    gradients. `Info.details["outlook"]` is what it makes of the contexts, whatever is played.

    >>> OnlineRidge().features.count
    77
    """

    features: RidgeFeatures
    ridge: Float[Array, ""]
    maturity: int = eqx.field(static=True)
    refit_every: int = eqx.field(static=True)

    def __init__(
        self,
        period: int = 24,
        half_life: float = 14.0,
        lags: int | None = None,
        ahead: int | None = None,
        harmonics: int = 3,
        ridge: float = 0.01,
        maturity: int | None = None,
        refit_every: int = 6,
    ):
        self.features = RidgeFeatures(
            half_life, period, period if lags is None else lags, period - 1 if ahead is None else ahead, harmonics
        )
        self.ridge = as_float(ridge)
        self.maturity = max(2 * period, _MATURITY) if maturity is None else maturity
        self.refit_every = refit_every

    def __check_init__(self):
        refuse_unless_finite("ridge", self.ridge)
        refuse_unless_positive("ridge", self.ridge)
        refuse_unless_count("refit_every", self.refit_every)
        least = max(self.features.period, self.features.lags + 1)
        if self.maturity < least:
            raise ValueError(f"maturity must be at least {least}, a period and more than lags, got {self.maturity}.")

    @property
    def lookahead(self) -> int:
        return 0

    def init(self, problem: Problem, start: Start) -> OnlineRidgeState:
        modes = Modes.of(problem, start.dim)
        past = jax.vmap(lambda y: modes.to_modes @ _target(problem, y, start.dim))(start.history)
        features, real = self.features.along(past)
        regression = Regression.empty(start.dim, self.features.count, start.x0.dtype)
        waits = self.maturity - 1
        mature = max(past.shape[0] - waits, 0)
        if mature:
            targets = _discounted_means(past, decay_root(1.0, modes.a), self.maturity) - past[:mature]
            regression = regression.with_rows(features[:mature], targets, real[:mature])
            regression = self._refitted(regression)
        limit = jnp.full((start.dim,), jnp.inf, start.x0.dtype)
        return OnlineRidgeState(
            modes=modes,
            memory=self.features.memory(past, waits),
            regression=regression,
            waiting=_last(features, waits),
            waiting_real=_last(real, waits),
            smallest=jnp.min(past, axis=0, initial=jnp.inf) if past.shape[0] else limit,
            largest=jnp.max(past, axis=0, initial=-jnp.inf) if past.shape[0] else -limit,
        )

    def step(self, problem: Problem, state: OnlineRidgeState, observation: Observation):
        modes, previous = state.modes, observation.previous_action
        rho = decay_root(1.0, modes.a)
        now = modes.to_modes @ _target(problem, observation.context, previous.shape[0])
        features, real = self.features.at(state.memory, now)

        seen = jnp.concatenate([state.memory.recent, now[None]])  # maturity contexts: those of the row that matures now
        target = _discounted_means(seen, rho, self.maturity) - seen[:1]
        regression = state.regression.with_rows(state.waiting[:1], target, state.waiting_real[:1])
        regression = jax.lax.cond(
            observation.step % self.refit_every == 0, lambda r: self._refitted(r), lambda r: r, regression
        )
        smallest, largest = jnp.minimum(state.smallest, now), jnp.maximum(state.largest, now)
        predicted = now + jnp.einsum("dk,kd->d", regression.weights, features)
        predicted = jnp.clip(predicted, smallest, largest)

        after = OnlineRidgeState(
            modes,
            self.features.then(state.memory, now),
            regression,
            jnp.concatenate([state.waiting[1:], features[None]]),
            jnp.concatenate([state.waiting_real[1:], real[None]]),
            smallest,
            largest,
        )
        signals = jax.vmap(lambda row: modes.from_modes @ row)(self.features.signals(features))
        outlook = Outlook(modes.from_modes @ predicted, signals)
        return after, outlook.advice(modes, previous), Info(jnp.ones((), bool), details={"outlook": outlook})

    def _refitted(self, regression: Regression) -> Regression:
        pooling = jnp.asarray(self.features.pooling, regression.gram.dtype)
        return regression.refitted(self.ridge, pooling, least=self.features.period)


def _target(problem: Problem, context: Float[Array, " q"], dim: int) -> Float[Array, " d"]:
    assert isinstance(problem.hitting, AbstractQuadraticCost)
    return problem.hitting.centre(context, dim)


def _last(rows: Array, size: int) -> Array:
    """The last rows, with zeros (False) in front where there are fewer."""
    kept = rows[max(rows.shape[0] - size, 0) :]
    return jnp.concatenate([jnp.zeros((size - kept.shape[0], *rows.shape[1:]), rows.dtype), kept])


def _discounted_means(
    contexts: Float[Array, "n d"], rho: Float[Array, " d"], maturity: int
) -> Float[Array, "n-{maturity}+1 d"]:
    """z_t from the `maturity` contexts from t on, the last of which stands for all that follow."""
    weights = (1 - rho) * rho ** jnp.arange(maturity, dtype=rho.dtype)[:, None]
    weights = weights.at[-1].divide(1 - rho)
    count = contexts.shape[0] - maturity + 1
    return jnp.einsum("nmd,md->nd", contexts[jnp.arange(count)[:, None] + jnp.arange(maturity)], weights)
