"""Promises that follow the clock: a run may start at any hour; its first period is short, and the next ones start on time."""

import datetime

import jax
import numpy as np
import pandas as pd
import pytest

import ecl2o as ec
from ecl2o.act import ActSession, ParsedLine
from ecl2o.policy import Contract
from ecl2o.policy.clock import StepClock
from ecl2o.policy.contract import FileFormat

DAY = 24
PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))


def make_policy(period=DAY, inner=None, until="2024-01-07 23:00:00", day_start=0, history=None) -> ec.Policy:
    """A policy with a promise of 2, on a history that ends with a Sunday."""
    guard = ec.Competitive(ec.HittingMinimizer() if inner is None else inner, ratio=2.0, period=period)
    contract = Contract(
        columns=["load"], step_minutes=60.0, steps_per_day=DAY, day_start_minutes=day_start, history_until=until
    )
    past = np.zeros((DAY, 1)) if history is None else history
    return ec.Policy(guard, PROBLEM, contract=contract, history=past)


@pytest.mark.parametrize(
    ("period", "day_start", "time", "place"),
    [
        (DAY, 0, "2024-01-08 00:00", 0),
        (DAY, 0, "2024-01-08 13:00", 13),
        (DAY, 6 * 60, "2024-01-08 05:00", 23),
        (7 * DAY, 0, "2024-01-10 13:00", 2 * DAY + 13),  # a Wednesday
        (7 * DAY, 60, "2024-01-08 00:00", 7 * DAY - 1),  # the last hour before a Monday's start
        (30 * DAY, 0, "2001-01-31 00:00", 0),
        (30 * DAY, 0, "2001-02-01 02:00", DAY + 2),
    ],
)
def test_where_a_period_starts(period, day_start, time, place):
    assert StepClock(make_policy(period, day_start=day_start)).find_place(time) == place


def test_times_are_read_on_the_clock_of_the_history():
    clock = StepClock(make_policy(until="2024-01-07 23:00:00-05:00"))
    assert clock.find_place("2024-01-08 18:00+00:00") == 13
    assert clock.find_place("2024-01-08 13:00") == 13
    assert clock.find_place(None, own_history=True) == 0
    assert clock.find_place(None) == 0


def test_agents_without_restarts_have_no_place_and_nested_periods_a_common_one():
    bare = ec.Policy(ec.ROBD(), PROBLEM, contract=make_policy().contract, history=np.zeros((DAY, 1)))
    assert StepClock(bare).find_place("2024-01-08 13:00") == 0
    daily = ec.Periodic(ec.PureML(ec.advisors.LSTM(1, 1, key=jax.random.key(0))), DAY)
    weekly = ec.Competitive(daily, 2.0, period=7 * DAY)
    assert StepClock(ec.Policy(ec.Switch(weekly), PROBLEM)).cycle == 7 * DAY


