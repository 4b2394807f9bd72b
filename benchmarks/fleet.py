"""Many sites: `ecl2o fleet fit` beside one `ecl2o fit` after the other, in one process and in two, with a kill and broken sites.

    python benchmarks/fleet.py site1.csv site2.csv site3.csv            everything, with 200 sites: an hour on two idle cores
    python benchmarks/fleet.py site1.csv --sites 20 --singles 2 --only alone,one

Sites are made of the given weather files and the built-in year: shifted by whole days, scaled, seeded. Everything runs in new
processes with an empty cache of compiled programs, so that importing and compiling count. Times are processor seconds (of a
process and its children), which other load on the machine hardly changes, and seconds on the clock.
"""

import argparse
import contextlib
import csv
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import psutil

from ecl2o.data import weather_contexts

PROGRAM = Path(sys.executable).with_name("ecl2o")
PARTS = ("alone", "growth", "one", "two", "kill", "broken")


class Run(NamedTuple):
    """What a command took; memory is the largest of any of its processes."""

    seconds: float
    processor: float
    megabytes: float


def make_sites(folder: Path, weather: Sequence[Path], count: int, seed: int = 0) -> Path:
    """Series and a manifest."""
    rng = np.random.default_rng(seed)
    sources = [weather_contexts(file) for file in (None, *weather)]
    with (folder / "sites.csv").open("w", newline="") as file:
        manifest = csv.writer(file)
        manifest.writerow(["name", "file"])
        for number in range(count):
            source = sources[number % len(sources)]
            hours = source.values[: 365 * 24, 0] / source.scale
            values = np.roll(hours, 24 * rng.integers(365)) * rng.lognormal()
            frame = pd.DataFrame(
                {"demand": values}, pd.date_range("2015-01-01", periods=len(values), freq="h", name="time")
            )
            frame.to_csv(folder / f"{number:03d}.csv")
            manifest.writerow([f"site-{number:03d}", f"{number:03d}.csv"])
    return folder / "sites.csv"


def first_sites(manifest: Path, count: int) -> Path:
    """A manifest with the first so many sites only."""
    part = manifest.with_name(f"first-{count}.csv")
    part.write_text("\n".join(manifest.read_text().splitlines()[: count + 1]) + "\n")
    return part


def run(folder: Path, *arguments: object, core: int | None = None) -> Run:
    """A command in a new process, with an empty cache; on one core if that is wanted."""
    cache = tempfile.mkdtemp(dir=folder)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("JAX_")} | {
        "XDG_CACHE_HOME": cache
    }
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [*pinned, PROGRAM, *map(str, arguments)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        processor, megabytes = watched(process)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    ended = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(seconds, max(ended, processor), megabytes)


def watched(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    """Processor seconds of a process and all that came of it, as last seen, and the most megabytes that one of them had.

    Nobody waits for workers that were forked, so that they are in no account of the children's resources.
    """
    seconds: dict[int, float] = {}
    most = 0
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(process.pid)
            for each in (first, *first.children(recursive=True)):
                seconds[each.pid] = sum(each.cpu_times()[:2])
                most = max(most, each.memory_info().rss)
        time.sleep(0.2)
    return sum(seconds.values()), most / 2**20


def rows(folder: Path) -> pd.DataFrame:
    """The table of a fleet, policies by their hash."""
    return pd.read_parquet(folder / "sites.parquet").set_index("name")


def killed(folder: Path, manifest: Path, out: Path, options: Sequence[object]) -> str:
    """A fleet on two workers, one of which is killed as soon as the first chunk is there."""
    process = subprocess.Popen([PROGRAM, "fleet", "fit", manifest, "--out", out, *map(str, options), "--workers", "2"])
    while process.poll() is None and not ((out / "fitted.jsonl").exists() and (out / "fitted.jsonl").stat().st_size):
        time.sleep(0.2)
    workers = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "multiprocessing" in " ".join(child.cmdline()) and child.num_threads() > 4
    ]
    victim = max(workers, key=lambda child: child.memory_info().rss)
    os.kill(victim.pid, signal.SIGKILL)
    process.wait()
    return f"worker {victim.pid} of {len(workers)} killed; exit code {process.returncode}"


def break_sites(folder: Path, manifest: Path) -> Path:
    """The manifest with ten of its sites broken in ten ways."""
    lines = manifest.read_text().splitlines()
    good = (folder / "000.csv").read_text().splitlines()
    texts = {
        "empty": "",
        "words": "\n".join([*good[:50], good[50].split(",")[0] + ",many", *good[51:]]),
        "gap": "\n".join([*good[:90], *good[95:]]),
        "short": "\n".join(good[:500]),
        "constant": "\n".join([good[0], *(line.split(",")[0] + ",7" for line in good[1:])]),
        "untimed": "\n".join(line.split(",")[1] for line in good),
    }
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text)
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 50)
    broken = [f"broken-{name},{name}.csv,,," for name in (*texts, "binary")]
    broken += ["broken-missing,nowhere.csv,,,", "broken-alpha,001.csv,ten,,", "broken-promise,001.csv,,1.01,"]
    path = folder / "broken.csv"
    path.write_text(
        "\n".join(["name,file,alpha,promise,column", *(f"{line},,," for line in lines[1:-10]), *broken]) + "\n"
    )
    return path


