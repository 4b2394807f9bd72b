"""Readings that cannot be right do no harm: in a runner, in many streams, and whatever the agent."""

import equinox as eqx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ecl2o as ec
from ecl2o.policy import Contract
from ecl2o.running import Screen, plausible_range, stuck_limits

HOURS = 24
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


def load(hours, seed=0):
    """Twenty-odd gigawatts with a daily wave."""
    rng = np.random.default_rng(seed)
    return (22 + 5 * np.sin(2 * np.pi * np.arange(hours) / HOURS) + rng.normal(0, 0.5, hours))[:, None]


def policy(agent, **terms):
    terms = {"plausible": [(0.0, 45.0)], "steps_per_day": HOURS} | terms
    return ec.Policy(agent, PROBLEM, contract=Contract(context_dim=1, **terms))


def by_hand(low, high, patience, stuck_after, readings):
    """The rule of one number, in plain Python: the values to use, and which readings are stuck."""
    used, out, run, level, last, repeats = min(max(readings[0], low), high), [], [], None, None, 0
    for reading in readings:
        fine = low <= reading <= high or (level is not None and level[0] <= reading <= level[1])
        reading = np.nan if reading in (-9999.0, 999.0) and not fine else reading
        stuck = False
        if np.isfinite(reading):
            last, repeats = reading, repeats + 1 if reading == last else 1
            stuck = repeats > stuck_after
        if np.isfinite(reading) and not fine and not stuck:
            run.append(reading)
            if len(run) >= patience:
                margin = max(max(run) - min(run), high - low)
                least = min(run) / 4 if low > 0 and min(run) > 0 else -np.inf
                level, run, fine = (max(min(run) - margin, least), max(run) + margin), [], True
        elif fine:
            run = []
        used = reading if fine and np.isfinite(reading) else used
        out.append((used, stuck))
    return tuple(zip(*out, strict=True))


READINGS = st.one_of(
    st.floats(-20, 40, allow_subnormal=False),
    st.sampled_from([np.nan, 1e9, -1e9, 1e300, np.inf, 200.0, -9999.0, 999.0, 0.0, 0.0, 7.0, 7.0]),
)
STEP = eqx.filter_jit(Screen.step)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(READINGS, st.integers(1, 4)), min_size=30, max_size=30),
    st.integers(1, 6),
    st.sampled_from([0.0, 2.0]),
    st.sampled_from([np.inf, 1.0, 3.0]),
)
def test_the_screen_is_its_rule(runs, patience, low, stuck_after):
    readings = [5.0, *(reading for reading, length in runs for _ in range(length))][:30]
    screen = Screen([low], [10.0], patience, [stuck_after])
    wanted, stuck = by_hand(low, 10.0, patience, stuck_after, readings)
    used, replaced = screen.apply(np.array(readings)[:, None])
    np.testing.assert_array_equal(used[:, 0], wanted)
    assert np.isfinite(np.asarray(used)).all()
    np.testing.assert_array_equal(np.asarray(replaced)[:, 0], np.asarray(used)[:, 0] != np.array(readings))
    state, found = screen.init(float), []
    for reading in readings:
        state, *_, flags = STEP(screen, state, np.array([reading]))
        found.append(bool(flags[0]))
    assert tuple(found) == stuck


def test_a_code_for_a_missing_value_never_becomes_a_level():
    readings = np.array([5.0, *[-9999.0] * 50, 6.0, *[700.0] * 3, 999.0])[:, None]
    used, replaced = (np.asarray(each)[:, 0] for each in Screen([0.0], [10.0], 3).apply(readings))
    assert used.tolist() == [5.0] * 51 + [6.0] * 3 + [700.0] * 2  # 700 becomes one
    assert replaced.sum() == 53


def test_each_number_of_a_context_is_judged_by_itself():
    readings = np.array([[1.0, 10.0], [1e6, 11.0], [1.2, np.nan], [1.3, 12.0]])
    used, replaced = Screen([0.0, 0.0], [3.0, 30.0], 3).apply(readings)
    np.testing.assert_array_equal(used, [[1.0, 10.0], [1.0, 11.0], [1.2, 11.0], [1.3, 12.0]])
    np.testing.assert_array_equal(replaced, [[False, False], [True, False], [False, True], [False, False]])


