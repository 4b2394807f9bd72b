"""The database lies: it returns to an earlier state, is replaced, does not answer, or breaks a connection during a commit."""

import contextlib
import dataclasses
import os
import shutil
import socket
import sqlite3
import threading
import time
from concurrent.futures import wait

import httpx2
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import event

import ecl2o as ec
from ecl2o.exceptions import InDoubtError, InvalidRequestError, LoadingError, NotFoundError, UnavailableError
from ecl2o.service import Client, Service, Store, queries, store
from ecl2o.service.http import Access, make_app
from ecl2o.service.models import StepRecord, StepRequest


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def store_url(request, tmp_path) -> str:
    return (
        f"sqlite:///{tmp_path / 'streams.db'}" if request.param == "sqlite" else request.getfixturevalue("postgresql")
    )


@pytest.fixture
def open_service(policy_bytes):
    """`open_service(url)` gives a service with the policy `small`; all are closed after the test."""
    services = []

    def open_service(url: str) -> Service:
        services.append(Service(Store(url)))
        services[-1].put_policy("small", policy_bytes)
        return services[-1]

    yield open_service
    for service in services:
        service.close()


@pytest.fixture
def admin(store_url):
    """Another program's engine on the same database."""
    engine = sa.create_engine(store_url)
    yield engine
    engine.dispose()


def run_step(service: Service, stream: str, number: int, context: float) -> StepRecord:
    (result,) = service.submit_steps([StepRequest(stream, [context], number)]).result(30)
    if isinstance(result, LoadingError):  # another service has created the stream
        result.ready.result(30)
        return run_step(service, stream, number, context)
    if isinstance(result, Exception):
        raise result
    return result.record


def without_time(records: list[StepRecord]) -> list[StepRecord]:
    return [dataclasses.replace(record, at=0.0) for record in records]


# A database that returns to an earlier state


def test_a_state_of_a_lost_history_is_not_used(store_url, admin, open_service):
    """Another service has continued a restored database: the number of steps fits, the state does not."""
    first, second = open_service(store_url), open_service(store_url)
    for stream in ("lost", "true"):
        first.create_stream(stream, "small", [0.0])
    for number in range(1, 6):
        for stream in ("lost", "true"):
            run_step(first, stream, number, float(number % 3))
    with admin.begin() as connection:
        backup = connection.execute(sa.text("SELECT * FROM streams WHERE id = 'lost'")).mappings().one()
    for number in range(6, 11):
        run_step(first, "lost", number, 30.0)
    with admin.begin() as connection:  # restore the backup
        connection.execute(sa.text("DELETE FROM steps WHERE stream = :key AND step > 5"), dict(backup))
        columns = ", ".join(f"{name} = :{name}" for name in backup)
        connection.execute(sa.text(f"UPDATE streams SET {columns} WHERE key = :key"), dict(backup))
    for number in range(6, 11):
        for stream in ("lost", "true"):
            run_step(second, stream, number, 5.0 * (number % 2))
    records = [run_step(first, stream, 11, 4.0) for stream in ("lost", "true")]
    assert without_time(records[:1]) == without_time(records[1:])
    assert without_time(first.list_steps("lost")) == without_time(first.list_steps("true"))


