"""Forecasters of future contexts, for agents that plan: causal ones, and clairvoyant ones for study.

A causal forecaster sees one context at a time, like an agent; it works in rollouts and in the streaming runner. A clairvoyant one
reads the whole instance beforehand; every result made with it says so.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ecl2o.planning.given_leads import group_leads, spread_errors
from ecl2o.problem.arrays import as_float, as_pytree, check_count, check_fraction, check_nonnegative
from ecl2o.problem.recent_contexts import RecentContexts

ForecasterState = Any


class AbstractForecaster(eqx.Module):
    """The base class of all forecasters: predictions of the next `window` contexts."""


class AbstractCausalForecaster(AbstractForecaster):
    """A forecaster that uses past contexts only. Implement `init` and `step`, as for an agent.

    >>> import ecl2o as ec
    >>> class Half(AbstractCausalForecaster):
    ...     def init(self, history, window):
    ...         return None
    ...
    ...     def step(self, state, context, window):
    ...         return state, jnp.broadcast_to(context / 2, (window, context.shape[0]))
    >>> problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=1))
    >>> run = ec.rollout(ec.RHC(2), problem, ec.Instance([0.0], [[1.0], [2.0]]), forecaster=Half())
    >>> run.actions.shape
    (2, 1)
    """

    @abc.abstractmethod
    def init(self, history: Float[Array, "H q"], window: int) -> ForecasterState:
        """Return the state after the history, before the first context.

        Args:
            history: (H, q), the contexts before the first step; H may be 0.
            window: How many contexts each forecast covers.
        """

    @abc.abstractmethod
    def step(
        self, state: ForecasterState, context: Float[Array, " q"], window: int
    ) -> tuple[ForecasterState, Float[Array, "w q"]]:
        """Take in y_t and predict y_{t+1}..y_{t+window}.

        Args:
            state: What `init` or the previous step returned.
            context: (q,), y_t.
            window: As in `init`.

        Returns:
            The next state, and the forecasts (window, q).
        """


class AbstractClairvoyantForecaster(AbstractForecaster):
    """A forecaster that reads the future, for study and for bounds. Implement `prepare`."""

    @abc.abstractmethod
    def prepare(
        self, contexts: Float[Array, "T q"], window: int, key: PRNGKeyArray | None
    ) -> "AbstractPreparedForecast":
        """Read the contexts (T, q) of an instance; `key` is the one given to `rollout`."""


class AbstractPreparedForecast(eqx.Module):
    """The forecasts of a clairvoyant forecaster for one instance."""

    @abc.abstractmethod
    def at(self, step: Int[Array, ""]) -> Float[Array, "w q"]:
        """Return predictions (window, q) of the contexts after `step`, counted from 0."""


class Persistence(AbstractCausalForecaster):
    """Forecast that the present context stays: every forecast is y_t.

    >>> Persistence().step(None, jnp.array([7.0]), window=2)[1].tolist()
    [[7.0], [7.0]]
    """

    def init(self, history: Float[Array, "H q"], window: int) -> None:
        return None

    def step(self, state: None, context: Float[Array, " q"], window: int) -> tuple[None, Float[Array, "w q"]]:
        return state, jnp.broadcast_to(context, (window, context.shape[0]))


class SeasonalNaive(AbstractCausalForecaster):
    """Forecast the last context at the same phase of the period; y_t if the phase has not been seen.

    Args:
        period: Steps in a period. Default: 24.

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
        ahead = jnp.arange(window) % self.period  # the oldest context in the buffer has the phase of t + 1
        return state, jnp.where(state.was_seen[ahead, None], state.contexts[ahead], context)


class ProfileState(eqx.Module):
    """The state of `RollingProfile`: recent contexts, the profile, whether one period was seen, and the next context's phase."""

    recent: RecentContexts
    profile: Float[Array, "period q"]
    has_profile: Bool[Array, ""]
    phase: Int[Array, ""]


