"""Any series from CSV and Parquet."""

import builtins
import dataclasses
import gzip
import math
import os
import threading

import numpy as np
import pandas as pd
import pytest

from ecl2o.data import PartDays, frame_series, parse_day_start, read_series, series_contexts, trim_to_whole_days
from ecl2o.data.contexts import Split
from ecl2o.exceptions import DataError, PolicyFileError
from ecl2o.policy import load

HOURS = pd.date_range("2021-05-01", periods=48, freq="h")


def series(times=HOURS, **columns) -> pd.DataFrame:
    n = len(times)
    columns = columns or {"demand": np.arange(n) + 0.5}
    return pd.DataFrame({"time": times.astype(str)} | columns).astype(object)


def refusal(path, **options) -> str:
    with pytest.raises(DataError) as caught:
        read_series(path, **options)
    message = str(caught.value)
    assert str(path) in message
    return message


@pytest.mark.parametrize(
    ("frequency", "per_day", "minutes"),
    [("h", 24, 60), ("30min", 48, 30), ("15min", 96, 15), ("D", 1, 1440), ("7D", 1, 10080), ("10s", 8640, 1 / 6)],
)
def test_step_is_found(write, frequency, per_day, minutes):
    times = pd.date_range("2021-05-01", periods=40, freq=frequency)
    frame, metadata = read_series(write(series(times).to_csv(index=False)))
    assert metadata.steps_per_day == per_day
    assert metadata.step_minutes == pytest.approx(minutes)
    assert (frame.index == times).all()
    assert np.array_equal(frame["demand"], np.arange(40) + 0.5)


@pytest.mark.parametrize(
    "form",
    [
        "%Y-%m-%d %H:%M",
        "%Y-%m-%dT%H:%M:%S",
        "%Y%m%dT%H%M",
        "%m/%d/%Y %H:%M",
        "%d/%m/%Y %H:%M",
        "%d.%m.%Y %H:%M",
        "%m/%d/%Y %I:%M %p",
    ],
)
def test_dates_as_people_write_them(write, form):
    times = pd.date_range("2021-02-26", periods=24 * 20, freq="h")  # days above 12 and below
    table = pd.DataFrame({"when": times.strftime(form), "load": np.arange(len(times))})
    frame, metadata = read_series(write(table.to_csv(index=False)))
    assert (frame.index.tz_localize(None) == times).all()
    assert metadata.time_column == "when"


def test_days_up_to_twelve_are_read_in_the_order_that_makes_them_regular(write):
    times = pd.date_range("2021-03-01", periods=24 * 10, freq="h")
    table = pd.DataFrame({"date": times.strftime("%d/%m/%Y %H:%M"), "load": 1.0})
    frame, _ = read_series(write(table.to_csv(index=False)))
    assert (frame.index == times).all()


def test_dates_of_either_reading_are_month_first(write):
    table = pd.DataFrame({"date": [f"03/04/2021 {hour:02}:00" for hour in range(24)], "load": 1.0})
    frame, _ = read_series(write(table.to_csv(index=False)))
    assert (frame.index == pd.date_range("2021-03-04", periods=24, freq="h")).all()


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
@pytest.mark.parametrize("year", [1975, 1995, 2021])
def test_seconds_since_1970(write, unit, year):
    times = pd.date_range(f"{year}-05-01", periods=48, freq="h").as_unit("s")
    table = pd.DataFrame({"timestamp": times.asi8 * unit, "x": 1.0})
    frame, _ = read_series(write(table.to_csv(index=False)))
    assert (frame.index == times).all()


@pytest.mark.parametrize(("name", "per_day"), [("hour", 24), ("t", 24), ("minute", 1440), ("day", 1)])
def test_a_plain_count_of_steps(write, name, per_day):
    _, metadata = read_series(write(pd.DataFrame({name: np.arange(50), "y": np.arange(50) ** 2}).to_csv(index=False)))
    assert metadata.steps_per_day == per_day
    assert metadata.columns == ("y",)


