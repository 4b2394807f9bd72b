"""How long a restart takes: seconds until /healthz answers, and until every stream has made a step.

    python benchmarks/restart.py --streams 200

The streams have four kinds of policies and five history lengths, twenty programs in all. The first start is without kept
programs, the others with them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2

import ecl2o as ec
from ecl2o.service import Client
from ecl2o.service.http.startup import bind

LENGTHS = (24, 48, 168, 336, 720)
STARTS = 4


def make_policies() -> dict[str, ec.Policy]:
    """Return a regression and three simpler agents, behind guards."""
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    return {
        "ridge": ec.Policy(ec.Competitive(ec.advisors.OnlineRidge(24), 2.5, period=24), problem),
        "follow": ec.Policy(ec.Competitive(ec.HittingMinimizer(), 2.0), problem),
        "guarded": ec.Policy(ec.Guarded(ec.HittingMinimizer(), slack=0.5), problem),
        "robd": ec.Policy(ec.ROBD(), problem),
    }


def start(folder: Path, streams: list[str], create: bool) -> dict[str, float]:
    """Start the service; return the seconds until it is alive, and until every stream has made a step."""
    with bind("127.0.0.1", 0) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    files = [str(path) for path in sorted(folder.glob("*.ecl2o"))]
    command = [str(Path(sys.executable).with_name("ecl2o")), "serve", *files, "--port", url.rpartition(":")[2]]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    began, seconds = time.monotonic(), {}
    with subprocess.Popen(command, cwd=folder, env=environment) as process:
        try:
            while "alive" not in seconds:
                try:
                    if httpx2.get(f"{url}/healthz").status_code == 200:
                        seconds["alive"] = time.monotonic() - began
                except httpx2.TransportError:
                    time.sleep(0.01)
            with Client(url, patience=3600.0) as client:
                for number, stream in enumerate(streams if create else []):
                    length = LENGTHS[number % len(LENGTHS)]
                    names = list(make_policies())
                    past = [[float(hour % 24)] for hour in range(length)]
                    client.put_stream(stream, names[number // len(LENGTHS) % len(names)], [0.0], past)
                client.steps({stream: [1.0] for stream in streams})
                seconds["all streams"] = time.monotonic() - began
        finally:
            process.terminate()
    return seconds


def main() -> None:
    """Print the seconds of each start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    streams = [f"stream-{number}" for number in range(parser.parse_args().streams)]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name, policy in make_policies().items():
            ec.save(folder / f"{name}.ecl2o", policy)
        for number in range(STARTS):
            seconds = start(folder, streams, create=number == 0)
            load = os.getloadavg()[0]
            print(number, {name: round(value, 2) for name, value in seconds.items()}, f"load {load:.1f}", flush=True)


if __name__ == "__main__":
    main()
