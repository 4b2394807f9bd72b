"""Steps with times: the hour comes from the clock, missed steps are filled in, and an answered one is answered again."""

import dataclasses
import datetime
import json

import httpx2
import numpy as np
import pandas as pd
import pytest

import ecl2o as ec
from ecl2o.act import ActSession, ParsedLine
from ecl2o.evaluation.comparison import compare, make_contender
from ecl2o.exceptions import ConflictError, InvalidRequestError, ServiceError
from ecl2o.fitting.read import SeriesReader
from ecl2o.fitting.tasks import policy_test_days
from ecl2o.policy import Contract
from ecl2o.policy.clock import StepClock
from ecl2o.running import plausible_range
from ecl2o.service import Client, Service, Store, step_executor
from ecl2o.service.http import Access, make_app
from ecl2o.service.models import StepRecord, StepRequest

DAY = 24
START = datetime.datetime(2024, 1, 8, 13)
UNTIL = "2024-01-07 23:00:00"


def hour(count: int) -> datetime.datetime:
    return START + datetime.timedelta(hours=count)


def wave(steps: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 20 + 5 * np.sin(2 * np.pi * np.arange(steps) / DAY)[:, None] + rng.normal(size=(steps, 1))


@pytest.fixture(scope="module")
def policy() -> ec.Policy:
    """A learner behind a daily promise, whose own history ends with a Sunday."""
    guard = ec.Competitive(ec.advisors.OnlineRidge(DAY), ratio=2.0, period=DAY)
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    contract = Contract(
        columns=["load"],
        step_minutes=60.0,
        steps_per_day=DAY,
        day_start_minutes=0,
        history_until=UNTIL,
        history_steps=14 * DAY,
        plausible=[(0.0, 50.0)],
        accepted_after=DAY,
    )
    return ec.Policy(guard, problem, contract=contract, history=wave(14 * DAY, seed=1))


@pytest.fixture
def service(tmp_path, policy):
    ec.save(tmp_path / "daily.ecl2o", policy)
    service = Service(Store(f"sqlite:///{tmp_path / 'streams.db'}"))
    service.put_policy("daily", (tmp_path / "daily.ecl2o").read_bytes())
    yield service
    service.close()


def send(service: Service, *requests: StepRequest) -> list:
    results = service.submit_steps(requests).result()
    return [result if isinstance(result, ServiceError) else StepRecord(**json.loads(result.json)) for result in results]


def act(policy: ec.Policy, contexts, times) -> list[list[float]]:
    session = ActSession(policy)
    lines = [ParsedLine(list(y), time=time) for y, time in zip(contexts, times, strict=True)]
    return [session.answer(line, lambda answer: None).action for line in lines]


@pytest.mark.parametrize("declared", [True, False], ids=["start given", "first step's time"])
def test_a_stream_that_starts_at_13_is_the_run_of_act(service, policy, declared):
    contexts, times = wave(2 * DAY), [hour(k) for k in range(2 * DAY)]
    stream, _ = service.create_stream("a", "daily", start=START if declared else None)
    records = send(service, *(StepRequest("a", y.tolist(), time=t) for y, t in zip(contexts, times, strict=True)))
    np.testing.assert_allclose([record.action for record in records], act(policy, contexts, times), rtol=1e-9)
    assert [record.time for record in records] == [time.isoformat() for time in times]
    found = service.get_stream("a")
    assert found.start == START.isoformat()
    assert "13 steps too early" in found.notice
    assert ("13 steps too early" in stream.notice) == declared
    midnight = records[DAY - 13]  # a new period: its cost is that of one step
    assert midnight.live_ratio * (midnight.promise_left + midnight.hitting + midnight.switching) / 2 == pytest.approx(
        midnight.hitting + midnight.switching, rel=1e-6
    )


@pytest.fixture(scope="module")
def dayton(shared):
    """A policy with a promise of 2 for each day on a real load, its readings and times, and where the last 60 days start."""
    series = SeriesReader(shared / "data" / "load_dayton_2016_2018_hourly.csv").read_days()
    load, first = series.values, len(series.values) - 60 * DAY
    contract = Contract(
        columns=["load_mw"],
        step_minutes=60.0,
        steps_per_day=DAY,
        day_start_minutes=0,
        history_steps=60 * DAY,
        history_until=str(series.time[first - 1]),
        plausible=plausible_range(load[:first]),
        accepted_after=DAY,
    )
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    agent = ec.Competitive(ec.advisors.OnlineRidge(DAY), ratio=2.0, period=DAY)
    policy = ec.Policy(agent, problem, contract=contract, history=load[first - 60 * DAY : first])
    return policy, series, first


def test_started_at_any_hour_act_and_the_service_cost_what_evaluate_says(dayton, tmp_path):
    """Over 60 days, relative to the optimum of the same hours; both make the same actions."""
    policy, series, first = dayton
    contexts, times = series.values, [time.to_pydatetime() for time in pd.to_datetime(series.time)]
    test_days, _ = policy_test_days(policy, series, 60)
    row = next(
        row
        for row in compare({"policy": make_contender(policy.agent, policy.problem, policy.forecaster)}, test_days)
        if row.name == "policy"
    )
    service = Service(Store(f"sqlite:///{tmp_path / 'streams.db'}"))
    ec.save(tmp_path / "daily.ecl2o", policy)
    service.put_policy("daily", (tmp_path / "daily.ecl2o").read_bytes())
    answers, requests = {}, []
    for late in (0, 13, 20):
        past, until = contexts[: first + late], str(series.time[first + late - 1])
        session = ActSession(policy, history=past, history_until=until)
        lines = [ParsedLine(y.tolist(), time=time) for y, time in zip(contexts, times, strict=True)][first + late :]
        answers[late] = [session.answer(line, lambda answer: None) for line in lines]
        service.create_stream(f"{late}", "daily", history=past[-60 * DAY :].tolist(), start=lines[0].time)
        requests += [StepRequest(f"{late}", line.context, time=line.time) for line in lines]
    requests.sort(key=lambda request: request.time)  # all streams together
    results = list(zip(requests, send(service, *requests), strict=True))
    service.close()
    for late, own in answers.items():
        records = [record for request, record in results if request.stream == f"{late}"]
        np.testing.assert_allclose([r.action for r in records], [a.action for a in own], rtol=1e-9)
        assert records[-1].cost == pytest.approx(own[-1].cost, rel=1e-9)
        best = ec.oracle(policy.problem, ec.Instance(contexts[first + late - 1], contexts[first + late :])).cost
        assert records[-1].optimum == pytest.approx(float(best), rel=1e-9)
        assert own[-1].cost / float(best) == pytest.approx(row.average_cost, rel=0.01)
    assert answers[0][-1].cost == pytest.approx(60 * row.mean_cost, rel=1e-9)


def test_without_times_a_stream_goes_on_after_its_own_history(service, policy):
    contexts = wave(DAY + 3)
    stream, _ = service.create_stream("a", "daily")
    assert stream.start is None
    assert "2024-01-08 00:00:00" in stream.notice  # where its first period is taken to start
    records = send(service, *(StepRequest("a", y.tolist()) for y in contexts))
    runner = ec.Runner(policy)
    np.testing.assert_allclose([r.action for r in records], [runner.step(y) for y in contexts], rtol=1e-9)
    assert {record.time for record in records} == {None}


def test_missed_steps_are_filled_in_and_stored(service, policy):
    contexts = wave(4)
    service.create_stream("a", "daily", start=START)
    times = [hour(0), hour(1), hour(4), hour(5)]
    records = send(service, *(StepRequest("a", y.tolist(), time=t) for y, t in zip(contexts, times, strict=True)))
    assert [record.step for record in records] == [1, 2, 5, 6]
    np.testing.assert_allclose([r.action for r in records], act(policy, contexts, times), rtol=1e-9)
    stored = service.list_steps("a")
    assert [step.filled for step in stored] == [False, False, True, True, False, False]
    assert [step.time for step in stored] == [hour(k).isoformat() for k in range(6)]
    assert stored[2].context == [None]
    assert stored[2].context_used == stored[1].context


def test_whole_weeks_are_left_out(service):
    service.create_stream("a", "daily", start=START)
    (first, late) = send(
        service, StepRequest("a", [20.0], time=hour(0)), StepRequest("a", [21.0], time=hour(7 * DAY + 3))
    )
    assert (first.step, late.step) == (1, 4)


def test_periods_stay_right_over_long_gaps_and_longer_ones_are_rejected(service, policy, monkeypatch):
    daily = StepClock(policy)
    longer = dataclasses.replace(policy.agent.promises[0], period=30 * DAY)
    monthly = StepClock(dataclasses.replace(policy, agent=dataclasses.replace(policy.agent, promises=(longer,))))
    assert [daily.count_filled(missed) for missed in (0, 1, 7 * DAY, 3 * 7 * DAY + 4)] == [0, 1, 0, 4]
    assert [monthly.count_filled(missed) for missed in (8 * DAY, 211 * DAY)] == [8 * DAY, DAY]
    monkeypatch.setattr(step_executor, "_MAX_FILLED", 5)
    service.create_stream("a", "daily", start=START)
    first, few, many = send(service, *(StepRequest("a", [20.0], time=hour(k)) for k in (0, 6, 13)))
    assert (first.step, few.step) == (1, 7)
    assert isinstance(many, InvalidRequestError)
    assert service.get_stream("a").steps == 7


@pytest.mark.parametrize(
    "time", [datetime.datetime.max, datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=5)))]
)
def test_a_time_that_no_other_follows_spares_other_streams(service, time):
    for stream in ("a", "b"):
        service.create_stream(stream, "daily")
    send(service, StepRequest("a", [20.0], time=time))
    made = service.get_stream("a").steps
    bad, good = send(service, StepRequest("a", [20.0], time=None if made else time), StepRequest("b", [20.0]))
    assert isinstance(bad, InvalidRequestError) or made == 1
    assert good.step == 1


