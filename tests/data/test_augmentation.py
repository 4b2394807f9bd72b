"""Augmented windows: what was there stays, each kind changes what it says, seeds repeat, and a rule for P_s sees no test day."""

import numpy as np
import pytest

from ecl2o.data import augment_windows, authors_contexts, built_in_weather
from ecl2o.data.augmentation import AUGMENTATIONS
from ecl2o.exceptions import DataError
from ecl2o.problem import Instance


@pytest.fixture
def windows() -> Instance:
    rng = np.random.default_rng(0)
    return Instance(rng.random((200, 1)), rng.uniform(0.1, 0.8, (200, 24, 1)))


def longest_run_of_zeros(contexts: np.ndarray) -> int:
    longest = current = 0
    for value in contexts.ravel():
        current = current + 1 if value == 0 else 0
        longest = max(longest, current)
    return longest


def copies(windows: Instance, kind: str) -> tuple[np.ndarray, np.ndarray]:
    found = augment_windows(windows, [kind])
    assert found.contexts.shape == (400, 24, 1)
    np.testing.assert_array_equal(found.x0[:200], windows.x0)
    np.testing.assert_array_equal(found.contexts[:200], windows.contexts)
    return np.asarray(found.x0[200:]), np.asarray(found.contexts[200:])


def test_scaling_keeps_the_shape_of_a_window(windows):
    x0, contexts = copies(windows, "scale")
    factor = contexts / np.asarray(windows.contexts)
    np.testing.assert_allclose(factor, np.broadcast_to(factor[:, :1], factor.shape))
    np.testing.assert_allclose(x0, np.asarray(windows.x0) * factor[:, 0])
    assert 0.5 <= factor.min() < 0.6 < 1.4 < factor.max() <= 1.5


def test_starts_are_anywhere_and_contexts_unchanged(windows):
    x0, contexts = copies(windows, "start")
    np.testing.assert_array_equal(contexts, windows.contexts)
    assert 0 <= x0.min() < 0.1 < 0.7 < x0.max() <= np.asarray(windows.contexts).max()


def test_shifted_levels_stay_at_or_above_zero(windows):
    x0, contexts = copies(windows, "shift")
    moved = (contexts - np.asarray(windows.contexts))[:, :, 0]
    assert contexts.min() == x0.min() == 0
    whole = (contexts > 0).all(axis=(1, 2))
    assert np.ptp(moved[whole], axis=1).max() < 1e-12
    assert np.abs(moved).max() <= 0.3 * np.asarray(windows.contexts).max() + 1e-12


def test_spells_contain_days_of_wind_and_of_calm(windows):
    """Training has no run of zeros as long as a day: with spells it has."""
    x0, contexts = copies(windows, "spells")
    np.testing.assert_array_equal(x0, windows.x0)
    assert longest_run_of_zeros(np.asarray(windows.contexts)) == 0
    assert longest_run_of_zeros(contexts) >= 24
    changed = (contexts != np.asarray(windows.contexts))[:, :, 0]
    assert changed.sum(axis=1).min() >= 7  # a third of a window, less one value that may equal the level
    calm = contexts[(contexts.max(axis=(1, 2)) > 0) & changed.all(axis=1)]
    assert len(calm) > 0
    assert np.ptp(calm, axis=1).max() == 0
    assert contexts.max() <= np.asarray(windows.contexts).max()


def test_seeds_repeat_and_differ(windows):
    first, again, other = (augment_windows(windows, AUGMENTATIONS, seed).contexts for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.shape == (1000, 24, 1)


def test_no_kind_changes_nothing_and_bad_input_is_refused(windows):
    np.testing.assert_array_equal(augment_windows(windows, []).contexts, windows.contexts)
    with pytest.raises(DataError, match="noise"):
        augment_windows(windows, ["noise"])
    with pytest.raises(DataError, match="not negative"):
        augment_windows(Instance(windows.x0, -np.asarray(windows.contexts)), ["scale"])


def test_a_percentile_for_the_shortage_sees_training_days_only():
    frame, metadata = built_in_weather()
    before = authors_contexts(frame, metadata, "p99").base_shortage
    later = frame.copy()
    later.iloc[60 * 24 :] *= 2
    assert authors_contexts(later, metadata, "p99").base_shortage == before
    later.iloc[: 60 * 24] *= 2
    assert authors_contexts(later, metadata, "p99").base_shortage != before
    assert (
        authors_contexts(frame, metadata, "p76.5").base_shortage
        == authors_contexts(frame, metadata, "auto").base_shortage
    )
    for wrong in ("p101", "p", "99", "p-1"):
        with pytest.raises(DataError, match="percentile"):
            authors_contexts(frame, metadata, wrong)


def test_the_rule_on_riverside_is_a_hundred_kilowatts(shared):
    from ecl2o.data import weather_contexts

    found = weather_contexts(shared / "data" / "nsrdb_riverside_2015.csv", base_shortage="p99")
    assert found.base_shortage == pytest.approx(104.9e3, abs=100)
