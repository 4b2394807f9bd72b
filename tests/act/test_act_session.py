"""State files of `act`: on disk before the answer, restored after a disk error, rejected if forged."""

import datetime
import functools
import os
import tomllib
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from packaging.requirements import Requirement

import ecl2o as ec
from ecl2o.act import ActSession, LineReader, ParsedLine, lock_state
from ecl2o.exceptions import NotAnsweredError
from ecl2o.policy import Contract

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=2.0, dim=1))
CONTRACTS = {
    "no times": Contract(context_dim=1),
    "hours": Contract(context_dim=1, step_minutes=60.0, steps_per_day=24),
    "screened hours": Contract(context_dim=1, step_minutes=60.0, steps_per_day=24, plausible=[(-1e3, 1e3)]),
}
POLICIES = {name: ec.Policy(ec.Greedy(), PROBLEM, contract=contract) for name, contract in CONTRACTS.items()}
POLICY = POLICIES["no times"]
CONTEXTS = [[3.0], [4.0], [-1.0]]


@pytest.fixture
def events(monkeypatch) -> list[tuple]:
    """What reaches the disk, in order: (fsync, path, bytes of a file), (replace, from, to) and (unlink, path)."""
    found: list[tuple] = []
    fsync, replace, unlink = os.fsync, os.replace, os.unlink

    def record_fsync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)
        found.append(("fsync", path, path.read_bytes() if path.is_file() else None))

    def record_replace(source, target):
        replace(source, target)
        found.append(("replace", Path(source), Path(target)))

    def record_unlink(path, *arguments, **options):
        unlink(path, *arguments, **options)
        found.append(("unlink", Path(path)))

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    monkeypatch.setattr(os, "unlink", record_unlink)
    return found


def fail(answer):
    raise NotAnsweredError("closed")


def test_the_state_and_its_name_are_on_disk_before_an_answer(tmp_path, events):
    state = tmp_path / "run.state"
    session = ActSession(POLICY, state, x0=[0.0])
    for context in CONTEXTS:
        events.clear()
        at_answer: list[tuple] = []
        session.answer(ParsedLine(context), lambda answer, at=at_answer: at.extend([*events, state.read_bytes()]))
        (flushed, renamed, flushed_folder), saved = at_answer[:3], at_answer[3]
        unfinished = renamed[1]
        assert flushed == ("fsync", unfinished, saved)
        assert renamed == ("replace", unfinished, state)
        assert flushed_folder == ("fsync", tmp_path, None)
        assert len(events) == 3


def test_an_undone_first_step_is_removed_from_disk(tmp_path, events):
    state = tmp_path / "run.state"
    with pytest.raises(NotAnsweredError, match="step 1"):
        ActSession(POLICY, state, x0=[0.0]).answer(ParsedLine([3.0]), fail)
    assert events[-2:] == [("unlink", state), ("fsync", tmp_path, None)]


def test_a_saved_policy_is_on_disk(tmp_path, events):
    ec.save(tmp_path / "policy.ecl2o", POLICY)
    assert [event[:2] for event in events[1:]] == [("replace", events[0][1]), ("fsync", tmp_path)]
    assert events[0] == ("fsync", events[1][1], (tmp_path / "policy.ecl2o").read_bytes())


def test_what_a_killed_process_renamed_is_flushed_before_its_step_is_answered_again(tmp_path, events):
    (tmp_path / ".run.state.0a1b2c3d.unfinished").write_bytes(b"half")
    with lock_state(tmp_path / "run.state"):
        assert events == [("unlink", tmp_path / ".run.state.0a1b2c3d.unfinished"), ("fsync", tmp_path, None)]


