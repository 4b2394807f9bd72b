"""Forecasters that know the past only; their memory is made of contexts and warms up on the history."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecl2o.forecasters.base import AbstractCausalForecaster
from ecl2o.problem.arrays import as_float, as_pytree, check_count, check_fraction
from ecl2o.problem.recent_contexts import RecentContexts


class Persistence(AbstractCausalForecaster):
    """What is now will stay: every forecast is y_t."""

    def init(self, history: Float[Array, "H q"], window: int) -> None:
        return None

    def step(self, state: None, context: Float[Array, " q"], window: int) -> tuple[None, Float[Array, "w q"]]:
        return state, jnp.broadcast_to(context, (window, context.shape[0]))


class SeasonalNaive(AbstractCausalForecaster):
    """What was one period ago will come again: the last context seen at the same phase.

    A phase that was not seen yet is forecast by y_t.

    Args:
        period: steps in a period. Default: 24.

    >>> import jax.numpy as jnp
    >>> naive = SeasonalNaive(period=2)
    >>> memory = naive.init(jnp.array([[5.0]]), window=3)
    >>> _, forecast = naive.step(memory, jnp.array([7.0]), window=3)
    >>> [float(y) for y in forecast.ravel()]
    [5.0, 7.0, 5.0]
    """

    period: int = eqx.field(static=True, default=24)

    def __check_init__(self):
        check_count("period", self.period)

    def init(self, history: Float[Array, "H q"], window: int) -> RecentContexts:
        return RecentContexts.from_history(history, self.period)

    def step(
        self, state: RecentContexts, context: Float[Array, " q"], window: int
    ) -> tuple[RecentContexts, Float[Array, "w q"]]:
        state = state.append(context)
        ahead = jnp.arange(window) % self.period  # the oldest context kept has the phase of t + 1
        return state, jnp.where(state.was_seen[ahead, None], state.contexts[ahead], context)


class ProfileMemory(eqx.Module):
    """The profile of the whole periods before this one (not known before one was seen), and the phase of the next context."""

    recent: RecentContexts
    profile: Float[Array, "period q"]
    has_profile: Bool[Array, ""]
    phase: Int[Array, ""]


class RollingProfile(AbstractCausalForecaster):
    """The mean of the last whole days at the same hour, plus the present error, which fades (docs/algorithms.md).

    With the profile p of the last `days` whole periods and e_t = y_t - p_t, the forecast of y_{t+j} is
    p_{t+j} + e_t decay^j. Periods are counted from the first step, so a history ends where a period ends; the profile rolls
    on at the end of each. With less than `days` periods seen it is the mean of what there is; before one whole period was
    seen, the forecast is y_t.

    Args:
        days: periods that the profile is the mean of. Default: 7.
        decay: how much of the present error is left a step later, in [0, 1]. Default: 0.9.
        period: steps in a period. Default: 24.

    >>> import jax.numpy as jnp
    >>> rolling = RollingProfile(days=2, decay=0.5, period=2)
    >>> memory = rolling.init(jnp.array([[1.0], [5.0], [3.0], [7.0]]), window=3)
    >>> _, forecast = rolling.step(memory, jnp.array([4.0]), window=3)  # the profile is 2, 6 and the error 2
    >>> [float(y) for y in forecast.ravel()]
    [7.0, 2.5, 6.25]
    """

    days: int = eqx.field(static=True, default=7)
    decay: Float[Array, ""] = eqx.field(converter=as_float, default=0.9)
    period: int = eqx.field(static=True, default=24)

    def __check_init__(self):
        check_count("days", self.days)
        check_count("period", self.period)
        check_fraction("decay", self.decay)

    def init(self, history: Float[Array, "H q"], window: int) -> ProfileMemory:
        recent = RecentContexts.from_history(history, self.days * self.period)
        return ProfileMemory(recent, recent.mean_by_phase(self.period), recent.seen >= self.period, jnp.array(0))

    def step(
        self, state: ProfileMemory, context: Float[Array, " q"], window: int
    ) -> tuple[ProfileMemory, Float[Array, "w q"]]:
        ahead = jnp.arange(1, window + 1)
        error = context - state.profile[state.phase]
        corrected = state.profile[(state.phase + ahead) % self.period] + error * self.decay ** ahead[:, None]
        return self._after(state, context), jnp.where(state.has_profile, corrected, context)

    def _after(self, state: ProfileMemory, context: Float[Array, " q"]) -> ProfileMemory:
        recent, phase = state.recent.append(context), (state.phase + 1) % self.period
        ended = phase == 0
        profile = jnp.where(ended, recent.mean_by_phase(self.period), state.profile)
        has_profile = jnp.where(ended, recent.seen >= self.period, state.has_profile)
        return ProfileMemory(recent, profile, has_profile, phase)


class FromFunction(AbstractCausalForecaster):
    """Any function of the recent contexts: fn(recent, window) -> forecasts of shape (window, q).

    `recent` holds the last `memory` contexts, y_t last; where fewer were seen, the earliest one is repeated before it. `fn`
    is a plain JAX function, or an `equinox.Module` with `__call__` if it has parameters of its own.

    Args:
        fn: takes the recent contexts (memory, q) and the window, gives forecasts (window, q).
        memory: how many contexts it sees. Default: 24.

    >>> import jax.numpy as jnp
    >>> trend = FromFunction(lambda y, window: y[-1] + jnp.arange(1, window + 1)[:, None] * (y[-1] - y[-2]), memory=2)
    >>> memory = trend.init(jnp.array([[1.0]]), window=2)
    >>> _, forecast = trend.step(memory, jnp.array([2.0]), window=2)
    >>> [float(y) for y in forecast.ravel()]
    [3.0, 4.0]
    """

    fn: Callable[..., Any]
    memory: int = eqx.field(static=True)

    def __init__(self, fn: Callable[..., Any], memory: int = 24):
        self.fn = as_pytree(fn)
        self.memory = memory

    def __check_init__(self):
        check_count("memory", self.memory)

    def init(self, history: Float[Array, "H q"], window: int) -> RecentContexts:
        return RecentContexts.from_history(history, self.memory)

    def step(
        self, state: RecentContexts, context: Float[Array, " q"], window: int
    ) -> tuple[RecentContexts, Float[Array, "w q"]]:
        state = state.append(context)
        earliest = self.memory - state.seen
        recent = state.contexts[jnp.maximum(jnp.arange(self.memory), earliest)]
        forecast = jnp.asarray(self.fn(recent, window))
        wanted = (window, context.shape[0])
        if forecast.shape != wanted:
            raise ValueError(f"FromFunction's fn must return forecasts of shape {wanted}, got {forecast.shape}.")
        return state, forecast.astype(context.dtype)
