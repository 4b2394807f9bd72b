"""`ecl2o act`: line by line, the runner's own numbers, through bad lines and a killed process."""

import datetime
import json
import os
import re
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest

import ecl2o as ec
from ecl2o.act import lock_state
from ecl2o.paper.right_sizing import Cluster
from ecl2o.policy import Contract, policy_file

from .conftest import TESTED
from .operator_files import demands

COMMAND = [sys.executable, "-c", "from ecl2o.cli import main; main()", "act"]
CONTEXTS = [3.5, 2.0, 4.25, -1.0, 3.0, 3.0, 2.5, 0.0, 1.5, 2.0]
TIMES = [datetime.datetime(2024, 1, 25) + datetime.timedelta(hours=6 * i) for i in range(len(CONTEXTS))]


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
    assert "2024-01-24 18:00" in result.stderr


def test_named_columns_are_found_and_empty_lines_passed_over(fitted, ecl2o, expected):
    lines = ["time,supply,demand", *(f"{time},9,{y}" for time, y in zip(TIMES, CONTEXTS, strict=True)), "", ""]
    result = ecl2o("act", fitted.policy, stdin="\n".join(lines))
    assert result.exit_code == 0, result.stderr
    assert [[float(line)] for line in result.stdout.splitlines()] == [action for action, _, _ in expected]


def test_json_in_json_out_with_cost_and_live_ratio(fitted, ecl2o, expected):
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
    assert "own history" not in result.stderr


def test_without_history_the_start_must_be_given(ecl2o, tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=5.0, dim=1))
    ec.save(tmp_path / "expert.ecl2o", ec.Policy(ec.ROBD(), problem))
    refused = ecl2o("act", tmp_path / "expert.ecl2o", stdin="1\n")
    assert refused.exit_code == 1
    assert "--x0" in refused.stderr
    assert ecl2o("act", tmp_path / "expert.ecl2o", "--x0", "1", stdin="1\n").stdout == "1.0\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("abc", "'abc'"),
        ("1,2", "1 .* 2"),
        ('{"demand": "much"}', "much"),
        ('{"price": 1}', "'context' .*'demand' .*price"),
        ("[1, ", "JSON"),
        ('{"step": 7, "demand": 1}', "step 7 .*step 1"),
    ],
)
def test_bad_lines_stop_or_are_skipped(fitted, ecl2o, expected, line, message):
    lines = f"{CONTEXTS[0]}\n{line}\n{CONTEXTS[1]}\n"
    stopped = ecl2o("act", fitted.policy, stdin=lines)
    assert stopped.exit_code == 1
    assert re.search(f"ecl2o: line 2: .*{message}", stopped.stderr)
    assert len(stopped.stdout.splitlines()) == 1
    skipped = ecl2o("act", fitted.policy, "--skip-bad", stdin=lines)
    assert skipped.exit_code == 0
    assert re.search(f"line 2 .*{message}", skipped.stderr)
    assert [[float(answer)] for answer in skipped.stdout.splitlines()] == [action for action, _, _ in expected[:2]]


def test_a_repeated_step_is_answered_again_and_not_played_twice(fitted, ecl2o, expected, tmp_path):
    state = tmp_path / "run.state"
    first = ecl2o("act", fitted.policy, "--state", state, stdin=f'{{"step": 1, "demand": {CONTEXTS[0]}}}\n')
    lines = [{"step": 1, "demand": CONTEXTS[0]}, {"step": 2, "demand": CONTEXTS[1]}]
    again = ecl2o("act", fitted.policy, "--state", state, stdin="\n".join(map(json.dumps, lines)))
    assert re.search(rf" 1 .*{state}", again.stderr)
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
    before = (tmp_path / "run.state").read_bytes()
    result = ecl2o("act", fitted.policy, "--state", tmp_path / "run.state", stdin="1\n")
    assert result.exit_code == 1
    assert str(tmp_path / "run.state") in result.stderr
    assert (tmp_path / "run.state").read_bytes() == before


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


def test_a_regression_begins_on_all_that_it_can_learn_from(fitted, ecl2o):
    """Not only on what evaluation sets aside: what `fit` reported is what production gets."""
    policy, past = ec.load(fitted.policy), np.array(demands(fitted.data))[:, None]
    assert policy.metadata["validation"]["advisor"] == "ridge"
    for given in ((), ("--history", fitted.data)):
        result = ecl2o("act", fitted.policy, "--x0", "7", *given, stdin="3.5\n")
        assert float(result.stdout) == ec.Runner(policy, [7.0], past).step([3.5])[0]
    assert float(result.stdout) != ec.Runner(policy, [7.0], past[-policy.contract.history_steps :]).step([3.5])[0]


