"""Compiled programs of the service: cached between restarts, limited in size, compiled in the background."""

import functools
import logging
import threading
import time

import httpx2
import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import ecl2o as ec
from ecl2o.exceptions import InvalidRequestError, LoadingError
from ecl2o.policy import executable_cache
from ecl2o.service import Client, Service, Store, batched_stepper, policy_registry
from ecl2o.service.batched_stepper import BatchedStepper
from ecl2o.service.http import Access, make_app
from ecl2o.service.http.startup import answer_health_checks, bind
from ecl2o.service.models import StepRequest

PROBLEM = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of compiled programs, as of a service's user."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "programs"))
    (tmp_path / "programs").mkdir(mode=0o700)
    compilation_cache.reset_cache()
    monkeypatch.setattr(executable_cache, "_programs", {})
    yield tmp_path / "programs"
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


def play(stepper: BatchedStepper) -> list[bytes]:
    """Return the states of a stream over some steps."""
    states = [stepper.start(np.zeros(1), np.zeros((0, 1)))]
    for context in (1.0, -2.0, 0.3):
        states.append(stepper.step(states[-1:], [[context]])[0].state)
    return states


def forget_programs() -> None:
    """Leave what a new process would find: the files."""
    executable_cache._programs.clear()


def fail_on_trace(*_):
    raise AssertionError("a program was traced")


@pytest.mark.parametrize("with_expert", [True, False])
def test_kept_programs_give_the_same_bits_without_a_trace(folder, monkeypatch, with_expert):
    switching = ec.Mahalanobis.isotropic(alpha=3.0, dim=1) if with_expert else ec.LinearSwitching(3.0)
    policy = ec.Policy(ec.HittingMinimizer(), ec.Problem(ec.SquaredTracking(), switching))
    compiled = play(BatchedStepper(policy, 1, 1, 0))
    forget_programs()
    with monkeypatch.context() as patch:
        patch.setattr(executable_cache, "compile_stepper", fail_on_trace)
        assert play(BatchedStepper(policy, 1, 1, 0)) == compiled
    forget_programs()
    damaged = [path for path in folder.iterdir() if "ecl2o-run" in path.name]
    assert len(damaged) == 3
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-1])
    assert play(BatchedStepper(policy, 1, 1, 0)) == compiled
    forget_programs()
    monkeypatch.setattr(executable_cache, "compile_stepper", fail_on_trace)  # the damaged files were made again
    assert play(BatchedStepper(policy, 1, 1, 0)) == compiled


def test_programs_are_found_while_another_thread_compiles(folder):
    policy = ec.Policy(ec.HittingMinimizer(), PROBLEM)
    with executable_cache._without_jax_cache():
        with executable_cache._without_jax_cache():
            BatchedStepper(policy, 1, 1, 0)
        assert not jax.config.jax_enable_compilation_cache
    assert jax.config.jax_enable_compilation_cache
    assert len([path for path in folder.iterdir() if path.name.startswith("ecl2o-run")]) == 3


def test_policies_of_one_structure_share_a_program(folder):
    for ratio in (1.6, 2.5):
        BatchedStepper(ec.Policy(ec.Competitive(ec.HittingMinimizer(), ratio=ratio), PROBLEM), 1, 1, 0)
    assert len([path for path in folder.iterdir() if path.name.startswith("ecl2o-run")]) == 3


# Limits


def nest(agent: ec.AbstractAgent, wrap, depth: int) -> ec.AbstractAgent:
    return functools.reduce(lambda inside, _: wrap(inside), range(depth), agent)


HOSTILE = {
    "agents inside each other": nest(ec.HittingMinimizer(), lambda agent: ec.Competitive(agent, ratio=3.0), 16),
    "operations": ec.Guarded(ec.Guarded(ec.ROBD()), ec.Guarded(ec.ROBD())),
    "parts": nest(ec.ROBD(), lambda agent: ec.Guarded(agent, agent), 7),
}


@pytest.fixture
def service(tmp_path, policy_bytes):
    """A service with the policy `small`, and its stream `a`."""
    service = Service(Store(f"sqlite:///{tmp_path / 'streams.db'}"))
    service.put_policy("small", policy_bytes)
    service.create_stream("a", "small", [0.0])
    yield service
    service.close()


def pack_policy(folder, agent: ec.AbstractAgent) -> bytes:
    ec.save(folder / "packed", ec.Policy(agent, PROBLEM))
    return (folder / "packed").read_bytes()


