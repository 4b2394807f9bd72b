"""`ecl2o reproduce` around a made-up study: options become settings, a folder is left or nothing is."""

import errno
import json
import tomllib

import pytest
from typer.testing import CliRunner

from data.weather_texts import psm_text, weather_table
from ecl2o.cli.commands import app
from ecl2o.paper import demand_response, right_sizing
from ecl2o.paper.right_sizing import RightSizingSettings
from paper.fake_study import fake_study

runner = CliRunner()


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """The settings that the study was run with; the working folder is a temporary one."""
    monkeypatch.chdir(tmp_path)
    seen = []

    def run(settings, progress):
        seen.append(settings)
        progress("training", 1, 2)
        progress("training", 2, 2)
        study = fake_study(names=("oracle", "r-obd", "ec-l2o"), seeds=1)
        study.settings.clear()
        study.settings.update(settings.model_dump())
        return study

    monkeypatch.setattr(demand_response, "run", run)
    monkeypatch.setattr("ecl2o.paper.report.save_report_figure", _stub_figure)
    return seen


def _stub_figure(figure, study, folder):
    """Drawing is tested elsewhere."""
    for kind in ("png", "svg"):
        (folder / f"{figure.stem}.{kind}").write_text("<svg/>")


def test_options_become_settings_and_a_folder_is_left(runs, tmp_path):
    (tmp_path / "site.csv").write_text("")
    given = "--weather site.csv --base-shortage 15000 --preset paper --network lstm --fill previous"
    given += " --seeds 3 --seed 7 --quick --out deep/out"
    result = runner.invoke(app, ["reproduce", *given.split()])
    assert result.exit_code == 0, result.output
    settings = runs[0]
    assert (settings.weather, settings.base_shortage, settings.preset) == ("site.csv", 15000.0, "paper")
    assert settings.network == "lstm"
    assert (settings.seeds, settings.seed, settings.fill, settings.quick) == (3, 7, "previous", True)
    assert (tmp_path / "deep/out/report.html").is_file()
    assert "average cost" in result.stdout
    words = " ".join(result.stdout.split())
    assert "quick run" in words  # of which a network says nothing: it is named, and has no row
    assert words.count("EC-L2O") == 1
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "deep/out/report.html" in result.stderr
    assert "training: done" in result.stderr


def test_the_other_study_has_its_own_settings(runs, monkeypatch, tmp_path):
    monkeypatch.setattr(right_sizing, "run", demand_response.run)
    assert (
        runner.invoke(app, ["reproduce", "--study", "right-sizing", "--workload", "web.csv", "--quick"]).exit_code == 0
    )
    assert isinstance(runs[0], RightSizingSettings)
    assert (runs[0].workload, runs[0].quick) == ("web.csv", True)
    wrong = runner.invoke(app, ["reproduce", "--study", "right-sizing", "--weather", "site.csv"])
    assert wrong.exit_code == 1
    assert "right-sizing: weather" in wrong.stderr


def test_the_configuration_repeats_the_run_from_any_folder(runs, tmp_path, monkeypatch):
    (tmp_path / "site.csv").write_text("")
    assert (
        runner.invoke(app, ["reproduce", "--weather", "site.csv", "--base-shortage", "auto", "--seed", "4"]).exit_code
        == 0
    )
    config = tmp_path / "results" / "config.toml"
    assert tomllib.loads(config.read_text())["study"] == "demand-response"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert runner.invoke(app, ["reproduce", "--config", str(config)]).exit_code == 0
    first, second = (settings.model_dump() for settings in runs)
    assert second == first | {"weather": str(tmp_path / "site.csv")}
    assert runner.invoke(app, ["reproduce", "--config", str(config), "--seed", "5", "--full"]).exit_code == 0
    assert runs[2].model_dump() == second | {"seed": 5}


def test_json_is_the_results_and_nothing_else(runs, tmp_path):
    result = runner.invoke(app, ["reproduce", "--json"])
    assert json.loads(result.stdout) == json.loads((tmp_path / "results/results.json").read_text())


def test_a_second_run_replaces_the_first(runs):
    assert [runner.invoke(app, ["reproduce"]).exit_code for _ in range(2)] == [0, 0]


def test_a_folder_of_the_users_is_refused_before_the_run(runs, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "thesis.txt").write_text("mine")
    result = runner.invoke(app, ["reproduce"])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "thesis.txt" in result.stderr
    assert runs == []


def test_failure_is_one_line_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(settings, progress):
        raise ValueError("site.csv, row 7:\n column ghi is not a number")

    monkeypatch.setattr(demand_response, "run", run)
    result = runner.invoke(app, ["reproduce"])
    assert result.exit_code == 1
    assert result.stderr == "ecl2o: site.csv, row 7: column ghi is not a number\n"
    assert list(tmp_path.iterdir()) == []
    shown = runner.invoke(app, ["--debug", "reproduce"])
    assert isinstance(shown.exception, ValueError)


def test_a_real_missing_file_is_one_line(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["reproduce", "--weather", "nowhere.csv"])
    assert result.exit_code == 1
    assert "nowhere.csv" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("ecl2o: ")
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--study", "tea-making"],
        ["--preset", "mine"],
        ["--network", "gpt"],
        ["--seeds", "0"],
        ["--base-shortage", "much"],
        ["--base-shortage", "-3"],
        ["--base-shortage", "inf"],
        ["--fill", "guess"],
        ["--seed", "-1"],
        ["--unknown"],
    ],
)
def test_what_is_not_understood_ends_with_2(arguments, runs):
    assert runner.invoke(app, ["reproduce", *arguments]).exit_code == 2
    assert runs == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("seeds = ", "config.toml"),
        ("colour = 'blue'", "colour"),
        ("seeds = 'many'", "seeds"),
        ("study = 'tea-making'", "tea-making"),
    ],
)
def test_a_bad_configuration_is_explained(text, complaint, runs, tmp_path):
    (tmp_path / "config.toml").write_text(text)
    result = runner.invoke(app, ["reproduce", "--config", "config.toml"])
    assert result.exit_code == 1
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1
    assert runs == []


@pytest.mark.parametrize(
    "setting", ["alpha = inf", "alpha = nan", "base_shortage = inf", "seeds = 1000000000", "seed = -1"]
)
def test_a_setting_that_means_nothing_is_refused_by_its_name(runs, tmp_path, setting):
    (tmp_path / "config.toml").write_text(setting)
    result = runner.invoke(app, ["reproduce", "--config", "config.toml"])
    assert result.exit_code == 1
    name = setting.split()[0].replace("base_shortage", "--base-shortage")
    assert f"the settings do not fit the study demand-response: {name}: Input should be" in result.stderr
    assert runs == []


@pytest.mark.parametrize("command", ["reproduce", "sweep"])
def test_too_little_weather_brings_no_advice_about_options_that_are_not_there(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.csv").write_text(psm_text(weather_table(days=20)))
    result = runner.invoke(app, [command, "--weather", "short.csv", "--quick", "--base-shortage", "auto"])
    assert result.exit_code == 1
    assert "short.csv has 20 whole days" in result.stderr
    assert "91 are needed" in result.stderr
    assert "training_days" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["short.csv"]


def test_a_full_disk_is_told_with_what_was_being_written(runs, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ecl2o.paper.report.page", full)
    result = runner.invoke(app, ["reproduce", "--quick", "--out", "report"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"ecl2o: {tmp_path / 'report'}: No space left on device"
    assert list(tmp_path.iterdir()) == []
