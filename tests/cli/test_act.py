"""`ecl2o act`: line by line, the runner's own numbers, through bad lines and a killed process."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import ecl2o as ec

from .conftest import SPLIT
from .operator_files import demands, write_series

COMMAND = [sys.executable, "-c", "from ecl2o.cli import main; main()", "act"]
CONTEXTS = [3.5, 2.0, 4.25, -1.0, 3.0, 3.0, 2.5, 0.0, 1.5, 2.0]


@pytest.fixture(scope="module")
def expected(fitted):
    """What the library's runner plays, from the history that the policy carries."""
    policy = ec.load(fitted.policy)
    history = policy.history
    runner = ec.Runner(policy, history[-1], history)
    return [(runner.step([y]).tolist(), float(runner.cost), float(runner.live_ratio)) for y in CONTEXTS]


def test_csv_in_csv_out(fitted, ecl2o, expected):
    result = ecl2o("act", fitted.policy, stdin="".join(f"{y}\n" for y in CONTEXTS))
    assert result.exit_code == 0, result.stderr
    assert [[float(line)] for line in result.stdout.splitlines()] == [action for action, _, _ in expected]
    assert "history, which ends at 2024-01-24 18:00" in result.stderr


def test_named_columns_are_found_and_empty_lines_passed_over(fitted, ecl2o, expected):
    lines = ["time,supply,demand", *(f"2024-02-01 0{i}:00,9,{y}" for i, y in enumerate(CONTEXTS)), "", ""]
    result = ecl2o("act", fitted.policy, stdin="\n".join(lines))
    assert result.exit_code == 0, result.stderr
    assert [[float(line)] for line in result.stdout.splitlines()] == [action for action, _, _ in expected]


def test_json_in_json_out_with_bill_and_live_ratio(fitted, ecl2o, expected):
    shapes = [lambda y: [y], lambda y: {"demand": y, "supply": 9}, lambda y: {"context": [y]}]
    lines = [json.dumps(shapes[i % 3](y)) for i, y in enumerate(CONTEXTS)]
    result = ecl2o("act", fitted.policy, stdin="\n".join(lines))
    assert result.exit_code == 0, result.stderr
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["step"] for answer in answers] == list(range(1, len(CONTEXTS) + 1))
    assert [(a["action"], a["cost"], a["live_ratio"]) for a in answers] == expected
    assert max(a["live_ratio"] for a in answers) <= 2.2 * (1 + 1e-9)


def test_nothing_in_nothing_out(fitted, ecl2o, tmp_path):
    result = ecl2o("act", fitted.policy, "--state", tmp_path / "run.state", stdin="")
    assert (result.exit_code, result.stdout) == (0, "")
    assert not (tmp_path / "run.state").exists()


def test_history_and_x0(fitted, ecl2o):
    policy = ec.load(fitted.policy)
    past = np.array(demands(fitted.data))[:, None][-len(policy.history) :]
    runner = ec.Runner(policy, [7.0], past)
    result = ecl2o("act", fitted.policy, "--history", fitted.data, "--x0", "7", stdin="3.5\n")
    assert result.exit_code == 0, result.stderr
    assert float(result.stdout) == runner.step([3.5])[0]
    assert "history" not in result.stderr


def test_without_history_the_start_must_be_given(ecl2o, tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=5.0, dim=1))
    ec.save(tmp_path / "expert.ecl2o", ec.Policy(ec.ROBD(), problem))
    refused = ecl2o("act", tmp_path / "expert.ecl2o", stdin="1\n")
    assert refused.exit_code == 1
    assert "Give --x0" in refused.stderr
    assert ecl2o("act", tmp_path / "expert.ecl2o", "--x0", "1", stdin="1\n").stdout == "1.0\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("abc", "'abc' is not a number"),
        ("1,2", "the policy takes 1 numbers, got 2"),
        ("nan", "must be finite"),
        ('{"demand": "much"}', "must be numbers"),
        ('{"price": 1}', "no 'context' or 'demand' in"),
        ("[1, ", "not JSON"),
        ('{"step": 7, "demand": 1}', "step 7 does not follow step 1"),
    ],
)
def test_bad_lines_stop_or_are_skipped(fitted, ecl2o, expected, line, message):
    lines = f"{CONTEXTS[0]}\n{line}\n{CONTEXTS[1]}\n"
    stopped = ecl2o("act", fitted.policy, stdin=lines)
    assert stopped.exit_code == 1
    assert "ecl2o: line 2: " in stopped.stderr
    assert message in stopped.stderr
    assert len(stopped.stdout.splitlines()) == 1
    skipped = ecl2o("act", fitted.policy, "--skip-bad", stdin=lines)
    assert skipped.exit_code == 0
    assert "line 2 skipped: " in skipped.stderr
    assert [[float(answer)] for answer in skipped.stdout.splitlines()] == [action for action, _, _ in expected[:2]]


