"""A training that failed is marked, and is never selected; a promise for each day does not bound the run, and that is said."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import ecl2o as ec
from ecl2o.cli.comparison_table import describe_promise
from ecl2o.data import Contexts, Split, frame_series, series_contexts
from ecl2o.evaluation import TestDays, score_days
from ecl2o.evaluation.comparison import compare, make_contender
from ecl2o.fitting import candidates, pipeline
from ecl2o.fitting.pipeline import select_candidates
from ecl2o.fitting.read import screen_for_fit
from ecl2o.fitting.settings import FitSettings, PromiseSpec
from ecl2o.fitting.tasks import held_back_days, scale_task
from toy_agent import StatelessAgent

STEPS = 4


@pytest.fixture(scope="module")
def contexts() -> Contexts:
    time = pd.date_range("2024-01-01", periods=20 * STEPS, freq="6h")
    noise = np.random.default_rng(2).normal(size=len(time))
    demand = 30 + 5 * np.sin(np.arange(len(time)) * np.pi / 2) + noise
    return series_contexts(*frame_series(pd.Series(demand, time, name="demand")), Split(12, 4))


def test_a_training_that_diverges_ends_no_fit_and_is_not_selected(contexts, monkeypatch):
    def diverge(*_, **__):
        raise FloatingPointError("the loss became nan at step 3")

    monkeypatch.setattr(candidates, "fit_many", diverge)
    monkeypatch.setattr(candidates, "GRID", candidates.GRID[:2])
    monkeypatch.setattr("ecl2o.fitting.settings.AUTOMATIC", ("mlp", "r-obd"))
    (selection,) = select_candidates([contexts], [FitSettings(advisor="auto", steps=1)])
    failed = [each.name for each in selection.validated if each.failed]
    assert failed == ["mlp, trust 0.3, mu 0", "mlp, trust 1, mu 0"]
    assert {each.training for each in selection.validated if each.advisor == "mlp"} == {"training failed"}
    assert selection.chosen.training == "not trained"
    with pytest.raises(ValueError, match="all 2 trainings failed"):
        select_candidates([contexts], [FitSettings(advisor="mlp", steps=1)])


@pytest.mark.parametrize(
    ("costs", "before", "best"),
    [
        ((1.3, 1.2, 1.1), (np.inf, np.inf, 2.0), 2),
        ((1.3, 1.2, 1.1), (np.inf, np.inf, 1.1), 1),
        ((1.3, 1.2, 1.1), (np.inf, 1.1, 0.9), 0),
        ((np.nan, 1.2, np.inf), (np.inf, np.inf, np.inf), 1),
    ],
)
def test_the_cheapest_candidate_that_did_not_fail_is_selected(contexts, costs, before, best):
    """It fails who paid no more before its training, and whose cost is not a number."""
    settings = FitSettings(promise=PromiseSpec(2.0, "day"))
    task = scale_task(contexts, settings)
    entrants = [candidates.Candidate(name, "mlp", ec.ROBD(), trained=True) for name in "abc"]
    score = score_days(ec.ROBD(), held_back_days(task.problem, task.contexts, "validation", STEPS))
    daily = [np.full(4, cost) for cost in costs]
    scores = [dataclasses.replace(score, cost=each, ratio=each, average_cost=float(each[0])) for each in daily]
    screened = screen_for_fit(contexts, settings)
    selection = pipeline._select(screened, settings, task, entrants, scores, before, 1.0)
    assert selection.best == best
    assert [each.failed for each in selection.validated] == [
        not cost < was for cost, was in zip(costs, before, strict=True)
    ]
    assert selection.yours == f"{'abc'[best]}, behind a promise of 2 (yours)"


class Far(StatelessAgent):
    """Advice far from every context: always 0."""

    def act(self, observation):
        return 0 * observation.context


def test_days_that_keep_a_promise_of_two_can_cost_the_run_more():
    """Each day costs at most twice its own optimum from a position that the day before left far away."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    days = (30 + 5 * np.sin(np.arange(20 * 24) * np.pi / 12)).reshape(20, 24, 1)
    test_days = TestDays.with_whole_span_optimum(problem, days[0, 0], days)
    daily = ec.Competitive(Far(), 2.0, period=24)
    rows = compare({"daily": make_contender(daily, problem)}, test_days)
    row = rows[-1]
    assert row.promise_kept
    assert row.competitive_ratio <= 2 * (1 + 1e-9)
    assert row.average_cost > 3.5
    assert f"{row.average_cost:.3f} times its optimum" in describe_promise(row, rows)
    whole = ec.Competitive(Far(), 2.0)
    rows = compare({"run": make_contender(whole, problem)}, test_days)
    assert rows[-1].average_cost <= 2 * (1 + 1e-9)
    assert "times its optimum" not in describe_promise(rows[-1], rows)
