"""Streams in a store: what is answered, what is refused, and what is left when something fails."""

import json
import math
import time

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

import ecl2o as ec
from ecl2o.service import Refused, Service, Store, store
from ecl2o.service.batched_stepper import LANES, Lanes
from ecl2o.service.step_executor import Ask


def opened(folder, policy_file) -> Service:
    service = Service(Store(f"sqlite:///{folder / 'streams.db'}"))
    service.put_policy("small", policy_file.read_bytes())
    service.put_stream("a", "small", [0.0], None)
    return service


@pytest.fixture
def service(tmp_path, policy_file):
    service = opened(tmp_path, policy_file)
    yield service
    service.close()


def answered(service: Service, *asks: Ask) -> list:
    return [json.loads(a.text) if not isinstance(a, Refused) else a for a in service.play(asks).result()]


def test_answers_are_the_runners_and_the_optimum_is_the_oracles(service, policy_file):
    contexts = np.sin(np.arange(40.0))[:, None] * 5
    answers = answered(service, *(Ask("a", context.tolist()) for context in contexts))
    policy = ec.load(policy_file)
    runner = ec.Runner(policy, [0.0])
    actions = [runner.step(context) for context in contexts]
    np.testing.assert_allclose([a["action"] for a in answers], actions, rtol=1e-12)
    np.testing.assert_allclose(answers[-1]["cost"], runner.cost, rtol=1e-12)
    np.testing.assert_allclose(answers[-1]["live_ratio"], runner.live_ratio, rtol=1e-9)
    instance = ec.Instance([0.0], contexts)
    np.testing.assert_allclose(answers[-1]["optimum"], ec.oracle(policy.problem, instance).cost, rtol=1e-9)
    np.testing.assert_allclose(answers[-1]["expert"], ec.rollout(ec.ROBD(), policy.problem, instance).cost, rtol=1e-9)
    np.testing.assert_allclose(service.hindsight("a")["actions"], _best(policy.problem, answers, 32), rtol=1e-9)


def _best(problem, answers, window):
    start, latest = answers[-window - 1]["action"], answers[-window:]
    return np.asarray(ec.oracle(problem, ec.Instance(start, [a["context"] for a in latest])).actions)


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=3), st.integers(0, LANES - 1), st.randoms(use_true_random=False)
)
@settings(max_examples=20)
def test_an_answer_does_not_depend_on_who_else_is_asked(lanes_and_start, contexts, lane, others):
    lanes, start = lanes_and_start
    state, crowded = start, start
    for context in contexts:
        alone = lanes.play([state], [[context]])[0]
        crowd = [lanes.play([start], [[others.uniform(-9, 9)]])[0].state for _ in range(2)]
        states = [others.choice(crowd) for _ in range(LANES)]
        states[lane] = crowded
        given_contexts = [[others.uniform(-50, 50)] for _ in range(LANES)]
        given_contexts[lane] = [context]
        among = lanes.play(states, given_contexts)[lane]
        assert among.state == alone.state
        assert among.action == alone.action
        state, crowded = alone.state, among.state


@pytest.fixture(scope="module")
def lanes_and_start(policy_file):
    lanes = Lanes(ec.load(policy_file), 1, 1, 0)
    return lanes, lanes.begin(np.zeros(1), np.zeros((0, 1)))


def test_the_last_step_again_has_the_same_answer_and_nothing_else_is_taken_back(service):
    (first,) = answered(service, Ask("a", [1.5], 1))
    again, other, gap, past = answered(
        service, Ask("a", [1.5], 1), Ask("a", [2.0], 1), Ask("a", [2.0], 3), Ask("b", [1.0])
    )
    assert again == first
    assert (other.status, other.more["context_answered"], other.more["context_sent"]) == (409, [1.5], [2.0])
    assert (gap.status, gap.more["next_step"]) == (409, 2)
    assert past.status == 404
    assert service.stream("a")["steps"] == 1


