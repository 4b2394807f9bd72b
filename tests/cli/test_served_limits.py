"""Ramps and whole numbers over HTTP: guards made by `ecl2o guard`, stepped in a service in a process of its own."""

import numpy as np
import pytest

from .test_promises import create_stream, serve

ALPHA, HIGH = 5.0, 20.0
ADVICE = [None, 1e6, -1e6, 3.7, 11.2, 1e15, 0.0, 19.6]
POLICIES = {
    "ramp": ("--promise", "2", "--bounds", "0:20", "--ramp", "8"),
    "narrow": ("--promise", "2", "--bounds", "0:20", "--ramp", "2"),
    "whole": ("--promise", "2", "--whole"),
    "several": ("--promise", "1.9", "--per", "run", "--promise", "2.5", "--per", "4h", "--whole"),
    "late": ("--promise", "3", "--whole", "--delay", "1"),
}


def optimum(contexts, x0=0.0):
    steps, moves = np.eye(len(contexts)), np.eye(len(contexts)) - np.eye(len(contexts), k=-1)
    best = np.linalg.solve(steps + ALPHA * moves.T @ moves, contexts + ALPHA * x0 * steps[0])
    return np.sum((best - contexts) ** 2) / 2 + ALPHA / 2 * np.sum(np.diff(best, prepend=x0) ** 2)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """What each policy promises, and its answers to hostile contexts and advice."""
    from typer.testing import CliRunner

    from ecl2o.cli.commands import app

    folder, found = tmp_path_factory.mktemp("limits"), {}
    paths = [folder / f"{name}.ecl2o" for name in POLICIES]
    for path, options in zip(paths, POLICIES.values(), strict=True):
        done = CliRunner().invoke(app, ["guard", "--alpha", str(ALPHA), *options, "--out", str(path)])
        assert done.exit_code == 0, done.output
    with serve(folder, *paths) as client:
        for name in POLICIES:
            create_stream(client, name, {"policy": name, "x0": [0.0]})
            position, records, rng = 0.0, [], np.random.default_rng(0)
            for step in range(24):
                away = HIGH if position < HIGH / 2 else 0.0
                context = [away, float(rng.uniform(0, HIGH)), position][int(rng.integers(3))] if step else HIGH
                body = {"context": [context], "advice": [ADVICE[step % len(ADVICE)]]}
                answer = client.post(f"/streams/{name}/steps", json=body)
                assert answer.status_code == 200, answer.text
                records.append(answer.json())
                position = records[-1]["action"][0]
            found[name] = client.get(f"/policies/{name}").json()["promise"], records
    return found


@pytest.mark.parametrize("name", POLICIES)
def test_answers_obey_the_limits_and_the_promise_says_what_survives(served, name):
    promise, records = served[name]
    actions = np.array([record["action"][0] for record in records])
    contexts = np.array([record["context_used"][0] for record in records])
    assert not any(record["unconverged"] for record in records)
    assert sum(record["guard_active"] for record in records) > len(records) / 2
    moved = np.diff(actions, prepend=0.0)
    in_force = np.concatenate([[0.0], actions[:-1]]) if name == "late" else actions
    costs = (in_force - contexts) ** 2 / 2 + ALPHA / 2 * moved**2
    assert np.allclose(np.cumsum(costs), [record["cost"] for record in records], rtol=1e-9)
    k = (np.sqrt(1 + 4 * ALPHA) - 1) / 2
    if name in ("ramp", "narrow"):
        limit = 8.0 if name == "ramp" else 2.0
        assert np.abs(moved).max() <= limit * (1 + 1e-12)
        assert promise["contexts"] == [[0.0, HIGH]]
        counted = max(ALPHA, (1 - limit / HIGH) / (limit / HIGH) ** 2)
        assert promise["ratio"] == pytest.approx(2 * counted / ALPHA)
        assert (promise["alternative"] is None) == (name == "ramp")
        assert costs.sum() <= promise["ratio"] * optimum(contexts) * (1 + 1e-9)
        if name == "narrow":
            ratio, per_step = promise["alternative"]
            assert (ratio, per_step) == pytest.approx((2.0, 2.0 * (counted - ALPHA) * limit**2 / 2))
        return
    assert (actions == np.round(actions)).all()
    assert promise["contexts"] is None
    ratio = promise["ratio"]
    stiff, past = k, 1 + k
    if name == "several":
        sigma = k / (ratio - 1)
        past = 1 + sigma * ALPHA / (sigma + ALPHA)
        assert [len(record["promises"]) for record in records] == [2] * len(records)
        spent = costs.reshape(-1, 4).sum(axis=1)
        starts = np.concatenate([[0.0], actions[3:-1:4]])
        free = np.array([optimum(y, x) for y, x in zip(contexts.reshape(-1, 4), starts, strict=True)])
        other = promise["also"][0]
        assert (spent <= other["ratio"] * free + 4 * other["allowance_per_step"]).all()
    curvature = 1 + ALPHA + ratio * stiff / (ratio - 1 - stiff / past)
    free = optimum(contexts)
    if name == "late":
        curvature = ALPHA + ratio / ((ratio - 1) / (1 + k) - 1 / k)
        free = contexts[0] ** 2 / 2 + optimum(contexts[1:])
    assert promise["allowance_per_step"] == pytest.approx(curvature / 8)
    assert costs.sum() <= ratio * free + len(costs) * promise["allowance_per_step"]
