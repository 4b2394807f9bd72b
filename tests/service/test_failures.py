"""What goes wrong around a service: it says so in words, /readyz is false with the reason, nothing is lost, and it recovers."""

import contextlib
import re
import sqlite3
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from sqlalchemy import event

from ecl2o.service import Store, policy_registry
from ecl2o.service.http import Access, make_app


@contextlib.contextmanager
def served(running_app, store: str, policies: dict[str, bytes]):
    """A client of a service on this store."""
    opened = Store(store)
    with running_app(make_app(opened, Access(), policies)) as url, httpx.Client(base_url=url, timeout=60) as client:
        client.store = opened
        yield client


def made(client: httpx.Client, *streams: str) -> None:
    for stream in streams:
        client.put(f"/streams/{stream}", json={"policy": "small", "x0": [0.0]}).raise_for_status()


def step(client: httpx.Client, number: int, stream: str = "a") -> httpx.Response:
    context = [5.0 * (number % 3)]
    return client.post(f"/streams/{stream}/steps", json={"step": number, "context": context})


def stepped(client: httpx.Client, numbers: range) -> list[dict]:
    return [step(client, number).raise_for_status().json() for number in numbers]


def check_told(answer: httpx.Response, words: str) -> None:
    """Refused for now, with the reason and nothing about the machine."""
    assert answer.status_code == 503, answer.text
    assert words in answer.text
    assert not re.search(r"Traceback|sqlite|psycopg|sqlalchemy|SELECT|\.py|/tmp|/work|/root", answer.text), answer.text


def check_unready(client: httpx.Client, words: str) -> None:
    for _ in range(3):  # and it stays so
        answer = client.get("/readyz")
        check_told(answer, words)
        assert answer.json()["ready"] is False
    assert "ecl2o_ready 0.0" in client.get("/metrics").text
    assert client.get("/healthz").status_code == 200


def check_whole(client: httpx.Client, answered: list[dict]) -> None:
    """Ready again, every answered step is there, and the next one follows."""
    assert client.get("/readyz").json() == {"ready": True, "reasons": []}
    assert client.get("/streams/a/steps?limit=10000").json() == answered
    after = step(client, len(answered) + 1).raise_for_status().json()
    assert after["step"] == len(answered) + 1
    assert after["cost"] >= answered[-1]["cost"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here (that needs root)")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk(running_app, small_disk, policy_bytes):
    with served(running_app, f"sqlite:///{small_disk / 'streams.db'}", {"small": policy_bytes}) as client:
        made(client, "a")
        answered = stepped(client, range(1, 6))
        ballast = small_disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as other:
            while True:
                other.write(bytes(4096))
        for number in range(6, 1000):  # the log has a megabyte to itself, which is used first
            answer = step(client, number)
            if answer.status_code != 200:
                break
            answered.append(answer.json())
        check_told(answer, "the disk is full")
        check_unready(client, "the disk is full")
        check_told(client.put("/streams/b", json={"policy": "small", "x0": [0.0]}), "the disk is full")
        check_told(client.post("/steps", json={"a": [1.0]}), "the disk is full")
        assert client.get("/streams/a/steps?limit=10000").json() == answered  # what is there can be read
        page = client.get("/")
        assert page.status_code == 200
        assert "the disk is full" in page.text
        ballast.unlink()
        check_whole(client, answered)


def test_a_start_on_a_full_and_on_a_read_only_disk(running_app, small_disk, policy_bytes):
    store = f"sqlite:///{small_disk / 'streams.db'}"
    with served(running_app, store, {"small": policy_bytes}) as client:
        made(client, "a")
        answered = stepped(client, range(1, 4))
    remount = ["mount", "-o"]
    subprocess.run([*remount, "remount,ro", small_disk], check=True)
    with served(running_app, store, {"small": policy_bytes, "late": policy_bytes}) as client:
        check_unready(client, "it is read-only")
        check_told(step(client, 4), "it is read-only")
        check_told(client.get("/"), "it is read-only")
        subprocess.run([*remount, "remount,rw", small_disk], check=True)
        check_whole(client, answered)
        assert {"late", "small"} == {
            policy["name"] for policy in client.get("/policies").json()
        }  # brought when it could be
        answered = client.get("/streams/a/steps").json()
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as other:
        while True:
            other.write(bytes(4096))
    with served(running_app, store, {"small": policy_bytes}) as client:
        check_unready(client, "the store cannot be used")
        check_told(step(client, 5), "the store cannot be used")
        (small_disk / "ballast").unlink()
        check_whole(client, answered)


def test_a_store_that_becomes_read_only_can_be_read(running_app, tmp_path, policy_bytes):
    with served(running_app, f"sqlite:///{tmp_path / 'streams.db'}", {"small": policy_bytes}) as client:
        made(client, "a")
        answered = stepped(client, range(1, 4))

        def forbid(connection, *_):
            connection.execute("PRAGMA query_only=ON")

        client.store.close()
        event.listen(client.store._writer, "connect", forbid)
        check_told(step(client, 4), "it is read-only")
        check_unready(client, "it is read-only")
        check_told(client.delete("/streams/a"), "it is read-only")
        assert client.get("/streams/a/steps").json() == answered
        assert client.get("/streams/a/action").json()["step"] == 3
        event.remove(client.store._writer, "connect", forbid)
        check_whole(client, answered)


def test_damage_in_the_middle_of_the_file(running_app, tmp_path, policy_bytes):
    path, store = tmp_path / "streams.db", f"sqlite:///{tmp_path / 'streams.db'}"
    with served(running_app, store, {"small": policy_bytes}) as client:
        made(client, "a")
        answered = stepped(client, range(1, 6))
    with contextlib.closing(sqlite3.connect(path)) as database:
        page = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'steps'").fetchone()[0]
        size = database.execute("PRAGMA page_size").fetchone()[0]
    sound = path.read_bytes()
    damaged = sound[: (page - 1) * size] + b"\xa5" * size + sound[page * size :]
    path.write_bytes(damaged)
    with served(running_app, store, {"small": policy_bytes}) as client:
        assert client.get("/streams/a").json()["steps"] == 5  # this page is sound
        for answer in (client.get("/streams/a/steps"), step(client, 6), client.get("/watch/a")):
            check_told(answer, "damaged; restore it from a backup")
        check_unready(client, "damaged")
        client.store.close()
        for file in tmp_path.glob("streams.db*"):  # a backup is brought back
            file.unlink()
        path.write_bytes(sound)
        check_whole(client, answered)


def test_a_backup_of_earlier_is_gone_on_from(running_app, tmp_path, policy_bytes):
    """What this process remembers of a stream is not mixed with a store that was taken back."""
    path = tmp_path / "streams.db"
    with served(running_app, f"sqlite:///{path}", {"small": policy_bytes}) as client:
        made(client, "a")
        stepped(client, range(1, 3))
        with (
            contextlib.closing(sqlite3.connect(path)) as database,
            contextlib.closing(sqlite3.connect(tmp_path / "backup.db")) as backup,
        ):
            database.backup(backup)
        expected = stepped(client, range(3, 6))
        client.store.close()
        client.store.trouble = "damaged"
        for file in tmp_path.glob("streams.db*"):
            file.unlink()
        Path(tmp_path / "backup.db").rename(path)
        again = stepped(client, range(3, 6))
        assert [answer | {"at": 0} for answer in again] == [answer | {"at": 0} for answer in expected]


def test_a_clock_that_goes_back(running_app, tmp_path, policy_bytes, monkeypatch):
    with served(running_app, f"sqlite:///{tmp_path / 'streams.db'}", {"small": policy_bytes}) as client:
        made(client, "a")
        answered = stepped(client, range(1, 3))
        now = time.time()
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: now - 3600)
            check_unready(client, "the clock is 3600 s behind")
            answered += stepped(client, range(3, 5))  # steps are ordered by their numbers
            assert [answer["at"] for answer in answered] == sorted(answer["at"] for answer in answered)
        check_whole(client, answered)


