"""An operator's days, with real processes: a supervisor that kills, bad readings, a stuck meter, missing hours, a rival.

The second run starts at 13:00, goes over a change of clocks and has a gap of 30 hours; the service gets the same requests.
"""

import csv
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import zoneinfo

import numpy as np
import pytest

import ecl2o as ec
from ecl2o.policy import Contract
from ecl2o.policy.contract import FileFormat
from ecl2o.running import plausible_range, stuck_limits
from ecl2o.service import Service, Store
from ecl2o.service.models import StepRequest

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


ZONE = zoneinfo.ZoneInfo("America/Los_Angeles")
FIRST = datetime.datetime(
    2024, 11, 1, 20, tzinfo=datetime.UTC
)  # 13:00 on the local clock, which goes back on 3 November
LENGTH, GAP = 100, range(50, 80)
KILL = {20: "after the answer", 37: "before the answer"}  # 37: the hour that the local clock shows twice


@pytest.fixture(scope="module")
def daily_policy(tmp_path_factory, series):
    """A learner behind a promise for each day, on the local clock of a zone; its history ends an hour before the run."""
    history = series[: DAYS * 24, None]
    contract = Contract(
        columns=["demand"],
        step_minutes=60.0,
        steps_per_day=24,
        day_start_minutes=0,
        history_until=str((FIRST - datetime.timedelta(hours=1)).astimezone(ZONE).replace(tzinfo=None)),
        plausible=plausible_range(history),
        stuck_after=stuck_limits(history),
        accepted_after=24,
        file_format=FileFormat(time_zone=ZONE.key),
    )
    problem = ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=10.0, dim=1))
    agent = ec.Competitive(ec.advisors.OnlineRidge(24), PROMISE, period=24)
    path = tmp_path_factory.mktemp("daily") / "daily.ecl2o"
    ec.save(path, ec.Policy(agent, problem, contract=contract, history=history))
    return path


def test_a_start_at_13_a_change_of_clocks_and_a_gap_of_30_hours(daily_policy, series, tmp_path):
    fresh = series[DAYS * 24 :][np.arange(LENGTH) % HOURS].copy()
    fresh[STUCK] = fresh[STUCK[0]]
    times = [(FIRST + datetime.timedelta(hours=hour)).astimezone(ZONE) for hour in range(LENGTH)]
    sent = {h: 0.0 if h == ZERO else float(fresh[h]) for h in range(LENGTH) if h not in GAP}
    served = Served(daily_policy, tmp_path / "daily.state")
    for hour, reading in sent.items():
        served.hour({"time": times[hour].isoformat(), "demand": reading}, KILL.get(hour))
    served.process.communicate(timeout=120)
    assert served.process.returncode == 0
    answers = dict(zip(sent, served.answers, strict=True))
    (again,) = (hour for hour in range(LENGTH) if times[hour].fold)
    assert times[again].hour == 1
    assert again in KILL
    assert answers[again]["action"] == answers[again - 1]["action"]
    assert [hour for hour, answer in answers.items() if "filled" in answer] == [GAP[-1] + 1]
    assert answers[GAP[-1] + 1]["filled"] == len(GAP)
    assert [hour for hour, answer in answers.items() if "screened" in answer] == [ZERO]
    assert [hour for hour, answer in answers.items() if "stuck" in answer] == list(STUCK[2:])

    # The same by hand: one step for each hour that the local clock shows, on the last plausible reading where there is none.
    loaded, used, actions, costs = ec.load(daily_policy), [], {}, []
    runner = ec.Runner(loaded, start_time="2024-11-01 13:00")
    for hour in (hour for hour in range(LENGTH) if hour != again):
        used.append(used[-1] if hour == ZERO or hour in GAP else fresh[hour])
        actions[hour] = runner.step([used[-1]]).tolist()
        costs.append(float(runner.cost))
    for hour in set(sent) - {again}:
        assert answers[hour]["action"] == pytest.approx(actions[hour], rel=1e-9)
    before, start, paid = loaded.history[-1], 0, 0.0
    for midnight in (11, 35, 59, 83, LENGTH - 1):  # steps, the first day is short
        best = ec.oracle(loaded.problem, ec.Instance(before, np.array(used[start:midnight])[:, None]))
        assert costs[midnight - 1] - paid <= PROMISE * float(best.cost) * (1 + 1e-9)
        before, start, paid = np.array(list(actions.values())[midnight - 1]), midnight, costs[midnight - 1]

    service = Service(Store(f"sqlite:///{tmp_path / 'streams.db'}"))
    service.put_policy("daily", daily_policy.read_bytes())
    service.create_stream("site", "daily")
    results = service.submit_steps([StepRequest("site", [sent[h]], time=times[h]) for h in sent]).result()
    service.close()
    for hour, result in zip(sent, results, strict=True):
        record = json.loads(result.json)
        assert record["action"] == pytest.approx(answers[hour]["action"], rel=1e-9)
        assert record["screened"] == ("screened" in answers[hour])
        assert record["stuck"] == answers[hour].get("stuck", [])
    assert record["cost"] == pytest.approx(costs[-1], rel=1e-9)
