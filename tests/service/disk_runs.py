"""Run the service and `ecl2o act` under disk_shim.c. Each run is a fork of one process that has compiled everything.

Argument: the policy file. Each line of standard input is a JSON object: {"run": NAME, ...} starts a run and prints its process
id, {"wait": ID} prints its exit status. When the input ends, all runs are killed.
"""

import asyncio
import contextlib
import ctypes
import errno
import io
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import traceback
from pathlib import Path

import service_forks
from disk_model import Call

_shim = ctypes.CDLL(None)
SHORT = -1  # instead of an error: a write of half of its bytes
_PATIENCE = 20.0  # seconds; a request that takes longer counts as hanging


def start_recording(
    folder: str, log: str, call: int = Call.NONE, number: int = 0, error: int = 0, count: int = 0, delay: int = 0
) -> None:
    """Record a folder; let `count` calls fail, from a number on, with an error or `SHORT`; delay flushes by microseconds."""
    _shim.disk_shim_start(folder.encode(), log.encode(), call, number, error, count, ctypes.c_long(delay))


# The service under a real server


def serve(policy: Path, folder: str, log: str, port: int, mutant: str | None, delay: int) -> None:
    """Serve until the process is stopped, with a checkpoint every hundred pages of the write-ahead log."""
    import sqlalchemy as sa

    @sa.event.listens_for(sa.pool.Pool, "checkout")
    def configure(connection, *_):
        connection.execute("PRAGMA wal_autocheckpoint=100")
        if mutant in ("OFF", "NORMAL"):
            connection.execute(f"PRAGMA synchronous={mutant}")

    if mutant == "early answers":
        answer_early()
    start_recording(folder, log, delay=delay)
    service_forks.run_service(f"sqlite:///{folder}/streams.db", port, policy)


def answer_early() -> None:
    """Let answers leave before their commit: commits happen ten milliseconds later, in another thread."""
    from ecl2o.service import Store

    begin_write, committing = Store.begin_write, threading.Lock()

    @contextlib.contextmanager
    def begin_and_commit_later(store):
        committing.acquire()
        transaction = begin_write(store)
        try:
            yield transaction.__enter__()
        except BaseException:
            transaction.__exit__(*sys.exc_info())
            committing.release()
            raise

        def commit():
            transaction.__exit__(None, None, None)
            committing.release()

        threading.Timer(0.01, commit).start()

    Store.begin_write = begin_and_commit_later


# The service with a failing disk

_STORY = (
    ("PUT", "/streams/a", {"policy": "small", "x0": [0.0]}),
    ("POST", "/streams/a/steps", {"step": 1, "context": [3.0]}),
    ("PUT", "/streams/b", {"policy": "small", "x0": [1.0]}),
    ("POST", "/steps", {"a": {"step": 2, "context": [-2.0]}, "b": {"step": 1, "context": [5.0]}}),
    ("DELETE", "/streams/b", None),
    ("POST", "/streams/a/steps", {"step": 3, "context": [4.0]}),
    ("GET", "/readyz", None),
)


def fail_calls(policy: Path, folder: str, calls: list[tuple[int, int, int]], out: str) -> None:
    """Tell a story with a disk whose n-th call fails: for each kind, error and number of failures, for all n of the story."""
    from ecl2o.service import store

    store._PROBE_BYTES = (
        1 << 12
    )  # the probe for free space writes one page instead of 64: fewer calls, of the same kinds
    logging.disable(logging.CRITICAL)
    asyncio.run(_fail_calls(policy, Path(folder), calls, out))


async def _fail_calls(policy: Path, folder: Path, calls: list[tuple[int, int, int]], out: str) -> None:
    import httpx2

    from ecl2o.service import Service, Store
    from ecl2o.service.http import make_app

    app = make_app(Store(f"sqlite:///{folder}/unused.db"))  # once: it takes longer than a story
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    with open(out, "w") as results:
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
        ):
            for call, error, count in calls:
                for number in range(1, 1000, 3 if error == SHORT else 1):  # SQLite itself completes a short write
                    place = folder / f"{Call(call).name}-{error}-{count}-{number}"
                    place.mkdir()
                    start_recording(str(place), f"{place}.log", call, number, error, count)
                    service = Service(Store(f"sqlite:///{place}/streams.db"))
                    service.add_policies({policy.stem: policy.read_bytes()})
                    service.warm_up()
                    vars(app.state.service).update(vars(service))
                    answers = [answer for request in _STORY async for answer in _ask(client, *request)]
                    service.close()
                    fired = bool(_shim.disk_shim_fired())
                    _shim.disk_shim_stop()
                    failure = {"name": place.name, "fired": fired, "answers": answers}
                    results.write(json.dumps(failure) + "\n")
                    if not fired:
                        break


async def _ask(client, method: str, path: str, body: dict | None):
    """Send a request until it succeeds, and repair the disk after its second failure; give every answer."""
    for attempt in range(6):
        try:
            answer = await asyncio.wait_for(client.request(method, path, json=body), _PATIENCE)
            status, text = answer.status_code, answer.text
        except TimeoutError:
            status, text = 0, "no answer"
        yield _announce(method, path, body, status, text)
        if status != 503:
            return
        if attempt:
            _shim.disk_shim_repair()
        await asyncio.sleep(0.01 * attempt)