@pytest.mark.parametrize("first", [True, False], ids=["first step", "later step"])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_flush_that_fails_loses_no_step_and_plays_none_twice(tmp_path, monkeypatch, first, lasting, number):
    state, answers, calls, fsync = tmp_path / "run.state", [], [], os.fsync
    session = ActSession(POLICY, state, x0=[0.0])
    if not first:
        session.answer(ParsedLine(CONTEXTS[0]), answers.append)
    saved, steps = state.read_bytes() if state.exists() else None, session.steps

    def fail_on_call(descriptor):
        calls.append(descriptor)
        if len(calls) == number or (lasting and len(calls) > number):
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail_on_call)
        with pytest.raises(OSError, match=r"run\.state") as failed:
            session.answer(ParsedLine(CONTEXTS[steps]), answers.append)
    assert session.steps == len(answers) == steps
    in_doubt = isinstance(failed.value, NotAnsweredError)
    assert in_doubt == (number == 2 and lasting)  # renamed, and then neither flushed nor put back
    if not in_doubt:
        assert (state.read_bytes() if state.exists() else None) == saved
    resumed = ActSession(POLICY, state, x0=[0.0])
    for number, context in enumerate(CONTEXTS[steps:], start=steps + 1):  # as the message says: with its number
        resumed.answer(ParsedLine(context, step=number), answers.append)
    expected = ec.Runner(POLICY, [0.0])
    assert [answer.action for answer in answers] == [expected.step(context).tolist() for context in CONTEXTS]


def test_any_failure_of_writing_puts_the_state_back(tmp_path):
    state = tmp_path / "run.state"
    session = ActSession(POLICY, state, x0=[0.0])
    session.answer(ParsedLine([3.0]), lambda answer: None)
    before = state.read_bytes()
    with pytest.raises(RuntimeError, match="not an OSError"):
        session.answer(ParsedLine([4.0]), lambda answer: (_ for _ in ()).throw(RuntimeError("not an OSError")))
    assert state.read_bytes() == before
    assert session.steps == 1


# --- the lock -------------------------------------------------------------------------------------------------------


def test_a_lock_that_is_a_link_is_neither_followed_nor_emptied(tmp_path):
    precious, lock = tmp_path / "precious", tmp_path / ".run.state.lock"
    precious.write_text("kept")
    lock.symlink_to(precious)
    with pytest.raises(ValueError, match=r"\.run\.state\.lock.*symbolic link"), lock_state(tmp_path / "run.state"):
        pass
    lock.unlink()
    lock.symlink_to(tmp_path / "missing")
    with pytest.raises(ValueError, match="symbolic link"), lock_state(tmp_path / "run.state"):
        pass
    lock.unlink()
    os.link(precious, lock)
    with lock_state(tmp_path / "run.state"):
        pass
    assert precious.read_text() == "kept"
    assert not (tmp_path / "missing").exists()


def test_versions_of_filelock_that_empty_files_are_not_installed():
    """Up to 3.20.0 it followed links, and up to 4.2.0 it emptied a file that was renamed or linked to the lock's name."""
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    needed = next(each for each in map(Requirement, settings["project"]["dependencies"]) if each.name == "filelock")
    assert [version in needed.specifier for version in ("3.16", "3.20.3", "4.2.0", "4.2.10")] == [
        False,
        False,
        False,
        True,
    ]


# --- states that no run has written ---------------------------------------------------------------------------------


@functools.cache
def played(name: str, steps: int) -> ec.Runner:
    runner = ec.Runner(POLICIES[name], [0.0])
    for context in CONTEXTS[:steps]:
        runner.step(context)
    return runner


@pytest.mark.parametrize(
    ("name", "notes", "place"),
    [
        ("no times", {"first": "2024-01-01T00:00", "last": "2024-01-01T02:00", "context": [1.0]}, "last"),
        ("hours", {"filled": -1}, "filled"),
        ("hours", {"filled": 2}, "filled"),
        ("hours", {"first": "2024-01-02T00:00", "last": "2024-01-01T00:00", "context": [1.0]}, "first and last"),
        ("hours", {"first": "2024-01-01T01:00+05:00", "last": "2024-01-01T01:00+09:00", "context": [1.0]}, "last"),
        ("hours", {"last": "2024-01-01T00:00", "context": [1.0]}, "first"),
        ("hours", {"first": "2024-01-01T00:00", "last": "2024-01-01T01:00"}, "context"),
        ("hours", {"context": [1.0, 2.0]}, "context"),
        ("hours", {"context": [float("nan")]}, "context"),
        ("hours", {"last": 1e300}, "last"),
    ],
)
def test_notes_that_no_run_has_written_are_named(tmp_path, name, notes, place):
    played(name, 2).save_state(tmp_path / "run.state", notes)
    with pytest.raises(ValueError, match=f"run\\.state .*{place}.*delete"):
        ActSession(POLICIES[name], tmp_path / "run.state")


