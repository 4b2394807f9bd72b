"""`--delay 1` and `--known-ahead 2`, from fit to the service, by a referee that knows contexts and answered actions only."""

import datetime
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import ecl2o as ec
from ecl2o.cli.commands import app
from ecl2o.data import read_series
from ecl2o.service import Service, Store
from ecl2o.service.models import StepRequest

from .conftest import SPLIT, TESTED
from .operator_files import STEPS, write_series

ALPHA, PROMISE = 5.0, {1: 2.9, -2: 1.4}
OPTIONS = {1: ("--delay", "1"), -2: ("--known-ahead", "2")}
RIDGE = ("--advisor", "ridge")


def in_force(shift, x0, actions, values, known=()):
    """The actions in force and the contexts they meet, step by step."""
    n = len(values)
    if shift > 0:
        return np.concatenate([np.full(shift, x0), actions])[:n], np.asarray(values)
    return np.asarray(actions), np.concatenate([known, values])[:n]


def cost(shift, x0, actions, values, known=()):
    """Misses of what is in force, and the moves that were decided, in NumPy."""
    positions, met = in_force(shift, x0, actions, values, known)
    return 0.5 * np.sum((positions - met) ** 2) + ALPHA / 2 * np.sum(np.diff(actions, prepend=x0) ** 2)


def optimum(shift, x0, values, known=()):
    """The least cost over all actions, a dense least-squares problem."""
    n = len(values)
    positions, met = in_force(shift, x0, np.zeros(n), values, known)
    reach = np.stack([in_force(shift, 0.0, row, values, known)[0] for row in np.eye(n)], axis=1)
    moves = np.sqrt(ALPHA) * (np.eye(n) - np.eye(n, k=-1))
    target = np.concatenate([met - positions, np.sqrt(ALPHA) * np.eye(n)[0] * x0])
    found = np.linalg.lstsq(np.vstack([reach, moves]), target, rcond=None)[0]
    return cost(shift, x0, found, values, known)


@pytest.fixture(scope="module", params=list(OPTIONS))
def made(request, tmp_path_factory):
    shift = request.param
    folder = tmp_path_factory.mktemp("shifted")
    data, out = write_series(folder / "demand.csv"), folder / "policy.ecl2o"
    asked = ["fit", data, "--out", out, "--column", "demand", "--alpha", ALPHA, *OPTIONS[shift], *RIDGE]
    result = CliRunner().invoke(app, list(map(str, [*asked, "--promise", PROMISE[shift], *SPLIT, "--json"])))
    assert result.exit_code == 0, result.stderr
    return shift, out, data, json.loads(result.stdout)


def run_policy(out, data):
    """The contexts before the test days, those of the test days, and the actions that answered them."""
    values = read_series(data, None, ["demand"])[0].to_numpy(float)
    past, tested = values[: -TESTED * STEPS], values[-TESTED * STEPS :]
    runner = ec.Runner(ec.load(out), None, past)
    return past[:, 0], tested[:, 0], np.array([runner.step(context)[0] for context in tested])


def test_the_table_and_the_promise_are_right(made, ecl2o):
    shift, out, data, report = made
    past, tested, actions = run_policy(out, data)
    known = () if shift > 0 else past[shift:]
    paid, best = cost(shift, past[-1], actions, tested, known), optimum(shift, past[-1], tested, known)
    evaluated = ecl2o("evaluate", out, data, "--days", TESTED, "--json")
    assert evaluated.exit_code == 0, evaluated.stderr
    found = json.loads(evaluated.stdout)
    for rows, own in ((found["rows"], found["yours"]), (report["test"], report["yours"])):
        np.testing.assert_allclose(rows[own]["mean_cost"] * TESTED, paid, rtol=1e-9)
        np.testing.assert_allclose(rows["oracle"]["mean_cost"] * TESTED, best, rtol=1e-9)
        np.testing.assert_allclose(rows[own]["average_cost"], paid / best, rtol=1e-9)
        assert rows[own]["promise_kept"] is True
        assert rows[own]["promise"]["at_end"] is (shift < 0)
    assert paid <= PROMISE[shift] * best
    assert report["settings"]["shift"] == ec.load(out).contract.shift == shift
    if shift > 0:
        for n in range(1, len(tested) + 1):
            bound = PROMISE[shift] * optimum(shift, past[-1], tested[:n])
            assert cost(shift, past[-1], actions[:n], tested[:n]) <= bound * (1 + 1e-9)


def test_act_says_from_when_on_its_action_is_in_force(made, ecl2o):
    """Costs and ratios are those of the contexts and the answered actions."""
    shift, out, _, _ = made
    if shift < 0:
        pytest.skip("contexts that are known ahead: the service's answers say the same")
    values = 3 + np.where(np.random.default_rng(0).uniform(size=16) < 0.5, -0.4, 0.5)
    times = [f"2024-01-{25 + row // 4} {6 * (row % 4):02}:00" for row in range(16)]
    lines = "".join(json.dumps({"time": t, "demand": v}) + "\n" for t, v in zip(times, values, strict=True))
    acted = ecl2o("act", out, "--x0", "3", stdin=lines)
    assert acted.exit_code == 0, acted.stderr
    answers = [json.loads(line) for line in acted.stdout.splitlines()]
    actions = np.array([answer["action"][0] for answer in answers])
    for n, answer in enumerate(answers, 1):
        best = optimum(shift, 3.0, values[:n])
        np.testing.assert_allclose(answer["cost"], cost(shift, 3.0, actions[:n], values[:n]), rtol=1e-9)
        np.testing.assert_allclose(answer["live_ratio"], answer["cost"] / best, rtol=1e-8)
        assert answer["live_ratio"] <= PROMISE[shift] * (1 + 1e-9)
    assert {answer["in_force_after"] for answer in answers} == {shift}
    assert answers[2]["in_force_from"] == "2024-01-25T18:00:00"
    assert "1 step" in acted.stderr