def _announce(method: str, path: str, body: dict | None, status: int, text: str) -> list:
    """Record an answer that leaves no socket, and return it."""
    answer = [method, path, body, status, text]
    announced = json.dumps(answer).encode()
    _shim.disk_shim_answer(announced, len(announced))
    return answer


def step_until_failure(policy: Path, folder: str, log: str, number: int) -> None:
    """Step a stream ten times, from where it is; end at once, as if killed, when the store fails, after its number-th flush."""
    from ecl2o.exceptions import UnavailableError
    from ecl2o.service import Service, Store, store
    from ecl2o.service.models import StepRequest

    store._PROBE_BYTES = 1 << 12
    logging.disable(logging.CRITICAL)
    start_recording(folder, log, Call.SYNC, number, errno.EIO, 1)
    try:
        service = Service(Store(f"sqlite:///{folder}/streams.db"))
        service.put_policy("small", policy.read_bytes())
        stream, _ = service.create_stream("a", "small", [0.0])
        service.warm_up()
        for step in range(stream.steps + 1, stream.steps + 11):
            (result,) = service.submit_steps([StepRequest("a", [float(step % 3)], step)]).result()
            _announce("POST", "/streams/a/steps", None, 200, result.json)
    except UnavailableError:
        pass


# `ecl2o act`


def act(policy: Path, arguments: list[str], lines: str, out: str) -> int:
    """Run `ecl2o act` in this process on a file of lines; return its exit code. Its messages follow in OUT.messages."""
    from ecl2o.cli.commands import app

    saved = os.dup(0), os.dup(1)
    given, taken = os.open(lines, os.O_RDONLY), os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(given, 0)
    os.dup2(taken, 1)
    streams = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout = open(0, closefd=False), io.TextIOWrapper(open(1, "wb", closefd=False))  # noqa: SIM115
    sys.stderr = io.StringIO()
    try:
        app(["act", str(policy), *arguments])
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except Exception:
        code = -1
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        Path(f"{out}.messages").write_text(sys.stderr.getvalue())
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, descriptor in enumerate(saved):
            os.dup2(descriptor, number)
        for descriptor in (*saved, given, taken):
            os.close(descriptor)
    return code


def record_act(policy: Path, folder: str, log: str, lines: str, out: str) -> None:
    """Record `ecl2o act --state` twice: the second run goes on after the first, which has half of the lines."""
    given = Path(lines).read_text().splitlines(keepends=True)
    for part, some in enumerate((given[: len(given) // 2], given[len(given) // 2 :])):
        Path(f"{lines}.{part}").write_text("".join(some))
        start_recording(folder, log)
        code = act(policy, ["--state", f"{folder}/state", "--x0", "0"], f"{lines}.{part}", f"{out}.{part}")
        _shim.disk_shim_stop()
        assert code == 0, Path(f"{out}.{part}.messages").read_text()


def fail_act_calls(policy: Path, folder: str, lines: str, calls: list[tuple[int, int, int]], out: str) -> None:
    """Run `act` with the n-th call failing, for each n; then, on a sound disk, send the lines again that have no answer."""
    given = Path(lines).read_text().splitlines(keepends=True)
    with open(out, "w") as results:
        for call, error, count in calls:
            for number in range(1, 1000):
                place = Path(folder) / f"{Call(call).name}-{error}-{count}-{number}"
                place.mkdir()
                arguments = ["--state", f"{place}/state", "--x0", "0"]
                start_recording(str(place), f"{place}.log", call, number, error, count)
                codes = [act(policy, arguments, lines, f"{place}.0")]
                fired = bool(_shim.disk_shim_fired())
                _shim.disk_shim_repair()
                answered = len(Path(f"{place}.0").read_text().splitlines())
                Path(f"{place}.lines").write_text("".join(given[answered:]))
                codes.append(act(policy, arguments, f"{place}.lines", f"{place}.1"))
                _shim.disk_shim_stop()
                results.write(json.dumps({"name": place.name, "fired": fired, "codes": codes}) + "\n")
                if not fired:
                    break


# The process


def prepare(policy: Path) -> None:
    service_forks.prepare(policy)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "lines").write_text('{"step": 1, "context": [1.0]}\n')
        for _ in range(2):  # start a state, and resume it
            act(policy, ["--state", f"{folder}/state", "--x0", "0"], f"{folder}/lines", f"{folder}/answers")


def main() -> None:
    policy, children = Path(sys.argv[1]), set()
    prepare(policy)
    runs = {run.__name__: run for run in (serve, fail_calls, step_until_failure, record_act, fail_act_calls)}
    try:
        for line in sys.stdin:
            arguments = json.loads(line)
            if "wait" in arguments:
                children.discard(arguments["wait"])
                print(os.waitpid(arguments["wait"], 0)[1], flush=True)
                continue
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    runs[arguments.pop("run")](policy, **arguments)
                    status = 0
                except BaseException:
                    logging.disable(logging.NOTSET)
                    logging.exception("the run failed")
                finally:
                    os._exit(status)
            children.add(child)
            print(child, flush=True)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
