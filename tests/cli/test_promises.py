"""Several promises and a baseline through the commands: fit, evaluate, act in a process of its own."""

import json
import subprocess
import sys

import pytest

import ecl2o as ec

from .conftest import SPLIT
from .operator_files import STEPS, write_series

FIT = ("--column", "demand", "--alpha", "5", "--advisor", "ridge", *SPLIT)
BOTH = ("--promise", "1.8", "--per", "run", "--promise", "2.5", "--per", "day")
ACT = "from ecl2o.cli.commands import app; app()"


def act(policy, lines: str) -> list[dict]:
    """The answers of `ecl2o act` in a process of its own."""
    command = [sys.executable, "-c", ACT, "act", str(policy)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_several_promises_and_a_baseline(ecl2o, tmp_path):
    data, policy = write_series(tmp_path / "demand.csv"), tmp_path / "policy.ecl2o"
    made = ecl2o(
        "fit", data, *FIT, *BOTH, "--baseline", "supply", "--never-worse", "90%/week", "--out", policy, "--json"
    )
    assert made.exit_code == 0, made.stderr
    report = json.loads(made.stdout)
    row = report["test"][report["yours"]]
    assert row["promise_kept"] is True
    promise = ec.Promise.from_json(row["promise"])
    named = [(each.ratio, each.period, each.reference.value) for each in (promise, *promise.also)]
    assert named == [(1.8, None, "optimum"), (2.5, STEPS, "optimum"), (1.9, 7 * STEPS, "expert")]
    loaded = ec.load(policy)
    assert loaded.contract.promise == promise
    assert loaded.contract.columns == ["demand", "supply"]
    steps = [(3.0, 2.0), (4.0, 2.5), (1.0, 9.0), (3.5, 0.0), (3.0, 3.0)]
    answers = act(policy, "".join(json.dumps({"context": [y], "baseline": b}) + "\n" for y, b in steps))
    runner = ec.Runner(loaded)
    for answer, step in zip(answers, steps, strict=True):
        assert answer["action"] == pytest.approx(runner.step(step).tolist(), rel=1e-9)
        assert answer["promises_left"] == pytest.approx(runner.promises_left.tolist(), abs=1e-9)
        assert len(answer["promises_left"]) == 3
        assert min(answer["promises_left"]) > -1e-9


def test_never_worse_than_the_rule_in_use(ecl2o, tmp_path):
    data, policy = write_series(tmp_path / "demand.csv"), tmp_path / "policy.ecl2o"
    made = ecl2o("fit", data, *FIT, "--baseline", "supply", "--never-worse", "5%", "--out", policy, "--json")
    assert made.exit_code == 0, made.stderr
    report = json.loads(made.stdout)
    row = report["test"][report["yours"]]
    assert row["promise_kept"] is True
    assert row["promise"]["ratio"] == pytest.approx(1.05)
    guard = ec.load(policy).agent
    assert isinstance(guard, ec.Guarded)
    assert float(guard.expert.scale) == 1.0  # in the file's units
    judged = ecl2o("evaluate", policy, data, "--column", "demand", "--covariate", "supply", "--json")
    assert judged.exit_code == 0, judged.stderr
    kept = [row["promise_kept"] for row in json.loads(judged.stdout)["rows"].values() if row.get("promise")]
    assert True in kept
    assert False not in kept


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        ((*BOTH, "--baseline", "supply", "--never-worse", "5%"), "1.64"),  # below the smallest ratio beside others
        (("--promise", "1.8", "--promise", "2.5", "--per", "day"), "1 for 2"),
        (("--baseline", "supply"), ""),
        (("--baseline", "supply", "--never-worse", "-5%"), "-5%"),
        (("--promise", "2", "--per", "fortnight"), "fortnight"),
    ],
)
def test_refusals_write_nothing(ecl2o, tmp_path, arguments, number):
    data, policy = write_series(tmp_path / "demand.csv"), tmp_path / "policy.ecl2o"
    refused = ecl2o("fit", data, *FIT, *arguments, "--out", policy)
    assert refused.exit_code in (1, 2)
    assert number in refused.stderr
    assert not policy.exists()