def test_a_repeated_step_is_answered_again_and_not_played_twice(fitted, ecl2o, expected, tmp_path):
    state = tmp_path / "run.state"
    first = ecl2o("act", fitted.policy, "--state", state, stdin=f'{{"step": 1, "demand": {CONTEXTS[0]}}}\n')
    lines = [{"step": 1, "demand": CONTEXTS[0]}, {"step": 2, "demand": CONTEXTS[1]}]
    again = ecl2o("act", fitted.policy, "--state", state, stdin="\n".join(map(json.dumps, lines)))
    assert "going on after 1 contexts" in again.stderr
    answers = [json.loads(line) for line in (first.stdout + again.stdout).splitlines()]
    assert [(a["step"], a["action"], a["cost"]) for a in answers] == [
        (step, *expected[step - 1][:2]) for step in (1, 1, 2)
    ]


def test_a_file_can_be_fed_again_from_its_beginning(fitted, ecl2o, expected, tmp_path):
    state, lines = tmp_path / "run.state", [f"{y}\n" for y in CONTEXTS]
    first = ecl2o("act", fitted.policy, "--state", state, stdin="demand\n" + "".join(lines[:4]))
    rest = ecl2o("act", fitted.policy, "--state", state, "--from-beginning", stdin="demand\n" + "".join(lines))
    answers = [[float(line)] for line in (first.stdout + rest.stdout).splitlines()]
    assert answers == [action for action, _, _ in expected]


def test_the_state_of_another_policy_is_refused(fitted, ecl2o, tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=5.0, dim=1))
    ec.save(tmp_path / "expert.ecl2o", ec.Policy(ec.ROBD(), problem))
    ecl2o("act", tmp_path / "expert.ecl2o", "--x0", "1", "--state", tmp_path / "run.state", stdin="1\n")
    result = ecl2o("act", fitted.policy, "--state", tmp_path / "run.state", stdin="1\n")
    assert result.exit_code == 1
    assert "of another policy" in result.stderr


def test_a_killed_process_goes_on_where_it_was(fitted, expected, tmp_path):
    """Killed with -9 in the middle of a day while it waits for input; each answer is read before the next context."""
    state = ["--state", str(tmp_path / "run.state")]
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    answers = []
    for part, end in ((CONTEXTS[:6], "kill"), (CONTEXTS[6:], "close")):
        with subprocess.Popen(
            [*COMMAND, str(fitted.policy), *state],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for context in part:
                process.stdin.write(f"{context}\n")
                process.stdin.flush()
                answers.append([float(process.stdout.readline())])
            if end == "kill":
                process.send_signal(signal.SIGKILL)
            else:
                process.stdin.close()
                assert process.wait(60) == 0
    assert answers == [action for action, _, _ in expected]


def test_a_regression_begins_on_all_that_it_can_learn_from(ecl2o, tmp_path):
    """Not only on what evaluation sets aside: what `fit` reported is what production gets."""
    data, out = write_series(tmp_path / "demand.csv"), tmp_path / "ridge.ecl2o"
    fitting = ecl2o("fit", data, "--out", out, "--column", "demand", "--advisor", "ridge", *SPLIT, "--json")
    assert fitting.exit_code == 0, fitting.stderr
    policy, past = ec.load(out), np.array(demands(data))[:, None]
    assert json.loads(fitting.stdout)["recipe"]["steps"] == 0
    for given in ((), ("--history", data)):
        result = ecl2o("act", out, "--x0", "7", *given, stdin="3.5\n")
        assert float(result.stdout) == ec.Runner(policy, [7.0], past).step([3.5])[0]
    assert float(result.stdout) != ec.Runner(policy, [7.0], past[-policy.contract.history_steps :]).step([3.5])[0]


def test_where_a_run_starts_has_the_dimension_of_actions(fitted, ecl2o):
    result = ecl2o("act", fitted.policy, "--x0", "1,2", stdin="3.5\n")
    assert result.exit_code == 2
    assert "the policy's actions have 1 numbers, got 2" in " ".join(result.stderr.split())
