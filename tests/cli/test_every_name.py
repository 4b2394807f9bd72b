"""Every command that takes a study or an agent, with every study and every agent of the catalogue: an answer or a reason."""

import json

import numpy as np
import pandas as pd
import pytest

import ecl2o as ec
from ecl2o.data import Contexts, Split
from ecl2o.fitting.named_agents import NAMED_AGENTS
from ecl2o.fitting.tasks import tracking_problem
from ecl2o.paper.case_study import expert_agents, make_policies
from ecl2o.paper.right_sizing import Cluster
from ecl2o.paper.test_days import STUDY_TEST_DAYS
from ecl2o.running import plausible_range

from .operator_files import STEPS, write_series

CONSTANT_CURVATURE = {"lai", "rhgd", "competitive-rhc", "ridge", "mixture", "competitive-ridge"}  # what these need
WITHOUT_END = {"lai", "lcp", "competitive-rhc"}  # what cannot run without knowing when it ends
ANNOUNCED = {"competitive-tariff"}  # what is told the weights of the hours in advance, where they have any
# Prices are varying curvature with a known range: what runs without one runs here too, by the same programs.
ASKED = {"prices": CONSTANT_CURVATURE | ANNOUNCED | {"r-obd"}, "prices-tariff": ANNOUNCED | {"r-obd"}}
EVALUATED = WITHOUT_END | ANNOUNCED | {"rhc", "switch-rhc", "ridge", "competitive-ridge"}  # one of each way to run
FIGURES = ("average_cost", "competitive_ratio", "tail_ratio", "microseconds_per_step")


@pytest.fixture(scope="module")
def series_file(tmp_path_factory):
    return write_series(tmp_path_factory.mktemp("series") / "demand.csv", days=5)


@pytest.fixture(scope="module")
def right_sizing_policy(tmp_path_factory):
    """As the study writes it."""
    expert = {"r-obd": expert_agents()["r-obd"]}
    path = tmp_path_factory.mktemp("policies") / "r-obd.ecl2o"
    values = np.random.default_rng(0).uniform(0, 10, size=(96, 1))
    workload = Contexts(values, pd.date_range("2024", periods=96, freq="h"), split=Split(2, 0))
    policy = make_policies(expert, Cluster().problem(), workload, {"study": "right-sizing"})["r-obd"]
    assert policy.contract.plausible == plausible_range(workload.training)
    ec.save(path, policy)
    return path


def ended_well(result, name: str) -> None:
    """With a code that the documentation names, and with a reason where it is not 0."""
    assert result.exit_code in (0, 1, 2), (name, result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), (name, result.exception)
    assert "Traceback" not in result.output, name
    assert result.exit_code == 0 or result.stderr.strip(), name


@pytest.mark.parametrize("study", STUDY_TEST_DAYS)
def test_compare_runs_every_agent_on_every_study_or_says_why_not(ecl2o, study, right_sizing_policy):
    names = [name for name in NAMED_AGENTS if name in ASKED.get(study, NAMED_AGENTS)]
    asked = [*names, *([str(right_sizing_policy)] if study == "right-sizing" else [])]
    result = ecl2o("compare", "--study", study, "--agents", ",".join(asked), "--days", "1", "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    expected = {
        "demand-response": ANNOUNCED,
        "varying-curvature": CONSTANT_CURVATURE,
        "right-sizing": CONSTANT_CURVATURE | ANNOUNCED | {"lcp"},
    }
    left_out = {name for name, row in report["agents"].items() if row["not_applicable"] is not None}
    assert left_out == set(report["not_applicable"])
    assert left_out == expected.get(study, left_out)
    assert "r-obd" not in left_out
    for name in names:
        row = report["agents"][name]
        if name in left_out:
            assert row["not_applicable"] == report["not_applicable"][name]
            assert all(row[figure] is None for figure in FIGURES)
        else:
            assert all(row[figure] is not None for figure in FIGURES)
    if study == "right-sizing":
        alone, stored = report["agents"]["r-obd"], report["agents"][right_sizing_policy.name]
        assert stored["average_cost"] == pytest.approx(alone["average_cost"], rel=1e-9)


def test_the_defaults_of_compare_fit_every_study_and_the_table_says_why_not(ecl2o):
    result = ecl2o("compare", "--study", "varying-curvature", "--days", "1")
    ended_well(result, "varying-curvature")
    assert "n/a (1)" in result.stdout
    assert "(1) lai does not apply: LAI needs a quadratic cost" in result.stdout


@pytest.mark.parametrize("name", NAMED_AGENTS)
def test_a_policy_of_every_agent_acts_and_is_evaluated(ecl2o, tmp_path, series_file, name):
    path = tmp_path / "policy.ecl2o"
    agent = NAMED_AGENTS[name](STEPS)
    forecaster = ec.forecasters.SeasonalNaive(STEPS) if agent.lookahead else None
    ec.save(path, ec.Policy(agent, tracking_problem(1, 5.0), forecaster))
    acted = ecl2o("act", path, "--x0", "1", stdin="2.5\n3\n")
    ended_well(acted, name)
    if name in WITHOUT_END | ANNOUNCED:
        assert acted.exit_code == 1
        assert ("weights" if name in ANNOUNCED else "horizon") in acted.stderr
    else:
        assert acted.exit_code == 0, acted.stderr
        assert len(acted.stdout.splitlines()) == 2
    if name in EVALUATED:
        tested = ecl2o("evaluate", path, series_file, "--column", "demand", "--days", "2", "--json")
        ended_well(tested, name)
        assert tested.exit_code == (1 if name in ANNOUNCED else 0), tested.stderr
        if tested.exit_code == 0:
            assert json.loads(tested.stdout)["rows"][path.name]["average_cost"] > 0
    assert ecl2o("cite", path).stdout.startswith("@")


@pytest.mark.parametrize("name", NAMED_AGENTS)
def test_every_agent_can_be_cited(ecl2o, name):
    assert ecl2o("cite", name).stdout.startswith("@")


def test_a_policy_of_the_right_sizing_study_acts_and_is_evaluated(ecl2o, right_sizing_policy, tmp_path):
    load = write_series(tmp_path / "load.csv", days=3, hours=1)
    acted = ecl2o("act", right_sizing_policy, "--x0", "1,2,3", stdin="10\n12\n")
    assert acted.exit_code == 0, acted.stderr
    actions = [[float(number) for number in line.split(",")] for line in acted.stdout.splitlines()]
    runner = ec.Runner(ec.load(right_sizing_policy), [1.0, 2.0, 3.0], np.zeros((0, 1)))
    assert actions == [runner.step([load]).tolist() for load in (10.0, 12.0)]
    begun = ecl2o("act", right_sizing_policy, "--history", load, "--x0", "1,2,3", stdin="10\n")
    assert begun.exit_code == 1
    assert "has 2 columns of numbers: demand, supply" in begun.stderr
    assert "--column" in begun.stderr
    tested = ecl2o("evaluate", right_sizing_policy, load, "--column", "demand", "--days", "1", "--json")
    assert tested.exit_code == 0, tested.stderr
    rows = json.loads(tested.stdout)["rows"]
    assert rows[right_sizing_policy.name]["average_cost"] == pytest.approx(rows["r-obd"]["average_cost"], rel=1e-9)
