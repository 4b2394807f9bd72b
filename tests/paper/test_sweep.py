"""A sweep: every case once, the figures of a case those of training and testing it alone, wherever it runs."""

import itertools
import json
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecl2o.agents import MLAROBD
from ecl2o.data import Contexts, Split
from ecl2o.evaluation import score_days
from ecl2o.paper.networks import CalibratedTraining, StandaloneTraining
from ecl2o.paper.pareto import (
    SweepPoint,
    SweepRecord,
    average_over_seeds,
    choose_settings,
    find_safest_below,
    pareto_fronts,
    summarize_sweep,
)
from ecl2o.paper.sweep import SweepData, measure_two_stage_error, run_sweep
from ecl2o.paper.sweep_grid import Grid, Setting

HOURS, DAYS = 6, 14
GRID = Grid(
    networks=("mlp",),
    trusts=(0.3,),
    mus=(0.0, 0.6),
    rho_bars=("zero", "mean"),
    cost_scales=("raw", "oracle", "window"),
    kappas=(0.0,),
    two_stage_trusts=(0.3,),
    gammas=(1.5,),
    ratios=(1.2, 2.5),
    periods=(1,),
    seeds=(3, 4),
)


@pytest.fixture(scope="module")
def data() -> SweepData:
    rng, steps = np.random.default_rng(0), HOURS * DAYS
    values = 0.4 + 0.3 * np.sin(2 * np.pi * np.arange(steps) / HOURS)[:, None] + 0.1 * rng.normal(size=(steps, 1))
    time = pd.date_range("2020-01-01", periods=steps, freq="4h")
    return SweepData.of(Contexts(values, time, None, HOURS, Split(6, 3)), steps=3)


@pytest.fixture(scope="module")
def records(data) -> list[SweepRecord]:
    return run_sweep(data, GRID)


def test_every_case_is_there_once(records):
    trained = [*GRID.alone("mlp"), *GRID.two_stage("mlp"), *GRID.calibrated("mlp")]
    expected = [*itertools.product(trained, GRID.seeds), (Setting("r-obd"), 0)]
    expected.append((Setting("guarded", ratio=2.5, period=1), 0))  # 1.2 cannot be promised
    found = [(record.setting, record.seed) for record in records]
    assert len(found) == len(set(found))
    assert set(found) == set(expected)


def test_settings_that_say_the_same_are_tried_once():
    """At mu = 0 there is no threshold, and a raw cost is an oracle-scaled one to Adam."""
    without = [s for s in GRID.calibrated("mlp") if s.mu == 0]
    assert [(s.rho_bar, s.cost_scale) for s in without] == [("zero", "raw"), ("zero", "window")]
    assert len(list(GRID.calibrated("mlp"))) == 2 + 6


def only(records: list[SweepRecord], seed: int, **values) -> dict[str, float]:
    rows = [r for r in records if r.seed == seed and values.items() <= vars(r.setting).items()]
    assert len(rows) == 1
    return rows[0].figures


@pytest.mark.parametrize("scale", ["raw", "window"])
def test_a_case_has_the_figures_of_training_and_testing_it_alone(data, records, scale):
    """Trained by itself it differs in the last bits of single precision, which three steps do not enlarge."""
    training = data.training("mlp")
    first = training.train_alone([StandaloneTraining(0.0, seed) for seed in GRID.seeds], lambda *_: None)
    errors = [
        measure_two_stage_error(MLAROBD(agent.advisor, 0.3), data.problem, data.windows) for agent in first.values()
    ]
    case = CalibratedTraining(0.3, 0.6, 4, float(np.mean(errors)), {"raw": 1.0, "window": "instance"}[scale])
    agent = training.train_calibrated([case], lambda *_: None)[case]
    row = only(records, 4, family="ec-l2o", mu=0.6, rho_bar="mean", cost_scale=scale)
    assert row["rho_bar"] == pytest.approx(case.rho_bar, rel=1e-5)
    for days, what in ((data.validation, "validation"), (data.test, "test")):
        score = score_days(agent, days)
        assert row[f"{what}_cost"] == pytest.approx(score.average_cost, rel=1e-4)
        assert row[f"{what}_ratio"] == pytest.approx(score.competitive_ratio, rel=1e-4)
    assert row["test_p99"] == pytest.approx(score.tail_ratio["p99"], rel=1e-4)


def test_scales_and_thresholds_are_not_idle(records):
    tried = [r.figures["test_cost"] for r in records if r.setting.family == "ec-l2o" and r.seed == 3]
    assert len(set(tried)) == len(tried) == 8


