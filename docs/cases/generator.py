"""Generators with a ramp limit that follow net load, beside MPC with a QP solver; the figures of docs/cases/generator.md.

    .venv/bin/python docs/cases/generator.py Texas=net_load_ercot.csv Midwest=net_load_miso.csv             # print the table
    .venv/bin/python docs/cases/generator.py Texas=net_load_ercot.csv Midwest=net_load_miso.csv --write     # store it too

Every hour the net load of a grid is known, and the power of its conventional generators is set. It may change by at most a
tenth of the largest net load in an hour. Wind and sun are seen, not followed. The peer is what people use: model-predictive
control on a rolling forecast, solved by OSQP with the ramp inside the plan.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import osqp
import pandas as pd
from page import HERE, Columns, format_table, store
from scipy import sparse

import ecl2o as ec

HOURS, WINDOW = 24, 24
ALPHA, PROMISE = 10.0, 3.0
TRAINING, VALIDATION = 243, 61  # days; the rest of the year is for the test
RAMP = 0.1  # of the largest net load of the training days, in an hour
COLUMNS: Columns = {
    "cost per day": lambda row: f"{row['cost']:.0f}",
    "x optimum": lambda row: f"{row['over_optimum']:.2f}",
    "worst day": lambda row: f"{row['worst_day']:.0f}",
    "moved per day": lambda row: f"{row['moved']:.0f}",
    "miss": lambda row: f"{row['miss']:.1f}",
    "promise, largest ratio": lambda row: (
        f"{row['promise']:.4g}, {row['largest_ratio']:.2f}" if "promise" in row else "none"
    ),
}
FOLLOW, MPC, LEARNED, GUARDED = "follow the load", "MPC", "`fit --ramp`", f"`fit --ramp --promise {PROMISE:g}`"

Decide = Callable[[float, float], float]  # (net load now, power of the hour before) -> power, all in GW


class PlanWithRamp:
    """Model-predictive control: plan WINDOW hours on a forecast, with the ramp limit inside, and play the first hour.

    The forecast is the mean profile of the last days plus the present error, which decays from hour to hour.
    """

    def __init__(self, ramp: float, before: np.ndarray, days: int, decay: float):
        self.ramp, self.days, self.decay, self.seen = ramp, days, decay, list(before[-days * HOURS :])
        changes = sparse.diags_array([1.0, -1.0], offsets=[0, -1], shape=(WINDOW, WINDOW), format="csc")
        curvature = sparse.eye_array(WINDOW) + ALPHA * changes.T @ changes
        limits = np.full(WINDOW, ramp)
        self.solver = osqp.OSQP()
        self.solver.setup(
            sparse.csc_matrix(curvature), np.zeros(WINDOW), sparse.csc_matrix(changes), -limits, limits,
            verbose=False, eps_abs=1e-6, eps_rel=1e-6, max_iter=20_000,
        )  # fmt: skip

    def __call__(self, load: float, current: float) -> float:
        profile = np.reshape(self.seen[-self.days * HOURS :], (self.days, HOURS)).mean(axis=0)
        expected = profile + (load - profile[0]) * self.decay ** np.arange(WINDOW)
        self.seen.append(load)
        linear, low, high = -expected, np.full(WINDOW, -self.ramp), np.full(WINDOW, self.ramp)
        linear[0] -= ALPHA * current
        low[0], high[0] = low[0] + current, high[0] + current  # the first change is from the power now
        self.solver.update(q=linear, l=low, u=high)
        return float(np.clip(self.solver.solve(raise_error=True).x[0], current - self.ramp, current + self.ramp))


def follow_load(ramp: float) -> Decide:
    """Return the rule that goes to the net load as fast as the ramp allows."""
    return lambda load, current: float(np.clip(load, current - ramp, current + ramp))


def play(decide: Decide, loads: np.ndarray, first: float) -> np.ndarray:
    """Return the power of each hour when a rule decides."""
    powers = [first]
    for load in loads:
        powers.append(decide(float(load), powers[-1]))
    return np.array(powers[1:])


def cost_by_hour(powers: np.ndarray, loads: np.ndarray, first: float) -> np.ndarray:
    """Return what each hour costs, written out."""
    return 0.5 * (powers - loads) ** 2 + 0.5 * ALPHA * np.diff(powers, prepend=first) ** 2


class Grid(NamedTuple):
    """A year of a grid in GW: columns net_load, wind and sun, (n, 3); and the ramp limit, GW in an hour."""

    contexts: np.ndarray
    ramp: float

    @classmethod
    def read(cls, path: Path, ramp: float = RAMP) -> "Grid":
        """Read a file with hourly columns net_load_mw, wind_mw and solar_mw; the ramp is a share of the largest net load."""
        contexts = pd.read_csv(path)[["net_load_mw", "wind_mw", "solar_mw"]].to_numpy(float) / 1000
        return cls(contexts, round(ramp * contexts[: TRAINING * HOURS, 0].max(), 1))

    @property
    def problem(self) -> ec.Problem:
        """The problem with the ramp limit, for the optimum in hindsight."""
        actions = ec.Limited(ec.Everywhere(), ramp=self.ramp)
        return ec.Problem(ec.SquaredTracking(), ec.Mahalanobis.isotropic(alpha=ALPHA, dim=1), actions)

    @property
    def load_range(self) -> str:
        """LOW:HIGH of net loads, as an operator would declare it: that of the training days, a tenth wider on both sides."""
        loads = self.contexts[: TRAINING * HOURS, 0]
        margin = 0.1 * (loads.max() - loads.min())
        return f"{np.floor(loads.min() - margin):g}:{np.ceil(loads.max() + margin):g}"

    def fit(
        self, out: Path, options: list, days: tuple[int, int] = (TRAINING, VALIDATION), advisor: str = "ridge"
    ) -> tuple[ec.Policy, str]:
        """Run `ecl2o fit`, and return its policy and its sentence about the worst case."""
        times = pd.date_range("2022-01-01", periods=len(self.contexts), freq="h", tz="UTC")
        series = out.with_suffix(".csv")
        pd.DataFrame(self.contexts, times, ["net_load", "wind", "sun"]).rename_axis("time").to_csv(series)
        command = [sys.executable, "-c", "from ecl2o.cli import main; main()", "fit", series, "--out", out]
        command += ["--column", "net_load", "--covariate", "wind", "--covariate", "sun", "--alpha", ALPHA]
        command += ["--ramp", self.ramp, "--training-days", days[0], "--validation-days", days[1]]
        command += ["--advisor", advisor, *options]
        said = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout
        (about,) = [line for line in said.splitlines() if line.startswith(("promise:", "worst case:"))]
        return ec.load(out), about


class Days(NamedTuple):
    """A stretch of a grid's hours: contexts before it and in it."""

    grid: Grid
    before: np.ndarray
    contexts: np.ndarray

    @property
    def loads(self) -> np.ndarray:
        """The net loads of these days."""
        return self.contexts[:, 0]

    @property
    def first(self) -> float:
        """The power before the first hour: the last net load."""
        return float(self.before[-1, 0])

    def plan(self, days: int, decay: float) -> np.ndarray:
        """Return the powers of model-predictive control."""
        return play(PlanWithRamp(self.grid.ramp, self.before[:, 0], days, decay), self.loads, self.first)

    def run_policy(self, policy: ec.Policy) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the powers of a policy that has seen the hours before, and its cost over the optimum after each hour."""
        runner = ec.Runner(policy, x0=[self.first], history=self.before)
        powers, ratios = [], []
        for context in self.contexts:
            powers.append(float(runner.step(context)[0]))
            ratios.append(runner.live_ratio)
        return np.array(powers), None if ratios[0] is None else np.array(ratios, float)

    def score(self, powers: np.ndarray) -> dict[str, float]:
        """Return the figures of a row."""
        moves, cost = np.diff(powers, prepend=self.first), cost_by_hour(powers, self.loads, self.first)
        days, ramp = cost.reshape(-1, HOURS).sum(axis=1), self.grid.ramp
        best = float(ec.oracle(self.grid.problem, ec.Instance([self.first], self.loads[:, None])).cost)
        return {
            "cost": float(days.mean()),
            "over_optimum": float(days.sum() / best),
            "worst_day": float(days.max()),
            "moved": float(np.abs(moves).sum() / len(days)),
            "at_limit": float(np.mean(np.abs(moves) > 0.999 * ramp)),
            "largest_move": float(np.abs(moves).max() / ramp),
            "miss": float(np.sqrt(np.mean((powers - self.loads) ** 2))),
        }


def compare(grid: Grid, folder: Path) -> tuple[dict[str, dict], dict[str, np.ndarray], str]:
    """Return the rows of a grid, the powers by row on the test days, and what `fit` says about its promise."""
    middle, cut = TRAINING * HOURS, (TRAINING + VALIDATION) * HOURS
    tuning = Days(grid, grid.contexts[:middle], grid.contexts[middle:cut])
    test = Days(grid, grid.contexts[:cut], grid.contexts[cut:])
    settings = itertools.product([7, 14], [0.8, 0.9, 0.95])
    days, decay = min(settings, key=lambda each: cost_by_hour(tuning.plan(*each), tuning.loads, tuning.first).sum())
    learned, _ = grid.fit(folder / "learned.ecl2o", [])
    guarded, said = grid.fit(folder / "guarded.ecl2o", ["--promise", PROMISE, "--contexts", grid.load_range])
    powers = {
        FOLLOW: play(follow_load(grid.ramp), test.loads, test.first),
        f"{MPC}, {days} days, decay {decay:g}": test.plan(days, decay),
        LEARNED: test.run_policy(learned)[0],
    }
    powers[GUARDED], ratios = test.run_policy(guarded)
    rows = {name: test.score(played) for name, played in powers.items()}
    assert ratios is not None
    rows[GUARDED] |= {"promise": read_promise(said), "largest_ratio": float(ratios.max())}
    return rows, powers | {"net load": test.loads}, said


def read_promise(said: str) -> float:
    """Return the multiple of the optimum that `fit` promises, from its sentence."""
    return float(said.split("the cost is at most ")[1].split(" times")[0])


def draw(powers: dict[str, np.ndarray], path: Path) -> None:
    """Draw three days around the hour in which MPC misses most."""
    from ecl2o.plots.style import BLUE, GREY, VERMILLION, apply_style, new_figure

    (planned,) = [name for name in powers if name.startswith(MPC)]
    worst = int(np.argmax(np.abs(powers[planned] - powers["net load"]))) // HOURS * HOURS
    part = slice(max(worst - HOURS, 0), max(worst - HOURS, 0) + 3 * HOURS)
    with apply_style():
        figure = new_figure(2.6)
        axes = figure.subplots()
        hours = np.arange(len(powers[planned][part]))
        axes.fill_between(hours, powers["net load"][part], color=GREY, alpha=0.3, linewidth=0, label="net load")
        axes.plot(hours, powers[planned][part], color=VERMILLION, linewidth=1, label=planned)
        axes.plot(hours, powers[GUARDED][part], color=BLUE, label=GUARDED.strip("`"))
        axes.set(xlabel="hour", ylabel="GW", xticks=range(0, 3 * HOURS + 1, 12), ylim=(0, None))
        axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
        figure.savefig(path, dpi=200)


def make_table(found: dict) -> str:
    """Return the table of the stored results, and below it what `fit` says about its promises."""
    rows = {f"{name}: {row}": figures for name, grid in found.items() for row, figures in grid["rows"].items()}
    said = "".join(f"\n> {name}, ramp {grid['ramp']:g} GW an hour: {grid['said']}\n" for name, grid in found.items())
    return format_table("grid: policy", COLUMNS, rows) + said


def main() -> None:
    """Print the tables, and store them with the figure if asked to."""
    parser = argparse.ArgumentParser(description="Generators with a ramp limit, beside model-predictive control.")
    parser.add_argument("grids", nargs="+", metavar="NAME=CSV", help="columns net_load_mw, wind_mw, solar_mw by hour")
    parser.add_argument("--ramp", type=float, default=RAMP, help="share of the largest net load (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="store the results and the figure of the page")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    found, drawn = {}, None
    for name, path in (text.split("=", 1) for text in given.grids):
        grid = Grid.read(Path(path), given.ramp)
        with tempfile.TemporaryDirectory() as folder:
            rows, powers, said = compare(grid, Path(folder))
        found[name] = {"ramp": grid.ramp, "contexts": grid.load_range, "said": said, "rows": rows}
        print(f"{name}\n{pd.DataFrame(rows).T.round(3).to_string()}\n{said}")
        drawn = drawn or powers
    if given.write:
        store("generator", found, make_table(found))
        draw(drawn or {}, HERE / "generator.png")


if __name__ == "__main__":
    main()