def test_the_service_answers_as_the_runner_does(made, tmp_path, monkeypatch):
    monkeypatch.setattr("ecl2o.service.policy_registry._WAIT_SECONDS", 60.0)  # the machine may be busy
    shift, out, data, _ = made
    _, tested, _ = run_policy(out, data)
    runner = ec.Runner(ec.load(out), x0=[3.0])
    service = Service(Store(f"sqlite:///{tmp_path / 'streams.db'}"))
    known = () if shift > 0 else ec.load(out).history[shift:, 0]
    first, actions = datetime.datetime(2024, 1, 25), []
    try:
        service.add_policies({"late": out.read_bytes()})
        service.create_stream("site", "late", x0=[3.0])
        for number, value in enumerate(tested[:12]):
            time = first + datetime.timedelta(hours=6 * number)
            (result,) = service.submit_steps([StepRequest("site", [float(value)], time=time)]).result()
            answer = json.loads(result.json)
            actions.append(answer["action"][0])
            np.testing.assert_allclose(actions[-1:], runner.step([value]), rtol=1e-9)
        assert answer["in_force_from"] == (time + datetime.timedelta(hours=6 * shift)).isoformat()
        best = optimum(shift, 3.0, tested[:12], known)
        np.testing.assert_allclose(answer["cost"], cost(shift, 3.0, np.array(actions), tested[:12], known), rtol=1e-9)
        np.testing.assert_allclose(answer["optimum"], best, rtol=1e-9)
        if shift > 0:
            np.testing.assert_allclose(answer["live_ratio"], answer["cost"] / best, rtol=1e-8)
        assert answer["expert"] >= answer["optimum"] * (1 - 1e-9)
        hindsight = service.compute_hindsight("site")
        assert len(hindsight.actions) == (8 if shift > 0 or hindsight.actions else 0)
    finally:
        service.close()


def test_several_promises_go_with_a_delay(ecl2o, tmp_path):
    data, out = write_series(tmp_path / "demand.csv"), tmp_path / "policy.ecl2o"
    asked = ["fit", data, "--out", out, "--column", "demand", "--alpha", ALPHA, "--delay", 1, *RIDGE, *SPLIT, "--json"]
    made = ecl2o(*asked, "--promise", 3.5, "--per", "day", "--promise", 2.9, "--per", "run")
    assert made.exit_code == 0, made.stderr
    report = json.loads(made.stdout)
    row = report["test"][report["yours"]]
    assert [row["promise"]["ratio"], *(each["ratio"] for each in row["promise"]["also"])] == [3.5, 2.9]
    assert row["promise_kept"] is True
    past, tested, actions = run_policy(out, data)
    for n in range(1, len(tested) + 1):
        bound = 2.9 * optimum(1, past[-1], tested[:n])
        assert cost(1, past[-1], actions[:n], tested[:n]) <= bound * (1 + 1e-9)


def test_being_short_costs_more_with_a_delay(ecl2o, tmp_path):
    """Without a promise: the regression learns to keep off the costly side of what its action will meet."""
    data, out = write_series(tmp_path / "demand.csv", days=60), tmp_path / "policy.ecl2o"
    days = ("--training-days", "36", "--validation-days", "10", "--json")
    made = ecl2o(
        "fit", data, "--out", out, "--column", "demand", "--delay", 1, "--short", 3, "--alpha", ALPHA, *RIDGE, *days
    )
    assert made.exit_code == 0, made.stderr
    rows = json.loads(made.stdout)["test"]
    assert (
        min(row["average_cost"] for name, row in rows.items() if name.startswith("ridge"))
        < rows["r-obd"]["average_cost"]
    )
    assert rows["oracle"]["average_cost"] == pytest.approx(1.0)
    assert ec.load(out).contract.shift == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--delay", "1", "--promise", "2.1"], "must exceed 2.5582576"),
        (["--known-ahead", "1", "--promise", "1.2"], "must exceed 1.2"),
        (["--known-ahead", "1", "--short", "3"], "known ahead"),
        (["--delay", "1", "--short", "3", "--promise", "5"], "leave out --short and --long"),
        (["--delay", "1", "--known-ahead", "1"], "--known-ahead"),
        (["--delay", "5"], "exceed a day of 4"),
        (["--delay", "1", "--weight-column", "supply"], "weight column"),
        (["--delay", "1", "--bounds", "0:9", "--promise", "3"], "bounds"),
        (["--delay", "1", "--advisor", "mlp"], "mlp"),
    ],
)
def test_refusals(ecl2o, tmp_path, arguments, message):
    data = write_series(tmp_path / "demand.csv")
    refused = ecl2o("fit", data, "--out", tmp_path / "none", "--column", "demand", "--alpha", ALPHA, *SPLIT, *arguments)
    assert refused.exit_code in (1, 2), refused.stdout
    assert message in " ".join(refused.stderr.replace("│", " ").split())
    assert not (tmp_path / "none").exists()