def test_the_nearest_plausible_reading_replaces_an_implausible_first_one():
    used, replaced = Screen([1.0, 1.0], [10.0, 10.0], 3).apply(np.array([[99.0, np.nan], [5.0, 6.0]]))
    np.testing.assert_array_equal(used, [[10.0, 1.0], [5.0, 6.0]])
    np.testing.assert_array_equal(replaced, [[True, True], [False, False]])


def test_a_few_outliers_do_not_say_what_is_plausible():
    values = load(2000)
    clean = plausible_range(values)
    values[[100, 900]] *= 1000
    ((low, high),) = plausible_range(values)
    np.testing.assert_allclose((low, high), clean[0], rtol=0.02)
    assert low < values.min()
    assert high < 60
    assert plausible_range(np.ones((100, 1))) == [(-np.inf, np.inf)]


@pytest.mark.parametrize(
    ("values", "is_plausible"),
    [
        (load(2000)[:, 0], False),  # between 15 and 29
        (-load(2000)[:, 0], False),
        (load(2000)[:, 0] - 14, True),  # from 1 on
        (np.maximum(load(2000)[:, 0] - 20, 0), True),  # often 0
    ],
)
def test_zero_is_plausible_only_where_the_series_comes_near_it(values, is_plausible):
    ((low, high),) = plausible_range(values[:, None])
    assert (low <= 0 <= high) == is_plausible
    assert low <= values.min() <= values.max() <= high
    assert (low == 0) == (0 in values)


SERIES = "load_*.csv", "net_load_*.csv", "nsrdb_*.csv", "web_requests_*.csv"
CLOCK = {"time", "hour", "Year", "Month", "Day", "Hour", "Minute"}


