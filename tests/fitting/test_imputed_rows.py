"""Rows that `fill` imputed: agents run through them, but they are neither scored nor learned from, and they are counted."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import ecl2o as ec
from ecl2o.cli.commands import app
from ecl2o.data import Contexts, Split, read_series, series_contexts
from ecl2o.evaluation import TestDays, score_days, score_runs_batch
from ecl2o.evaluation.comparison import Contender, compare
from ecl2o.exceptions import DataError
from ecl2o.fitting.guarded_training import _training_windows, _validation_days
from ecl2o.fitting.read import screen_for_fit
from ecl2o.fitting.settings import FitSettings
from ecl2o.fitting.tasks import held_back_days, series_problem, series_test_days
from ecl2o.learning.guarded_loss import record_forecasts

STEPS, DAYS, SPLIT = 4, 24, Split(14, 4)
# Days with a missing row, and its step: one of training, one of validation, two of the test.
LOST = {2: 1, 15: 3, 20: 0, 22: 2}


def write_gaps(path, lost=LOST) -> None:
    time = pd.date_range("2024-01-01", periods=DAYS * STEPS, freq="6h")
    noise = np.random.default_rng(7).normal(size=len(time))
    frame = pd.DataFrame({"time": time, "demand": 30 + 5 * np.sin(np.arange(len(time)) * np.pi / 2) + noise})
    frame.drop(index=[day * STEPS + step for day, step in lost.items()]).to_csv(path, index=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("gaps") / "gaps.csv"
    write_gaps(path)
    return path


@pytest.fixture(scope="module")
def contexts(data) -> Contexts:
    return series_contexts(*read_series(data, fill="previous"), SPLIT)


def test_days_with_an_imputed_row_are_known(contexts):
    assert np.flatnonzero(~contexts.measured).tolist() == [day * STEPS + step for day, step in LOST.items()]
    assert np.flatnonzero(~contexts.measured_days).tolist() == list(LOST)
    assert contexts.scale_to(1.0).measured_days.sum() == DAYS - len(LOST)
    whole = dataclasses.replace(contexts, metadata=None)
    assert whole.measured.all()
    assert whole.describe_imputed() is None


def test_figures_are_those_of_the_other_days(contexts):
    """A referee in NumPy: costs of all days, then without the two that have an imputed row."""
    problem = series_problem(contexts)
    test_days = held_back_days(problem, contexts, "test", STEPS)
    kept = np.array([18, 19, 21, 23]) - 18
    assert test_days.not_scored == 2
    every = TestDays.with_whole_span_optimum(problem, test_days.x0, test_days.days, test_days.history)
    score, full = score_days(ec.Greedy(), test_days), score_days(ec.Greedy(), every)
    np.testing.assert_array_equal(np.asarray(score.runs.actions), np.asarray(full.runs.actions))  # all days are run
    np.testing.assert_array_equal(score.cost, full.cost[kept])
    np.testing.assert_array_equal(score.ratio, full.ratio[kept])
    assert score.average_cost == pytest.approx(full.cost[kept].mean() / np.asarray(every.unit)[kept].mean(), rel=1e-12)
    assert score.average_cost != pytest.approx(full.average_cost, rel=1e-3)
    row = compare({"greedy": Contender(ec.Greedy())}, test_days)[-1]
    assert row.worst_day == kept[np.argmax(full.ratio[kept])]
    assert (row.mean_cost, row.highest_cost) == (full.cost[kept].mean(), full.cost[kept].max())
    assert row.competitive_ratio == full.ratio[kept].max()
    several = score_runs_batch(*_stack([(full.runs, full.x0)] * 2), [test_days, every])
    assert [each.average_cost for each in several] == pytest.approx([score.average_cost, full.average_cost], rel=1e-12)


def _stack(runs):
    import jax

    return jax.tree.map(lambda *leaves: np.stack(leaves), *runs)


def test_the_worst_day_is_a_measured_one(contexts):
    """A gap of the worst kind: what was imputed is far off, and would be the worst day."""
    values = contexts.values.copy()
    values[~contexts.measured] = 500.0
    test_days = series_test_days(dataclasses.replace(contexts, values=values))
    everything = dataclasses.replace(test_days, scored=np.ones_like(test_days.scored))
    first = DAYS - len(test_days.scored)
    assert score_days(ec.HittingMinimizer(), everything).worst_day + first in LOST
    assert score_days(ec.HittingMinimizer(), test_days).worst_day + first not in LOST


def test_a_file_without_a_measured_day_cannot_be_scored(tmp_path):
    write_gaps(tmp_path / "gaps.csv", dict.fromkeys(range(18, DAYS), 1))
    contexts = series_contexts(*read_series(tmp_path / "gaps.csv", fill="previous"), SPLIT)
    with pytest.raises(DataError, match=r"6 days of gaps\.csv"):
        held_back_days(series_problem(contexts), contexts, "test", STEPS)


def test_no_imputed_row_is_a_training_target(contexts):
    marked = np.where(contexts.measured[:, None], contexts.values, 1e6)
    marked = dataclasses.replace(contexts, values=marked)
    windows = marked.training_windows(6)
    assert windows.contexts.max() < 1e6
    assert len(windows.x0) == SPLIT.training_days * STEPS - 6 - 6  # six windows hold the row that training lacks
    problem = series_problem(contexts)
    forecasts = record_forecasts(ec.advisors.OnlineRidge(STEPS), problem, contexts.values[: 18 * STEPS])
    guarded = _training_windows(problem, marked, forecasts, STEPS, 3, 1)
    assert guarded.data.instances.contexts.max() < 1e6
    plain = _training_windows(problem, dataclasses.replace(contexts, metadata=None), forecasts, STEPS, 3, 1)
    assert guarded.data.instances.x0.shape == plain.data.instances.x0.shape  # sites with other gaps train together
    assert _validation_days(problem, contexts, forecasts, STEPS).scored.tolist() == [True, False, True, True]


def test_filled_rows_are_no_stuck_meter(tmp_path):
    """Three rows filled by the one before are four equal readings, none of them measured."""
    write_gaps(tmp_path / "gaps.csv", {3: 0, 4: 0})
    lines = (tmp_path / "gaps.csv").read_text().splitlines()
    del lines[13:16]
    (tmp_path / "gaps.csv").write_text("\n".join(lines))
    filled = read_series(tmp_path / "gaps.csv", fill="previous", fill_limit=48)
    assert filled[1].repairs.longest >= 4
    contexts = series_contexts(*filled, SPLIT)
    unmarked = series_contexts(filled[0], dataclasses.replace(filled[1], imputed=None), SPLIT)
    assert screen_for_fit(contexts, FitSettings()).stuck_after < screen_for_fit(unmarked, FitSettings()).stuck_after


def test_commands_leave_them_out_and_say_how_many(data, tmp_path):
    def run(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.stderr
        return result

    policy, split = tmp_path / "policy.ecl2o", ("--training-days", 14, "--validation-days", 4)
    asked = ("--fill", "previous", "--advisor", "r-obd", *split, "--out", policy)
    assert "2 of 6 test days and 1 of 4 validation days" in run("fit", data, *asked).stdout
    report = json.loads(run("fit", data, *asked, "--json").stdout)
    assert report["test_days_not_scored"] == 2
    tested = json.loads(run("evaluate", policy, data, "--days", 6, "--json").stdout)  # the policy knows --fill
    compared = json.loads(run("compare", data, "--agents", f"r-obd,{policy}", "--days", 6, "--json").stdout)
    assert tested["days_not_scored"] == compared["days_not_scored"] == 2
    costs = [report["test"], tested["rows"], compared["agents"]]
    assert [row["r-obd"]["mean_cost"] for row in costs] == pytest.approx([costs[0]["r-obd"]["mean_cost"]] * 3, rel=1e-9)
    assert "2 of these 6 days" in run("evaluate", policy, data, "--days", 6).stdout
    assert "2 of these 6 days" in run("compare", data, "--agents", policy, "--days", 6).stdout
