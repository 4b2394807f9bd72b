"""pandas in, pandas out: the same recipe as for files, the same refusals, and actions that do not see the future."""

import dataclasses

import jax
import matplotlib
import numpy as np
import pandas as pd
import pytest
import sklearn.base

import ecl2o as ec
from ecl2o.data import Split, frame_series, read_series, series_contexts
from ecl2o.exceptions import DataError
from ecl2o.fitting import pipeline
from ecl2o.fitting.settings import FitSettings, PromiseSpec

STEPS, DAYS = 4, 20
SMALL = {"training_days": 12, "validation_days": 4, "steps": 3}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    steps = np.arange(DAYS * STEPS)
    noise = np.random.default_rng(2).normal(size=len(steps))
    wave = 5e6 * (3 + np.sin(2 * np.pi * steps / STEPS) + 0.3 * noise)
    return pd.DataFrame({"y0": wave}, pd.date_range("2024-01-01", periods=len(steps), freq="6h", name="time"))


@pytest.fixture(scope="module")
def fitted(frame) -> ec.SeriesPolicy:
    return ec.fit_series(frame, promise=2.0, per="day", advisor="lstm", **SMALL)


def test_it_is_the_recipe_of_the_command(frame, fitted, tmp_path):
    """A file of the same numbers gives the same figures, to the last bit."""
    frame.to_csv(tmp_path / "own.csv")
    contexts = series_contexts(*read_series(tmp_path / "own.csv"), Split(12, 4))
    found = pipeline.fit_contexts(contexts, FitSettings(10.0, "lstm", PromiseSpec(2.0, "day"), 3))
    mine, theirs = fitted.fitted_, found
    assert mine.candidates == theirs.candidates
    for a, b in zip(mine.comparison, theirs.comparison, strict=True):
        assert (a.average_cost, a.competitive_ratio, a.live_ratio) == (
            b.average_cost,
            b.competitive_ratio,
            b.live_ratio,
        )
    assert mine.policy.fingerprint == theirs.policy.fingerprint
    assert mine.policy.contract.columns == ["y0"]


def test_predict_does_not_see_the_future_and_is_what_step_does(frame, fitted):
    test = frame.iloc[16 * STEPS :]
    whole = fitted.predict(test)
    assert whole.index.equals(test.index)
    assert list(whole.columns) == ["y0"]
    changed = test.copy()
    changed.iloc[5:] += 1e7
    np.testing.assert_array_equal(fitted.predict(changed).iloc[:5], whole.iloc[:5])
    assert (fitted.predict(changed).iloc[5:] != whole.iloc[5:]).all().all()
    later = pd.DataFrame({"y0": [1e7, 2e7]}, frame.index[-1] + pd.to_timedelta([6, 12], "h"))
    fitted.reset()
    stepped = [fitted.step(row) for row in later["y0"]]
    assert fitted.live_ratio <= 2.0 * (1 + 1e-9)
    np.testing.assert_array_equal(fitted.predict(later), stepped)


def test_it_works_in_64_bits_whatever_jax_does(frame, fitted):
    test = frame.iloc[16 * STEPS :]
    expected = fitted.predict(test)
    with jax.enable_x64(False):
        np.testing.assert_array_equal(fitted.predict(test), expected)


def test_it_prints_and_draws_itself(fitted):
    matplotlib.use("agg")
    own, table = fitted.fitted_.own, fitted.table_
    assert own.name == f"{fitted.fitted_.chosen.name} (yours)"
    assert own.name in str(fitted)
    assert table.loc[own.name, ["mean cost", "highest cost"]].tolist() == [own.mean_cost, own.highest_cost]
    assert table.loc[own.name, "validation"] == fitted.fitted_.chosen.average_cost
    assert f"{own.mean_cost:,.0f}" in str(fitted)
    assert f"{own.average_cost:.3f} times its optimum" in str(fitted)  # a daily promise does not bound the run
    assert str(ec.Promise(2.0, period=4)) in str(fitted)
    assert fitted._repr_html_().count("<tr") == 1 + len(fitted.table_)
    axes = fitted.plot()
    assert [text.get_text() for text in axes[1].get_yticklabels()] == list(fitted.table_.index)
    matplotlib.pyplot.close("all")


def test_scikit_learn_can_clone_it(fitted):
    other = sklearn.base.clone(fitted).set_params(alpha=3.0)
    assert other.get_params() == fitted.get_params() | {"alpha": 3.0}
    assert repr(other) == str(other) != str(fitted)
    with pytest.raises(ValueError, match="not fitted yet"):
        other.step(1.0)
    with pytest.raises(ValueError, match="unknown settings: colour"):
        other.set_params(colour=1)


