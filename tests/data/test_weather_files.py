"""Weather files read right, with pvlib's own readers as referees."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pvlib
import pytest
from weather_texts import psm_text, weather_table

from ecl2o.data import built_in_weather, read_weather, weather_contexts

PVLIB_NAMES = {"ghi": "ghi", "temp_air": "temperature", "wind_speed": "wind_speed"}
PVLIB_DATA = Path(pvlib.__file__).parent / "data"


def as_pvlib_reads(reading) -> pd.DataFrame:
    frame = reading[0].rename(columns=PVLIB_NAMES)
    return frame[["ghi", "temperature", "wind_speed"]].astype(float)


@pytest.mark.parametrize("name", ["riverside_2015", "bakersfield_2012", "golden_2012"])
def test_nsrdb_files_equal_what_pvlib_reads(shared, name):
    path = shared / "data" / f"nsrdb_{name}.csv"
    frame, metadata = read_weather(path)
    referee = as_pvlib_reads(pvlib.iotools.read_nsrdb_psm4(str(path)))
    assert (frame.index == referee.index).all()
    assert np.allclose(frame.to_numpy(), referee.to_numpy(), rtol=0, atol=1e-12)
    assert metadata.kind == "NSRDB PSM3"
    assert metadata.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert metadata.years == (int(name[-4:]),)
    assert metadata.steps_per_hour == (2 if name.startswith("riverside") else 1)
    assert metadata.leap_day_dropped == name.endswith("2012")


@pytest.mark.parametrize("name", ["723170TYA.CSV", "703165TY.csv"])
def test_tmy3_equals_what_pvlib_reads_with_hours_named_by_their_start(name):
    frame, metadata = read_weather(PVLIB_DATA / name)
    referee = as_pvlib_reads(pvlib.iotools.read_tmy3(PVLIB_DATA / name, coerce_year=1990))
    assert np.array_equal(frame.to_numpy(), referee.to_numpy())
    assert (frame.index == referee.index - pd.Timedelta(hours=1)).all()
    assert metadata.kind == "TMY3"
    assert len(metadata.years) > 1


def test_built_in_weather_is_greensboro():
    frame, metadata = built_in_weather()
    assert frame.shape == (8760, 3)
    assert metadata.built_in
    assert metadata.site == "GREENSBORO PIEDMONT TRIAD INT, NC"
    assert (metadata.latitude, metadata.longitude, metadata.timezone) == (36.1, -79.95, -5.0)
    assert str(frame.index[0]) == "1990-01-01 00:00:00-05:00"
    # The sun is highest about noon: a shift of the clock by hours would show.
    assert 11 <= frame["ghi"].groupby(frame.index.hour).mean().idxmax() <= 13


def epw_text(days=59 + 3) -> str:
    """A typical year's first months: January of 1999, February of 2004 (a leap year), March of 2001."""
    header = ["LOCATION,Zürich,-,CHE,TEST,66700,47.4,8.5,1.0,400.0", *[f"HEADER {i}" for i in range(7)]]
    rows = []
    for i, time in enumerate(pd.date_range("1990-01-01", periods=days * 24, freq="h")):
        year = {1: 1999, 2: 2004, 3: 2001}[time.month]
        cells = [
            year,
            time.month,
            time.day,
            time.hour + 1,
            0,
            "A7",
            5 + i % 7,
            *[0] * 6,
            i % 900,
            *[0] * 7,
            i % 11,
            *[0] * 13,
        ]
        rows.append(",".join(map(str, cells)))
    return "\n".join(header + rows) + "\n"


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_epw_equals_what_pvlib_reads(write, encoding):
    path = write(epw_text().encode(encoding), "site.epw")
    frame, metadata = read_weather(path)
    ascii_path = write(epw_text().replace("ü", "u"), "ascii.epw")
    referee = as_pvlib_reads(pvlib.iotools.read_epw(ascii_path, coerce_year=1990))
    assert np.array_equal(frame.to_numpy(), referee.to_numpy())
    assert (frame.index == referee.index).all()
    assert (metadata.kind, metadata.site, metadata.years) == ("EPW", "Zürich, CHE", (1999, 2001, 2004))


@pytest.mark.parametrize(
    "columns",
    [
        ("GHI", "Temperature", "Wind Speed"),
        ("ghi", "temp_air", "wind_speed"),
        ("GHI (W/m^2)", "Temperature (C)", "Wind Speed (m/s)"),
        ("Ghi", "Air Temperature", "windspeed"),
    ],
)
@pytest.mark.parametrize("header", [True, False])
def test_columns_may_be_spelled_in_several_ways(write, columns, header):
    table = weather_table(columns=columns)
    frame, _ = read_weather(write(psm_text(table) if header else table.to_csv(index=False)))
    assert np.array_equal(frame.to_numpy(), table[list(columns)].to_numpy(float))
    assert list(frame.columns) == ["ghi", "temperature", "wind_speed"]