@pytest.mark.parametrize("context", [[], [1.0, 2.0], [math.nan], [math.inf], [1e308]])
def test_a_bad_context_changes_nothing(service, context):
    before = service.stream("a")
    (refused,) = service.play([Ask("a", context)]).result()
    assert isinstance(refused, Refused)
    assert refused.status == 422
    assert service.stream("a") == before


def test_a_restart_goes_on_bit_for_bit(tmp_path, policy_file):
    contexts = [[math.sin(number) * 6] for number in range(20)]
    (tmp_path / "whole").mkdir()
    whole = opened(tmp_path / "whole", policy_file)
    expected = [a | {"at": 0} for a in answered(whole, *(Ask("a", c) for c in contexts))]
    whole.close()
    found = []
    for start in range(0, 20, 7):
        service = opened(tmp_path, policy_file)
        asks = (Ask("a", contexts[number], number + 1) for number in range(start, min(start + 7, 20)))
        found += [a | {"at": 0} for a in answered(service, *asks)]
        service.close()
    assert found == expected


def test_a_policys_name_never_means_another_file(service, policy_file, tmp_path):
    assert service.put_policy("small", policy_file.read_bytes()) is False
    other = ec.Policy(ec.ROBD(), ec.load(policy_file).problem)
    ec.save(tmp_path / "other.ecl2o", other)
    with pytest.raises(Refused, match="another policy") as refused:
        service.put_policy("small", (tmp_path / "other.ecl2o").read_bytes())
    assert refused.value.status == 409
    with pytest.raises(Refused, match="not a sound policy") as refused:
        service.put_policy("bad", policy_file.read_bytes()[:-1])
    assert refused.value.status == 422
    assert "/" not in refused.value.detail


def test_a_stream_is_made_once(service):
    assert service.put_stream("a", "small", [0.0], None)[1] is False
    for other in ([1.0], [[2.0]]):
        x0, history = (other, None) if isinstance(other[0], float) else ([0.0], other)
        with pytest.raises(Refused) as refused:
            service.put_stream("a", "small", x0, history)
        assert refused.value.status == 409
    for policy, x0 in (("none", [0.0]), ("small", [0.0, 1.0]), ("small", None)):
        with pytest.raises(Refused) as refused:
            service.put_stream("b", policy, x0, None)
        assert refused.value.status == 422
    service.delete_stream("a")
    with pytest.raises(Refused, match="no stream"):
        service.stream("a")
    service.put_stream("a", "small", [1.0], None)
    assert answered(service, Ask("a", [1.0]))[0]["step"] == 1


def test_a_full_disk_refuses_and_loses_nothing(service):
    answered(service, *(Ask("a", [float(number)]) for number in range(5)))
    with service.store._writer.connect() as connection:
        raw = connection.connection.driver_connection
        free = raw.execute("PRAGMA freelist_count").fetchone()[0]
        raw.execute("CREATE TABLE ballast (bytes BLOB)")
        raw.execute("INSERT INTO ballast VALUES (zeroblob(?))", (4096 * free,))
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
        raw.execute(f"PRAGMA max_page_count={pages}")
    refused = None
    for _ in range(200):
        try:
            service.play([Ask("a", [1.0]) for _ in range(20)]).result()
        except Refused as error:
            refused = error
            break
    assert refused is not None
    assert refused.status == 503
    assert "disk is full" in refused.detail
    assert "disk is full" in service.unready()[0]
    steps = service.stream("a")["steps"]
    assert len(service.steps("a", 0, 10_000)) == steps
    with service.store._writer.connect() as connection:
        connection.connection.driver_connection.execute("PRAGMA max_page_count=1000000")
    assert answered(service, Ask("a", [1.0], steps + 1))[0]["step"] == steps + 1
    assert service.unready() == []


