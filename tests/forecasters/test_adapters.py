"""The functions of docs/forecasts-from-outside.md on answers of other tools.

`record.py` made the frames of statsforecast and mlforecast with these libraries. The answers of Chronos-2 and Open-Meteo are
written by hand in their documented form: neither can be called without weights or network.
"""

import json
from pathlib import Path

import pandas as pd
import pytest

from ecl2o.data import parse_covariates, read_series
from pages import runnable_blocks

PAGE = Path(__file__).resolve().parents[2] / "docs/forecasts-from-outside.md"
RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(scope="module")
def adapters() -> dict:
    namespace: dict = {}
    for _, source in runnable_blocks(PAGE):
        exec(source, namespace)
    return namespace


def test_quantiles_become_a_row_of_columns(adapters):
    made = pd.read_csv(RECORDED / "chronos_predict_df.csv").sample(frac=1, random_state=1)  # in any order
    row = adapters["from_quantiles"](made)
    assert list(row) == ["f1", "f2", "f3", "q10_1", "q10_2", "q10_3", "q90_1", "q90_2", "q90_3"]
    assert [row["f1"], row["f3"], row["q10_1"], row["q90_2"]] == [33.2, 34.4, 31.2, 37.4]
    assert list(parse_covariates(None, ["f1..f3", "q10_1..q10_3", "q90_1..q90_3"])) == list(row)


def test_day_ahead_weather_is_known_a_day_before(adapters):
    answer = json.loads((RECORDED / "open_meteo_previous_runs.json").read_text())
    known = adapters["from_weather"](answer)
    assert list(known) == ["wind_speed_100m_in_24h"]
    hourly = answer["hourly"]
    for hour in (1, 5):
        made = known.loc[hourly["time"][hour], "wind_speed_100m_in_24h"]
        assert made == hourly["wind_speed_100m_previous_day1"][hour + 24]
    assert known.iloc[-1].isna().all()  # of tomorrow nothing is known yet


@pytest.mark.parametrize(
    ("tool", "model", "live"),
    [("statsforecast", "AutoETS", "forecast"), ("mlforecast", "linear", "predict")],
)
def test_long_frames_become_columns_that_a_series_is_read_with(adapters, tool, model, live, tmp_path):
    from_long = adapters["from_long"]
    frame = pd.read_csv(RECORDED / f"{tool}_cross_validation.csv", parse_dates=["ds", "cutoff"])
    wide = from_long(frame, model).join(from_long(frame, f"{model}-lo-80", "q10_"))
    assert list(wide) == ["f1", "f2", "f3", "q10_1", "q10_2", "q10_3"]
    assert len(wide) == 4
    assert wide.notna().all(axis=None)
    for _, row in frame.iterrows():
        hour = round((row["ds"] - row["cutoff"]).total_seconds() / 3600)
        assert wide.loc[row["cutoff"], f"f{hour}"] == row[model]
        assert wide.loc[row["cutoff"], f"q10_{hour}"] == row[f"{model}-lo-80"]
    latest = from_long(pd.read_csv(RECORDED / f"{tool}_{live}.csv", parse_dates=["ds"]), model)
    assert list(latest.index) == [frame["ds"].max()]  # made at the last hour of the history
    assert list(latest) == ["f1", "f2", "f3"]
    known = wide.index.strftime("%Y-%m-%d %H:%M")
    wide.assign(demand=frame.set_index("ds")["y"].groupby(level=0).first()).fillna({"demand": 2000.0}).set_axis(
        known
    ).rename_axis("time").to_csv(tmp_path / "demand.csv")
    covariates = parse_covariates(None, ["f1..f3", "q10_1..q10_3"])
    read, metadata = read_series(tmp_path / "demand.csv", columns=["demand"], covariates=covariates)
    assert metadata.covariates == {"f1": 1, "f2": 2, "f3": 3, "q10_1": 1, "q10_2": 2, "q10_3": 3}
    assert list(read) == ["demand", *list(wide)]
