"""An operator's days, with real processes: a supervisor that kills, bad readings, a stuck meter, a missing hour, a rival."""

import csv
import datetime
import json
import os
import random
import signal
import subprocess
import sys

import numpy as np
import pytest

import ecl2o as ec

COMMAND = [sys.executable, "-c", "from ecl2o.cli import main; main()"]
ENVIRONMENT = os.environ | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
WINTER, SUMMER = (datetime.timezone(datetime.timedelta(hours=h)) for h in (-8, -7))
START, CHANGE = (
    datetime.datetime(2024, month, day, 8 + hour, tzinfo=datetime.UTC) for month, day, hour in ((2, 20, 0), (3, 10, 2))
)
DAYS, HOURS = 26, 58  # in the raw file, and served after it
BOUNDS, PROMISE = (0.0, 60.0), 2.5
MISSING, BAD, ZERO, SECOND = 5, 10, 15, 20  # hours at which something happens
STUCK = range(40, 46)  # hours with the reading of the first of them
KILLS = dict(zip(random.Random(1).sample(range(1, HOURS), 2), ("after the answer", "before the answer"), strict=True))


def local(hour):
    time = START + datetime.timedelta(hours=hour)
    return time.astimezone(WINTER if time < CHANGE else SUMMER).isoformat()


def demand(hours):
    rng = np.random.default_rng(5)
    day = 2 * np.pi * np.arange(hours) / 24
    return (
        25 + 6 * np.sin(day) + 2 * np.cos(2 * day) + np.cumsum(rng.normal(0, 0.15, hours)) + rng.normal(0, 0.3, hours)
    )


@pytest.fixture(scope="module")
def series():
    return demand((DAYS * 24) + HOURS)


@pytest.fixture(scope="module")
def policy(tmp_path_factory, series):
    """Fitted on a file with a change of the clocks, gaps, and two values in the wrong unit."""
    folder = tmp_path_factory.mktemp("site")
    with (folder / "raw.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(["time", "demand"])
        for hour in range(DAYS * 24):
            if hour not in (100, 300, 301):
                writer.writerow([local(hour), series[hour] * (1000 if hour in (200, 350) else 1)])
    options = ["--alpha", "10", "--promise", PROMISE, "--bounds", "0:60", "--contexts", "0:60", "--advisor", "ridge"]
    options += ["--fill", "interpolate", "--training-days", "17", "--validation-days", "4", "--json"]
    made = subprocess.run(
        [*COMMAND, "fit", folder / "raw.csv", "--out", folder / "site.ecl2o", *map(str, options)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert made.returncode == 0, made.stderr
    assert "2 implausible readings" in made.stderr
    return folder / "site.ecl2o"


class Served:
    """`act` under a supervisor: what has no answer is sent again to the next process."""

    def __init__(self, policy, state):
        self.command = [*COMMAND, "act", str(policy), "--state", str(state)]
        self.answers, self.starts = [], 0
        self.start()

    def start(self):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            self.command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT
        )
        self.starts += 1

    def tell(self, line):
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()
        self.start()

    def hour(self, line, kill):
        self.tell(line)
        if kill == "before the answer":
            self.kill()
            self.tell(line)
        self.answers.append(json.loads(self.process.stdout.readline()))
        if kill == "after the answer":
            self.kill()


def test_an_operators_days(policy, series, tmp_path):
    state, fresh = tmp_path / "run.state", series[DAYS * 24 :].copy()
    fresh[STUCK] = fresh[STUCK[0]]
    served = Served(policy, state)
    for hour in range(HOURS):
        if hour == MISSING:
            continue
        reading = float(fresh[hour]) * {BAD: 1000, ZERO: 0}.get(hour, 1)
        served.hour({"time": local(DAYS * 24 + hour), "demand": reading}, KILLS.get(hour))
        if hour == SECOND:
            second = subprocess.run(served.command, input="25\n", capture_output=True, text=True, env=ENVIRONMENT)
            assert (second.returncode, second.stdout) == (1, "")
            assert "run.state.lock" in second.stderr
            assert "--state" in second.stderr
    served.process.communicate(timeout=120)
    assert served.process.returncode == 0
    assert served.starts == 1 + len(KILLS)

    answers, loaded = served.answers, ec.load(policy)
    assert [answer["step"] for answer in answers] == list(range(1, HOURS))  # no step twice, none lost
    assert ec.Runner.resume(loaded, state).steps == HOURS  # the missing hour was filled in
    assert [answer["step"] for answer in answers if "filled" in answer] == [MISSING + 1]
    assert [answer["step"] for answer in answers if "screened" in answer] == [BAD, ZERO]
    assert [answer["step"] for answer in answers if "stuck" in answer] == list(
        STUCK[2:]
    )  # all readings of training differ
    assert not any("unconverged" in answer for answer in answers)  # the promise goes on
    actions = np.array([answer["action"][0] for answer in answers])
    assert (actions >= BOUNDS[0]).all()
    assert (actions <= BOUNDS[1]).all()

    used = fresh.copy()
    used[MISSING] = fresh[MISSING - 1]
    for hour in (BAD, ZERO):
        (used[hour],) = answers[hour - 1]["context_used"]
        assert used[hour] == fresh[hour - 1]
    best = ec.oracle(loaded.problem, ec.Instance(loaded.history[-1], used[:, None]))
    assert answers[-1]["cost"] <= PROMISE * float(best.cost) * (1 + 1e-9)
    assert max(answer["live_ratio"] for answer in answers if "live_ratio" in answer) <= PROMISE * (1 + 1e-9)

    runner = ec.Runner(loaded, loaded.history[-1], loaded.history)
    clean = np.array([runner.step([context])[0] for context in fresh])
    late = slice(ZERO + 24, None)
    played = np.insert(actions, MISSING, np.nan)
    assert np.abs(played[late] - clean[late]).max() <= 0.01 * np.ptp(series)
