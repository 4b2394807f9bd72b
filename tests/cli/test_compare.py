"""`ecl2o compare`: any agents on any contexts in one table."""

import json
import re
import subprocess
import sys

import pytest

from ecl2o.policy import load, save
from ecl2o.policy.policy import with_action_limits
from ecl2o.theory import exact_robd_ratio

from .conftest import TESTED
from .operator_files import write_series


def test_agents_and_policies_beside_each_other(fitted, ecl2o):
    names = f"r-obd,rhc,{fitted.policy}"
    options = ("--column", "demand", "--agents", names, "--alpha", "5", "--days", TESTED)
    result = ecl2o("compare", fitted.data, *options, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert list(report["agents"]) == ["oracle", "daily-oracle", "r-obd", "rhc", "policy.ecl2o"]
    assert report["days"] == TESTED
    assert report["agents"]["oracle"]["average_cost"] == 1.0
    assert report["agents"]["r-obd"]["competitive_ratio"] <= float(exact_robd_ratio(1.0, 5.0)) * (1 + 1e-9)
    assert report["agents"]["policy.ecl2o"]["promise_kept"] is True
    for row in report["agents"].values():
        assert row["microseconds_per_step"] > 0
        assert set(row["tail_ratio"]) == {"p90", "p95", "p99", "p99.5"}


def test_foresight_is_the_oracle_and_the_table_names_it(ecl2o, tmp_path):
    data = write_series(tmp_path / "demand.csv", days=6)
    both = ("--column", "demand", "--column", "supply")
    result = ecl2o("compare", data, *both, "--agents", "rhc,lcp", "--forecaster", "exact", "--days", "2")
    assert result.exit_code == 0, result.stderr
    assert "2 days of" in result.stdout
    assert "forecaster: exact" in result.stdout
    assert "lcp does not apply" in result.stdout  # two columns


def test_a_study_that_comes_with_the_program(ecl2o):
    result = ecl2o(
        "compare", "--study", "varying-curvature", "--agents", "r-obd,competitive-rhc", "--days", "5", "--json"
    )
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["agents"]["r-obd"]["competitive_ratio"] <= 3.7016
    assert "curvature" in report["not_applicable"]["competitive-rhc"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "--study"),
        (("--study", "nowhere"), 2, "demand-response, right-sizing, varying-curvature"),
        (("--study", "varying-curvature", "--agents", "magic"), 2, "'magic'"),
        (("--study", "varying-curvature", "--agents", ","), 2, "--agents"),
        (("--study", "varying-curvature", "--forecaster", "stars"), 2, "rolling-profile"),
        (("--study", "varying-curvature", "--bounds", "0:1"), 2, "--bounds"),
        (("missing.csv",), 1, "missing.csv"),
    ],
)
def test_wrong_usage(ecl2o, arguments, code, message):
    result = ecl2o("compare", *arguments)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_a_policy_with_bounds_is_compared_within_them(fitted, ecl2o, tmp_path):
    limited, limits = tmp_path / "limited.ecl2o", (2.5, 3.5)
    save(limited, with_action_limits(load(fitted.policy), *limits))
    options = ("--column", "demand", "--alpha", "5", "--agents", limited, "--days", TESTED)
    refused = ecl2o("compare", fitted.data, *options)
    assert refused.exit_code == 1
    assert "bounds from [2.5] to [3.5]" in refused.stderr
    result = ecl2o("compare", fitted.data, *options, "--bounds", "2.5:3.5", "--json")
    assert result.exit_code == 0, result.stderr
    assert set(json.loads(result.stdout)["agents"]) >= {"oracle", "limited.ecl2o"}


def test_a_policy_for_other_days_is_refused(fitted, ecl2o, tmp_path):
    hourly = write_series(tmp_path / "hourly.csv", days=10, hours=1)
    result = ecl2o("compare", hourly, "--column", "demand", "--agents", f"r-obd,{fitted.policy}")
    assert result.exit_code == 1
    assert {"60", "360"} <= set(re.findall(r"\d+", result.stderr))


def test_a_policy_for_another_alpha_is_refused(fitted, ecl2o):
    options = ("--column", "demand", "--alpha", "1", "--agents", f"r-obd,{fitted.policy}", "--days", TESTED)
    result = ecl2o("compare", fitted.data, *options)
    assert (result.exit_code, result.stdout) == (1, "")
    words = " ".join(result.stderr.split())
    assert "alpha = 5" in words
    assert "alpha = 1" in words


def test_implausible_readings_are_replaced(ecl2o, tmp_path):
    """The previous reading replaces it, as in `evaluate`, with a notice."""
    lines = write_series(tmp_path / "demand.csv", days=60).read_text(encoding="utf-8").splitlines()
    time, value, *rest = lines[200].split(",")
    changed = {"damaged": str(1000 * float(value)), "used": lines[199].split(",")[1]}
    results = {}
    for name, cell in changed.items():
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join([*lines[:200], ",".join([time, cell, *rest]), *lines[201:]]) + "\n", encoding="utf-8")
        results[name] = ecl2o("compare", path, "--column", "demand", "--agents", "r-obd,greedy", "--json")
    reports = {name: json.loads(result.stdout) for name, result in results.items()}
    assert [report.pop("screened") for report in reports.values()] == [1, 0]
    assert reports["used"]["days"] == 60 - 14  # by default all but the first two weeks
    costs = [{name: row["mean_cost"] for name, row in report["agents"].items()} for report in reports.values()]
    assert costs[0] == costs[1]
    assert "damaged.csv: 1 " in results["damaged"].stderr
    assert time in results["damaged"].stderr
    assert results["used"].stderr == ""


def test_agents_can_be_listed(ecl2o):
    assert "r-obd" in ecl2o("compare", "--agents", "list").stdout.splitlines()


def test_help_names_every_study(ecl2o):
    from ecl2o.paper.test_days import STUDY_TEST_DAYS

    words = ecl2o("compare", "--help").stdout.replace("│", " ").split()
    assert not [name for name in STUDY_TEST_DAYS if not {name, f"{name},", f"{name}."} & set(words)]


def test_help_of_every_command_is_lazy_and_has_an_example():
    script = """
import sys
from typer.testing import CliRunner
from ecl2o.cli.commands import app
for command in ("fit", "evaluate", "act", "compare"):
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0 and f"Example: " in shown.stdout and f"ecl2o {command}" in shown.stdout, command
    assert "--json" in shown.stdout, command
slow = {"jax", "numpy", "pandas", "equinox", "matplotlib"} & set(sys.modules)
assert not slow, slow
"""
    subprocess.run([sys.executable, "-c", script], check=True)
