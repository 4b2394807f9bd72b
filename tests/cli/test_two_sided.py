"""`--short 3 --long 1`: misses that cost more on one side, from fit to act."""

import json

import numpy as np
import pytest
import scipy.linalg

import ecl2o as ec
from ecl2o.data import read_series

from .conftest import SPLIT, TESTED
from .operator_files import STEPS, write_series

ALPHA, PROMISE, SHORT, LONG = 5.0, 2.6, 3.0, 1.0
TERMS = ("--column", "demand", "--alpha", ALPHA, "--short", SHORT, "--long", LONG)


def cost(x0, actions, values):
    """w/2 (x - y)^2 + alpha/2 (x - x')^2 in NumPy, w by the side of the miss."""
    weight = np.where(actions < values, SHORT, LONG)
    return 0.5 * np.sum(weight * (actions - values) ** 2) + ALPHA / 2 * np.sum(np.diff(actions, prepend=x0) ** 2)


def optimum(x0, values):
    """The least cost: tridiagonal systems in NumPy until no action changes its side."""
    n, best, sides = len(values), values, None
    while sides is None or (sides != (best < values)).any():
        sides = best < values
        weight, bands = np.where(sides, SHORT, LONG), np.zeros((3, n))
        bands[0, 1:] = bands[2, :-1] = -ALPHA
        bands[1] = weight + np.where(np.arange(n) == n - 1, 1, 2) * ALPHA
        best = scipy.linalg.solve_banded((1, 1), bands, weight * values + ALPHA * x0 * (np.arange(n) == 0))
    return cost(x0, best, values)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    from typer.testing import CliRunner

    from ecl2o.cli.commands import app

    folder = tmp_path_factory.mktemp("two-sided")
    data, out = write_series(folder / "demand.csv"), folder / "policy.ecl2o"
    arguments = ["fit", data, "--out", out, *TERMS, "--promise", PROMISE, "--advisor", "ridge"]
    arguments += [*SPLIT, "--json"]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.stderr
    return out, data, json.loads(result.stdout)


def test_costs_equal_those_of_numpy(made, ecl2o):
    out, data, report = made
    policy = ec.load(out)
    assert (float(policy.problem.hitting.short), float(policy.problem.hitting.long)) == (SHORT, LONG)
    assert report["settings"]["misses"] == [SHORT, LONG]
    evaluated = ecl2o("evaluate", out, data, "--days", TESTED, "--json")
    assert evaluated.exit_code == 0, evaluated.stderr
    found = json.loads(evaluated.stdout)
    rows, own = found["rows"], found["yours"]
    values = read_series(data, None, ["demand"])[0].to_numpy(float)
    past, tested = values[: -TESTED * STEPS], values[-TESTED * STEPS :]
    runner = ec.Runner(policy, None, past)
    actions = np.array([runner.step(context)[0] for context in tested])
    paid, best = cost(past[-1, 0], actions, tested[:, 0]), optimum(past[-1, 0], tested[:, 0])
    np.testing.assert_allclose(rows[own]["mean_cost"] * TESTED, paid, rtol=1e-9)
    np.testing.assert_allclose(rows["oracle"]["mean_cost"] * TESTED, best, rtol=1e-9)
    assert rows[own]["promise_kept"] is True
    assert report["test"][report["yours"]]["average_cost"] < report["test"]["r-obd"]["average_cost"]


def test_the_promise_is_of_the_true_optimum_and_act_reports_a_bound(made, ecl2o):
    """Contexts that jump: cost stays below the promise, the reported ratio above the true one."""
    out, _, _ = made
    values = np.where(np.random.default_rng(0).uniform(size=30) < 0.5, 2.7, 3.4)
    lines = "".join(json.dumps({"context": [value]}) + "\n" for value in values)
    acted = ecl2o("act", out, "--x0", "3", stdin=lines)
    assert acted.exit_code == 0, acted.stderr
    answers = [json.loads(line) for line in acted.stdout.splitlines()]
    actions = np.array([answer["action"][0] for answer in answers])
    for n, answer in enumerate(answers, 1):
        paid, best = cost(3.0, actions[:n], values[:n]), optimum(3.0, values[:n])
        np.testing.assert_allclose(answer["cost"], paid, rtol=1e-9)
        assert paid <= PROMISE * best * (1 + 1e-9)
        assert paid / best * (1 - 1e-9) <= answer["live_ratio_at_most"] <= PROMISE * (1 + 1e-9)


def test_covariates_are_seen_and_cost_nothing(ecl2o, tmp_path):
    data, out = write_series(tmp_path / "demand.csv"), tmp_path / "policy.ecl2o"
    arguments = ("--covariate", "supply", "--promise", PROMISE, "--advisor", "ridge", *SPLIT, "--json")
    fitted = ecl2o("fit", data, "--out", out, *TERMS, *arguments)
    assert fitted.exit_code == 0, fitted.stderr
    report = json.loads(fitted.stdout)
    assert report["test"][report["yours"]]["promise_kept"] is True
    assert report["chosen"]["name"].startswith("ridge")
    policy = ec.load(out)
    runner, other = ec.Runner(policy, x0=[3.0]), ec.Runner(policy, x0=[3.0])
    values, ahead = 3 + np.sin(np.arange(12.0)), 2 + np.cos(np.arange(12.0))
    actions = np.array([runner.step([value, wind])[0] for value, wind in zip(values, ahead, strict=True)])
    np.testing.assert_allclose(float(runner.cost), cost(3.0, actions, values), rtol=1e-9)
    assert float(runner.cost) <= PROMISE * optimum(3.0, values) * (1 + 1e-9)
    assert not np.allclose(actions, [other.step([value, 2.0])[0] for value in values], rtol=0, atol=1e-6)


def test_compare_takes_the_same_costs(made, ecl2o):
    out, data, _ = made
    asked = ("compare", data, "--column", "demand", "--alpha", ALPHA, "--days", TESTED, "--agents", out, "--json")
    compared = ecl2o(*asked, "--short", SHORT, "--long", LONG)
    assert compared.exit_code == 0, compared.stderr
    assert json.loads(compared.stdout)["agents"]["policy.ecl2o"]["promise_kept"] is True
    other = ecl2o(*asked)
    assert other.exit_code == 1
    assert "short 3, long 1" in " ".join(other.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--short", "0"], "--short"),
        (["--short", "3", "--promise", "1.9"], "must exceed 1.9505"),
        (["--short", "3", "--weight-column", "price"], "price"),
    ],
)
def test_refusals(made, ecl2o, tmp_path, arguments, message):
    refused = ecl2o(
        "fit", made[1], "--out", tmp_path / "none", "--column", "demand", "--alpha", ALPHA, *SPLIT, *arguments
    )
    assert refused.exit_code in (1, 2)
    assert message in " ".join(refused.stderr.replace("│", " ").split())
