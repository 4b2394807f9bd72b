"""CPU seconds of `ecl2o fit` and `ecl2o evaluate`, cold and warm, beside `python -c "import jax, pandas"`.

Run: python benchmarks/fit_time.py [--rounds 3] [--only warm]

Warm: the cache of compiled programs was filled by another file of another length. Seconds are user + system time of the
process; commands and the import take turns, and the median of the rounds is printed. Python's bytecode is compiled before,
as an installation does.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

IMPORT = [sys.executable, "-c", "import jax, pandas"]
RUN = "from ecl2o.cli import main; main()"
MODULES = "import ecl2o.cli.commands, ecl2o.fitting.pipeline, ecl2o.policy.executable_cache, scipy.linalg"
COUNT = """
import atexit, collections, os
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as the command line does before NumPy is imported
import jax
seen = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: seen.update([event]))
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: seen.update([event]))
compiled = lambda: seen["/jax/core/compile/backend_compile_duration"] - seen["/jax/compilation_cache/cache_hits"]
atexit.register(lambda: os.write(2, f"\\nprograms {compiled()}".encode()))
"""


def write_series(path: Path, days: int, steps_per_day: int, seed: int) -> Path:
    """Write a load-like series: a daily and a weekly cycle, and noise that forgets half of itself in some six hours."""
    draw, n = np.random.default_rng(seed), days * steps_per_day
    day = np.arange(n) / steps_per_day
    keep = 0.9 ** (24 / steps_per_day)
    noise = np.zeros(n)
    for t in range(1, n):
        noise[t] = keep * noise[t - 1] + np.sqrt(1 - keep**2) * draw.normal()
    load = (
        50
        + 12 * np.sin(2 * np.pi * day)
        + 4 * np.sin(4 * np.pi * day + 1)
        + 3 * np.sin(2 * np.pi * day / 7)
        + 4 * noise
    )
    times = pd.date_range("2022-01-01", periods=n, freq=pd.Timedelta(days=1) / steps_per_day)
    pd.DataFrame({"time": times, "load": load.round(3)}).to_csv(path, index=False)
    return path


def cpu_seconds(command: list[str], cache: Path) -> tuple[float, str]:
    """Run a command with its own cache folder; return its user + system seconds, and how many programs it compiled."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    dropped = ("JAX_", "XLA_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    kept |= {"XDG_CACHE_HOME": str(cache), "PYTHONPYCACHEPREFIX": str(cache.parent / "bytecode")}
    done = subprocess.run(command, check=True, capture_output=True, env=kept)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    programs = done.stderr.decode().rpartition("programs ")[2]
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, programs


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3, help="of warm commands")
    parser.add_argument("--only", choices=["warm", "cold"], help="default: both")
    options = parser.parse_args()
    ecl2o = [sys.executable, "-c", COUNT + RUN]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        year, other = write_series(folder / "a.csv", 365, 24, 0), write_series(folder / "b.csv", 340, 24, 1)
        five, short = write_series(folder / "c.csv", 365, 288, 2), write_series(folder / "d.csv", 100, 24, 3)
        policy, warm = str(folder / "policy.ecl2o"), folder / "warm"

        def fit(path: Path, *more: str) -> list[str]:
            return [*ecl2o, "fit", str(path), "--out", policy, *more]

        promise = ("--promise", "2")
        evaluate = [*ecl2o, "evaluate", policy]
        rows = []
        for command in (IMPORT, [*ecl2o, "fit", "--help"], [sys.executable, "-c", MODULES]):
            cpu_seconds(command, folder / "first")
        if options.only != "cold":
            for command in (fit(other, *promise), fit(other), [*evaluate, str(other)]):
                cpu_seconds(command, warm)
            rows += [("`fit`, a year, warm", fit(year), warm), ("the same with a promise", fit(year, *promise), warm)]
            rows += [("`fit`, a year, warm, once more", fit(year), warm)]  # for the policy of the next row
            rows += [("`evaluate`, a year, warm", [*evaluate, str(year)], warm)]
        if options.only != "warm":
            rows += [
                ("`fit`, 100 days, cold", fit(short), None),
                ("the same with a promise", fit(short, *promise), None),
            ]
            rows += [("`fit`, a year, cold", fit(year), None), ("the same with a promise", fit(year, *promise), None)]
            rows += [("`fit`, a year of five-minute rows, cold", fit(five), None)]
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
        print("| command | CPU seconds | times the import | programs compiled |\n|---|---|---|---|")
        for number, (label, command, cache) in enumerate(rows):
            took, imports, programs = [], [], ""
            for _ in range(options.rounds if cache else 1):
                imports.append(cpu_seconds(IMPORT, warm)[0])
                seconds, programs = cpu_seconds(command, cache or folder / f"cold-{number}")
                took.append(seconds)
            seconds, imported = statistics.median(took), statistics.median(imports)
            print(f"| {label} | {seconds:.1f} | {seconds / imported:.1f} | {programs} |", flush=True)


if __name__ == "__main__":
    main()