def test_the_figures_do_not_depend_on_where_pieces_run(data, records, monkeypatch):
    """Pieces that were sent elsewhere and done in another order, to the last bit."""

    def run_elsewhere(jobs, progress):
        sent = [pickle.dumps(job) for job in jobs]
        found = [pickle.dumps(pickle.loads(job).work(lambda *_: None)) for job in reversed(sent)]
        return {job.name: pickle.loads(result) for job, result in zip(jobs, reversed(found), strict=True)}

    monkeypatch.setattr("ecl2o.paper.sweep.run_jobs", run_elsewhere)
    assert run_sweep(data, GRID) == records


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"trusts": (0.3, 0.3)}, "trusts must not repeat a value"),
        ({"seeds": ()}, "at least one seed"),
        ({"kappas": (0.5,)}, "kappas must have 0"),
        ({"trusts": (0.3, float("nan"))}, "trusts must be finite and not negative, got nan"),
        ({"two_stage_trusts": (-1.0,)}, "two_stage_trusts must be finite and not negative, got -1"),
        ({"ratios": (1.0,)}, "ratios must be finite and exceed 1, got 1"),
        ({"seeds": (-1,)}, "seeds must be finite and not negative, got -1"),
    ],
)
def test_impossible_grids_are_refused(axes, message):
    with pytest.raises(ValueError, match=message):
        Grid(**axes)


# --- fronts ----------------------------------------------------------------------------------------------------------


def point(cost: float, ratio: float, setting: Setting = Setting("switch")) -> SweepPoint:
    return SweepPoint(setting, 1, {"test_cost": float(cost), "test_ratio": float(ratio)}, {})


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12))
def test_a_front_is_what_nothing_beats(pairs):
    (front,) = pareto_fronts([point(*pair) for pair in pairs]).values()
    found = [(p.mean["test_cost"], p.mean["test_ratio"]) for p in front]
    beaten = {(x, y) for x, y in pairs for a, b in pairs if a <= x and b <= y and (a < x or b < y)}
    assert found == sorted(set(pairs) - beaten)


def made_up() -> list[SweepRecord]:
    """Three settings of EC-L2O and PureML-0, two seeds each."""
    records = []
    figures = {(0.1, 0.0): (1.1, 9.0, 1.2, 3.0), (0.3, 0.6): (1.3, 2.0, 1.5, 2.0), (0.5, 0.6): (1.2, 4.0, 1.15, 6.0)}
    for (trust, mu), (validation_cost, validation_ratio, cost, ratio) in figures.items():
        for seed in (0, 1):
            moved = cost + 0.01 * (2 * seed - 1)
            known = {"validation_cost": validation_cost, "validation_ratio": validation_ratio}
            setting = Setting("ec-l2o", "mlp", trust, mu, "zero", "oracle")
            records.append(SweepRecord(setting, seed, {**known, "test_cost": moved, "test_ratio": ratio}))
    known = {"validation_cost": 1.0, "validation_ratio": 1.0, "test_cost": 1.18, "test_ratio": 8.0}
    return [*records, *(SweepRecord(Setting("pure-ml", "mlp", kappa=0.0), seed, known) for seed in (0, 1))]


def test_means_and_spreads_are_over_seeds():
    points = average_over_seeds(made_up())
    assert [p.seeds for p in points] == [2] * 4
    assert points[0].mean["test_cost"] == pytest.approx(1.2)
    assert points[0].spread["test_cost"] == pytest.approx(0.01)


def test_validation_chooses_by_cost_and_by_cost_and_ratio():
    cheap, careful = choose_settings(average_over_seeds(made_up()), "mlp", bound=2.0).values()
    assert (cheap.setting.trust, careful.setting.trust) == (0.1, 0.3)
    _, none_safe = choose_settings(average_over_seeds(made_up()), "mlp", bound=0.5).values()
    assert none_safe.setting.trust == 0.3


def test_what_is_cheaper_than_pure_ml_and_how_safe_it_is():
    points = average_over_seeds(made_up())
    found = find_safest_below(points, "mlp", 1.18)
    assert (found["below"], found["settings"]) == (1, 3)
    assert found["safest"]["setting"]["trust"] == 0.5
    assert found["safest"]["test_ratio"] == 6.0
    assert find_safest_below(points, "mlp", 1.0)["safest"] is None


def test_ec_l2o_has_a_front_for_each_trust():
    assert set(pareto_fronts(average_over_seeds(made_up()))) == {
        ("ec-l2o", "mlp", 0.1),
        ("ec-l2o", "mlp", 0.3),
        ("ec-l2o", "mlp", 0.5),
        ("pure-ml", "mlp", None),
    }
    found = summarize_sweep(average_over_seeds(made_up()), ("mlp",), bound=2.0)
    assert [choice["setting"]["trust"] for choice in found["choices"]["mlp"]] == [0.1, 0.3]
    assert found["below_pure_ml"]["mlp"]["cost"] == pytest.approx(1.18)
    json.dumps(found, allow_nan=False)
