"""A policy whose movement is priced by distance, at the command line."""

import json

import pytest

import ecl2o as ec
from ecl2o.policy import Contract

from .operator_files import STEPS, write_series

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.LinearSwitching(0.5))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lazy")
    contract = Contract(columns=["demand"], steps_per_day=STEPS)
    ec.save(folder / "daily.ecl2o", ec.Policy(ec.Periodic(ec.LCP(), STEPS), PROBLEM, contract=contract))
    ec.save(folder / "whole.ecl2o", ec.Policy(ec.LCP(), PROBLEM))
    write_series(folder / "demand.csv", days=10)
    return folder


def test_it_acts_from_the_action_in_force_or_from_the_cheapest(files, ecl2o):
    policy = ec.load(files / "daily.ecl2o")
    assert policy.dim == 1
    runner = ec.Runner(policy, [3.0])
    wanted = [runner.step([y]).tolist() for y in (3.0, 9.0, 2.0)]
    result = ecl2o("act", files / "daily.ecl2o", "--x0", "3", stdin="3\n9\n2\n")
    assert result.exit_code == 0, result.stderr
    assert [[float(line)] for line in result.stdout.splitlines()] == wanted
    started = ecl2o("act", files / "daily.ecl2o", "--history", files / "demand.csv", stdin="3\n")
    assert started.exit_code == 0, started.stderr


def test_where_it_must_know_the_end_it_says_so_and_of_which_file(files, ecl2o):
    result = ecl2o("act", files / "whole.ecl2o", "--x0", "3", stdin="3\n")
    assert result.exit_code == 1
    assert "whole.ecl2o cannot be run here: LCP needs a horizon" in result.stderr
    assert "Periodic(LCP(), period)" in result.stderr


def test_it_is_evaluated_and_never_three_times_the_optimum(files, ecl2o):
    result = ecl2o("evaluate", files / "whole.ecl2o", files / "demand.csv", "--column", "demand", "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert 1 <= rows["whole.ecl2o"]["competitive_ratio"] <= 3
    assert "needs a Mahalanobis switching cost" in rows["r-obd"]["not_applicable"]


def test_in_a_comparison_it_is_a_row_that_says_why(files, ecl2o):
    asked = ("compare", files / "demand.csv", "--column", "demand", "--json", "--agents")
    result = ecl2o(*asked, f"greedy,{files / 'whole.ecl2o'}")
    assert result.exit_code == 0, result.stderr
    table = json.loads(result.stdout)
    assert table["agents"]["greedy"]["average_cost"] > 1
    assert table["agents"]["whole.ecl2o"]["average_cost"] is None
    assert "rate = 0.5" in table["not_applicable"]["whole.ecl2o"]
    alone = ecl2o(*asked, files / "whole.ecl2o")
    assert alone.exit_code == 1
    assert "whole.ecl2o" in alone.stderr
    assert "rate = 0.5" in alone.stderr
