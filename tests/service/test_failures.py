"""Failures around a service: errors and /readyz give the reason, no step is lost, and the service recovers."""

import contextlib
import re
import sqlite3
import subprocess
import time
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import event

from ecl2o.service import Store, policy_registry
from ecl2o.service.http import Access, make_app


@contextlib.contextmanager
def serve_store(running_app, store: str, policies: dict[str, bytes]):
    """Run a service on this store and give a client of it."""
    opened = Store(store)
    with running_app(make_app(opened, Access(), policies)) as url, httpx2.Client(base_url=url, timeout=60) as client:
        client.store = opened
        yield client


def create_streams(client: httpx2.Client, *streams: str) -> None:
    for stream in streams:
        client.put(f"/streams/{stream}", json={"policy": "small", "x0": [0.0]}).raise_for_status()


def step(client: httpx2.Client, number: int, stream: str = "a") -> httpx2.Response:
    context = [5.0 * (number % 3)]
    return client.post(f"/streams/{stream}/steps", json={"step": number, "context": context})


def run_steps(client: httpx2.Client, numbers: range) -> list[dict]:
    return [step(client, number).raise_for_status().json() for number in numbers]


def check_unavailable(answer: httpx2.Response, reason: str) -> None:
    """Check for 503 with the reason and nothing about the machine."""
    assert answer.status_code == 503, answer.text
    assert reason in answer.text
    assert not re.search(r"Traceback|sqlite|psycopg|sqlalchemy|SELECT|\.py|/tmp|/work|/root", answer.text), answer.text


def check_unready(client: httpx2.Client, reason: str) -> None:
    for _ in range(3):
        answer = client.get("/readyz")
        check_unavailable(answer, reason)
        assert answer.json()["ready"] is False
    assert "ecl2o_ready 0.0" in client.get("/metrics").text
    assert client.get("/healthz").status_code == 200


def check_recovered(client: httpx2.Client, answered: list[dict]) -> None:
    """Check that the service is ready, has every answered step, and executes the next one."""
    assert client.get("/readyz").json() == {"ready": True, "reasons": []}
    assert client.get("/streams/a/steps?limit=10000").json() == answered
    after = step(client, len(answered) + 1).raise_for_status().json()
    assert after["step"] == len(answered) + 1
    assert after["cost"] >= answered[-1]["cost"]