def test_web_requests(shared):
    frame, metadata = read_series(shared / "data" / "web_requests_nasa_1995_hourly.csv")
    assert frame.shape == (1405, 1)
    assert (metadata.time_column, metadata.columns, metadata.steps_per_day) == ("hour", ("requests",), 24)
    assert frame["requests"].iloc[:3].tolist() == [3568, 3002, 2267]
    with pytest.raises(DataError, match="has 58 whole days"):
        series_contexts(frame, metadata)
    contexts = series_contexts(frame, metadata, Split(40, 10)).scale_to(1.0)
    assert np.abs(contexts.training).max() == pytest.approx(1.0)
    assert contexts.test_days().days.shape == (8, 24, 1)
    assert np.allclose(contexts.values / contexts.scale, frame.to_numpy())


def test_offsets_that_change_with_summer_time_are_no_repetition(write):
    times = pd.date_range("2021-10-31", periods=10, freq="h", tz="Europe/Berlin")  # clocks go back at 3
    table = pd.DataFrame({"time": [time.isoformat() for time in times], "y": np.arange(10)})
    frame, metadata = read_series(write(table.to_csv(index=False)))
    assert (frame.index == times).all()
    assert metadata.time_format == "dates, UTC+1"
    local = table.assign(time=times.tz_localize(None).astype(str))
    message = refusal(write(local.to_csv(index=False)))
    assert "daylight saving" in message
    assert "line 5" in message


def test_columns_separators_and_text_columns(write):
    table = series(demand=np.arange(48) / 4, price=np.arange(48) * 1.5, label=["a"] * 48)
    both = {"columns": ["demand", "price"]}
    frame, metadata = read_series(write(table.to_csv(index=False)), **both)
    assert metadata.columns == ("demand", "price")
    assert metadata.ignored_columns == ("label",)
    chosen, metadata = read_series(write(table.to_csv(index=False)), columns=["price"])
    assert list(chosen.columns) == ["price"]
    assert metadata.ignored_columns == ("demand", "label")
    german, _ = read_series(write(table.to_csv(index=False, sep=";", decimal=","), "german.csv"), **both)
    tabs, _ = read_series(write(table.to_csv(index=False, sep="\t"), "tabs.tsv"), **both)
    assert german.equals(frame)
    assert tabs.equals(frame)
    assert frame.to_numpy()[1].tolist() == [0.25, 1.5]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "latin-1"])
def test_encodings_of_spreadsheets(write, encoding):
    text = series(größe=np.arange(48.0)).to_csv(index=False)
    mark = "\ufeff" if encoding.startswith("utf-16") else ""
    for end in ("\n", "\r\n", "\r"):
        frame, _ = read_series(write((mark + text.replace("\n", end)).encode(encoding)))
        assert frame["größe"].tolist() == list(range(48))


def test_parquet_equals_csv(tmp_path, write):
    table = pd.DataFrame({"demand": np.arange(48) / 3, "price": np.arange(48.0)}, index=HOURS.rename("time"))
    table.to_parquet(tmp_path / "indexed.parquet")
    table.reset_index().to_parquet(tmp_path / "plain.pq")
    referee, _ = read_series(write(table.to_csv()), columns=[*table.columns])
    for name in ("indexed.parquet", "plain.pq"):
        frame, metadata = read_series(tmp_path / name, columns=[*table.columns])
        assert np.array_equal(frame.to_numpy(), table.to_numpy())
        assert (frame.index == referee.index).all()
        assert metadata.columns == ("demand", "price")


def test_bad_parquet(tmp_path, write):
    table = pd.DataFrame({"time": HOURS, "demand": [*range(20), None, *range(27)]})
    table.to_parquet(tmp_path / "hole.parquet")
    assert "row 21, column 'demand'" in refusal(tmp_path / "hole.parquet")
    assert "not a readable Parquet file" in refusal(write(b"PAR1 and then nothing", "broken.parquet"))
    table.iloc[:0].to_parquet(tmp_path / "empty.parquet")
    assert "no rows" in refusal(tmp_path / "empty.parquet")


