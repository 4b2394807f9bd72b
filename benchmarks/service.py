"""Compare the service with a bare endpoint that appends the same row: `python benchmarks/service.py` (needs `wrk`).

Both servers run in their own process, on uvicorn, FastAPI and SQLite with synchronous=FULL; both gather the requests that
wait into one transaction. `wrk` loads them over loopback by turns.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

_STREAMS = 100
_CALLS = 5  # of many streams in one request
_SCRIPT = """
local count = 0
request = function()
  count = count + 1
  local stream = "s" .. (count % {streams})
  local body = string.format('{{"context":[%d.5]}}', count % 7)
  return wrk.format("POST", "/streams/" .. stream .. "/steps", {{["content-type"] = "application/json"}}, body)
end
done = function(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format('\\n{{"rate": %f, "p50": %f, "p99": %f, "failed": %d}}\\n', summary.requests / summary.duration * 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, failed))
end
"""


def bare(folder: str, port: int) -> None:
    """Serve a FastAPI endpoint that appends a row of `StepRecord` to SQLite, with group commit."""
    import asyncio
    import queue
    import sqlite3
    import threading
    from concurrent.futures import Future

    import uvicorn
    from fastapi import FastAPI
    from fastapi.responses import Response

    from ecl2o.service.http.api import NewStep
    from ecl2o.service.models import StepRecord

    lists = ("action", "context", "context_used")
    fields: dict[str, Any] = {
        field.name: [0.5] if field.name in lists else 0.123456789012345 for field in dataclasses.fields(StepRecord)
    }
    waiting: queue.SimpleQueue[tuple[Future, tuple]] = queue.SimpleQueue()
    statement = f"INSERT INTO steps VALUES ({', '.join('?' * (len(fields) + 1))})"

    def write() -> None:
        connection = sqlite3.connect(Path(folder) / "bare.db", isolation_level=None)
        for command in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL"):
            connection.execute(command)
        connection.execute(f"CREATE TABLE steps (stream TEXT, {', '.join(fields)})")
        while True:
            rows = [waiting.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    rows.append(waiting.get_nowait())
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(statement, [row for _, row in rows])
            connection.execute("COMMIT")
            for future, _ in rows:
                future.set_result(None)

    app = FastAPI()
    threading.Thread(target=write, daemon=True).start()

    @app.post("/streams/{stream}/steps")
    async def append(stream: str, body: NewStep):
        context = body.context if isinstance(body.context, list) else [body.context]
        record = StepRecord(**fields | {"context": context, "at": time.time()})
        values = [json.dumps(value) if isinstance(value, list) else value for value in vars(record).values()]
        future: Future = Future()
        waiting.put((future, (stream, *values)))
        await asyncio.wrap_future(future)
        return Response(record.to_json(), media_type="application/json")

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


@contextlib.contextmanager
def server(command: list[str], port: int):
    """Run a server in its own process."""
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(1200):
                with contextlib.suppress(httpx2.TransportError):
                    if httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code in (200, 404):
                        break
                time.sleep(0.1)
            yield process
        finally:
            process.terminate()


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def load(port: int, connections: int, seconds: int, script: Path) -> dict[str, float]:
    """Return requests per second, and the median and 99th percentile in ms, of single steps."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s", "-s", str(script)]
    printed = subprocess.run([*command, f"http://127.0.0.1:{port}"], check=True, capture_output=True, text=True).stdout
    found = json.loads(printed.strip().splitlines()[-1])
    assert found.pop("failed") == 0, printed
    return found


def call_for_many(port: int, streams: int) -> float:
    """Return steps per second of one request for many streams, the best of some."""
    contexts = {f"s{number}": [float(number % 7)] for number in range(streams)}
    fastest = np.inf
    for _ in range(_CALLS):
        start = time.perf_counter()
        answer = httpx2.post(f"http://127.0.0.1:{port}/steps", json=contexts, timeout=300).json()
        fastest = min(fastest, time.perf_counter() - start)
        assert len(answer["answered"]) == streams
    return streams / fastest


