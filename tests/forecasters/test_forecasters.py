"""Forecasters beside plain-Python referees; the same offline and step by step; none peeks."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecl2o as ec
from ecl2o.agents import AbstractAgent, Info
from ecl2o.forecasters import Exact, FromFunction, NoisyExact, Persistence, RollingProfile, SeasonalNaive

T, WINDOW, Q = 11, 7, 2
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=1.0, dim=Q))


class Listener(AbstractAgent):
    """Does nothing but report what it was told about the future."""

    window: int = eqx.field(static=True)

    @property
    def lookahead(self) -> int:
        return self.window

    def init(self, problem, start) -> Any:
        return None

    def step(self, problem, state, observation):
        return state, observation.previous_action, Info(jnp.ones((), bool), details={"forecast": observation.forecast})


def told(forecaster, contexts, history=None, key=None, window=WINDOW):
    """(T, window, q): the forecasts that an agent gets in a roll-out."""
    instance = ec.Instance(np.zeros(contexts.shape[1], contexts.dtype), contexts, history)
    return np.asarray(
        ec.rollout(Listener(window), PROBLEM, instance, forecaster, key).info.details["forecast"], np.float64
    )


def draws(steps, seed=0):
    return np.random.default_rng(seed).normal(size=(steps, Q))


def smooth_average(recent, window):
    return jnp.mean(recent, axis=0) + 0.1 * jnp.arange(1, window + 1)[:, None]


CAUSAL = {
    "persistence": Persistence(),
    "seasonal": SeasonalNaive(period=4),
    "profile": RollingProfile(days=2, decay=0.7, period=4),
    "function": FromFunction(smooth_average, memory=3),
}


# --- offline and online, and no peeking -----------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [0, 3, 8])
@pytest.mark.parametrize("name", CAUSAL)
def test_offline_equals_online(name, seen):
    forecaster, contexts, history = CAUSAL[name], draws(T), draws(seen, seed=1)
    step = jax.jit(lambda memory, context: forecaster.step(memory, context, WINDOW))
    memory, online = jax.jit(lambda history: forecaster.init(history, WINDOW))(history), []
    for context in contexts:
        memory, forecast = step(memory, context)
        online.append(forecast)
    np.testing.assert_allclose(told(forecaster, contexts, history if seen else None), online, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_forecasters_do_not_peek(name):
    contexts, forecasts = draws(T), told(CAUSAL[name], draws(T), draws(8, seed=1))
    for t in range(1, T):
        changed = np.concatenate([contexts[:t], -3 * contexts[t:] + 1])
        other = told(CAUSAL[name], changed, draws(8, seed=1))
        np.testing.assert_array_equal(other[:t], forecasts[:t])
        assert np.abs(other[t:] - forecasts[t:]).max() > 0.1


@pytest.mark.parametrize("forecaster", [Exact(), NoisyExact(sigma=0.3, decay=0.5)])
def test_clairvoyant_forecasters_see_no_further_than_their_window(forecaster):
    contexts, key, window = draws(T), jax.random.key(3), 2
    forecasts = told(forecaster, contexts, key=key, window=window)
    for t in range(T - window - 1):
        changed = np.concatenate([contexts[: t + window + 1], 5 + contexts[t + window + 1 :]])
        other = told(forecaster, changed, key=key, window=window)
        np.testing.assert_array_equal(other[: t + 1], forecasts[: t + 1])
        assert np.abs(other[t + 1] - forecasts[t + 1]).max() > 1


@pytest.mark.parametrize("name", CAUSAL)
def test_single_precision_stays_single(name):
    contexts, history = draws(T).astype(np.float32), draws(8, seed=1).astype(np.float32)
    instance = ec.Instance(np.zeros(Q, np.float32), contexts, history)
    run = ec.rollout(Listener(WINDOW), PROBLEM, instance, CAUSAL[name])
    assert run.info.details["forecast"].dtype == jnp.float32


# --- each beside its definition --------------------------------------------------------------------------------------


def test_exact_is_the_future():
    contexts = draws(T)
    forecasts = told(Exact(), contexts)
    for t in range(T):
        for j in range(1, WINDOW + 1):
            np.testing.assert_array_equal(forecasts[t, j - 1], contexts[min(t + j, T - 1)])


def test_persistence():
    contexts = draws(T)
    np.testing.assert_array_equal(told(Persistence(), contexts), np.repeat(contexts[:, None], WINDOW, axis=1))


@pytest.mark.parametrize("seen", [0, 3, 8])
def test_seasonal_naive_repeats_the_last_context_of_the_phase(seen):
    period, contexts, history = 4, draws(T), draws(seen, seed=1)
    everything = np.concatenate([history, contexts])
    forecasts = told(SeasonalNaive(period), contexts, history if seen else None)
    for t in range(T):
        now = seen + t
        for j in range(1, WINDOW + 1):
            same_phase = [s for s in range(now + 1) if (now + j - s) % period == 0]
            expected = everything[same_phase[-1]] if same_phase else everything[now]
            np.testing.assert_array_equal(forecasts[t, j - 1], expected)


def profile_referee(everything, seen, now, ahead, *, days, decay, period):
    """Section 9 in words: the mean of the last whole days at that hour, plus the present error times decay^j."""
    midnight = now - (now - seen) % period  # days are counted from the first step, which has index `seen`
    kept = range(max(0, midnight - days * period), midnight)
    if len(kept) < period:
        return everything[now]

    def profile(s):
        return np.mean([everything[i] for i in kept if (s - i) % period == 0], axis=0)

    return profile(now + ahead) + (everything[now] - profile(now)) * decay**ahead


@pytest.mark.parametrize("seen", [0, 3, 4, 6, 8, 12])
def test_rolling_profile_is_the_profile_plus_a_fading_error(seen):
    settings = {"days": 2, "decay": 0.7, "period": 4}
    contexts, history = draws(T), draws(seen, seed=1)
    everything = np.concatenate([history, contexts])
    forecasts = told(RollingProfile(**settings), contexts, history if seen else None)
    for t in range(T):
        for j in range(1, WINDOW + 1):
            expected = profile_referee(everything, seen, seen + t, j, **settings)
            np.testing.assert_allclose(forecasts[t, j - 1], expected, rtol=0, atol=1e-14)


def test_rolling_profile_is_the_same_in_one_run_and_day_by_day():
    forecaster, everything = RollingProfile(days=2, decay=0.7, period=4), draws(8 + 12)
    at_once = told(forecaster, everything[8:], everything[:8])
    by_day = [told(forecaster, everything[s : s + 4], everything[s - 8 : s]) for s in (8, 12, 16)]
    np.testing.assert_allclose(at_once, np.concatenate(by_day), rtol=0, atol=1e-14)


def test_rolling_profile_knows_a_periodic_series():
    day = draws(24)
    forecasts = told(RollingProfile(), np.tile(day, (2, 1)), np.tile(day, (7, 1)), window=30)
    expected = [[day[(t + j) % 24] for j in range(1, 31)] for t in range(48)]
    np.testing.assert_allclose(forecasts, expected, rtol=0, atol=1e-13)


def test_function_sees_the_recent_contexts_and_repeats_the_earliest():
    recent = FromFunction(lambda y, window: y[:window], memory=WINDOW)
    contexts = draws(T)
    forecasts = told(recent, contexts)
    for t in range(T):
        expected = [contexts[max(0, t - WINDOW + 1 + i)] for i in range(WINDOW)]
        np.testing.assert_array_equal(forecasts[t], expected)


def test_function_may_have_parameters_that_are_differentiated():
    class Scaled(eqx.Module):
        gain: jax.Array

        def __call__(self, recent, window):
            return jnp.broadcast_to(self.gain * recent[-1], (window, recent.shape[1]))

    instance = ec.Instance(np.zeros(Q), draws(T))

    def cost(gain):
        return ec.rollout(ec.RHC(2), PROBLEM, instance, FromFunction(Scaled(gain), memory=1)).cost

    slope = (cost(0.8 + 1e-5) - cost(0.8 - 1e-5)) / 2e-5
    np.testing.assert_allclose(jax.grad(cost)(jnp.asarray(0.8)), slope, rtol=1e-6)
    assert abs(slope) > 1e-3


# --- filtered noise ---------------------------------------------------------------------------------------------------


def test_noise_is_the_filtered_sum_of_the_same_shocks():
    sigma, g, contexts, key = 0.3, 0.6, draws(T), jax.random.key(5)
    forecasts = told(NoisyExact(sigma, g), contexts, key=key)
    # the shocks, from the forecasts one step ahead: y_s + sigma e_s
    shocks = {t + 1: (forecasts[t, 0] - contexts[t + 1]) / sigma for t in range(T - 1)}
    for t in range(T):
        for s in range(t + 1, min(t + WINDOW, T - 1) + 1):
            noise = sum(g ** (j - 1) * shocks[s + 1 - j] for j in range(1, s - t + 1))
            np.testing.assert_allclose(forecasts[t, s - t - 1], contexts[s] + sigma * noise, rtol=0, atol=1e-12)


def test_noise_has_the_variance_of_the_filter():
    sigma, g = 0.5, 0.8
    keys = jax.random.split(jax.random.key(0), 4000)
    prepare = jax.vmap(lambda key: NoisyExact(sigma, g).prepare(jnp.zeros((3, 1)), 3, key).at(jnp.asarray(0)))
    forecasts = np.asarray(prepare(keys))[:, :, 0]
    expected = sigma * np.sqrt(np.cumsum(g ** (2 * np.arange(3))))
    np.testing.assert_allclose(forecasts.std(axis=0), expected, rtol=0.05)
    assert np.abs(forecasts.mean(axis=0)).max() < 4 * expected.max() / np.sqrt(4000)


def test_noise_of_size_zero_is_exact_and_keys_matter():
    contexts = draws(T)
    np.testing.assert_array_equal(told(NoisyExact(0.0), contexts, key=jax.random.key(1)), told(Exact(), contexts))
    one, two = (told(NoisyExact(0.1, 0.0), contexts, key=jax.random.key(k)) for k in (1, 2))
    assert np.abs(one - two).min() > 0
    np.testing.assert_array_equal(one, told(NoisyExact(0.1, 0.0), contexts, key=jax.random.key(1)))


def test_vmapped_instances_have_their_own_noise():
    instances = ec.Instance(np.zeros((2, Q)), np.zeros((2, T, Q)))
    keys = jax.random.split(jax.random.key(0))
    run = jax.vmap(lambda s, key: ec.rollout(ec.RHC(3), PROBLEM, s, NoisyExact(0.3), key))(instances, keys)
    one, other = np.asarray(run.actions)
    assert np.abs(one - other).max() > 0.01


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_noise_without_a_key_is_refused():
    with pytest.raises(ValueError, match="key"):
        told(NoisyExact(0.1), draws(T))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SeasonalNaive(period=0), "period"),
        (lambda: RollingProfile(days=0), "days"),
        (lambda: RollingProfile(period=2.5), "period"),
        (lambda: RollingProfile(decay=1.5), "decay must lie between 0 and 1, got 1.5"),
        (lambda: NoisyExact(sigma=-1.0), "sigma must not be negative"),
        (lambda: NoisyExact(sigma=1.0, decay=-0.5), "decay"),
        (lambda: FromFunction(smooth_average, memory=0), "memory"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_function_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"shape \(7, 2\), got \(2,\)"):
        told(FromFunction(lambda recent, window: recent[-1], memory=1), draws(T))
