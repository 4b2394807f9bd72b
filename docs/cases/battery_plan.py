"""A battery plan that flips, and a guard that bounds what flipping costs: the figures of docs/cases/battery-plan.md.

    .venv/bin/python docs/cases/battery_plan.py net_load.csv             # print the table
    .venv/bin/python docs/cases/battery_plan.py net_load.csv --write     # store it for the page, with its figure

Prices are made from the net load of a grid: the merit order prices an hour by its place in the year's range. Every quarter of an
hour a planner solves a linear program (SciPy's HiGHS) on the price now and a forecast of the next day, and wants a power. The
policies differ in what they do with that wish. Each has its own battery, so each sees the plans that its own charge leads to.
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
from scipy.sparse import diags_array, eye_array, hstack

import ecl2o as ec

STEPS = 96  # of a quarter of an hour, in a day and in a plan
HOURS_PER_STEP = 24 / STEPS
CAPACITY, POWER, EFFICIENCY = 10.0, 4.0, 0.95  # kWh, kW, and of charging and of discharging
ALPHA = 5.0  # a change of 1 kW costs as much as five quarters of an hour 1 kW beside the plan
FIRST_DAY = 60
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
_BALANCE = hstack([-_GAIN, _LOSS, eye_array(STEPS) - diags_array([1.0], offsets=[-1], shape=(STEPS, STEPS))]).tocsr()

Decide = Callable[
    [np.ndarray, np.ndarray, float], float
]  # (fresh plan in kW, forecast prices, charge in kWh) -> power in kW


def make_prices(net_load: np.ndarray) -> np.ndarray:
    """Return prices by quarter of an hour, in whole cents per kWh: 5 in the slackest hour of the year, 45 in the tightest."""
    low, high = np.quantile(net_load, [0.01, 0.99])
    hourly = 5.0 + 40.0 * np.clip((net_load - low) / (high - low), 0.0, 1.0) ** 2
    return np.repeat(np.round(hourly), STEPS // 24)


def forecast_prices(past: np.ndarray) -> np.ndarray:
    """Return prices from now on, (96,): the profile of seven days plus a part of the present error that decays."""
    profile = past[-7 * STEPS - 1 : -1].reshape(7, STEPS).mean(axis=0)
    hours = HOURS_PER_STEP * np.arange(STEPS)
    return np.maximum(profile + (past[-1] - profile[0]) * 0.9**hours, 0.0)


def plan(prices: np.ndarray, charge: float) -> np.ndarray:
    """Return the powers (96,) in kW, positive when buying, that earn most in a day and leave the battery half full."""
    start, last = np.zeros(STEPS), np.zeros(STEPS)
    start[0], last[-1] = charge, min(CAPACITY / 2, charge + 24 * EFFICIENCY * POWER)
    powers = [(0.0, POWER)] * (2 * STEPS)
    charges = [(low, CAPACITY) for low in last]
    gain = np.concatenate([prices, -prices, np.zeros(STEPS)])
    found = linprog(gain, A_eq=_BALANCE, b_eq=start, bounds=powers + charges, method="highs")
    buying, selling, _ = found.x.reshape(3, STEPS)
    return buying - selling


def settle(power: float, charge: float) -> tuple[float, float]:
    """Return the power that the battery can really take or give, in kW, and its charge afterwards, in kWh."""
    most = (CAPACITY - charge) / (EFFICIENCY * HOURS_PER_STEP)
    power = float(np.clip(power, -min(POWER, EFFICIENCY * charge / HOURS_PER_STEP), min(POWER, most)))
    return power, charge + HOURS_PER_STEP * (EFFICIENCY * power if power > 0 else power / EFFICIENCY)


def earn(schedule: np.ndarray, prices: np.ndarray, charge: float) -> float:
    """Return what a schedule earns at these prices, in cents, as far as the battery can follow it."""
    earned = 0.0
    for power, price in zip(schedule, prices, strict=True):
        power, charge = settle(power, charge)
        earned -= HOURS_PER_STEP * price * power
    return earned


def follow_plan() -> Decide:
    """Return the policy that does what the latest plan says."""
    return lambda fresh, prices, charge: float(fresh[0])


def keep_plan(improvement: float) -> Decide:
    """Return the policy that keeps its schedule unless a fresh plan earns more by `improvement`, in cents."""
    kept: list[np.ndarray] = []

    def decide(fresh: np.ndarray, prices: np.ndarray, charge: float) -> float:
        schedule = fresh
        if kept:
            old = np.append(kept.pop()[1:], fresh[-1])
            if earn(fresh, prices, charge) <= earn(old, prices, charge) + improvement:
                schedule = old
        kept.append(schedule)
        return float(schedule[0])

    return decide


def run_agent(agent: ec.AbstractAgent, advise: Decide | None = None) -> Decide:
    """Return an agent as a policy. Its context is the fresh plan's wish, and with `advise` that policy's power beside it."""
    problem = make_problem(0 if advise is None else 1)
    runner = ec.Runner(ec.Policy(agent, problem), x0=[0.0])

    def decide(fresh: np.ndarray, prices: np.ndarray, charge: float) -> float:
        advice = [] if advise is None else [advise(fresh, prices, charge)]
        return float(runner.step([fresh[0], *advice])[0])

    return decide


def make_problem(covariates: int = 0) -> ec.Problem:
    """Return the cost of a step: 1/2 (power - wish)^2 + alpha/2 (change of power)^2."""
    return ec.Problem(ec.SquaredTracking(covariates=covariates), ec.Mahalanobis.isotropic(alpha=ALPHA, dim=1))


def make_policies() -> dict[str, Decide]:
    """Return the policies by name, in the order of the table."""
    wish, advice = ec.HittingMinimizer(), ec.advisors.FromContext()
    learner = ec.advisors.OnlineRidge(STEPS)
    return {
        "the plan": follow_plan(),
        "the plan, kept unless 1 cent better": keep_plan(1.0),
        "the plan, kept unless 5 cents better": keep_plan(5.0),
        "the plan, kept unless 20 cents better": keep_plan(20.0),
        "R-OBD": run_agent(ec.ROBD()),
        "the plan, guarded: 2 x optimum": run_agent(ec.Competitive(wish, ratio=2.0)),
        "kept unless 5 cents better, guarded: 2 x optimum": run_agent(
            ec.Competitive(advice, ratio=2.0), keep_plan(5.0)
        ),
        "the plan, guarded: 1.05 x holding still": run_agent(
            ec.Guarded(wish, expert=ec.advisors.HoldStill(), slack=0.05)
        ),
        "learner, guarded: 1.05 x the plan": run_agent(ec.Guarded(learner, expert=wish, slack=0.05)),
    }


class Run(NamedTuple):
    """What a policy did: the wishes of its plans and its powers in kW, by step, and its earnings in cents."""

    wishes: np.ndarray
    powers: np.ndarray
    earned: float

    def figures(self) -> dict[str, float]:
        """Return cost, movement, changes of mode and earnings per day, and the cost over each reference's."""
        days, moves = len(self.powers) / STEPS, np.diff(self.powers, prepend=0.0)
        cost = 0.5 * np.sum((self.powers - self.wishes) ** 2) + ALPHA / 2 * np.sum(moves**2)
        optimum = ec.oracle(make_problem(), ec.Instance([0.0], self.wishes[:, None])).cost
        wished = np.diff(self.wishes, prepend=0.0)
        modes = np.sign(np.round(self.powers, 1))  # charging, idle, discharging
        figures = {
            "cost": cost / days,
            "over_optimum": cost / float(optimum),
            "over_plan": cost / (ALPHA / 2 * np.sum(wished**2)),
            "over_holding": cost / (0.5 * np.sum(self.wishes**2)),
            "kilowatts_moved": np.abs(moves).sum() / days,
            "largest_change": np.abs(moves).max(),
            "mode_changes": np.count_nonzero(np.diff(modes)) / days,
            "earned": self.earned / days,
        }
        return {name: float(value) for name, value in figures.items()}


