"""`ecl2o fit`: what it writes, what it says, and what it refuses before it has trained or written anything."""

import pytest

import ecl2o as ec
from ecl2o.recipes.candidates import GRID

from .conftest import SPLIT
from .operator_files import DAYS, STEPS, demands, write_series


def test_the_report_covers_the_days_held_back_and_the_rivals(fitted):
    report = fitted.report
    assert report["split"] == {"training_days": 14, "validation_days": 4, "test_days": DAYS - 18}
    assert list(report["test"]) == ["oracle", "policy", "r-obd", "rhc"]
    assert report["test"]["rhc"]["forecaster"] == "RollingProfile"
    assert report["test"]["r-obd"]["competitive_ratio"] <= report["expert_ratio"] * (1 + 1e-9)
    assert all(row["average_cost"] >= 0.5 and row["competitive_ratio"] >= 1 for row in report["test"].values())


def test_trust_and_mu_are_chosen_on_validation(fitted):
    candidates = fitted.report["candidates"]
    assert [(c["advisor"], c["trust"], c["mu"]) for c in candidates] == [
        ("ridge", None, 0.0),
        *(("seasonal", trust, mu) for trust, mu in GRID),
    ]
    chosen = fitted.report["chosen"]
    assert chosen == min(candidates, key=lambda candidate: candidate["average_cost"])
    agent = ec.load(fitted.policy).agent.agent.agent
    assert (float(agent.trust) if chosen["advisor"] == "seasonal" else None) == chosen["trust"]


def test_the_promise_is_kept_and_reported(fitted):
    row = fitted.report["test"]["policy"]
    expected = {"ratio": 2.2, "relative_to": "the optimum", "allowance": 0.0, "steps": STEPS}
    assert row["promise"] == expected
    assert row["promise_kept"] is True
    assert row["competitive_ratio"] <= row["live_ratio"] * (1 + 1e-9) <= 2.2 * (1 + 2e-9)


def test_the_policy_knows_its_columns_its_day_and_the_end_of_the_series(fitted):
    policy = ec.load(fitted.policy)
    assert policy.contract.columns == ["demand"]
    assert policy.contract.steps_per_day == STEPS
    history = policy.history[:, 0].tolist()
    assert history == demands(fitted.data)[-len(history) :]
    assert policy.contract.history_steps == 7 * STEPS
    assert len(history) == (DAYS if fitted.report["chosen"]["advisor"] == "ridge" else 7) * STEPS
    assert policy.metadata["recipe"]["seed"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "24 whole days (96 rows, 4 a day), but 91 are needed"),
        ((*SPLIT, "--promise", "1.1"), "ratio = 1.1 cannot be promised over any number of steps: it must exceed 1."),
        ((*SPLIT, "--column", "price"), "the column 'price' is missing"),
        ((*SPLIT, "--alpha", "0"), "alpha must be positive"),
        (("--training-days", "20", "--validation-days", "10"), "31 are needed"),
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
        (("--training-days", "14"), "give both or neither"),
        (("--advisor", "oracle"), "'oracle' is not one of 'auto', 'ridge', 'seasonal', 'mlp', 'lstm'"),
        (("--out", "."), "is a folder"),
        (("--out", "nowhere/policy.ecl2o"), "does not exist"),
    ],
)
def test_misunderstandings_have_their_own_exit_code(ecl2o, tmp_path, arguments, message):
    result = ecl2o("fit", write_series(tmp_path / "demand.csv"), *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_daily_rows_need_a_period(ecl2o, tmp_path):
    data = write_series(tmp_path / "daily.csv", days=100, hours=24)
    result = ecl2o("fit", data, "--out", tmp_path / "policy.ecl2o")
    assert result.exit_code == 1
    assert "--period 7 for weeks" in result.stderr