def test_a_policy_that_no_longer_loads(running_app, tmp_path, policy_bytes):
    store = f"sqlite:///{tmp_path / 'streams.db'}"
    with served(running_app, store, {"small": policy_bytes, "twin": policy_bytes}) as client:
        made(client, "a")
        client.put("/streams/b", json={"policy": "twin", "x0": [0.0]}).raise_for_status()
        answered = stepped(client, range(1, 4))
    with contextlib.closing(sqlite3.connect(tmp_path / "streams.db")) as database:
        database.execute("UPDATE policies SET file = substr(file, 1, 100) WHERE name = 'small'")
        database.commit()
    with served(running_app, store, {}) as client:
        check_unready(client, "policy 'small': its copy in the store is damaged; bring the file again")
        check_told(step(client, 4), "can no longer be read")
        check_told(client.get("/watch/a"), "can no longer be read")
        assert step(client, 1, "b").status_code == 200  # others go on
        both = client.post("/steps", json={"a": [1.0], "b": [1.0]}).json()
        assert (set(both["answered"]), both["refused"]["a"]["status"]) == ({"b"}, 503)
        assert client.get("/streams/a/steps").json() == answered
        assert client.get("/").status_code == 200
        other = client.put("/policies/small", content=policy_bytes[:-1])
        assert other.status_code == 422
        assert client.put("/policies/small", content=policy_bytes).status_code == 200
        check_whole(client, answered)
    with served(running_app, store, {}) as client:
        assert client.get("/readyz").status_code == 200


def test_a_program_that_fails_stops_its_own_streams_only(running_app, tmp_path, policy_bytes, monkeypatch):
    store = f"sqlite:///{tmp_path / 'streams.db'}"
    with served(running_app, store, {"small": policy_bytes, "twin": policy_bytes}) as client:
        made(client, "a")
        client.put("/streams/b", json={"policy": "twin", "x0": [0.0]}).raise_for_status()
        answered = stepped(client, range(1, 4))
    make = policy_registry.Lanes

    def broken(policy, *sizes):
        raise MemoryError("/no/room")

    with monkeypatch.context() as patch:
        patch.setattr(policy_registry, "Lanes", broken)
        with served(running_app, store, {}) as client:
            check_unready(client, "policy 'small': its program cannot be made")
            check_told(step(client, 4), "the program of the policy 'small' cannot be made")
            patch.setattr(policy_registry, "Lanes", make)
            check_told(client.get("/readyz"), "its program cannot be made")  # tried again when it is asked for
            answered.append(step(client, 4).raise_for_status().json())
            assert step(client, 1, "b").status_code == 200
            check_whole(client, answered)
