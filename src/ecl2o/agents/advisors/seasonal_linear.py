"""A linear advisor, without a bias, on recent contexts and a rolling seasonal profile."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecl2o.agents.advisors.networks import check_dimensions, take_numbers
from ecl2o.agents.base import AbstractAgent, Info, Observation, Start, Trainable
from ecl2o.problem import Problem
from ecl2o.problem.arrays import check_count, to_device
from ecl2o.problem.recent_contexts import RecentContexts


class LinearWeights(Trainable):
    """One matrix from features to actions, no bias."""

    weight: Float[Array, "k d"]


class SeasonalLinear(AbstractAgent):
    """Advice = W' (x_{t-1}, y_t, y_{t-1}, .., the profile at the next 0..ahead steps).

    The profile is the mean of the last `days` periods by phase, kept in the agent's own memory and warmed up on the
    history, so that the hour is no feature. There is no bias: a policy trained on kilowatts works on megawatts. With the
    default settings and d = q = 1 it has 29 weights.

    Args:
        dim: d, how many numbers an action has.
        context_dim: q, how many numbers a context has.
        period: steps in a period, usually a day. Default: 24.
        days: periods that the profile is the mean of. Default: 14.
        recent: how many of the last contexts it sees, the present one included. Default: 3.
        ahead: how far ahead it looks in the profile, in steps. Default: a period.

    Raises:
        ValueError: if a number is out of its range.
        NotApplicableError: at the start of a run with other dimensions.

    >>> SeasonalLinear(dim=1, context_dim=1).weights.weight.shape
    (29, 1)
    """

    weights: LinearWeights
    period: int = eqx.field(static=True)
    days: int = eqx.field(static=True)
    recent: int = eqx.field(static=True)
    ahead: int = eqx.field(static=True)

    def __init__(
        self, dim: int, context_dim: int, period: int = 24, days: int = 14, recent: int = 3, ahead: int | None = None
    ):
        sizes = {"dim": dim, "context_dim": context_dim, "period": period, "days": days, "recent": recent}
        for size in sizes.items():
            check_count(*size)
        self.period, self.days, self.recent = period, days, recent
        self.ahead = period if ahead is None else ahead
        features = dim + context_dim * (recent + self.ahead + 1)
        weight = np.zeros((features, dim))
        if dim == context_dim:  # start as an exponential moving average
            weight[:dim], weight[dim : 2 * dim] = 0.7 * np.eye(dim), 0.3 * np.eye(dim)
        self.weights = LinearWeights(to_device(weight))

    def __check_init__(self):
        if self.ahead < 0 or self.recent - 1 > self.days * self.period:
            found = f"ahead = {self.ahead} and recent = {self.recent}"
            raise ValueError(f"ahead must be 0 or more and recent at most days * period + 1, got {found}.")

    def is_linear(self, problem: Problem) -> bool:
        return True

    @property
    def _context_dim(self) -> int:
        features, dim = self.weights.weight.shape
        return (features - dim) // (self.recent + self.ahead + 1)

    def init(self, problem: Problem, start: Start) -> RecentContexts:
        dim = self.weights.weight.shape[1]
        check_dimensions("SeasonalLinear", self._context_dim + dim, dim, problem, start)
        return RecentContexts.from_history(take_numbers(start.history, self._context_dim), self.days * self.period)

    def step(self, problem: Problem, state: RecentContexts, observation: Observation):
        context = take_numbers(observation.context, self._context_dim)
        profile = state.mean_by_phase(self.period, otherwise=context)
        coming = profile[jnp.arange(self.ahead + 1) % self.period]
        lags = jnp.arange(1, self.recent)
        before = jnp.where((lags <= state.seen)[:, None], state.contexts[-lags], context)
        features = [observation.previous_action, context, before.ravel(), coming.ravel()]
        return state.append(context), jnp.concatenate(features) @ self.weights.weight, Info.plain()