def test_times_over_http(policy, tmp_path, running_app):
    """Streams, single steps and batches take times; every other kind of time is rejected."""
    ec.save(tmp_path / "daily.ecl2o", policy)
    app = make_app(
        Store(f"sqlite:///{tmp_path / 'http.db'}"), Access(), {"daily": (tmp_path / "daily.ecl2o").read_bytes()}
    )
    with running_app(app) as url, Client(url) as client:
        assert client.put_stream("a", "daily", start=START).start == START.isoformat()
        client.put_stream("b", "daily")
        first = client.steps({"a": [20.0], "b": [20.0]}, {"a": START, "b": START})
        assert first["a"].action == first["b"].action
        assert client.step("a", [21.0], hour(3)).step == 4
        assert client.steps({"a": [21.0]}, {"a": hour(3)})["a"].step == 4  # answered again
        assert client.steps({"a": [22.0]}, {"a": hour(4)})["a"].time == hour(4).isoformat()
        for bad in ("noon", 1704715200, 5.5, True, [], "2024-13-01"):
            step = {"context": [1.0], "time": bad}
            for path, body in (("steps", {"a": step}), ("streams/a/steps", step)):
                assert httpx2.post(f"{url}/{path}", json=body, timeout=60).status_code == 422
            assert httpx2.put(f"{url}/streams/c", json={"policy": "daily", "start": bad}, timeout=60).status_code == 422


