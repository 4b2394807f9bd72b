"""The frontier on a small series with two columns: promises are kept, and every figure is of the same days."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import ecl2o as ec
from ecl2o.data import Contexts, Split
from ecl2o.evaluation import daily, score_days
from ecl2o.exceptions import DataError
from ecl2o.paper.frontier import Frontier, FrontierSettings, run_frontier

STEPS, DAYS, SPLIT = 4, 30, Split(20, 4)
ASKED = FrontierSettings(alpha=6.0, network="MLP", quick=True, ratios=(1.3, 2.0, 3.0), periods=("day", "run"))


def series(values: np.ndarray, steps: int = STEPS) -> Contexts:
    time = pd.date_range("2020-01-01", periods=len(values), freq="6h")
    return Contexts(values, time, None, steps, SPLIT)


@pytest.fixture(scope="module")
def contexts() -> Contexts:
    draw, hours = np.random.default_rng(0), np.arange(STEPS * DAYS)
    wave = np.sin(2 * np.pi * hours / STEPS)[:, None] * [3.0, -1.0]
    return series(50.0 + wave + draw.normal(0, 0.6, (STEPS * DAYS, 2)))


@pytest.fixture(scope="module")
def short_training():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FrontierSettings, "training_steps", 3)
        patch.setattr(FrontierSettings, "guarded_steps", 4)
        yield


@pytest.fixture(scope="module")
def found(contexts, short_training) -> Frontier:
    return run_frontier(contexts, ASKED)


def test_promises_are_kept_and_infeasible_ones_are_refused(found):
    assert found.refused_ratios == [1.3]
    assert found.smallest_ratio == pytest.approx(float(ec.theory.smallest_feasible_ratio(6.0)))
    promised = {point.label: point for point in found.points if point.promised_ratio is not None}
    assert list(promised) == ["R-OBD", "2 per day", "3 per day", "2 per run", "3 per run"]
    for point in promised.values():
        if point.per != "run":  # the worst day of a longer promise is not bounded
            assert 1.0 <= point.competitive_ratio <= point.promised_ratio * (1 + 1e-9)
        if point.per is not None:
            assert 1.0 <= point.live_ratio <= point.promised_ratio * (1 + 1e-9)
    assert promised["R-OBD"].promised_ratio == pytest.approx(float(ec.theory.exact_robd_ratio(1.0, 6.0)))


def test_networks_are_trained_only_if_asked_for(contexts, short_training, found, monkeypatch):
    monkeypatch.setattr("ecl2o.paper.networks.fit_many", None)  # not called
    plain = run_frontier(contexts, dataclasses.replace(ASKED, network=None))
    assert plain.points == [point for point in found.points if point.family in ("r-obd", "guarded", "ridge", "rhc")]


def test_all_families_are_there(found):
    families = list(dict.fromkeys(point.family for point in found.points))
    assert families == ["r-obd", "guarded", "ridge", "rhc", "pure-ml", "mla-robd", "ec-l2o", "ec-l2o-tuned"]
    assert all(point.p99 <= point.competitive_ratio for point in found.points)


def test_figures_are_those_of_the_test_days(found, contexts):
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(6.0, dim=2))
    days = daily.TestDays.with_whole_span_optimum(problem, *contexts.test_days(14 * STEPS))
    points = {point.label: point for point in found.points}
    profile = ec.forecasters.RollingProfile(7, period=STEPS)
    for label, agent in (("R-OBD", ec.ROBD()), ("RHC", ec.RHC(STEPS - 1, truncate=False))):
        score = score_days(agent, days, profile)
        assert points[label].average_cost == pytest.approx(score.average_cost, rel=1e-9)
        assert points[label].competitive_ratio == pytest.approx(score.competitive_ratio, rel=1e-9)
    assert found.test_days == 6
    whole = ec.oracle(problem, ec.Instance(days.x0, days.days.reshape(-1, 2))).cost / days.days.shape[0]
    assert found.oracle_average_cost == pytest.approx(float(whole), rel=1e-9)
    assert found.daily_oracle == pytest.approx(float(jnp.mean(days.oracle_cost) / whole), rel=1e-9)
    assert min(point.average_cost for point in found.points) >= 1.0  # the optimum is 1
    assert found.unit == "optimum of all test days"


def test_units_do_not_matter(found, contexts):
    other = run_frontier(series(1000.0 * contexts.values), ASKED)
    for point, same in zip(found.points, other.points, strict=True):
        assert same.average_cost == pytest.approx(point.average_cost, rel=1e-6), point.label
        assert same.competitive_ratio == pytest.approx(point.competitive_ratio, rel=1e-6), point.label
    assert other.oracle_average_cost == pytest.approx(1e6 * found.oracle_average_cost)


def test_json_has_no_promise_as_null(found):
    shown = found.as_json()
    assert [point["promised_ratio"] for point in shown["points"]] == [point.promised_ratio for point in found.points]
    assert shown["settings"] == dataclasses.asdict(ASKED)
    assert (shown["study"], shown["refused_ratios"]) == ("frontier", [1.3])


def test_refusals():
    flat = np.full((STEPS * DAYS, 1), 3.0)
    with pytest.raises(DataError, match="one row a day"):
        run_frontier(series(flat, steps=1))
    with pytest.raises(DataError, match="never change"):
        run_frontier(series(flat))
    with pytest.raises(ValueError, match="alpha must lie between 1e-12"):
        FrontierSettings(alpha=0.0)
