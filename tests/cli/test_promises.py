"""Several promises and a baseline through the commands: fit, evaluate, act and serve, the last in a process of its own."""

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time

import httpx2
import numpy as np
import pytest
from typer.testing import CliRunner

import ecl2o as ec
from ecl2o.cli.commands import app

from .conftest import SPLIT
from .operator_files import STEPS, write_series

ALPHA = 5.0
FIT = ("--column", "demand", "--alpha", str(ALPHA), "--advisor", "ridge", *SPLIT)
BOTH = ("--promise", "1.8", "--per", "run", "--promise", "2.5", "--per", "day")
COMMAND = "from ecl2o.cli.commands import app; app()"
CONTEXTS = [(3.2, 2.0), (4.0, 2.5), (1.0, 9.0), (3.5, 0.0), (3.0, 3.0), (9.0, 3.0), (3.0, 3.0)]


@contextlib.contextmanager
def serve(folder, *policies):
    """A client of `ecl2o serve` in a process of its own."""
    command = [sys.executable, "-c", COMMAND, "serve", *map(str, policies), "--port", "0"]
    command += ["--store", f"sqlite:///{folder}/streams.db"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, **pipes, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}) as process:
        try:
            assert process.stdout is not None
            found = next(filter(None, (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stdout)))
            with httpx2.Client(base_url=found[0], timeout=120) as client:
                yield client
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def create_stream(client, stream, body):
    """Create it when the service listens and has compiled the policy."""
    for _ in range(600):
        with contextlib.suppress(httpx2.TransportError):
            if client.put(f"/streams/{stream}", json=body).status_code != 503:
                return
        time.sleep(0.1)


def cost(x0, actions, contexts, weights=1.0):
    moved = np.diff(actions, prepend=x0)
    return 0.5 * np.sum(weights * (actions - contexts) ** 2) + ALPHA / 2 * np.sum(moved**2)


