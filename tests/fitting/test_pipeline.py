"""The fit of a series: units do not matter, and what is tested is what is streamed."""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest

import ecl2o as ec
from ecl2o.agents import walk_agents
from ecl2o.agents.advisors import Mixture
from ecl2o.data import Contexts, Repairs, SeriesMetadata, Split
from ecl2o.evaluation import TestDays, score_days
from ecl2o.evaluation.comparison import Contender, score_contender
from ecl2o.exceptions import DataError
from ecl2o.fitting import candidates, pipeline
from ecl2o.fitting.guarded_training import corrected_guard, train_guards
from ecl2o.fitting.pipeline import fit_contexts, select_candidates
from ecl2o.fitting.read import default_split, find_plausible
from ecl2o.fitting.settings import FitSettings, PromiseSpec, ignore_progress, with_promise
from ecl2o.fitting.tasks import held_back_days, mean_training_weight, scale_task, tracking_problem, unscale_agent
from ecl2o.running import stream_days

STEPS, DAYS = 4, 20
SPLIT = Split(12, 4)


RIDGE = FitSettings(advisor="ridge")


def series(values: np.ndarray, split: Split = SPLIT) -> Contexts:
    time = pd.date_range("2024-01-01", periods=len(values), freq="6h")
    names = tuple(f"y{i}" for i in range(values.shape[1]))
    metadata = SeriesMetadata("own.csv", "0" * 64, "time", "ISO 8601", names, (), 360.0, STEPS, False, Repairs())
    return Contexts(values, time, metadata, STEPS, split)


@pytest.fixture(scope="module")
def wavy() -> np.ndarray:
    steps = np.arange(DAYS * STEPS)
    noise = np.random.default_rng(2).normal(size=(len(steps), 1))
    return 5e6 * (3 + np.sin(2 * np.pi * steps / STEPS)[:, None] + 0.3 * noise)


@pytest.fixture(scope="module")
def fitted(wavy):
    stages = []
    settings = FitSettings(advisor="lstm", promise=PromiseSpec(2.0, "day"), steps=3)
    found = fit_contexts(series(wavy), settings, lambda stage, done, total: stages.append(stage))
    assert list(dict.fromkeys(stages)) == [
        "training (lstm)",
        "choosing on validation days",
        "testing on held-back days",
    ]
    return found


def test_the_choice_is_the_best_on_validation(fitted):
    assert [(c.trust, c.mu, c.trained) for c in fitted.candidates] == [(*pair, True) for pair in candidates.GRID]
    assert fitted.chosen.average_cost == min(c.average_cost for c in fitted.candidates)
    assert len({c.average_cost for c in fitted.candidates}) == len(candidates.GRID)


def test_one_stream_through_the_test_days_plays_what_was_scored(fitted, wavy):
    """The runner with the policy's daily restart is continuous testing, in the user's units."""
    contexts = series(wavy)
    x0, days, history = contexts.test_days(fitted.policy.contract.history_steps)
    bed = TestDays.with_whole_span_optimum(fitted.policy.problem, x0, days, history)
    score = score_days(fitted.policy.agent, bed)
    row = fitted.own
    assert score.average_cost == pytest.approx(row.average_cost, rel=1e-9)
    runner = ec.Runner(fitted.policy, x0, history)
    streamed = np.array([runner.step(context) for context in days.reshape(-1, 1)])
    np.testing.assert_allclose(streamed, np.asarray(score.runs.actions).reshape(-1, 1), rtol=1e-9)
    assert row.promise_kept
    assert row.live_ratio <= 2.0 * (1 + 1e-9)


def test_the_regression_is_scored_as_it_is_streamed_on_all_it_can_learn_from(wavy):
    """Its days are not cut at midnight, its past is the whole series, and the units are the user's."""
    contexts = series(wavy)
    found = fit_contexts(contexts, FitSettings(advisor="ridge"))
    assert [c.name for c in found.candidates] == ["ridge"]
    assert not any(c.trained for c in found.candidates)
    assert found.chosen.average_cost == min(c.average_cost for c in found.candidates)
    assert len(found.policy.history) == DAYS * STEPS
    x0, days, history = contexts.test_days((SPLIT.training_days + SPLIT.validation_days) * STEPS)
    runner = ec.Runner(found.policy, x0, history)
    actions = np.array([runner.step(context) for context in days.reshape(-1, 1)]).ravel()
    moved = np.diff(np.concatenate([x0, actions]))
    cost = 0.5 * np.sum((actions - days.ravel()) ** 2) + 5.0 * np.sum(moved**2)
    best = ec.oracle(found.policy.problem, ec.Instance(x0, days.reshape(-1, 1)))
    row = found.own
    assert row.average_cost == pytest.approx(cost / float(best.cost), rel=1e-9)
    assert row.mean_cost == pytest.approx(cost / len(days), rel=1e-9)


