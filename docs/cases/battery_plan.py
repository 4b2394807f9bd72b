"""A battery plan that flips, and a guard that bounds what flipping costs: the figures of docs/cases/battery-plan.md.

    .venv/bin/python docs/cases/battery_plan.py net_load.csv             # print the table
    .venv/bin/python docs/cases/battery_plan.py net_load.csv --write     # store it for the page, with its figure

Day-ahead prices are made from the net load of a grid: the merit order prices an hour by its place in the year's range. Every
quarter of an hour a planner solves a linear program (SciPy's HiGHS) on the prices that are published, and wants a power. The
policies differ in what they do with that wish. Each has its own battery, so each sees the plans that its own charge leads to.

Settings are chosen on fourteen days before the test:

- *alpha*: the first of its values at which the best powers in hindsight move at most half as much as the plan that they follow;
- *promise*, and the peers' *threshold* and *price of a change*: the value that moves least, of those that earn at least 95 % of
  what the plan earns.

The slack of 5 % was not varied.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
from page import HERE, Columns, format_table, store
from scipy.optimize import linprog
from scipy.sparse import diags_array, eye_array, hstack, vstack

import ecl2o as ec

STEPS = 96  # of a quarter of an hour, in a day and in a plan
HOURS_PER_STEP = 24 / STEPS
CAPACITY, POWER, EFFICIENCY = 10.0, 4.0, 0.95  # kWh, kW, and of charging and of discharging
CHOICE, TEST = range(60, 74), range(74, 102)  # days of the year
PUBLISHED = 13  # o'clock, when the next day's prices are
ALPHAS, MOST_MOVED = (1.0, 2.0, 5.0, 10.0, 20.0), 0.5
PROMISES, LEAST_EARNED, SLACK = (2.0, 3.0, 4.0, 5.0), 0.95, 0.05
THRESHOLDS = (0.1, 1.0, 2.0, 5.0, 10.0, 20.0)  # cents
CHANGE_PRICES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # cents per kW
COLUMNS: Columns = {
    "cost per day": lambda row: f"{row['cost']:.0f}",
    "x optimum": lambda row: f"{row['over_optimum']:.2f}",
    "x the plan": lambda row: f"{row['over_plan']:.2f}",
    "x holding still": lambda row: f"{row['over_holding']:.2f}",
    "kW moved per day": lambda row: f"{row['kilowatts_moved']:.1f}",
    "changes of mode per day": lambda row: f"{row['mode_changes']:.1f}",
    "earned, cents per day": lambda row: f"{row['earned']:.1f}",
}

# The charge after each step is the one before, plus what is bought, less what is sold: I charge - D charge = gain.
_GAIN = HOURS_PER_STEP * EFFICIENCY * eye_array(STEPS)
_LOSS = HOURS_PER_STEP / EFFICIENCY * eye_array(STEPS)
_STEP = eye_array(STEPS) - diags_array([1.0], offsets=[-1], shape=(STEPS, STEPS))
_BALANCE = hstack([-_GAIN, _LOSS, _STEP]).tocsr()
# The same with the amount of each change of power as a further unknown: it is at least the change, up or down.
_BALANCE_MOVING = hstack([_BALANCE, 0 * _STEP]).tocsr()
_MOVES = vstack([hstack([sign * _STEP, -sign * _STEP, 0 * _STEP, -eye_array(STEPS)]) for sign in (1, -1)]).tocsr()

Decide = Callable[
    [np.ndarray, np.ndarray, float], float
]  # (fresh plan in kW, prices from now on, charge in kWh) -> power in kW


def make_prices(net_load: np.ndarray) -> np.ndarray:
    """Return prices by quarter of an hour, in whole cents per kWh: 5 in the slackest hour of the year, 45 in the tightest."""
    low, high = np.quantile(net_load, [0.01, 0.99])
    hourly = 5.0 + 40.0 * np.clip((net_load - low) / (high - low), 0.0, 1.0) ** 2
    return np.repeat(np.round(hourly), STEPS // 24)


def expect_prices(prices: np.ndarray, step: int) -> np.ndarray:
    """Return prices from now on, (96,): those of today, from 13 o'clock those of tomorrow too, then the mean of seven days."""
    day, quarter = divmod(step, STEPS)
    end = STEPS * (day + (1 if quarter < PUBLISHED * STEPS // 24 else 2))
    profile = prices[end - 7 * STEPS : end].reshape(7, STEPS).mean(axis=0)
    return np.concatenate([prices[step:end], profile])[:STEPS]


def plan(prices: np.ndarray, charge: float, change_price: float = 0.0, power: float = 0.0) -> np.ndarray:
    """Return the powers (96,) in kW, positive when buying, that earn most in a day and leave the battery half full.

    With a price, in cents per kW, changes cost as much, also the first one, from the power in force.
    """
    start, last = np.zeros(STEPS), np.zeros(STEPS)
    start[0], last[-1] = charge, min(CAPACITY / 2, charge + 24 * EFFICIENCY * POWER)
    bounds = [(0.0, POWER)] * (2 * STEPS) + [(low, CAPACITY) for low in last]
    gain, limits = HOURS_PER_STEP * np.concatenate([prices, -prices, np.zeros(STEPS)]), {"A_eq": _BALANCE}
    if change_price:
        gain, bounds = np.append(gain, np.full(STEPS, change_price)), bounds + [(0.0, np.inf)] * STEPS
        limits = {"A_eq": _BALANCE_MOVING, "A_ub": _MOVES, "b_ub": np.outer([power, -power], np.eye(STEPS)[0]).ravel()}
    found = linprog(gain, b_eq=start, bounds=bounds, method="highs", **limits)
    buying, selling = found.x[: 2 * STEPS].reshape(2, STEPS)
    return buying - selling


def settle(power: float, charge: float) -> tuple[float, float]:
    """Return the power that the battery can really take or give, in kW, and its charge afterwards, in kWh."""
    most = (CAPACITY - charge) / (EFFICIENCY * HOURS_PER_STEP)
    power = float(np.clip(power, -min(POWER, EFFICIENCY * charge / HOURS_PER_STEP), min(POWER, most)))
    return power, charge + HOURS_PER_STEP * (EFFICIENCY * power if power > 0 else power / EFFICIENCY)


def earn(schedule: np.ndarray, prices: np.ndarray, charge: float) -> float:
    """Return what a schedule earns at these prices, in cents, as far as the battery can follow it, and what is left in it."""
    earned = 0.0
    for power, price in zip(schedule, prices, strict=True):
        power, charge = settle(power, charge)
        earned -= HOURS_PER_STEP * price * power
    return earned + EFFICIENCY * charge * float(prices.mean())


def follow_plan() -> Decide:
    """Return the policy that does what the latest plan says."""
    return lambda fresh, prices, charge: float(fresh[0])


def keep_plan(improvement: float) -> Decide:
    """Return the policy that keeps its schedule unless a fresh plan earns more by `improvement`, in cents."""
    kept: list[np.ndarray] = []

    def decide(fresh: np.ndarray, prices: np.ndarray, charge: float) -> float:
        schedule = fresh
        if kept:
            old = np.append(kept.pop()[1:], 0.0)
            if earn(fresh, prices, charge) <= earn(old, prices, charge) + improvement:
                schedule = old
        kept.append(schedule)
        return float(schedule[0])

    return decide


def plan_changes(price: float) -> Decide:
    """Return the policy of another planner: changes have a price in its linear program, in cents per kW."""
    power = 0.0

    def decide(fresh: np.ndarray, prices: np.ndarray, charge: float) -> float:
        nonlocal power
        power = float(plan(prices, charge, price, power)[0])
        return power

    return decide


def run_agent(alpha: float, agent: ec.AbstractAgent, advise: Decide | None = None) -> Decide:
    """Return an agent as a policy. Its context is the fresh plan's wish, and with `advise` that policy's power beside it."""
    runner = ec.Runner(ec.Policy(agent, make_problem(alpha, 0 if advise is None else 1)), x0=[0.0])

    def decide(fresh: np.ndarray, prices: np.ndarray, charge: float) -> float:
        advice = [] if advise is None else [advise(fresh, prices, charge)]
        return float(runner.step([fresh[0], *advice])[0])

    return decide


def make_problem(alpha: float, covariates: int = 0) -> ec.Problem:
    """Return the cost of a step: 1/2 (power - wish)^2 + alpha/2 (change of power)^2."""
    return ec.Problem(ec.SquaredTracking(covariates=covariates), ec.Mahalanobis.isotropic(alpha=alpha, dim=1))


class Settings(NamedTuple):
    """What is chosen on the days before the test."""

    alpha: float
    promise: float
    threshold: float
    change_price: float


GUARDED = "the plan, guarded: {:g} x optimum"


def guard_plan(alpha: float, promise: float) -> Decide:
    """Return the plan behind a guarantee relative to the optimum."""
    return run_agent(alpha, ec.Competitive(ec.HittingMinimizer(), ratio=promise))


def make_policies(chosen: Settings) -> dict[str, Decide]:
    """Return the policies by name, in the order of the table."""
    alpha, promise, threshold, price = chosen
    wish, advice = ec.HittingMinimizer(), ec.advisors.FromContext()
    learner = ec.advisors.OnlineRidge(STEPS)
    kept = f"kept unless {threshold:g} cents better"
    return {
        "the plan": follow_plan(),
        f"the plan, {kept}": keep_plan(threshold),
        f"planner with {price:g} cents per kW of change": plan_changes(price),
        "R-OBD": run_agent(alpha, ec.ROBD()),
        GUARDED.format(promise): guard_plan(alpha, promise),
        f"{kept}, guarded: {promise:g} x optimum": run_agent(
            alpha, ec.Competitive(advice, ratio=promise), keep_plan(threshold)
        ),
        f"the plan, guarded: {1 + SLACK:g} x holding still": run_agent(
            alpha, ec.Guarded(wish, expert=ec.advisors.HoldStill(), slack=SLACK)
        ),
        f"learner, guarded: {1 + SLACK:g} x the plan": run_agent(alpha, ec.Guarded(learner, expert=wish, slack=SLACK)),
    }


class Run(NamedTuple):
    """What a policy did: the wishes of its plans and its powers in kW, by step, and its earnings in cents."""

    wishes: np.ndarray
    powers: np.ndarray
    earned: float

    @property
    def moved(self) -> float:
        """By how many kW the power changes in all."""
        return float(np.abs(np.diff(self.powers, prepend=0.0)).sum())

    def find_optimum(self, alpha: float) -> ec.Trajectory:
        """Return the best powers in hindsight for these wishes."""
        return ec.oracle(make_problem(alpha), ec.Instance([0.0], self.wishes[:, None]))

    def figures(self, alpha: float) -> dict[str, float]:
        """Return cost, movement, changes of mode and earnings per day, and the cost over each reference's."""
        days, moves = len(self.powers) / STEPS, np.diff(self.powers, prepend=0.0)
        cost = 0.5 * np.sum((self.powers - self.wishes) ** 2) + alpha / 2 * np.sum(moves**2)
        wished = np.diff(self.wishes, prepend=0.0)
        modes = np.sign(np.round(self.powers, 1))  # charging, idle, discharging
        figures = {
            "cost": cost / days,
            "over_optimum": cost / float(self.find_optimum(alpha).cost),
            "over_plan": cost / (alpha / 2 * np.sum(wished**2)),
            "over_holding": cost / (0.5 * np.sum(self.wishes**2)),
            "kilowatts_moved": self.moved / days,
            "largest_change": np.abs(moves).max(),
            "mode_changes": np.count_nonzero(np.diff(modes)) / days,
            "kilowatt_hours": HOURS_PER_STEP * np.abs(self.powers).sum() / days,
            "earned": self.earned / days,
        }
        return {name: float(value) for name, value in figures.items()}


def simulate(decide: Decide, prices: np.ndarray, days: range) -> Run:
    """Run a policy on its own battery, half full at first."""
    charge, earned, wishes, powers = CAPACITY / 2, 0.0, [], []
    for step in range(days.start * STEPS, days.stop * STEPS):
        expected = expect_prices(prices, step)
        fresh = plan(expected, charge)
        power = decide(fresh, expected, charge)
        delivered, charge = settle(power, charge)
        earned -= HOURS_PER_STEP * prices[step] * delivered
        wishes.append(fresh[0])
        powers.append(power)
    return Run(np.array(wishes), np.array(powers), earned)


def choose_settings(prices: np.ndarray) -> Settings:
    """Choose all settings on the days before the test, by the rules above."""
    followed = simulate(follow_plan(), prices, CHOICE)

    def moves_little(alpha: float) -> bool:
        best = np.asarray(followed.find_optimum(alpha).actions)[:, 0]
        return np.abs(np.diff(best, prepend=0.0)).sum() <= MOST_MOVED * followed.moved

    alpha = next((each for each in ALPHAS if moves_little(each)), ALPHAS[-1])

    def move_least(make: Callable[[float], Decide], values: tuple[float, ...]) -> float:
        runs = {value: simulate(make(value), prices, CHOICE) for value in values}
        moved = {value: run.moved for value, run in runs.items() if run.earned >= LEAST_EARNED * followed.earned}
        print({value: (round(run.moved / 14, 1), round(run.earned / 14, 1)) for value, run in runs.items()}, flush=True)
        return min(moved, key=lambda value: moved[value])

    promise = move_least(lambda each: guard_plan(alpha, each), PROMISES)
    return Settings(alpha, promise, move_least(keep_plan, THRESHOLDS), move_least(plan_changes, CHANGE_PRICES))


def draw(runs: dict[str, Run], guarded: Run, promise: float, path: Path) -> None:
    """Draw two days of the plan alone and behind the guard."""
    from ecl2o.plots.style import BLUE, GREY, VERMILLION, apply_style, new_figure

    with apply_style():
        figure = new_figure(2.6)
        axes = figure.subplots()
        hours = HOURS_PER_STEP * np.arange(2 * STEPS)
        axes.step(
            hours, runs["the plan"].powers[: 2 * STEPS], color=VERMILLION, linewidth=1, label="the plan, followed"
        )
        axes.step(
            hours,
            guarded.wishes[: 2 * STEPS],
            color=GREY,
            linewidth=0.8,
            linestyle=":",
            label="what the guarded battery's plan wants",
        )
        axes.step(hours, guarded.powers[: 2 * STEPS], color=BLUE, label=f"behind a guarantee of {promise:g}")
        axes.set(xlabel="hour", ylabel="power, kW (buying above 0)", xticks=range(0, 49, 6))
        axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
        figure.savefig(path, dpi=200)


def main() -> None:
    """Print the table; store it with --write."""
    parser = argparse.ArgumentParser(description="A battery plan that flips, beside guards.")
    parser.add_argument("series", type=Path, help="CSV with a column net_load_mw, one row per hour of a year")
    parser.add_argument("--write", action="store_true", help="store the results and the figure of the page")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    prices = make_prices(pd.read_csv(given.series)["net_load_mw"].to_numpy(float))
    chosen = choose_settings(prices)
    runs = {name: simulate(decide, prices, TEST) for name, decide in make_policies(chosen).items()}
    found = {name: run.figures(chosen.alpha) for name, run in runs.items()}
    print(chosen, pd.DataFrame(found).T.round(2).to_string(), sep="\n")
    if given.write:
        about = {"series": given.series.name, "days": len(TEST), "settings": chosen._asdict(), "rows": found}
        store("battery-plan", about, format_table("policy", COLUMNS, found))
        draw(runs, runs[GUARDED.format(chosen.promise)], chosen.promise, HERE / "battery-plan.png")


if __name__ == "__main__":
    main()