@pytest.mark.parametrize("what", HOSTILE)
def test_a_policy_that_compiles_for_minutes_is_rejected_at_upload(service, tmp_path, monkeypatch, what):
    monkeypatch.setattr(policy_registry, "BatchedStepper", fail_on_trace)
    monkeypatch.setattr(batched_stepper, "MAX_EQUATIONS", 800)  # as many as are allowed take too long under beartype
    with pytest.raises(InvalidRequestError, match=rf"has \d+ {what}, and at most \d+ are allowed"):
        service.put_policy("hostile", pack_policy(tmp_path, HOSTILE[what]))
    assert [policy.name for policy in service.list_policies()] == ["small"]


def test_regressions_with_covariates_behind_a_guard_are_small_enough(tmp_path):
    """As `fit` makes them: five regressions, two of which see a covariate and two forecasts."""
    problem = ec.Problem(ec.SquaredTracking(covariates=3), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    regressions = ec.advisors.Mixture.of_regressions(24, 7, (None, 1, 2))
    policy = ec.Policy(ec.Competitive(regressions, ratio=2.0), problem, history=np.ones((96, 4)))
    ec.save(tmp_path / "fitted", policy)
    read = policy_registry.read_policy("fitted", (tmp_path / "fitted").read_bytes())
    policy_registry.check_program(read)


def test_a_program_that_is_too_large_for_a_stream_is_rejected_before_it_is_compiled(service, monkeypatch):
    """At creation R-OBD, as a reference, and the stream's history belong to it."""
    monkeypatch.setattr(policy_registry, "BatchedStepper", BatchedStepper)
    monkeypatch.setattr(batched_stepper, "MAX_EQUATIONS", 100)
    monkeypatch.setattr(executable_cache, "cache_function", fail_on_trace)
    with pytest.raises(InvalidRequestError, match="at most 100"):
        service.create_stream("b", "small", [0.0], [[1.0]] * 3)


# Compilation in the background


@pytest.fixture
def slow(monkeypatch):
    """Compile steppers with a history only when the event that it gives is set."""
    make, release = policy_registry.BatchedStepper, threading.Event()

    def compile_slowly(policy, dim, context_dim, history):
        assert threading.current_thread().name.startswith("ecl2o-compile")
        if history:
            assert release.wait(60)
        return make(policy, dim, context_dim, history)

    monkeypatch.setattr(policy_registry, "BatchedStepper", compile_slowly)
    monkeypatch.setattr("ecl2o.service.http.api._LOADING_SECONDS", 0.2)
    yield release
    release.set()


def test_a_slow_compilation_blocks_nobody_else(slow, tmp_path, policy_bytes, running_app):
    app = make_app(Store(f"sqlite:///{tmp_path / 'streams.db'}"), Access(), {"small": policy_bytes})
    with running_app(app) as url, httpx2.Client(base_url=url, timeout=120) as client:
        client.put("/streams/a", json={"policy": "small", "x0": [0.0]}).raise_for_status()
        made, answers = {"policy": "small", "x0": [0.0], "history": [[1.0]]}, []

        def create(number: int) -> None:
            answers.append(client.put(f"/streams/slow-{number}", json=made))

        waiting = [threading.Thread(target=create, args=(number,)) for number in range(20)]
        for thread in waiting:
            thread.start()
        wait_for(lambda: len(answers) == 16)  # four wait, and leave threads to other requests
        for answer in answers:
            assert (answer.status_code, "'small' is being compiled" in answer.text) == (503, True)
        for number in range(1, 4):
            answer = client.post("/streams/a/steps", json={"step": number, "context": [1.0]})
            assert answer.raise_for_status().json()["step"] == number
        assert client.get("/readyz").status_code == 200
        slow.set()
        for thread in waiting:
            thread.join(60)
        assert sorted(answer.status_code for answer in answers) == [201] * 4 + [503] * 16
        assert client.put("/streams/slow", json=made).status_code == 201
        assert client.post("/streams/slow/steps", json={"context": [1.0]}).status_code == 200


def test_a_request_waits_for_a_compilation_only_for_some_time(slow, service, monkeypatch):
    monkeypatch.setattr(policy_registry, "_WAIT_SECONDS", 0.05)
    with pytest.raises(LoadingError, match="'small' is being compiled"):
        service.create_stream("slow", "small", [0.0], [[1.0]])


def test_loading_is_reported_and_loaded_streams_are_served(slow, tmp_path, policy_bytes, running_app, caplog):
    caplog.set_level(logging.INFO, logger="ecl2o.serve")
    store = f"sqlite:///{tmp_path / 'streams.db'}"
    slow.set()
    service = Service(Store(store))
    for name in ("small", "unused"):
        service.put_policy(name, policy_bytes)
    for length in range(2):
        service.create_stream(f"length-{length}", "small", [0.0], [[1.0]] * length or None)
    service.close()
    slow.clear()
    with running_app(make_app(Store(store), Access())) as url, httpx2.Client(base_url=url, timeout=30) as client:
        wait_for(lambda: "2 of 3" in client.get("/readyz").text)
        loading = client.get("/readyz")
        assert (loading.status_code, loading.json()["ready"]) == (503, False)
        assert client.get("/healthz").status_code == 200
        steps = {f"length-{length}": [1.0] for length in range(2)}
        found = client.post("/steps", json=steps).json()
        assert (list(found["answered"]), list(found["refused"])) == (["length-0"], ["length-1"])
        refused = found["refused"]["length-1"]
        assert (refused["status"], "2 of 3" in refused["detail"]) == (503, True)
        slow.set()
        with Client(url) as patient:
            answered = patient.steps({stream: [2.0] for stream in steps})
        assert set(answered) == set(steps)
        wait_for(lambda: client.get("/readyz").status_code == 200)
    assert [record.getMessage().partition(" in ")[0] for record in caplog.records if "programs" in record.message] == [
        "loading 3 policies and programs",
        "loaded 3 policies and programs",
    ]


def wait_for(condition) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_step_never_compiles_in_the_writer(slow, service, tmp_path):
    slow.set()
    service.create_stream("b", "small", [0.0], [[1.0]])
    slow.clear()
    other = Service(Store(f"sqlite:///{tmp_path / 'streams.db'}"))  # as a service that did not create the stream
    for _ in range(3):
        (refused,) = other.submit_steps([StepRequest("b", [1.0], 1)]).result(30)
        assert isinstance(refused, LoadingError)
    slow.set()
    refused.ready.result(30)
    (made,) = other.submit_steps([StepRequest("b", [1.0], 1)]).result(30)
    assert made.record.step == 1
    other.close()


def test_a_restart_with_200_streams_compiles_nothing(folder, tmp_path, policy_bytes, monkeypatch):
    """Two policies of one structure and two history lengths: two programs, each read once."""
    monkeypatch.setattr(policy_registry, "BatchedStepper", BatchedStepper)
    service = Service(Store(f"sqlite:///{tmp_path / 'streams.db'}"))
    for name in ("small", "twin"):
        service.put_policy(name, policy_bytes)
    streams = [f"stream-{number}" for number in range(200)]
    for number, stream in enumerate(streams):
        service.create_stream(stream, ("small", "twin")[number % 2], [0.0], [[1.0]] * (number // 2 % 2) or None)
    before = [result.record for result in service.submit_steps([StepRequest(s, [2.0]) for s in streams]).result(60)]
    service.close()
    forget_programs()
    read, reads = executable_cache._read, []
    monkeypatch.setattr(executable_cache, "_read", lambda path: reads.append(path) or read(path))
    monkeypatch.setattr(executable_cache, "compile_stepper", fail_on_trace)
    again = Service(Store(f"sqlite:///{tmp_path / 'streams.db'}"))
    again.warm_up()
    assert again.list_failures() == []
    after = [result.record for result in again.submit_steps([StepRequest(s, [-1.0]) for s in streams]).result(60)]
    again.close()
    assert [record.step for record in before + after] == [1] * 200 + [2] * 200
    assert len({path.name for path in reads}) == 6  # of each program: its sizes, its start and its step


# Before the service is imported


def test_health_checks_are_answered_while_the_service_is_imported():
    with bind("127.0.0.1", 0) as bound, answer_health_checks(bound) as stop:
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        assert httpx2.get(f"{url}/healthz").json() == {"status": "alive"}
        readiness = httpx2.get(f"{url}/readyz")
        assert (readiness.status_code, readiness.json()["ready"]) == (503, False)
        assert "starting" in httpx2.post(f"{url}/streams/a/steps", json={"context": [1.0]}).json()["detail"]
        stop()
        waiting = threading.Thread(target=httpx2.get, args=(f"{url}/healthz",))
        waiting.start()  # the next server on this socket answers it
        with answer_health_checks(bound):
            waiting.join(30)
        assert not waiting.is_alive()
