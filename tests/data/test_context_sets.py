"""Splits, windows, days and histories: every index checked on contexts that are their own position."""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest

from ecl2o.data import Contexts, Repairs, SeriesMetadata, Split
from ecl2o.exceptions import DataError


def counting(hours=100 * 24 + 5, q=1, **options) -> Contexts:
    """Context t is t (and t + 0.5 in a second column)."""
    values = np.arange(float(hours))[:, None] + 0.5 * np.arange(q)
    return Contexts(values, pd.date_range("2015-01-01", periods=hours, freq="h"), **options)


def test_training_windows_are_all_that_fit_with_the_hour_before():
    windows = jax.device_get(counting().training_windows())
    assert windows.contexts.shape == (1416, 24, 1)
    assert np.array_equal(windows.x0[:, 0], np.arange(1416.0))
    assert np.array_equal(windows.contexts[:, 0, 0], np.arange(1.0, 1417.0))
    assert float(windows.contexts.max()) == 1439  # the last training hour, and none beyond
    assert windows.history is None
    assert windows.contexts.dtype == np.float64


@pytest.mark.parametrize(("steps", "history"), [(24, 336), (96, 336), (96, 0), (24, 1)])
def test_windows_with_history_leave_out_those_that_begin_too_early(steps, history):
    windows = jax.device_get(counting(q=2).training_windows(steps, history))
    n = 1440 - steps - max(history, 1) + 1
    assert windows.contexts.shape == (n, steps, 2)
    assert float(windows.contexts.max()) == 1439.5
    assert np.array_equal(windows.contexts[:, 0] - 1, windows.x0)
    if history:
        assert windows.history is not None
        assert windows.history.shape == (n, history, 2)
        assert np.array_equal(windows.history[:, -1], windows.x0)
        assert windows.history[0, 0, 0] == 0
        assert np.array_equal(np.diff(windows.history, axis=1), np.ones((n, history - 1, 2)))


def test_validation_and_test_days_follow_each_other():
    contexts = counting()
    assert contexts.n_days == 100  # the five hours left over are no day
    validation, test = contexts.validation_days(48), contexts.test_days(336)
    assert validation.days.shape == (30, 24, 1)
    assert test.days.shape == (10, 24, 1)
    assert (validation.x0[0], validation.days[0, 0, 0], validation.days[-1, -1, 0]) == (1439, 1440, 2159)
    assert (test.x0[0], test.days[0, 0, 0], test.days[1, 0, 0], test.days[-1, -1, 0]) == (2159, 2160, 2184, 2399)
    assert test.history is not None
    assert test.history[[0, -1], 0].tolist() == [2160 - 336, 2159]
    assert contexts.test_days().history is None
    assert str(contexts.test_time()[0]) == "2015-04-01 00:00:00"
    assert len(contexts.test_time()) == 240


def test_other_steps_per_day_and_splits():
    contexts = counting(hours=20 * 48, steps_per_day=48, split=Split(10, 5))
    assert contexts.training_windows().contexts.shape == (480 - 48, 48, 1)
    assert contexts.test_days().days.shape == (5, 48, 1)


def test_scaling_is_remembered_and_looks_at_training_only():
    contexts = counting(q=2).scale_to(0.5)
    assert contexts.training.max() == 0.5
    assert contexts.values.max() > 0.5
    assert contexts.scale == pytest.approx(0.5 / 1439.5)
    assert contexts.scale_by(2.0).scale == pytest.approx(1 / 1439.5)
    below = dataclasses.replace(counting(), values=-counting().values)
    assert below.scale_to(0.5).training.min() == -0.5


def test_weights_are_not_scaled_and_do_not_say_by_how_much():
    """Here they are larger than what is followed."""
    told = SeriesMetadata(
        "a.csv", "", "time", "ISO 8601", ("y", "w"), (), 60.0, 24, False, Repairs(), weight_column="w"
    )
    contexts = counting(q=2, metadata=told)
    scaled = contexts.scale_to(1.0)
    assert scaled.training[:, 0].max() == 1
    assert np.array_equal(scaled.values[:, 1], contexts.values[:, 1])
    assert scaled.scale == pytest.approx(1 / 1439)


def test_refusals():
    with pytest.raises(DataError, match="has 90 whole days"):
        counting(hours=91 * 24 - 1)
    with pytest.raises(DataError, match="no window of 1440 steps"):
        counting().training_windows(1440)
    with pytest.raises(DataError, match="no window of 0 steps"):
        counting().training_windows(0)
    with pytest.raises(DataError, match="history_steps must be from 0 to 2160"):
        counting().test_days(2161)
    with pytest.raises(DataError, match="must be finite"):
        Contexts(np.full((2400, 1), np.nan), pd.date_range("2015", periods=2400, freq="h"))
    with pytest.raises(DataError, match="factor must be positive"):
        counting().scale_by(0.0)
    with pytest.raises(DataError, match="the split of the series has no days here"):
        counting(split=Split(10, 0)).validation_days()
    with pytest.raises(DataError, match=r"training_days must be at least 2 .* got 1 and 30"):
        Split(1)