def test_a_policy_of_a_lost_history_is_not_used(store_url, admin, open_service, tmp_path):
    """After a restore, another service has stored another policy under the name of a lost one."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=3.0, dim=1))
    files = []
    for number, agent in enumerate((ec.HittingMinimizer(), ec.Greedy())):
        ec.save(tmp_path / str(number), ec.Policy(agent, problem))
        files.append((tmp_path / str(number)).read_bytes())
    first, second = open_service(store_url), open_service(store_url)
    first.put_policy("moved", files[0])
    first.create_stream("kept-policy", "moved", [0.0])
    assert run_step(first, "kept-policy", 1, 4.0).action == [4.0]
    first.delete_stream("kept-policy")
    with admin.begin() as connection:  # restore a backup without the policy
        connection.execute(sa.text("DELETE FROM policies WHERE name = 'moved'"))
    with pytest.raises(InvalidRequestError):
        first.create_stream("moved-policy", "moved", [0.0])
    with pytest.raises(NotFoundError):
        first.get_policy("moved")
    second.put_policy("moved", files[1])
    second.create_stream("moved-policy", "moved", [0.0])
    assert run_step(first, "moved-policy", 1, 4.0).action == [1.0]
    assert run_step(second, "moved-policy", 2, 4.0).step == 2
    assert first.get_policy("moved").describe()["agent"] == "Greedy"


def test_a_damaged_state_stops_only_its_own_stream(store_url, admin, open_service):
    service = open_service(store_url)
    for stream in ("sound", "damaged"):
        service.create_stream(stream, "small", [0.0])
    with admin.begin() as connection:
        other = connection.scalar(sa.text("SELECT state FROM streams WHERE id = 'damaged'"))
        damaged = bytes(other[:-1]) + bytes([other[-1] ^ 1])
        connection.execute(sa.text("UPDATE streams SET state = :state WHERE id = 'damaged'"), {"state": damaged})
    sound, refused = service.submit_steps([StepRequest("sound", [1.0]), StepRequest("damaged", [1.0])]).result(30)
    assert sound.record.step == 1
    assert isinstance(refused, UnavailableError)
    assert service.get_stream("damaged").steps == 0


# The limit on history lengths


def test_the_limit_on_history_lengths_is_the_stores(store_url, policy_bytes, open_service, monkeypatch):
    """Lengths are counted in the store: deleted ones and those of other services too; existing ones are always loaded."""
    monkeypatch.setattr("ecl2o.service.queries._MAX_HISTORY_LENGTHS", 2)
    first, second = open_service(store_url), open_service(store_url)
    for service in (first, second):
        service.put_policy("limited", policy_bytes)
    first.create_stream("length-0", "limited", [0.0])
    second.create_stream("length-1", "limited", [0.0], [[1.0]])
    for service in (first, second):
        with pytest.raises(InvalidRequestError, match="0, 1"):
            service.create_stream("length-2", "limited", [0.0], [[1.0], [1.0]])
    second.delete_stream("length-0")
    second.create_stream("length-2", "limited", [0.0], [[1.0], [1.0]])
    monkeypatch.setattr("ecl2o.service.queries._MAX_HISTORY_LENGTHS", 1)
    for stream in ("length-1", "length-2"):
        assert run_step(first, stream, 1, 2.0).step == 1
    first.create_stream("length-1-again", "limited", [0.0], [[3.0]])


# SQLite files that another program changes while the service has them open


def _delete(path, _backup):
    path.rename(path.with_name("away.db"))


def _replace(path, backup):
    backup.rename(path)


def _overwrite(path, backup):  # as cp does: the inode stays
    with path.open("r+b") as file:
        file.write(backup.read_bytes())


def _truncate(path, _backup):
    os.truncate(path, 4096)


def _delete_log(path, _backup):
    path.with_name(path.name + "-wal").unlink()


def _truncate_log(path, _backup):
    os.truncate(f"{path}-wal", 0)


@pytest.mark.parametrize("attack", [_delete, _replace, _overwrite, _truncate, _delete_log, _truncate_log])
def test_a_changed_file_is_refused(attack, tmp_path, open_service):
    path = tmp_path / "streams.db"
    service = open_service(f"sqlite:///{path}")
    service.create_stream("a", "small", [0.0])
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint")  # so that the file and the log have something to lose
    service.store.close()
    service.store.open()
    run_step(service, "a", 1, 1.0)
    with (
        contextlib.closing(sqlite3.connect(path)) as database,
        contextlib.closing(sqlite3.connect(tmp_path / "backup.db")) as backup,
    ):
        database.backup(backup)
    run_step(service, "a", 2, 1.0)
    assert service.list_failures() == []
    attack(path, tmp_path / "backup.db")
    for number in (3, 3):
        with pytest.raises(UnavailableError, match="another program") as error:
            run_step(service, "a", number, 1.0)
        assert not isinstance(error.value, InDoubtError)
        assert str(tmp_path) not in str(error.value)
    with pytest.raises(UnavailableError, match="another program"):
        service.get_stream("a")  # whatever it would say may not be in the file
    for _ in range(2):
        assert "another program" in service.list_failures()[0]
    if attack is _delete_log:
        service.close()
        assert open_service(f"sqlite:///{path}").get_stream("a").steps == 2


def test_a_file_that_is_put_back_is_used_again(tmp_path, open_service):
    path, away = tmp_path / "streams.db", tmp_path / "away.db"
    service = open_service(f"sqlite:///{path}")
    service.create_stream("a", "small", [0.0])
    run_step(service, "a", 1, 1.0)
    path.rename(away)
    assert "restart the service" in service.list_failures()[0]  # also without a write
    assert not path.exists()  # no empty file was made in its place
    away.rename(path)
    assert service.list_failures() == []
    assert run_step(service, "a", 2, 1.0).step == 2


def test_a_file_replaced_during_a_commit_leaves_it_in_doubt(tmp_path, open_service):
    path = tmp_path / "streams.db"
    service = open_service(f"sqlite:///{path}")
    service.create_stream("a", "small", [0.0])

    def replace(_connection):
        shutil.copy(path, tmp_path / "copy.db")
        (tmp_path / "copy.db").rename(path)

    event.listen(service.store._writer, "commit", replace)
    with pytest.raises(InDoubtError, match="another program"):
        run_step(service, "a", 1, 1.0)


def test_own_checkpoints_are_no_change(tmp_path, open_service):
    service = open_service(f"sqlite:///{tmp_path / 'streams.db'}")
    service.create_stream("a", "small", [0.0])
    before = (tmp_path / "streams.db").stat()
    with service.store._writer.connect() as connection:
        connection.connection.driver_connection.execute("PRAGMA wal_autocheckpoint=2")
    for number in range(1, 6):
        run_step(service, "a", number, 1.0)
    after = (tmp_path / "streams.db").stat()
    assert (after.st_mtime_ns, after.st_size) != (before.st_mtime_ns, before.st_size)
    assert service.list_failures() == []
    os.utime(tmp_path / "streams.db", (0, 0))  # a reader may come while the writer's commit is at it
    assert service.get_stream("a").steps == 5


# Commits in doubt


def break_commit(store: Store, is_stored: bool) -> None:
    """Let the next commit fail, after or before it is made."""
    dialect = store._writer.dialect
    commit = dialect.do_commit

    def fail(connection):
        dialect.do_commit = commit
        commit(connection) if is_stored else connection.rollback()
        raise dialect.dbapi.OperationalError("disk I/O error, or the connection was lost")

    dialect.do_commit = fail


@pytest.fixture
def served(store_url, policy_bytes, running_app):
    """A store and the URL of a service on it."""
    store = Store(store_url)
    with running_app(make_app(store, Access(), {"small": policy_bytes})) as url:
        yield store, url


def count_steps(url: str) -> float:
    counted = [line for line in httpx2.get(f"{url}/metrics").text.splitlines() if line.startswith("ecl2o_steps_total{")]
    return sum(float(line.split()[1]) for line in counted)


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_commit_in_doubt_is_said_resent_and_counted_once(served, policy_bytes, is_stored, request):
    store, url = served
    ids = [f"{request.node.name}-{number}" for number in range(3)]
    ids = [name.translate(str.maketrans("[]", "..")) for name in ids]
    with Client(url, patience=30.0) as client, httpx2.Client(base_url=url, timeout=30) as http:
        break_commit(store, is_stored)
        assert client.put_policy(f"policy-{is_stored}", policy_bytes) is not is_stored
        for stream in ids:
            break_commit(store, is_stored)
            assert client.put_stream(stream, "small", [0.0]).steps == 0
        assert http.get("/readyz").status_code == 200
        break_commit(store, is_stored)
        answer = http.post(f"/streams/{ids[0]}/steps", json={"step": 1, "context": [1.0]})
        assert (answer.status_code, answer.json()["in_doubt"]) == (503, True)
        assert "Nothing was changed" not in answer.text
        assert http.get(f"/streams/{ids[0]}").json()["steps"] == is_stored
        assert client.step(ids[0], [1.0]).step == 1
        for number in (2, 3):
            break_commit(store, is_stored)
            assert client.step(ids[0], [2.0]).step == number
        for number in (1, 2):
            break_commit(store, is_stored)
            answers = client.steps({stream: [2.0] for stream in ids[1:]})
            assert [answers[stream].step for stream in ids[1:]] == [number, number]
        assert [http.get(f"/streams/{stream}").json()["steps"] for stream in ids] == [3, 2, 2]
        assert count_steps(url) == 7
        break_commit(store, is_stored)
        assert http.delete(f"/streams/{ids[0]}").json()["in_doubt"] is True
        assert http.delete(f"/streams/{ids[0]}").status_code == (404 if is_stored else 204)


def test_a_step_in_doubt_is_announced_without_further_requests(store_url, policy_bytes):
    announced = []
    service = Service(Store(store_url), announced.extend)
    service.put_policy("small", policy_bytes)
    service.create_stream("alone", "small", [0.0])
    break_commit(service.store, is_stored=True)
    with pytest.raises(InDoubtError):
        run_step(service, "alone", 1, 1.0)
    wait_until(lambda: announced)
    assert [result.record.step for result in announced] == [1]
    service.close()


def wait_until(condition, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


# Databases that do not answer


def test_a_lock_of_another_program_on_sqlite(tmp_path, open_service, monkeypatch):
    monkeypatch.setattr("ecl2o.service.store._SILENCE_SECONDS", 0.2)
    path = tmp_path / "streams.db"
    service = open_service(f"sqlite:///{path}")
    service.create_stream("a", "small", [0.0])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="lock"):
            run_step(service, "a", 1, 1.0)
        assert "lock" in service.list_failures()[0]
        other.execute("ROLLBACK")
    assert service.list_failures() == []
    assert run_step(service, "a", 1, 1.0).step == 1


def test_a_disk_that_hangs(tmp_path, policy_bytes, monkeypatch):
    """The writer cannot be freed, but requests are answered; what it commits later is counted."""
    monkeypatch.setattr("ecl2o.service.store._STUCK_SECONDS", 0.3)
    announced, hang, release = [], threading.Event(), threading.Event()
    service = Service(Store(f"sqlite:///{tmp_path / 'streams.db'}"), announced.extend)
    service.put_policy("small", policy_bytes)
    for stream in "ab":
        service.create_stream(stream, "small", [0.0])

    def commit(_connection):
        if not release.is_set():
            hang.set()
            release.wait(30)

    event.listen(service.store._writer, "commit", commit)
    running = service.submit_steps([StepRequest("a", [1.0], 1)])
    assert hang.wait(10)
    waiting = service.submit_steps([StepRequest("b", [1.0], 1)])
    wait([running, waiting], 10)
    assert isinstance(running.exception(0), InDoubtError)
    assert type(waiting.exception(0)) is UnavailableError
    with pytest.raises(UnavailableError):
        service.submit_steps([StepRequest("b", [1.0], 1)])
    assert "does not answer" in service.list_failures()[0]
    with pytest.raises(UnavailableError):
        service.get_stream("a")
    release.set()
    wait_until(lambda: not service.list_failures())
    assert [service.get_stream(stream).steps for stream in "ab"] == [1, 0]
    assert len(announced) == 1
    (repeated,) = service.submit_steps([StepRequest("a", [1.0], 1)]).result()
    assert repeated.record is None
    service.close()


class Proxy:
    """A TCP proxy to the database that swallows what the database sends, from a word of a client on."""

    def __init__(self, port: int, patch: pytest.MonkeyPatch):
        self._patch = patch
        self._target = ("127.0.0.1", port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.swallow_after: bytes | None = None
        self._is_silent = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def be_silent(self) -> None:
        self._patch.setattr("ecl2o.service.store._SILENCE_SECONDS", 0.2)
        self._is_silent.set()

    def heal(self) -> None:
        self._patch.undo()
        self.swallow_after = None
        self._is_silent.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(self._target)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(*ends, ends[0] is client), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, is_client: bool) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(65536):
                if is_client and self.swallow_after is not None and self.swallow_after in data:
                    self.be_silent()
                if is_client or not self._is_silent.is_set():
                    target.sendall(data)

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def proxy(postgresql, monkeypatch):
    proxy = Proxy(sa.make_url(postgresql).port, monkeypatch)
    yield proxy
    proxy.close()


@pytest.mark.integration
@pytest.mark.parametrize("word", [b"", b"COMMIT"])
def test_a_silent_network(word, proxy, postgresql, policy_bytes):
    """From the beginning of a transaction, or between its commit and the answer."""
    announced, stream = [], f"silent-{word.decode().lower()}"
    service = Service(Store(postgresql.replace(f":{sa.make_url(postgresql).port}", f":{proxy.port}")), announced.extend)
    service.put_policy("small", policy_bytes)
    service.create_stream(stream, "small", [0.0])
    proxy.swallow_after = word
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="does not answer") as error:
        run_step(service, stream, 1, 1.0)
    assert isinstance(error.value, InDoubtError) == (word == b"COMMIT")
    if word:
        with pytest.raises(UnavailableError, match="does not answer"):
            service.get_stream(stream)
    assert "does not answer" in service.list_failures()[0]
    assert time.monotonic() - began < 10
    proxy.heal()
    wait_until(lambda: not service.list_failures())
    assert service.get_stream(stream).steps == (word == b"COMMIT")
    (result,) = service.submit_steps([StepRequest(stream, [1.0], 1)]).result(10)
    assert (result.record is None) == (word == b"COMMIT")
    assert [result.record.step for result in announced] == [1]
    service.close()


@pytest.mark.integration
def test_a_silent_connection_is_closed_at_once(proxy, postgresql):
    """A rollback would wait for the server again."""
    url = sa.make_url(postgresql)
    connection = store._Connection.connect(host=url.host, port=proxy.port, user=url.username, dbname=url.database)
    connection.execute("SELECT 1")
    proxy.swallow_after = b""
    with pytest.raises(psycopg.OperationalError, match="silent"):
        connection.execute("SELECT 1")
    assert connection.closed


@pytest.mark.integration
def test_a_stream_locked_by_a_frozen_peer_does_not_stop_the_others(postgresql, open_service, monkeypatch):
    service = open_service(postgresql)
    for stream in ("locked", "free"):
        service.create_stream(stream, "small", [0.0])
    engine = sa.create_engine(postgresql)
    with engine.connect() as peer:
        lock = sa.text("SELECT 1 FROM streams WHERE id = 'locked' FOR UPDATE")
        peer.execute(lock)
        locked = service.submit_steps([StepRequest("locked", [1.0]), StepRequest("locked", [2.0])])
        both = service.submit_steps([StepRequest("locked", [3.0], 3), StepRequest("free", [1.0])])
        for number in range(2, 6):
            assert run_step(service, "free", number, 1.0).step == number
        assert not locked.done()
        peer.rollback()
        assert [result.record.step for result in locked.result(10)] == [1, 2]
        assert [result.record.step for result in both.result(10)] == [3, 1]
        monkeypatch.setattr("ecl2o.service.step_executor._LOCKED_SECONDS", 0.3)
        peer.execute(lock)
        refused, free = service.submit_steps([StepRequest("locked", [1.0]), StepRequest("free", [1.0])]).result(10)
        assert isinstance(refused, UnavailableError)
        assert free.record.step == 6
        with pytest.raises(UnavailableError, match="lock"):
            service.delete_stream("locked")
        assert service.list_failures() == []
        with pytest.raises(NotFoundError):
            run_step(service, "missing", 1, 1.0)
        monkeypatch.undo()
        deleted = service._commits.submit_write(lambda connection: queries.remove_stream(connection, "locked"))
        for number in range(7, 27):
            assert run_step(service, "free", number, 1.0).step == number
        assert not deleted.done()
        peer.rollback()
        assert deleted.result(10) is True
    engine.dispose()