@pytest.mark.parametrize("pattern", SERIES)
def test_no_reading_of_real_test_days_is_implausible_or_stuck(shared, pattern):
    for path in sorted((shared / "data").glob(pattern)):
        frame = pd.read_csv(path, skiprows=2 if "nsrdb" in pattern else 0)
        values = frame[[name for name in frame if name not in CLOCK]].to_numpy(float)
        day = 48 if "riverside" in path.name else HOURS
        end = 2 * (len(values) // day) // 3 * day
        training, test = values[:end], values[end:]
        low, high = np.array(plausible_range(training)).T
        assert ((low <= test) & (test <= high)).all(), path.name
        assert (np.array(stuck_limits(test)) / 2 <= stuck_limits(training)).all(), path.name
        assert ((low > 0) == (training.min(axis=0) > 0.16 * training.max(axis=0))).all(), path.name


AGENTS = {
    "regression": lambda: ec.advisors.OnlineRidge(),
    "guarded": lambda: ec.Competitive(ec.advisors.OnlineRidge(), ratio=2.5),
    "R-OBD": lambda: ec.ROBD(),
}


@pytest.mark.parametrize("agent", AGENTS)
def test_a_day_after_a_bad_reading_the_actions_are_those_of_a_clean_run(agent):
    """One value in megawatts, one missing, one of 1e9."""
    site, series = policy(AGENTS[agent]()), load(28 * HOURS)
    history, contexts = series[: 14 * HOURS], series[14 * HOURS :]
    clean, disturbed = (ec.Runner(site, history[-1], history) for _ in range(2))
    spread = np.ptp(series)
    for step, context in enumerate(contexts):
        bad = {30: context * 1000, 31: [None], 60: [1e9], 90: [float("nan")], 91: -context}.get(step)
        wanted, got = clean.step(context), disturbed.step(context if bad is None else bad)
        assert disturbed.replaced == (bad is not None)
        np.testing.assert_array_equal(disturbed.context, contexts[step] if bad is None else disturbed.context)
        assert abs(got - wanted)[0] < 0.3 * spread
        if step in range(55, 60) or step >= 91 + HOURS:
            assert abs(got - wanted)[0] < 0.01 * spread
    assert (float(disturbed.screened), float(clean.screened)) == (5, 0)


def test_a_lasting_change_of_level_is_followed_after_the_stated_number_of_steps():
    site = policy(ec.ROBD(), accepted_after=6)
    runner, history = ec.Runner(site, [22.0], load(HOURS)), load(60, seed=1)
    replaced = []
    for context in history + 100:
        runner.step(context)
        replaced.append(runner.replaced)
    assert replaced == [True] * 5 + [False] * 55
    assert abs(runner.action - 122)[0] < 10


def test_the_promise_holds_for_the_contexts_that_were_used():
    site, series = policy(ec.Competitive(ec.HittingMinimizer(), ratio=1.8)), load(4 * HOURS)
    runner, used = ec.Runner(site, [22.0], load(HOURS, seed=2)), []
    for step, context in enumerate(series):
        runner.step([1e6] if step % 11 == 5 else context)
        used.append(runner.context)
        best = float(ec.oracle(PROBLEM, ec.Instance([22.0], np.array(used))).cost) if step % 24 == 23 else np.inf
        assert runner.cost <= 1.8 * best * (1 + 1e-9)
        assert runner.live_ratio <= 1.8 * (1 + 1e-9)


def test_a_bad_history_and_a_first_reading_that_is_missing():
    history = load(10 * HOURS)
    soiled = history.copy()
    soiled[50], soiled[200] = 1e9, -1e9
    site = policy(ec.advisors.OnlineRidge())
    runner, clean = ec.Runner(site, [22.0], soiled), ec.Runner(site, [22.0], history)
    assert abs(runner.step(None) - clean.step(history[-1]))[0] < 0.5
    started = ec.Runner(site, [22.0])
    with pytest.raises(FloatingPointError, match=r"\(missing\) .* 0 to 45,"):
        started.step([float("nan")])
    assert started.steps == 0
    assert started.context is None
    for bad, message in ((["x"], "'x'"), ([1.0, 2.0], r"\(1,\).*\(2,\)")):
        with pytest.raises(ValueError, match=message):
            started.step(bad)


def test_the_screen_is_part_of_the_state(tmp_path):
    site, series = policy(ec.ROBD(), stuck_after=[2.0]), load(HOURS)
    runner = ec.Runner(site, [22.0], load(HOURS, seed=3))
    for context in (series[0], series[0], series[0], [1e9], [1e8], series[0], series[0]):
        runner.step(context)
    assert not runner.stuck_numbers.any()
    runner.save_state(tmp_path / "state")
    resumed = ec.Runner.resume(site, tmp_path / "state")
    assert (float(resumed.screened), float(resumed.stuck), resumed.context.tolist()) == (2, 1, series[0].tolist())
    resumed.step(series[0])
    runner.step(series[0])
    assert (resumed.stuck_numbers.tolist(), float(resumed.stuck)) == ([True], 2)  # the third in a row
    for context in (None, series[5], 1e9 + np.zeros(1)):
        assert runner.step(context).tobytes() == resumed.step(context).tobytes()


def test_many_streams_one_bad_reading_and_one_that_is_not_asked():
    site, series = policy(ec.ROBD()), load(HOURS)
    together = ec.Runner.many(site, np.full((3, 1), 22.0), np.stack([load(HOURS, seed=3)] * 3))
    alone = ec.Runner(site, [22.0], load(HOURS, seed=3))
    first = together.step([series[0], [1e9], series[0]], mask=[True, True, False])
    wanted = alone.step(series[0])
    np.testing.assert_allclose(first[0], wanted, rtol=1e-12)
    np.testing.assert_array_equal(first[2], [22.0])
    report = together.report
    assert report.answered.tolist() == [True, True, False]
    assert report.replaced.tolist() == [False, True, False]
    assert not report.rejected.any()
    second = together.step(np.array([series[1], [np.nan], series[0]]))
    np.testing.assert_allclose(second[2], wanted, rtol=1e-12)
    np.testing.assert_allclose(second[0], alone.step(series[1]), rtol=1e-12)
    assert together.screened.tolist() == [0, 2, 0]


def test_a_stuck_meter_is_used_and_reported_for_its_column_and_its_stream():
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=2))
    contract = Contract(columns=["demand", "sun"], plausible=[(5.0, 45.0), (0.0, 45.0)], stuck_after=[2.0, 4.0])
    site = ec.Policy(ec.HittingMinimizer(), problem, contract=contract)
    together, alone = ec.Runner.many(site, np.zeros((2, 2))), ec.Runner(site, np.zeros(2))
    for step in range(5):
        moving, fixed = [20.0 + step, 0.0], [30.0, 10.0 + step]
        actions = together.step([moving, fixed])
        np.testing.assert_allclose(actions, [moving, fixed])
        np.testing.assert_allclose(alone.step(moving), moving)
        assert together.report.stuck.tolist() == [step >= 4, step >= 2]
        assert together.stuck_numbers.tolist() == [[False, step >= 4], [step >= 2, False]]
        assert contract.name_numbers(alone.stuck_numbers) == (["sun"] if step >= 4 else [])
    assert (together.stuck.tolist(), float(alone.stuck)) == ([1, 3], 1)


