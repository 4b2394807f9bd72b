"""Weather files that are wrong: each refused with file, row and column, or repaired on request."""

import re

import numpy as np
import pytest
from weather_texts import psm_text, weather_table

from ecl2o.data import read_weather, weather_contexts
from ecl2o.exceptions import DataError

FIRST = 4  # the line of the first row of data


def refusal(path, **options) -> str:
    with pytest.raises(DataError) as caught:
        read_weather(path, **options)
    message = str(caught.value)
    assert str(path) in message
    return message


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("abc", "'abc' is not a number"),
        ("", "empty"),
        ("NaN", "missing"),
        ("inf", "not finite"),
        ("1,5", "not a number"),
    ],
)
@pytest.mark.parametrize("column", ["GHI", "Temperature", "Wind Speed"])
def test_cells_that_are_no_numbers(write, cell, words, column):
    table = weather_table()
    table.loc[10, column] = cell
    path = write(psm_text(table))
    message = refusal(path)
    assert f"line {FIRST + 10}, column '{column}'" in message
    assert words in message
    frame, metadata = read_weather(path, fill="interpolate")
    assert metadata.repairs.values == 1
    values = frame.to_numpy()[:, ["GHI", "Temperature", "Wind Speed"].index(column)]
    assert values[10] == pytest.approx((values[9] + values[11]) / 2)
    previous, _ = read_weather(path, fill="previous")
    assert previous.to_numpy()[10].tolist().count(values[9]) >= 1


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("GHI", -50.0, "not between 0 and 2500"),
        ("GHI", -9900, "missing value"),
        ("GHI", 9990, "not between 0 and 2500"),
        ("GHI", 9999, "usual code"),
        ("Wind Speed", -1.0, "not between"),
        ("Temperature", 293.0, "another unit"),
    ],
)
def test_impossible_values(write, column, value, words):
    table = weather_table()
    table.loc[[12, 13], column] = value
    path = write(psm_text(table))
    message = refusal(path)
    assert f"line {FIRST + 12}, column '{column}'" in message
    assert words in message
    assert "1 more" in message
    assert read_weather(path, fill="previous")[1].repairs.values == 2


def test_small_negative_irradiance_at_night_is_refused_with_a_hint_and_set_to_zero_on_request(write):
    table = weather_table()
    table.loc[[1, 2, 3], "GHI"] = -2.5
    path = write(psm_text(table))
    assert "sensors read a little below 0 at night" in refusal(path)
    frame, metadata = read_weather(path, fill="interpolate")
    assert frame["ghi"].iloc[1:4].tolist() == [0, 0, 0]
    assert (metadata.repairs.negatives, metadata.repairs.values) == (3, 0)


def test_gap(write):
    table = weather_table().drop(index=[30, 31, 32])
    path = write(psm_text(table))
    message = refusal(path)
    assert f"line {FIRST + 30}" in message
    assert "3 times are missing" in message
    assert "2015-01-02 05:00:00 is followed by 2015-01-02 09:00:00" in message
    frame, metadata = read_weather(path, fill="interpolate")
    assert len(frame) == 96
    assert (metadata.repairs.rows_added, metadata.repairs.values, metadata.repairs.longest) == (3, 9, 3)
    whole = weather_table()["Temperature"].to_numpy(float)
    assert np.allclose(frame["temperature"].iloc[29:34], np.linspace(whole[29], whole[33], 5))


def test_repeated_row(write):
    table = weather_table()
    table.loc[20, ["Day", "Hour"]] = table.loc[19, ["Day", "Hour"]]
    path = write(psm_text(table))
    message = refusal(path)
    assert f"line {FIRST + 20}" in message
    assert f"already on line {FIRST + 19}" in message
    frame, metadata = read_weather(path, fill="previous")
    assert len(frame) == 96
    assert (metadata.repairs.rows_dropped, metadata.repairs.rows_added) == (1, 1)
    assert frame["ghi"].iloc[19] == frame["ghi"].iloc[20] == table.loc[19, "GHI"]


def test_rows_out_of_order(write):
    table = weather_table()
    swapped = table.copy()
    swapped.loc[[40, 41]] = table.loc[[41, 40]].to_numpy()
    path = write(psm_text(swapped))
    assert f"line {FIRST + 41}" in refusal(path)
    assert "Sort the rows" in refusal(path)
    frame, metadata = read_weather(path, fill="previous")
    assert np.array_equal(frame.to_numpy(), table[["GHI", "Temperature", "Wind Speed"]].to_numpy(float))
    assert (metadata.repairs.rows_moved, metadata.repairs.values) == (1, 0)


@pytest.mark.parametrize(("column", "cell"), [("Month", 13), ("Day", 31.5), ("Hour", "noon"), ("Day", "")])
def test_times_that_do_not_exist(write, column, cell):
    table = weather_table()
    table.loc[5, column] = cell
    path = write(psm_text(table))
    assert f"line {FIRST + 5}, column 'Year to Minute'" in refusal(path)
    _, metadata = read_weather(path, fill="interpolate")
    assert (metadata.repairs.rows_dropped, metadata.repairs.rows_added, metadata.repairs.values) == (1, 1, 3)


