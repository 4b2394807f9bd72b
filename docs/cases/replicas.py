"""Replicas of a web service: learned policies beside the rules of HPA and KEDA; the figures of docs/cases/replicas.md.

    .venv/bin/python docs/cases/replicas.py requests.csv             # print the table
    .venv/bin/python docs/cases/replicas.py requests.csv --write     # store it for the page, with its figure

Every hour a number of requests arrives. A replica serves 250 of them. A new number of replicas is in force an hour later. Being
one replica short for an hour costs three times as much as one too many, and starting or stopping replicas costs too. The rules of
the peers are written from their documentation, one decision per hour. All rows play whole numbers.

Settings are chosen on the validation days alone, each as the first of its values that fulfils a condition:

- *alpha*: the best whole replicas in hindsight, rounded up, change direction at most four times a day;
- *promise*: the guarded policy costs at most 5 % more than with the promise at which it costs least;
- *multiple of the need* that the guarded policy follows, *target* and *window* of the peers: the least cost.
"""

import argparse
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
from page import HERE, HOURS, Columns, Split, draw_days, fit_policy, format_table, run_policy, store

import ecl2o as ec

PER_REPLICA, SHORT, LONG = 250.0, 3.0, 1.0
DELAY = 1  # hours until a decision is in force
SPLIT = Split(training=38, validation=9)
ALPHAS, MOST_REVERSALS = (0.5, 1.0, 2.0, 5.0, 10.0), 4.0
PROMISES, MOST_EXTRA = (4.0, 5.0, 6.0, 8.0), 1.05
SHARES = tuple(round(0.9 + 0.05 * step, 2) for step in range(9))
TARGETS = tuple(round(0.5 + 0.05 * step, 2) for step in range(15))
WINDOWS = (1, 2, 3, 4, 6, 8, 12, 24)  # hours
COLUMNS: Columns = {
    "cost per day": lambda row: f"{row['cost']:.0f}",
    "x optimum": lambda row: f"{row['over_optimum']:.2f}",
    "worst day": lambda row: f"{row['worst_day']:.0f}",
    "moved (reversals) per day": lambda row: f"{row['moved']:.0f} ({row['reversals']:.1f})",
    "hours short per day": lambda row: f"{row['short_hours']:.1f}",
    "promise; most of it spent": lambda row: (
        f"{row['promise']:g} x optimum + {row['rounding']:.1f} an hour; {100 * row['spent']:.1f} %"
        if "promise" in row
        else "none"
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


def scale_by_schedule(before: np.ndarray, target: float, tracking: float | None = None) -> Rule:
    """Return KEDA's cron trigger: for every hour of the week ceil(requests in the last week / target requests of a replica).

    With `tracking`, a target, target tracking is a trigger beside it, and the larger number counts, as in KEDA.
    """
    scheduled = itertools.cycle(np.maximum(1.0, np.ceil(before[-7 * HOURS :] / target)))
    next(scheduled)  # the decision of the first hour is in force in the second
    track = None if tracking is None else scale_by_target(tracking)
    return lambda needed, current: max(next(scheduled), 1.0 if track is None else track(needed, current))


class Days(NamedTuple):
    """A stretch of hours: replicas needed before it and in it, and the price alpha of a start or stop."""

    before: np.ndarray
    needed: np.ndarray
    alpha: float

    @property
    def first(self) -> float:
        """The replicas in force at the start."""
        return max(1.0, float(np.ceil(self.before[-1])))

    def cost_by_hour(self, replicas: np.ndarray) -> np.ndarray:
        """Return what each hour costs, written out: misses weigh by their side, changes by alpha."""
        miss = replicas - self.needed
        weight = np.where(miss < 0, SHORT, LONG)
        return 0.5 * weight * miss**2 + 0.5 * self.alpha * np.diff(replicas, prepend=self.first) ** 2

    def find_optimum(self) -> ec.Trajectory:
        """Return the best replicas in hindsight, not rounded: the first decision is in force an hour late for them too."""
        switching = ec.Mahalanobis.isotropic(alpha=self.alpha, dim=1)
        problem = ec.Problem(ec.AsymmetricTracking(SHORT, LONG), switching, timing=ec.Delayed(DELAY))
        return ec.oracle(problem, ec.Instance([self.first], self.needed[:, None]))

    def play(self, rule: Rule) -> np.ndarray:
        """Return the replicas in force at each hour: the rule's decisions, a step late."""
        in_force = [self.first]
        for now in self.needed[:-DELAY]:
            in_force.append(float(rule(now, in_force[-1])))
        return np.array(in_force)

    def run(self, policy: ec.Policy, share: float = 1.0) -> tuple[np.ndarray, pd.DataFrame]:
        """Return the replicas in force, at least one, under a policy that follows a multiple of the need; and its figures."""
        decided, figures = run_policy(policy, share * self.before[:, None], share * self.needed[:, None], self.first)
        return np.maximum([self.first, *decided[:-DELAY]], 1.0), figures

    def tune(self, make: Callable[..., Rule], *values: Iterable) -> tuple:
        """Return the settings of a rule that cost least."""
        return min(itertools.product(*values), key=lambda each: self.cost_by_hour(self.play(make(*each))).sum())

    def score(self, replicas: np.ndarray) -> dict[str, float]:
        """Return the figures of a row of the table."""
        cost, moves, days = (
            self.cost_by_hour(replicas),
            np.diff(replicas, prepend=self.first),
            len(self.needed) // HOURS,
        )
        figures = {
            "cost": cost.sum() / days,
            "over_optimum": cost.sum() / float(self.find_optimum().cost),
            "worst_day": cost.reshape(days, HOURS).sum(axis=1).max(),
            "moved": np.abs(moves).sum() / days,
            "reversals": count_reversals(moves) / days,
            "short_hours": np.count_nonzero(replicas < self.needed) / days,
            "replicas": replicas.mean(),
        }
        return {name: float(value) for name, value in figures.items()}


def count_reversals(moves: np.ndarray) -> int:
    """Return how often replicas are started after a stop, or stopped after a start."""
    return np.count_nonzero(np.diff(np.sign(moves[moves != 0])))


class Settings(NamedTuple):
    """What is chosen on the validation days."""

    alpha: float
    promise: float
    share: float
    hpa: tuple
    tracking: tuple
    schedule: tuple
    schedule_and_tracking: tuple


Fit = Callable[[np.ndarray, Split, list], ec.Policy]


def choose_alpha(before: np.ndarray, needed: np.ndarray) -> float:
    """Return the price of a start or stop, by the rule above."""
    for alpha in ALPHAS:
        best = np.ceil(np.asarray(Days(before, needed, alpha).find_optimum().actions)[:, 0])
        if HOURS * count_reversals(np.diff(best)) / len(needed) <= MOST_REVERSALS:
            return alpha
    return ALPHAS[-1]


def choose_settings(needed: np.ndarray, fit: Fit) -> Settings:
    """Choose all settings on the validation days: policies are fitted on the days before them."""
    split, known = SPLIT.trial(needed)
    before, after = split.cut(known)
    days = Days(before, after, choose_alpha(before, after))
    costs = {}
    for promise in PROMISES:
        policy = fit(known, split, cost_options(days.alpha, promise))
        costs |= {(promise, share): days.cost_by_hour(days.run(policy, share)[0]).sum() for share in SHARES}
    least = {promise: min(SHARES, key=lambda share, of=promise: costs[of, share]) for promise in PROMISES}
    limit = MOST_EXTRA * min(costs.values())
    promise = next(each for each in PROMISES if costs[each, least[each]] <= limit)
    print({f"{each:g}": round(float(costs[each, least[each]]) / len(after) * HOURS, 1) for each in PROMISES})
    hpa, tracking = days.tune(scale_by_hpa, TARGETS, WINDOWS), days.tune(scale_by_target, TARGETS)
    by_clock = functools.partial(scale_by_schedule, before)
    schedules = days.tune(by_clock, TARGETS), days.tune(by_clock, TARGETS, TARGETS)
    return Settings(days.alpha, promise, least[promise], hpa, tracking, *schedules)


def cost_options(alpha: float, promise: float | None) -> list:
    """Return the options of `fit`: with a promise misses weigh the same on both sides."""
    kind = ["--short", SHORT] if promise is None else ["--promise", promise]
    return ["--delay", DELAY, "--whole", "--alpha", alpha, *kind]


def compare(needed: np.ndarray, fit: Fit) -> tuple[Settings, dict[str, dict], dict[str, np.ndarray]]:
    """Return the settings, the rows of the table, and the replicas in force by row, on the test days."""
    chosen = choose_settings(needed, fit)
    days, both = Days(*SPLIT.cut(needed), chosen.alpha), chosen.schedule_and_tracking
    rules = {
        "HPA, target 80 %": scale_by_hpa(0.8),
        f"HPA, tuned: {100 * chosen.hpa[0]:.0f} %, window {chosen.hpa[1]} h": scale_by_hpa(*chosen.hpa),
        "target tracking, 80 %": scale_by_target(0.8),
        f"target tracking, tuned: {100 * chosen.tracking[0]:.0f} %": scale_by_target(*chosen.tracking),
        f"cron, tuned: {100 * chosen.schedule[0]:.0f} %": scale_by_schedule(days.before, *chosen.schedule),
        f"cron and tracking, tuned: {100 * both[0]:.0f}, {100 * both[1]:.0f} %": scale_by_schedule(days.before, *both),
    }
    played = {name: days.play(rule) for name, rule in rules.items()}
    played["`fit --short 3`"], _ = days.run(fit(needed, SPLIT, cost_options(chosen.alpha, None)))
    guarded = f"`fit --promise {chosen.promise:g}`, {chosen.share:g} x needed"
    policy = fit(chosen.share * needed, SPLIT, cost_options(chosen.alpha, chosen.promise))
    played[guarded], figures = days.run(policy, chosen.share)
    rows = {name: days.score(replicas) for name, replicas in played.items()}
    promise = policy.contract.promise
    assert promise is not None
    rows[guarded] |= {
        "promise": promise.ratio,
        "rounding": promise.allowance_per_step,  # what it may add in an hour
        "spent": (
            figures["cost"] / (figures["cost"] + figures["left"])
        ).max(),  # of what the promise allows, at any hour
        "last_ratio": figures["live_ratio"].iloc[-1],
        "booked": figures["booked"].iloc[-1] / len(figures),  # what rounding added, per hour
    }
    return chosen, rows, played | {"needed": days.needed}


def fit_needed(folder: Path, needed: np.ndarray, split: Split, options: list) -> ec.Policy:
    """Fit a policy to the replicas needed by hour."""
    return fit_policy(needed[:, None], ["replicas"], "1995-07-01", split, options, folder / "policy.ecl2o")[0]


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
        fit = functools.partial(fit_needed, Path(folder))
        chosen, found, played = compare(needed, fit)
    print(chosen, pd.DataFrame(found).T.round(2).to_string(), sep="\n")
    if given.write:
        about = {"series": given.series.name, "days": len(needed) // HOURS - sum(SPLIT), "settings": chosen._asdict()}
        store("replicas", about | {"rows": found}, format_table("rule", COLUMNS, found))
        part, names = slice(HOURS, 4 * HOURS), list(played)
        lines = [(name, played[name][part]) for name in (names[-1], names[1], names[-2])]
        draw_days(HERE / "replicas.png", "replicas", *lines, mid=True)


if __name__ == "__main__":
    main()
