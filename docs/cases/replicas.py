"""Replicas of a web service: learned policies beside the rules of HPA and KEDA; the figures of docs/cases/replicas.md.

    .venv/bin/python docs/cases/replicas.py requests.csv             # print the table
    .venv/bin/python docs/cases/replicas.py requests.csv --write     # store it for the page, with its figure

Every hour a number of requests arrives. A replica serves 250 of them. A new number of replicas is in force an hour later. Being
one replica short for an hour costs three times as much as one too many, and starting or stopping replicas costs too. The rules of
the peers are written from their documentation, one decision per hour.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
from page import HERE, Columns, format_table, store

import ecl2o as ec

HOURS, PER_REPLICA = 24, 250.0
ALPHA, SHORT, LONG = 2.0, 3.0, 1.0
DELAY = 1  # hours until a decision is in force
TRAINING, VALIDATION = 38, 9  # days; the rest is for the test
PROMISE = 4.0
COST = ["--delay", DELAY, "--alpha", ALPHA]
COLUMNS: Columns = {
    "cost per day": lambda row: f"{row['cost']:.0f}",
    "x optimum": lambda row: f"{row['over_optimum']:.2f}",
    "worst day": lambda row: f"{row['worst_day']:.0f}",
    "moved (reversals) per day": lambda row: f"{row['moved']:.0f} ({row['reversals']:.1f})",
    "hours short per day": lambda row: f"{row['short_hours']:.1f}",
    "promise, largest ratio": lambda row: (
        f"{row['promise']:g}, {row['largest_ratio']:.2f}" if "promise" in row else "none"
    ),
}

Rule = Callable[[float, float], float]  # (replicas needed now, replicas in force) -> replicas wanted


def scale_by_hpa(target: float, window: int = 1, tolerance: float = 0.1) -> Rule:
    """Return the rule of Kubernetes' horizontal pod autoscaler for a target utilisation.

    desired = ceil(current * utilisation / target), unchanged if the ratio is within the tolerance of 1. Scaling up is immediate.
    Scaling down goes to the highest recommendation of the stabilisation window, here in hours; the default of five minutes is
    less than one step.
    """
    recommended: list[float] = []

    def decide(needed: float, current: float) -> float:
        ratio = needed / current / target
        recommended.append(current if abs(ratio - 1) <= tolerance else max(1.0, np.ceil(current * ratio)))
        return max(recommended[-1], min(current, max(recommended[-window:])))

    return decide


def scale_by_target(target: float) -> Rule:
    """Return target tracking on a total, as KEDA sets it up: ceil(requests / (target requests of a replica))."""
    return lambda needed, current: max(1.0, np.ceil(needed / target))


def play(rule: Rule, needed: np.ndarray, first: float) -> np.ndarray:
    """Return the replicas in force at each hour: the rule's decisions, a step late."""
    in_force = [first]
    for now in needed[:-DELAY]:
        in_force.append(float(rule(now, in_force[-1])))
    return np.array(in_force)


class PolicyRun(NamedTuple):
    """What a policy did: whole replicas in force, its decisions, and the ratio of its promise after each hour, if it has one."""

    replicas: np.ndarray
    decided: np.ndarray
    ratios: np.ndarray | None


def run_policy(policy: ec.Policy, before: np.ndarray, needed: np.ndarray, first: float) -> PolicyRun:
    """Run a policy that has seen the hours `before`. Kubernetes rounds up to whole replicas, at least one."""
    runner = ec.Runner(policy, x0=[first], history=before[:, None])
    decided, ratios = [], []
    for now in needed:
        decided.append(float(runner.step([now])[0]))
        ratios.append(runner.live_ratio)
    replicas = np.maximum(np.ceil([first, *decided[:-DELAY]]), 1.0)
    return PolicyRun(replicas, np.array(decided), None if ratios[0] is None else np.array(ratios, float))


def cost_by_hour(replicas: np.ndarray, needed: np.ndarray, first: float) -> np.ndarray:
    """Return what each hour costs, written out: misses weigh by their side, changes by alpha."""
    miss = replicas - needed
    weight = np.where(miss < 0, SHORT, LONG)
    return 0.5 * weight * miss**2 + 0.5 * ALPHA * np.diff(replicas, prepend=first) ** 2


def find_optimum(needed: np.ndarray, first: float) -> float:
    """Return the least cost in hindsight, not rounded: the first decision is in force an hour late for it too."""
    switching = ec.Mahalanobis.isotropic(alpha=ALPHA, dim=1)
    problem = ec.ShiftedProblem(ec.AsymmetricTracking(SHORT, LONG), switching, shift=DELAY)
    return float(ec.oracle(problem, ec.Instance([first], needed[:, None])).cost)


def score(replicas: np.ndarray, needed: np.ndarray, first: float, ratios: np.ndarray | None = None) -> dict[str, float]:
    """Return the figures of a row of the table; `ratios` are those of its promise."""
    cost, moves, days = cost_by_hour(replicas, needed, first), np.diff(replicas, prepend=first), len(needed) // HOURS
    promised = {} if ratios is None else {"promise": PROMISE, "largest_ratio": ratios.max(), "last_ratio": ratios[-1]}
    figures = {
        "cost": cost.sum() / days,
        "over_optimum": cost.sum() / find_optimum(needed, first),
        "worst_day": cost.reshape(days, HOURS).sum(axis=1).max(),
        "moved": np.abs(moves).sum() / days,
        "reversals": np.count_nonzero(np.diff(np.sign(moves[moves != 0]))) / days,
        "short_hours": np.count_nonzero(replicas < needed) / days,
        "replicas": replicas.mean(),
    }
    return {name: float(value) for name, value in (figures | promised).items()}