def test_where_a_run_starts_has_the_dimension_of_actions(fitted, ecl2o):
    result = ecl2o("act", fitted.policy, "--x0", "1,2", stdin="3.5\n")
    assert result.exit_code == 2
    assert re.search("--x0.* 1 .* 2", " ".join(result.stderr.split()))


# --- readings that cannot be right ------------------------------------------------------------------------------------


def values(result):
    assert result.exit_code == 0, result.stderr
    return [float(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("bad", ["nan", "", "4250", "-1e9", "null", '{"demand": null}', '{"context": [1e300]}'])
def test_the_last_plausible_reading_replaces_a_bad_one(fitted, ecl2o, bad):
    bad = bad or '""'
    result = ecl2o("act", fitted.policy, "--json", stdin=f"3.5\n2\n{bad}\n2.5\n")
    told = [json.loads(line) for line in result.stdout.splitlines()]
    wanted = ecl2o("act", fitted.policy, "--json", stdin="3.5\n2\n2\n2.5\n")
    assert [t["action"] for t in told] == [json.loads(line)["action"] for line in wanted.stdout.splitlines()]
    assert [t.get("context_used") for t in told] == [None, None, [2.0], None]
    assert re.search(r"line 3 .* 2,.*\n.* 1\.", result.stderr)


def test_a_first_reading_that_is_not_plausible_is_refused_in_plain_numbers(ecl2o, tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=5.0, dim=1))
    contract = Contract(columns=["demand"], plausible=[(0.0, 10.0)])
    ec.save(tmp_path / "site.ecl2o", ec.Policy(ec.ROBD(), problem, contract=contract))
    result = ecl2o("act", tmp_path / "site.ecl2o", "--x0", "4", stdin="100\n")
    assert result.exit_code == 1
    assert "line 1: the context (100)" in result.stderr
    assert "0 to 10" in result.stderr
    assert "--history" in result.stderr
    assert "array" not in result.stderr


def test_a_policy_that_does_not_say_how_long_a_context_is_asks_for_a_history_in_words(ecl2o, tmp_path):
    ec.save(tmp_path / "site.ecl2o", ec.Policy(ec.Greedy(), Cluster().problem()))
    result = ecl2o("act", tmp_path / "site.ecl2o", "--x0", "4,0,0", stdin="100\n")
    assert result.exit_code == 1
    assert "--history" in result.stderr
    assert "context_dim" in result.stderr


def test_a_policy_that_says_nothing_of_what_is_plausible_refuses_what_is_missing(ecl2o, tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=5.0, dim=1))
    ec.save(tmp_path / "expert.ecl2o", ec.Policy(ec.ROBD(), problem))
    refused = ecl2o("act", tmp_path / "expert.ecl2o", "--x0", "1", stdin="1\nnull\n")
    assert refused.exit_code == 1
    assert "line 2: " in refused.stderr


def test_a_zero_is_replaced_and_a_stuck_meter_is_named(fitted, ecl2o):
    """Demand was between 1 and 6, and never the same twice."""
    lines = "3.5\n0\n2\n2\n2\n2\n2.5\n"
    result = ecl2o("act", fitted.policy, "--json", stdin=lines)
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [t.get("context_used") for t in told] == [None, [3.5], *[None] * 5]
    assert [t.get("stuck") for t in told] == [*[None] * 4, ["demand"], ["demand"], None]
    assert re.search(r"line 2 .*\n.*line 5: demand .*\n.*line 6: demand .*\n.* 1\.\n.* 2\.", result.stderr)


# --- clocks ---------------------------------------------------------------------------------------------------------


def timed(pairs, mark=""):
    return mark + "".join(f"{time},{context}\n" for time, context in pairs)


def test_a_byte_order_mark_and_times_without_a_header_are_understood(fitted, ecl2o):
    plain = values(ecl2o("act", fitted.policy, stdin="\n".join(map(str, CONTEXTS))))
    pairs = list(zip(TIMES, CONTEXTS, strict=True))
    assert values(ecl2o("act", fitted.policy, stdin=timed(pairs, "\ufeff"))) == plain
    lines = [json.dumps({"time": str(time), "demand": context}) for time, context in pairs]
    told = [json.loads(line) for line in ecl2o("act", fitted.policy, stdin="\n".join(lines)).stdout.splitlines()]
    assert [answer["action"][0] for answer in told] == plain