def test_a_mixture_is_corrected_inside_a_promise(wavy):
    """Three quarters of what training finds; what is validated has not seen the validation days, what runs has."""
    longer, split = np.concatenate([wavy, wavy[::-1], wavy]), Split(30, 10)
    settings = FitSettings(advisor="ridge", promise=PromiseSpec(2.0, "day"), steps=4)
    found = fit_contexts(series(longer, split), settings)
    behind = ", behind a promise of 2"
    names = [f"{name}{behind}" for name in ("ridge", "ridge, mixture", "ridge, mixture, corrected")]
    assert [(c.name, c.trained) for c in found.candidates] == list(zip(names, (False, False, True), strict=True))
    assert len({c.average_cost for c in found.candidates}) == 3
    assert all(row.promise_kept for row in found.comparison if row.name.removesuffix(" (yours)") in names)
    task = scale_task(series(longer, split), settings)
    *_, corrected = candidates.train_candidates([task], ignore_progress)[0]
    days = held_back_days(task.problem, task.contexts, "validation", STEPS)
    score = score_contender(
        Contender(ec.Greedy(), None, stream_days), days
    )  # which only a mixture with trained members asks
    early, late = corrected.agent, corrected.retrain(score)
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), early, late)
    assert [changed.agent.weights.weight, sum(jax.tree.leaves(changed))] == [True, 1]
    guards = [corrected_guard(task.settings.promise, Mixture.of_regressions(STEPS), STEPS)]
    options = {"period": STEPS, "steps": 4, "learning_rate": 0.05, "checks": 0}
    ((alone, _),) = train_guards(guards, task.problem, task.contexts, **options)
    np.testing.assert_allclose(early.agent.weights.weight, 0.75 * alone.agent.weights.weight, rtol=1e-9, atol=1e-12)


def test_a_saved_policy_carries_what_act_and_evaluate_need(fitted, wavy, tmp_path):
    ec.save(tmp_path / "policy.ecl2o", fitted.policy)
    loaded = ec.load(tmp_path / "policy.ecl2o")
    assert loaded.history.tolist() == wavy[-loaded.contract.history_steps :].tolist()
    assert loaded.contract.history_until == "2024-01-20 18:00:00"
    terms = {"ratio": 2.0, "per": "day", "allowance": 0.0, "contexts": None}
    terms |= {"baseline": None, "baseline_scale": 1.0, "also": [], "band": None}
    asked = {"alpha": 10.0, "advisor": "lstm", "promise": terms, "steps": 3, "seed": 0, "bounds": None, "weights": None}
    asked |= {"plausible": None, "misses": [1.0, 1.0], "shift": 0, "ramp": None, "spacing": None}
    assert loaded.metadata["settings"] == asked


@pytest.mark.parametrize("advisor", ["mlp", "lstm"])
def test_agents_trained_on_scaled_contexts_work_in_the_units_of_the_series(wavy, advisor):
    """Scaled training is only numerics: actions are those of the scaled series times the factor."""
    contexts = series(wavy)
    scaled, problem = contexts.scale_to(1.0), tracking_problem(1, 10.0)
    inside = candidates.make_network(advisor, scaled, jax.random.key(0))
    unit, top = scaled.scale / contexts.scale, float(wavy.max())
    terms = PromiseSpec(2.0, "day", allowance=1e9, contexts=(0.0, top)).rescale(unit)
    agent = with_promise(ec.MLAROBD(inside, 2.0), terms, STEPS)
    raw = unscale_agent(agent, 1 / unit)
    assert float(raw.references[0].tracking.contexts[1]) == pytest.approx(top, rel=1e-12)
    assert float(raw.promises[0].allowance) == pytest.approx(1e9, rel=1e-12)
    runs = [
        ec.rollout_days(a, problem, *map(jax.numpy.asarray, c.test_days(candidates.count_history_steps(c))))[0].actions
        for a, c in ((agent, scaled), (raw, contexts))
    ]
    np.testing.assert_allclose(runs[0] * (contexts.scale / scaled.scale), runs[1], rtol=1e-9)


