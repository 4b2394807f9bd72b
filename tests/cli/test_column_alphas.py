"""`--alpha demand=10,supply=3`: every column moves at its own price, through fit, evaluate, compare and act."""

import json

import numpy as np
import pytest

import ecl2o as ec
from ecl2o.fitting.settings import FitSettings
from ecl2o.policy import describe

from .conftest import SPLIT, TESTED
from .operator_files import write_series

BOTH = ("--column", "demand", "--column", "supply")
RANGES = ("--plausible", "supply=-9:9,demand=-20:20")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_series(tmp_path_factory.mktemp("columns") / "both.csv")


def test_each_column_has_its_alpha_from_fit_to_act(ecl2o, data, tmp_path):
    out, alpha = tmp_path / "both.ecl2o", "supply=3,demand=10"  # in another order than the file's
    fitting = ecl2o("fit", data, "--out", out, *BOTH, "--alpha", alpha, "--advisor", "ridge", *SPLIT, *RANGES, "--json")
    assert fitting.exit_code == 0, fitting.stderr
    settings = json.loads(fitting.stdout)["settings"]
    assert (settings["alpha"], settings["steps"]) == (
        {"supply": 3.0, "demand": 10.0},
        0,
    )  # nothing is trained without a promise
    policy = ec.load(out)
    assert policy.contract.columns == ["demand", "supply"]
    assert policy.contract.plausible == [(-20.0, 20.0), (-9.0, 9.0)]
    assert len(policy.contract.stuck_after) == 2
    np.testing.assert_array_equal(2 * policy.problem.Q, np.diag([10.0, 3.0]))
    assert describe(policy)["problem"]["alphas"] == [10.0, 3.0]

    acted = ecl2o("act", out, "--x0", "3,2", stdin="3.5,1.5\n")
    runner = ec.Runner(policy, [3.0, 2.0], policy.history)
    np.testing.assert_array_equal([float(x) for x in acted.stdout.split(",")], runner.step([3.5, 1.5]))

    evaluated = ecl2o("evaluate", out, data, *BOTH, "--days", TESTED, "--json")
    assert evaluated.exit_code == 0, evaluated.stderr
    compared = ecl2o("compare", data, *BOTH, "--alpha", alpha, "--agents", f"r-obd,{out}", "--days", TESTED, "--json")
    assert compared.exit_code == 0, compared.stderr
    table, tested = json.loads(compared.stdout), json.loads(evaluated.stdout)
    tested = tested["rows"][tested["yours"]]
    assert table["alpha"] == {"supply": 3.0, "demand": 10.0}
    assert table["agents"]["both.ecl2o"]["average_cost"] == pytest.approx(
        tested["average_cost"], rel=1e-9
    )  # the same days
    other = ecl2o("compare", data, *BOTH, "--alpha", "10", "--agents", str(out), "--days", TESTED)
    assert "alpha = 10" in " ".join(other.stderr.split())


@pytest.mark.parametrize(
    ("alpha", "message"),
    [
        ("10 --plausible=0", "--plausible"),
        ("10 --plausible=demand=0:9,demand=1:9", "twice"),
        ("10 --plausible=price=0:9", "demand, supply"),
        ("demand=10,price=3", "demand, supply"),
        ("demand=10", "demand, supply"),
        ("demand=10,demand=3", "demand=10,demand=3"),
        ("demand=10,3", "--alpha"),
        ("10,3", "--alpha"),
        ("much", "--alpha"),
        ("demand=0,supply=3", "got 0"),
        ("-1", "got -1"),
        ("nan", "got nan"),
    ],
)
def test_invalid_settings_of_columns_fail_before_training(ecl2o, data, tmp_path, alpha, message):
    out = tmp_path / "none.ecl2o"
    result = ecl2o("fit", data, "--out", out, *BOTH, *f"--alpha={alpha}".split(), *SPLIT)
    assert result.exit_code != 0
    words = " ".join(f"{result.stderr} {result.exception or ''}".replace("│", " ").split())
    assert message in words
    assert not out.exists()


def test_a_study_has_one_alpha(ecl2o):
    result = ecl2o("compare", "--study", "prices", "--alpha", "a=1,b=2", "--agents", "r-obd")
    assert result.exit_code == 2
    assert "--alpha" in " ".join(result.stderr.split())


def test_settings_require_positive_alphas():
    with pytest.raises(ValueError, match="-1"):
        FitSettings({"demand": 10.0, "supply": -1.0})