def test_a_missed_tick_is_noticed_and_filled(fitted, ecl2o, tmp_path):
    """The day is not shifted: what follows is what a stream with an empty line for the missing step is answered."""
    pairs = list(zip(TIMES, CONTEXTS, strict=True))
    whole = values(ecl2o("act", fitted.policy, stdin=timed([*pairs[:4], (TIMES[4], "null"), *pairs[5:]])))
    state = tmp_path / "run.state"
    first = ecl2o("act", fitted.policy, "--state", state, stdin=timed(pairs[:4]))
    second = ecl2o("act", fitted.policy, "--state", state, "--json", stdin=timed(pairs[5:]))
    told = [json.loads(line) for line in second.stdout.splitlines()]
    assert values(first) + [answer["action"][0] for answer in told] == [*whole[:4], *whole[5:]]
    assert [answer.get("filled", 0) for answer in told] == [1, 0, 0, 0, 0]
    assert [answer["step"] for answer in told] == [5, 6, 7, 8, 9]
    assert re.search(f"{TIMES[3]} .*{TIMES[5]}: 1; .*: 1", second.stderr)


def test_a_step_whose_time_was_answered_is_answered_again_and_an_earlier_one_refused(fitted, ecl2o, tmp_path):
    pairs, state = list(zip(TIMES, CONTEXTS, strict=True)), tmp_path / "run.state"
    first = values(ecl2o("act", fitted.policy, "--state", state, stdin=timed(pairs[:3])))
    again = ecl2o("act", fitted.policy, "--state", state, stdin=timed(pairs[2:4]))
    assert values(again) == [first[2], values(ecl2o("act", fitted.policy, stdin=timed(pairs[:4])))[3]]
    late = ecl2o("act", fitted.policy, "--state", state, stdin=timed([(TIMES[3] + datetime.timedelta(minutes=20), 99)]))
    assert values(late) == values(again)[1:]
    assert str(TIMES[3]) in late.stderr
    refused = ecl2o("act", fitted.policy, "--state", state, stdin=timed(pairs[:1]))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert str(TIMES[0]) in refused.stderr
    whole = ecl2o("act", fitted.policy, "--state", state, "--from-beginning", stdin=timed(pairs))
    assert len(values(whole)) == len(CONTEXTS) - 4


@pytest.mark.parametrize("days", [0, 1, 30, -3])
def test_with_times_the_hour_of_the_day_comes_from_the_clock(fitted, ecl2o, days):
    """A run that begins at noon after a history that ends in the evening knows that it is noon."""
    noon = TIMES[2] + datetime.timedelta(days=days)
    result = ecl2o("act", fitted.policy, "--x0", "3", stdin=timed([(noon, 3.5)]))
    history = ec.load(fitted.policy).history
    usual = 28 if len(history) >= 28 else 4
    gap = (days * 4 + 2) % usual
    past = np.concatenate([history, history[len(history) - usual :][:gap]])[-len(history) :]
    assert values(result) == [ec.Runner(ec.load(fitted.policy), [3.0], past).step([3.5])[0]]
    assert re.search(rf" {abs(4 * days + 2)} steps .*{noon}", result.stderr)


# --- supervisors ------------------------------------------------------------------------------------------------------


def test_a_second_process_learns_which_file_is_locked_and_what_to_do(fitted, ecl2o, tmp_path):
    state = tmp_path / "run.state"
    with lock_state(state):
        refused = ecl2o("act", fitted.policy, "--state", state, stdin="3.5\n")
        assert (refused.exit_code, refused.stdout) == (1, "")
        for part in (f"{state} ", str(tmp_path / ".run.state.lock"), "--state"):
            assert part in refused.stderr
        assert not state.exists()
    assert len(values(ecl2o("act", fitted.policy, "--state", state, stdin="3.5\n"))) == 1


def test_a_state_is_a_regular_file_or_not_there_yet(fitted, ecl2o, tmp_path):
    """A pipe would be read for ever, and so would a device."""
    os.mkfifo(tmp_path / "pipe")
    for state in (tmp_path, tmp_path / "pipe"):
        result = ecl2o("act", fitted.policy, "--state", state, stdin="3.5\n")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--state" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_what_a_killed_process_left_unfinished_is_removed(fitted, ecl2o, tmp_path):
    for name in (".run.state.0a1b2c3d.unfinished", ".other.state.0a1b2c3d.unfinished"):
        (tmp_path / name).write_bytes(b"half")
    values(ecl2o("act", fitted.policy, "--state", tmp_path / "run.state", stdin="3.5\n"))
    assert [path.name for path in tmp_path.glob(".*.unfinished")] == [".other.state.0a1b2c3d.unfinished"]


