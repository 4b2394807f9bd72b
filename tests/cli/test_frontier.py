"""`ecl2o frontier` around a made-up result: what is read, what is left behind, and what is refused."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from ecl2o.cli.commands import app
from ecl2o.paper import frontier
from paper.fake_frontier import fake_frontier

runner = CliRunner()


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """What the study was run with; the working folder is a temporary one."""
    monkeypatch.chdir(tmp_path)
    seen = []

    def run(contexts, settings, progress):
        seen.append((contexts, settings))
        progress("testing", 1, 1)
        return fake_frontier(settings=settings)

    monkeypatch.setattr(frontier, "run_frontier", run)
    monkeypatch.setattr("ecl2o.plots.style.save_figure", lambda figure, path: path.write_text("<svg/>"))
    return seen


def write_series(path, days=120, steps=4):
    time = pd.date_range("2020-01-01", periods=days * steps, freq=f"{24 // steps}h")
    values = 100 + 10 * np.sin(np.arange(days * steps))
    pd.DataFrame({"time": time, "demand": values, "price": -values}).to_csv(path, index=False)


def invoke(*arguments):
    return runner.invoke(app, ["frontier", *arguments])


def test_a_series_is_read_and_a_folder_left(runs, tmp_path):
    write_series(tmp_path / "demand.csv")
    result = invoke(
        "demand.csv", "--column", "demand", "--alpha", "5", "--seed", "3", "--quick", "--networks", "--out", "deep/out"
    )
    assert result.exit_code == 0, result.output
    contexts, settings = runs[0]
    assert contexts.values.shape == (480, 1)
    assert (contexts.steps_per_day, contexts.split.training_days, contexts.split.validation_days) == (4, 80, 20)
    assert (settings.alpha, settings.seed, settings.quick, settings.network) == (5.0, 3, True, "LSTM")
    left = sorted(path.relative_to(tmp_path).as_posix() for path in (tmp_path / "deep").rglob("*") if path.is_file())
    assert left == ["deep/out/figures/frontier.png", "deep/out/figures/frontier.svg", "deep/out/results.json"]
    saved = json.loads((tmp_path / "deep/out/results.json").read_text())
    assert saved["study"] == "frontier"
    assert [point["label"] for point in saved["points"]] == [point.label for point in fake_frontier().points]
    assert "deep/out/figures/frontier.png" in result.stderr


def test_a_split_may_be_given(runs, tmp_path):
    write_series(tmp_path / "short.csv", days=20)
    assert invoke("short.csv", "--column", "demand", "--training-days", "10", "--validation-days", "4").exit_code == 0
    split = runs[0][0].split
    assert (split.training_days, split.validation_days) == (10, 4)


def test_the_table_distinguishes_promises_from_none(runs):
    result = invoke("--quick")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    assert ["Competitive", "2.5", "day", "1.100", "2.500", "2.400"] in rows
    assert ["Competitive", "2.5", "run", "1.010", "3.400", "2.400"] in rows
    assert ["RHC", "none", "", "1.097", "7.470", "3.000"] in rows
    assert "not bounded" in result.stdout
    assert "1.728527" in result.stdout
    assert "3.70" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 110


def test_json_only(runs):
    result = invoke("--json")
    found = json.loads(result.stdout)
    promises = {point["label"]: point["promised_ratio"] for point in found["points"]}
    assert promises["3 per week"] == 3.0
    assert promises["EC-L2O"] is None


def test_contexts_known_to_lie_in_an_interval(runs, tmp_path):
    write_series(tmp_path / "demand.csv")
    assert invoke("demand.csv", "--column", "demand", "--contexts", "80:120").exit_code == 0
    assert invoke("demand.csv", "--column", "demand", "--out", "again").exit_code == 0
    assert invoke("--out", "weather").exit_code == 0
    assert [settings.contexts for _, settings in runs] == [(80.0, 120.0), None, (0.0, 0.8)]
    for wrong in ("80", "3:1"):
        refused = invoke("demand.csv", "--contexts", wrong)
        assert refused.exit_code == 2
        assert "--contexts" in refused.stderr


def test_weather_and_its_preset(runs):
    assert invoke("--preset", "paper", "--networks").exit_code == 0
    contexts, settings = runs[0]
    assert (contexts.preset, settings.network, contexts.metadata.built_in) == ("paper", "MLP", True)
    assert invoke("--base-shortage", "30000", "--out", "again").exit_code == 0
    assert runs[1][0].base_shortage == 30000.0
    assert runs[1][1].network is None  # networks are trained only if they are asked for


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["demand.csv", "--preset", "paper"], 2, "--preset"),
        (["demand.csv", "--weather", "site.csv"], 2, "--weather"),
        (["--weather", "site.csv", "--column", "demand"], 2, "--column"),
        (["--training-days", "9", "--validation-days", "3"], 2, "--training-days"),
        (["demand.csv", "--training-days", "9"], 2, "--validation-days"),
        (["--alpha", "0"], 2, "--alpha"),
        (["--base-shortage", "much"], 2, "--base-shortage"),
        (["missing.csv"], 1, "missing.csv"),
        (["short.csv", "--column", "demand"], 1, "91 are needed"),
        (["demand.csv", "--out", "kept"], 1, "kept"),
    ],
)
def test_errors_leave_no_files(runs, tmp_path, arguments, code, message):
    write_series(tmp_path / "demand.csv")
    write_series(tmp_path / "short.csv", days=20)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "thesis.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert message in " ".join(result.output.replace("│", " ").split())
    assert sorted(tmp_path.rglob("*")) == before
    assert not runs


def test_a_failure_leaves_no_folder(runs, tmp_path, monkeypatch):
    def fails(contexts, settings, progress):
        raise ValueError("no such luck")

    monkeypatch.setattr(frontier, "run_frontier", fails)
    result = invoke("--out", "nothing")
    assert (result.exit_code, "no such luck" in result.stderr) == (1, True)
    assert not list(tmp_path.iterdir())