def test_a_station_without_a_city_is_named_by_its_source(write):
    assert read_weather(write(psm_text(weather_table())))[1].site == "NSRDB location 7"


def test_version_four_is_distinguished_from_three(write):
    assert read_weather(write(psm_text(weather_table(), version="4.0.0")))[1].kind == "NSRDB PSM4"
    assert read_weather(write(psm_text(weather_table(), version="v3.2.2")))[1].kind == "NSRDB PSM3"


@pytest.mark.parametrize(("minutes", "per_hour"), [(60, 1), (30, 2), (5, 12)])
def test_step_is_found(write, minutes, per_hour):
    frame, metadata = read_weather(write(psm_text(weather_table(days=2, minutes=minutes))))
    assert metadata.steps_per_hour == per_hour
    assert len(frame) == 48 * per_hour


def test_utc_stamps_become_local_standard_time(write):
    frame, metadata = read_weather(write(psm_text(weather_table(), zone="0", local_zone="-8")))
    assert metadata.clock == "UTC"
    assert metadata.timezone == -8
    assert str(frame.index[0]) == "2014-12-31 16:00:00-08:00"


def test_half_hour_time_zones_and_a_missing_one(write):
    frame, _ = read_weather(write(psm_text(weather_table(), zone="0", local_zone="5.5")))
    assert str(frame.index[0]) == "2015-01-01 05:30:00+05:30"
    for given in ({"zone": "-7", "local_zone": ""}, {"zone": "", "local_zone": "-7"}):
        frame, metadata = read_weather(write(psm_text(weather_table(), **given)))
        assert (metadata.timezone, metadata.clock) == (-7, "local")
        assert str(frame.index[0]) == "2015-01-01 00:00:00-07:00"


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("zone", ["-8", "0"])
def test_leap_day_present_or_dropped(write, drop, zone):
    table = weather_table(start="2012-02-27", days=5, drop_leap_day=drop)
    frame, metadata = read_weather(write(psm_text(table, zone=zone)))
    assert len(frame) == 24 * (4 if drop else 5)
    assert metadata.leap_day_dropped == drop
    assert np.array_equal(frame["ghi"].to_numpy(), table["GHI"].to_numpy(float))


def test_a_typical_year_of_nsrdb_is_put_in_one_year(write):
    table = weather_table(start="2015-01-30", days=40)
    table["Year"] = table["Month"].map({1: 2004, 2: 2012, 3: 2000})  # leap years must not shift March
    frame, metadata = read_weather(write(psm_text(table)))
    assert (frame.index.tz_localize(None) == pd.date_range("1990-01-30", periods=960, freq="h")).all()
    assert metadata.years == (2000, 2004, 2012)


def test_a_typical_year_may_go_from_one_year_to_the_next(write):
    """From January of one year to February of the next is no gap in a series, which would be refused."""
    table = weather_table(start="2015-01-30", days=5)
    table["Year"] = table["Month"].map({1: 2004, 2: 2005})
    frame, _ = read_weather(write(psm_text(table)))
    assert (frame.index.tz_localize(None) == pd.date_range("1990-01-30", periods=120, freq="h")).all()


def test_spreadsheet_padding_and_windows_line_ends_do_no_harm(write):
    text = "\n".join(line + ",,," for line in psm_text(weather_table()).splitlines()) + "\n"
    frame, _ = read_weather(write("\ufeff" + text.replace("\n", "\r\n")))
    assert len(frame) == 96


def test_plain_csv_with_a_time_column(write):
    frame, metadata = read_weather(PVLIB_DATA / "723170TYA.CSV")
    path = write(frame.to_csv(index_label="time"))
    again, plain = read_weather(path)
    assert np.array_equal(again.to_numpy(), frame.to_numpy())
    assert (again.index == frame.index).all()
    assert (plain.kind, plain.timezone) == ("CSV", -5.0)
    assert metadata.as_dict()["years"][0] == 1980


def test_the_built_in_year_is_what_the_source_file_holds():
    frame, metadata = built_in_weather()
    original, source = read_weather(PVLIB_DATA / "723170TYA.CSV")
    pd.testing.assert_frame_equal(frame, original, check_exact=True)
    assert replace(metadata, file=source.file, sha256=source.sha256, built_in=False) == source
    assert hashlib.sha256(frame.to_numpy().tobytes("C")).hexdigest()[:16] == "75beb1c7e76b4ebe"


@pytest.mark.parametrize(
    ("preset", "scale", "base_shortage", "digest"),
    [
        ("authors-code", 8.842730401147123e-06, 90469.79424999999, "601e19c1c6b37f00"),
        ("paper", 1.1094946129023016e-07, 9013112.712499999, "9812f22642d83f57"),
    ],
)
def test_the_contexts_of_the_built_in_year_stay_as_they_are(preset, scale, base_shortage, digest):
    contexts = weather_contexts(preset=preset)
    assert (contexts.scale, contexts.base_shortage) == (scale, base_shortage)
    assert hashlib.sha256(contexts.values.tobytes()).hexdigest()[:16] == digest
