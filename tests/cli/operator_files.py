"""A small series and a policy trained on it, for the tests of the operators' commands."""

import csv
import datetime
import math
import random
from pathlib import Path

DAYS, STEPS = 24, 4  # six-hourly rows


def write_series(path: Path, days: float = DAYS, hours: int = 6, scale: float = 1.0) -> Path:
    """A wavy demand, a second column, and one that holds no numbers."""
    chance = random.Random(4)
    start = datetime.datetime(2024, 1, 1)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["time", "demand", "supply", "note"])
        for row in range(int(days * 24 // hours)):
            time = start + datetime.timedelta(hours=hours * row)
            wave = 3 + math.sin(2 * math.pi * row * hours / 24)
            demand, supply = scale * (wave + chance.gauss(0, 0.4)), scale * (2 + chance.gauss(0, 0.3))
            writer.writerow([time.isoformat(sep=" "), demand, supply, "fine"])
    return path


def demands(path: Path) -> list[float]:
    with path.open(encoding="utf-8") as file:
        return [float(row["demand"]) for row in csv.DictReader(file)]