def test_a_meter_that_is_stuck_at_zero_never_becomes_a_new_level():
    site = policy(ec.ROBD(), plausible=[(5.0, 45.0)], stuck_after=[2.0], accepted_after=6)
    runner = ec.Runner(site, [22.0], load(HOURS))
    for _ in range(4 * HOURS):
        runner.step([0.0])
        assert runner.replaced
    assert float(runner.stuck) == 4 * HOURS - 2
    assert abs(runner.action - load(HOURS)[-1])[0] < 0.01
    runner.step([22.0])
    assert (runner.replaced, runner.stuck_numbers.tolist()) == (False, [False])


def test_a_run_starts_from_the_last_plausible_reading_of_its_history():
    history = np.concatenate([load(HOURS), [[0.0], [0.0]]])
    assert ec.Runner(policy(ec.ROBD(), plausible=[(5.0, 45.0)]), history=history).action == load(HOURS)[-1]


def test_without_a_declared_range_a_bad_reading_leaves_its_stream_as_it_was():
    bare = ec.Policy(ec.ROBD(), PROBLEM)
    together = ec.Runner.many(bare, [[20.0], [20.0]])
    actions = together.step([[22.0], [float("inf")]])
    assert actions[1] == [20.0]
    assert together.report.rejected.tolist() == [False, True]
    assert together.cost[1] == 0
    together.step([[22.0], [22.0]])
    before = together.cost
    together.step([[30.0], [30.0]], mask=[True, False])
    assert (together.cost > before).tolist() == [True, False]
    with pytest.raises(ValueError, match=r"mask .*2 .*3"):
        together.step([[22.0], [22.0]], mask=[1, 0, 1])
    with pytest.raises(ValueError, match=r"context\[0\]"):
        ec.Runner(bare, [20.0]).step([float("nan")])


def test_policies_of_one_structure_fitted_for_different_sites_run_in_one_batch(tmp_path):
    def at(site):
        problem = ec.Problem(ec.SquaredTracking(1.0 + site), ec.Mahalanobis.isotropic(alpha=5.0 + site, dim=1))
        guard = ec.Competitive(
            ec.MLAROBD(ec.advisors.SeasonalLinear(dim=1, context_dim=1), 0.1 * site), ratio=2.0 + site
        )
        contract = Contract(context_dim=1, plausible=[(-10.0 * site, 50.0)], accepted_after=2 + site)
        return ec.Policy(guard, problem, contract=contract)

    sites = [at(site) for site in range(3)]
    x0, past = np.full((3, 1), 22.0), np.stack([load(HOURS, seed) for seed in range(3)])
    together = ec.Runner.many(sites, x0, past)
    alone = [ec.Runner(*start) for start in zip(sites, x0, past, strict=True)]
    for step in range(6):
        contexts = np.array([[20.0 + step], [-7.0], [-12.0 if step % 2 else 30.0]])
        actions = together.step(contexts)
        expected = [runner.step(context) for runner, context in zip(alone, contexts, strict=True)]
        np.testing.assert_allclose(actions, expected, rtol=1e-12)
    np.testing.assert_allclose(together.cost, [float(runner.cost) for runner in alone], rtol=1e-12)
    together.save_state(tmp_path / "state")
    resumed = type(together).resume(sites, tmp_path / "state")
    assert resumed.step(contexts).tobytes() == together.step(contexts).tobytes()
    with pytest.raises(ValueError, match="state"):
        type(together).resume(sites[::-1], tmp_path / "state")
    with pytest.raises(ValueError, match="policy 1 "):
        ec.Runner.many([sites[0], policy(ec.ROBD())], x0[:2], past[:2])
    with pytest.raises(ValueError, match=r" 3 .* 2"):
        ec.Runner.many(sites[:2], x0, past)
