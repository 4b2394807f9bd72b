"""`--weight-column price`: misses that cost what a column of the file says, from fit to act."""

import json

import numpy as np
import pandas as pd
import pytest
import scipy.linalg

import ecl2o as ec
from ecl2o.data import Split, read_series
from ecl2o.fitting.read import SeriesReader
from ecl2o.fitting.settings import FitSettings, PromiseSpec
from ecl2o.fitting.tasks import series_problem

from .conftest import SPLIT, TESTED
from .operator_files import DAYS, STEPS, write_series

ALPHA, PROMISE, ENDS = 5.0, 3.0, (0.4, 2.4)
PRICE = "price [/MWh]"  # a name that would be markup where markup is read
FOLLOWED = ("--column", "demand", "--weight-column", PRICE)
TERMS = ("--alpha", ALPHA, "--promise", PROMISE, "--weights", f"{ENDS[0]}:{ENDS[1]}", "--advisor", "ridge")
HOSTILE = ("--plausible", "-20:20")  # zeros too


def cost(x0, actions, values, weights):
    """1/2 w (x - y)^2 + alpha/2 (x - x')^2, in NumPy."""
    return 0.5 * np.sum(weights * (actions - values) ** 2) + ALPHA / 2 * np.sum(np.diff(actions, prepend=x0) ** 2)


def optimum(x0, values, weights):
    """The least cost, by one tridiagonal system in NumPy."""
    n, last = len(values), np.arange(len(values)) == len(values) - 1
    bands = np.zeros((3, n))
    bands[0, 1:] = bands[2, :-1] = -ALPHA
    bands[1] = weights + np.where(last, 1, 2) * ALPHA
    best = scipy.linalg.solve_banded((1, 1), bands, weights * values + ALPHA * x0 * (np.arange(n) == 0))
    return cost(x0, best, values, weights)


def write_priced(path, days=24, **changes):
    """The operators' series with a price that rises with demand and wanders, before the columns that are followed."""
    frame = pd.read_csv(write_series(path, days))
    rng = np.random.default_rng(1)
    demand = frame["demand"].to_numpy()
    frame.insert(1, PRICE, np.clip(demand / demand.mean() * np.exp(rng.normal(0, 0.3, len(demand))), 0.5, 2.0))
    for row, price in changes.get("prices", {}).items():
        frame.loc[row, PRICE] = price
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def priced(tmp_path_factory):
    return write_priced(tmp_path_factory.mktemp("priced") / "priced.csv")


@pytest.fixture(scope="module")
def made(priced, tmp_path_factory):
    from typer.testing import CliRunner

    from ecl2o.cli.commands import app

    out = tmp_path_factory.mktemp("made") / "priced.ecl2o"
    result = CliRunner().invoke(
        app, list(map(str, ["fit", priced, "--out", out, *FOLLOWED, *TERMS, *SPLIT, *HOSTILE, "--json"]))
    )
    assert result.exit_code == 0, result.stderr
    return out, json.loads(result.stdout)


def test_costs_equal_those_of_numpy_and_the_contract_states_its_assumptions(made, priced, ecl2o):
    out, report = made
    policy = ec.load(out)
    contract = policy.contract
    assert (contract.columns, contract.weight_column, contract.weights) == (["demand", PRICE], PRICE, ENDS)
    assert report["settings"]["weights"] == list(ENDS)
    days, per_day = report["split"]["test_days"], STEPS
    evaluated = ecl2o("evaluate", out, priced, "--days", days, "--json")
    assert evaluated.exit_code == 0, evaluated.stderr
    tested = json.loads(evaluated.stdout)
    rows, own, name = tested["rows"], tested["rows"][tested["yours"]], report["yours"]
    assert tested["yours"] == name

    values = read_series(priced, None, ["demand", PRICE])[0].to_numpy(float)
    first = len(values) - days * per_day
    past, tested = values[:first], values[first:]
    runner = ec.Runner(policy, None, past)
    actions = np.array([runner.step(context)[0] for context in tested])
    paid, best = cost(past[-1, 0], actions, *tested.T), optimum(past[-1, 0], *tested.T)
    np.testing.assert_allclose(own["mean_cost"] * days, paid, rtol=1e-9)
    np.testing.assert_allclose(rows["oracle"]["mean_cost"] * days, best, rtol=1e-9)
    np.testing.assert_allclose(own["average_cost"], paid / best, rtol=1e-9)
    assert own["promise_kept"] is True
    assert report["test"][name]["average_cost"] < report["test"]["r-obd"]["average_cost"]
    assert report["test"][name]["average_cost"] < report["test"]["greedy"]["average_cost"]


