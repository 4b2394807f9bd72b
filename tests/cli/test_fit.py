"""`ecl2o fit`: what it writes, what it says, and what it refuses before it has trained or written anything."""

import json

import pytest

import ecl2o as ec

from .conftest import SPLIT
from .operator_files import DAYS, STEPS, demands, write_series


def test_the_report_covers_the_days_held_back_and_all_that_was_tried(fitted):
    report = fitted.report
    assert report["split"] == {"training_days": 14, "validation_days": 4, "test_days": DAYS - 18}
    rows = report["test"]
    assert list(rows)[:3] == ["oracle", "daily-oracle", report["yours"]]
    assert {"r-obd", "rhc", "guarded-rhc", "greedy"} <= set(rows)
    names = {candidate["name"] for candidate in report["candidates"]}
    assert report["yours"] == f"{report['chosen']['name']} (yours)"
    assert names - {report["chosen"]["name"]} <= set(rows)
    assert rows["rhc"]["forecaster"] == "RollingProfile"
    assert rows["r-obd"]["competitive_ratio"] <= report["expert_ratio"] * (1 + 1e-9)
    assert rows["oracle"]["average_cost"] == 1.0
    assert all(row["average_cost"] >= 1 and row["competitive_ratio"] >= 1 for row in rows.values())
    assert set(report["left_out"]) - {"fourier"} == {"mlp", "lstm"}


def test_the_choice_is_by_validation_and_not_worse_than_what_needs_no_training(fitted):
    candidates = fitted.report["candidates"]
    assert [c["name"] for c in candidates if c["advisor"] != "ridge"] == [
        "rhc, behind a promise of 2.2",
        "r-obd, behind a promise of 2.2",
    ]
    untrained = [c["name"] for c in candidates if not c["trained"]]
    assert untrained == [f"{name}, behind a promise of 2.2" for name in ("ridge", "rhc", "r-obd")]
    chosen = fitted.report["chosen"]
    assert chosen == min((c for c in candidates if not c["failed"]), key=lambda candidate: candidate["average_cost"])
    for candidate in candidates:
        assert candidate["standard_error"] > 0
        assert candidate["behind"] == pytest.approx(candidate["average_cost"] - chosen["average_cost"], abs=1e-9)


def test_the_promise_is_kept_and_reported(fitted):
    row = fitted.report["test"][fitted.report["yours"]]
    assert row["promise"] == ec.Promise(2.2, period=STEPS).to_json()
    assert row["promise_kept"] is True
    assert row["competitive_ratio"] <= row["live_ratio"] * (1 + 1e-9) <= 2.2 * (1 + 2e-9)
    costs = fitted.report["costs"]
    assert costs["mean_day"] <= costs["highest_day"] <= costs["allowed"]