def test_an_answered_time_is_answered_again_and_an_earlier_one_is_a_conflict(service):
    service.create_stream("a", "daily", start=START)
    _, second = send(service, StepRequest("a", [20.0], time=hour(0)), StepRequest("a", [21.0], time=hour(1)))
    (again,) = send(service, StepRequest("a", [21.0], 2, hour(1)))
    assert again == second
    late = hour(1) + datetime.timedelta(minutes=20)  # in the same step
    assert send(service, StepRequest("a", [21.0], time=late)) == [second]
    for request in (StepRequest("a", [20.0], time=hour(0)), StepRequest("a", [9.0], time=hour(1))):
        (error,) = send(service, request)
        assert isinstance(error, ConflictError)
    assert service.get_stream("a").steps == 2
    (before,) = send(service, StepRequest("a", [20.0], time=hour(-1)))
    assert isinstance(before, ConflictError)


def test_a_history_that_was_given_is_taken_to_end_before_the_first_step(service, policy):
    contexts, past = wave(DAY), wave(14 * DAY, seed=2)
    service.create_stream("a", "daily", history=past.tolist())
    records = send(service, *(StepRequest("a", y.tolist(), time=hour(k)) for k, y in enumerate(contexts)))
    runner = ec.Runner(policy, history=past, start_time=START)
    np.testing.assert_allclose([r.action for r in records], [runner.step(y) for y in contexts], rtol=1e-9)
    assert service.get_stream("a").notice is None


def test_the_start_is_part_of_the_request_and_survives_a_restart(service, policy, tmp_path):
    service.create_stream("a", "daily", start=START)
    assert service.create_stream("a", "daily", start=START)[1] is False
    with pytest.raises(ConflictError):
        service.create_stream("a", "daily", start=hour(1))
    contexts = wave(3)
    send(service, StepRequest("a", contexts[0].tolist(), time=hour(0)))
    service.close()
    again = Service(Store(f"sqlite:///{tmp_path / 'streams.db'}"))
    again.warm_up()
    records = send(again, *(StepRequest("a", contexts[k].tolist(), time=hour(k)) for k in (1, 2)))
    expected = act(policy, contexts, [hour(k) for k in range(3)])
    np.testing.assert_allclose([record.action for record in records], expected[1:], rtol=1e-9)
    again.close()