class RollingProfile(AbstractCausalForecaster):
    """Forecast the mean of the last days at the same hour, plus the present error, which decays (docs/algorithms.md).

    With the profile p of the last `days` periods and e_t = y_t - p_t, the forecast of y_{t+j} is p_{t+j} + e_t decay^j. Periods
    count from the first step, so a history must end where a period ends. The profile is updated at the end of each period, from
    as many as there are; before the first full period the forecast is y_t.

    Args:
        days: Periods in the mean. Default: 7.
        decay: The share of the present error that remains a step later, in [0, 1]. Default: 0.9.
        period: Steps in a period. Default: 24.

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

    def init(self, history: Float[Array, "H q"], window: int) -> ProfileState:
        recent = RecentContexts.from_history(history, self.days * self.period)
        return ProfileState(recent, recent.mean_by_phase(self.period), recent.seen >= self.period, jnp.array(0))

    def step(
        self, state: ProfileState, context: Float[Array, " q"], window: int
    ) -> tuple[ProfileState, Float[Array, "w q"]]:
        ahead = jnp.arange(1, window + 1)
        error = context - state.profile[state.phase]
        corrected = state.profile[(state.phase + ahead) % self.period] + error * self.decay ** ahead[:, None]
        return self._after(state, context), jnp.where(state.has_profile, corrected, context)

    def _after(self, state: ProfileState, context: Float[Array, " q"]) -> ProfileState:
        recent, phase = state.recent.append(context), (state.phase + 1) % self.period
        ended = phase == 0
        profile = jnp.where(ended, recent.mean_by_phase(self.period), state.profile)
        has_profile = jnp.where(ended, recent.seen >= self.period, state.has_profile)
        return ProfileState(recent, profile, has_profile, phase)


class Given(AbstractCausalForecaster):
    """Forecast by covariates: the last numbers of a context are predictions of its first number, made elsewhere.

    Their errors against a rolling profile are linear between the leads, and decay after the last. Several forecasts of one lead,
    such as quantiles, are averaged. Other numbers of a context follow the profile.

    Args:
        leads: Of each of the last numbers: the steps ahead that it predicts; None for one that predicts nothing.
        profile: The rolling profile. Default: of the last 7 days of 24 steps.

    >>> given = Given(leads=(2,))
    >>> memory = given.init(jnp.zeros((0, 2)), window=3)
    >>> _, forecast = given.step(memory, jnp.array([1.0, 5.0]), window=3)
    >>> [round(float(y), 2) for y in forecast[:, 0]]  # without a profile, the present context takes its place
    [3.0, 5.0, 4.6]
    """

    leads: tuple[int | None, ...] = eqx.field(static=True)
    profile: RollingProfile = eqx.field(default_factory=RollingProfile)

    def __check_init__(self):
        if not group_leads(self.leads):
            raise ValueError(f"leads must have the steps ahead of at least one forecast, got {self.leads}.")

    def init(self, history: Float[Array, "H q"], window: int) -> ProfileState:
        return self.profile.init(history, window)

    def step(
        self, state: ProfileState, context: Float[Array, " q"], window: int
    ) -> tuple[ProfileState, Float[Array, "w q"]]:
        after, forecast = self.profile.step(state, context, window)
        period, given, groups = (
            self.profile.period,
            context[context.shape[0] - len(self.leads) :],
            group_leads(self.leads),
        )
        steps = 1 + max(window, *(lead for group in groups for _, lead in group))
        phases = (state.phase + jnp.arange(steps)) % period
        path = jnp.where(state.has_profile, state.profile[phases, 0], context[0])
        errors = jnp.zeros((steps,), context.dtype)
        for group in groups:
            places, leads = map(list, zip(*group, strict=True))
            known = jnp.append(context[0] - path[0], given[np.array(places)] - path[np.array(leads)])
            errors += jnp.asarray(spread_errors(leads, steps, period), context.dtype) @ known / len(groups)
        return after, forecast.at[:, 0].set((path + errors)[1 : window + 1])


class FromFunction(AbstractCausalForecaster):
    """Forecast by any function of the recent contexts.

    Args:
        fn: Maps the recent contexts (memory, q), y_t last, and the window to forecasts (window, q). Until `memory` contexts have
            been seen, the earliest one is repeated. An `equinox.Module` with `__call__` if it has parameters.
        memory: How many contexts `fn` sees. Default: 24.

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


class Slices(AbstractPreparedForecast):
    """The contexts themselves, read by slicing without a table of T x window entries."""

    padded: Float[Array, "steps q"]
    window: int = eqx.field(static=True)

    def at(self, step: Int[Array, ""]) -> Float[Array, "w q"]:
        return jax.lax.dynamic_slice_in_dim(self.padded, step + 1, self.window)


class Exact(AbstractClairvoyantForecaster):
    """Forecast the true contexts; beyond the horizon the last one is repeated.

    >>> Exact().prepare(jnp.array([[1.0], [2.0], [3.0]]), window=2, key=None).at(jnp.array(0)).tolist()
    [[2.0], [3.0]]
    """

    def prepare(self, contexts: Float[Array, "T q"], window: int, key: PRNGKeyArray | None) -> Slices:
        beyond = jnp.broadcast_to(contexts[-1], (window, contexts.shape[1]))
        return Slices(jnp.concatenate([contexts, beyond]), window)


class FilteredNoise(AbstractPreparedForecast):
    """The contexts plus noise that accumulates over the distance of the forecast."""

    truth: Slices
    shocks: Float[Array, "steps q"]
    filter: Float[Array, "w w"]

    def at(self, step: Int[Array, ""]) -> Float[Array, "w q"]:
        shocks = jax.lax.dynamic_slice_in_dim(self.shocks, step + 1, self.truth.window)
        return self.truth.at(step) + self.filter @ shocks


class NoisyExact(AbstractClairvoyantForecaster):
    """Forecast the true contexts plus the filtered noise of Chen et al. (2016).

    The forecast of y_s made at t is y_s + sigma (e_s + g e_{s-1} + ... + g^(s-t-1) e_{t+1}), with g = `decay`. The standard
    normal shocks e_s are the same for every t, so later forecasts are never worse. They come from the `key` given to
    `rollout`, which must be a different one for each instance of a set.

    Args:
        sigma: The standard deviation of a shock, in the units of the contexts.
        decay: g, in [0, 1]. Default: 0.9.

    >>> contexts = jnp.array([[1.0], [2.0], [3.0]])
    >>> NoisyExact(sigma=0.1).prepare(contexts, window=2, key=jax.random.key(0)).at(jnp.array(0)).shape
    (2, 1)
    """

    sigma: Float[Array, ""] = eqx.field(converter=as_float)
    decay: Float[Array, ""] = eqx.field(converter=as_float, default=0.9)

    def __check_init__(self):
        check_nonnegative("sigma", self.sigma)
        check_fraction("decay", self.decay)

    def prepare(self, contexts: Float[Array, "T q"], window: int, key: PRNGKeyArray | None) -> FilteredNoise:
        if key is None:
            raise ValueError("NoisyExact draws noise and needs a key: rollout(..., key=jax.random.key(0)).")
        truth = Exact().prepare(contexts, window, None)
        shocks = jax.random.normal(key, truth.padded.shape, contexts.dtype)
        age = jnp.arange(window)[:, None] - jnp.arange(window)[None, :]
        weights = jnp.where(age >= 0, self.decay ** jnp.maximum(age, 0), 0.0)
        return FilteredNoise(truth, shocks, self.sigma * weights)
