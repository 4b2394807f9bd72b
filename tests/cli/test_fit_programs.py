"""The programs that `ecl2o fit` compiles: at most ten, eleven with a promise, and none for another file like it."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd

STEPS, MOST_PROGRAMS = 8, 10
COUNTING = """
import atexit, collections, json, sys
import jax
seen = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: seen.update([event.rsplit("/", 1)[-1]]))
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: seen.update([event.rsplit("/", 1)[-1]]))
atexit.register(lambda: print(json.dumps(seen), file=sys.stderr))
from ecl2o.cli import main
main()
"""


def fit_and_count(folder, days: int, *more: str) -> dict[str, int]:
    """Fit a series of so many days in a process of its own; return how often JAX traced, compiled, and read its cache."""
    steps = np.arange(days * STEPS)
    load = 5 + np.sin(2 * np.pi * steps / STEPS) + 0.2 * np.random.default_rng(days).normal(size=len(steps))
    table = pd.DataFrame({"time": pd.date_range("2024-01-01", periods=len(steps), freq="3h"), "load": load})
    table.to_csv(folder / f"{days}.csv", index=False)
    command = [
        sys.executable,
        "-c",
        COUNTING,
        "fit",
        str(folder / f"{days}.csv"),
        "--out",
        str(folder / f"{days}.ecl2o"),
        *more,
    ]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "programs"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = subprocess.run([*command, "--json"], env=os.environ | cache, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["chosen"]["average_cost"] >= 1
    return json.loads(done.stderr.splitlines()[-1])


def count_compiled(seen: dict[str, int]) -> int:
    """Return how many programs were compiled: JAX reports those that it reads from its cache as compiled, too."""
    return seen.get("backend_compile_duration", 0) - seen.get("cache_hits", 0)


def test_a_first_fit_compiles_at_most_ten_programs_and_a_second_file_none(tmp_path):
    first, second = fit_and_count(tmp_path, 95), fit_and_count(tmp_path, 108)
    assert 0 < count_compiled(first) <= MOST_PROGRAMS
    assert count_compiled(second) == 0
    assert "jaxpr_to_mlir_module_duration" not in second  # all executables are stored


def test_a_first_fit_with_a_promise_compiles_at_most_eleven_programs(tmp_path):
    assert 0 < count_compiled(fit_and_count(tmp_path, 95, "--promise", "2")) <= MOST_PROGRAMS + 1
