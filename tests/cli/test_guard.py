"""`ecl2o guard` from an empty folder: hostile, missing and late advice through `act` and HTTP, in processes of their own."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import numpy as np
import pytest

import ecl2o as ec

COMMAND = str(Path(sys.executable).with_name("ecl2o"))
READY = re.compile(r"http://127\.0\.0\.1:\d+")
HOSTILE = (1e6, -1e6, None, float("nan"), 0.0, 1e300, 12.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a guard and its shadow, made without data."""
    made = tmp_path_factory.mktemp("guard")
    told = ("guard", "--promise", "2", "--per", "day", "--out", "guard.ecl2o")
    done = subprocess.run([COMMAND, *told], cwd=made, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "2 times the optimum in every 24 steps" in done.stdout + done.stderr
    ec.save(made / "shadow.ecl2o", ec.guard_policy(promise=2.0, per="day", shadow=True))
    return made


def make_steps(count: int) -> list[tuple[float, float | None]]:
    """Contexts, and advice that nobody should follow."""
    rng = np.random.default_rng(7)
    return [(float(10 + 3 * rng.normal()), HOSTILE[t % len(HOSTILE)]) for t in range(count)]


def expect_change(advice: float | None) -> str:
    """How the sentence about hostile advice begins."""
    if advice is None or np.isnan(advice):
        return "no advice"
    return "advice beyond 1e+100" if abs(advice) > 1e100 else "moved from"


def act(folder, policy, lines, state, *more) -> list[dict]:
    told = [COMMAND, "act", policy, "--x0", "10", "--state", state, *more]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(told, cwd=folder, input=text, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def expected_run(folder, policy, steps) -> list[dict]:
    """The same steps by a `Runner`, in this process."""
    runner, found = ec.Runner(ec.load(folder / policy), x0=[10.0]), []
    for y, advice in steps:
        action = runner.step([y], advice=[advice])
        found.append({"action": action.tolist(), "cost": float(runner.cost), **runner.figures})
    return found


def optimum(steps, x0=10.0) -> float:
    """The least cost of the contexts, by a dense linear system."""
    y = np.array([context for context, _ in steps])
    n, alpha = len(y), 10.0
    move = np.eye(n) - np.eye(n, k=-1)
    start = np.zeros(n)
    start[0] = x0
    x = np.linalg.solve(np.eye(n) + alpha * move.T @ move, y + alpha * move.T @ start)
    return float(0.5 * np.sum((x - y) ** 2) + 0.5 * alpha * np.sum((move @ x - start) ** 2))


@contextlib.contextmanager
def serve(folder):
    """Yield a client of `ecl2o serve` and its process."""
    told = [COMMAND, "serve", "guard.ecl2o", "shadow.ecl2o", "--port", "0"]
    with subprocess.Popen(told, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            url = next(found[0] for line in lines if "serving" in line and (found := READY.search(line)))
            with httpx2.Client(base_url=url, timeout=60) as client:
                yield client, process
        finally:
            process.kill()


def create(client, stream: str, policy: str) -> None:
    """Create a stream, again while the service answers 503 because it compiles the policy."""
    for _ in range(60):
        answer = client.put(f"/streams/{stream}", json={"policy": policy, "x0": [10]})
        if answer.status_code != 503:
            break
        time.sleep(1)
    assert answer.status_code == 201, answer.text


def test_act_keeps_the_promise_whatever_the_advice(folder):
    steps = make_steps(24)
    lines = [json.dumps({"context": [y], "advice": [advice]}) for y, advice in steps]
    lines[2] = json.dumps({"context": steps[2][0]})  # absent, as null is
    lines[9] = json.dumps([steps[9][0]])
    answers = act(folder, "guard.ecl2o", lines[:11], "a.state") + act(folder, "guard.ecl2o", lines[11:], "a.state")
    for answer, expected, (_, advice) in zip(answers, expected_run(folder, "guard.ecl2o", steps), steps, strict=True):
        assert answer["action"] == pytest.approx(expected["action"], rel=1e-9)
        assert answer["change"].startswith(expect_change(advice))
        assert answer["promises_left"][0] > -1e-9
    cost = answers[-1]["cost"]
    assert cost <= 2 * optimum(steps) * (1 + 1e-9)
    assert cost > 1.5 * optimum(steps)  # the advice was listened to
    assert answers[4]["advice_cost"] > 1e12
    assert answers[-1]["advice_cost"] == pytest.approx(expected["advice_cost"], rel=1e-9)  # 1e300 is no advice


def test_good_advice_is_played_to_the_last_bit(folder, ecl2o):
    answer = json.loads(
        ecl2o("act", folder / "guard.ecl2o", "--x0", "10", stdin='{"context": 10, "advice": 10}\n').stdout
    )
    assert answer["action"] == [10.0]
    assert "change" not in answer
    assert answer["advice_cost"] == 0


def test_http_keeps_the_promise_through_a_kill(folder):
    steps, records = make_steps(24), []
    with serve(folder) as (client, process):
        for stream in ("web", "example"):
            create(client, stream, "guard")
        (example,) = client.get("/openapi.json").json()["components"]["schemas"]["NewStep"]["examples"]
        answer = client.post("/streams/example/steps", json=example).json()
        assert answer["advice_cost"] == 0.5 * (14 - 12.5) ** 2 + 5 * (14 - 10) ** 2
        for number, (y, advice) in enumerate(steps[:10], start=1):
            sent = "NaN" if advice is not None and np.isnan(advice) else json.dumps(advice)
            body = f'{{"context": [{y!r}], "advice": [{sent}], "step": {number}}}'
            answer = client.post("/streams/web/steps", content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 200, answer.text
            records.append(answer.json())
        os.kill(process.pid, signal.SIGKILL)
    with serve(folder) as (client, _):
        again = client.post("/streams/web/steps", json={"context": [steps[9][0]], "advice": None, "step": 10})
        assert again.status_code == (200 if steps[9][1] is None else 409)
        for number, (y, advice) in enumerate(steps[10:], start=11):
            sent = None if advice is None or np.isnan(advice) else advice
            batch = {"web": {"context": [y], "advice": sent, "step": number}, "nobody": [1.0]}
            answer = client.post("/steps", json=batch).json()
            assert answer["refused"]["nobody"]["status"] == 404
            records.append(answer["answered"]["web"])
        for sent, told in (
            ({"context": [1], "advice": [1, 2]}, "1 number and 2"),
            ({"context": [1, 2], "advice": [3]}, "2 numbers"),
            ({"context": 1, "baseline": 2}, "2 numbers"),  # which must not become the advice
            ([1, 2], "body"),
        ):
            wrong = client.post("/streams/web/steps", json=sent)
            assert (wrong.status_code, told in wrong.text) == (422, True), wrong.text
        wrong = client.post("/streams/web/steps", json={"context": [1.0], "advice": ["x"]})
        assert (wrong.status_code, "float" in wrong.text) == (422, False)
        assert wrong.json()["detail"].count("body.advice") == 1
        assert wrong.json()["detail"].endswith("got 'x'")
        assert client.post("/streams/web/steps", json={"context": [None], "advice": [1.0]}).status_code == 422
        stored = client.get("/streams/web/steps").json()
        assert len(client.get("/streams/web/hindsight").json()["actions"]) == 16
        assert client.get("/watch/web").status_code == 200
    assert stored == records
    for record, expected in zip(records, expected_run(folder, "guard.ecl2o", steps), strict=True):
        assert record["action"] == pytest.approx(expected["action"], rel=1e-9)
        assert record["promise_left"] == pytest.approx(expected["left"], abs=1e-9)
    assert records[-1]["cost"] <= 2 * optimum(steps) * (1 + 1e-9)
    assert records[0]["change"].startswith("moved from 1e+06 to 10.0")
    assert records[2]["change"].startswith("no advice")
    assert records[2]["context"] == [steps[2][0], None]
    assert records[5]["change"].startswith(expect_change(1e300))


def test_shadow_mode_plays_the_advice_and_reports_the_guard(folder, ecl2o):
    steps = [(y, advice if advice in (0.0, 12.0, 1e300) else None) for y, advice in make_steps(24)]
    steps[1] = steps[1][0], 30.0
    guarded, shadowed = (expected_run(folder, name, steps) for name in ("guard.ecl2o", "shadow.ecl2o"))
    lines = [json.dumps({"context": [y], "advice": advice}) for y, advice in steps]
    acted = ecl2o("act", folder / "shadow.ecl2o", "--x0", "10", stdin="\n".join(lines) + "\n")
    answers = [json.loads(line) for line in acted.stdout.splitlines()]
    with serve(folder) as (client, _):
        create(client, "shadow", "shadow")
        records = [
            client.post("/streams/shadow/steps", json={"context": [y], "advice": advice}).json() for y, advice in steps
        ]
    last = 10.0
    for (_, advice), answer, record, guard in zip(steps, answers, records, guarded, strict=True):
        last = last if advice in (None, 1e300) else advice  # missing advice keeps the action in force
        assert answer["action"] == record["action"] == [last]
        for told in (answer, record):
            assert told["shadow_action"] == pytest.approx(guard["action"], rel=1e-9)
            assert told["shadow_left"] == pytest.approx(guard["left"][0], abs=1e-9)
            assert told["shadow_cost"] == pytest.approx(guard["cost"][0], rel=1e-9)
            assert told["advice_cost"] == pytest.approx(told["cost"], rel=1e-9)
        assert record["promise"] is None
        assert record["guard_active"] is None
    assert answers[1]["change"].startswith("would have moved from 30 to ")
    assert answers[-1]["advice_cost"] == pytest.approx(float(guarded[-1]["advice_cost"]), rel=1e-9)
    assert shadowed[-1]["cost"] > 2 * optimum(steps) > answers[-1]["shadow_cost"]


def test_ramp_and_whole_numbers_are_kept_and_given_as_reasons(ecl2o, tmp_path):
    limits = ("--alpha", "1", "--promise", "3", "--allowance", "200", "--bounds", "0:20")
    limits += ("--ramp", "8", "--whole")
    for name, extra in (("guard", ()), ("shadow", ("--shadow",))):
        done = ecl2o("guard", *limits, *extra, "--out", tmp_path / f"{name}.ecl2o")
        assert done.exit_code == 0, done.output
        assert "whole numbers and change by at most 8 a step" in done.output
    sent = [(10.0, 10.3), (18.0, 18.7), (20.0, None), (4.0, 30.0), (4.0, 3.6), (16.0, 0.0)]
    lines = "".join(json.dumps({"context": [y], "advice": advice}) + "\n" for y, advice in sent)
    found = {}
    for name in ("guard", "shadow"):
        done = ecl2o("act", tmp_path / f"{name}.ecl2o", "--x0", "10", "--json", stdin=lines)
        found[name] = [json.loads(line) for line in done.stdout.splitlines()]
    actions = np.array([10.0, *(answer["action"][0] for answer in found["guard"])])
    assert (actions == np.round(actions)).all()
    assert np.max(np.abs(np.diff(actions))) <= 8
    assert found["guard"][0]["change"] == "moved from 10.3 to 10: actions are whole numbers"
    assert found["guard"][1]["change"] == "moved from 18.7 to 18: actions change by at most 8 a step"
    assert [answer["action"][0] for answer in found["shadow"]] == [10.3, 18.7, 18.7, 30.0, 3.6, 0.0]
    for guard, shadow in zip(found["guard"], found["shadow"], strict=True):
        assert shadow["shadow_action"] == pytest.approx(guard["action"], abs=1e-6)
        assert shadow["cost"] == pytest.approx(guard["advice_cost"], rel=1e-6)


@pytest.mark.parametrize(("shadow", "beside"), [(False, "advice"), (True, "guard")])
def test_evaluate_shows_the_advice_and_the_guard(ecl2o, tmp_path, shadow, beside):
    ec.save(tmp_path / "own.ecl2o", ec.guard_policy(promise=2.0, shadow=shadow))
    hours = np.arange("2024-01-01", "2024-01-05", dtype="datetime64[h]")
    y = 10 + np.sin(np.arange(len(hours)))
    advice = [f"{20 * (t % 2)}" for t in range(len(y))]
    advice[50] = ""
    rows = [f"{hour},{context},{each}" for hour, context, each in zip(hours, y, advice, strict=True)]
    (tmp_path / "past.csv").write_text("\n".join(["time,context,advice", *rows]) + "\n")
    done = ecl2o("evaluate", tmp_path / "own.ecl2o", tmp_path / "past.csv", "--json")
    assert done.exit_code == 0, done.output
    assert "replaced by the last advice: 1 of advice" in done.stderr
    assert "profile" not in done.stderr
    found = json.loads(done.stdout)["rows"]
    guarded, alone = ("own.ecl2o", beside) if not shadow else (beside, "own.ecl2o")
    assert found[guarded]["average_cost"] < 2.1 < 50 < found[alone]["average_cost"]


def test_with_a_delay_the_promise_is_kept_whatever_the_advice():
    steps = make_steps(24)
    runner = ec.Runner(ec.guard_policy(promise=3.0, delay=1), x0=[10.0])
    for y, advice in steps:
        runner.step([y], advice=[advice])
    # The first context meets x0, each later one the action that is chosen a step before it; the last action meets none.
    least = 0.5 * (10 - steps[0][0]) ** 2 + optimum(steps[1:])
    assert 1.2 * least < float(runner.cost) <= 3 * least * (1 + 1e-4)


def test_a_baseline_is_never_taken_for_advice(ecl2o, tmp_path):
    never_worse = ("guard", "--never-worse", "5%", "--baseline", "rule", "--out", tmp_path / "rule.ecl2o")
    assert ecl2o(*never_worse).exit_code == 0
    ec.save(tmp_path / "plain.ecl2o", ec.guard_policy(promise=2.0))
    lines = ['{"context": 11, "baseline": 10.5}', '{"context": 12, "baseline": [10.6], "advice": [12]}']
    done = ecl2o("act", tmp_path / "rule.ecl2o", "--x0", "10", stdin="\n".join(lines) + "\n")
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert first["advice_cost"] == 0.5  # no advice
    assert second["advice_cost"] == 0.5 + 0.5 * 10 * (12 - 10) ** 2
    refused = ecl2o("act", tmp_path / "plain.ecl2o", "--x0", "10", stdin=lines[0] + "\n")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "(context)" in refused.stderr
    missing = ecl2o("act", tmp_path / "rule.ecl2o", "--x0", "10", stdin="11,,12\n")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "(rule)" in missing.stderr


def test_a_repeated_line_gets_the_first_sentence_again(ecl2o, tmp_path):
    ec.save(tmp_path / "guard.ecl2o", ec.guard_policy(promise=2.0))
    told = ("act", tmp_path / "guard.ecl2o", "--x0", "10", "--state", tmp_path / "run.state")
    lines = [f'{{"step": 1, "context": 11, "advice": {advice}}}\n' for advice in (99, -99)]
    first, second = json.loads(ecl2o(*told, stdin=lines[0]).stdout), json.loads(ecl2o(*told, stdin=lines[1]).stdout)
    assert first["change"].startswith("moved from 99 ")
    assert {name: second[name] for name in ("step", "action", "cost", "change")} == {
        name: first[name] for name in ("step", "action", "cost", "change")
    }


def test_an_implausible_context_without_advice_is_replaced_with_a_notice(ecl2o, tmp_path):
    ec.save(tmp_path / "screened.ecl2o", ec.guard_policy(promise=2.0, plausible=(0.0, 60.0)))
    lines = [",", '{"context": 11, "advice": 14}', '{"context": null}', "900,14"]
    done = ecl2o(
        *("act", tmp_path / "screened.ecl2o", "--x0", "10", "--json", "--skip-bad"), stdin="\n".join(lines) + "\n"
    )
    assert done.exit_code == 0, done.stderr
    used = [json.loads(line).get("context_used") for line in done.stdout.splitlines()]
    assert used == [None, [11.0, None], [11.0, 14.0]]
    assert "inf" not in done.stderr
    assert done.stderr.count("replaced by 11, the last") == 2


def test_numbers_have_names_also_if_one_is_named_context(ecl2o, tmp_path):
    weighted = ("guard", "--promise", "3", "--weights", "1:4", "--out", tmp_path / "weighted.ecl2o")
    done = ecl2o(*weighted)
    assert "1 to 4" in done.output
    lines = ['{"context": 11, "weight": 2, "advice": [12]}', '{"context": [11, 2], "advice": 12}']
    answers = [ecl2o("act", tmp_path / "weighted.ecl2o", "--x0", "10", stdin=line + "\n").stdout for line in lines]
    assert answers[0] == answers[1]
    assert json.loads(answers[0])["advice_cost"] == 0.5 * 2 * (12 - 11) ** 2 + 5 * (12 - 10) ** 2


def test_advice_has_its_name_beside_a_context(ecl2o, tmp_path):
    ec.save(tmp_path / "plan.ecl2o", ec.guard_policy(promise=2.0, columns=["load"], advice=["plan"]))
    lines = ['{"load": 11, "plan": 99}', '{"context": 11, "plan": [99]}', '{"context": [11], "advice": 99}']
    answers = {ecl2o("act", tmp_path / "plan.ecl2o", "--x0", "10", stdin=line + "\n").stdout for line in lines}
    (answer,) = map(json.loads, answers)
    assert answer["change"].startswith("moved from 99 ")


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ((), "--promise"),
        (("--promise", "1.5"), "--promise 1.5"),
        (("--promise", "2", "--promise", "3"), "run"),
        (("--never-worse", "5%"), "--baseline"),
        (("--promise", "2", "--short", "3", "--weights", "1:2"), "weights"),
        (("--promise", "2", "--per", "day", "--every", "7"), "7"),
        (("--promise", "2", "--advice-column", "context"), "context"),
        (("--promise", "2", "--ramp", "2"), "--contexts"),
        (("--never-worse", "5%", "--baseline", "still", "--ramp", "2"), "--promise"),
        (("--promise", "2", "--whole", "--step", "2"), "--step"),
        (("--promise", "2", "--delay", "1"), "2.37"),
        (("--promise", "3", "--delay", "1", "--ramp", "2", "--bounds", "0:9"), "delay"),
        (("--promise", "2", "--column", "a", "--column", "b", "--advice-column", "c"), "--advice-column"),
        (("--promise", "2", "--column", "step"), "step"),
    ],
)
def test_wrong_options_are_named_and_nothing_is_written(ecl2o, tmp_path, told, named):
    result = ecl2o("guard", *told, "--out", tmp_path / "guard.ecl2o")
    assert result.exit_code in (1, 2)
    assert named in result.output + str(result.exception)
    assert not list(tmp_path.iterdir())
