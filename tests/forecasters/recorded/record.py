"""Record answers of statsforecast and mlforecast on ten days of load, for tests/forecasters/test_adapters.py.

Run in an environment of its own: pip install statsforecast mlforecast; python record.py load_dayton_2016_2018_hourly.csv.
Recorded on 18 November 2026 with statsforecast 2.1.1, mlforecast 1.1.0 and pandas 2.3.3.
"""

import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
WINDOWS = {"h": 3, "step_size": 1, "n_windows": 4, "level": [80]}


def main() -> None:
    """Write both frames of both libraries, which the tests' environment does not have."""
    from mlforecast import MLForecast
    from mlforecast.utils import PredictionIntervals
    from sklearn.linear_model import LinearRegression
    from statsforecast import StatsForecast
    from statsforecast.models import AutoETS

    load = pd.read_csv(sys.argv[1], parse_dates=["time"]).iloc[:240]
    frame = pd.DataFrame({"unique_id": "dayton", "ds": load["time"], "y": load["load_mw"]})
    smoothing = StatsForecast(models=[AutoETS(season_length=24, model="ANA")], freq="h")
    regression = MLForecast(models={"linear": LinearRegression()}, freq="h", lags=[1, 24])
    intervals = PredictionIntervals(n_windows=10, h=3)
    frames = {
        "statsforecast_cross_validation": smoothing.cross_validation(df=frame, **WINDOWS),
        "statsforecast_forecast": smoothing.forecast(df=frame, h=3, level=[80]),
        "mlforecast_cross_validation": regression.cross_validation(df=frame, prediction_intervals=intervals, **WINDOWS),
        "mlforecast_predict": regression.fit(frame).predict(3),
    }
    for name, found in frames.items():
        found.to_csv(HERE / f"{name}.csv", index=False, float_format="%.3f")


if __name__ == "__main__":
    main()
