"""`fit --band`: a promise for contexts in a band whose ends are columns of the file, from fit to act and HTTP."""

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import ecl2o as ec
from ecl2o.agents import walk_agents
from ecl2o.cli.commands import app

from .conftest import SPLIT
from .test_promises import create_stream, serve

ALPHA, PROMISE, WIDTH, STEPS, DAYS = 5.0, 1.7, 0.6, 4, 24  # six-hourly rows
LEADS = 6, 12, 18
ENDS = {end: "+".join(f"{end}{hours}@{hours}" for hours in LEADS) for end in ("low", "high", "middle")}
BANDS = {"ends": f"{ENDS['low']},{ENDS['high']}", "half-width": f"{ENDS['middle']},{WIDTH}"}


def series(path):
    """A wave with noise inside of a band around it; each row has the band of the next three rows."""
    rng = np.random.default_rng(1)
    times = np.arange(np.datetime64("2024-01-01T00:00"), np.datetime64("2024-01-25T00:00"), np.timedelta64(6, "h"))
    wave = 3 + np.sin(np.pi / 2 * np.arange(len(times) + 3))
    demand = wave[: len(times)] + rng.uniform(-WIDTH, WIDTH, len(times))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["time", "demand", *(f"{end}{hours}" for hours in LEADS for end in ("low", "high", "middle"))])
        for row, time in enumerate(times):
            ahead = [wave[row + k] + off for k in (1, 2, 3) for off in (-WIDTH, WIDTH, 0.0)]
            writer.writerow([str(time).replace("T", " "), demand[row], *ahead])
    return path


@pytest.fixture(scope="module", params=list(BANDS))
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("band")
    data, out = series(folder / "demand.csv"), folder / "policy.ecl2o"
    asked = ["fit", data, "--out", out, "--column", "demand", "--alpha", ALPHA, "--advisor", "rhc", "--per", "day"]
    asked += ["--promise", PROMISE, "--band", BANDS[request.param], *SPLIT, "--json"]
    result = CliRunner().invoke(app, [str(each) for each in asked])
    assert result.exit_code == 0, result.stderr
    return out, data, json.loads(result.stdout)


def optimum(x0, values):
    n = len(values)
    rows = np.vstack([np.eye(n), np.sqrt(ALPHA) * (np.eye(n) - np.eye(n, k=-1))])
    target = np.concatenate([values, np.sqrt(ALPHA) * np.eye(n)[0] * x0])
    return 0.5 * np.sum((rows @ np.linalg.lstsq(rows, target, rcond=None)[0] - target) ** 2)


def cost(x0, actions, values):
    return 0.5 * np.sum((actions - values) ** 2) + ALPHA / 2 * np.sum(np.diff(actions, prepend=x0) ** 2)


def readings(out, shift=0.0):
    """Two days after those of the file; `shift` moves one context of the second day."""
    contract = ec.load(out).contract
    wave = 3 + np.sin(np.pi / 2 * np.arange(12))
    values = wave[:8] + np.random.default_rng(2).uniform(-WIDTH, WIDTH, 8)
    values[6] += shift
    offset = {"low": -WIDTH, "high": WIDTH, "middle": 0.0}
    rows = []
    for row, value in enumerate(values):
        found = {"time": f"2024-01-{25 + row // 4} {6 * (row % 4):02}:00", "demand": value}
        for name in contract.covariates:
            end = name.rstrip("0123456789")
            found[name] = wave[row + int(name[len(end) :]) // 6] + offset[end]
        rows.append(found)
    return rows


def test_fit_makes_the_promise_and_evaluate_finds_it_kept(made, ecl2o):
    out, data, report = made
    own = report["test"][report["yours"]]
    assert own["promise_kept"] is True
    assert own["promise"]["in_band"] is own["promise"]["at_end"] is True
    assert own["competitive_ratio"] <= PROMISE * (1 + 1e-9)
    evaluated = ecl2o("evaluate", out, data, "--days", 4, "--json")
    assert evaluated.exit_code == 0, evaluated.stderr
    found = json.loads(evaluated.stdout)
    assert found["rows"][found["yours"]]["promise_kept"] is True
    guard = next(agent for agent in walk_agents(ec.load(out).agent) if isinstance(agent, ec.Guard))
    (band,) = guard.references
    columns, covariates = ec.load(out).contract.columns, ec.load(out).contract.covariates
    assert band.columns is not None
    assert [[covariates[columns[place]] for place in places] for places in band.columns] == [[6.0, 12.0, 18.0]] * 2


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_act_keeps_the_promise_until_a_context_leaves_the_band(made, shift):
    """A process of its own; costs and optimum of each day by least squares."""
    out, _, _ = made
    rows = readings(out, shift)
    command = [sys.executable, "-c", "from ecl2o.cli import main; main()", "act", str(out), "--x0", "3"]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    acted = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=600, env=os.environ)
    assert acted.returncode == 0, acted.stderr
    answers = [json.loads(line) for line in acted.stdout.splitlines()]
    actions, values = np.array([each["action"][0] for each in answers]), np.array([row["demand"] for row in rows])
    starts = {0: 3.0, 4: actions[3]}
    assert cost(3.0, actions[:4], values[:4]) <= PROMISE * optimum(3.0, values[:4]) * (1 + 1e-9)
    kept = [not each.get("unconverged", False) for each in answers]
    if shift:
        assert kept == [True] * 6 + [False] * 2
        assert "band" in acted.stderr
    else:
        assert kept == [True] * 8
        assert cost(starts[4], actions[4:], values[4:]) <= PROMISE * optimum(starts[4], values[4:]) * (1 + 1e-9)


@pytest.mark.parametrize("made", ["ends"], indirect=True)
def test_the_service_takes_the_band_in_the_context(made, tmp_path):
    out, _, _ = made
    runner, rows = ec.Runner(ec.load(out), [3.0]), readings(out)
    names = ec.load(out).contract.columns
    expected = [float(runner.step([row[name] for name in names])[0]) for row in rows]
    with serve(tmp_path, out) as client:
        create_stream(client, "site", {"policy": out.stem, "x0": [3.0]})
        asked = [{"context": [row[name] for name in names]} for row in rows]
        bodies = [client.post("/streams/site/steps", json=body).json() for body in asked]
    assert [body["action"][0] for body in bodies] == pytest.approx(expected, rel=1e-9)
    assert not any(body["unconverged"] for body in bodies)


@pytest.mark.parametrize(
    ("band", "per", "named"),
    [
        ("low6@6,high6@6", "day", "2 of them"),
        (BANDS["ends"], "run", "--per"),
        ("low6@6+low12@12", "day", "low6@6"),
        (f"{ENDS['middle']},-1", "day", "-1"),
    ],
)
def test_a_band_that_cannot_be_used_is_rejected(tmp_path, ecl2o, band, per, named):
    data = series(tmp_path / "demand.csv")
    options = ("--promise", "2", "--per", per, "--band", band, "--out", tmp_path / "p.ecl2o")
    asked = ecl2o("fit", data, "--column", "demand", *SPLIT, *options)
    assert asked.exit_code != 0
    assert named in asked.stderr