def wave(steps: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return 5 + 3 * np.sin(2 * np.pi * np.arange(steps) / DAY)[:, None] + rng.normal(size=(steps, 1))


@pytest.mark.parametrize("hour", [0, 1, 13, 23])
def test_the_first_period_is_short_and_the_guard_restarts_at_midnight(hour):
    """In each period cost and optimum are those of the period's own steps: of the short one, and of the whole ones."""
    contexts, policy = wave(3 * DAY), make_policy()
    start = datetime.datetime(2024, 1, 8, hour)
    runner = ec.Runner(policy, x0=[5.0], start_time=start)
    before, paid, since = np.array([5.0]), 0.0, 0
    for step, context in enumerate(contexts):
        if step and (hour + step) % DAY == 0:
            before, paid, since = runner.action, 0.0, step
        last = runner.cost
        runner.step(context)
        paid += runner.cost - last
        details = runner.info.details
        best = ec.oracle(PROBLEM, ec.Instance(before, contexts[since : step + 1])).cost if step % 7 == 0 else None
        assert details["cost"][0] == pytest.approx(paid, rel=1e-9)
        if best is not None:
            assert details["reference"][0] == pytest.approx(float(best), rel=1e-9)
        assert paid <= 2 * details["reference"][0] * (1 + 1e-9)


def test_from_the_first_midnight_on_a_run_is_the_one_that_started_there():
    contexts = wave(3 * DAY)
    late = ec.Runner(make_policy(), x0=[5.0], start_time="2024-01-08 13:00")
    for context in contexts[13:DAY]:
        late.step(context)
    fresh = ec.Runner(make_policy(), x0=late.action, start_time="2024-01-09 00:00")
    for context in contexts[DAY:]:
        np.testing.assert_allclose(late.step(context), fresh.step(context), rtol=1e-12)


def test_many_streams_start_together_and_states_keep_the_clock(tmp_path):
    contexts, policy = wave(2 * DAY), make_policy()
    one = ec.Runner(policy, x0=[5.0], start_time="2024-01-08 13:00")
    many = ec.Runner.many(policy, x0=[[5.0], [5.0]], start_time="2024-01-08 13:00")
    for context in contexts[:5]:
        np.testing.assert_allclose(many.step([context, context])[1], one.step(context), rtol=1e-12)
    one.save_state(tmp_path / "state")
    again = ec.Runner.resume(policy, tmp_path / "state")
    for context in contexts[5:]:
        expected = one.step(context)
        np.testing.assert_array_equal(again.step(context), expected)
        np.testing.assert_allclose(many.step([context, context])[0], expected, rtol=1e-12)


def answers(session: ActSession, contexts, times=None) -> list[list[float]]:
    lines = [ParsedLine(list(y), time=None if times is None else times[i]) for i, y in enumerate(contexts)]
    return [session.answer(line, lambda answer: None).action for line in lines]


def test_act_starts_at_the_hour_of_its_first_line_or_says_which_it_takes():
    contexts, past = wave(2 * DAY), wave(14 * DAY)
    policy = make_policy(history=past)
    times = list(pd.date_range("2024-01-08 13:00", periods=len(contexts), freq="h").to_pydatetime())
    by_clock = answers(ActSession(policy, x0=[5.0]), contexts, times)
    runner = ec.Runner(policy, x0=[5.0], start_time=times[0])  # the advice has no memory: the history does not count
    np.testing.assert_allclose(by_clock, [runner.step(context) for context in contexts], rtol=1e-12)
    declared = answers(ActSession(policy, x0=[5.0], start_time=times[0]), contexts)
    np.testing.assert_array_equal(declared, by_clock)
    said: list[str] = []
    unknown = answers(ActSession(policy, x0=[5.0], notify=said.append), contexts)
    assert any("2024-01-08 00:00" in notice for notice in said)
    assert unknown != by_clock


def test_a_switch_within_a_short_first_period_sets_its_limit_once():
    """Its limit comes from the first costs it sees, wherever the period stands."""
    advisor = ec.advisors.Fixed(np.zeros((200, 1)))
    policy = ec.Policy(ec.Periodic(ec.Switch(advisor), DAY), PROBLEM, contract=make_policy().contract)
    contexts = wave(2 * DAY)
    late = ec.Runner(policy, x0=[5.0], history=np.zeros((0, 1)), start_time="2024-01-08 13:00")
    plain = ec.Runner(ec.Policy(ec.Switch(advisor), PROBLEM), x0=[5.0])
    for context in contexts[: DAY - 13]:
        np.testing.assert_allclose(late.step(context), plain.step(context), rtol=1e-12)


def test_started_at_any_hour_a_daily_promise_costs_what_it_costs_from_midnight(shared):
    """On 20 days of a real load; the optimum is that of the same steps."""
    frame = pd.read_csv(shared / "data" / "load_dayton_2016_2018_hourly.csv")
    load, first = frame["load_mw"].to_numpy(float)[:, None], 300 * DAY
    time = pd.to_datetime(frame["time"]).dt.to_pydatetime()
    policy = make_policy(inner=ec.advisors.OnlineRidge(DAY))
    ratios = []
    for hour in (0, 4, 8, 13, 16, 20):
        begin, end = first + hour, first + hour + 20 * DAY
        runner = ec.Runner(policy, history=load[begin - 60 * DAY : begin], start_time=time[begin])
        for context in load[begin:end]:
            runner.step(context)
        best = ec.oracle(PROBLEM, ec.Instance(load[begin - 1], load[begin:end])).cost
        ratios.append(float(runner.cost) / float(best))
    assert max(ratios) < 1.01 * ratios[0]


@pytest.mark.parametrize("minutes", [15, 60])
def test_in_a_zone_every_day_has_as_many_steps(minutes):
    """Spring's hour is filled in; autumn's second hour is answered with the last action of the first."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1))
    zone = FileFormat(time_zone="America/New_York")
    contract = Contract(columns=["y"], step_minutes=float(minutes), steps_per_day=24 * 60 // minutes, file_format=zone)
    policy = ec.Policy(ec.Greedy(), problem, contract=contract)
    clock, hour = StepClock(policy), 60 // minutes
    for day, length in (("2024-03-10", 23), ("2024-11-03", 25), ("2024-07-01", 24)):
        local = pd.date_range(day, periods=length * hour + 1, freq=f"{minutes}min", tz="America/New_York")
        places = [clock.count_steps(local[0].to_pydatetime(), time.to_pydatetime()) for time in local.tz_convert("UTC")]
        assert places[-1] == 24 * hour
        assert sorted(set(places)) == [place for place in range(24 * hour + 1) if length > 23 or place // hour != 2]
        notices = []
        session = ActSession(policy, x0=[0.0], notify=notices.append)
        found = [
            session.answer(ParsedLine([float(i)], time=datetime.datetime.fromisoformat(time)), lambda answer: None)
            for i, time in enumerate(map(pd.Timestamp.isoformat, local))
        ]
        assert [answer.filled for answer in found if answer.filled] == ([hour] if length == 23 else [])
        assert found[-1].step == len(local) - (hour if length == 25 else 0)
        if length == 25:
            assert len(notices) == hour  # one line each
            assert {answer.step for answer in found[2 * hour : 3 * hour]} == {2 * hour}
            assert found[2 * hour].action == found[2 * hour - 1].action
    naive = datetime.datetime(2024, 7, 1, 8)
    assert clock.count_steps(naive, datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.UTC)) == 0
    assert clock.next_time(datetime.datetime.fromisoformat("2024-11-03T01:00-04:00")) == datetime.datetime(
        2024, 11, 3, 1
    ) + datetime.timedelta(minutes=minutes)


def test_a_policy_of_an_unknown_zone_is_rejected():
    with pytest.raises(ValueError, match="America/New_York"):
        FileFormat(time_zone="Mars/Olympus")
