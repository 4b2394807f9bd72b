"""Lines for `act`: numbers, times, missing values, and what is rejected."""

import datetime
import math

import pytest

import ecl2o as ec
from ecl2o.act import ActSession, LineReader, ParsedLine
from ecl2o.data import read_series
from ecl2o.exceptions import NotAnsweredError
from ecl2o.json_text import MISSING_VALUES


@pytest.mark.parametrize("header", [(), ("time,demand",)])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('2024-01-01 06:00,"14,100"', "'14,100' is not a number"),
        ("2024-01-01 06:00,14,100", "is not a number|3 cells.* 2 columns"),
    ],
)
def test_thousands_separators_are_rejected(header, line, message):
    """Of 14,100 the first cell is 14, which may well be plausible."""
    reader = LineReader(["demand"], 1)
    for names in header:
        assert reader.read(names) is None
    with pytest.raises(ValueError, match=message):
        reader.read(line)
    line_read = reader.read('"2024-01-01 06:00", "14.5"')
    assert line_read.context == [14.5]
    assert line_read.time == datetime.datetime(2024, 1, 1, 6)


@pytest.mark.parametrize("cell", sorted(MISSING_VALUES - {""}))
def test_act_and_fit_share_the_spellings_of_missing_values(cell, tmp_path):
    assert math.isnan(LineReader(["demand"], 1).read(f"2024-01-01 06:00,{cell.upper()}").context[0])
    rows = [f"2024-01-0{1 + i // 24} {i % 24:02}:00,{cell.upper() if i == 5 else i}" for i in range(48)]
    (tmp_path / "series.csv").write_text("time,demand\n" + "\n".join(rows))
    series = read_series(tmp_path / "series.csv", fill="previous")[0]
    assert series["demand"].iloc[5] == 4


def test_the_state_file_is_as_before_if_printing_fails(tmp_path):
    policy = ec.Policy(ec.ROBD(), ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1)))
    state, answers = tmp_path / "run.state", []

    def fail(answer):
        raise NotAnsweredError("closed")

    session = ActSession(policy, state, x0=[0.0])
    with pytest.raises(NotAnsweredError, match="step 1"):
        session.answer(ParsedLine([3.0]), fail)
    assert not state.exists()
    session.answer(ParsedLine([3.0]), answers.append)
    before = state.read_bytes()
    with pytest.raises(NotAnsweredError, match="step 2"):
        session.answer(ParsedLine([4.0]), fail)
    assert state.read_bytes() == before
    assert session.steps == 1


@pytest.mark.parametrize(
    ("header", "line"),
    [
        ("When,demand", "2024-01-01T06:00,1.5"),
        ("site,demand,Interval start", "north,1.5,2024-01-01 06:00"),
        ("issued,demand,Time", "2023-12-31 06:00,1.5,2024-01-01 06:00"),
        (None, '{"When": "2024-01-01T06:00", "demand": 1.5, "site": "north"}'),
        (None, '{"issued": "2023-12-31T06:00", "time": "2024-01-01T06:00", "demand": 1.5}'),
    ],
)
def test_a_time_of_any_name_is_read(header, line):
    reader = LineReader(["demand"], 1)
    if header is not None:
        assert reader.read(header) is None
    found = reader.read(line)
    assert found.time == datetime.datetime(2024, 1, 1, 6)
    assert found.context == [1.5]


@pytest.mark.parametrize(
    "line", ["2023-12-31 06:00,2024-01-01 06:00,1.5", '{"time": "2023-12-31", "End": "2024-01-01T06", "demand": 1}']
)
def test_of_several_times_the_named_one_is_read(line):
    reader = LineReader(["demand"], 1, time_column="End")
    assert reader.read("time,End,demand") is None
    assert reader.read(line).time == datetime.datetime(2024, 1, 1, 6)


def test_lines_have_the_dialect_of_the_file():
    """Semicolons, decimal commas, day first, date and clock in two columns."""
    reader = LineReader(["kW"], 1, "Datum+Uhrzeit", day_first=True)
    assert reader.read("Datum;Uhrzeit;kW;Status") is None
    line = reader.read("03.04.2025;6:15;223,7;W")
    assert (line.time, line.context) == (datetime.datetime(2025, 4, 3, 6, 15), [223.7])
    first = LineReader(["kW"], 1, day_first=True)
    assert first.read("03.04.2025 06:15;-0,5") == ParsedLine([-0.5], time=datetime.datetime(2025, 4, 3, 6, 15))


@pytest.mark.parametrize("day_first", [None, False, True])
def test_a_date_is_never_taken_for_a_note(day_first):
    """A time that cannot be read would otherwise be ignored, and the hour of the day be wrong."""
    line = '{"Zeitstempel": "03/04/2025 06:00", "kW": 1.5}'
    reader = LineReader(["kW"], 1, day_first=day_first)
    if day_first is None:
        with pytest.raises(ValueError, match="is not a time"):
            reader.read(line)
    else:
        month, day = (4, 3) if day_first else (3, 4)
        assert reader.read(line).time == datetime.datetime(2025, month, day, 6)
    assert reader.read('{"note": "3.4.2025, from the pump", "kW": 1.5}').time is None


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_lines_in_another_encoding_are_named_as_such(encoding):
    line = "Zeit,größe".encode(encoding).decode(errors="replace")
    with pytest.raises(ValueError, match="UTF-8"):
        LineReader(["größe"], 1).read(line)
