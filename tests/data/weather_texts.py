"""Small weather files written on purpose, right and wrong."""

import csv
import io

import numpy as np
import pandas as pd

PSM_COLUMNS = ("GHI", "Temperature", "Wind Speed")


def weather_table(start="2015-01-01", days=4, minutes=60, columns=PSM_COLUMNS, drop_leap_day=False) -> pd.DataFrame:
    """NSRDB rows with smooth, distinct values; `columns` spells irradiance, temperature, wind speed."""
    times = pd.date_range(start, periods=days * 24 * 60 // minutes, freq=f"{minutes}min")
    if drop_leap_day:
        times = times[~((times.month == 2) & (times.day == 29))]
    phase = 2 * np.pi * (times.hour * 60 + times.minute) / 1440
    values = (
        np.round(np.maximum(0, -700 * np.cos(phase)), 1),
        np.round(12 - 6 * np.cos(phase), 2),
        np.round(3 + np.sin(np.arange(len(times))), 3),
    )
    clock = {name: getattr(times, name.lower()) for name in ("Year", "Month", "Day", "Hour", "Minute")}
    return pd.DataFrame(clock | dict(zip(columns, values, strict=True))).astype(object)


def psm_text(table: pd.DataFrame, zone="-8", local_zone="-8", version="3.0.6", units=("w/m2", "c", "m/s")) -> str:
    """The table as an NSRDB file; data begin on line 4."""
    header = {
        "Source": "NSRDB",
        "Location ID": "7",
        "City": "-",
        "State": "-",
        "Country": "-",
        "Latitude": "33.5",
        "Longitude": "-117.25",
        "Time Zone": zone,
        "Elevation": "110",
        "Local Time Zone": local_zone,
        "GHI Units": units[0],
        "Temperature Units": units[1],
        "Wind Speed": units[2],
        "Version": version,
    }
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerow(header.values())
    return text.getvalue() + table.to_csv(index=False, lineterminator="\n")