def test_parquet_without_pyarrow_says_what_to_install(write, monkeypatch):
    real = builtins.__import__

    def without_pyarrow(name, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    assert "pip install 'ecl2o[parquet]'" in refusal(write(b"PAR1", "any.parquet"))


@pytest.mark.parametrize("cell", ["abc", "", "nan", "inf", "-inf"])
def test_bad_cells(write, cell):
    table = series(demand=np.arange(48.0))
    table.loc[7, "demand"] = cell
    path = write(table.to_csv(index=False))
    assert "line 9, column 'demand'" in refusal(path)
    frame, metadata = read_series(path, fill="interpolate")
    assert frame["demand"].tolist() == list(range(48))
    assert (metadata.repairs.values, metadata.repairs.fill) == (1, "interpolate")


def test_holes_at_both_ends_take_the_nearest_value(write):
    table = series(demand=np.arange(48.0))
    table.loc[[0, 1, 47], "demand"] = ""
    frame, metadata = read_series(write(table.to_csv(index=False)), fill="previous")
    assert frame["demand"].iloc[[0, 1, 2, 46, 47]].tolist() == [2, 2, 2, 46, 46]
    assert (metadata.repairs.values, metadata.repairs.longest) == (3, 2)


def test_a_date_that_is_none(write):
    table = series()
    table.loc[3, "time"] = "2021-05-40 03:00"
    path = write(table.to_csv(index=False))
    assert "line 5, column 'time': '2021-05-40 03:00' is not a date" in refusal(path)
    assert read_series(path, fill="interpolate")[0]["demand"].iloc[3] == 3.5


def test_gap_repetition_and_disorder(write):
    gap = write(series().drop(index=range(20, 24)).to_csv(index=False))
    assert "line 22, column 'time'" in refusal(gap)
    assert "4 times are missing" in refusal(gap)
    assert read_series(gap, fill="interpolate")[0]["demand"].tolist() == (np.arange(48) + 0.5).tolist()
    twice = write(series().iloc[[*range(10), 9, *range(10, 48)]].to_csv(index=False))
    assert "line 12, column 'time'" in refusal(twice)
    assert "already on line 11" in refusal(twice)
    repairs = read_series(twice, fill="previous")[1].repairs
    assert (repairs.rows_dropped, repairs.rows_moved) == (1, 0)
    mixed = write(series().sample(frac=1, random_state=1).to_csv(index=False))
    assert "Sort the rows" in refusal(mixed)
    assert read_series(mixed, fill="previous")[0].equals(read_series(write(series().to_csv(index=False), "b.csv"))[0])


def test_half_of_a_column_is_filled_and_more_is_not(write):
    table = series(demand=np.arange(48.0))
    table.loc[np.arange(24) * 2 + 1, "demand"] = ""
    assert read_series(write(table.to_csv(index=False)), fill="interpolate")[1].repairs.values == 24
    table.loc[2, "demand"] = ""
    assert "25 of 48 values are missing" in refusal(write(table.to_csv(index=False)), fill="interpolate")


def test_as_many_times_as_there_are_may_be_missing(write):
    times = pd.date_range("2021-05-01", periods=2402, freq="h")
    gap = series(times[:1201].append(times[-1:]))
    repairs = read_series(write(gap.to_csv(index=False)), fill="previous", fill_limit=1200)[1].repairs
    assert (repairs.rows_added, repairs.longest) == (1200, 1200)


def test_only_a_series_of_whole_days_may_leave_out_29_february(write):
    """A day that a calendar lacks is a day; two days that end on it are a gap."""
    for step, missing in (("6h", False), ("1D", False), ("2D", True)):
        times = pd.date_range("2024-02-01", "2024-03-30", freq=step)
        table = series(times[(times.month != 2) | (times.day != 29)])
        path = write(table.to_csv(index=False), f"{step}.csv")
        if missing:
            assert "is followed by 2024-03-02" in refusal(path)
        else:
            assert read_series(path)[1].leap_day_dropped


def test_no_time_column_no_numbers_no_names(write):
    assert "no time column" in refusal(write("a,b\n1,5\n2,3\n3,9\n"))
    assert "no column holds numbers" in refusal(write("time,b\n2021-01-01,x\n2021-01-02,y\n"))
    assert "must name the columns" in refusal(write("1,2\n3,4\n"))
    assert "'price' is missing" in refusal(write(series().to_csv(index=False)), columns=["price"])
    assert "'when' is missing" in refusal(write(series().to_csv(index=False)), time_column="when")
    assert "more than once" in refusal(write("time,y,y\n2021-01-01,1,2\n2021-01-02,1,2\n"))


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M:%S", "%d.%m.%Y %H:%M", "%m/%d/%Y %H:%M", "%Y-%m-%dT%H:%MZ"])
def test_a_first_row_of_data_is_not_taken_as_names(write, form):
    table = pd.DataFrame({"when": HOURS.strftime(form), "site": "north", "load": np.arange(48)})
    path = write(table.to_csv(index=False, header=False))
    for options in ({}, {"columns": ["load"]}, {"time_column": "when"}):
        assert "line 1 must name the columns" in refusal(path, **options)
    assert read_series(write(table.to_csv(index=False)))[0].shape == (48, 1)


def test_names_of_columns_may_be_numbers_and_dates(write):
    table = series(**{"2023": np.arange(48), "2024-01-01": np.arange(48) ** 2})
    names = ("2023", "2024-01-01")
    for named in (table, table.rename(columns={"time": ""})):
        assert read_series(write(named.to_csv(index=False)), columns=names)[1].columns == names


def test_too_many_columns_are_refused_with_their_number_before_any_work(write):
    many = series(**{f"c{i}": np.arange(48) for i in range(257)})
    names, path = [f"c{i}" for i in range(257)], write(many.to_csv(index=False))
    assert "257" in refusal(path)
    assert all(number in refusal(path, columns=names) for number in ("257", "256"))
    assert read_series(path, columns=["c7"])[0].shape == (48, 1)
    assert read_series(path, columns=names[1:])[0].shape == (48, 256)
    with pytest.raises(DataError, match="256"):
        frame_series(many.drop(columns="time").astype(float).set_index(HOURS), names)
    wide = "time" + ",a" * 10_000 + "\n2021-05-01 00:00" + ",1" * 10_000 + "\n"
    assert all(number in refusal(write(wide)) for number in ("10,001", "10,000"))


_RNG = np.random.default_rng(0)
_LOAD = 20 + 5 * np.sin(np.arange(2400)) + _RNG.normal(0, 1, 2400)


@pytest.mark.parametrize("code", [-9999.0, 9999.0, -999.0, -99.99, 32767.0, 1e20, -1e31, 9.969209968386869e36])
def test_usual_codes_for_missing_values_are_named_and_read_as_missing(tmp_path, write, code):
    hours, values = pd.date_range("2021-01-01", periods=2400, freq="h"), _LOAD.copy()
    values[[5, 70, 71]] = code
    values[9] = -math.copysign(9e9, code)  # an outlier of another kind
    table = pd.DataFrame({"time": hours.astype(str), "demand": values})
    path = write(table.to_csv(index=False))
    message = refusal(path)
    assert all(word in message for word in ("line 7, column 'demand'", f"{code:.10g} is a usual code", "3 times"))
    frame, metadata = read_series(path, fill="previous")
    np.testing.assert_array_equal(frame["demand"].iloc[[5, 70, 71]], _LOAD[[4, 69, 69]])
    assert f"{code:.10g} in column 'demand' (3 times)" in metadata.repairs.describe()
    small = table.assign(time=hours, demand=values.astype(np.float32))  # -99.99 is rounded
    small.to_parquet(tmp_path / "small.parquet")
    for filled in (
        read_series(tmp_path / "small.parquet", fill="previous")[0],
        frame_series(table.set_index(hours)[["demand"]], fill="previous")[0],
    ):
        np.testing.assert_allclose(filled["demand"], frame["demand"], rtol=1e-6)


@pytest.mark.parametrize(
    "values",
    [
        np.r_[_LOAD, -9999.0],  # once: the screen's business
        np.r_[np.linspace(0, 12_000, 2000), [9999.0] * 40],  # inside the range
        np.r_[np.linspace(0, 9990, 2000), [9999.0] * 40],  # a counter's end
        np.r_[_LOAD, [4000.0, 8000.0], [9999.0] * 3],  # rare, but ordinary spikes on the way
        np.r_[np.linspace(-60, 40, 500), [-99.0] * 9],  # near
        np.r_[np.linspace(0, 1, 1500), np.linspace(0, 1000, 900), [-99.0] * 9],  # near, beside a median at the low end
        np.r_[np.zeros(500), [9999.0] * 20],  # on and off
        np.r_[[999.0] * 500, [9999.0] * 20],
    ],
)
def test_ordinary_readings_that_look_like_codes_are_kept(values):
    hours = pd.date_range("2021-01-01", periods=len(values), freq="h")
    frame, metadata = frame_series(pd.Series(values, hours, name="demand"))
    np.testing.assert_array_equal(frame["demand"], values)
    assert metadata.repairs.describe() is None


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "empty"), (b"time,y\n", "no rows"), (b"\x00\x01\x02", "not a text file"), (b",,\n", "names of the columns")],
)
def test_files_with_nothing_in_them(write, content, words):
    assert words in refusal(write(content))


