"""The two pipelines from weather to contexts, against the reference and against plain re-computations."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from weather_texts import psm_text, weather_table

from ecl2o.data import Split, built_in_weather, hann_smooth, read_weather, weather_contexts
from ecl2o.exceptions import DataError

REFERENCE = Path(__file__).parents[1] / "reference" / "riverside_2015.json"

SITES = {
    "riverside": "nsrdb_riverside_2015.csv",
    "bakersfield": "nsrdb_bakersfield_2012.csv",
    "golden": "nsrdb_golden_2012.csv",
}


def raw_columns(path) -> tuple[np.ndarray, ...]:
    table = pd.read_csv(path, skiprows=2)
    return tuple(table[name].to_numpy(float) for name in ("Wind Speed", "GHI", "Temperature"))


def test_authors_code_reproduces_the_reference(shared):
    reference = json.loads(REFERENCE.read_text())["context"]
    contexts = weather_contexts(shared / "data" / SITES["riverside"], preset="authors-code")
    values = contexts.values[:, 0]
    assert len(values) == reference["hours"]
    assert np.allclose(values[:5], reference["first5"], rtol=0, atol=1e-9)
    assert values.mean() == pytest.approx(reference["mean"], abs=1e-9)
    assert values.std() == pytest.approx(reference["std"], abs=1e-9)
    test = contexts.test_days()
    assert test.days.shape == (reference["test_days"], 24, 1)
    assert test.x0[0] == pytest.approx(reference["x0_test"], abs=1e-9)
    assert contexts.base_shortage == 20_000
    assert contexts.training_windows().contexts.shape == (1416, 24, 1)


def test_paper_preset_is_the_formula_on_hourly_means(shared):
    path = shared / "data" / SITES["riverside"]
    wind, ghi, temperature = (column.reshape(-1, 2).mean(axis=1) for column in raw_columns(path))
    renewables = 92_250 * wind**3 + 500 * ghi * np.clip(1 - 0.05 * (temperature - 25), 0, None)
    contexts = weather_contexts(path, preset="paper")
    assert np.allclose(contexts.values[:, 0], np.maximum(2e6 - renewables, 0) / 2e6, rtol=0, atol=1e-12)
    assert contexts.base_shortage == 2e6
    assert str(contexts.time[1]) == "2015-01-01 01:00:00-08:00"
    assert 0.22 < np.mean(contexts.values == 0) < 0.24


@pytest.mark.parametrize("site", ["bakersfield", "golden"])
def test_auto_gives_other_sites_riversides_share_of_zeros(shared, site):
    path = shared / "data" / SITES[site]
    wind, ghi, temperature = raw_columns(path)
    renewables = 922.5 * wind**3 + 10 * ghi * (1 - 0.05 * (temperature - 25))
    base = np.percentile(renewables[:1440], 76.5)
    authors = weather_contexts(path, base_shortage="auto")
    smooth = hann_smooth(np.maximum(base - renewables, 0), 7)
    assert authors.base_shortage == pytest.approx(base, rel=1e-12)
    assert np.allclose(authors.values[:, 0], 0.8 * smooth / smooth.max(), rtol=0, atol=1e-12)
    paper = weather_contexts(path, preset="paper", base_shortage="auto")
    assert np.mean(paper.training == 0) == pytest.approx(0.235, abs=0.001)


def test_windows_that_cost_the_oracle_nothing_are_as_many_as_section_9_counts(shared):
    expected = {
        ("golden", "authors-code"): 41,
        ("golden", "paper"): 50,
        ("bakersfield", "authors-code"): 8,
        ("bakersfield", "paper"): 12,
    }
    for (site, preset), count in expected.items():
        windows = weather_contexts(shared / "data" / SITES[site], preset, "auto").training_windows()
        free = (np.asarray(windows.contexts) == 0).all(axis=(1, 2)) & (np.asarray(windows.x0) == 0).all(axis=1)
        assert free.sum() == count


@pytest.mark.parametrize("preset", ["paper", "authors-code"])
def test_built_in_weather_is_smoothed_over_seven_hours(preset):
    frame, _ = built_in_weather()
    area, factor, array = (500_000, 0.5, 10_000) if preset == "paper" else (5_000, 1.0, 100)
    derating = 1 - 0.05 * (frame["temperature"] - 25)
    renewables = (
        0.5 * 0.3 * 1.23 * area * frame["wind_speed"] ** 3
        + factor * 0.1 * array * frame["ghi"] * (derating.clip(lower=0) if preset == "paper" else derating)
    ).to_numpy()
    base = np.percentile(renewables[:1440], 76.5)
    smooth = hann_smooth(np.maximum(base - renewables, 0), 7)
    contexts = weather_contexts(None, preset)
    assert contexts.base_shortage == pytest.approx(base, rel=1e-12)
    scale = 1 / base if preset == "paper" else 0.8 / smooth.max()
    assert np.allclose(contexts.values[:, 0], smooth * scale, rtol=0, atol=1e-12)
    assert contexts.scale == pytest.approx(scale)
    assert contexts.n_days == 365


def test_smoothing_is_the_stated_convolution():
    x = np.random.default_rng(0).normal(size=60)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(15) / 14)
    mirrored = np.concatenate([x[14:0:-1], x, x[-2:-16:-1]])
    whole = [sum(window[j] * mirrored[i + j] for j in range(15)) / window.sum() for i in range(60 + 14)]
    assert np.allclose(hann_smooth(x, 15), whole[7 : 7 + 60])
    assert np.allclose(hann_smooth(np.full(30, 2.0), 7), 2.0)
    with pytest.raises(ValueError, match="odd"):
        hann_smooth(x, 8)


def test_files_in_utc_are_cut_to_local_days(write):
    local, _ = read_weather(write(psm_text(weather_table(start="2014-12-31", days=95))))
    table = weather_table(start="2014-12-31 08:00", days=94)  # the same hours, stamped in UTC
    table[["GHI", "Temperature", "Wind Speed"]] = local.to_numpy()[: len(table)]
    utc = weather_contexts(write(psm_text(table, zone="0"), "utc.csv"), preset="paper")
    plain = weather_contexts(write(psm_text(weather_table(start="2014-12-31", days=94)), "local.csv"), preset="paper")
    assert utc.n_days == 94
    assert np.allclose(utc.values, plain.values)
    assert (utc.time == plain.time).all()
    shifted = weather_contexts(write(psm_text(weather_table(days=95), zone="0"), "cut.csv"), preset="paper")
    assert shifted.n_days == 94
    assert str(shifted.time[0]) == "2015-01-01 00:00:00-08:00"


def test_files_finer_than_half_hours_are_averaged(write):
    fine = weather_contexts(write(psm_text(weather_table(days=92, minutes=15))))
    assert fine.values.shape == (92 * 24, 1)
    with pytest.raises(DataError, match="3 rows an hour"):
        weather_contexts(write(psm_text(weather_table(days=92, minutes=20))))


def test_bad_choices(write):
    path = write(psm_text(weather_table(days=92)))
    with pytest.raises(DataError, match="preset must be one of"):
        weather_contexts(path, preset="authors")
    for base in (0, -5.0, float("nan")):
        with pytest.raises(DataError, match="base_shortage must be positive"):
            weather_contexts(path, base_shortage=base)
    with pytest.raises(DataError, match="no shortage at all"):
        weather_contexts(path, base_shortage=1e-9)


@pytest.mark.parametrize("preset", ["authors-code", "paper"])
def test_hours_of_a_day_that_is_not_whole_have_no_influence(write, preset):
    """A file in UTC begins and ends within a local day. Whether it is calm after the last midnight changes nothing."""
    table = weather_table(days=8, minutes=30)
    calm_at_last = table.copy()
    calm_at_last.loc[calm_at_last.index[-32:], ["Wind Speed", "GHI"]] = 0.0  # from midnight of the last local day on
    options = {"base_shortage": 1e4, "preset": preset, "split": Split(3, 2)}
    found, other = (
        weather_contexts(write(psm_text(t, zone="0", local_zone="-8"), f"{name}.csv"), **options)
        for name, t in (("windy", table), ("calm", calm_at_last))
    )
    assert len(found.values) == 7 * 24
    assert (found.time[0].hour, found.time[-1].hour) == (0, 23)
    np.testing.assert_array_equal(found.values, other.values)
