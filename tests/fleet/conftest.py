"""A few tiny sites, and one local cluster of two processes for all tests."""

import csv
import datetime
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ecl2o.fitting.settings import FitSettings, PromiseSpec
from ecl2o.fleet.cluster import cluster

SETTINGS = FitSettings(5.0, "ridge", PromiseSpec(2.2, "day"), steps=2)
SPLIT = {"training_days": "14", "validation_days": "4"}


def write_series(path: Path, seed: int, days: int = 24, scale: float = 1.0) -> Path:
    """Six-hourly rows of a wavy demand."""
    chance, start = random.Random(seed), datetime.datetime(2024, 1, 1)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["time", "demand"])
        for row in range(days * 4):
            demand = scale * (3 + math.sin(math.pi * (row + seed) / 2) + chance.gauss(0, 0.4))
            writer.writerow([(start + datetime.timedelta(hours=6 * row)).isoformat(sep=" "), demand])
    return path


def write_manifest(path: Path, rows: list[dict[str, str]]) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="session")
def manifest(tmp_path_factory) -> Path:
    """Five sites of one shape, of different sizes, alphas and promises."""
    folder = tmp_path_factory.mktemp("sites")
    rows = []
    for number in range(5):
        file = write_series(folder / f"{number}.csv", number, scale=10.0**number)
        rows.append({"name": f"site {number}", "file": file.name, **SPLIT, "alpha": str(4 + number), "promise": "2.5"})
    rows[0]["promise"] = ""
    return write_manifest(folder / "manifest.csv", rows)


@pytest.fixture(scope="package")
def client():
    """Two processes, which end with the last test of this folder: idle ones keep a core from the other tests."""
    with cluster(workers=2) as found:
        yield found


@pytest.fixture
def scheduler():
    """The address of a scheduler in another process, with one worker."""
    here = "processes=False, threads_per_worker=1, protocol='tcp', host='127.0.0.1', dashboard_address=None"
    start = f"from distributed import LocalCluster; import sys\nwith LocalCluster(n_workers=1, {here}) as cluster:\n"
    start += "    print(cluster.scheduler_address, flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", start], **pipes) as process:
        yield process.stdout.readline().strip()
        process.stdin.close()
