"""`ecl2o evaluate`: the same figures as `fit`, on whatever days are asked for."""

import json

import pytest

import ecl2o as ec

from .conftest import TESTED
from .operator_files import DAYS, write_series


def test_the_test_days_give_the_figures_of_fit(fitted, ecl2o):
    result = ecl2o("evaluate", fitted.policy, fitted.data, "--days", TESTED, "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    for name, row in ((name, row) for name, row in fitted.report["test"].items() if name in rows):
        assert rows[name]["average_cost"] == pytest.approx(row["average_cost"], rel=1e-9)
        assert rows[name]["competitive_ratio"] == pytest.approx(row["competitive_ratio"], rel=1e-9)


def test_the_whole_series_without_what_the_policy_remembers(fitted, ecl2o):
    result = ecl2o("evaluate", fitted.policy, fitted.data)
    assert result.exit_code == 0, result.stderr
    assert f"{DAYS - 7} days of demand.csv, from 2024-01-08" in result.stdout
    words = " ".join(result.stdout.split())
    assert f"promise: {ec.Promise(2.2, period=4)}, at every step; kept" in words
    assert "live ratio" in words
    assert "the first 7 days" in words
    assert f"note: 11 of these {DAYS - 7} days" in words
    assert "--days 6" in words


def test_days_of_another_file_are_not_said_to_be_seen(fitted, ecl2o, tmp_path):
    other = write_series(tmp_path / "demand.csv", scale=2.0)
    result = ecl2o("evaluate", fitted.policy, other, "--json")
    assert json.loads(result.stdout)["days_the_policy_has_seen"] == 0


def test_rows_of_another_width_are_refused(fitted, ecl2o, tmp_path):
    hourly = write_series(tmp_path / "hourly.csv", hours=1)
    for command in (("evaluate", fitted.policy, hourly), ("act", fitted.policy, "--history", hourly)):
        result = ecl2o(*command)
        assert result.exit_code == 1
        assert "60 minutes apart" in result.stderr
        assert "360 minutes apart" in result.stderr


def test_on_a_constant_series_everything_costs_nothing(fitted, ecl2o, tmp_path):
    """Rounding is not a cost, and there is no ratio to a cost of zero."""
    lines = write_series(tmp_path / "constant.csv").read_text().splitlines()
    constant = [lines[0], *(f"{line.split(',')[0]},5.1,5.1,fine" for line in lines[1:])]
    (tmp_path / "constant.csv").write_text("\n".join(constant))
    result = ecl2o("evaluate", fitted.policy, tmp_path / "constant.csv", "--json")
    rows = json.loads(result.stdout)["rows"]
    for name in ("average_cost", "competitive_ratio"):
        assert {row[name] for row in rows.values()} == {None}
    assert {row["no_ratio"] for row in rows.values()} == {"optimum is zero"}
    assert {row["mean_cost"] for row in rows.values()} == {0.0}
    table = ecl2o("evaluate", fitted.policy, tmp_path / "constant.csv").stdout
    assert "optimum is 0" in table
    assert "worst day: none" in table
    assert "10^" not in table
    assert "e-" not in table


def test_days_of_another_length_are_refused(fitted, ecl2o):
    """A promise for days of four steps says nothing about days of two."""
    result = ecl2o("evaluate", fitted.policy, fitted.data, "--period", "2")
    assert result.exit_code == 1
    assert "days of 4 steps" in result.stderr
    assert ecl2o("evaluate", fitted.policy, fitted.data, "--period", "4", "--days", "6").exit_code == 0


def test_the_figures_do_not_depend_on_the_row_that_the_file_starts_at(fitted, ecl2o, tmp_path):
    """Days begin at midnight of the file's clock; a part of a day is named, not dropped in silence."""
    lines = fitted.data.read_text().splitlines()
    costs = {}
    for less in (0, 3):
        (tmp_path / "demand.csv").write_text("\n".join([lines[0], *lines[1 + less :]]))
        result = ecl2o("evaluate", fitted.policy, tmp_path / "demand.csv", "--days", "6", "--json")
        rows = json.loads(result.stdout)["rows"]
        costs[less] = {name: row["average_cost"] for name, row in rows.items()}
        assert {row["worst_day_starts"][-8:] for row in rows.values()} == {"00:00:00"}
        assert ("1 row before the first whole day is left out" in result.stderr) == (less == 3)
    assert costs[3] == pytest.approx(costs[0], rel=0.01)
    assert min(costs[0].values()) == costs[0]["oracle"] == 1.0
    later = ecl2o("evaluate", fitted.policy, fitted.data, "--days", "6", "--day-start", "06:00", "--json")
    assert (
        "days begin at 06:00; 1 row before the first whole day and 3 rows after the last are left out" in later.stderr
    )
    assert {row["worst_day_starts"][-8:] for row in json.loads(later.stdout)["rows"].values()} == {"06:00:00"}
    # and so does the promise, which is for each of these days
    assert json.loads(later.stdout)["rows"][fitted.report["yours"]]["competitive_ratio"] <= 2.2 * (1 + 1e-9)


def test_repairs_are_reported(fitted, ecl2o, tmp_path):
    lines = write_series(tmp_path / "gaps.csv").read_text().splitlines()
    del lines[20:22]
    (tmp_path / "gaps.csv").write_text("\n".join(lines))
    assert "missing" in ecl2o("evaluate", fitted.policy, tmp_path / "gaps.csv").stderr
    fill = ("--fill", "previous", "--fill-limit", "12")
    assert "--fill-limit 12" in ecl2o("evaluate", fitted.policy, tmp_path / "gaps.csv", *fill[:2]).stderr
    result = ecl2o("evaluate", fitted.policy, tmp_path / "gaps.csv", *fill)
    assert "gaps.csv: 2 numbers imputed (at most 2 in a row), 2 missing times added." in result.stderr


def test_a_policy_without_a_promise_says_so(ecl2o, tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=5.0, dim=1))
    ec.save(tmp_path / "expert.ecl2o", ec.Policy(ec.ROBD(), problem))
    data = write_series(tmp_path / "demand.csv", days=7 + TESTED)
    result = ecl2o("evaluate", tmp_path / "expert.ecl2o", data, "--column", "demand")
    assert result.exit_code == 0, result.stderr
    assert "promise: none." in result.stdout
    assert f"{TESTED} days of demand.csv" in result.stdout
    refused = ecl2o("evaluate", tmp_path / "expert.ecl2o", data)  # two columns of numbers
    assert refused.exit_code == 1
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("days", "arguments", "message"),
    [
        (2, (), "2 whole days (8 rows, 4 a day)"),
        (0.5, (), "2 rows, but no whole day, which is 4 rows from 00:00 on"),
        (5, ("--days", "5"), "--days must be at most 4, got 5"),
    ],
)
def test_short_files(fitted, ecl2o, tmp_path, days, arguments, message):
    result = ecl2o("evaluate", fitted.policy, write_series(tmp_path / "short.csv", days=days), *arguments)
    assert result.exit_code == 1
    assert message in result.stderr


def test_what_is_not_a_policy(fitted, ecl2o):
    result = ecl2o("evaluate", fitted.data, fitted.data)
    assert result.exit_code == 1
    assert result.stderr.startswith("ecl2o: ")
    assert "Traceback" not in result.stderr