def test_act_takes_two_numbers_and_compare_and_the_file_know_the_weights(made, priced, ecl2o):
    out, _ = made
    policy = ec.load(out)
    acted = ecl2o("act", out, "--x0", "3", stdin=f'3.5,1.5\n{{"{PRICE}": 0.5, "demand": 3.25}}\n')
    assert acted.exit_code == 0, acted.stderr
    plain, named = acted.stdout.splitlines()
    runner = ec.Runner(policy, [3.0], policy.history)
    assert [float(plain)] == runner.step([3.5, 1.5]).tolist()
    assert json.loads(named)["action"] == runner.step([3.25, 0.5]).tolist()

    asked = ("compare", "--days", TESTED, priced, *FOLLOWED, "--alpha", ALPHA, "--agents", out, "--json")
    compared = ecl2o(*asked, "--weights", "0.4:2.4")
    assert compared.exit_code == 0, compared.stderr
    assert json.loads(compared.stdout)["agents"]["priced.ecl2o"]["promise_kept"] is True
    other = ecl2o(*asked)
    assert "weights from 0.4 to 2.4" in " ".join(other.stderr.split())


@pytest.mark.parametrize("seed", range(3))
def test_the_promise_holds_on_a_hostile_series(made, seed):
    """Contexts jump between far ends, weights between theirs; the cost never exceeds the promise, at any step."""
    policy, rng, steps = ec.load(made[0]), np.random.default_rng(seed), 60
    values = np.where(rng.uniform(size=steps) < 0.5, 0.0, 10.0 ** rng.uniform(-2, 1, steps))
    weights = np.where(rng.uniform(size=steps) < 0.5, *ENDS)
    runner, actions = ec.Runner(policy, [0.0], policy.history), []
    for t in range(steps):
        runner_action = runner.step([values[t], weights[t]])
        actions.append(float(runner_action[0]))
        best = optimum(0.0, values[: t + 1], weights[: t + 1])
        assert cost(0.0, np.array(actions), values[: t + 1], weights[: t + 1]) <= PROMISE * best * (1 + 1e-9) + 1e-12
    assert float(runner.live_ratio) <= PROMISE


def test_a_weight_outside_ends_the_promise_and_that_is_said(made, ecl2o, tmp_path):
    out, _ = made
    expensive = write_priced(tmp_path / "expensive.csv", prices={85: 2.9})  # plausible, but more than was declared
    evaluated = ecl2o("evaluate", out, expensive, "--days", TESTED)
    said = " ".join(evaluated.stdout.split())
    assert f"LOST from step {85 - (DAYS - TESTED) * STEPS + 1} on" in said
    acted = ecl2o("act", out, stdin="3.5,1.5\n3.4,2.9\n3.3,1.0\n")
    assert acted.exit_code == 0
    assert len(acted.stdout.splitlines()) == 3
    assert "line 1" not in acted.stderr
    assert "line 2" in acted.stderr
    assert "line 3" in acted.stderr


def test_without_a_declaration_the_range_is_what_was_seen_a_quarter_wider(priced, ecl2o, tmp_path):
    out = tmp_path / "plain.ecl2o"
    fitted = ecl2o("fit", priced, "--out", out, *FOLLOWED, "--advisor", "r-obd", *SPLIT)
    assert fitted.exit_code == 0, fitted.stderr
    said = " ".join(fitted.stdout.split())
    weights = SeriesReader(priced, ["demand"], weight_column=PRICE).read_rows()[0][PRICE].iloc[: 14 * STEPS]
    np.testing.assert_allclose(ec.load(out).contract.weights, (weights.min() / 1.25, weights.max() * 1.25))
    assert PRICE in said
    assert "0.4 to 2.5" in said
    assert "weight/2 miss² + alpha/2 change²" in said
    assert "with --promise 2." in said  # the least that can be promised is above 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weight-column", "nothing"], "'nothing' is missing; the file has"),
        (["--weight-column", "demand"], "(time, demand), got demand"),
        (["--weights", "1:2"], "--weight-column"),
        (["--weight-column", PRICE, "--weights", "0:2"], "must be positive and finite, got '0:2'"),
        (["--weight-column", PRICE, "--weights", "2"], "--weights"),
        (["--weight-column", PRICE, "--advisor", "lstm"], "lstm"),
        (["--weight-column", PRICE, "--promise", "2"], "cannot be promised"),
        (["--weight-column", PRICE, "--promise", "3", "--weights", "1:1.2"], "lie outside, the first"),
        (
            ["--weight-column", PRICE, "--alpha", f"demand=1,{PRICE}=2"],
            f"alpha is given for demand, {PRICE}, but the columns",
        ),
    ],
)
def test_refusals(priced, ecl2o, tmp_path, arguments, message):
    out = tmp_path / "none.ecl2o"
    refused = ecl2o("fit", priced, "--out", out, "--column", "demand", *SPLIT, *arguments)
    assert refused.exit_code in (1, 2)
    assert message in " ".join(refused.stderr.replace("│", " ").split())
    assert not out.exists()