@pytest.fixture
def small_disk(tmp_path):
    """A separate file system of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here (that needs root)")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.integration
def test_a_full_disk(running_app, small_disk, policy_bytes):
    with serve_store(running_app, f"sqlite:///{small_disk / 'streams.db'}", {"small": policy_bytes}) as client:
        create_streams(client, "a")
        answered = run_steps(client, range(1, 6))
        ballast = small_disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as other:
            while True:
                other.write(bytes(4096))
        for number in range(6, 1000):  # the write-ahead log has a megabyte left
            answer = step(client, number)
            if answer.status_code != 200:
                break
            answered.append(answer.json())
        check_unavailable(answer, "the disk is full")
        check_unready(client, "the disk is full")
        check_unavailable(client.put("/streams/b", json={"policy": "small", "x0": [0.0]}), "the disk is full")
        check_unavailable(client.post("/steps", json={"a": [1.0]}), "the disk is full")
        assert client.get("/streams/a/steps?limit=10000").json() == answered  # reading still works
        page = client.get("/")
        assert page.status_code == 200
        assert "the disk is full" in page.text
        ballast.unlink()
        check_recovered(client, answered)


@pytest.mark.integration
def test_a_start_on_a_full_and_on_a_read_only_disk(running_app, small_disk, policy_bytes):
    store = f"sqlite:///{small_disk / 'streams.db'}"
    with serve_store(running_app, store, {"small": policy_bytes}) as client:
        create_streams(client, "a")
        answered = run_steps(client, range(1, 4))
    remount = ["mount", "-o"]
    subprocess.run([*remount, "remount,ro", small_disk], check=True)
    with serve_store(running_app, store, {"small": policy_bytes, "late": policy_bytes}) as client:
        check_unready(client, "it is read-only")
        check_unavailable(step(client, 4), "it is read-only")
        check_unavailable(client.get("/"), "it is read-only")
        subprocess.run([*remount, "remount,rw", small_disk], check=True)
        check_recovered(client, answered)
        policies = {policy["name"] for policy in client.get("/policies").json()}
        assert policies == {"late", "small"}  # "late" was added once the store was writable
        answered = client.get("/streams/a/steps").json()
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as other:
        while True:
            other.write(bytes(4096))
    with serve_store(running_app, store, {"small": policy_bytes}) as client:
        check_unready(client, "store cannot be used")
        check_unavailable(step(client, 5), "store cannot be used")
        (small_disk / "ballast").unlink()
        check_recovered(client, answered)


def test_a_store_that_becomes_read_only_can_be_read(running_app, tmp_path, policy_bytes):
    with serve_store(running_app, f"sqlite:///{tmp_path / 'streams.db'}", {"small": policy_bytes}) as client:
        create_streams(client, "a")
        answered = run_steps(client, range(1, 4))

        def forbid(connection, *_):
            connection.execute("PRAGMA query_only=ON")

        client.store.close()
        event.listen(client.store._writer, "connect", forbid)
        check_unavailable(step(client, 4), "it is read-only")
        check_unready(client, "it is read-only")
        check_unavailable(client.delete("/streams/a"), "it is read-only")
        assert client.get("/streams/a/steps").json() == answered
        assert client.get("/streams/a/action").json()["step"] == 3
        event.remove(client.store._writer, "connect", forbid)
        check_recovered(client, answered)


def test_damage_in_the_middle_of_the_file(running_app, tmp_path, policy_bytes):
    path, store = tmp_path / "streams.db", f"sqlite:///{tmp_path / 'streams.db'}"
    with serve_store(running_app, store, {"small": policy_bytes}) as client:
        create_streams(client, "a")
        answered = run_steps(client, range(1, 6))
    with contextlib.closing(sqlite3.connect(path)) as database:
        page = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'steps'").fetchone()[0]
        size = database.execute("PRAGMA page_size").fetchone()[0]
    sound = path.read_bytes()
    damaged = sound[: (page - 1) * size] + b"\xa5" * size + sound[page * size :]
    path.write_bytes(damaged)
    with serve_store(running_app, store, {"small": policy_bytes}) as client:
        assert client.get("/streams/a").json()["steps"] == 5  # this page of the file is intact
        for answer in (client.get("/streams/a/steps"), step(client, 6), client.get("/watch/a")):
            check_unavailable(answer, "damaged; restore it from a backup")
        check_unready(client, "damaged")
        client.store.close()
        for file in tmp_path.glob("streams.db*"):  # restore a backup
            file.unlink()
        path.write_bytes(sound)
        check_recovered(client, answered)


def test_a_restored_backup_is_continued(running_app, tmp_path, policy_bytes):
    """Cached states are not mixed with a restored store."""
    path = tmp_path / "streams.db"
    with serve_store(running_app, f"sqlite:///{path}", {"small": policy_bytes}) as client:
        create_streams(client, "a")
        run_steps(client, range(1, 3))
        with (
            contextlib.closing(sqlite3.connect(path)) as database,
            contextlib.closing(sqlite3.connect(tmp_path / "backup.db")) as backup,
        ):
            database.backup(backup)
        expected = run_steps(client, range(3, 6))
        client.store.close()
        client.store.failure = "damaged"
        for file in tmp_path.glob("streams.db*"):
            file.unlink()
        Path(tmp_path / "backup.db").rename(path)
        again = run_steps(client, range(3, 6))
        assert [answer | {"at": 0} for answer in again] == [answer | {"at": 0} for answer in expected]


def test_a_clock_set_back(running_app, tmp_path, policy_bytes, monkeypatch):
    with serve_store(running_app, f"sqlite:///{tmp_path / 'streams.db'}", {"small": policy_bytes}) as client:
        create_streams(client, "a")
        answered = run_steps(client, range(1, 3))
        now = time.time()
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: now - 3600)
            check_unready(client, "3600 s behind")
            answered += run_steps(client, range(3, 5))  # steps are ordered by their numbers
            assert [answer["at"] for answer in answered] == sorted(answer["at"] for answer in answered)
        check_recovered(client, answered)


def test_a_policy_that_cannot_be_loaded(running_app, tmp_path, policy_bytes):
    store = f"sqlite:///{tmp_path / 'streams.db'}"
    with serve_store(running_app, store, {"small": policy_bytes, "twin": policy_bytes}) as client:
        create_streams(client, "a")
        client.put("/streams/b", json={"policy": "twin", "x0": [0.0]}).raise_for_status()
        answered = run_steps(client, range(1, 4))
    with contextlib.closing(sqlite3.connect(tmp_path / "streams.db")) as database:
        database.execute("UPDATE policies SET file = substr(file, 1, 100) WHERE name = 'small'")
        database.commit()
    with serve_store(running_app, store, {}) as client:
        check_unready(client, "Policy 'small'")
        check_unavailable(step(client, 4), "'small' cannot be loaded")
        check_unavailable(client.get("/watch/a"), "cannot be loaded")
        assert step(client, 1, "b").status_code == 200  # other policies are not affected
        both = client.post("/steps", json={"a": [1.0], "b": [1.0]}).json()
        assert (set(both["answered"]), both["refused"]["a"]["status"]) == ({"b"}, 503)
        assert client.get("/streams/a/steps").json() == answered
        assert client.get("/").status_code == 200
        other = client.put("/policies/small", content=policy_bytes[:-1])
        assert other.status_code == 422
        assert client.put("/policies/small", content=policy_bytes).status_code == 200
        check_recovered(client, answered)
    with serve_store(running_app, store, {}) as client:
        assert client.get("/readyz").status_code == 200


def test_a_policy_that_cannot_be_compiled_stops_only_its_own_streams(running_app, tmp_path, policy_bytes, monkeypatch):
    store = f"sqlite:///{tmp_path / 'streams.db'}"
    with serve_store(running_app, store, {"small": policy_bytes, "twin": policy_bytes}) as client:
        create_streams(client, "a")
        client.put("/streams/b", json={"policy": "twin", "x0": [0.0]}).raise_for_status()
        answered = run_steps(client, range(1, 4))
    make = policy_registry.BatchedStepper

    def broken(policy, *sizes):
        raise MemoryError("/no/room")

    with monkeypatch.context() as patch:
        patch.setattr(policy_registry, "BatchedStepper", broken)
        with serve_store(running_app, store, {}) as client:
            check_unready(client, "Policy 'small'")
            check_unavailable(step(client, 4), "'small' cannot be compiled")
            patch.setattr(policy_registry, "BatchedStepper", make)
            check_unavailable(client.get("/readyz"), "'small'")  # retried by the next step
            answered.append(step(client, 4).raise_for_status().json())
            assert step(client, 1, "b").status_code == 200
            check_recovered(client, answered)
