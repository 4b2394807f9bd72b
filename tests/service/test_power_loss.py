"""Power fails, or a call of the disk does: every answered step is there, once, with the bytes of its answer.

disk_shim.c, preloaded, records what the service and `ecl2o act` do to their files, and what they answer. disk_model.py says what
is on disk when power fails after any event of such a log. Every prefix of a log is checked on the disk that has lost all unsynced
changes, and on another one: with all of them, with a torn last write, or with each sector by chance. SQLite or `act` reads what
is left. The same shim lets the n-th call of a kind fail, for all n of a short run.

The tests of mutants run the same checks on services that lose steps, and must find the loss.
"""

import collections
import contextlib
import dataclasses
import errno
import functools
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from disk_model import Call, Disk, Event, Kind, read_log, write_files
from disk_runs import SHORT

from ecl2o.act import ActSession, LineReader
from ecl2o.policy import load
from ecl2o.service import Service, Store, queries
from ecl2o.service.models import StepRecord, StepRequest

_HERE = Path(__file__).parent
_STORE = "streams.db"
_FLUSH_MICROSECONDS = 1000  # of a flush while recording, so that it can be overtaken


class Loss(AssertionError):
    """An answer that is not on disk, or a disk that does not make sense."""


# Recorded runs


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> Path:
    """The compiled disk_shim.c."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("recording calls needs Linux and a C compiler (Debian: apt-get install gcc)")
    library = tmp_path_factory.mktemp("shim") / "disk_shim.so"
    source = str(_HERE / "disk_shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-pthread"], check=True)
    return library


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder in memory if there is such a place: real flushes would only take time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="ecl2o-", dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder).resolve()


class Runs:
    """The processes of disk_runs.py."""

    def __init__(self, process: subprocess.Popen):
        self._process = process

    def _ask(self, **arguments: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, run: str, **arguments: Any) -> int:
        return self._ask(run=run, **{name: _plain(value) for name, value in arguments.items()})

    def wait(self, pid: int) -> int:
        return self._ask(wait=pid)

    def finish(self, run: str, **arguments: Any) -> None:
        assert self.wait(self.start(run, **arguments)) == 0


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


@pytest.fixture(scope="module")
def runs(shim, policy_file) -> Iterator[Runs]:
    environment = os.environ | {
        "LD_PRELOAD": str(shim),
        "JAX_COMPILATION_CACHE_DIR": str(Path(sys.prefix) / ".jax-cache-service"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, str(_HERE / "disk_runs.py"), str(policy_file)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen(command, **pipes) as process:
        yield Runs(process)
        assert process.stdin is not None
        process.stdin.close()


def context(stream: str, step: int) -> list[float]:
    """Return the context of a stream at a step."""
    return [4 * math.sin(step / 3) + 3 * math.sin(1000.7 * step + zlib.crc32(stream.encode()))]


@dataclasses.dataclass
class Traffic:
    """Clients that go on where they stopped: single steps, batches, uploads, creations, deletions."""

    url: str
    turns: int
    policy: bytes
    answers: int = 0
    errors: list[BaseException] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the clients during the block, and until they have done all of their turns."""
        work = [(self._step_one, f"single-{number}") for number in range(3)]
        work += [(self._step_batch, [f"batch-{number}" for number in range(4)]), (self._come_and_go, "guest")]
        clients = [threading.Thread(target=self._run, args=task, daemon=True) for task in work]
        for client in clients:
            client.start()
        yield
        for client in clients:
            client.join(120)
        assert not self.errors
        assert not any(client.is_alive() for client in clients)

    def _run(self, work: Callable, streams: Any) -> None:
        try:
            with httpx2.Client(base_url=self.url, timeout=20) as client:
                work(client, streams)
        except BaseException as error:
            self.errors.append(error)

    def _send(self, client: httpx2.Client, method: str, path: str, **body: Any) -> Any:
        """Send a request until the service answers it."""
        until = time.monotonic() + 100
        while time.monotonic() < until:
            with contextlib.suppress(httpx2.TransportError):
                answer = client.request(method, path, **body)
                if answer.status_code != 503:
                    assert answer.status_code in (200, 201, 204, 404), answer.text
                    self.answers += 1
                    return answer.json() if answer.content else None
            time.sleep(0.005)
        raise AssertionError("no answer")

    def _create(self, client: httpx2.Client, stream: str) -> int:
        return self._send(client, "PUT", f"/streams/{stream}", json={"policy": "small", "x0": [0.0]})["steps"]

    def _step_one(self, client: httpx2.Client, stream: str) -> None:
        done = self._create(client, stream)
        for step in range(done + 1, done + self.turns + 1):
            body = {"step": step, "context": context(stream, step)}
            self._send(client, "POST", f"/streams/{stream}/steps", json=body)

    def _step_batch(self, client: httpx2.Client, streams: list[str]) -> None:
        done = min([self._create(client, stream) for stream in streams])
        for step in range(done + 1, done + self.turns // 2 + 1):
            body = {stream: {"step": step, "context": context(stream, step)} for stream in streams}
            assert not self._send(client, "POST", "/steps", json=body)["refused"]

    def _come_and_go(self, client: httpx2.Client, name: str) -> None:
        for turn in range(self.turns // 6):
            guest = f"{name}-{self.answers}-{turn}"
            self._create(client, guest)
            self._send(client, "POST", f"/streams/{guest}/steps", json={"step": 1, "context": context(guest, 1)})
            self._send(client, "PUT", f"/policies/{guest}", content=self.policy)
            self._send(client, "DELETE", f"/streams/{guest}")


def record_service(
    runs: Runs, folder: Path, port: int, policy: bytes, turns: int, mutant: str | None = None, restart: bool = False
) -> list[Event]:
    """Record a service under traffic. With `restart` it is stopped and started, killed amid its work and started again."""
    (folder / "store").mkdir()
    arguments = {"folder": folder / "store", "log": folder / "log", "port": port, "mutant": mutant}

    def start() -> int:
        return runs.start("serve", delay=_FLUSH_MICROSECONDS, **arguments)

    def stop(pid: int, by: int = signal.SIGKILL) -> None:
        os.kill(pid, by)
        runs.wait(pid)

    traffic, pid = Traffic(f"http://127.0.0.1:{port}", turns, policy), start()
    with traffic.running():
        pass
    if restart:
        stop(pid, signal.SIGTERM)
        pid, before = start(), traffic.answers
        with traffic.running():
            while traffic.answers < before + turns:
                time.sleep(0.001)
            stop(pid, signal.SIGUSR2)  # as by SIGKILL, but not within a call
            pid = start()
    stop(pid)
    return read_log(folder / "log")


# What the service answered


def make_comparable(step: dict[str, Any]) -> str:
    """Return a step as text, in which equal steps are equal; SQLite has 0 and 1 for false and true."""
    return json.dumps({name: int(value) if isinstance(value, bool) else value for name, value in step.items()})


@dataclasses.dataclass
class Facts:
    """What clients know by the answers that have left: streams, steps and policies that exist, and streams that do not."""

    created: set[str] = dataclasses.field(default_factory=set)
    steps: dict[tuple[str, int], str] = dataclasses.field(default_factory=dict)  # comparable
    texts: dict[tuple[str, int], str] = dataclasses.field(default_factory=dict)  # as answered
    policies: dict[str, str] = dataclasses.field(default_factory=dict)  # SHA-256 of the file
    deleted: set[str] = dataclasses.field(default_factory=set)

    def receive(self, method: str, path: str) -> None:
        """Learn of a request: from now on the stream that it deletes may be there or not."""
        if method == "DELETE":
            stream = path.split("/")[2]
            self.created.discard(stream)
            self.steps = {key: step for key, step in self.steps.items() if key[0] != stream}

    def answer(self, method: str, path: str, body: bytes, status: int, text: bytes) -> None:
        """Learn from an answer."""
        _, kind, *names = path.split("/")
        if status >= 400:
            return
        if (method, kind) == ("PUT", "policies"):
            self.policies[names[0]] = hashlib.sha256(body).hexdigest()
        elif (method, kind) == ("PUT", "streams"):
            self.created.add(names[0])
        elif method == "DELETE":
            self.deleted.add(names[0])
        elif method == "POST" and names:
            step = json.loads(text)
            self.steps[names[0], step["step"]] = make_comparable(step)
            self.texts[names[0], step["step"]] = text.decode()
        elif method == "POST":
            for stream, step in json.loads(text)["answered"].items():
                self.steps[stream, step["step"]] = make_comparable(step)


class Listener:
    """Reads requests and answers off the recorded bytes of connections."""

    def __init__(self, facts: Facts):
        self.facts = facts
        self._received: dict[int, bytes] = collections.defaultdict(bytes)
        self._sent: dict[int, bytes] = collections.defaultdict(bytes)
        self._requests: dict[int, tuple[str, str, bytes]] = {}

    def hear(self, event: Event) -> bool:
        """Take in an event; return whether an answer has left with it."""
        if event.kind == Kind.START:
            self._received.clear()
            self._sent.clear()
        elif event.kind == Kind.RECEIVED:
            self._received[event.fd] += event.data
            message = _split_message(self._received[event.fd])
            if message is not None:
                first, body, self._received[event.fd] = message
                method, path, _ = first.split(" ")
                self._requests[event.fd] = (method, path, body)
                self.facts.receive(method, path)
        elif event.kind == Kind.SENT:
            self._sent[event.fd] += event.data
            message = _split_message(self._sent[event.fd])
            if message is not None:
                first, text, self._sent[event.fd] = message
                self.facts.answer(*self._requests.pop(event.fd), int(first.split(" ")[1]), text)
                return True
        return False


def _split_message(data: bytes) -> tuple[str, bytes, bytes] | None:
    """Return first line and body of a message of HTTP, and what follows it; None if it is not whole."""
    head, found, rest = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    size = int(length[1]) if length else 0
    return (head.split(b"\r\n")[0].decode(), rest[:size], rest[size:]) if found and len(rest) >= size else None


# What a store holds after a loss of power


@dataclasses.dataclass
class Content:
    streams: dict[str, tuple[int, str | None, bytes]] = dataclasses.field(default_factory=dict)  # steps, last, state
    steps: dict[tuple[str, int], str] = dataclasses.field(default_factory=dict)  # comparable
    policies: dict[str, str] = dataclasses.field(default_factory=dict)  # SHA-256 of the file


_FIELDS = [field.name for field in dataclasses.fields(StepRecord)]
_COLUMNS = ", ".join(f"steps.{name}" for name in _FIELDS)
_SELECT_STEPS = f"SELECT streams.id, {_COLUMNS} FROM steps JOIN streams ON steps.stream = streams.key"


@functools.cache
def _read_step(row: tuple) -> tuple[int, str]:
    """Return number and text of a row."""
    values = (json.loads(value) if isinstance(value, str) else value for value in row)
    step = dict(zip(_FIELDS, values, strict=True))
    return step["step"], make_comparable(step)


@functools.cache
def _read_last(text: str) -> str:
    return make_comparable(json.loads(text))


def read_content(folder: Path) -> Content:
    """Let SQLite recover a store, and read it. A store without its tables is empty.

    Raises:
        Loss: It is damaged, or contradicts itself.
    """
    if not (folder / _STORE).exists():
        return Content()
    with contextlib.closing(sqlite3.connect(folder / _STORE)) as database:
        try:
            database.execute("PRAGMA synchronous=OFF")
            if database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'steps'").fetchone() == (0,):
                return Content()
            found = database.execute("PRAGMA integrity_check").fetchall()
            if found != [("ok",)]:
                raise Loss(f"damaged: {found}")
            streams = {row[0]: row[1:] for row in database.execute("SELECT id, steps, last, state FROM streams")}
            rows = database.execute(_SELECT_STEPS).fetchall()
            policies = database.execute("SELECT name, file FROM policies").fetchall()
        except sqlite3.Error as error:
            raise Loss(f"SQLite cannot read it: {error}") from error
    steps, highest = {}, dict.fromkeys(streams, 0)
    for stream, *row in rows:
        number, step = _read_step(tuple(row))
        steps[stream, number] = step
        highest[stream] = max(highest[stream], number)
    counts = collections.Counter(stream for stream, _ in steps)
    for stream, (count, last, _) in streams.items():
        if not count == counts[stream] == highest[stream]:
            raise Loss(f"{stream} has {count} steps; stored are {counts[stream]} up to step {highest[stream]}")
        if (None if last is None else _read_last(last)) != steps.get((stream, count)):
            raise Loss(f"the last step of {stream} is not its last")
    return Content(streams, steps, {name: hashlib.sha256(file).hexdigest() for name, file in policies})


def check_facts(content: Content, facts: Facts) -> None:
    """Check that everything is in a store that was answered."""
    if not facts.steps.items() <= content.steps.items():
        key = next(key for key, step in facts.steps.items() if content.steps.get(key) != step)
        raise Loss(f"step {key[1]} of {key[0]} was {facts.steps[key]} and is {content.steps.get(key)}")
    if not facts.created <= content.streams.keys():
        raise Loss(f"streams are lost: {facts.created - content.streams.keys()}")
    if not facts.deleted.isdisjoint(content.streams):
        raise Loss(f"streams are back: {facts.deleted & content.streams.keys()}")
    if not facts.policies.items() <= content.policies.items():
        raise Loss(f"policies are lost: {facts.policies.keys() - content.policies.keys()}")
    for stream, (steps, last, _) in content.streams.items():
        if facts.texts.get((stream, steps), last) != last:
            raise Loss(f"a repetition of step {steps} of {stream} would get other bytes")


class Reference:
    """The answers and states of a service that nothing happens to."""

    def __init__(self, folder: Path, policy: bytes):
        self._store = Store(f"sqlite:///{folder}/reference.db")
        self._service = Service(self._store)
        self._service.put_policy("small", policy)
        self._known: dict[tuple[str, int], tuple[dict, bytes]] = {}
        self._checked: set[tuple] = set()

    def look_up(self, stream: str, step: int) -> tuple[dict, bytes]:
        """Return the answer without its time, and the state after it."""
        if (stream, 0) not in self._known:
            self._service.create_stream(stream, "small", [0.0])
            self._known[stream, 0] = ({}, self._read_state(stream))
        while (stream, step) not in self._known:
            following = max(number for name, number in self._known if name == stream) + 1
            (result,) = self._service.submit_steps([StepRequest(stream, context(stream, following))]).result()
            self._known[stream, following] = (json.loads(result.json) | {"at": 0}, self._read_state(stream))
        return self._known[stream, step]

    def _read_state(self, stream: str) -> bytes:
        with self._store.begin_read() as connection:
            key = queries.find_stream(connection, stream).key
            return queries.load_states(connection, [key])[key]

    def check(self, content: Content) -> None:
        """Check that a store holds what an uninterrupted service holds after as many steps."""
        for (stream, number), step in content.steps.items() - self._checked:
            if json.loads(step) | {"at": 0} != self.look_up(stream, number)[0]:
                raise Loss(f"step {number} of {stream} differs from that of an uninterrupted run")
            self._checked.add(((stream, number), step))
        for stream, (steps, last, state) in content.streams.items() - self._checked:
            if state != self.look_up(stream, steps)[1]:
                raise Loss(f"the state of {stream} is not that after its {steps} steps")
            self._checked.add((stream, (steps, last, state)))

    def close(self) -> None:
        self._service.close()


@dataclasses.dataclass
class Replay:
    """The prefixes of a log of the service."""

    events: list[Event]
    folder: Path
    reference: Reference
    prefixes: int = 0  # that end with a change of the disk or with an answer
    opened: int = 0  # disks

    def run(self, resume: Callable[[Content], None] = lambda content: None) -> Disk:
        """Check every prefix, and resume some; return the disk at the end. Raise `Loss`."""
        disk, facts, chance = Disk(), Facts(), random.Random(31)
        listener, version, content = Listener(facts), None, Content()
        for event in self.events:
            has_changed, has_answered = disk.apply(event), listener.hear(event)
            if not has_changed and not has_answered:
                continue
            self.prefixes += 1
            if version != disk.durable_version:
                version, content = disk.durable_version, self._open(disk.drop_unsynced())
                if chance.random() < 0.05:
                    resume(content)
            check_facts(content, facts)
            if has_changed:
                left = (disk.keep_all, disk.tear_last, disk.keep_some)[self.prefixes % 3](chance)
                check_facts(self._open(left), facts)
        return disk

    def _open(self, files: dict[str, bytes]) -> Content:
        self.opened += 1
        write_files(self.folder, files)
        content = read_content(self.folder)
        self.reference.check(content)
        return content


def list_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}


def check_recording(disk: Disk, folder: Path) -> None:
    """Check that the shim saw every change of a folder."""
    cached = {name: bytes(file.cached) for name, file in disk.names.items() if not name.endswith("-shm")}
    assert cached == list_files(folder)
    assert all(name.endswith("-shm") for name in disk.mapped)


@pytest.fixture
def reference(tmp_path, policy_bytes) -> Iterator[Reference]:
    reference = Reference(tmp_path, policy_bytes)
    yield reference
    reference.close()


@pytest.fixture
def replayed(disk) -> Path:
    """A folder for the disks of a replay."""
    (disk / "replay").mkdir()
    return disk / "replay"


def test_no_answered_step_is_lost_when_power_fails(runs, disk, replayed, port, policy_bytes, reference):
    events = record_service(runs, disk, port, policy_bytes, turns=24, restart=True)
    resumed = set()

    def resume(content: Content) -> None:
        """Check that a service goes on from this disk as if nothing had happened."""
        service = Service(Store(f"sqlite:///{replayed / _STORE}"))
        service.warm_up()
        for stream, (steps, _, _) in content.streams.items():
            (result,) = service.submit_steps([StepRequest(stream, context(stream, steps + 1), steps + 1)]).result()
            assert json.loads(result.json) | {"at": 0} == reference.look_up(stream, steps + 1)[0]
            resumed.add((stream, steps))
        service.close()

    replay = Replay(events, replayed, reference)
    check_recording(replay.run(resume), disk / "store")
    assert replay.prefixes > 2000
    assert len(resumed) > 10
    kinds = collections.Counter(event.kind for event in events)
    assert kinds[Kind.SYNC_END] > 50
    assert kinds[Kind.UNLINK] > 1  # of a rollback journal, and of the write-ahead log at the end of a service


@pytest.mark.parametrize("mutant", ["OFF", "NORMAL", "early answers"])
def test_the_replay_finds_a_service_that_loses_steps(runs, disk, replayed, port, policy_bytes, reference, mutant):
    events = record_service(runs, disk, port, policy_bytes, turns=6, mutant=mutant)
    with pytest.raises(Loss):
        Replay(events, replayed, reference).run()


def without_folder_flushes(events: list[Event]) -> list[Event]:
    """Return the log of a program that never flushes a folder."""
    left, folders = [], set()
    for event in events:
        if event.kind == Kind.OPEN:
            (folders.add if event.is_folder else folders.discard)(event.fd)
        if event.kind not in (Kind.SYNC_BEGIN, Kind.SYNC_END) or event.fd not in folders:
            left.append(event)
    assert len(left) < len(events)
    return left


def test_the_replay_finds_a_missing_flush_of_the_folder(runs, disk, replayed, port, policy_bytes, reference):
    events = record_service(runs, disk, port, policy_bytes, turns=6)
    Replay(events, replayed, reference).run()
    with pytest.raises(Loss):
        Replay(without_folder_flushes(events), replayed, reference).run()


# The state of `ecl2o act`


def make_lines(count: int) -> list[str]:
    return [json.dumps({"step": step, "context": context("act", step)}) + "\n" for step in range(1, count + 1)]


def play_lines(policy: Path, state: Path, lines: list[str]) -> list[tuple[dict, bytes]]:
    """Return the answers of an uninterrupted run, and the state file after each."""
    session, played = ActSession(load(policy), state, x0=[0.0]), []
    reader = LineReader(None, session.context_dim)
    for line in lines:
        parsed = reader.read(line)
        assert parsed is not None
        answer = session.answer(parsed, lambda answer: None)
        played.append((answer.as_json(), state.read_bytes()))
    return played


def replay_act(events: list[Event], played: list[tuple[dict, bytes]]) -> tuple[Disk, int, set[int]]:
    """Check every prefix of a log of `act`; return the last disk, the number of prefixes, and the steps of its states."""
    disk, chance, answers, prefixes, lengths = Disk(), random.Random(31), 0, 0, set()
    steps_of = {state: step for step, (_, state) in enumerate(played, start=1)}
    for event in events:
        if not disk.apply(event) and event.kind != Kind.SENT:
            continue
        if event.kind == Kind.SENT:
            for line in event.data.decode().splitlines():
                expected = played[answers][0]
                assert expected | json.loads(line) == expected  # a repeated answer has no live_ratio
                answers += 1
        prefixes += 1
        for left in (disk.drop_unsynced(), disk.keep_all(), disk.tear_last(chance), disk.keep_some(chance)):
            if "state" in left and left["state"] not in steps_of:
                raise Loss("the state is none that was saved")
            steps = steps_of[left["state"]] if "state" in left else 0
            if steps < answers:
                raise Loss(f"step {answers} was answered, and the state is that after step {steps}")
            lengths.add(steps)
    assert answers == len(played)
    return disk, prefixes, lengths


def test_no_answered_line_is_lost_when_power_fails(runs, disk, tmp_path, policy_file):
    lines, folder = make_lines(30), disk / "act"
    folder.mkdir()
    (disk / "lines").write_text("".join(lines))
    runs.finish("record_act", folder=folder, log=disk / "log", lines=disk / "lines", out=disk / "answers")
    events, played = read_log(disk / "log"), play_lines(policy_file, tmp_path / "state", lines)
    left, prefixes, lengths = replay_act(events, played)
    check_recording(left, folder)
    assert prefixes > 120
    assert lengths == set(range(31))
    for steps, (_, state) in enumerate(
        played[:-1], start=1
    ):  # every state that can be left goes on as if nothing happened
        (tmp_path / "resumed").write_bytes(state)
        ((answer, after),) = play_lines(policy_file, tmp_path / "resumed", lines[steps : steps + 1])
        assert (answer, after) == played[steps]
    with pytest.raises(Loss, match="was answered"):
        replay_act(without_folder_flushes(events), played)


# The n-th call fails

_CALLS = (Call.SYNC, Call.OPEN, Call.RENAME, Call.TRUNCATE, Call.WRITE)
_UNTIL_REPAIRED = 1_000_000
_FAILURES = [  # the call, its error, and how many fail in a row
    *((call, errno.EIO, 1) for call in _CALLS),
    *((call, errno.ENOSPC, _UNTIL_REPAIRED) for call in _CALLS),
    (Call.SYNC, errno.EIO, 2),  # as of a commit, and of the checkpoint when the connection is closed
    (Call.SYNC, errno.EIO, 3),
    (Call.WRITE, SHORT, 1),
]
_PRIVATE = re.compile(r"Traceback|sqlite|sqlalchemy|SELECT|PRAGMA|\.py|/dev/|/tmp|/work|/root")


def test_any_call_of_the_store_may_fail(runs, disk, replayed):
    (disk / "stores").mkdir()
    runs.finish("fail_calls", folder=disk / "stores", calls=_FAILURES, out=disk / "results")
    results = [json.loads(line) for line in (disk / "results").read_text().splitlines()]
    expected = read_content(disk / "stores" / next(result["name"] for result in results if not result["fired"]))
    fired = collections.Counter(result["name"].split("-")[0] for result in results if result["fired"])
    assert fired["SYNC"] > 30
    assert fired["OPEN"] > 10
    assert fired["WRITE"] > 150
    problems = []
    for result in results:
        try:
            check_story(result["answers"])
            check_story_on_disk(disk / "stores" / result["name"], replayed, expected)
        except AssertionError as problem:
            problems.append(f"{result['name']}: {problem!s:.300}")
    assert not problems, "\n".join(problems)


def check_story(answers: list[list]) -> None:
    """Check that each request is answered, at first perhaps by 503 with a reason."""
    for index, (method, path, _, status, text) in enumerate(answers):
        is_repeated = index > 0 and answers[index - 1][:2] == [method, path] and answers[index - 1][3] == 503
        allowed = (200, 201, 204, 503, 404) if is_repeated and method == "DELETE" else (200, 201, 204, 503)
        assert status in allowed, (method, path, status, text)
        assert not _PRIVATE.search(text), text
        if status == 503:
            assert len(json.loads(text).get("detail", "")) > 20 or json.loads(text)["reasons"], text
    last = {(method, path, json.dumps(body)): status for method, path, body, status, _ in answers}
    assert 503 not in last.values(), answers[-1]


def check_story_on_disk(store: Path, replayed: Path, expected: Content) -> None:
    """Check that a store holds each step once, and held what had been answered whenever power might have failed."""
    disk, facts = replay_answers(read_log(store.with_name(f"{store.name}.log")), replayed)
    check_recording(disk, store)
    stored = read_content(store)
    check_facts(stored, facts)
    assert forget_times(stored) == forget_times(expected)


def replay_answers(events: list[Event], replayed: Path) -> tuple[Disk, Facts]:
    """Check at each announced answer that it is certainly on disk; return the last disk and all that was answered."""
    disk, facts, version, content = Disk(), Facts(), None, Content()
    for event in events:
        disk.apply(event)
        if event.kind == Kind.SENT:
            method, path, body, status, text = json.loads(event.data)
            facts.receive(method, path)
            if method != "GET":
                facts.answer(method, path, json.dumps(body).encode(), status, text.encode())
            if version != disk.durable_version:
                write_files(replayed, disk.drop_unsynced())
                version, content = disk.durable_version, read_content(replayed)
            check_facts(content, facts)
    return disk, facts


def forget_times(content: Content) -> tuple[dict, dict]:
    steps = {key: json.loads(step) | {"at": 0} for key, step in content.steps.items()}
    return steps, {stream: (count, state) for stream, (count, _, state) in content.streams.items()}


def test_a_process_is_killed_after_a_failed_flush(runs, disk, replayed):
    """The next process finds data in the page cache that never reached the disk, and must not rely on it."""
    for number in range(1, 20):
        store, log = disk / f"{number}", disk / f"{number}.log"
        store.mkdir()
        for failing in (number, 0):
            runs.finish("step_until_failure", folder=store, log=log, number=failing)
        _, facts = replay_answers(read_log(log), replayed)
        assert len(facts.steps) >= 10


def test_any_call_of_act_may_fail(runs, disk, tmp_path, policy_file):
    lines = make_lines(3)
    (disk / "states").mkdir()
    (disk / "lines").write_text("".join(lines))
    failures = [*_FAILURES, *((call, errno.EIO, 1) for call in (Call.UNLINK, Call.ANSWER))]
    arguments = {"folder": disk / "states", "lines": disk / "lines", "calls": failures, "out": disk / "results"}
    runs.finish("fail_act_calls", **arguments)
    played = play_lines(policy_file, tmp_path / "state", lines)
    results = [json.loads(line) for line in (disk / "results").read_text().splitlines()]
    fired = {result["name"].split("-")[0] for result in results if result["fired"]}
    assert fired == {"SYNC", "OPEN", "RENAME", "WRITE", "UNLINK", "ANSWER"}
    problems = []
    for result in results:
        place = disk / "states" / result["name"]
        answers = [json.loads(line) for run in (0, 1) for line in Path(f"{place}.{run}").read_text().splitlines()]
        messages = [Path(f"{place}.{run}.messages").read_text() for run in (0, 1)]
        try:
            assert result["codes"][0] in (0, 1, 2), messages[0]
            assert result["codes"][1] == 0, messages[1]
            assert result["codes"][0] == 0 or messages[0].strip()
            assert all(expected | answer == expected for answer, (expected, _) in zip(answers, played, strict=True))
            assert (place / "state").read_bytes() == played[-1][1]
            replay_act(read_log(place.with_name(f"{place.name}.log")), played)
        except (AssertionError, ValueError) as problem:
            problems.append(f"{result['name']}: {problem!s:.300}")
    assert not problems, "\n".join(problems)