def test_a_read_only_store_can_be_read(tmp_path, policy_file):
    first = opened(tmp_path, policy_file)
    answered(first, Ask("a", [1.0]))
    first.close()
    service = Service(Store(f"sqlite:///file:{tmp_path / 'streams.db'}?mode=ro&uri=true"))
    assert "read-only" in service.unready()[0]
    assert service.stream("a")["steps"] == 1
    with pytest.raises(Refused, match="read-only"):
        service.play([Ask("a", [1.0])]).result()
    service.close()


def test_a_damaged_file_is_said_to_be_damaged_and_left_alone(tmp_path, policy_file):
    opened(tmp_path, policy_file).close()
    path = tmp_path / "streams.db"
    whole = path.read_bytes()
    path.write_bytes(b"not a database at all" + whole[21:])
    damaged = path.read_bytes()
    service = Service(Store(f"sqlite:///{path}"))
    assert "damaged" in service.unready()[0]
    with pytest.raises(Refused, match="damaged"):
        service.stream("a")
    assert path.read_bytes() == damaged
    path.write_bytes(whole)
    assert service.unready() == []
    assert service.stream("a")["steps"] == 0
    service.close()


def test_a_clock_that_is_set_back_is_told_and_times_do_not_go_back(service, monkeypatch):
    (before,) = answered(service, Ask("a", [1.0]))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    (after,) = answered(service, Ask("a", [2.0]))
    assert after["at"] >= before["at"]
    assert "clock" in service.unready()[0]
    monkeypatch.undo()
    assert service.unready() == []


def test_a_policy_that_no_longer_loads_stops_its_own_streams_only(tmp_path, policy_file):
    first = opened(tmp_path, policy_file)
    first.put_policy("twin", policy_file.read_bytes())
    first.put_stream("b", "twin", [0.0], None)
    first.close()
    with sa.create_engine(f"sqlite:///{tmp_path / 'streams.db'}").begin() as connection:
        connection.execute(sa.text("UPDATE policies SET file = substr(file, 1, 100) WHERE name = 'small'"))
    service = Service(Store(f"sqlite:///{tmp_path / 'streams.db'}"))
    service.warm()
    assert "small" in service.unready()[0]
    bad, good = service.play([Ask("a", [1.0]), Ask("b", [1.0])]).result()
    assert isinstance(bad, Refused)
    assert bad.status == 503
    assert json.loads(good.text)["step"] == 1
    assert [policy["trouble"] is None for policy in service.policies()] == [False, True]
    service.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://x/y", "nonsense"])
def test_a_store_that_would_not_last_is_refused(url):
    with pytest.raises(ValueError):
        Store(url)


def test_what_databases_say_is_told_without_the_machine():
    said = store.in_words(Exception("connection to server at /var/run/secret failed: Connection refused"))
    assert said == "the database does not answer"


def test_a_store_that_lacks_a_new_column_is_given_it_and_keeps_its_steps(tmp_path, policy_file):
    service = opened(tmp_path, policy_file)
    before = answered(service, Ask("a", [1.5]))
    with service.store.writing() as connection:
        connection.execute(sa.text("ALTER TABLE steps DROP COLUMN unconverged"))
    service.close()
    again = Service(Store(f"sqlite:///{tmp_path / 'streams.db'}"))
    assert again.unready() == []
    assert again.steps("a") == before
    assert answered(again, Ask("a", [2.5]))[0]["unconverged"] is False
    again.close()


def test_a_store_of_another_version_is_refused_and_left_alone(tmp_path, policy_file):
    service = opened(tmp_path, policy_file)
    answered(service, Ask("a", [1.5]))
    with service.store.writing() as connection:
        connection.execute(sa.text("UPDATE ecl2o_store SET version = version - 1"))
    service.close()
    file = tmp_path / "streams.db"
    before = file.read_bytes()
    again = Service(Store(f"sqlite:///{file}"))
    assert any("another version" in reason for reason in again.unready())
    again.close()
    assert file.read_bytes() == before