def simulate(decide: Decide, prices: np.ndarray, days: int) -> Run:
    """Run a policy on its own battery, half full at first."""
    charge, earned, wishes, powers = CAPACITY / 2, 0.0, [], []
    for step in range(FIRST_DAY * STEPS, (FIRST_DAY + days) * STEPS):
        expected = forecast_prices(prices[: step + 1])
        fresh = plan(expected, charge)
        power = decide(fresh, expected, charge)
        delivered, charge = settle(power, charge)
        earned -= HOURS_PER_STEP * prices[step] * delivered
        wishes.append(fresh[0])
        powers.append(power)
    return Run(np.array(wishes), np.array(powers), earned)


def draw(runs: dict[str, Run], path: Path) -> None:
    """Draw two days of the plan alone and behind the guard."""
    from ecl2o.plots.style import BLUE, GREY, VERMILLION, apply_style, new_figure

    with apply_style():
        figure = new_figure(2.6)
        axes = figure.subplots()
        hours = HOURS_PER_STEP * np.arange(2 * STEPS)
        guarded = runs["the plan, guarded: 2 x optimum"]
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
        axes.step(hours, guarded.powers[: 2 * STEPS], color=BLUE, label="behind a guarantee of 2")
        axes.set(xlabel="hour", ylabel="power, kW (buying above 0)", xticks=range(0, 49, 6))
        axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
        figure.savefig(path, dpi=200)


def main() -> None:
    """Print the table; store it with --write."""
    parser = argparse.ArgumentParser(description="A battery plan that flips, beside guards.")
    parser.add_argument("series", type=Path, help="CSV with a column net_load_mw, one row per hour of a year")
    parser.add_argument("--days", type=int, default=28)
    parser.add_argument("--write", action="store_true", help="store the results and the figure of the page")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    prices = make_prices(pd.read_csv(given.series)["net_load_mw"].to_numpy(float))
    runs = {name: simulate(decide, prices, given.days) for name, decide in make_policies().items()}
    found = {name: run.figures() for name, run in runs.items()}
    print(pd.DataFrame(found).T.round(2).to_string())
    if given.write:
        about = {"series": given.series.name, "days": given.days, "rows": found}
        store("battery-plan", about, format_table("policy", COLUMNS, found))
        draw(runs, HERE / "battery-plan.png")


if __name__ == "__main__":
    main()