@pytest.mark.parametrize("column", ["GHI", "Temperature", "Wind Speed", "Hour"])
def test_missing_column(write, column):
    message = refusal(write(psm_text(weather_table().drop(columns=column))))
    assert "is missing" in message
    assert column.lower().replace(" ", "_") in message.lower()


def test_two_columns_that_could_be_meant(write):
    table = weather_table()
    table["ghi"] = table["GHI"]
    assert "both 'GHI' and 'ghi'" in refusal(write(psm_text(table)))


@pytest.mark.parametrize(
    "units", [("w/m2", "f", "m/s"), ("w/m2", "c", "mph"), ("kw/m2", "c", "m/s")], ids=["F", "mph", "kW"]
)
def test_other_units(write, units):
    assert "Convert it" in refusal(write(psm_text(weather_table(), units=units)))


def test_other_units_in_a_column_name(write):
    table = weather_table(columns=("GHI", "Temperature (F)", "Wind Speed"))
    assert "'F'" in refusal(write(psm_text(table)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"PK\x03\x04\x00\x00\x08\x00", "not a text file"),
        (bytes(range(128, 256)) + bytes(range(1, 32)), "not a text file"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"hello world\n1\n", "not a weather file"),
        (b"LOCATION,a,b,c,d,e,1,2,3,4\n", "no rows"),
        (b"Source,Latitude\n", "two lines about the site"),
    ],
)
def test_files_that_are_no_weather(write, content, words):
    assert words in refusal(write(content))


def test_header_without_rows(write):
    assert "no rows" in refusal(write(psm_text(weather_table().iloc[:0])))


def test_one_row_has_no_step(write):
    assert "two rows" in refusal(write(psm_text(weather_table().iloc[:1])))


def test_bad_header_number(write):
    assert "'Time Zone': 'PST' is not a number" in refusal(write(psm_text(weather_table(), zone="PST")))


def test_folder_and_absent_file(tmp_path):
    assert "folder" in refusal(tmp_path)
    assert "does not exist" in refusal(tmp_path / "absent.csv")


def test_a_cut_off_line_and_a_stray_separator(write):
    text = psm_text(weather_table())
    cut = text.rstrip("\n").rsplit(",", 1)[0]
    assert f"line {FIRST + 95}, column 'Wind Speed'" in refusal(write(cut))
    lines = text.splitlines()
    lines[8] += ",5"
    assert "line 9: 9 cells under 8 columns" in refusal(write("\n".join(lines)))


def test_uneven_times(write):
    table = weather_table()
    table.loc[50, "Minute"] = 7
    message = refusal(write(psm_text(table)), fill="interpolate")
    assert f"line {FIRST + 50}" in message
    assert "resample" in message


def test_daily_weather_is_too_coarse(write):
    assert "at least hourly" in refusal(write(psm_text(weather_table(days=9).iloc[::24])))


def test_daylight_saving_time_is_explained(write):
    table = weather_table(start="2015-10-31", days=3)
    table.loc[26, "Hour"] = 1  # 1 November 2015, a Sunday: 01:00 twice, 02:00 missing
    assert "daylight saving" in refusal(write(psm_text(table)))
    spring = weather_table(start="2015-03-07", days=3).drop(index=26)
    assert "daylight saving" in refusal(write(psm_text(spring)))
    weekday = weather_table(start="2015-03-10", days=3).drop(index=26)
    assert "daylight saving" not in refusal(write(psm_text(weekday)))


def test_too_much_missing_is_not_made_up(write):
    table = weather_table()
    table.loc[20:, "GHI"] = ""
    assert "too many to fill" in refusal(write(psm_text(table)), fill="previous")


def test_unknown_fill(write):
    with pytest.raises(DataError, match="fill must be one of"):
        read_weather(write(psm_text(weather_table())), fill="zero")


@pytest.mark.parametrize("preset", ["paper", "authors-code"])
def test_less_than_91_days(write, preset):
    path = write(psm_text(weather_table(days=90)))
    with pytest.raises(DataError, match=re.escape("site.csv has 90 whole days")):
        weather_contexts(path, preset=preset)
    assert weather_contexts(write(psm_text(weather_table(days=91))), preset=preset).test_days().days.shape == (1, 24, 1)


@pytest.mark.parametrize("preset", ["authors-code", "paper"])
def test_a_file_cut_after_a_whole_line_is_named(write, preset):
    whole = psm_text(weather_table(days=1))
    for lines in (3, 8, 20):
        path = write("".join(whole.splitlines(keepends=True)[:lines]), "cut.csv")
        with pytest.raises(DataError, match=r"cut\.csv"):
            weather_contexts(path, preset)