def test_a_saved_policy_is_the_fitted_one(fitted, tmp_path):
    ec.save(tmp_path / "policy.ecl2o", fitted.policy_)
    assert ec.load(tmp_path / "policy.ecl2o").fingerprint == fitted.policy_.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.reset_index(), "DatetimeIndex"),
        (lambda f: f.iloc[:0], "no rows"),
        (lambda f: f.assign(y0="a lot"), "no column of the frame holds numbers"),
        (
            lambda f: f.assign(y0=f["y0"].mask(f.index == f.index[7])),
            "the frame, row 8, column 'y0': 'nan' is not a finite number",
        ),
        (lambda f: f.drop(f.index[7]), "row 8, column 'time'.* is missing"),
        (lambda f: f.iloc[::-1], "comes after"),
        (lambda f: pd.concat([f, f], axis=1), "more than once"),
        (lambda f: f, "20 whole days .* 91 are needed"),
        (lambda f: f.resample("D").mean(), "a day or more apart"),
    ],
)
def test_bad_frames_are_refused(frame, change, message):
    with pytest.raises(DataError, match=message):
        ec.fit_series(change(frame))


def test_a_repaired_frame_says_so(frame):
    repaired, metadata = frame_series(frame["y0"].mask(frame.index == frame.index[7]), fill="previous")
    assert metadata.repairs.values == 1
    assert repaired.iloc[7, 0] == frame.iloc[6, 0]
    assert metadata.columns == ("y0",)


def test_settings_that_do_not_go_together_are_refused(frame):
    with pytest.raises(ValueError, match="promise"):
        ec.fit_series(frame, per="day")
    with pytest.raises(ValueError, match="training_days"):
        ec.fit_series(frame, training_days=3)
    with pytest.raises(DataError, match="columns must name"):
        ec.fit_series(frame, columns=["y1"])
    assert dataclasses.is_dataclass(ec.SeriesPolicy)


def test_a_column_of_weights(frame):
    """The price is not followed, and a row of the frame with it is what a step sees, and what a file of it would be fitted to."""
    price = pd.Series(1 + 0.5 * np.cos(np.arange(len(frame))), frame.index)
    priced = pd.DataFrame({"price": price, "y0": frame["y0"], "other": 1.0})
    terms = {
        "columns": ["y0"],
        "weight_column": "price",
        "weights": (0.4, 2.0),
        "advisor": "r-obd",
        "plausible": (0.0, 9e7),
    }
    fitted = ec.fit_series(priced, promise=3.5, **terms, **SMALL)
    contract = fitted.policy_.contract
    assert (contract.columns, contract.weight_column, contract.weights) == (["y0", "price"], "price", (0.4, 2.0))
    assert contract.plausible[0] == (0.0, 9e7)
    assert 0 < contract.plausible[1][0] < 0.5  # the prices' own range
    week = priced.iloc[-4:]
    done = fitted.predict(week)
    assert list(done.columns) == ["y0"]
    dear = fitted.predict(week.assign(price=2.0))
    missed, less = (np.abs(actions["y0"] - week["y0"]).sum() for actions in (done, dear))
    assert less < missed  # what costs more is missed by less
    before = priced.iloc[:4].set_axis(frame.index[:4] - pd.Timedelta("1D"))
    assert fitted.predict(before).shape == (4, 1)  # nothing came before, so that it begins where the first context is
    np.testing.assert_array_equal(fitted.step(week[["y0", "price"]].iloc[0]).shape, (1,))
    assert len(fitted.plot()[0].get_lines()) == 2
    matplotlib.pyplot.close("all")
    with pytest.raises(DataError, match="weight_column"):
        ec.fit_series(frame, weights=(0.4, 2.0), advisor="r-obd", **SMALL)
    with pytest.raises(DataError, match="columns must name columns of the frame"):
        ec.fit_series(frame, columns=["y0"], weight_column="price", advisor="r-obd", **SMALL)


def test_the_advice_for_a_frame_of_a_file_with_two_offsets_works(tmp_path):
    """pandas leaves such times as text; what the error says to do gives the same days as the file read by itself."""
    clock = pd.date_range("2024-02-20", "2024-03-25", freq="h", tz="America/New_York", inclusive="left")
    demand = 30 + 5 * np.sin(np.arange(len(clock)) * np.pi / 12) + np.random.default_rng(0).normal(size=len(clock))
    pd.DataFrame({"time": [time.isoformat() for time in clock], "demand": demand}).to_csv(
        tmp_path / "y.csv", index=False
    )
    frame, settings = pd.read_csv(tmp_path / "y.csv"), {"advisor": "r-obd", "training_days": 20, "validation_days": 5}
    with pytest.raises(DataError, match=r"pd\.to_datetime\(frame\.pop\('time'\)\)\), with utc=True"):
        ec.fit_series(frame, **settings)
    frame = frame.set_index(pd.to_datetime(frame.pop("time"), utc=True))
    fitted = ec.fit_series(frame, time_zone="America/New_York", **settings)
    whole, _ = read_series(tmp_path / "y.csv", time_zone="America/New_York")
    np.testing.assert_array_equal(fitted.contexts_.values, whole.to_numpy()[: len(fitted.contexts_.values)])
    assert fitted.contexts_.measured_days.sum() == fitted.contexts_.n_days - 1  # without the day of the change
    assert "1 imputed row" in str(fitted)
    naive = frame.set_axis(clock.tz_localize(None), axis="index")
    with pytest.raises(DataError, match="time_zone='America/New_York'"):
        ec.fit_series(naive, **settings)
    again = ec.fit_series(naive, time_zone="America/New_York", **settings)
    assert again.fitted_.own.average_cost == fitted.fitted_.own.average_cost