def test_the_policy_knows_its_columns_its_day_and_the_end_of_the_series(fitted):
    policy = ec.load(fitted.policy)
    assert policy.contract.columns == ["demand"]
    assert policy.contract.steps_per_day == STEPS
    history = policy.history[:, 0].tolist()
    assert history == demands(fitted.data)[-len(history) :]
    assert policy.contract.history_steps == 7 * STEPS
    assert len(history) == (DAYS if fitted.report["chosen"]["advisor"] == "ridge" else 7) * STEPS
    assert policy.metadata["settings"]["seed"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--column", "demand"), "24 whole days (96 rows, 4 a day)"),
        ((*SPLIT, "--column", "demand", "--promise", "1.1"), "--promise 1.1"),
        ((*SPLIT, "--alpha", "1e300"), "alpha must lie between 1e-12 and 1e+12"),
        ((*SPLIT, "--alpha", "1e-300"), "alpha must lie between 1e-12 and 1e+12"),
        ((*SPLIT, "--column", "price"), "the column 'price' is missing"),
        (("--column", "demand", "--training-days", "20", "--validation-days", "10"), "31 are needed"),
        (SPLIT, "2 columns of numbers: demand, supply. Name the one to follow, such as --column demand"),
        ((*SPLIT, "--column", "demand", "--time-zone", "Mars"), "--time-zone must be a name such as America/New_York"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(ecl2o, tmp_path, arguments, message):
    data, out = write_series(tmp_path / "demand.csv"), tmp_path / "policy.ecl2o"
    result = ecl2o("fit", data, "--out", out, *arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--training-days", "14"), "--training-days and --validation-days"),
        (("--advisor", "oracle"), "'oracle' is not one of 'auto', 'ridge', "),
        (("--alpha", "0"), "got 0."),
        (("--promise", "nan"), "'--promise'"),
        (("--promise", "-1"), "'--promise'"),
        (("--unit-cost", "-1"), "got -1."),
        (("--fill", "zeros"), "'zeros' is not one of 'interpolate', 'previous'"),
        (("--day-start", "25"), "--day-start"),
        (("--out", "."), "--out"),
        (("--out", "/dev/null"), "--out"),
        (("--out", "nowhere/policy.ecl2o"), "nowhere"),
    ],
)
def test_wrong_usage_exits_with_2(ecl2o, tmp_path, arguments, message):
    result = ecl2o("fit", write_series(tmp_path / "demand.csv"), *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_other_files_are_not_overwritten(ecl2o, tmp_path):
    data = write_series(tmp_path / "demand.csv")
    before = data.read_bytes()
    for place, code, message in (
        (("--out", data), 2, "--out"),
        (("--out", tmp_path / "new.ecl2o", "--report", data), 1, "--report"),
    ):
        refused = ecl2o("fit", data, "--column", "demand", *SPLIT, *place)
        assert refused.exit_code == code
        assert message in " ".join(refused.stderr.replace("│", " ").split())
        assert data.read_bytes() == before
        assert [entry.name for entry in tmp_path.iterdir()] == ["demand.csv"]


@pytest.mark.parametrize("command", [("alpha",), ("fit", *SPLIT), ("frontier", *SPLIT)])
def test_a_series_that_never_changes_is_refused_by_its_name(ecl2o, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    data = write_series(tmp_path / "flat.csv", scale=0.0)
    result = ecl2o(*command, data, "--column", "demand")
    assert result.exit_code == 1
    assert "flat.csv never change" in result.stderr
    assert list(tmp_path.iterdir()) == [data]


def test_daily_rows_need_a_period(ecl2o, tmp_path):
    data = write_series(tmp_path / "daily.csv", days=100, hours=24)
    result = ecl2o("fit", data, "--column", "demand", "--out", tmp_path / "policy.ecl2o")
    assert result.exit_code == 1
    assert "--period" in result.stderr


def test_messages_speak_of_options_not_of_arguments(ecl2o, tmp_path):
    lines = write_series(tmp_path / "demand.csv").read_text().splitlines()
    (tmp_path / "gap.csv").write_text("\n".join(lines[:10] + lines[12:]))
    (tmp_path / "timeless.csv").write_text("a,b\n" + "\n".join(f"{i % 7},x" for i in range(200)))
    for command in ("fit", "compare", "alpha"):
        result = ecl2o(command, tmp_path / "gap.csv", "--column", "demand")
        assert result.exit_code == 1
        assert "--fill interpolate or --fill previous" in result.stderr
        assert "fill=" not in result.stderr
        assert "with --time-column" in ecl2o(command, tmp_path / "timeless.csv").stderr
    short = ecl2o(
        "fit", tmp_path / "demand.csv", "--column", "demand", "--training-days", "20", "--validation-days", "10"
    )
    assert "(--training-days, --validation-days)" in short.stderr


def test_where_the_report_fails_no_policy_is_written(ecl2o, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ecl2o.plots.series.draw_policy_week", fail)
    data = write_series(tmp_path / "demand.csv")
    places = ("--out", tmp_path / "rhc.ecl2o", "--report", tmp_path / "report")
    result = ecl2o("fit", data, "--column", "demand", "--advisor", "rhc", *SPLIT, *places)
    assert result.exit_code == 1
    assert "report: No space left on device" in result.stderr
    assert list(tmp_path.iterdir()) == [data]


def test_a_planner_is_written_to_a_file_and_played(ecl2o, tmp_path):
    data, out = write_series(tmp_path / "demand.csv"), tmp_path / "rhc.ecl2o"
    report = tmp_path / "report"
    arguments = ("--column", "demand", "--advisor", "rhc", *SPLIT, "--unit-cost", "7", "--report", report)
    result = ecl2o("fit", data, "--out", out, *arguments)
    assert result.exit_code == 0, result.stderr
    words = " ".join(result.stdout.split())
    assert "not trained" in words
    assert "ridge (not requested)" in words
    assert "in your money" in words
    assert (report / "figures" / "week.png").read_bytes()[:4] == b"\x89PNG"
    page, rows = (report / "report.html").read_text(), json.loads((report / "results.json").read_text())["test"]
    assert page.count('<th scope="row">') == len(rows)
    assert all(f'<th scope="row">{name}</th>' in page for name in rows)
    assert "data:image/svg+xml;base64," in page
    assert "http" not in page.split("</style>")[1].split("base64,")[0]
    policy = ec.load(out)
    assert policy.agent.lookahead == STEPS - 1
    assert type(policy.forecaster).__name__ == "RollingProfile"
    expected = ec.Runner(policy, [3.0], policy.history).step([3.5])
    answer = ecl2o("act", out, "--x0", "3.0", stdin="3.5\n")
    assert answer.exit_code == 0, answer.stderr
    assert float(answer.stdout) == pytest.approx(float(expected[0]), rel=1e-9)