def fill(store: str, policy: Path, streams: int) -> None:
    """Write streams directly to the store: creating them is not measured."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from ecl2o.service import Service, Store, queries

    service = Service(Store(store))
    service.put_policy("policy", policy.read_bytes())
    service.create_stream("s0", "policy", [0.0])
    with service.store.begin_write() as connection:
        first = queries.find_stream(connection, "s0")
        assert first is not None
        state = queries.load_states(connection, [first.key])[first.key]
        fingerprint = queries.find_fingerprint(connection, "policy")
        assert fingerprint is not None
        for number in range(1, streams):
            stream = dataclasses.replace(first.record, id=f"s{number}")
            queries.add_stream(connection, stream, fingerprint, first.request_hash, state)
    service.close()


def memory(process: subprocess.Popen) -> int:
    """Return the resident bytes of a process."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve_command(store: str, port: int) -> list[str]:
    """Return the command of a service."""
    return [str(Path(sys.executable).with_name("ecl2o")), "serve", "--store", store, "--port", str(port)]


def compare_single_steps(folder: str, policy: Path, seconds: int, rounds: int) -> None:
    """Load the service and the bare endpoint by turns; print medians over the rounds."""
    script, store = Path(folder) / "load.lua", f"sqlite:///{folder}/single.db"
    script.write_text(_SCRIPT.format(streams=_STREAMS))
    fill(store, policy, _STREAMS)
    ports = {"bare": free_port(), "service": free_port()}
    with (
        server([sys.executable, __file__, "--bare", folder, str(ports["bare"])], ports["bare"]),
        server(serve_command(store, ports["service"]), ports["service"]),
    ):
        for connections in (64, 1):
            found: dict[str, list[dict[str, float]]] = {name: [] for name in ports}
            for port in ports.values():
                load(port, connections, 2, script)
            for _ in range(rounds):
                for name, port in ports.items():
                    found[name].append(load(port, connections, seconds, script))
            medians = {
                name: {key: np.median([one[key] for one in all_]) for key in all_[0]} for name, all_ in found.items()
            }
            for name, median in medians.items():
                figures = f"{median['rate']:.0f} a second, p50 {median['p50']:.1f} ms, p99 {median['p99']:.1f} ms"
                print(f"{name}, {connections} connections: {figures}", flush=True)
            ratios = [medians["service"][key] / medians["bare"][key] for key in ("rate", "p50", "p99")]
            print("service over bare: throughput {:.2f}, p50 {:.2f}, p99 {:.2f}".format(*ratios), flush=True)


def main() -> None:
    """Measure and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=8, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=10_000, help="in one request")
    parser.add_argument("--bare", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        bare(options.bare[0], int(options.bare[1]))
        return
    import ecl2o as ec

    with tempfile.TemporaryDirectory() as folder:
        problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
        policy = Path(folder) / "policy.ecl2o"
        ec.save(policy, ec.Policy(ec.Competitive(ec.Greedy(), ratio=2.5), problem))
        compare_single_steps(folder, policy, options.seconds, options.rounds)
        rates = {}
        for streams in (_STREAMS, options.streams):
            store, port = f"sqlite:///{folder}/{streams}.db", free_port()
            fill(store, policy, streams)
            with server(serve_command(store, port), port) as process:
                before = memory(process)
                rates[streams] = call_for_many(port, streams)
                grown = (memory(process) - before) / streams / 1024
                print(
                    f"{streams} streams in a call: {rates[streams]:.0f} steps/s, {grown:.1f} KiB per stream", flush=True
                )
        print(
            f"time per step, {options.streams} streams over {_STREAMS}: {rates[_STREAMS] / rates[options.streams]:.2f}"
        )


if __name__ == "__main__":
    main()