def test_no_time_follows_the_last_of_all_times(tmp_path):
    session = ActSession(POLICIES["hours"], tmp_path / "run.state", x0=[0.0])
    session.answer(ParsedLine([1.0], time=datetime.datetime.max), lambda answer: None)
    saved = (tmp_path / "run.state").read_bytes()
    resumed = ActSession(POLICIES["hours"], tmp_path / "run.state")
    with pytest.raises(ValueError, match="9999"):
        resumed.answer(ParsedLine([1.0]), lambda answer: None)
    assert resumed.steps == 1
    assert (tmp_path / "run.state").read_bytes() == saved


TIMES = st.datetimes(timezones=st.one_of(st.none(), st.timezones(), st.just(datetime.timezone.max))).map(
    datetime.datetime.isoformat
)
SOON = st.integers(-3, 200).map(
    lambda hours: (datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=hours)).isoformat()
)
ANYTHING = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.floats(), max_size=2), TIMES
)


def mostly(usual: st.SearchStrategy) -> st.SearchStrategy:
    return st.integers(0, 9).flatmap(lambda digit: usual if digit else ANYTHING)


NOTES = st.fixed_dictionaries(
    {},
    optional={
        "filled": mostly(st.integers(-1, 3)),
        "first": mostly(st.one_of(SOON, TIMES)),
        "last": mostly(st.one_of(SOON, TIMES)),
        "context": mostly(st.lists(st.floats(-5, 5), min_size=1, max_size=2)),
    },
)


@hypothesis.settings(max_examples=100, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    name=st.sampled_from(sorted(POLICIES)), steps=st.integers(0, 3), notes=NOTES, time=st.one_of(st.none(), SOON, TIMES)
)
def test_any_notes_are_continued_or_refused(tmp_path_factory, name, steps, notes, time):
    """Whatever a state's notes are, a line is answered with the number after the last one, or there is a ValueError."""
    state = tmp_path_factory.getbasetemp() / "forged.state"
    played(name, steps).save_state(state, notes)
    saved = state.read_bytes()
    try:
        session = ActSession(POLICIES[name], state)
        before = session.steps
        assert 0 <= before <= steps
        line = LineReader(None, 1).read("1.5" if time is None else f"{time},1.5")
        answer = session.answer(line, lambda answer: None)
    except ValueError:
        assert state.read_bytes() == saved
        return
    assert answer.step in (before, before + 1)
    assert np.isfinite(answer.action).all()
    assert ActSession(POLICIES[name], state).steps == answer.step


@pytest.mark.parametrize(("hour", "told"), [(2, 0), (3, 1)])
def test_a_first_time_at_another_hour_than_assumed_is_told(hour, told):
    """Two lines without a time, after a history until 23:00, are of 0:00 and 1:00."""
    contract = Contract(context_dim=1, step_minutes=60.0, steps_per_day=24, history_steps=24)
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    notices = []
    session = ActSession(
        ec.Policy(ec.ROBD(), problem, contract=contract),
        history=np.ones((24, 1)),
        history_until="2024-01-01 23:00:00",
        notify=notices.append,
    )
    for time in (None, None, datetime.datetime(2024, 1, 2, hour), datetime.datetime(2024, 1, 2, hour + 1)):
        session.answer(ParsedLine([1.0], time=time), lambda answer: None)
    assert len([notice for notice in notices if "another hour" in notice]) == told