def main() -> None:
    """Print one line for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weather", nargs="*", type=Path)
    parser.add_argument("--sites", type=int, default=200)
    parser.add_argument("--few", type=int, default=20, help="where growth begins")
    parser.add_argument("--singles", type=int, default=10, help="fitted one after the other, and extrapolated")
    parser.add_argument("--advisor", default="ridge")
    parser.add_argument("--memory", type=float, default=4.0)
    parser.add_argument("--only", default=",".join(PARTS))
    chosen = parser.parse_args()
    parts = chosen.only.split(",")
    options = ["--promise", 2, "--advisor", chosen.advisor]
    fleet = [*options, "--memory", chosen.memory]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = make_sites(folder, chosen.weather, chosen.sites)
        alone = one = None
        if "alone" in parts:
            taken = [
                run(folder, "fit", folder / f"{i:03d}.csv", *options, "--out", folder / "p.ecl2o")
                for i in range(chosen.singles)
            ]
            alone = sum(each.processor for each in taken) / len(taken)
            clock = sum(each.seconds for each in taken) / len(taken)
            print(
                f"ecl2o fit, mean of {len(taken)}: {alone:.1f} processor s, {clock:.1f} s, {taken[-1].megabytes:.0f} MB",
                flush=True,
            )
        if "growth" in parts:
            few = run(folder, "fleet", "fit", first_sites(manifest, chosen.few), *fleet, "--out", folder / "few")
            print(
                f"fleet of {chosen.few}, one process: {few.processor / chosen.few:.2f} processor s a site, {few}",
                flush=True,
            )
        if "one" in parts:
            one = run(folder, "fleet", "fit", manifest, *fleet, "--out", folder / "one", core=0)
            print(
                f"fleet of {chosen.sites}, one process, one core: {one.processor / chosen.sites:.2f} processor s a site, {one}"
            )
            print(f"memory: {one.megabytes:.0f} MB of {1024 * chosen.memory:.0f}", flush=True)
            if alone is not None:
                print(
                    f"one by one, extrapolated, over one process: {alone * chosen.sites / one.processor:.1f} times",
                    flush=True,
                )
        if "two" in parts:
            two = run(folder, "fleet", "fit", manifest, *fleet, "--out", folder / "two", "--workers", 2)
            print(f"two workers: {two}")
            if one is not None:
                print(f"one core over two workers: {one.seconds / two.seconds:.2f} times on the clock")
                print(f"equal: {rows(folder / 'one').equals(rows(folder / 'two'))}", flush=True)
        if "kill" in parts:
            print(killed(folder, manifest, folder / "kill", fleet))
            found = rows(folder / "kill")
            print(f"after the kill: {(found.status == 'fitted').sum()} of {len(found)} fitted")
            if one is not None:
                print(f"equal: {rows(folder / 'one').equals(found)}", flush=True)
        if "broken" in parts:
            run(folder, "fleet", "fit", break_sites(folder, manifest), *fleet, "--out", folder / "broken")
            found = rows(folder / "broken")
            print(
                f"broken: {(found.status == 'failed').sum()} rows with reasons, {(found.status == 'fitted').sum()} policies"
            )
            print(found[found.status == "failed"].reason.to_string())


if __name__ == "__main__":
    main()
