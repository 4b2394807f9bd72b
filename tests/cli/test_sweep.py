"""`ecl2o sweep` around made-up records: options become a grid, a folder is left or nothing is."""

import dataclasses
import json

import pandas as pd
import pytest
from typer.testing import CliRunner

from ecl2o.cli.commands import app
from ecl2o.data import weather_contexts
from ecl2o.paper import sweep
from ecl2o.paper.pareto import SweepRecord

runner = CliRunner()
_BAD = ("-1", "nan", "inf")


@pytest.fixture
def grids(monkeypatch, tmp_path):
    """The grids that were asked for; training is left out."""
    monkeypatch.chdir(tmp_path)
    seen = []

    def run(data, grid, client, progress):
        assert client is None  # this process, unless asked for others
        seen.append(grid)
        progress("training", 1, 1)
        settings = [s for network in grid.networks for s in (*grid.alone(network), *grid.calibrated(network))]
        names = ("validation_cost", "validation_ratio", "test_cost", "test_ratio", "test_third_worst")
        return [
            SweepRecord(
                dataclasses.replace(setting, base_shortage=data.base_shortage, protocol=protocol),
                seed,
                dict.fromkeys(names, 1.1 + 0.1 * place + 0.01 * seed),
            )
            for protocol in data.protocols
            for place, setting in enumerate(settings)
            for seed in grid.seeds
        ]

    monkeypatch.setattr(sweep, "run_sweep", run)
    return seen


def test_options_become_a_grid_and_a_folder_is_left(grids, tmp_path):
    given = "sweep --network lstm,mlp --trust 0.3,0.5 --mu 0,0.6 --rho-bar zero,mean --scale raw,window --kappa 0,1"
    given += " --gamma 2 --ratio 2.5 --period 1,0 --seeds 3 --seed 7 --quick --out out"
    result = runner.invoke(app, given.split())
    assert result.exit_code == 0, result.output
    (grid,) = grids
    assert (grid.networks, grid.trusts, grid.mus) == (("lstm", "mlp"), (0.3, 0.5), (0.0, 0.6))
    assert (grid.rho_bars, grid.cost_scales, grid.kappas) == (("zero", "mean"), ("raw", "window"), (0.0, 1.0))
    assert (grid.gammas, grid.ratios, grid.periods, grid.seeds) == ((2.0,), (2.5,), (1, 0), (7, 8, 9))
    table = pd.read_parquet(tmp_path / "out" / "sweep.parquet")
    assert set(table["seed"]) == {7, 8, 9}
    assert len(table) == 3 * 2 * (2 + 4 + 8)
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (found["study"], found["training_steps"], found["grid"]["trusts"]) == ("sweep", 300, [0.3, 0.5])
    assert (tmp_path / "out" / "figures" / "fronts-mlp.png").is_file()
    assert "none of EC-L2O's 12 settings costs less than PureML-0, 1.180" in result.stdout
    assert runner.invoke(app, given.split()).exit_code == 0  # an earlier one is replaced


def test_everything_that_the_text_leaves_open(grids):
    result = runner.invoke(app, ["sweep", "--open", "--preset", "paper", "--quick", "--json"])
    assert result.exit_code == 0, result.output
    (grid,) = grids
    assert (grid.networks, len(list(grid.calibrated("mlp")))) == (("mlp",), 300)
    assert len(json.loads(result.stdout)["points"]) == 300 + 5


def test_several_shortages_and_protocols_are_one_job_with_a_line_for_each(grids, tmp_path):
    """The headline has the authors' shortage, up to ten times as much, and the rule; each of its settings can be replaced."""
    result = runner.invoke(app, ["sweep", "--headline", "--quick", "--network", "mlp", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    shortages = [group["base_shortage"] for group in found["headline"][::2]]
    assert shortages[:5] == [20_000, 30_000, 50_000, 100_000, 200_000]
    assert shortages[5] == weather_contexts(base_shortage="p99").base_shortage
    assert {(group["network"], group["protocol"]) for group in found["headline"]} == {
        ("mlp", "daily"),
        ("mlp", "streamed"),
    }
    assert (len(grids), grids[0].seeds, grids[0].kappas) == (6, (0, 1, 2, 3, 4, 5), (0.0,))
    assert all(group["minus_pure_ml"]["ec-l2o"]["seeds"] == 6 for group in found["headline"])
    given = (
        "sweep --headline --quick --base-shortage 20000 --base-shortage p99 --protocol streamed --schedule authors "
        "--augment spells"
    )
    result = runner.invoke(app, [*given.split(), "--trust", "0.5", "--mu", "0.6"])
    assert result.exit_code == 0, result.output
    assert grids[-1].schedule == "authors"
    assert "streamed" in result.stdout
    assert "daily" not in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--trust high", "--trust"),
        ("--scale euro", "must be among raw, oracle, window, authors"),
        ("--protocol hourly", "must be among daily, streamed"),
        ("--augment noise", "must be among scale, start, shift, spells"),
        ("--base-shortage p101", "a percentile such as p99"),
        ("--kappa 0.5", "kappas must have 0"),
        ("--mu 0.1,0.1", "mus must not repeat a value"),
        ("--alpha -1", "must be positive and finite"),
        ("--seeds 1000000000", "'--seeds': Input should be less than or equal to 1000"),
        ("--seed 99999999999999999999", "'--seed': Input should be less than or equal to 4294967295"),
        *(("--trust " + number, f"--trust: trusts must be finite and not negative, got {number}") for number in _BAD),
        *(("--mu " + number, "--mu: mus must lie between 0 and 1") for number in (*_BAD, "1.5")),
        *(("--kappa 0," + number, "--kappa: kappas must lie between 0 and 1") for number in (*_BAD, "2")),
        *(("--gamma " + number, "--gamma: gammas must be finite and exceed 1") for number in (*_BAD, "0", "1")),
        *(("--ratio " + number, "--ratio: ratios must be finite and exceed 1") for number in (*_BAD, "0", "1")),
        *(("--period " + number, "--period: periods must be days") for number in ("-1", "1000000000")),
    ],
)
def test_bad_options_are_refused_and_leave_nothing(grids, tmp_path, options, message):
    result = runner.invoke(app, ["sweep", *options.split()])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert grids == []
    assert list(tmp_path.iterdir()) == []


def test_an_alpha_beside_which_a_miss_costs_nothing_is_refused_before_training(grids, tmp_path):
    result = runner.invoke(app, ["sweep", "--quick", "--alpha", "1e300"])
    assert result.exit_code == 1
    assert "ecl2o: alpha must lie between 1e-12 and 1e+12" in result.stderr
    assert grids == list(tmp_path.iterdir()) == []


def test_promises_that_were_asked_for_and_have_no_row_are_named(grids):
    result = runner.invoke(app, ["sweep", "--quick", "--ratio", "1.2", "--period", "7,0"])
    assert result.exit_code == 0, result.output
    assert "1.2 per 7 days, 1.2 " in " ".join(result.stderr.split())


def test_a_training_that_leaves_the_numbers_is_a_line_and_not_a_traceback(grids, monkeypatch, tmp_path):
    def diverge(*_):
        raise FloatingPointError("the loss became inf at step 3.")

    monkeypatch.setattr(sweep, "run_sweep", diverge)
    result = runner.invoke(app, ["sweep", "--quick"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "ecl2o: the loss became inf at step 3."
    assert list(tmp_path.iterdir()) == []
