"""`ecl2o alpha`: table, figure, and the alpha of two prices."""

import json

import pytest

from .operator_files import write_series


def test_the_table_and_the_figure_are_about_the_files_units(ecl2o, tmp_path):
    data, figure = write_series(tmp_path / "demand.csv"), tmp_path / "alpha.png"
    options = ("--column", "demand", "--miss-price", "20", "--ramp-price", "50", "--alphas", "10,0.5")
    result = ecl2o("alpha", data, *options, "--figure", figure, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["your_alpha"] == 2.5
    rows = report["rows"]
    assert [row["alpha"] for row in rows] == [0.5, 2.5, 10.0]
    for who in ("hindsight", "expert"):
        moves, misses = ([row[who][name] for row in rows] for name in ("move", "miss"))
        assert moves == sorted(moves, reverse=True)
        assert misses == sorted(misses)
    assert figure.read_bytes()[:4] == b"\x89PNG"
    printed = ecl2o("alpha", data, *options)
    assert "your prices: alpha = 2.5" in printed.stdout
    assert "2.5 <" in printed.stdout


def test_implausible_readings_are_replaced(ecl2o, tmp_path):
    """As in `fit`, the previous reading replaces them, with a notice."""
    lines = write_series(tmp_path / "demand.csv", days=120).read_text(encoding="utf-8").splitlines()
    as_used, damaged = list(lines), list(lines)
    for row in (100, 300):
        time, value, *rest = lines[row].split(",")
        damaged[row] = ",".join([time, str(1000 * float(value)), *rest])
        as_used[row] = ",".join([time, lines[row - 1].split(",")[1], *rest])
    printed = {}
    for name, content in (("damaged", damaged), ("used", as_used)):
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(content) + "\n", encoding="utf-8")
        printed[name] = ecl2o("alpha", path, "--column", "demand", "--alphas", "10,0.5", "--json")
    rows = {name: json.loads(result.stdout)["rows"] for name, result in printed.items()}
    assert rows["damaged"] == rows["used"]
    notice = printed["damaged"].stderr
    assert "damaged.csv: 2 " in notice
    assert lines[100][:19] in notice
    assert printed["used"].stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--miss-price", "1"), "--miss-price and --ramp-price"),
        (("--alphas", "1,a"), "--alphas"),
        (("--figure", "nowhere/alpha.png"), "--figure"),
    ],
)
def test_wrong_usage(ecl2o, tmp_path, arguments, message):
    result = ecl2o("alpha", write_series(tmp_path / "demand.csv"), *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
