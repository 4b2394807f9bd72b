"""A sweep: every case once, the figures of a case those of training and testing it alone, wherever it runs."""

import dataclasses
import itertools
import json
import pickle

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from ecl2o.agents import MLAROBD, Switch
from ecl2o.data import Contexts, Split
from ecl2o.evaluation import score_days
from ecl2o.paper.networks import AuthorsTraining, CalibratedTraining, StandaloneTraining
from ecl2o.paper.pareto import (
    SweepPoint,
    SweepRecord,
    average_over_seeds,
    choose_settings,
    find_safest_below,
    paired_difference,
    pareto_fronts,
    summarize_headline,
    summarize_sweep,
)
from ecl2o.paper.sweep import SweepData, measure_two_stage_error, run_sweep
from ecl2o.paper.sweep_grid import Grid, Setting
from ecl2o.problem import Instance
from ecl2o.running import rollout

HOURS, DAYS = 6, 14
PROTOCOLS = ("daily", "streamed")
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
    return SweepData.of(Contexts(values, time, None, HOURS, Split(6, 3)), steps=3, protocols=PROTOCOLS)


@pytest.fixture(scope="module")
def records(data) -> list[SweepRecord]:
    return run_sweep(data, GRID)


def test_every_case_is_there_once(records):
    trained = [*GRID.alone("mlp"), *GRID.two_stage("mlp"), *GRID.calibrated("mlp")]
    expected = [*itertools.product(trained, GRID.seeds), (Setting("r-obd"), 0)]
    expected.append((Setting("guarded", ratio=2.5, period=1), 0))  # 1.2 cannot be promised
    expected = [(dataclasses.replace(s, protocol=name), seed) for s, seed in expected for name in PROTOCOLS]
    found = [(record.setting, record.seed) for record in records]
    assert len(found) == len(set(found))
    assert set(found) == set(expected)


def test_settings_that_say_the_same_are_tried_once():
    """At mu = 0 there is no threshold, and a raw cost is an oracle-scaled one to Adam."""
    without = [s for s in GRID.calibrated("mlp") if s.mu == 0]
    assert [(s.rho_bar, s.cost_scale) for s in without] == [("zero", "raw"), ("zero", "window")]
    assert len(list(GRID.calibrated("mlp"))) == 2 + 6


def only(records: list[SweepRecord], seed: int, protocol="daily", **values) -> dict[str, float]:
    values["protocol"] = protocol
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
    assert row["test_third_worst"] == pytest.approx(sorted(score.ratio)[-3], rel=1e-4)
    easiest = int(np.argmin(data.test.oracle_cost))
    assert data.easy_days[0][0] == easiest
    assert row[f"test_ratio_{data.easy_days[0][1]}"] == pytest.approx(score.ratio[easiest], rel=1e-4)


def test_a_streamed_score_is_that_of_one_long_run_without_restarts(data, records):
    """The regression learns over midnight, so its two protocols differ; R-OBD remembers nothing."""
    training = data.training("mlp")
    keys = [StandaloneTraining(0.0, seed) for seed in GRID.seeds]
    advisor = training.train_alone(keys, lambda *_: None)[keys[0]].advisor
    whole = Instance(data.test.x0, np.asarray(data.test.days).reshape(-1, 1))
    run = rollout(Switch(advisor, gamma=1.5), data.problem, whole)
    cost = float(run.cost) / float(np.sum(data.test.oracle_cost))
    streamed = only(records, 3, "streamed", family="switch")["test_cost"]
    assert streamed == pytest.approx(cost, rel=1e-4)
    expert, learner = (
        [only(records, 0, name, family=family)["test_cost"] for name in PROTOCOLS] for family in ("r-obd", "guarded")
    )
    assert expert[0] == pytest.approx(expert[1], rel=1e-12)
    assert learner[0] != pytest.approx(learner[1], rel=1e-6)


def test_on_the_authors_schedule_all_networks_share_their_rates_and_ec_l2o_their_loss(data):
    grid = dataclasses.replace(GRID, schedule="authors", mus=(0.6,), seeds=(3,))
    records = run_sweep(data, grid)
    training = data.training("mlp")
    alone = training.train_alone([StandaloneTraining(0.0, 3)], lambda *_: None, "authors")
    calibrated = training.train_authors([AuthorsTraining(0.3, 0.6, 3)], lambda *_: None)
    for family, agents in (("pure-ml", alone), ("ec-l2o", calibrated)):
        (agent,) = agents.values()
        expected = score_days(agent, data.test).average_cost
        assert only(records, 3, family=family)["test_cost"] == pytest.approx(expected, rel=1e-4)
    ours = training.train_alone([StandaloneTraining(0.0, 3)], lambda *_: None)
    assert not np.array_equal(*(np.asarray(jax.tree.leaves(found)[0]) for found in (ours, alone)))


def test_scales_and_thresholds_are_not_idle(records):
    own = [r for r in records if (r.setting.family, r.setting.protocol) == ("ec-l2o", "daily")]
    tried = [r.figures["test_cost"] for r in own if r.seed == 3]
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


@given(st.lists(st.tuples(st.floats(0.5, 3), st.floats(0.5, 3)), min_size=2, max_size=9))
def test_a_paired_difference_is_that_of_a_paired_t_test(pairs):
    ours, theirs = np.array(pairs).T
    found = paired_difference(ours, theirs)
    more = ours - theirs
    assert found["mean"] == pytest.approx(ours.mean() - theirs.mean(), abs=1e-12)
    assert found["standard_error"] == pytest.approx(scipy.stats.sem(more), abs=1e-12)
    assert (found["seeds"], found["cheaper"]) == (len(pairs), sum(a < b for a, b in pairs))


def test_the_headline_pairs_by_seed_within_a_shortage_and_a_protocol():
    """Seeds differ by more than the families do: unpaired, the order of the records would decide."""
    records = []
    for shortage, protocol, gain in ((1.0, "daily", 0.1), (1.0, "streamed", -0.2), (2.0, "daily", 0.3)):
        for seed in (2, 0, 1):
            place = {"base_shortage": shortage, "protocol": protocol}
            figures = dict.fromkeys(("validation_cost", "validation_ratio", "test_ratio", "test_third_worst"), 1.0)
            pure = Setting("pure-ml", "mlp", kappa=0.0, **place)
            ours = Setting("ec-l2o", "mlp", 0.5, 0.6, "zero", "oracle", **place)
            records.insert(0, SweepRecord(pure, seed, figures | {"test_cost": 1.0 + seed}))
            records.append(SweepRecord(ours, seed, figures | {"test_cost": 1.0 + seed - gain}))
    found = {
        (g["base_shortage"], g["protocol"]): g["minus_pure_ml"]["ec-l2o"] for g in summarize_headline(records, 2.0)
    }
    assert {place: round(more["mean"], 12) for place, more in found.items()} == {
        (1.0, "daily"): -0.1,
        (1.0, "streamed"): 0.2,
        (2.0, "daily"): -0.3,
    }
    assert all(more["standard_error"] < 1e-12 for more in found.values())
    assert [found[place]["cheaper"] for place in ((1.0, "daily"), (1.0, "streamed"))] == [3, 0]
