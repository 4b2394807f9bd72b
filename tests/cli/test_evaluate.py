"""`ecl2o evaluate`: the same figures as `fit`, on whatever days are asked for."""

import json

import pytest

import ecl2o as ec

from .operator_files import DAYS, write_series


def test_the_test_days_give_the_figures_of_fit(fitted, ecl2o):
    result = ecl2o("evaluate", fitted.policy, fitted.data, "--days", DAYS - 18, "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    for name, row in fitted.report["test"].items():
        assert rows[name]["average_cost"] == pytest.approx(row["average_cost"], rel=1e-9)
        assert rows[name]["competitive_ratio"] == pytest.approx(row["competitive_ratio"], rel=1e-9)


def test_the_whole_series_without_what_the_policy_remembers(fitted, ecl2o):
    result = ecl2o("evaluate", fitted.policy, fitted.data)
    assert result.exit_code == 0, result.stderr
    assert f"{DAYS - 7} days of demand.csv, from 2024-01-08" in result.stdout
    assert "promise: at most 2.2 times the optimum of each day; kept" in result.stdout
    assert "live ratio" in result.stdout


def test_a_policy_without_a_promise_says_so(ecl2o, tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=5.0, dim=1))
    ec.save(tmp_path / "expert.ecl2o", ec.Policy(ec.ROBD(), problem))
    data = write_series(tmp_path / "demand.csv", days=10)
    result = ecl2o("evaluate", tmp_path / "expert.ecl2o", data, "--column", "demand")
    assert result.exit_code == 0, result.stderr
    assert "promise: none." in result.stdout
    assert "3 days of demand.csv" in result.stdout
    refused = ecl2o("evaluate", tmp_path / "expert.ecl2o", data)  # two columns of numbers
    assert refused.exit_code == 1
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("days", "arguments", "message"),
    [
        (2, (), "has 2 whole days (8 rows, 4 a day), but at least 3 are needed"),
        (5, ("--days", "5"), "--days 5 is more than the 5 days of the file leave"),
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
