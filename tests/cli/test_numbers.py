"""Errors name options; numbers out of range are rejected before anything is read, trained or served."""

import pytest

_HUGE = "9" * 30


@pytest.mark.parametrize(
    ("command", "numbers"),
    [
        ("fleet fit sites --alpha", ("-1", "0", "nan", "inf")),
        ("fleet fit sites --promise", ("-1", "0", "1", "nan", "inf")),
        ("fleet fit sites --memory", ("-1", "0", "nan", "inf", "1e300")),
        ("fleet evaluate sites --memory", ("-1", "0", "nan", "inf", "1e300")),
        ("frontier --alpha", ("-1", "0", "nan", "inf")),
        ("reproduce --seeds", ("0", _HUGE)),
        ("reproduce --base-shortage", ("-1", "0", "nan", "inf")),
        *((f"{command} --seed", (_HUGE,)) for command in ("reproduce", "frontier", "sweep")),
        ("demo --speed", ("-1", "0", "nan", "inf")),
        ("demo --port", ("-1", _HUGE)),
        ("serve --port", ("-1", _HUGE)),
        ("demo --steps", ("0",)),
    ],
)
def test_a_number_out_of_range_is_rejected_by_its_option(ecl2o, tmp_path, monkeypatch, command, numbers):
    monkeypatch.chdir(tmp_path)
    for number in numbers:
        result = ecl2o(*command.split(), number)
        assert result.exit_code == 2
        assert command.split()[-1] in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_fleet_errors_name_options_instead_of_arguments(ecl2o, tmp_path):
    rows = [f"2024-01-{1 + hour // 24:02} {hour % 24:02}:00,{'' if hour == 5 else hour % 24}" for hour in range(480)]
    (tmp_path / "site.csv").write_text("\n".join(["time,demand", *rows]))
    (tmp_path / "sites.csv").write_text("name,file\nsite,site.csv\n")
    result = ecl2o("fleet", "fit", tmp_path / "sites.csv", "--out", tmp_path / "fleet")
    assert result.exit_code == 1
    for text in (result.stdout, result.stderr):
        assert "--fill previous" in text
        assert "fill=" not in text