def test_prices_that_are_not_positive_need_a_declaration(ecl2o, tmp_path):
    data, out = write_priced(tmp_path / "free.csv", prices={30: 0.0, 31: -0.5}), tmp_path / "free.ecl2o"
    refused = ecl2o("fit", data, "--out", out, *FOLLOWED, *SPLIT)
    assert "-0.5" in " ".join(refused.stderr.split())
    fitted = ecl2o("fit", data, "--out", out, *FOLLOWED, "--weights", "0.5:2.5", "--advisor", "r-obd", *SPLIT)
    assert fitted.exit_code == 0, fitted.stderr


def test_bounds_go_with_weights(priced):
    """What fit --bounds makes of a weighted series: the promise then counts on contexts within the bounds, and is kept."""
    contexts = SeriesReader(priced, ["demand"], weight_column=PRICE).read_split(Split(14, 4))
    settings = FitSettings(ALPHA, promise=PromiseSpec(PROMISE), bounds=(2.0, 20.0), weights=ENDS)
    problem = series_problem(contexts, settings)
    values = np.column_stack([np.maximum(contexts.followed, 2.0), contexts.values[:, -1]])
    guard = settings.promise_in_bounds.guard(ec.advisors.Fixed(np.full((len(values), 1), -9.0)), STEPS)
    run = ec.rollout(guard, problem, ec.Instance([3.0], values))
    assert bool(run.info.details["kept"].all())
    assert float(run.actions.min()) >= 2.0
    assert float(run.cost) <= PROMISE * float(ec.oracle(problem, ec.Instance([3.0], values)).cost) * (1 + 1e-9)


def test_two_columns_with_one_price_a_promise_for_each_day_and_an_allowance(priced, ecl2o, tmp_path):
    """On days as hostile as they come, by NumPy: at each step of each day at most ratio times its optimum, plus the allowance."""
    out, allowance, ratio = tmp_path / "two.ecl2o", 2.0, 2.5
    columns = ("--column", "demand", "--column", "supply", "--weight-column", PRICE)
    terms = ("--alpha", ALPHA, "--promise", ratio, "--per", "day", "--allowance", allowance, "--weights", "0.4:2.4")
    fitted = ecl2o("fit", priced, "--out", out, *columns, *terms, "--advisor", "r-obd", *SPLIT, *HOSTILE)
    assert fitted.exit_code == 0, fitted.stderr
    policy, rng = ec.load(out), np.random.default_rng(3)
    assert policy.contract.columns == ["demand", "supply", PRICE]
    assert "2.5 times" in " ".join(fitted.stdout.split())
    evaluated = ecl2o("evaluate", out, priced, "--days", TESTED, "--json")
    assert json.loads(evaluated.stdout)["rows"]["r-obd, behind a promise of 2.5 (yours)"]["promise_kept"] is True

    x0, runner = np.zeros(2), ec.Runner(policy, [0.0, 0.0], policy.history)
    for _ in range(12):
        actions, used = [], []
        for _ in range(STEPS):
            actions.append(runner.step([*rng.choice([0.0, 3.0, 6.0], 2), rng.choice(ENDS)]))
            used.append(runner.context)  # implausible readings are replaced
            done, (*values, weights) = np.transpose(actions), np.transpose(used)
            paid = sum(cost(x0[i], done[i], values[i], weights) for i in range(2))
            best = sum(optimum(x0[i], values[i], weights) for i in range(2))
            assert paid <= (ratio * best + allowance) * (1 + 1e-9)
        x0 = actions[-1]
    assert float(runner.screened) < 12 * STEPS / 2