def test_folder_and_absent_file(tmp_path):
    assert "folder" in refusal(tmp_path)
    assert "does not exist" in refusal(tmp_path / "absent.csv")


def test_an_undivided_day(write):
    times = pd.date_range("2021-05-01", periods=30, freq="7h")
    assert "does not divide a day" in refusal(write(series(times).to_csv(index=False)))


def test_packed_by_gzip(write):
    text = series().to_csv(index=False).encode()
    packed = gzip.compress(text)
    frame, _ = read_series(write(packed, "demand.csv.gz"))
    assert frame.equals(read_series(write(text))[0])
    assert "cannot be unpacked" in refusal(write(packed[:-20], "cut.csv.gz"))


@pytest.mark.parametrize(
    ("cells", "delimiter", "values"),
    [
        (["1,234.5", "12", "-1,234,567"], ",", [1234.5, 12, -1234567]),
        (["1 234", "12.5", "1\u202f234\u202f567.25"], ",", [1234, 12.5, 1234567.25]),
        (["1'234", "12", "3"], ",", [1234, 12, 3]),
        (["1.234,5", "12,25", "1.234.567"], ";", [1234.5, 12.25, 1234567]),
        (["1.234", "2.5", "3"], ";", [1.234, 2.5, 3]),
        (["1.234", "2.500", "3"], ";", [1.234, 2.5, 3]),  # a decimal point: nothing shows that it separates thousands
    ],
)
def test_thousands_separators(write, cells, delimiter, values):
    table = pd.DataFrame({"time": HOURS[:3].astype(str), "demand": cells})
    frame, _ = read_series(write(table.to_csv(index=False, sep=delimiter)))
    assert frame["demand"].tolist() == values