def test_a_full_disk_is_named_and_no_step_is_lost(fitted, ecl2o, tmp_path, monkeypatch):
    state = tmp_path / "run.state"
    first = values(ecl2o("act", fitted.policy, "--state", state, stdin="3.5\n"))
    kept = state.read_bytes()

    def full(descriptor):
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(policy_file.os, "fsync", full)
        refused = ecl2o("act", fitted.policy, "--state", state, stdin="2\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"ecl2o: {state}: No space left on device" in refused.stderr
    assert state.read_bytes() == kept
    assert first + values(ecl2o("act", fitted.policy, "--state", state, stdin="2\n")) == values(
        ecl2o("act", fitted.policy, stdin="3.5\n2\n")
    )


def test_closed_input_and_output_are_said_in_one_line(fitted):
    for redirection, stream in (("<&-", "standard input"), (">&-", "standard output")):
        line = f'exec "$@" {redirection}'
        result = subprocess.run(
            ["sh", "-c", line, "sh", *COMMAND, fitted.policy], capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert result.returncode == 1
        assert result.stderr.startswith(f"ecl2o: {stream}")
        assert len(result.stderr.splitlines()) == 1


def test_a_process_that_is_started_for_one_step_compiles_nothing_of_the_run(tmp_path):
    """Every later one finds the programs of the first, which is most of what a cold start takes."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=5.0, dim=1))
    ec.save(tmp_path / "expert.ecl2o", ec.Policy(ec.ROBD(), problem))
    command = [*COMMAND, tmp_path / "expert.ecl2o", "--x0", "1"]
    settings = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_LOG_COMPILES": "1"}
    told = [
        subprocess.run(command, input="3.5\n", capture_output=True, text=True, env=os.environ | settings)
        for _ in range(2)
    ]
    assert told[0].stdout == told[1].stdout != ""
    first, second = (set(re.findall(r"Compiling jit\((\w+)\)", one.stderr)) for one in told)
    assert first - second == {"packed_begin", "called"}


def test_a_step_without_a_reader_is_not_answered(fitted, tmp_path, ecl2o):
    """The reader of the output has left: exit code 1, and the next process plays the step."""
    state = tmp_path / "run.state"
    first = values(ecl2o("act", fitted.policy, "--state", state, stdin="3.5\n"))
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [*COMMAND, fitted.policy, "--state", state], input="2\n", stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert result.returncode == 1
    assert "ecl2o: step 2 " in result.stderr
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr
    rest = values(ecl2o("act", fitted.policy, "--state", state, stdin="2\n4.25\n"))
    assert first + rest == values(ecl2o("act", fitted.policy, stdin="3.5\n2\n4.25\n"))


def test_a_promise_that_is_lost_is_said_beside_the_answer(ecl2o, tmp_path):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    guard = ec.Competitive(ec.ROBD(), 2.5, contexts=(-1.0, 1.0))
    ec.save(tmp_path / "guard.ecl2o", ec.Policy(guard, problem))
    result = ecl2o("act", tmp_path / "guard.ecl2o", "--x0", "0", stdin="[0.5]\n[50.0]\n")
    assert result.exit_code == 0
    kept, lost = map(json.loads, result.stdout.splitlines())
    assert "unconverged" not in kept
    assert lost["unconverged"] is True
    assert "line 1" not in result.stderr
    assert "line 2: " in result.stderr


# --- limits ---------------------------------------------------------------------------------------------------------


def test_limits_and_a_promise_together(fitted, ecl2o, tmp_path):
    """Limits of the day: actions stay there, the promise is kept for contexts there, and evaluate knows them too."""
    policy = ec.load(fitted.policy)
    free = ecl2o("act", fitted.policy, "--json", stdin="4.4\n4.4\n4.4\n2\n")
    told = [json.loads(line) for line in free.stdout.splitlines()]
    assert max(answer["action"][0] for answer in told) > 3.0
    held = ecl2o(
        "act", fitted.policy, "--bounds", "1:3", "--json", "--state", tmp_path / "s", stdin="2.9\n2.9\n2.9\n2\n"
    )
    told = [json.loads(line) for line in held.stdout.splitlines()]
    assert held.exit_code == 0, held.stderr
    assert all(1 <= answer["action"][0] <= 3 for answer in told)
    assert max(answer["live_ratio"] for answer in told) <= 2.2 * (1 + 1e-9)
    tested = ecl2o("evaluate", fitted.policy, fitted.data, "--bounds", "-2:9", "--days", TESTED, "--json")
    assert tested.exit_code == 0, tested.stderr
    assert policy.contract.action_bounds is None
    for given in ("3:1", "x"):
        refused = ecl2o("act", fitted.policy, "--bounds", given, stdin="3\n")
        assert refused.exit_code == 2
        assert re.search(f"--bounds.*'{given}'", refused.stderr)
