"""The buffer of recent contexts against Python lists."""

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ecl2o.problem.recent_contexts import RecentContexts

PERIOD, DAYS = 3, 4


# Compiled once for each length of history: hypothesis calls them many times.
from_history = jax.jit(RecentContexts.from_history, static_argnums=1)
append = jax.jit(RecentContexts.append)
mean_by_phase = jax.jit(RecentContexts.mean_by_phase, static_argnums=1)


@given(st.integers(0, 20), st.integers(0, 15), st.integers(0, 2**31))
def test_the_mean_by_phase_is_that_of_what_was_seen(before, after, seed):
    """Whatever came as history and whatever one by one; where nothing was seen at a phase, the value for that."""
    contexts = np.random.default_rng(seed).normal(size=(before + after, 2))
    memory = from_history(contexts[:before], PERIOD * DAYS)
    for context in contexts[before:]:
        memory = append(memory, context)
    kept = contexts[-PERIOD * DAYS :]
    assert int(memory.seen) == len(kept)
    np.testing.assert_array_equal(np.asarray(memory.contexts)[PERIOD * DAYS - len(kept) :], kept)
    otherwise = np.array([7.0, -7.0])
    found = np.asarray(mean_by_phase(memory, PERIOD, otherwise=otherwise))
    for ahead in range(PERIOD):
        same_phase = kept[::-1][
            PERIOD - 1 - ahead :: PERIOD
        ]  # a period before the context that is so far ahead, and so on
        expected = same_phase.mean(axis=0) if len(same_phase) else otherwise
        np.testing.assert_allclose(found[ahead], expected, rtol=1e-12, atol=1e-12)