def test_a_comma_that_separates_anything_else_is_no_number(write):
    table = pd.DataFrame({"time": HOURS[:3].astype(str), "demand": ["1,234", "0,125", "3"]})
    assert "line 2" in refusal(write(table.to_csv(index=False)), columns=["demand"])


def test_numbers_whose_squares_overflow_are_refused(write):
    table = series(demand=[1.0] * 47 + [1e300])
    message = refusal(write(table.to_csv(index=False)))
    assert "line 49" in message
    assert "1e+300' is too large to be squared" in message
    frame, metadata = read_series(write(series(demand=[1e-120] * 48).to_csv(index=False)))
    with pytest.raises(DataError, match="use another unit"):
        series_contexts(frame, metadata, Split(2, 0))


@pytest.mark.parametrize("rows_less", [0, 1, 7, 23, 24])
def test_days_begin_at_midnight_whatever_row_the_file_starts_at(write, rows_less):
    times = pd.date_range("2021-05-01 00:00", periods=24 * 5 + 3, freq="h")[rows_less:]
    frame, metadata = read_series(write(series(times).to_csv(index=False)))
    days, _, left_out = trim_to_whole_days(frame, metadata)
    assert {time.hour for time in days.index[::24]} == {0}
    assert len(days) == 24 * (5 - -(-rows_less // 24))
    assert left_out == PartDays(-rows_less % 24, 3)
    later, cut, _ = trim_to_whole_days(frame, metadata, parse_day_start("06:30"))
    assert {time.hour for time in later.index[::24]} == {7}
    assert cut.day_start_minutes == 390


def test_rows_that_end_before_a_day_begins_are_all_left_out(write):
    frame, metadata = read_series(write(series(HOURS[1:4]).to_csv(index=False)))
    days, _, left_out = trim_to_whole_days(frame, metadata)
    assert (len(days), left_out) == (0, PartDays(before=3))


def test_midnight_is_that_of_the_files_clock(write):
    times = pd.date_range("2021-05-01 20:30", periods=24 * 4, freq="h", tz="America/New_York")
    table = pd.DataFrame({"time": [time.isoformat() for time in times], "y": np.arange(len(times))})
    frame, metadata = read_series(write(table.to_csv(index=False)))
    days, _, left_out = trim_to_whole_days(frame, metadata)
    assert (days.index[0].hour, days.index[0].minute) == (0, 30)
    assert left_out == PartDays(4, 20)


@pytest.mark.parametrize("first", ["2021-05-03", "2021-05-06"])  # a Monday, and a Thursday
def test_weeks_of_daily_rows_begin_on_mondays(write, first):
    times = pd.date_range(first, periods=30, freq="D")
    frame, metadata = read_series(write(series(times).to_csv(index=False)))
    days, _, _ = trim_to_whole_days(frame, dataclasses.replace(metadata, steps_per_day=7))
    assert days.index[0].dayofweek == 0


@pytest.mark.parametrize("wrong", ["24", "6:75", "noon", "-1"])
def test_times_of_day_that_are_none(wrong):
    with pytest.raises(DataError, match="a day must start at an hour"):
        parse_day_start(wrong)


def test_a_pipe_is_read_once_and_a_device_is_refused(tmp_path):
    """`cat demand.csv | ecl2o alpha /dev/stdin`; a device such as /dev/zero has no end, and is not begun."""
    pipe, text = tmp_path / "pipe", series().to_csv(index=False)
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    frame, _ = read_series(pipe)
    writer.join()
    assert np.array_equal(frame["demand"], np.arange(48) + 0.5)
    assert "is a device, which may have no end" in refusal(os.devnull)
    with pytest.raises(PolicyFileError, match="is a device"):
        load(os.devnull)


def test_numbers_that_are_too_large_are_numbers(write):
    huge = series(demand=["1e308"] * 48)
    assert "line 2, column 'demand': '1e308' is too large to be squared" in refusal(write(huge.to_csv(index=False)))
    beside = series(demand=["1e308"] * 48, load=np.arange(48))
    assert "column 'demand': '1e308' is too large" in refusal(write(beside.to_csv(index=False)), columns=["demand"])
    assert "demand, load" in refusal(write(beside.to_csv(index=False)))


@pytest.mark.parametrize(
    ("most", "one", "said"),
    [
        ("Z", "", "'2021-05-01T04:00:00' has no offset from UTC, such as Z, while other times have one"),
        ("", "Z", "'2021-05-01T04:00:00Z' has an offset from UTC, while other times have none"),
        ("+02:00", "", "'2021-05-01T04:00:00' has no offset from UTC"),
    ],
)
def test_times_of_two_clocks_are_told_apart(write, most, one, said):
    times = [f"{time.isoformat()}{one if row == 4 else most}" for row, time in enumerate(HOURS)]
    message = refusal(write(pd.DataFrame({"time": times, "x": 1.0}).to_csv(index=False)))
    assert f"line 6, column 'time': {said}" in message
    rubbish = [time if row != 7 else "soon" for row, time in enumerate(times) if row != 4]
    assert "'soon' is not a date or time" in refusal(
        write(pd.DataFrame({"time": rubbish, "x": 1.0}).to_csv(index=False))
    )


@pytest.mark.parametrize("rows", [48, 20000])
def test_a_quotation_mark_that_is_not_closed_is_found_where_it_opens(write, rows):
    """In a long file the cell that it makes of the rest is longer than cells may be."""
    lines = series(pd.date_range("2021-05-01", periods=rows, freq="h")).to_csv(index=False).splitlines()
    lines[4] = lines[4].replace(",", ',"')
    message = refusal(write("\n".join(lines) + "\n"))
    assert ", line 5: " in message
    assert "quotation mark" in message


def test_cells_of_several_lines_are_counted_from_their_first(write):
    lines = series(pd.date_range("2021-05-01", periods=6, freq="h"), note=["a"] * 6, x=[1] * 6).to_csv(index=False)
    two = lines.replace(",a,", ',"a\nb",', 1).replace("05:00:00,a,1", "05:00:00,a,none")
    assert "line 8, column 'x'" in refusal(write(two))
    last = lines.splitlines()
    last[-1] = last[-1].replace(",a,", ',"a\nb",')
    assert len(read_series(write("\n".join(last) + "\n\n\n"))[0]) == 6


def test_a_column_is_followed_only_if_it_is_named_or_alone(write):
    table = series(demand=np.arange(48.0), price=np.arange(48.0), note=["x"] * 48)
    path, frame = write(table.to_csv(index=False)), table.drop(columns=["time", "note"]).astype(float).set_index(HOURS)
    assert all(name in refusal(path) for name in ("2 columns", "demand", "price", "column='demand'"))
    assert read_series(path, weight_column="price")[1].followed == ("demand",)
    assert read_series(path, columns=["price", "demand"], weight_column="price")[1].columns == ("demand", "price")
    with pytest.raises(DataError, match="demand, price"):
        frame_series(frame)
    assert frame_series(frame, weight_column="demand")[1].columns == ("price", "demand")
    line = read_series(path, columns=["demand"])[1].describe()
    assert all(part in line for part in ("follows: demand;", "not used: price, note;", "60 minutes"))


def test_gaps_are_filled_up_to_the_limit_and_marked(write):
    times = pd.date_range("2021-05-01", periods=96, freq="h")
    path = write(series(times.delete(np.arange(20, 26))).to_csv(index=False))
    _, metadata = read_series(path, fill="interpolate")
    assert metadata.imputed["demand"].to_numpy().nonzero()[0].tolist() == [*range(20, 26)]
    assert metadata.repairs.longest == 6
    path = write(series(times.delete([5, *range(20, 50), *range(60, 70)])).to_csv(index=False))
    message = refusal(path, fill="interpolate")
    assert all(part in message for part in ("30 hours", "2021-05-01 20:00", "1 more", "fill_limit 30"))
    _, metadata = read_series(path, fill="previous", fill_limit=30)
    assert int(metadata.imputed.to_numpy().sum()) == metadata.repairs.values == 41
    days = pd.date_range("2021-05-01", periods=40, freq="D").delete([7, 20, 21])
    assert "48 hours" in refusal(write(series(days).to_csv(index=False)), fill="previous")  # one row may be missing
    assert read_series(write(series(days.delete(20)).to_csv(index=False)), fill="previous", fill_limit=72)
    assert read_series(write(series(times).to_csv(index=False)))[1].imputed is None


NEW_YORK = pd.date_range("2023-03-01", "2024-03-20", freq="h", tz="America/New_York")  # two springs, one autumn


@pytest.mark.parametrize("form", ["offsets", "UTC", "local", "seconds"])
def test_a_zone_gives_days_of_24_local_hours(write, form):
    local, values = NEW_YORK.tz_localize(None), np.arange(len(NEW_YORK)) + 1.0
    cells = {
        "offsets": [time.isoformat() for time in NEW_YORK],
        "UTC": [time.isoformat() for time in NEW_YORK.tz_convert("UTC")],
        "local": local.astype(str),
        "seconds": [int(time.timestamp()) for time in NEW_YORK],
    }[form]
    path = write(pd.DataFrame({"time": cells, "y": values}).to_csv(index=False))
    frame, metadata = read_series(path, time_zone="America/New_York")
    clocks = pd.date_range(local[0], local[-1], freq="h")
    assert (frame.index == clocks).all()
    first = pd.Series(values, local)[~local.duplicated()]  # autumn's second hour is left out
    assert np.array_equal(frame["y"][first.index], first)
    skipped = clocks.difference(local)
    assert [str(time) for time in skipped] == ["2023-03-12 02:00:00", "2024-03-10 02:00:00"]
    assert np.array_equal(frame.index[metadata.imputed["y"]], skipped)
    assert (metadata.repairs.hours_skipped, metadata.repairs.hours_repeated, metadata.repairs.values) == (2, 1, 0)
    assert metadata.clock == "America/New_York"
    if form == "offsets":
        assert "UTC-05:00" in read_series(path)[1].clock
        by_index = frame_series(pd.Series(values, NEW_YORK, name="y"), time_zone="America/New_York")[0]
        assert np.array_equal(by_index, frame)


def test_a_zone_hides_no_other_gap_and_no_other_repetition(write):
    local = NEW_YORK.tz_localize(None)
    gap, twice = local.delete(500), local.insert(500, local[500])
    assert "1 time is missing" in refusal(write(series(gap).to_csv(index=False)), time_zone="America/New_York")
    assert "already on line 502" in refusal(write(series(twice).to_csv(index=False)), time_zone="America/New_York")
    repairs = read_series(write(series(gap).to_csv(index=False)), fill="previous", time_zone="America/New_York")[
        1
    ].repairs
    assert (repairs.values, repairs.rows_added, repairs.hours_skipped) == (1, 1, 2)
    assert "count" in refusal(write("hour,y\n0,1\n1,2\n2,4\n"), time_zone="America/New_York")
    for name in ("America/New_Yrok", "", "../etc/passwd", "Mars"):
        with pytest.raises(ValueError, match="time_zone"):
            read_series(write(series().to_csv(index=False)), time_zone=name)


def test_what_a_short_file_does_not_show_is_told_by_a_longer_one(write):
    """The order of dates and the separators of thousands, which `fit` finds and a policy remembers."""
    times = pd.date_range("2024-03-04", periods=24 * 30, freq="h")
    cells = [f"{value:.3f}".replace(".", ",") for value in np.arange(720) + 1000.5]
    cells = [f"{cell[:-7]}.{cell[-7:]}" for cell in cells]
    table = pd.DataFrame({"time": times.strftime("%d/%m/%Y %H:%M"), "y": cells})
    frame, metadata = read_series(write(table.to_csv(index=False, sep=";")))
    assert frame["y"].iloc[-1] == 1719.5
    found = {name: metadata.file_format[name] for name in ("day_first", "grouped")}
    assert found == {"day_first": True, "grouped": True}
    short = pd.DataFrame({"time": times[:24].strftime("%d/%m/%Y %H:%M"), "y": ["1.234"] * 23 + ["1.235"]})
    path = write(short.to_csv(index=False, sep=";"))
    alone, told = read_series(path)[0], read_series(path, **found)[0]
    assert (str(alone.index[0]), alone["y"].iloc[-1]) == ("2024-04-03 00:00:00", 1.235)
    assert (str(told.index[0]), told["y"].iloc[-1]) == ("2024-03-04 00:00:00", 1235.0)


def meter_file(kind: str) -> tuple[str, np.ndarray]:
    """Return a file as meters' portals export it, and its readings: quarter-hours of local time, with a change of clocks."""
    times = pd.date_range("2024-10-26", periods=300, freq="15min", tz="Europe/Berlin")
    values = np.round(200 + 50 * np.sin(np.arange(300) / 15), 1)
    texts = [(time, f"{value}") for time, value in zip(times, values, strict=True)]
    if kind == "date and clock":
        rows = [f"{time:%d.%m.%Y};{time:%H:%M};{value.replace('.', ',')};W" for time, value in texts]
        text = "Datum;Uhrzeit;Leistung [kW];Status\n" + "\n".join(rows)
    elif kind == "preamble":
        rows = [f"Usage,{time:%Y-%m-%d},{time:%H:%M},{time:%H:%M},{value},$0.07," for time, value in texts]
        head = 'Name,JANE DOE\nAddress,"1 MAIN ST"\n\nTYPE,DATE,START TIME,END TIME,USAGE (kWh),COST,NOTES\n'
        text = head + "\n".join(rows)
    elif kind == "intervals":
        ends = times + pd.Timedelta("15min")
        rows = [
            f'"{start:%d.%m.%Y %H:%M} - {end:%d.%m.%Y %H:%M}",{value}'
            for (start, value), end in zip(texts, ends, strict=True)
        ]
        text = "MTU (CET/CEST),Load [MW]\n" + "\n".join(rows)
    else:
        rows = [f"{time:%Y},{time.month},{time.day},{time.hour},{time.minute},{value}" for time, value in texts]
        text = "Source,City,Zone,Units,Units,Units,Units,Units\nX,-,-1,w,w,w,w,w\nYear,Month,Day,Hour,Minute,GHI\n"
        text += "\n".join(rows)
    return text + "\n", values


@pytest.mark.parametrize("kind", ["date and clock", "preamble", "intervals", "parts"])
def test_exports_of_meters_are_read_as_they_are(write, kind):
    text, values = meter_file(kind)
    frame, metadata = read_series(write(text), time_zone="Europe/Berlin")
    kept = np.delete(values, np.arange(108, 112))  # 27 October, 2:00 to 2:45 for the second time
    assert np.array_equal(frame.iloc[:, 0], kept)
    assert (frame.index == pd.date_range("2024-10-26", periods=296, freq="15min")).all()
    again = read_series(write(text), **{"columns": metadata.columns} | metadata.file_format)[0]
    assert again.equals(frame)


def test_joined_time_columns_are_named_with_a_plus(write):
    text, values = meter_file("preamble")
    frame, metadata = read_series(write(text), "DATE+END TIME", ["USAGE (kWh)"], time_zone="Europe/Berlin")
    assert metadata.time_column == "DATE+END TIME"
    assert frame.iloc[0, 0] == values[0]
    assert "'NONE'" in refusal(write(text), time_column="DATE+NONE")
    assert "2 cells" in refusal(write("time\n" + "2024-01-01,5\n" * 9))  # the names are not looked for among numbers
