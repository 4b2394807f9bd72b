"""Compare the service with a bare endpoint that only appends a row: `python benchmarks/service.py`.

Both servers run in their own process, over HTTP on loopback, on SQLite with synchronous=FULL.
"""

import argparse
import asyncio
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

import httpx2
import numpy as np

CLIENTS = 64
_ROUNDS = 5


def bare(folder: str, port: int) -> None:
    """Serve a FastAPI endpoint that appends a row to SQLite."""
    import sqlite3

    import uvicorn
    from fastapi import FastAPI, Request

    connection = sqlite3.connect(Path(folder) / "bare.db", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(
        "CREATE TABLE steps (stream TEXT, step INTEGER, at REAL, context TEXT, action TEXT, figures TEXT)"
    )
    app = FastAPI()

    @app.post("/streams/{stream}/steps")
    async def append(stream: str, request: Request):
        asked = await request.json()
        row = (stream, asked["step"], time.time(), json.dumps(asked["context"]), "[0.0]", "[0,0,0,0,0,0,0]")
        connection.execute("INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?)", row)
        return {"step": asked["step"], "action": [0.0]}

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


@contextlib.contextmanager
def server(command: list[str], port: int):
    """Run a server in its own process."""
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(1200):
                with contextlib.suppress(httpx2.TransportError):
                    httpx2.get(f"http://127.0.0.1:{port}/docs", timeout=5)
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


async def single_steps(url: str, requests: int) -> tuple[float, float]:
    """Return steps per second and the 99th percentile in ms: 64 clients, one stream each, one request per step."""
    times: list[float] = []

    async def one(client: httpx2.AsyncClient, stream: str) -> None:
        for step in range(1, requests // CLIENTS + 1):
            began = time.perf_counter()
            answer = await client.post(f"/streams/{stream}/steps", json={"step": step, "context": [1.0]})
            answer.raise_for_status()
            times.append(time.perf_counter() - began)

    limits = httpx2.Limits(max_connections=CLIENTS)
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=120) as client:
        began = time.perf_counter()
        await asyncio.gather(*(one(client, f"s{number}") for number in range(CLIENTS)))
        return len(times) / (time.perf_counter() - began), 1000 * float(np.quantile(times, 0.99))


def batches(url: str, streams: int, rounds: int) -> float:
    """Return steps per second of one request for all streams, the best of some rounds."""
    asked = {f"s{number}": [float(number % 7)] for number in range(streams)}
    fastest = np.inf
    for _ in range(rounds):
        began = time.perf_counter()
        answer = httpx2.post(f"{url}/steps", json=asked, timeout=300).json()
        fastest = min(fastest, time.perf_counter() - began)
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
        for number in range(1, streams):
            stream = dataclasses.replace(first.record, id=f"s{number}")
            queries.add_stream(connection, stream, first.request_hash, state)
    service.close()


def memory(process: subprocess.Popen) -> int:
    """Return the resident bytes of a process."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def busy(process: subprocess.Popen) -> float:
    """Return the CPU seconds of a process, which hardly depend on the load of the machine."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3200)
    parser.add_argument("--streams", type=int, default=10_000)
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
        port = free_port()
        with server([sys.executable, __file__, "--bare", folder, str(port)], port) as process:
            worked = busy(process)
            rate, tail = asyncio.run(single_steps(f"http://127.0.0.1:{port}", options.requests))
            worked = 1000 * (busy(process) - worked) / options.requests
        print(f"bare endpoint: {rate:.0f} rows/s, p99 {tail:.0f} ms, {worked:.2f} ms of CPU each", flush=True)
        together = {}
        for streams in (100, options.streams):
            store, port = f"sqlite:///{folder}/{streams}.db", free_port()
            fill(store, policy, streams)
            command = [str(Path(sys.executable).with_name("ecl2o")), "serve", "--store", store, "--port", str(port)]
            with server(command, port) as process:
                url = f"http://127.0.0.1:{port}"
                before, worked = memory(process), busy(process)
                if streams == 100:
                    single, single_tail = asyncio.run(single_steps(url, options.requests))
                    print(
                        f"service, single steps: {single:.0f} steps/s ({single / rate:.2f} of bare), p99 {single_tail:.0f} ms, "
                        f"{1000 * (busy(process) - worked) / options.requests:.2f} ms of CPU each",
                        flush=True,
                    )
                worked = busy(process)
                together[streams] = batches(url, streams, _ROUNDS)
                grown, worked = (memory(process) - before) / streams, (busy(process) - worked) / streams / _ROUNDS
                print(
                    f"service, {streams} streams in a call: {together[streams]:.0f} steps/s, {1000 * worked:.2f} ms of CPU each, "
                    f"{grown / 1024:.1f} KiB per stream",
                    flush=True,
                )
        largest = together[options.streams]
        print(f"{options.streams} in a call over one request per step: {largest / single:.1f}")
        print(f"time per step, {options.streams} streams over 100: {together[100] / largest:.2f}")


if __name__ == "__main__":
    main()