def test_training_windows_hold_their_history_and_are_limited_in_number(wavy):
    contexts = series(wavy)
    windows = contexts.training_windows(steps=8, history_steps=4)
    training = wavy[: 12 * STEPS]
    assert windows.contexts.shape == (len(training) - 8 - 4 + 1, 8, 1)
    np.testing.assert_array_equal(windows.x0, windows.past[:, -1])
    np.testing.assert_array_equal(windows.past[5], training[5:9])
    np.testing.assert_array_equal(windows.contexts[5], training[9:17])
    fewer = contexts.training_windows(steps=8, history_steps=4, most=10)
    assert fewer.x0.shape == (10, 1)
    np.testing.assert_array_equal(fewer.contexts[-1], windows.contexts[-1])


def _rounded_up(contexts: Contexts, least: float) -> float:
    """A bound that comes back from the units of training as a larger number, which lies outside of itself."""
    scaled = scale_task(contexts, RIDGE).contexts.scale
    there, back = scaled / contexts.scale, contexts.scale / scaled
    return next(bound for bound in (least + i / 64 for i in range(1000)) if bound * there * back > bound)


def test_a_promise_for_the_whole_run_within_bounds(wavy):
    """Actions stay within the bounds, the promise counts on contexts there, and holds in the units of the series."""
    low, high = float(wavy.min()) * 0.9, _rounded_up(series(wavy), 1.01 * float(wavy.max()))
    settings = FitSettings(advisor="ridge", promise=PromiseSpec(2.0), steps=2, bounds=(low, high))
    found = fit_contexts(series(wavy), settings)
    row = found.own
    assert row.promise.period is None
    np.testing.assert_array_equal(row.promise.contexts, [[low, high]])
    assert row.promise_kept
    runner = ec.Runner(found.policy, wavy[0], wavy[:8])
    far = [runner.step([high]) for _ in range(3)]
    assert all(low <= float(action[0]) <= high for action in far)
    assert bool(runner.info.details["kept"])
    for reading in (1000 * high, 1.2 * high, 0.0):
        runner.step([reading])
        assert runner.replaced  # a reading that was not used ends nothing
        assert bool(runner.info.details["kept"])
    for factor in (1.3, 1.4):
        runner.step([factor * high])
    assert not runner.replaced  # accepted as a new level, which it does not count on
    assert not bool(runner.info.details["kept"])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [(5.0, 80.0), (-1.0, 2.0)]),  # 20 to 50, and 0 to 1
        ({"plausible": (10.0, 60.0)}, [(10.0, 60.0), (10.0, 60.0)]),
        ({"plausible": {"y1": (0.0, 9.0)}}, [(5.0, 80.0), (0.0, 9.0)]),
        ({"bounds": (18.0, 55.0)}, [(18.0, 55.0), (-1.0, 2.0)]),
        ({"bounds": (30.0, 40.0)}, [(20.0, 50.0), (-1.0, 2.0)]),  # never cuts off what was seen
        ({"bounds": (0.0, 70.0), "promise": PromiseSpec(2.0, contexts=(15.0, 60.0))}, [(15.0, 60.0), (-1.0, 2.0)]),
        ({"bounds": (0.0, 70.0), "plausible": {"y0": (8.0, 90.0)}}, [(8.0, 70.0), (-1.0, 2.0)]),
    ],
)
def test_bounds_and_contexts_narrow_the_plausible_range(settings, expected):
    values = np.array([[20.0, -1e-9], [50.0, 1.0]] * (DAYS * STEPS // 2))
    weighted = dataclasses.replace(series(values).metadata, weight_column="y1")
    is_weighted = "plausible" not in settings or isinstance(settings["plausible"], dict)
    contexts = series(values) if not is_weighted else dataclasses.replace(series(values), metadata=weighted)
    np.testing.assert_allclose(find_plausible(contexts, FitSettings(**settings)), expected, atol=1e-6)


def test_plausible_ranges_that_leave_nothing(wavy):
    for settings, found in (
        ({"plausible": (1.0, 2.0), "bounds": (3.0, 4.0)}, "1:2 .* 3:4"),
        ({"plausible": {"x": (1.0, 2.0)}}, "x.*y0"),
    ):
        with pytest.raises(DataError, match=found):
            fit_contexts(series(wavy), FitSettings(advisor="r-obd", **settings))


def test_where_tomorrow_is_like_today_the_planner_is_chosen_and_runs_as_it_was_tested():
    """A periodic series with little noise: a profile of the last days knows nearly everything, and nothing is trained."""
    steps = np.arange(DAYS * STEPS)
    noise = np.random.default_rng(5).normal(size=(len(steps), 1))
    values = 10 + 5 * (steps % STEPS == 2)[:, None] + 1e-3 * noise
    contexts = series(values)
    found = fit_contexts(contexts, FitSettings(advisor="rhc"))
    assert [c.name for c in found.candidates] == ["rhc", "guarded-rhc"]
    rows = {row.name: row for row in found.comparison}
    assert found.own.average_cost <= min(rows[name].average_cost for name in ("rhc", "r-obd", "greedy")) * (1 + 1e-9)
    x0, days, history = contexts.test_days(found.policy.contract.history_steps)
    runner = ec.Runner(found.policy, x0, history)
    actions = np.array([runner.step(context) for context in days.reshape(-1, 1)]).ravel()
    cost = 0.5 * np.sum((actions - days.ravel()) ** 2) + 5.0 * np.sum(np.diff(actions, prepend=x0) ** 2)
    assert found.own.mean_cost == pytest.approx(cost / len(days), rel=1e-9)
    behind = FitSettings(advisor="rhc", promise=PromiseSpec(2.0, "day"))
    promised = fit_contexts(contexts, behind)
    assert [c.name for c in promised.candidates] == ["rhc, behind a promise of 2"]
    assert promised.comparison[2].promise_kept


def test_candidates_are_compared_day_by_day(wavy):
    """Standard errors are those of means over the validation days: of each cost, and of its distance from the best."""
    (choice,) = select_candidates([series(wavy)], [FitSettings(advisor="rhc")])
    contexts = choice.contexts
    kept = [option.history_steps(contexts) for option in choice.candidates]
    bed = TestDays.with_whole_span_optimum(choice.problem, *contexts.validation_days(max(kept)))
    scores = [
        score_contender(Contender(option.agent, option.forecaster, stream_days, steps), bed)
        for option, steps in zip(choice.candidates, kept, strict=True)
    ]
    costs = np.stack([score.cost for score in scores]) / np.mean(np.asarray(bed.unit))
    behind = costs - costs[choice.best]
    assert len(costs) == 2
    for name, daily in (("standard_error", costs), ("behind_error", behind)):
        expected = daily.std(axis=1, ddof=1) / np.sqrt(daily.shape[1])
        np.testing.assert_allclose([getattr(c, name) for c in choice.validated], expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose([c.behind for c in choice.validated], behind.mean(axis=1), rtol=1e-6, atol=1e-9)


def test_bounds_narrower_than_the_series(wavy):
    """What was asked lies outside of what can be done, before the first day too."""
    low, high = (float(np.quantile(wavy, share)) for share in (0.4, 0.6))
    found = fit_contexts(series(wavy), FitSettings(advisor="r-obd", bounds=(low, high)))
    rows = {row.name: row for row in found.comparison}
    assert found.own.average_cost == pytest.approx(rows["r-obd"].average_cost, rel=1e-9)
    assert all(row.average_cost >= 1 - 1e-9 and not row.unconverged for row in found.comparison)


def test_the_mean_training_weight_is_the_mean_of_those_that_are_billed(wavy):
    told = series(np.hstack([wavy, np.tile([[0.1], [1.0], [1.0], [9.0]], (DAYS, 1))]))
    weighted = dataclasses.replace(told, metadata=dataclasses.replace(told.metadata, weight_column="y1"))
    assert mean_training_weight(weighted, (0.5, 2.0)) == pytest.approx((0.5 + 1 + 1 + 2) / 4)


def test_default_split():
    assert default_split(365) == Split(243, 60)
    assert default_split(91) == Split(60, 15)
    assert default_split(90) == Split()  # which 90 days cannot fill, and Contexts says so


def test_refusals(wavy):
    with pytest.raises(DataError, match="never change"):
        fit_contexts(series(np.full((DAYS * STEPS, 2), 3.0)))
    with pytest.raises(ValueError, match=r"`ratio` = 1.05 cannot be promised over 4 steps: it must exceed 1\.25697"):
        fit_contexts(series(wavy), FitSettings(promise=PromiseSpec(1.05, "day")))
    with pytest.raises(ValueError, match="alpha must lie between 1e-12"):
        FitSettings(alpha=-1.0)
    for alpha in (1e300, {"demand": 1e-300}):
        with pytest.raises(ValueError, match=r"alpha must lie between 1e-12 and 1e\+12"):
            FitSettings(alpha=alpha)
    with pytest.raises(DataError, match="no window of 48 steps with 4 before it"):
        series(wavy).training_windows(steps=48, history_steps=4)


@pytest.mark.parametrize(("behind", "expected"), [(-0.1, 1), (0.1, 1), (0.4, 0)])
def test_a_mixture_is_chosen_unless_another_is_ahead_by_a_standard_error(behind, expected):
    """Daily differences with a standard error of 1/3, once with a failed candidate that seems cheaper than all."""
    daily = np.random.default_rng(0).normal(size=9)
    daily = behind + (daily - daily.mean()) / daily.std(ddof=1)
    ridge = np.full(9, 5.0)
    assert pipeline._find_best(["ridge", "fourier, mixture", "rhc"], [ridge, ridge + daily, ridge + 9]) == expected
    assert pipeline._find_best(["ridge", "fourier, mixture", ""], [ridge, ridge + daily, ridge - 9]) == expected


def test_a_week_is_learned_where_there_are_four_and_the_data_has_one():
    days = 70
    level = np.where(np.arange(days) % 7 < 5, 10.0, 4.0)  # five working days, two others
    noise = np.random.default_rng(0).normal(size=days * STEPS)
    values = (np.repeat(level, STEPS) + np.tile(np.sin(np.arange(STEPS)), days) + 0.1 * noise)[:, None]
    (choice,) = select_candidates([series(values, Split(42, 14))], [RIDGE])
    costs = {candidate.name: candidate.average_cost for candidate in choice.validated}
    assert choice.chosen.name == "ridge, mixture"
    assert costs["ridge, mixture"] < 0.95 * costs["ridge"]
    (few,) = candidates.train_candidates([scale_task(series(values, Split(27, 14)), RIDGE)], ignore_progress)
    assert [option.name for option in few] == ["ridge"]


def test_the_mixture_starts_with_the_weights_that_validation_days_leave():
    """Behind a promise; they are those of a run of the candidate that was validated, and units do not matter."""
    steps = np.arange(66 * STEPS)
    noise = np.random.default_rng(3).normal(size=len(steps))
    values = (5 + np.sin(2 * np.pi * steps / STEPS) + 0.5 * noise)[:, None]
    settings = FitSettings(advisor="fourier", promise=PromiseSpec(2.5, "run"))

    def shares(agent):
        (mixture,) = (each for each in walk_agents(agent) if isinstance(each, Mixture) and each.weights is not None)
        return np.asarray(jax.vmap(lambda each: each.weights)(mixture.weights))[0]

    task = scale_task(series(values, Split(48, 10)), settings)
    (tried,) = candidates.train_candidates([task], ignore_progress)
    candidate = next(each for each in tried if each.name == candidates.FOURIER)
    np.testing.assert_array_equal(shares(candidate.agent), [0.5, 0.5])
    days = held_back_days(task.problem, task.contexts, "validation", candidate.history_steps(task.contexts))
    run = score_contender(Contender(candidate.agent, None, stream_days), days).runs
    last = jax.tree.map(lambda leaf: leaf[-1, -1], run.info.inner.details["weights"])
    expected = np.asarray(jax.vmap(lambda each: each.weights)(last))[0]
    assert abs(expected[0] - 0.5) > 0.05
    for factor in (1.0, 1e4):
        (choice,) = select_candidates([series(factor * values, Split(48, 10))], [settings])
        chosen = next(each for each in choice.candidates if each.name.startswith(candidates.FOURIER))
        np.testing.assert_allclose(shares(chosen.agent), expected, rtol=1e-6)