def optimum(x0, contexts):
    steps, moves = np.eye(len(contexts)), np.eye(len(contexts)) - np.eye(len(contexts), k=-1)
    best = np.linalg.solve(steps + ALPHA * moves.T @ moves, contexts + ALPHA * x0 * steps[0])
    return cost(x0, best, contexts)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A policy with three promises, one of them relative to a baseline, beside a forecast; and what `fit` printed."""
    folder = tmp_path_factory.mktemp("promises")
    data, policy = write_series(folder / "demand.csv"), folder / "policy.ecl2o"
    rows = list(csv.reader(data.open()))
    shifted = [*(row[1] for row in rows[2:]), rows[1][1]]  # the demand six hours later
    data.write_text("\n".join(",".join([*row, "ahead" if i == 0 else shifted[i - 1]]) for i, row in enumerate(rows)))
    baseline = ("--baseline", "supply", "--never-worse", "90%/week", "--forecast", "ahead@6")
    fitted = CliRunner().invoke(app, ["fit", str(data), *FIT, *BOTH, *baseline, "--out", str(policy), "--json"])
    assert fitted.exit_code == 0, fitted.stderr
    return policy, json.loads(fitted.stdout)


def test_fit_and_act_with_several_promises_and_a_baseline(made, ecl2o):
    policy, report = made
    row = report["test"][report["yours"]]
    assert row["promise_kept"] is True
    promise = ec.Promise.from_json(row["promise"])
    named = [(each.ratio, each.period, each.reference.value) for each in (promise, *promise.also)]
    assert named == [(1.8, None, "optimum"), (2.5, STEPS, "optimum"), (1.9, 7 * STEPS, "expert")]
    loaded = ec.load(policy)
    assert loaded.contract.promise == promise
    assert loaded.contract.columns == ["demand", "ahead", "supply"]  # the baseline last, where steps add it
    steps = [json.dumps({"context": [y, y + 1], "baseline": b}) + "\n" for y, b in CONTEXTS]
    runner = ec.Runner(loaded)
    acted = ecl2o("act", policy, stdin="".join(steps))
    assert acted.exit_code == 0, acted.stderr
    for line, (y, b) in zip(acted.stdout.splitlines(), CONTEXTS, strict=True):
        answer = json.loads(line)
        assert answer["action"] == pytest.approx(runner.step([y, y + 1, b]).tolist(), rel=1e-9)
        assert answer["promises_left"] == pytest.approx(runner.promises_left.tolist(), abs=1e-9)
        assert len(answer["promises_left"]) == 3
        assert min(answer["promises_left"]) > -1e-9


def test_the_service_shows_what_is_left_of_each_promise(made, tmp_path):
    """Three promises with a baseline and asymmetric costs, alone and in batches, against sums in NumPy."""
    policy, _ = made
    short, long, ratio = 3.0, 1.0, 2.6
    two_sided = ec.Problem(ec.AsymmetricTracking(short, long), ec.Mahalanobis.isotropic(ALPHA, dim=1))
    ec.save(tmp_path / "two-sided.ecl2o", ec.Policy(ec.Competitive(ec.HittingMinimizer(), ratio), two_sided))
    with serve(tmp_path, policy, tmp_path / "two-sided.ecl2o") as client:
        for stream, name in (("site", "policy"), ("other", "two-sided")):
            create_stream(client, stream, {"policy": name, "x0": [3.0]})
        answers, others = [], []
        for number, (y, b) in enumerate(CONTEXTS):
            step = {"context": [y, y + 1], "baseline": b, "step": number + 1}
            # The first days after the file.
            step["time"] = f"2024-01-{25 + number // STEPS}T{6 * (number % STEPS):02}:00"
            if number % 2:
                both = client.post("/steps", json={"site": step, "other": [y]}).raise_for_status().json()["answered"]
                answers.append(both["site"])
                others.append(both["other"])
            else:
                answers.append(client.post("/streams/site/steps", json=step).raise_for_status().json())
                others.append(client.post("/streams/other/steps", json={"context": [y]}).raise_for_status().json())
        told = client.get("/streams/site/steps").json()
        table = client.get("/streams/site/steps", headers={"accept": "text/csv"}).text
        page, gauges = client.get("/watch/site").text, client.get("/metrics").text
        bound = client.get("/policies/two-sided").json()["optimum_is_bound"]
    assert told == answers
    wanted = [
        ("at most 1.8 times the optimum over the whole run", None),
        ("at most 2.5 times the optimum in every 4 steps", 4),
    ]
    wanted += [("at most 1.9 times that of the baseline in every 28 steps", 28)]
    assert [(each["name"], each["period"]) for each in answers[0]["promises"]] == wanted
    assert all(name in page for name, _ in wanted)
    assert "promises_2_left" in table.splitlines()[0]
    path = np.array([3.0, *(answer["action"][0] for answer in answers)])
    values = np.array([answer["context_used"] for answer in answers])[:, [0, 2]]  # implausible readings are replaced
    lefts = np.array([[each["left"] for each in answer["promises"]] for answer in answers])
    spent = np.array([[each["spent"] for each in answer["promises"]] for answer in answers])
    for t in range(len(CONTEXTS)):
        day = t // STEPS * STEPS
        for number, (first, factor) in enumerate([(0, 1.8), (day, 2.5), (0, 1.9)]):
            seen, x0 = values[first : t + 1], path[first]
            paid = cost(x0, path[first + 1 : t + 2], seen[:, 0])
            due = optimum(x0, seen[:, 0]) if number < 2 else cost(x0, seen[:, 1], seen[:, 0])
            np.testing.assert_allclose(lefts[t, number], factor * due - paid, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(spent[t, number], (paid - due) / ((factor - 1) * due), rtol=1e-6, atol=1e-9)
        assert answers[t]["promise_left"] == lefts[t].min() > -1e-9
        assert answers[t]["promise_spent"] == spent[t].max()
    (least,) = re.findall(r'ecl2o_promise_left_min\{policy="policy"\} (\S+)', gauges)
    assert float(least) == pytest.approx(lefts[-1].min())
    # Asymmetric costs: the optimum is a lower bound, and one promise has no list.
    actions, values = np.array([other["action"][0] for other in others]), np.array(CONTEXTS)
    weights = np.where(actions < values[:, 0], short, long)
    assert others[-1]["cost"] == pytest.approx(cost(3.0, actions, values[:, 0], weights), rel=1e-9)
    assert bound is True
    best = ec.oracle(two_sided, ec.Instance([3.0], values[:, :1])).cost
    assert 0.3 * best < others[-1]["optimum"] <= best * (1 + 1e-9)
    assert others[-1]["cost"] <= ratio * best * (1 + 1e-9)
    assert any(other["guard_active"] for other in others)
    assert others[-1]["promises"] == []


def test_never_worse_than_the_rule_in_use(ecl2o, tmp_path):
    data, policy = write_series(tmp_path / "demand.csv"), tmp_path / "policy.ecl2o"
    made = ecl2o("fit", data, *FIT, "--baseline", "supply", "--never-worse", "5%", "--out", policy, "--json")
    assert made.exit_code == 0, made.stderr
    report = json.loads(made.stdout)
    row = report["test"][report["yours"]]
    assert row["promise_kept"] is True
    assert row["promise"]["ratio"] == pytest.approx(1.05)
    (baseline,) = ec.load(policy).agent.references
    assert float(baseline.agent.scale) == 1.0  # in the file's units
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