class Days(NamedTuple):
    """A stretch of hours: replicas needed before it and in it, and the number in force at its start."""

    before: np.ndarray
    needed: np.ndarray

    @property
    def first(self) -> float:
        return max(1.0, float(np.ceil(self.before[-1])))

    def total(self, replicas: np.ndarray) -> float:
        """Return the cost of these days."""
        return float(cost_by_hour(replicas, self.needed, self.first).sum())


def tune(make: Callable[..., Rule], settings: Iterable[tuple], days: Days) -> tuple:
    """Return the settings of a rule that cost least on these days."""
    return min(settings, key=lambda setting: days.total(play(make(*setting), days.needed, days.first)))


def fit_policy(needed: np.ndarray, options: list, out: Path, advisor: str) -> ec.Policy:
    """Run `ecl2o fit` on the replicas needed by hour, and return its policy."""
    times = pd.date_range("1995-07-01", periods=len(needed), freq="h")
    series = out.with_suffix(".csv")
    pd.DataFrame({"time": times, "replicas": needed}).to_csv(series, index=False)
    split = ["--training-days", TRAINING, "--validation-days", VALIDATION, "--advisor", advisor]
    command = [sys.executable, "-c", "from ecl2o.cli import main; main()", "fit", series, "--out", out]
    subprocess.run([str(part) for part in [*command, *options, *split]], check=True, stdout=subprocess.DEVNULL)
    return ec.load(out)


def compare(needed: np.ndarray, folder: Path, advisor: str = "auto") -> tuple[dict[str, dict], dict[str, np.ndarray]]:
    """Return the rows of the table and the replicas in force by row, on the test days."""
    cut, middle = (TRAINING + VALIDATION) * HOURS, TRAINING * HOURS
    tuning, test = Days(needed[:middle], needed[middle:cut]), Days(needed[:cut], needed[cut:])
    targets = [round(0.5 + 0.05 * step, 2) for step in range(15)]
    target, window = tune(scale_by_hpa, itertools.product(targets, [1, 2, 3, 4, 6, 8, 12, 24]), tuning)
    (tracked,) = tune(scale_by_target, itertools.product(targets), tuning)
    rules = {
        "HPA, target 80 %": scale_by_hpa(0.8),
        f"HPA, tuned: {100 * target:.0f} %, window {window} h": scale_by_hpa(target, window),
        "target tracking, 80 %": scale_by_target(0.8),
        f"target tracking, tuned: {100 * tracked:.0f} %": scale_by_target(tracked),
    }
    played = {name: play(rule, test.needed, test.first) for name, rule in rules.items()}
    rows = {name: score(replicas, test.needed, test.first) for name, replicas in played.items()}

    learned = fit_policy(needed, [*COST, "--short", SHORT], folder / "learned.ecl2o", advisor)
    promised = [*COST, "--promise", PROMISE]
    trial = fit_policy(needed, promised, folder / "trial.ecl2o", advisor)
    shares = [round(0.9 + 0.05 * step, 2) for step in range(9)]
    share = min(shares, key=lambda each: tuning.total(_run_on_multiple(trial, tuning, each).replicas))
    guarded = fit_policy(share * needed, promised, folder / "guarded.ecl2o", advisor)
    runs = {
        "`fit --short 3`": run_policy(learned, test.before, test.needed, test.first),
        f"`fit --promise {PROMISE:g}`, {share:g} x needed": _run_on_multiple(guarded, test, share),
    }
    for name, run in runs.items():
        played[name] = run.replicas
        rows[name] = score(run.replicas, test.needed, test.first, run.ratios)
    return rows, played | {"needed": test.needed}


def _run_on_multiple(policy: ec.Policy, days: Days, share: float) -> PolicyRun:
    return run_policy(policy, share * days.before, share * days.needed, days.first)


def draw(played: dict[str, np.ndarray], path: Path) -> None:
    """Draw three test days: the tuned rule of HPA and the policy with a promise."""
    from ecl2o.plots.style import BLUE, GREY, VERMILLION, apply_style, new_figure

    tuned, guarded = list(played)[1], list(played)[-2]
    with apply_style():
        figure = new_figure(2.6)
        axes = figure.subplots()
        hours = np.arange(3 * HOURS)
        part = slice(HOURS, 4 * HOURS)
        axes.fill_between(hours, played["needed"][part], step="mid", color=GREY, alpha=0.3, linewidth=0, label="needed")
        axes.step(hours, played[tuned][part], where="mid", color=VERMILLION, linewidth=1, label=tuned)
        axes.step(hours, played[guarded][part], where="mid", color=BLUE, label=guarded.replace("`", ""))
        axes.set(xlabel="hour", ylabel="replicas", xticks=range(0, 3 * HOURS + 1, 12), ylim=(0, None))
        axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
        figure.savefig(path, dpi=200)


def main() -> None:
    """Print the table, and store it with the figure if asked to."""
    parser = argparse.ArgumentParser(description="Replicas of a web service, beside the rules of HPA and KEDA.")
    parser.add_argument("series", type=Path, help="CSV with a column requests, one row per hour")
    parser.add_argument("--write", action="store_true", help="store the results and the figure of the page")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    requests = pd.read_csv(given.series)["requests"].to_numpy(float)
    needed = requests[: len(requests) // HOURS * HOURS] / PER_REPLICA
    with tempfile.TemporaryDirectory() as folder:
        found, played = compare(needed, Path(folder))
    print(pd.DataFrame(found).T.round(2).to_string())
    if given.write:
        about = {"series": given.series.name, "days": len(needed) // HOURS - TRAINING - VALIDATION, "rows": found}
        store("replicas", about, format_table("rule", COLUMNS, found))
        draw(played, HERE / "replicas.png")


if __name__ == "__main__":
    main()
